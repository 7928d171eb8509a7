"""Whether a join's key is, in every row, the indexed files' own column: what the plan shows of it.

The id of an expression does not tell, for a Union goes on under the ids of its first child.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame

from zonebloom.dataset import Dataset
from zonebloom.errors import SchemaMismatch
from zonebloom.predicates.catalyst import opaque_reason
from zonebloom.spark.column_case import require_visible
from zonebloom.spark.joins.sides import RuleNotUsed
from zonebloom.spark.relation import class_name, file_relation, node_name, scala_items
from zonebloom.storage.paths import split_path
from zonebloom.values.columns import find_column, matching_names

_PACKAGE = "org.apache.spark.sql.catalyst.plans.logical."
# Their own columns have ids of their own; here are the columns they give.
_COLUMNS = {
    "Aggregate": "aggregateExpressions",
    "Generate": "output",
    "Project": "projectList",
    "Window": "output",
}
# Nodes known to have under an id what one child of theirs has under it, or null; others refuse.
_PASSING = {
    *_COLUMNS,
    # Some rows of their child, in another order or number.
    *("CollectMetrics", "Deduplicate", "Distinct", "Filter", "GlobalLimit", "LocalLimit"),
    *("Offset", "RebalancePartitions", "Repartition", "RepartitionByExpression", "ResolvedHint"),
    *("Sample", "Sort", "SubqueryAlias", "Tail", "View"),
    # Of two children the ids of both, or those of the first. Rows without a match hold null.
    *("Except", "Intersect", "Join", "LateralJoin"),
}


def require_stored_column(
    frame: DataFrame, key: str, dataset: Dataset, is_said_stored: bool
) -> None:
    """Refuse a filter for a key that is no column of the dataset's files, as it lies in them.

    Spark shows where a key comes from in classic sessions alone. Over Connect a caller has to say
    that it is the files' own.
    """
    try:
        require_visible(dataset, find_column(dataset.schema.names, key) or key)
    except SchemaMismatch as error:
        raise RuleNotUsed(str(error)) from None
    classic: Any = frame
    if not hasattr(classic, "_jdf"):
        if not is_said_stored:
            raise RuleNotUsed(
                f"Spark Connect does not show whether {key} is computed, or comes from elsewhere "
                "too, as of a union; give zonebloom.spark.Indexed(path) for the frame, or say "
                "stored_keys=True where it is the files' own column"
            )
        _require_as_stored(json.dumps(frame.schema[key].metadata or {}))
        _require_known_files(frame.inputFiles(), dataset, elsewhere=True)
        return
    plan = classic._jdf.queryExecution().withCachedData()
    (attribute,) = [column for column in scala_items(plan.output()) if column.name() == key]
    try:
        relation, column = _origin(plan, attribute)
    except RuleNotUsed as reason:
        raise RuleNotUsed(
            f"{key} is not a column of Parquet files as Spark reads them: {reason}"
        ) from None
    if not matching_names([column.name()], key):
        raise RuleNotUsed(f"{key} is column {column.name()} of the files")
    if matching_names(list(relation.partitionSchema().fieldNames()), key):
        raise RuleNotUsed(f"Spark takes {key} from the paths of the files")
    _require_as_stored(column.metadata().json())
    # One text: each element of an array would be a call.
    json_of = classic.sparkSession._jvm.com.fasterxml.jackson.databind.ObjectMapper()
    files = json.loads(json_of.writeValueAsString(relation.location().inputFiles()))
    _require_known_files(files, dataset, elsewhere=False)


def _origin(node: Any, attribute: Any) -> tuple[Any, Any]:
    """The relation of files whose column a column of a plan is, and its attribute there.

    What the plan has under ``attribute`` is null or one of its values.
    """
    shared: dict[int, Any] = {}
    while True:
        kind = class_name(node).removeprefix(_PACKAGE)
        if kind == "WithCTE":
            shared |= {
                definition.id(): definition.child() for definition in scala_items(node.cteDefs())
            }
            node = node.plan()
        elif kind == "CTERelationRef" and node.cteId() in shared:
            at = _position(node.output(), attribute)
            node = shared[node.cteId()]
            attribute = node.output().apply(at)
        elif kind in _PASSING:
            if kind in _COLUMNS:
                columns = getattr(node, _COLUMNS[kind])()
                named = columns.apply(_position(columns, attribute))
                if node_name(named) != "AttributeReference":
                    raise RuleNotUsed(f"a {kind} computes it")
            below = [c for c in scala_items(node.children()) if c.outputSet().contains(attribute)]
            if len(below) != 1:
                raise RuleNotUsed(f"a {kind} makes it")
            node = below[0]
        elif kind.endswith("InMemoryRelation"):
            raise RuleNotUsed("a cached frame answers for the files")
        else:
            relation = file_relation(node)
            columns = [] if relation is None else scala_items(node.output())
            expression = attribute.exprId().id()
            column = next((c for c in columns if c.exprId().id() == expression), None)
            if column is None:
                name = kind.rpartition(".")[2]
                raise RuleNotUsed(
                    f"{name} is not known to give the rows of one relation of files alone"
                )
            return relation, column


def _position(expressions: Any, attribute: Any) -> int:
    """Where the only one of some named expressions with an attribute's id is."""
    ids = [expression.exprId().id() for expression in scala_items(expressions)]
    if ids.count(attribute.exprId().id()) != 1:
        raise RuleNotUsed("several columns have its id")
    return ids.index(attribute.exprId().id())


def _require_as_stored(metadata: str) -> None:
    why = opaque_reason(metadata)
    if why is not None:
        raise RuleNotUsed(why)


def _require_known_files(read: Iterable[str], dataset: Dataset, elsewhere: bool) -> None:
    """Refuse a filter when a frame reads files that the dataset never saw.

    A dataset opened earlier holds the files there were; the frame may have listed more. Over
    Connect the files are those of the whole frame, so others may be elsewhere.
    """
    known = {path.lstrip("/") for path in dataset.files}
    root = dataset.opened.source.root.strip("/") + "/"
    for uri in read:
        path = split_path(uri, encoded=True)[1].lstrip("/")
        name = posixpath.basename(path)
        if path not in known and path.startswith(root):
            raise RuleNotUsed(
                f"the frame reads {name}, which was not there when the dataset was opened; open "
                "it again, or give its path"
            )
        if path not in known and not elsewhere:
            raise RuleNotUsed(
                f"the frame reads {name}, which is none of the files of the dataset; give the "
                "path of all that the frame reads"
            )
