"""From a filter to batches: which rows of which fragments are read, and reading them.

Fragments are scanned in the dataset's order. One the indices say nothing of is read whole,
by pyarrow's own scanner; of the others only the row groups with a kept row are read, cut to
the kept rows, and the whole filter is applied to those. So the rows and their order are
those of ``pyarrow.dataset`` with the same filter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.errors import ColumnNotFound, FragmentUnreadable, InvalidArgument
from zonebloom.plan import ScanPlan, ScanStats
from zonebloom.predicates.arrow import referenced_columns
from zonebloom.ranges import RowRanges
from zonebloom.recheck import holds_views, recheck
from zonebloom.storage.files import ReadCounter, counted
from zonebloom.storage.fragments import Fragment, Source

if TYPE_CHECKING:
    import pyarrow.dataset as pads

DEFAULT_BATCH_ROWS = 1 << 17


@dataclass(slots=True)
class Request:
    """What a scan was asked for, checked.

    Attributes
    ----------
    columns : list of str, dict of str to pyarrow Expression, or None for all
    filter : pyarrow.compute.Expression or None
    """

    columns: list[str] | dict[str, pc.Expression] | None
    filter: pc.Expression | None
    limit: int | None = None
    batch_size: int = DEFAULT_BATCH_ROWS
    names: tuple[str, ...] = field(default=())


def check_columns(
    columns: Sequence[str] | Mapping[str, pc.Expression] | None, schema: pa.Schema
) -> list[str] | dict[str, pc.Expression] | None:
    """Refuse a projection of columns that are not there.

    Raises
    ------
    ColumnNotFound
    InvalidArgument
    """
    if columns is None:
        return None
    if isinstance(columns, Mapping):
        return dict(columns)
    if isinstance(columns, str):
        raise InvalidArgument(f"columns is {columns!r}; give a list: [{columns!r}]")
    for name in columns:
        require_column(name, schema)
    return list(columns)


def require_column(name: str, schema: pa.Schema) -> None:
    """Refuse the name of a column that is not there.

    Raises
    ------
    ColumnNotFound
        Naming the columns there are.
    """
    if name not in schema.names:
        known = ", ".join(schema.names[:20]) + (", ..." if len(schema.names) > 20 else "")
        raise ColumnNotFound(f"there is no column {name!r}; the dataset has {known}")


class Scanner:
    """A filtered read of a dataset, made by `Dataset.scanner`.

    Parameters
    ----------
    source : Source
    request : Request
    plan : callable
        Makes the ScanPlan; called for each run, since files may change in between.
    stats_callback : callable, optional
        Given the ScanStats when a run ends.
    """

    def __init__(
        self,
        source: Source,
        request: Request,
        plan: Callable[[], ScanPlan],
        stats_callback: Callable[[ScanStats], Any] | None = None,
    ):
        self._source = source
        self._request = request
        self._plan = plan
        self._stats_callback = stats_callback
        self._projected: pa.Schema | None = None

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches."""
        if self._projected is None:
            import pyarrow.dataset as pads

            empty = pads.dataset(self._source.schema.empty_table())
            self._projected = empty.scanner(
                columns=self._request.columns, filter=self._request.filter
            ).projected_schema
        return self._projected

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Read, as an iterator of batches without empty ones."""
        return self._run(ScanStats())

    def to_reader(self) -> pa.RecordBatchReader:
        """Read, as a stream other Arrow libraries take."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_table(self) -> pa.Table:
        """Read everything."""
        return pa.Table.from_batches(self.to_batches(), schema=self.schema)

    def head(self, num_rows: int) -> pa.Table:
        """Read the first rows, and no more fragments than hold them."""
        request = Request(
            self._request.columns, self._request.filter, num_rows, self._request.batch_size
        )
        return Scanner(self._source, request, self._plan, self._stats_callback).to_table()

    def count_rows(self) -> int:
        """Count the rows that match, reading only the columns the filter needs."""
        request = Request([], self._request.filter, self._request.limit, self._request.batch_size)
        stats = ScanStats()
        for _ in Scanner(self._source, request, self._plan, self._stats_callback)._run(stats):
            pass
        return stats.rows_found

    def plan(self) -> ScanPlan:
        """What a run would read."""
        return self._plan()

    def explain_plan(self) -> str:
        """Say what a run would read, and why."""
        return str(self._plan())

    def analyze_plan(self) -> str:
        """Run, and say what was read in counted bytes."""
        from zonebloom.display import analysis_text

        plan = self._plan()
        stats = ScanStats()
        for _ in self._run(stats, plan):
            pass
        return analysis_text(plan, stats)

    def _run(self, stats: ScanStats, plan: ScanPlan | None = None) -> Iterator[pa.RecordBatch]:
        started = time.perf_counter()
        # Wrong columns and filters are refused even when no fragment is read.
        _ = self.schema
        plan = plan or self._plan()
        stats.index_bytes = sum(use.read_bytes for use in plan.indices)
        counter = ReadCounter()
        left = self._request.limit
        try:
            for batch in _Execution(self._source, self._request, counter, stats).batches(plan):
                if left is not None:
                    batch = batch.slice(0, left)
                    left -= batch.num_rows
                stats.rows_found += batch.num_rows
                if batch.num_rows:
                    yield batch
                if left == 0:
                    break
        finally:
            stats.data_bytes, stats.data_reads = counter.num_bytes, counter.num_requests
            stats.seconds = time.perf_counter() - started
            if self._stats_callback is not None:
                self._stats_callback(stats)


class _Execution:
    """One run of a plan."""

    def __init__(self, source: Source, request: Request, counter: ReadCounter, stats: ScanStats):
        self._source = source
        self._request = request
        self._stats = stats
        self._filesystem = counted(source.filesystem, counter)

    def batches(self, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
        whole: list[Fragment] = []
        for each in plan.fragments:
            if each.rows is None:
                whole.append(each.fragment)
                continue
            yield from self._read_whole(whole)
            whole = []
            yield from self._read_part(each.fragment, each.rows)
        yield from self._read_whole(whole)

    def _read_whole(self, fragments: list[Fragment]) -> Iterator[pa.RecordBatch]:
        """Fragments nothing is known of, all at once: pyarrow reads ahead over files."""
        if not fragments:
            return
        import pyarrow.dataset as pads

        self._stats.fragments_read += len(fragments)
        dataset = pads.FileSystemDataset(
            [self._source.open(fragment, self._filesystem) for fragment in fragments],
            self._source.schema,
            self._source.format,
            self._filesystem,
        )
        name = fragments[0].path if len(fragments) == 1 else f"{len(fragments)} fragments"
        if self._request.filter is None or not holds_views(self._source.schema):
            scanner = dataset.scanner(
                columns=self._request.columns,
                filter=self._request.filter,
                batch_size=self._request.batch_size,
            )
            yield from _naming(name, scanner.to_batches())
            return
        scanner = dataset.scanner(columns=self._needed(), batch_size=self._request.batch_size)
        for batch in _naming(name, scanner.to_batches()):
            yield from self._recheck([batch])

    def _read_part(self, fragment: Fragment, rows: RowRanges) -> Iterator[pa.RecordBatch]:
        self._stats.fragments_read += 1
        opened = self._source.open(fragment, self._filesystem)
        held: list[pa.RecordBatch] = []
        held_rows = 0
        for batch in _naming(fragment.path, self._kept(opened, rows)):
            held.append(batch)
            held_rows += batch.num_rows
            if held_rows >= self._request.batch_size:
                yield from self._recheck(held)
                held, held_rows = [], 0
        yield from self._recheck(held)

    def _kept(self, opened: pads.Fragment, rows: RowRanges) -> Iterator[pa.RecordBatch]:
        """The kept rows, of the columns that are needed."""
        import pyarrow.dataset as pads

        if isinstance(opened, pads.ParquetFileFragment):
            opened, rows = self._kept_row_groups(opened, rows)
        at = 0
        for batch in opened.to_batches(
            schema=self._source.schema,
            columns=self._needed(),
            batch_size=self._request.batch_size,
        ):
            for start, stop in rows.window(at, at + batch.num_rows):
                self._stats.rows_read += stop - start
                yield batch.slice(start, stop - start)
            at += batch.num_rows

    def _kept_row_groups(
        self, opened: pads.ParquetFileFragment, rows: RowRanges
    ) -> tuple[pads.ParquetFileFragment, RowRanges]:
        """The row groups with a kept row, and the kept rows counted over those alone."""
        kept: list[int] = []
        starts_stops: list[tuple[int, int]] = []
        first, read = 0, 0
        for group in opened.row_groups:
            inside = rows.window(first, first + group.num_rows)
            if inside:
                kept.append(group.id)
                starts_stops.extend(inside.shift(read))
                read += group.num_rows
            first += group.num_rows
        self._stats.row_groups_read += len(kept)
        return opened.subset(row_group_ids=kept), RowRanges(starts_stops)

    def _needed(self) -> list[str] | None:
        """Top-level columns that projection and filter name, None for all."""
        columns = self._request.columns
        if columns is None:
            return None
        needed = set(columns) if isinstance(columns, list) else set()
        expressions = [] if isinstance(columns, list) else list(columns.values())
        if self._request.filter is not None:
            expressions.append(self._request.filter)
        for expression in expressions:
            names = referenced_columns(expression)
            if names is None:
                return None
            needed |= names
        return [name for name in self._source.schema.names if name in needed]

    def _recheck(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if batches:
            table = pa.Table.from_batches(batches)
            table = recheck(table, self._request.filter, self._request.columns)
            yield from table.to_batches(max_chunksize=self._request.batch_size)


def _naming(name: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Name the file in what pyarrow raises while it is read."""
    try:
        yield from batches
    except (OSError, pa.ArrowInvalid) as error:
        raise FragmentUnreadable(
            f"cannot read {name}: {error}; repair or remove the file"
        ) from error
