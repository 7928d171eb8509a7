"""Byte ranges of a file: asked for together, read in few requests, handed out as views."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from zonebloom.errors import FragmentUnreadable

ReadRanges = Callable[[Sequence[tuple[int, int]]], list[bytes]]


class Fetched:
    """Byte ranges that were read."""

    def __init__(self, read: ReadRanges, coalesce: int):
        self._read = read
        self._coalesce = coalesce
        # Of each fetch, its spans in order. Those of one fetch are apart from each other;
        # those of two can overlap.
        self._fetches: list[tuple[list[int], list[memoryview]]] = []

    def fetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Read ranges."""
        merged: list[tuple[int, int]] = []
        for start, stop in sorted(ranges):
            if merged and start - merged[-1][1] <= self._coalesce:
                merged[-1] = merged[-1][0], max(merged[-1][1], stop)
            else:
                merged.append((start, stop))
        if not merged:
            return
        views = []
        for (start, stop), data in zip(merged, self._read(merged), strict=True):
            if len(data) != stop - start:
                raise FragmentUnreadable(
                    f"bytes {start}-{stop} were asked for, {len(data)} came: the file was cut"
                )
            # Cast: the view of an Arrow buffer is one of signed bytes.
            views.append(memoryview(data).cast("B"))
        self._fetches.append(([start for start, _ in merged], views))

    def view(self, start: int, stop: int) -> memoryview:
        """The bytes of a range that was fetched, alone or within another."""
        for starts, views in self._fetches:
            at = bisect_right(starts, start) - 1
            if at >= 0 and stop - starts[at] <= len(views[at]):
                return views[at][start - starts[at] : stop - starts[at]]
        raise LookupError(f"bytes {start}-{stop} were not fetched")
