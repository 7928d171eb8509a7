"""The fragments of a dataset for engines that read it fragment by fragment, such as DataFusion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, TypedDict, Unpack

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from zonebloom.base.pickling import ProcessBound
from zonebloom.errors import InvalidArgument
from zonebloom.predicates import is_same_filter
from zonebloom.scan.explain import ScanPlan
from zonebloom.scan.opened import OpenedDataset
from zonebloom.scan.ordering import OrderBy
from zonebloom.scan.plan import DEFAULT_BATCH_ROWS, ScanStats
from zonebloom.scan.recheck import Columns
from zonebloom.scan.scanner import FragmentsLike, plan_scan


class ScanOptions(TypedDict, total=False):
    """The options that PyArrow gives its scanners besides columns, filter and batch size.

    They are accepted because other libraries pass them. `fragment_scan_options` must be None; the
    others say how PyArrow schedules its reads, and have no effect.
    """

    batch_readahead: int
    fragment_readahead: int
    fragment_scan_options: pads.FragmentScanOptions | None
    use_threads: bool
    cache_metadata: bool
    memory_pool: pa.MemoryPool | None


class ReadOptions(ScanOptions, total=False):
    """The options of `Dataset.scanner` besides columns and filter."""

    limit: int | None
    offset: int | None
    order_by: OrderBy
    fragments: FragmentsLike
    with_row_address: bool
    batch_size: int
    use_scalar_index: bool
    scan_stats_callback: Callable[[ScanStats], Any] | None


def require_scan_options(options: Mapping[str, Any]) -> None:
    """Raise an error for options that a scan does not have or cannot use."""
    unknown = sorted(set(options).difference(ScanOptions.__annotations__))
    if unknown:
        raise TypeError(f"Dataset.scanner() got an unexpected keyword argument {unknown[0]!r}")
    if options.get("fragment_scan_options") is not None:
        raise InvalidArgument(
            "fragment_scan_options cannot be used with the index; give them to the format of the "
            "pyarrow.dataset.Dataset that zonebloom.dataset opens"
        )


class CandidateFragment(ProcessBound):
    """A file that may contain a match, in place of a ``pyarrow.dataset.Fragment``.

    Scans with a filter skip zones, and return the dataset's columns. All other attributes are
    those of the PyArrow fragment of the whole file.
    """

    def __init__(self, opened: OpenedDataset, filter: pc.Expression | None, plan: ScanPlan):
        self._opened, self._filter, self._plan = opened, filter, plan

    def __repr__(self) -> str:
        return f"<CandidateFragment {self._plan.fragments[0].fragment.path}>"

    @cached_property
    def _arrow_fragment(self) -> Any:
        source, fragment = self._opened.source, self._plan.fragments[0].fragment
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
        **options: Unpack[ScanOptions],
    ) -> pads.Scanner:
        if filter is None and self._plan.fragments[0].fragment.view is None:
            return self._arrow_fragment.scanner(
                schema=schema, columns=columns, batch_size=batch_size, **options
            )
        require_scan_options(options)
        if schema is not None and not schema.equals(self._opened.source.schema):
            raise InvalidArgument(
                "a fragment can be filtered only with its dataset's schema; give that"
            )
        path = self._plan.fragments[0].fragment.path
        scan = plan_scan(self._opened, columns, [filter], batch_size=batch_size, fragments=[path])
        if is_same_filter(filter, self._filter):
            scan = scan.planned(self._plan)
        return pads.Scanner.from_batches(scan.to_reader())

    # These pass on what `scanner` takes, as the methods of PyArrow's fragments do.

    def to_table(self, *arguments: Any, **options: Any) -> pa.Table:
        return self.scanner(*arguments, **options).to_table()

    def to_batches(self, *arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        return self.scanner(*arguments, **options).to_batches()

    def head(self, num_rows: int, *arguments: Any, **options: Any) -> pa.Table:
        return self.scanner(None, *arguments, **options).head(num_rows)

    def take(self, indices: Any, *arguments: Any, **options: Any) -> pa.Table:
        return self.scanner(None, *arguments, **options).take(indices)

    def count_rows(self, *arguments: Any, **options: Any) -> int:
        return self.scanner(None, [], *arguments, **options).count_rows()
