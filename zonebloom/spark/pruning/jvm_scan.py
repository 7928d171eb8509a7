"""A scan of Parquet files in the JVM, as the request that an index answers, and its files."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base import arguments
from zonebloom.predicates import ast
from zonebloom.predicates.catalyst import CatalystNode, CatalystTranslator
from zonebloom.spark.session_settings import system_folder
from zonebloom.spark.session_state import LruCache
from zonebloom.spark.types import type_name

HYBRID_SCAN = "zonebloom.index.hybridscan.enabled"


@dataclass(frozen=True, slots=True, eq=False)
class ListedFiles:
    """Listed files with their paths, sizes in bytes and modification times in ms.

    Files are numbered in the order of their paths. A path that is listed twice has one number.
    """

    paths: pa.StringArray
    sizes: np.ndarray
    mtimes_ms: np.ndarray
    numbers: np.ndarray
    # The folders of consecutive files, with the number of files in each.
    folders: Sequence[tuple[str, int]] = ()

    @classmethod
    def from_text(cls, text: str) -> ListedFiles:
        """Return the files of a text from `Scan.files` in `IndexedFiles.java`."""
        compute: Any = pc
        fields = compute.split_pattern(pa.array([text]), "\0").values
        # The text ends with a separator, so the last field is empty.
        starts = np.arange(0, len(fields) - 1, 4)
        columns = [fields.take(pa.array(starts + column)) for column in range(4)]
        is_first = compute.not_equal(columns[0], "").to_numpy(zero_copy_only=False)
        folders = columns[0].filter(pa.array(is_first))
        paths = compute.binary_join_element_wise(
            folders.take(pa.array(np.cumsum(is_first) - 1)), columns[1], "/"
        )
        ranks = compute.rank(paths, tiebreaker="dense").to_numpy().astype(np.int64)
        sizes, mtimes_ms = (compute.cast(column, pa.int64()).to_numpy() for column in columns[2:])
        counts = np.diff(np.flatnonzero(is_first), append=starts.size)
        runs = tuple(zip(folders.to_pylist(), counts.tolist(), strict=True))
        return cls(paths, sizes, mtimes_ms, ranks, runs)

    def __len__(self) -> int:
        return len(self.paths)

    def unchanged_mask(self, sizes: np.ndarray, mtimes_ns: np.ndarray) -> np.ndarray:
        """Return a mask of the files whose size and time are still as Spark listed them."""
        # On some file systems Spark gets times in whole seconds.
        is_rounded = self.mtimes_ms % 1000 == 0
        mtimes_ms = mtimes_ns // 10**6
        mtimes_ms[is_rounded] -= mtimes_ms[is_rounded] % 1000
        return (sizes == self.sizes) & (mtimes_ms == self.mtimes_ms)

    def positions_by_root(self, roots: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the positions of the files below each root.

        Partitions may be outside all roots, and roots may be single files. The folder of such files
        then counts as a root.
        """
        groups: dict[str, list[np.ndarray]] = {}
        root_set = set(roots)
        start = 0
        for folder, count in self.folders:
            root = _root_of(folder, root_set) or folder
            groups.setdefault(root, []).append(np.arange(start, start + count))
            start += count
        return {root: np.concatenate(positions) for root, positions in groups.items()}

    def below(self, roots: Sequence[tuple[str, str, np.ndarray]]) -> ListedFiles:
        """Return the files below some roots without duplicates, in the order of their paths.

        Each root comes with the path to write in its place, and with the positions of its files.
        """
        compute: Any = pc
        paths: list[pa.Array] = []
        for root, base, positions in roots:
            rest = compute.utf8_slice_codeunits(self.paths.take(pa.array(positions)), len(root))
            paths.append(compute.binary_join_element_wise(base, rest, ""))
        all_positions = np.concatenate([positions for _, _, positions in roots])
        numbers, first = np.unique(self.numbers[all_positions], return_index=True)
        chosen = all_positions[first]
        return ListedFiles(
            pa.concat_arrays(paths).take(pa.array(first)),
            self.sizes[chosen],
            self.mtimes_ms[chosen],
            numbers,
        )


def _root_of(path: str, roots: set[str]) -> str | None:
    """Return the longest root that is a path or a folder above it, or None."""
    while path:
        if path in roots:
            return path
        path = path.rpartition("/")[0]
    return None


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
        self._digest: str = fields["digest"]
        self._hybrid_scan: str = fields["hybrid_scan"] or "true"
        # The folder of the documents of managers.
        self.system_path = system_folder(fields["system_path"], fields["warehouse"])
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
        return frozenset(map(str.lower, self.column_types))

    @functools.cached_property
    def files(self) -> ListedFiles:
        """Return the files in the order in which Spark lists them.

        If roots and files are those of an earlier scan, the cached object of that scan is returned.
        """
        roots = tuple(self.roots)
        cached = self._listings.get(roots)
        if cached is None or cached[0] != self._digest:
            files = ListedFiles.from_text(self._java_scan.files())
            cached = self._listings.put(roots, (self._digest, files))
        return cached[1]

    def predicate(self, schema: pa.Schema) -> ast.Predicate:
        """Return a predicate that is true for the rows that pass the filters.

        The schema has the types in which indices hold the columns.
        """
        translator = CatalystTranslator(
            schema, self._partition_columns, not self.ignores_case, type_name
        )
        return translator.translate(self.filters)
