"""A dataset as a ``pyarrow.dataset.Dataset``, for engines that push filters into one.

With a filter, the index decides what to read, and the PyArrow scanner gets the matching rows.
Without a filter, PyArrow scans the files itself. The C++ dataset underneath contains all files, so
code that bypasses the methods here reads more than it needs, but never misses a row.
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
    """The options of a PyArrow scanner, besides columns and filter."""

    batch_size: int
    batch_readahead: int
    fragment_readahead: int
    fragment_scan_options: pads.FragmentScanOptions | None
    use_threads: bool
    cache_metadata: bool
    memory_pool: pa.MemoryPool | None


class ArrowDataset(pads.UnionDataset):
    """Files with their indices as a PyArrow dataset; see `Dataset.to_arrow_dataset`.

    The methods and parameters are PyArrow's. A scanner with a filter can be read once.
    `get_fragments` with a filter returns the fragments that may contain a match, and their
    scanners skip zones.

    >>> import pyarrow.compute as pc
    >>> ds.to_arrow_dataset().scanner(filter=pc.field("id") == 42).to_table().num_rows
    1
    """

    def __init__(self, dataset: Dataset):
        opened = dataset.opened
        source = opened.source
        super().__init__(source.schema, [_arrow_files(source)])
        # A copy, so that later changes of the given dataset do not change this one.
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
            return super().scanner(
                columns=columns,
                batch_size=batch_size,
                batch_readahead=batch_readahead,
                fragment_readahead=fragment_readahead,
                fragment_scan_options=fragment_scan_options,
                use_threads=use_threads,
                cache_metadata=cache_metadata,
                memory_pool=memory_pool,
            )
        _refuse_scan_options(fragment_scan_options)
        scan = self._dataset.scanner(columns, filter, batch_size=batch_size)
        return pads.Scanner.from_batches(scan.to_reader())

    def count_rows(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, filter: pc.Expression | None = None, **options: Unpack[ScanOptions]
    ) -> int:
        # Counting needs no columns, except those of the filter.
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
        _refuse_scan_options(options.get("fragment_scan_options"))
        return self._dataset.take(self._row_addresses(indices), columns)

    def _row_addresses(self, indices: Any) -> np.ndarray:
        """Return the row addresses of rows numbered over all files, without deleted rows."""
        planner = self._dataset.opened.planner
        files = planner.coverage_for_scan().fragments
        rows_of_files = [
            RowRanges([(0, planner.count_rows(file))]) - file.fragment.deleted_rows
            for file in files
        ]
        first_rows = np.cumsum([0, *map(len, rows_of_files)])
        num_rows = int(first_rows[-1])
        rows = arguments.require_integers(indices, "indices", num_rows - 1).astype(np.int64)
        file_numbers = first_rows.searchsorted(rows, side="right") - 1
        addresses = rows - first_rows[file_numbers]
        for number in np.unique(file_numbers).tolist():
            is_in_file = file_numbers == number
            offsets = rows_of_files[number].rows_at(addresses[is_in_file])
            addresses[is_in_file] = (files[number].fragment_id << OFFSET_BITS) + offsets
        return addresses

    def filter(self, expression: pc.Expression) -> ArrowDataset:  # pyright: ignore[reportIncompatibleMethodOverride]
        filtered = super().filter(expression)
        vars(filtered).update(vars(self))
        return filtered

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[Any]:
        if self._filter is not None:
            raise InvalidArgument(
                "fragments contain rows that the dataset's own filter leaves out; give the filter "
                "to get_fragments and to the fragments' scanners instead"
            )
        if filter is None and not self._has_views:
            return super().get_fragments()
        plan = self._dataset.scanner(filter=filter).plan()
        return (
            ArrowFragment(self._dataset, filter, replace(plan, fragments=(fragment,)))
            for fragment in plan.fragments
        )

    def replace_schema(self, schema: pa.Schema) -> ArrowDataset:
        if not self.schema.equals(schema):
            raise InvalidArgument(
                "an index is valid for the columns and types it was built from; open the files "
                "with another schema by zonebloom.dataset(..., schema=...)"
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
            right_keys=right_keys,
            join_type=join_type,
            left_suffix=left_suffix,
            right_suffix=right_suffix,
            coalesce_keys=coalesce_keys,
            use_threads=use_threads,
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
        return self.unindexed().join_asof(
            right, on, by, tolerance, right_on=right_on, right_by=right_by
        )

    def unindexed(self) -> pads.Dataset:
        """Return the rows as a plain PyArrow dataset.

        It reads the files, or contains the matching rows in memory if this dataset has a filter.

        >>> ds.to_arrow_dataset().unindexed().count_rows()
        3000
        """
        if self._filter is None and not self._has_views:
            return self.children[0]
        return pads.InMemoryDataset(self.to_table())

    @property
    def _has_views(self) -> bool:
        """Return whether PyArrow alone would read rows or columns that the table does not have."""
        return self._dataset.opened.source.has_views

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._dataset, self._filter)


class ArrowFragment(ProcessBound):
    """A file that may contain a match, in place of a ``pyarrow.dataset.Fragment``.

    Scans with a filter skip zones, and return the dataset's columns. All other attributes are
    those of the PyArrow fragment of the whole file.
    """

    def __init__(self, dataset: Dataset, filter: pc.Expression | None, plan: ScanPlan):
        self._dataset, self._filter, self._plan = dataset, filter, plan

    def __repr__(self) -> str:
        return f"<ArrowFragment {self._plan.fragments[0].fragment.path}>"

    @cached_property
    def _arrow_fragment(self) -> Any:
        source, fragment = self._dataset.opened.source, self._plan.fragments[0].fragment
        if fragment.view is not None:
            raise InvalidArgument(
                f"{fragment.path} differs from what the table has: rows are deleted, or columns "
                "have other names; use scanner, to_table, to_batches, head, take or count_rows"
            )
        return source.open(fragment, source.filesystem)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._arrow_fragment, name)

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
            return self._arrow_fragment.scanner(
                schema=schema,
                columns=columns,
                batch_size=batch_size,
                batch_readahead=batch_readahead,
                fragment_readahead=fragment_readahead,
                fragment_scan_options=fragment_scan_options,
                use_threads=use_threads,
                cache_metadata=cache_metadata,
                memory_pool=memory_pool,
            )
        _refuse_scan_options(fragment_scan_options)
        if schema is not None and not schema.equals(self._dataset.schema):
            raise InvalidArgument(
                "a fragment can be filtered only with its dataset's schema; give that"
            )
        scan = self._dataset.scanner(columns, filter, batch_size=batch_size)
        plan = self._plan if self._is_planned_filter(filter) else self._plan_of_this(scan.plan())
        return pads.Scanner.from_batches(scan.planned(plan).to_reader())

    def _is_planned_filter(self, filter: pc.Expression | None) -> bool:
        """Return whether this fragment's plan was made for the filter."""
        planned = self._filter
        if planned is None or filter is None:
            return planned is filter
        return planned is filter or planned.equals(filter)

    def _plan_of_this(self, plan: ScanPlan) -> ScanPlan:
        """Return the part of a plan that reads this fragment."""
        path = self._plan.fragments[0].fragment.path
        fragments = tuple(part for part in plan.fragments if part.fragment.path == path)
        return replace(plan, fragments=fragments)

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


def _refuse_scan_options(fragment_scan_options: pads.FragmentScanOptions | None) -> None:
    """Raise `InvalidArgument` if options are given that change how a file is decoded."""
    if fragment_scan_options is not None:
        raise InvalidArgument(
            "fragment_scan_options cannot be used with the index; give them to the format of the "
            "pyarrow.dataset.Dataset that zonebloom.dataset opens"
        )


def _arrow_files(source: Source) -> pads.Dataset:
    """Return a PyArrow dataset that scans the files.

    If PyArrow would read rows or columns that the table does not have, return a dataset of a file
    that does not exist, so that code which bypasses `ArrowDataset` fails.
    """
    if not source.has_views:
        files = [(fragment, None) for fragment in source.fragments]
        return source.scan_whole(files, source.filesystem)
    missing = source.open(Fragment("read this table by its scanner", ""), LocalFileSystem())
    return pads.FileSystemDataset([missing], source.schema, source.format, LocalFileSystem())


def _unindexed(dataset: pads.Dataset) -> pads.Dataset:
    return dataset.unindexed() if isinstance(dataset, ArrowDataset) else dataset


def _unpickled(dataset: Dataset, filter: pc.Expression | None) -> ArrowDataset:
    arrow = ArrowDataset(dataset)
    return arrow if filter is None else arrow.filter(filter)
