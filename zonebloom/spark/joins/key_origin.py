"""Check in a query plan that a join key is the indexed files' own column in every row.

The id of an expression is not enough, because a Union reuses the ids of its first child.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame

from zonebloom.errors import SchemaMismatch
from zonebloom.facade.dataset import Dataset
from zonebloom.predicates.catalyst import opaque_reason
from zonebloom.scan.column_case import require_visible
from zonebloom.spark.joins.sides import RuleNotUsed
from zonebloom.spark.pruning.optimizer_rule import jvm_plans
from zonebloom.spark.relation import class_name, node_name, scala_items
from zonebloom.spark.versions import from_jvm, query_execution
from zonebloom.storage.paths import split_path
from zonebloom.values.columns import find_column, matching_names

_PLANS_PACKAGE = "org.apache.spark.sql.catalyst.plans.logical."
# Nodes that list the expressions of all their columns, and the field that holds the list.
_LISTED_COLUMNS = {"Aggregate": "aggregateExpressions", "Project": "projectList"}
# Nodes whose columns are new, or hold only nulls and values of a child's column with the same id.
# The rule is not used for any other node.
_PASSING_NODES = {
    *_LISTED_COLUMNS,
    # These return rows of their child, in another order or number.
    *("CollectMetrics", "Filter", "GlobalLimit", "LocalLimit", "Offset", "RebalancePartitions"),
    *("Repartition", "RepartitionByExpression", "Sample", "Sort", "Tail"),
    # These add columns.
    *("Generate", "Window"),
    # It returns columns of both children or of the first. Rows without a match hold null.
    "Join",
}


def require_stored_column(frame: DataFrame, key: str, dataset: Dataset) -> None:
    """Raise `RuleNotUsed` unless a key of a frame is a column that the dataset's files store."""
    try:
        column_name = find_column(dataset.schema.names, key) or key
        require_visible(dataset.opened, (column_name,))
    except SchemaMismatch as error:
        raise RuleNotUsed(str(error)) from None
    column, files = _stored_column(frame, key)
    reason = opaque_reason(column.metadata().json())
    if reason is not None:
        raise RuleNotUsed(reason)
    _require_known_files(files, dataset)


def _stored_column(frame: DataFrame, key: str) -> tuple[Any, list[str]]:
    """Return the attribute of files that is a key of a frame, and the files of its relation."""
    # The optimized plan has no views, named subqueries, INTERSECT and EXCEPT. UNION is refused.
    plan = query_execution(frame).optimizedPlan()
    attribute = plan.output().apply(frame.columns.index(key))
    try:
        relation, column = _find_origin(jvm_plans(frame.sparkSession), plan, attribute)
    except RuleNotUsed as reason:
        raise RuleNotUsed(
            f"{key} is not a column of Parquet files as Spark reads them: {reason}"
        ) from None
    if not matching_names([column.name()], key):
        raise RuleNotUsed(f"{key} is column {column.name()} of the files")
    if matching_names(list(relation.partitionSchema().fieldNames()), key):
        raise RuleNotUsed(f"Spark takes {key} from the paths of the files")
    return column, from_jvm(frame.sparkSession, relation.location().inputFiles())


def _find_origin(plans: Any, node: Any, attribute: Any) -> tuple[Any, Any]:
    """Return the file relation from which a column of a plan comes, and its attribute there.

    Every value of the plan's column is null or a value of the relation's column. Raise
    `RuleNotUsed` if that is not certain.
    """
    while True:
        kind = class_name(node).removeprefix(_PLANS_PACKAGE)
        if kind in _PASSING_NODES:
            if kind in _LISTED_COLUMNS:
                columns = getattr(node, _LISTED_COLUMNS[kind])()
                column = _only_column(columns, attribute)
                attribute = column.child() if node_name(column) == "Alias" else column
                if node_name(attribute) != "AttributeReference":
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
            relation = plans.relation(node)
            if relation is None:
                name = kind.rpartition(".")[2]
                raise RuleNotUsed(
                    f"{name} is not known to return only rows of one relation of files"
                )
            return relation, _only_column(node.output(), attribute)


def _only_column(columns: Any, attribute: Any) -> Any:
    """Return the column with the id of an attribute, if there is only one."""
    number = attribute.exprId().id()
    found = [column for column in scala_items(columns) if column.exprId().id() == number]
    if len(found) != 1:
        raise RuleNotUsed("not exactly one column has its id")
    return found[0]


def _require_known_files(uris: Iterable[str], dataset: Dataset) -> None:
    """Raise `RuleNotUsed` if a frame reads files that the dataset does not know.

    The frame may list files that were added after the dataset was opened.
    """
    known_paths = {path.lstrip("/") for path in dataset.files}
    for uri in uris:
        path = split_path(uri, encoded=True)[1].lstrip("/")
        if path not in known_paths:
            raise RuleNotUsed(
                f"the frame reads {posixpath.basename(path)}, which is not a file of the dataset; "
                "open the dataset again, or give the path of all files that the frame reads"
            )
