"""The files that Spark listed, stored as columns because there may be very many."""

from __future__ import annotations

from collections.abc import Sequence
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
    def from_bytes(cls, data: bytes) -> ListedFiles:
        """Return the files that `Scan.files` in `IndexedFiles.java` encoded."""
        buffer, position = pa.py_buffer(data), 0

        def numbers(count: int, dtype: type[np.signedinteger[Any]]) -> np.ndarray:
            nonlocal position
            values = np.frombuffer(buffer, np.dtype(dtype).newbyteorder("<"), count, position)
            position += values.nbytes
            return values.astype(dtype, copy=False)

        def texts(lengths: np.ndarray) -> pa.StringArray:
            nonlocal position
            offsets = np.zeros(lengths.size + 1, np.int32)
            np.cumsum(lengths, out=offsets[1:])
            body = buffer.slice(position, int(offsets[-1]))
            position += body.size
            buffers = [None, pa.py_buffer(offsets), body]
            return pa.StringArray.from_buffers(lengths.size, *buffers[1:])

        num_folders, num_files = numbers(2, np.int32).tolist()
        sizes, mtimes_ms = numbers(num_files, np.int64), numbers(num_files, np.int64)
        counts, folder_lengths = numbers(num_folders, np.int32), numbers(num_folders, np.int32)
        name_lengths = numbers(num_files, np.int32)
        folders, names = texts(folder_lengths), texts(name_lengths)
        return cls.of(folders, counts, names, sizes.copy(), mtimes_ms.copy())

    @classmethod
    def of(
        cls,
        folders: pa.StringArray,
        counts: np.ndarray,
        names: pa.StringArray,
        sizes: np.ndarray,
        mtimes_ms: np.ndarray,
    ) -> ListedFiles:
        """Return the files of folders, with the number of files in each folder."""
        compute: Any = pc
        folder_numbers = np.repeat(np.arange(counts.size), counts)
        folder_paths = folders.take(pa.array(folder_numbers))
        paths = compute.binary_join_element_wise(folder_paths, names, "/")
        ranks = compute.rank(paths, tiebreaker="dense").to_numpy().astype(np.int64)
        runs = tuple(zip(folders.to_pylist(), counts.tolist(), strict=True))
        return cls(paths, sizes, mtimes_ms, ranks, runs)

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, positions: np.ndarray) -> ListedFiles:
        """Return the files at some positions, without their folders."""
        paths = self.paths.take(pa.array(positions))
        return ListedFiles(
            paths, self.sizes[positions], self.mtimes_ms[positions], self.numbers[positions]
        )

    def paths_below(self, root: str, base: str) -> pa.StringArray:
        """Return the paths with another base in place of their root."""
        compute: Any = pc
        rest = compute.utf8_slice_codeunits(self.paths, len(root))
        return compute.binary_join_element_wise(base, rest, "")

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
