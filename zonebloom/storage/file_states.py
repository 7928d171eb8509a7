"""The states of many files as arrays.

Creating a `FileIdentity` for each of 100,000 files takes longer than looking at the files.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from zonebloom.base.arrays import from_numpy
from zonebloom.base.threads import num_cores, thread_pool
from zonebloom.sbbf.kernel_loader import KERNELS
from zonebloom.storage.files import FileIdentity
from zonebloom.storage.store import LOCAL, store_of

# A thread looks at this many files in some milliseconds.
_FILES_PER_THREAD = 10_000
_MAX_THREADS = 8
# The kernel does not load if the C library lacks the function.
_HAS_STATX = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "statx")


@dataclass(frozen=True, slots=True, eq=False)
class FileStates:
    """The sizes, times, inodes and tags of files, as in `FileIdentity`. Missing files have zeros.

    ``numbers`` has a row for each file, and the columns size, mtime_ns, ctime_ns and inode.
    ``tags`` is None if no file has a tag. ``found`` are the identities, if there were some before.
    """

    numbers: np.ndarray
    is_present: np.ndarray
    tags: pa.StringArray | None = None
    found: Sequence[FileIdentity | None] | None = None

    @classmethod
    def of_identities(cls, found: Sequence[FileIdentity | None]) -> FileStates:
        """Return the states for identities, of which those of missing files are None."""
        rows = [(0, 0, 0, 0) if i is None else (*i[:3], _signed(i.inode)) for i in found]
        numbers = np.array(rows, np.int64).reshape(-1, 4)
        tags = None
        if any(identity is not None and identity.tag for identity in found):
            tags = pa.array(["" if i is None else i.tag for i in found], pa.string())
        return cls(numbers, np.array([i is not None for i in found], bool), tags, found)

    @property
    def sizes(self) -> np.ndarray:
        return self.numbers[:, 0]

    @property
    def mtimes_ns(self) -> np.ndarray:
        return self.numbers[:, 1]

    @property
    def ctimes_ns(self) -> np.ndarray:
        return self.numbers[:, 2]

    @property
    def inodes(self) -> np.ndarray:
        return self.numbers[:, 3].view(np.uint64)

    def equals(self, other: FileStates) -> bool:
        """Return whether all files are in the same state."""
        is_same = np.array_equal(self.numbers, other.numbers)
        is_same = is_same and np.array_equal(self.is_present, other.is_present)
        if self.tags is None or other.tags is None:
            return is_same and self.tags is other.tags
        return is_same and self.tags.equals(other.tags)

    def take(self, positions: np.ndarray) -> FileStates:
        """Return the states of the files at some positions."""
        tags = None if self.tags is None else self.tags.take(from_numpy(positions))
        return FileStates(self.numbers[positions], self.is_present[positions], tags)

    def identity(self, position: int) -> FileIdentity:
        """Return the identity of the file at a position. The file must be present."""
        size, mtime_ns, ctime_ns, _ = self.numbers[position].tolist()
        tag = "" if self.tags is None else self.tags[position].as_py()
        return FileIdentity(size, mtime_ns, ctime_ns, tag, int(self.inodes[position]))

    def identities_at(self, positions: np.ndarray) -> Iterator[FileIdentity]:
        """Yield the identities of the files at some positions. They must be present."""
        if self.found is not None:
            return (found for found in map(self.found.__getitem__, positions.tolist()) if found)
        sizes, mtimes_ns, ctimes_ns, _ = self.numbers[positions].T.tolist()
        tags = itertools.repeat("")
        if self.tags is not None:
            tags = self.tags.take(from_numpy(positions)).to_pylist()
        return map(FileIdentity, sizes, mtimes_ns, ctimes_ns, tags, self.inodes[positions].tolist())


def look_at_files(filesystem: pafs.FileSystem, paths: pa.StringArray) -> FileStates:
    """Return the states of files as they are now. Raise what `identities` raises."""
    store = store_of(filesystem)
    if store is LOCAL and _HAS_STATX:
        if KERNELS.are_loaded:
            return _look_by_kernel(paths)
        KERNELS.load_in_background()
    return FileStates.of_identities(store.identities(paths.to_pylist()))


def _look_by_kernel(paths: pa.StringArray) -> FileStates:
    from zonebloom.storage.stat_kernel import stat_paths

    _, offsets_buffer, text_buffer = paths.buffers()
    count = len(paths)
    offsets = np.frombuffer(offsets_buffer, np.int32, count + 1, paths.offset * 4)
    text = np.frombuffer(text_buffer or b"", np.uint8)
    numbers = np.empty((count, 4), np.int64)
    num_threads = max(min(_MAX_THREADS, num_cores(), count // _FILES_PER_THREAD), 1)
    bounds = np.linspace(0, count, num_threads + 1).astype(np.int64).tolist()

    def look_at_part(number: int) -> int:
        start, stop = bounds[number : number + 2]
        return stat_paths(text, offsets[start : stop + 1], numbers[start:stop])

    if num_threads == 1:
        num_failed = look_at_part(0)
    else:
        with thread_pool(num_threads) as pool:
            num_failed = sum(pool.map(look_at_part, range(num_threads)))
    is_present = np.ones(count, bool)
    if num_failed:
        # Files that cannot be looked at are missing, or raise an error here.
        failed = np.flatnonzero(numbers[:, 0] == -1)
        failed_paths = paths.take(pa.array(failed)).to_pylist()
        states = FileStates.of_identities(LOCAL.identities(failed_paths))
        numbers[failed], is_present[failed] = states.numbers, states.is_present
    return FileStates(numbers, is_present)


def without_quotes(tags: pa.StringArray) -> Any:
    """Return tags without quotes around them, which some libraries drop."""
    compute: Any = pc
    return compute.utf8_trim(tags, characters='"')


def _signed(number: int) -> int:
    """Return the int64 with the bits of a uint64."""
    return number - (1 << 64) if number >= 1 << 63 else number
