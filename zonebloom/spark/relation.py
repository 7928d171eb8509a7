"""Recognise relations of Parquet files in the query plans of a classic session."""

from __future__ import annotations

from typing import Any

DATASOURCES_PACKAGE = "org.apache.spark.sql.execution.datasources."
_PARQUET_FORMAT = DATASOURCES_PACKAGE + "parquet.ParquetFileFormat"
# The last one is the file index that `zonebloom.spark.pruning` installs.
_FILE_INDEX_CLASSES = (
    DATASOURCES_PACKAGE + "InMemoryFileIndex",
    DATASOURCES_PACKAGE + "CatalogFileIndex",
    "zonebloom.IndexedFiles",
)


def file_relation(node: Any) -> Any:
    """Return the HadoopFsRelation of a leaf of a logical plan, None without Parquet files."""
    if class_name(node) != DATASOURCES_PACKAGE + "LogicalRelation" or node.isStreaming():
        return None
    relation = node.relation()
    if class_name(relation) != DATASOURCES_PACKAGE + "HadoopFsRelation":
        return None
    is_listed = class_name(relation.location()) in _FILE_INDEX_CLASSES
    return relation if is_listed and class_name(relation.fileFormat()) == _PARQUET_FORMAT else None


def scala_items(seq: Any) -> list[Any]:
    # Indexed access to a linked list takes n steps for item n.
    seq = seq.toIndexedSeq()
    return [seq.apply(index) for index in range(seq.size())]


def node_name(node: Any) -> str:
    """Return the class name of a plan node, without its package."""
    return node.getClass().getSimpleName()


def class_name(node: Any) -> str:
    return node.getClass().getName()
