"""The files that Spark listed, stored as columns because there may be very many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


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
    def of(cls, folders: Iterable[tuple[str, list[str], list[int], list[int]]]) -> ListedFiles:
        """Return the files of folders, given as folder, names, sizes and modification times."""
        compute: Any = pc
        paths: list[str] = []
        sizes: list[int] = []
        mtimes_ms: list[int] = []
        counts = []
        for folder, names, folder_sizes, folder_mtimes in folders:
            counts.append((folder, len(names)))
            paths += [f"{folder}/{name}" for name in names]
            sizes += folder_sizes
            mtimes_ms += folder_mtimes
        texts = pa.array(paths, pa.string())
        numbers = compute.rank(texts, tiebreaker="dense").to_numpy().astype(np.int64)
        sizes_and_mtimes = np.array(sizes, np.int64), np.array(mtimes_ms, np.int64)
        return cls(texts, *sizes_and_mtimes, numbers, counts)

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, positions: np.ndarray) -> ListedFiles:
        """Return the files at some positions, without their folders."""
        paths = self.paths.take(pa.array(positions))
        return ListedFiles(
            paths, self.sizes[positions], self.mtimes_ms[positions], self.numbers[positions]
        )

    def unchanged_mask(self, sizes: np.ndarray, mtimes_ns: np.ndarray) -> np.ndarray:
        """Return a mask of the files whose size and time are still as Spark listed them."""
        # On some file systems Spark gets times in whole seconds.
        is_rounded = self.mtimes_ms % 1000 == 0
        mtimes_ms = mtimes_ns // 10**6
        mtimes_ms[is_rounded] -= mtimes_ms[is_rounded] % 1000
        return (sizes == self.sizes) & (mtimes_ms == self.mtimes_ms)

    def by_root(self, roots: Sequence[str]) -> list[tuple[str, ListedFiles]]:
        """Return the files below each root, without duplicates.

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
        return [
            (root, self._without_duplicates(np.concatenate(positions)))
            for root, positions in groups.items()
        ]

    def _without_duplicates(self, positions: np.ndarray) -> ListedFiles:
        """Return files without duplicates, in the order of their paths, which catalogs use too."""
        return self.take(positions[np.unique(self.numbers[positions], return_index=True)[1]])


def _root_of(path: str, roots: set[str]) -> str | None:
    """Return the longest root that is a path or a folder above it, or None."""
    while path:
        if path in roots:
            return path
        path = path.rpartition("/")[0]
    return None
