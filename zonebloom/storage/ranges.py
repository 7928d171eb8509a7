"""Ranged reads of one file: ``pread`` where it is local, requests side by side elsewhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow.fs as pafs

from zonebloom.errors import FragmentChanged, FragmentUnreadable
from zonebloom.storage.files import (
    FileIdentity,
    ReadCounter,
    is_local,
    opened_identity,
    status_identity,
)

# Bytes between two reads below which they are one: a request to an object store costs as
# much as reading this many more.
LOCAL_COALESCE = 4 << 10
REMOTE_COALESCE = 64 << 10

_REMOTE_THREADS = 16


class RangeFile:
    """One file open for ranged reads."""

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        path: str,
        identity: FileIdentity,
        counter: ReadCounter,
    ):
        self._counter = counter
        self._path = path
        self.num_bytes = identity.size
        self._handle: int | None = None
        try:
            if is_local(filesystem):
                self._handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
                if not identity.is_still(status_identity(os.fstat(self._handle))):
                    self.close()
                    raise FragmentChanged(f"{path} changed while it was read; read it again")
            else:
                self._file = filesystem.open_input_file(path)
                # Asked once the file is open: one put in its place before is noticed.
                if not identity.is_still(opened_identity(filesystem, path, self._file)):
                    self.close()
                    raise FragmentChanged(f"{path} changed while it was read; read it again")
        except OSError as error:
            if isinstance(error, FragmentUnreadable):
                raise
            raise FragmentUnreadable(
                f"cannot open {path}: {error}; check that it is there"
            ) from None

    @property
    def coalesce(self) -> int:
        """Bytes between two reads below which one read is better."""
        return LOCAL_COALESCE if self._handle is not None else REMOTE_COALESCE

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of some (start, stop) ranges; fewer where the file ends before."""
        try:
            found = self._read(ranges)
        except OSError as error:
            raise FragmentUnreadable(f"cannot read {self._path}: {error}; try again") from None
        for data in found:
            self._counter.add(len(data))
        return found

    def _read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        if self._handle is not None and hasattr(os, "pread"):
            return [os.pread(self._handle, stop - start, start) for start, stop in ranges]
        if self._handle is not None:
            found = []
            for start, stop in ranges:
                os.lseek(self._handle, start, os.SEEK_SET)
                found.append(os.read(self._handle, stop - start))
            return found
        if len(ranges) == 1:
            return [self._remote(ranges[0])]
        with ThreadPoolExecutor(min(_REMOTE_THREADS, len(ranges))) as pool:
            return list(pool.map(self._remote, ranges))

    def _remote(self, span: tuple[int, int]) -> bytes:
        return self._file.read_at(span[1] - span[0], span[0])

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        elif hasattr(self, "_file"):
            self._file.close()

    def __enter__(self) -> RangeFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
