"""Relations of Parquet files in the plans of a classic session: the one recogniser of them."""

from __future__ import annotations

from typing import Any

DATASOURCES_PACKAGE = "org.apache.spark.sql.execution.datasources."
_PARQUET = DATASOURCES_PACKAGE + "parquet.ParquetFileFormat"
# The last as `zonebloom.spark.pruning` has them listed.
_LISTINGS = (
    DATASOURCES_PACKAGE + "InMemoryFileIndex",
    DATASOURCES_PACKAGE + "CatalogFileIndex",
    "zonebloom.IndexedFiles",
)


def file_relation(node: Any) -> Any:
    """The HadoopFsRelation of a leaf of a logical plan; None unless Spark lists Parquet files."""
    if class_name(node) != DATASOURCES_PACKAGE + "LogicalRelation" or node.isStreaming():
        return None
    relation = node.relation()
    if class_name(relation) != DATASOURCES_PACKAGE + "HadoopFsRelation":
        return None
    is_listed = class_name(relation.location()) in _LISTINGS
    return relation if is_listed and class_name(relation.fileFormat()) == _PARQUET else None


def scala_items(seq: Any) -> list[Any]:
    """The items of a Scala sequence."""
    # Of a linked list the n-th item is n steps away.
    seq = seq.toIndexedSeq()
    return [seq.apply(at) for at in range(seq.size())]


def node_name(node: Any) -> str:
    """The class of a node, without its package."""
    return node.getClass().getSimpleName()


def class_name(node: Any) -> str:
    """The class of a JVM object."""
    return node.getClass().getName()
