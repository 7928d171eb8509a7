"""Check in a query plan that a join key is the indexed files' own column in every row.

The id of an expression is not enough, because a Union reuses the ids of its first child.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame

from zonebloom.errors import SchemaMismatch
from zonebloom.facade.dataset import Dataset
from zonebloom.predicates.catalyst import opaque_reason
from zonebloom.scan.column_case import require_visible
from zonebloom.spark.joins.sides import RuleNotUsed
from zonebloom.spark.relation import class_name, file_relation, node_name, scala_items
from zonebloom.spark.versions import from_jvm, input_files, is_classic, query_execution
from zonebloom.storage.paths import is_below, split_path
from zonebloom.values.columns import find_column, matching_names

_PLANS_PACKAGE = "org.apache.spark.sql.catalyst.plans.logical."
# Nodes that compute new columns, and the field that holds their output expressions.
_OUTPUT_FIELDS = {
    "Aggregate": "aggregateExpressions",
    "Generate": "output",
    "Project": "projectList",
    "Window": "output",
}
# Nodes whose columns hold only nulls and values of a child's column with the same id. The rule is
# not used for any other node.
_PASSING_NODES = {
    *_OUTPUT_FIELDS,
    # These return rows of their child, in another order or number.
    *("CollectMetrics", "Deduplicate", "Distinct", "Filter", "GlobalLimit", "LocalLimit"),
    *("Offset", "RebalancePartitions", "Repartition", "RepartitionByExpression", "ResolvedHint"),
    *("Sample", "Sort", "SubqueryAlias", "Tail", "View"),
    # These return columns of both children or of the first. Rows without a match hold null.
    *("Except", "Intersect", "Join", "LateralJoin"),
}


def require_stored_column(
    frame: DataFrame, key: str, dataset: Dataset, user_says_stored: bool
) -> None:
    """Raise `RuleNotUsed` unless a key of a frame is a column that the dataset's files store.

    Only classic sessions show where a key comes from. Over Connect, the user has to promise that
    the files store it.
    """
    try:
        column_name = find_column(dataset.schema.names, key) or key
        require_visible(dataset.opened, (column_name,))
    except SchemaMismatch as error:
        raise RuleNotUsed(str(error)) from None
    is_plan_known = is_classic(frame.sparkSession)
    if is_plan_known:
        column, files = _stored_column(frame, key)
        metadata = column.metadata().json()
    elif user_says_stored:
        metadata, files = json.dumps(frame.schema[key].metadata or {}), input_files(frame)
    else:
        raise RuleNotUsed(
            f"Spark Connect does not show whether {key} is computed, or also comes from "
            "elsewhere, as in a union; give "
            "stored_keys=True if it is the files' own column"
        )
    reason = opaque_reason(metadata)
    if reason is not None:
        raise RuleNotUsed(reason)
    _require_known_files(files, dataset, elsewhere=not is_plan_known)


def _stored_column(frame: DataFrame, key: str) -> tuple[Any, list[str]]:
    """Return the attribute of files that is a key of a frame, and the files of its relation."""
    plan = query_execution(frame).withCachedData()
    (attribute,) = [column for column in scala_items(plan.output()) if column.name() == key]
    try:
        relation, column = _find_origin(plan, attribute)
    except RuleNotUsed as reason:
        raise RuleNotUsed(
            f"{key} is not a column of Parquet files as Spark reads them: {reason}"
        ) from None
    if not matching_names([column.name()], key):
        raise RuleNotUsed(f"{key} is column {column.name()} of the files")
    if matching_names(list(relation.partitionSchema().fieldNames()), key):
        raise RuleNotUsed(f"Spark takes {key} from the paths of the files")
    return column, from_jvm(frame.sparkSession, relation.location().inputFiles())


def _find_origin(node: Any, attribute: Any) -> tuple[Any, Any]:
    """Return the file relation from which a column of a plan comes, and its attribute there.

    Every value of the plan's column is null or a value of the relation's column. Raise
    `RuleNotUsed` if that is not certain.
    """
    shared: dict[int, Any] = {}
    while True:
        kind = class_name(node).removeprefix(_PLANS_PACKAGE)
        if kind == "WithCTE":
            shared |= {
                definition.id(): definition.child() for definition in scala_items(node.cteDefs())
            }
            node = node.plan()
        elif kind == "CTERelationRef" and node.cteId() in shared:
            position = _unique_position(node.output(), attribute)
            node = shared[node.cteId()]
            attribute = node.output().apply(position)
        elif kind in _PASSING_NODES:
            if kind in _OUTPUT_FIELDS:
                columns = getattr(node, _OUTPUT_FIELDS[kind])()
                named_expression = columns.apply(_unique_position(columns, attribute))
                if node_name(named_expression) != "AttributeReference":
                    raise RuleNotUsed(f"a {kind} computes it")
            children = [
                c for c in scala_items(node.children()) if c.outputSet().contains(attribute)
            ]
            if len(children) != 1:
                raise RuleNotUsed(f"a {kind} makes it")
            node = children[0]
        elif kind.endswith("InMemoryRelation"):
            raise RuleNotUsed("a cached frame is read instead of the files")
        else:
            relation = file_relation(node)
            columns = [] if relation is None else scala_items(node.output())
            expression_id = attribute.exprId().id()
            column = next((c for c in columns if c.exprId().id() == expression_id), None)
            if column is None:
                name = kind.rpartition(".")[2]
                raise RuleNotUsed(
                    f"{name} is not known to return only rows of one relation of files"
                )
            return relation, column


def _unique_position(expressions: Any, attribute: Any) -> int:
    """Return the position of an attribute's id among named expressions, if it is unique there."""
    ids = [expression.exprId().id() for expression in scala_items(expressions)]
    if ids.count(attribute.exprId().id()) != 1:
        raise RuleNotUsed("not exactly one column has its id")
    return ids.index(attribute.exprId().id())


def _require_known_files(uris: Iterable[str], dataset: Dataset, elsewhere: bool) -> None:
    """Raise `RuleNotUsed` if a frame reads files that the dataset does not know.

    The frame may list files that were added after the dataset was opened. If `elsewhere` is set,
    as over Connect, the files are those of the whole frame, so some may belong to other tables.
    """
    known_paths = {path.lstrip("/") for path in dataset.files}
    root = dataset.opened.source.root.strip("/")
    for uri in uris:
        path = split_path(uri, encoded=True)[1].lstrip("/")
        name = posixpath.basename(path)
        if path not in known_paths and is_below(path, root):
            raise RuleNotUsed(
                f"the frame reads {name}, which was not there when the dataset was opened; open "
                "it again, or give its path"
            )
        if path not in known_paths and not elsewhere:
            raise RuleNotUsed(
                f"the frame reads {name}, which is not a file of the dataset; give the path of all "
                "files that the frame reads"
            )
