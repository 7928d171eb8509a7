"""Where a column of a frame comes from, as its plan shows.

The id of an expression does not tell: a Union goes on under the ids of its first child, for the
rows of all of them. So between a frame and the files only such nodes may stand as are known to
have under an id what one child of theirs has under it, or null. All others refuse.
"""

from __future__ import annotations

from typing import Any

from zonebloom.spark.relation import Leaf, items, leaf_of

_PACKAGE = "org.apache.spark.sql.catalyst.plans.logical."
# Some rows of their child, in another order or number.
_ROWS = {
    "CollectMetrics",
    "Deduplicate",
    "Distinct",
    "Filter",
    "GlobalLimit",
    "LocalLimit",
    "Offset",
    "RebalancePartitions",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "Sample",
    "Sort",
    "SubqueryAlias",
    "Tail",
    "View",
}
# Rows of their child with columns of their own, which have ids of their own.
_COLUMNS = {"Aggregate", "Generate", "Project", "Window"}
# Of two children the ids of both, or those of the first. Rows without a match hold null.
_CHILDREN = {"Except", "Intersect", "Join", "LateralJoin"}
_PASSING = _ROWS | _COLUMNS | _CHILDREN


class Elsewhere(Exception):
    """Why a column is not known to be one of files."""


def origin(plan: Any, attribute: Any) -> tuple[Leaf, Any]:
    """The relation of files whose column a column of a plan is, and that column.

    Attribute of the leaf. What the plan has under ``attribute`` is null or one of its values.
    """
    node = plan
    shared: dict[int, Any] = {}
    while True:
        kind = node.getClass().getName().removeprefix(_PACKAGE)
        if kind == "WithCTE":
            shared |= {each.id(): each.child() for each in items(node.cteDefs())}
            node = node.plan()
        elif kind == "CTERelationRef" and node.cteId() in shared:
            at = _position(node.output(), attribute)
            node = shared[node.cteId()]
            attribute = node.output().apply(at)
        elif kind in _PASSING:
            node = _below(node, kind, attribute)
        else:
            return _of_files(node, kind, attribute)


def _below(node: Any, kind: str, attribute: Any) -> Any:
    """The child whose column a node passes."""
    made = {"Project": "projectList", "Aggregate": "aggregateExpressions"}.get(kind)
    if made is not None:
        named = getattr(node, made)()
        if _kind(named.apply(_position(named, attribute))) != "AttributeReference":
            raise Elsewhere(f"a {kind} computes it")
    elif kind in _COLUMNS:
        # What a Window or a Generate adds stands beside what it passes.
        _position(node.output(), attribute)
    having = [each for each in items(node.children()) if each.outputSet().contains(attribute)]
    if len(having) != 1:
        raise Elsewhere(f"a {kind} makes it")
    return having[0]


def _position(expressions: Any, attribute: Any) -> int:
    """Where the only one of some named expressions with an attribute's id is."""
    wanted = attribute.exprId().id()
    found = [at for at, each in enumerate(items(expressions)) if each.exprId().id() == wanted]
    if len(found) != 1:
        raise Elsewhere("several columns have its id")
    return found[0]


def _of_files(node: Any, kind: str, attribute: Any) -> tuple[Leaf, Any]:
    if kind.endswith("InMemoryRelation"):
        raise Elsewhere("a cached frame answers for the files")
    leaf = leaf_of(node)
    found = leaf.columns.get(attribute.exprId().id())
    if found is None:
        name = kind.rpartition(".")[2]
        raise Elsewhere(f"{name} is not known to give the rows of one relation of files alone")
    return leaf, found


def _kind(node: Any) -> str:
    return node.getClass().getSimpleName()
