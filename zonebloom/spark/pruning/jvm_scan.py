"""A scan of Parquet files in the JVM, as the request that an index answers."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from zonebloom.base import arguments
from zonebloom.predicates import ast
from zonebloom.predicates.catalyst import CatalystNode, CatalystTranslator
from zonebloom.spark.pruning.listed_files import ListedFiles
from zonebloom.spark.session_state import LruCache
from zonebloom.spark.types import type_name

HYBRID_SCAN = "zonebloom.index.hybridscan.enabled"


class JvmScan:
    """A scan in the JVM, with its root paths, filters and listed files.

    ``listings`` caches the files of earlier scans.
    """

    def __init__(self, java_scan: Any, listings: LruCache[Any], request: str | None = None):
        self._java_scan = java_scan
        self._listings = listings
        fields = json.loads(request or java_scan.request())
        self.roots: list[str] = fields["roots"]
        self.filters: Sequence[CatalystNode] = fields["filters"]
        self.ignores_case: bool = not fields["case_sensitive"]
        self._hybrid_scan: str = fields["hybrid_scan"]
        self._partition_columns: list[str] = fields["partition_columns"]
        # The types of the columns of the filters, as Spark's JSON, by name.
        self.column_types: dict[str, str] = fields["types"]

    @property
    def is_hybrid(self) -> bool:
        """Return whether an index may be used although files were added or changed since its build.

        Raise `InvalidArgument` if the setting is neither true nor false.
        """
        text = self._hybrid_scan.strip().lower()
        if text not in ("true", "false"):
            raise arguments.invalid_value(self._hybrid_scan, HYBRID_SCAN, "set it to true or false")
        return text == "true"

    @property
    def columns(self) -> frozenset[str]:
        """Return the lower-case names of the top-level columns in the filters."""
        return frozenset(_column_names(self.filters))

    @functools.cached_property
    def files(self) -> ListedFiles:
        """Return the files in the order in which Spark lists them.

        If roots and files are those of an earlier scan, the cached object of that scan is returned.
        """
        roots, digest = tuple(self.roots), self._java_scan.digest()
        cached = self._listings.get(roots)
        if cached is None or cached[0] != digest:
            files = ListedFiles.from_bytes(base64.b64decode(self._java_scan.files()))
            cached = self._listings.put(roots, (digest, files))
        return cached[1]

    def predicate(self, schema: pa.Schema) -> ast.Predicate:
        """Return a predicate that is true for the rows that pass the filters.

        The schema has the types in which indices hold the columns.
        """
        translator = CatalystTranslator(
            schema, self._partition_columns, not self.ignores_case, type_name
        )
        return translator.translate(self.filters)


def _column_names(filters: Sequence[CatalystNode]) -> Iterator[str]:
    for node in filters:
        if "terms" in node:
            yield from _column_names(node["terms"])
        else:
            yield from map(str.lower, node["columns"])
