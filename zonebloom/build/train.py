"""One task of a build: some fragments read once, and a segment written for each column.

    batches of a file -> for each column: zones with their filters, key range, hashes of all keys

All columns asked for are trained in one pass over a file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.build.zones import ZoneJoiner, ZoneTrainer
from zonebloom.catalog.model import Segment, ZoneParameters
from zonebloom.catalog.store import Catalog
from zonebloom.errors import FragmentUnreadable
from zonebloom.index.global_filter import KeyHashes, Part
from zonebloom.index.key_ranges import KeyRange, ranges_file
from zonebloom.index.table import TableWriter, Zones
from zonebloom.sbbf.hashing import Hashes
from zonebloom.storage.columns import Column, ColumnsReader, Run, TableColumns
from zonebloom.storage.digest import content_digest
from zonebloom.storage.files import FileIdentity, ReadCounter, identities, is_local
from zonebloom.storage.parquet.pagemap import FooterPages, map_rows, page_map_file, read_footer
from zonebloom.storage.ranges import RangeFile
from zonebloom.storage.source import is_plain_parquet
from zonebloom.threads import in_order

if TYPE_CHECKING:
    import pyarrow.dataset as pads

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class TrainColumn:
    """A column to train on, and for what.

    Attributes
    ----------
    column : Column
    parameters : ZoneParameters
    global_bytes : int
        Size of the filter over all keys; 0 for none.
    """

    column: Column
    parameters: ZoneParameters
    global_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TrainFragment:
    """A fragment to train on: its id for the table, and what its file must be throughout."""

    fragment_id: int
    path: str
    identity: FileIdentity


@dataclass(frozen=True, slots=True)
class TrainTask:
    """All a worker needs to write its segments; it pickles.

    ``segment`` begins the names of its segments. ``table`` holds the rows of a dataset in
    memory, whose one fragment has no file.
    """

    segment: str
    catalog: Catalog
    format: pads.FileFormat
    filesystem: pafs.FileSystem
    schema: pa.Schema
    columns: tuple[TrainColumn, ...]
    fragments: tuple[TrainFragment, ...]
    table: pa.Table | None = None

    def segment_of(self, column: int) -> str:
        """Name of the segment of one of its columns."""
        return f"{self.segment}-{column}"


@dataclass(frozen=True, slots=True)
class TrainedTask:
    """What a task wrote.

    Attributes
    ----------
    segments : tuple of Segment
        One for each column.
    parts : tuple of Part or None
        Of the global filters, one for each column.
    num_rows : dict of int to int
        Rows found in each of its fragments.
    digests : dict of int to str
        Of the content of those that are local files.
    seen_at : int
        When they were all still what they were before, ns since 1970.
    hidden : dict of str to str
        Columns of its files that the dataset's schema does not have, with a file that does.
    """

    segments: tuple[Segment, ...]
    parts: tuple[Part | None, ...]
    num_rows: dict[int, int]
    digests: dict[int, str]
    seen_at: int
    hidden: dict[str, str]


def train_task(
    task: TrainTask, *, threads: int = 1, progress: Progress | None = None
) -> TrainedTask:
    """Train the segments of one task and write them."""
    num_rows: dict[int, int] = {}
    with ExitStack() as stack:
        outputs: list[_Output] = []
        for number in range(len(task.columns)):
            outputs.append(_Output(task, number))
            stack.callback(outputs[-1].writer.abort)
        for fragment in task.fragments:
            for number, zones in _fragment_zones(task, fragment, outputs, threads, progress):
                outputs[number].writer.write(fragment.fragment_id, zones)
            num_rows[fragment.fragment_id] = outputs[0].end_fragment(fragment.fragment_id)
            for output in outputs[1:]:
                output.end_fragment(fragment.fragment_id)
        digests = _digests(task)
        seen_at = time.time_ns()
        _require_unchanged(task)
        stack.pop_all()
    hidden: dict[str, str] = {}
    page_map = _page_map(task, hidden)
    ids = tuple(fragment.fragment_id for fragment in task.fragments)
    segments = tuple(output.close(ids, page_map) for output in outputs)
    parts = tuple(output.part() for output in outputs)
    return TrainedTask(segments, parts, num_rows, digests, seen_at, hidden)


class _Output:
    """The segment of one column in the making."""

    def __init__(self, task: TrainTask, number: int):
        self._catalog = task.catalog
        self._segment = task.segment_of(number)
        self.plan = task.columns[number]
        parameters = self.plan.parameters
        path = self._catalog.segment_path(self._segment)
        self._catalog.prepare(path)
        self.writer = TableWriter(
            self._catalog.filesystem,
            path,
            parameters.number_of_items,
            parameters.probability,
            parameters.fold,
        )
        self._ranges: list[dict] = []
        self._hashes = KeyHashes(self.plan.global_bytes)
        self.begin_fragment()

    def begin_fragment(self) -> None:
        """Make ready for the rows of a fragment, perhaps a second time."""
        self._range = KeyRange(self.plan.column.type)
        self._joiner = ZoneJoiner(self.plan.parameters)

    def take(self, run: _ColumnRun) -> None:
        """Take what a run found beside its zones."""
        self._range.absorb(run.range)
        if self.plan.global_bytes:
            self._hashes.absorb(run.hashes)

    def join(self, zones: Zones) -> Iterator[Zones]:
        """Take the next zones, give those that are whole."""
        return self._joiner.add(zones)

    def finish(self) -> Iterator[Zones]:
        """The zones of the fragment that are left."""
        return self._joiner.finish()

    def end_fragment(self, fragment_id: int) -> int:
        """Note the key range of the fragment; the number of its rows."""
        self._ranges.append(self._range.row(fragment_id))
        rows = self._range.num_rows
        self.begin_fragment()
        return rows

    def close(self, ids: tuple[int, ...], page_map: pa.Buffer | None) -> Segment:
        """Write all but the part of the global filter."""
        catalog, name = self._catalog, self._segment
        written = self.writer.close()
        mapped = (0, "")
        if page_map is not None:
            mapped = catalog.write(catalog.page_map_path(name), page_map)
        ranges = ranges_file(self._ranges, self.plan.column.type)
        ranged = catalog.write(catalog.ranges_path(name), ranges)
        return Segment(
            name,
            written.num_bytes,
            written.checksum,
            written.num_zones,
            ids,
            *mapped,
            ranges_bytes=ranged[0],
            ranges_checksum=ranged[1],
        )

    def part(self) -> Part | None:
        """Write the part of the global filter."""
        if not self.plan.global_bytes:
            return None
        return self._hashes.write(self._catalog, f"{self._segment}-keys")


class _ColumnRun:
    """One column of one run of rows."""

    def __init__(self, plan: TrainColumn, first_row: int):
        self.range = KeyRange(plan.column.type)
        self.hashes = KeyHashes(plan.global_bytes)
        self._collects = plan.global_bytes > 0
        self._trainer = ZoneTrainer(plan.parameters, first_row, self._hashed)

    def add(self, array: pa.Array) -> Iterator[Zones]:
        self.range.add(array)
        return self._trainer.add(array)

    def finish(self) -> Iterator[Zones]:
        return self._trainer.finish()

    def _hashed(self, hashes: Hashes) -> None:
        self.range.num_rows += hashes.values.size
        self.range.null_count += hashes.null_count
        if self._collects:
            self.hashes.add(hashes.valid())


def _fragment_zones(
    task: TrainTask,
    fragment: TrainFragment,
    outputs: Sequence[_Output],
    threads: int,
    progress: Progress | None,
) -> Iterator[tuple[int, Zones]]:
    """The zones of one fragment, each with the number of its column."""
    columns = [each.column for each in task.columns]
    if task.table is not None:
        reader = TableColumns(task.table, columns)
    else:
        reader = ColumnsReader(task.format, task.filesystem, fragment.path, columns, task.schema)
    begun = False
    try:
        for found in _reader_zones(reader, outputs, threads, progress):
            begun = True
            yield found
    except FragmentUnreadable as error:
        if begun or isinstance(reader, TableColumns) or "crypt" not in str(error):
            raise
        # The format may hold the keys of an encrypted file.
        reader.leave_to_pyarrow()
        for output in outputs:
            output.begin_fragment()
        yield from _reader_zones(reader, outputs, threads, progress)


def _reader_zones(
    reader: ColumnsReader | TableColumns,
    outputs: Sequence[_Output],
    threads: int,
    progress: Progress | None,
) -> Iterator[tuple[int, Zones]]:
    runs = reader.runs(split=threads > 1)

    def trained(run: Run, columns: Sequence[_ColumnRun]) -> Iterator[tuple[int, Zones]]:
        for arrays in reader.read(run):
            for number, array in enumerate(arrays):
                for zones in columns[number].add(array):
                    yield number, zones
            if progress is not None:
                progress(len(arrays[0]))
        for number, column in enumerate(columns):
            for zones in column.finish():
                yield number, zones

    def begin(run: Run) -> list[_ColumnRun]:
        return [_ColumnRun(output.plan, run.first_row) for output in outputs]

    def whole(run: Run) -> tuple[list[_ColumnRun], list[tuple[int, Zones]]]:
        columns = begin(run)
        return columns, list(trained(run, columns))

    def joined(found: Iterator[tuple[int, Zones]]) -> Iterator[tuple[int, Zones]]:
        for number, zones in found:
            for each in outputs[number].join(zones):
                yield number, each

    if threads > 1 and len(runs) > 1:
        with ThreadPoolExecutor(threads) as pool:
            for columns, found in in_order(pool, whole, runs, threads + 1):
                yield from joined(iter(found))
                _take(outputs, columns)
    else:
        for run in runs:
            columns = begin(run)
            yield from joined(trained(run, columns))
            _take(outputs, columns)
    for number, output in enumerate(outputs):
        for zones in output.finish():
            yield number, zones


def _take(outputs: Sequence[_Output], columns: Sequence[_ColumnRun]) -> None:
    for output, column in zip(outputs, columns, strict=True):
        output.take(column)


def _page_map(task: TrainTask, hidden: dict[str, str]) -> pa.Buffer | None:
    """Where the pages of the task's files lie; a file that cannot be mapped is left out.

    Notes in ``hidden`` what the footers name and the dataset's schema does not.
    """
    if task.table is not None or not is_plain_parquet(task.format):
        return None
    rows = []
    for fragment in task.fragments:
        counter = ReadCounter()
        try:
            with RangeFile(task.filesystem, fragment.path, fragment.identity, counter) as file:
                pages = FooterPages(read_footer(file.num_bytes, file.read), file.read)
                pages.load_all()
                rows += map_rows(fragment.fragment_id, pages)
                for name in set(pages.schema.names).difference(task.schema.names):
                    hidden.setdefault(name, fragment.path)
        except FragmentUnreadable:
            # Encrypted columns, say: its lookups read row groups.
            continue
    return page_map_file(rows)


def _digests(task: TrainTask) -> dict[int, str]:
    if task.table is not None or not is_local(task.filesystem):
        return {}
    try:
        return {each.fragment_id: content_digest(each.path) for each in task.fragments}
    except OSError as error:
        raise FragmentUnreadable(
            f"cannot read {error.filename}: {error.strerror}; repair or remove the file, then "
            "build again"
        ) from None


def _require_unchanged(task: TrainTask) -> None:
    if task.table is not None:
        return
    after = identities(task.filesystem, (fragment.path for fragment in task.fragments))
    for fragment, identity in zip(task.fragments, after, strict=True):
        if not fragment.identity.is_still(identity):
            raise FragmentUnreadable(
                f"{fragment.path} changed while it was indexed; build again when writers are done"
            )
