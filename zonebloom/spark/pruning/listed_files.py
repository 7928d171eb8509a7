"""Files as Spark listed them: columns rather than an object a file, of which there may be many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True, eq=False)
class ListedFiles:
    """Their paths, sizes in bytes and mtimes in ms, and their numbers by path: of what is listed
    twice, the same."""

    paths: pa.StringArray
    sizes: np.ndarray
    mtimes_ms: np.ndarray
    numbers: np.ndarray
    # Those of files one behind the other, and how many these are.
    folders: Sequence[tuple[str, int]] = ()

    @classmethod
    def of(cls, folders: Iterable[tuple[str, list[str], list[int], list[int]]]) -> ListedFiles:
        """Files by their folders: of each the names, sizes and mtimes."""
        compute: Any = pc
        paths: list[str] = []
        sizes: list[int] = []
        mtimes_ms: list[int] = []
        counts = []
        for folder, names, of_names, at in folders:
            counts.append((folder, len(names)))
            paths += [f"{folder}/{name}" for name in names]
            sizes += of_names
            mtimes_ms += at
        texts = pa.array(paths, pa.string())
        numbers = compute.rank(texts, tiebreaker="dense").to_numpy().astype(np.int64)
        as_int64 = np.array(sizes, np.int64), np.array(mtimes_ms, np.int64)
        return cls(texts, *as_int64, numbers, counts)

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, at: np.ndarray) -> ListedFiles:
        """Some of the files."""
        paths = self.paths.take(pa.array(at))
        return ListedFiles(paths, self.sizes[at], self.mtimes_ms[at], self.numbers[at])

    def unchanged_mask(self, sizes: np.ndarray, mtimes_ns: np.ndarray) -> np.ndarray:
        """Whether each file is what it was when Spark listed it, as far as Spark can tell."""
        # Some file systems give Spark whole seconds.
        is_rounded = self.mtimes_ms % 1000 == 0
        mtimes_ms = mtimes_ns // 10**6
        mtimes_ms[is_rounded] -= mtimes_ms[is_rounded] % 1000
        return (sizes == self.sizes) & (mtimes_ms == self.mtimes_ms)

    def by_root(self, roots: Sequence[str]) -> list[tuple[str, ListedFiles]]:
        """The files below each root, each once; of those below none, as partitions may lie
        elsewhere and files be named one by one, each folder is one."""
        groups: dict[str, list[np.ndarray]] = {}
        known = set(roots)
        start = 0
        for folder, count in self.folders:
            root = _root_of(folder, known) or folder
            groups.setdefault(root, []).append(np.arange(start, start + count))
            start += count
        return [(root, self._once(np.concatenate(below))) for root, below in groups.items()]

    def _once(self, at: np.ndarray) -> ListedFiles:
        """Each once and by path, as catalogs have them: then what they know lies in that order."""
        return self.take(at[np.unique(self.numbers[at], return_index=True)[1]])


def _root_of(path: str, roots: set[str]) -> str | None:
    """The longest of some paths that is a path or above it."""
    while path:
        if path in roots:
            return path
        path = path.rpartition("/")[0]
    return None
