"""A dataset as one of PyArrow's, for engines that read those: what they push down skips zones.

With a filter the index says what to read, and PyArrow's scanner is one over the rows that match.
Without one the files are PyArrow's to scan, as if nothing lay between: the C++ dataset below holds
all of them, so that whatever reaches for it past the methods here reads more, never less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from pyarrow.fs import LocalFileSystem

from zonebloom.base import arguments
from zonebloom.base.row_ranges import OFFSET_BITS, RowRanges
from zonebloom.dataset import Dataset
from zonebloom.errors import InvalidArgument
from zonebloom.scan.explain import ScanPlan
from zonebloom.scan.plan import DEFAULT_BATCH_ROWS
from zonebloom.scan.recheck import Columns
from zonebloom.sources.pickling import ProcessBound
from zonebloom.sources.source import Fragment, Source


class ScanOptions(TypedDict, total=False):
    """How PyArrow scans; its scanners take nothing else beside what is to be read."""

    batch_size: int
    batch_readahead: int
    fragment_readahead: int
    fragment_scan_options: pads.FragmentScanOptions | None
    use_threads: bool
    cache_metadata: bool
    memory_pool: pa.MemoryPool | None


class ArrowDataset(pads.UnionDataset):
    """Files with their indices as one of PyArrow's datasets; made by `Dataset.to_arrow_dataset`.

    The methods are PyArrow's, with its parameters. A scanner with a filter reads once. Fragments
    asked for with a filter are those with a row that may match, and skip zones themselves.

    >>> import pyarrow.compute as pc
    >>> ds.to_arrow_dataset().scanner(filter=pc.field("id") == 42).to_table().num_rows
    1
    """

    def __init__(self, dataset: Dataset):
        opened = dataset.opened
        source = opened.source
        super().__init__(source.schema, [_files(source)])
        # Later changes of the dataset given do not change this one.
        self._dataset = Dataset(opened, dataset.title)

    def __repr__(self) -> str:
        return f"<ArrowDataset of {self._dataset!r}>"

    @property
    def _filter(self) -> pc.Expression | None:
        return self._scan_options.get("filter")

    def scanner(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        columns: Columns = None,
        filter: pc.Expression | None = None,
        batch_size: int = DEFAULT_BATCH_ROWS,
        batch_readahead: int = 16,
        fragment_readahead: int = 4,
        fragment_scan_options: pads.FragmentScanOptions | None = None,
        use_threads: bool = True,
        cache_metadata: bool = True,
        memory_pool: pa.MemoryPool | None = None,
    ) -> pads.Scanner:
        filter = self._scanner_options({"filter": filter}).get("filter")
        if filter is None and not self._has_views:
            ahead = batch_readahead, fragment_readahead, fragment_scan_options
            more = use_threads, cache_metadata, memory_pool
            return super().scanner(columns, None, batch_size, *ahead, *more)
        _refuse(fragment_scan_options)
        scan = self._dataset.scanner(columns, filter, batch_size=batch_size)
        return pads.Scanner.from_batches(scan.to_reader())

    def count_rows(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, filter: pc.Expression | None = None, **options: Unpack[ScanOptions]
    ) -> int:
        # Of the rows that match no column is needed.
        return self.scanner([], filter, **options).count_rows()

    def take(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        indices: Any,
        columns: Columns = None,
        filter: pc.Expression | None = None,
        **options: Unpack[ScanOptions],
    ) -> pa.Table:
        scan = self.scanner(columns, filter, **options)
        if filter is not None or self._filter is not None:
            return scan.take(indices)
        _refuse(options.get("fragment_scan_options"))
        planner = self._dataset.opened.planner
        present = planner.coverage_for_scan().fragments
        counts = [planner.count_rows(each) for each in present]
        held = [
            RowRanges([(0, count)]) - each.fragment.deleted_rows
            for each, count in zip(present, counts, strict=True)
        ]
        firsts = np.cumsum([0, *map(len, held)])
        rows = arguments.require_integers(indices, "indices", int(firsts[-1]) - 1).astype(np.int64)
        at = firsts.searchsorted(rows, side="right") - 1
        addresses = rows - firsts[at]
        for number in np.unique(at).tolist():
            of_file = at == number
            offsets = held[number].rows_at(addresses[of_file])
            addresses[of_file] = (present[number].fragment_id << OFFSET_BITS) + offsets
        return self._dataset.take(addresses, columns)

    def filter(self, expression: pc.Expression) -> ArrowDataset:  # pyright: ignore[reportIncompatibleMethodOverride]
        filtered = super().filter(expression)
        vars(filtered).update(vars(self))
        return filtered

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[Any]:
        if self._filter is not None:
            raise InvalidArgument(
                "fragments hold rows that the dataset's own filter leaves out; give the filter to "
                "get_fragments and to the fragments' scanners instead"
            )
        if filter is None and not self._has_views:
            return super().get_fragments()
        plan = self._dataset.scanner(filter=filter).plan()
        return (
            ArrowFragment(self._dataset, filter, replace(plan, fragments=(each,)))
            for each in plan.fragments
        )

    def replace_schema(self, schema: pa.Schema) -> ArrowDataset:
        if not self.schema.equals(schema):
            raise InvalidArgument(
                "an index answers for the columns and types it was made of; open the files as "
                "others with zonebloom.dataset(..., schema=...)"
            )
        return self

    def sort_by(
        self,
        sorting: str | Sequence[tuple[str, str]],
        *,
        null_placement: Literal["at_start", "at_end"] | None = None,
    ) -> pads.InMemoryDataset:
        return self.unindexed().sort_by(sorting, null_placement=null_placement)

    def join(
        self,
        right_dataset: pads.Dataset,
        keys: str | list[str],
        right_keys: str | list[str] | None = None,
        join_type: str = "left outer",
        left_suffix: str | None = None,
        right_suffix: str | None = None,
        coalesce_keys: bool = True,
        use_threads: bool = True,
    ) -> pads.InMemoryDataset:
        return self.unindexed().join(
            _unindexed(right_dataset),
            keys,
            right_keys,
            join_type,
            left_suffix,
            right_suffix,
            coalesce_keys,
            use_threads,
        )

    def join_asof(
        self,
        right_dataset: pads.Dataset,
        on: str,
        by: str | list[str],
        tolerance: int,
        right_on: str | None = None,
        right_by: str | list[str] | None = None,
    ) -> pads.InMemoryDataset:
        right = _unindexed(right_dataset)
        return self.unindexed().join_asof(right, on, by, tolerance, right_on, right_by)

    def unindexed(self) -> pads.Dataset:
        """The rows as PyArrow's own dataset: of the files, or in memory what matches the filter.

        >>> ds.to_arrow_dataset().unindexed().count_rows()
        3000
        """
        if self._filter is None and not self._has_views:
            return self.children[0]
        return pads.InMemoryDataset(self.to_table())

    @property
    def _has_views(self) -> bool:
        """Whether PyArrow alone would read other rows or columns than the table has."""
        return self._dataset.opened.source.has_views

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._dataset, self._filter)


class ArrowFragment(ProcessBound):
    """A file with a row that may match, in place of a ``pyarrow.dataset.Fragment``.

    With a filter its scans skip zones, and its columns are the dataset's. The rest is the PyArrow
    fragment's, of the whole file.
    """

    def __init__(self, dataset: Dataset, filter: pc.Expression | None, plan: ScanPlan):
        self._dataset, self._filter, self._plan = dataset, filter, plan

    def __repr__(self) -> str:
        return f"<ArrowFragment {self._plan.fragments[0].fragment.path}>"

    @cached_property
    def _whole(self) -> Any:
        source, part = self._dataset.opened.source, self._plan.fragments[0]
        if part.fragment.view is not None:
            raise InvalidArgument(
                f"{part.fragment.path} is not what the table has: rows are deleted, or columns "
                "have other names; use scanner, to_table, to_batches, head, take or count_rows"
            )
        return source.open(part.fragment, source.filesystem)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def scanner(
        self,
        schema: pa.Schema | None = None,
        columns: Columns = None,
        filter: pc.Expression | None = None,
        batch_size: int = DEFAULT_BATCH_ROWS,
        batch_readahead: int = 16,
        fragment_readahead: int = 4,
        fragment_scan_options: pads.FragmentScanOptions | None = None,
        use_threads: bool = True,
        cache_metadata: bool = True,
        memory_pool: pa.MemoryPool | None = None,
    ) -> pads.Scanner:
        if filter is None and self._plan.fragments[0].fragment.view is None:
            ahead = batch_readahead, fragment_readahead, fragment_scan_options
            more = use_threads, cache_metadata, memory_pool
            return self._whole.scanner(schema, columns, None, batch_size, *ahead, *more)
        _refuse(fragment_scan_options)
        if schema is not None and not schema.equals(self._dataset.schema):
            raise InvalidArgument(
                "a fragment is filtered as its dataset's schema has it; give that"
            )
        scan = self._dataset.scanner(columns, filter, batch_size=batch_size)
        own = self._filter
        is_same = own is filter or (own is not None and filter is not None and own.equals(filter))
        plan = self._plan if is_same else self._planned(scan.plan())
        return pads.Scanner.from_batches(scan.planned(plan).to_reader())

    def _planned(self, plan: ScanPlan) -> ScanPlan:
        path = self._plan.fragments[0].fragment.path
        own = tuple(part for part in plan.fragments if part.fragment.path == path)
        return replace(plan, fragments=own)

    def to_table(
        self,
        schema: pa.Schema | None = None,
        columns: Columns = None,
        filter: pc.Expression | None = None,
        **options: Unpack[ScanOptions],
    ) -> pa.Table:
        return self.scanner(schema, columns, filter, **options).to_table()

    def to_batches(
        self,
        schema: pa.Schema | None = None,
        columns: Columns = None,
        filter: pc.Expression | None = None,
        **options: Unpack[ScanOptions],
    ) -> Iterator[pa.RecordBatch]:
        return self.scanner(schema, columns, filter, **options).to_batches()

    def head(
        self,
        num_rows: int,
        columns: Columns = None,
        filter: pc.Expression | None = None,
        **options: Unpack[ScanOptions],
    ) -> pa.Table:
        return self.scanner(None, columns, filter, **options).head(num_rows)

    def take(
        self,
        indices: Any,
        columns: Columns = None,
        filter: pc.Expression | None = None,
        **options: Unpack[ScanOptions],
    ) -> pa.Table:
        return self.scanner(None, columns, filter, **options).take(indices)

    def count_rows(
        self, filter: pc.Expression | None = None, **options: Unpack[ScanOptions]
    ) -> int:
        return self.scanner(None, [], filter, **options).count_rows()


def _refuse(fragment_scan_options: pads.FragmentScanOptions | None) -> None:
    """Refuse what changes how files are read; how far ahead, and by how many, is told here."""
    if fragment_scan_options is not None:
        raise InvalidArgument(
            "fragment_scan_options are not known to the index; give them to the format of the "
            "pyarrow.dataset.Dataset that zonebloom.dataset opens"
        )


def _files(source: Source) -> pads.Dataset:
    """The files as PyArrow scans them; where it would read other rows than the table has, one that
    is not there, so that whatever reaches for it fails."""
    if not source.has_views:
        files = [(each, None) for each in source.fragments]
        return source.scan_whole(files, source.filesystem)
    absent = source.open(Fragment("read this table by its scanner", ""), LocalFileSystem())
    return pads.FileSystemDataset([absent], source.schema, source.format, LocalFileSystem())


def _unindexed(dataset: pads.Dataset) -> pads.Dataset:
    return dataset.unindexed() if isinstance(dataset, ArrowDataset) else dataset


def _unpickled(dataset: Dataset, filter: pc.Expression | None) -> ArrowDataset:
    arrow = ArrowDataset(dataset)
    return arrow if filter is None else arrow.filter(filter)
