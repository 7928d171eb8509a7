"""Train the tasks of a build, here or on a Spark worker, with one pass over each file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from zonebloom.base.threads import map_in_order, num_cores, thread_pool
from zonebloom.building.request import IndexSpec
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.catalog.freshness import clock_lag, digest_covers_file, wait_for_rest
from zonebloom.catalog.model import (
    KEY_RANGES_FILE,
    PAGE_MAP_FILE,
    KnownFragment,
    PageMapEntry,
    Segment,
)
from zonebloom.catalog.store import Catalog
from zonebloom.errors import FragmentUnreadable
from zonebloom.index.base_kind import SegmentWriter
from zonebloom.index.global_filter import GlobalFilterPart, KeyHashes
from zonebloom.index.kinds import index_kind
from zonebloom.index.row_keys.rules import VALUES
from zonebloom.index.table import ZonePart
from zonebloom.index.zone_map.writer import BoundsBuilder, write_key_ranges
from zonebloom.parquet.file_layout import FileSchema, ReadRanges
from zonebloom.parquet.footer import read_footer, reader_of_bytes
from zonebloom.parquet.page_map import PageMapBuilder
from zonebloom.sbbf.hashing import Hashes
from zonebloom.sbbf.kernel_loader import KERNELS
from zonebloom.sources.column_batches import (
    Column,
    ColumnsReader,
    Run,
    TableColumns,
    columns_reader,
)
from zonebloom.sources.source import Source
from zonebloom.storage.files import (
    WHOLE_BYTES,
    ReadCounter,
    content_digest,
    digest_of_bytes,
    file_errors,
    is_at_rest,
)
from zonebloom.storage.random_access import FragmentFile
from zonebloom.values.types import hash_domain

if TYPE_CHECKING:
    from zonebloom.sources.text_columns import TextColumn

ReportRows = Callable[[int], None]

# A thread keeps hashes or values of at most about this many bytes for the writers. One row may have
# thousands of hashes, so rows are no measure.
_MAX_BYTES_AHEAD = 32 << 20
# A thread reads small files of about this many bytes at a time.
_SMALL_FILES_BYTES = 1 << 20
_WHOLE_OBJECT_BYTES = 4 << 20
# For a file of this many bytes, kernels save about the time of one block check, the unit of work of
# `KERNELS`.
_BYTES_PER_CHECK = 512
_BUILD_ADVICE = "repair or remove the file, then build again"
# Bytes of data for each task: enough to justify a segment, and few enough to share out evenly.
_TASK_BYTES = 64 << 20
_MAX_TASKS = 256


@dataclass(frozen=True, slots=True)
class TrainTask:
    """The picklable description of a task: train some indices on some fragments."""

    # Prefix of the names of its segments.
    segment: str
    catalog: Catalog
    # A copy without fragments, to keep the pickled task small.
    source: Source
    specs: tuple[IndexSpec, ...]
    fragments: tuple[PresentFragment, ...]

    def segment_name(self, spec: int) -> str:
        return f"{self.segment}-{spec}"


@dataclass(frozen=True, slots=True)
class TrainedTask:
    """The result of a task: its segments, and the catalog entries of its fragments."""

    # One segment for each index of the task.
    segments: tuple[Segment, ...]
    global_filter_parts: tuple[GlobalFilterPart | None, ...]
    # The entries of the files as they were read.
    fragments: tuple[KnownFragment, ...]
    page_map: PageMapEntry | None
    # Columns that the schema of the dataset lacks, each with the path of a file that has it.
    hidden_columns: dict[str, str]


def split_into_tasks(
    prefix: str,
    catalog: Catalog,
    source: Source,
    specs: Sequence[IndexSpec],
    fragments: Sequence[PresentFragment],
) -> list[TrainTask]:
    """Split fragments into tasks of about equal bytes. The result does not depend on the engine."""
    total = sum(fragment.identity.size for fragment in fragments)
    factor = max(index_kind(spec.kind).task_size_factor for spec in specs)
    limit = max(_TASK_BYTES * factor, total // _MAX_TASKS)
    groups: list[list[PresentFragment]] = [[]]
    size = 0
    for fragment in fragments:
        if size and size + fragment.identity.size > limit:
            groups.append([])
            size = 0
        groups[-1].append(fragment)
        size += fragment.identity.size
    if not source.is_in_memory:
        description = source.schema, source.file_format, source.filesystem, source.root, ()
        source = Source(*description, parquet_keys=source.parquet_keys)
    return [
        TrainTask(f"{prefix}-{number:04d}", catalog, source, tuple(specs), tuple(group))
        for number, group in enumerate(groups)
    ]


def train_locally(
    tasks: Sequence[TrainTask], *, progress: ReportRows | None = None
) -> list[TrainedTask]:
    """Run tasks on all cores. Return the results in the order of the tasks."""
    threads = max(1, num_cores() // len(tasks))
    is_stopped = threading.Event()

    def report(rows: int) -> None:
        if is_stopped.is_set():
            raise CancelledError
        if progress is not None:
            progress(rows)

    num_tasks = min(num_cores(), len(tasks))

    def train(task: TrainTask) -> TrainedTask:
        return train_task(task, threads=threads, num_tasks=num_tasks, progress=report)

    with thread_pool(num_tasks) as pool:
        try:
            return list(pool.map(train, tasks))
        except BaseException:
            # Running tasks stop at their next batch, so that an interrupt does not wait for a file.
            is_stopped.set()
            raise


def train_task(
    task: TrainTask,
    *,
    threads: int = 1,
    num_tasks: int = 1,
    progress: ReportRows | None = None,
) -> TrainedTask:
    """Train the indices of a task, write their segments, and return the result.

    ``num_tasks`` tasks run at the same time in this process, each with ``threads`` threads.
    Raise `FragmentUnreadable` if a file changes while it is read.
    """
    with ExitStack() as stack:
        outputs: list[_Output] = []
        for number in range(len(task.specs)):
            outputs.append(_Output(task, number, num_writers=num_tasks * len(task.specs)))
            stack.callback(outputs[-1].writer.abort)
        seen_at = _wait_for_rest(task, outputs[0].path)
        early_digests = _digests_of_large_files(task, seen_at)
        footers = FooterCollector(task.source)
        files = _train_fragments(task, outputs, footers, threads, progress)
        large_digests = _digests_of_large_files(task)
        _require_unchanged(task, early_digests, large_digests)
        with thread_pool(1) as pool:
            written_pages = pool.submit(
                footers.write_page_map, task.catalog, f"{task.segment}-pages"
            )
            segments = tuple(task.catalog.store.map_requests(_Output.close, outputs))
            pages = written_pages.result()
        # No error occurred, so keep the files.
        stack.pop_all()
    parts = tuple(output.write_global_filter_part() for output in outputs)
    fragments = tuple(
        KnownFragment(
            fragment.fragment_id,
            fragment.fragment.key,
            fragment.identity,
            file.num_rows,
            large_digest if file.digest is None else file.digest,
            seen_at,
        )
        for fragment, file, large_digest in zip(task.fragments, files, large_digests, strict=True)
    )
    return TrainedTask(segments, parts, fragments, pages.page_map, pages.hidden_columns)


def _wait_for_rest(task: TrainTask, own_file: str) -> int:
    """Wait until the large files of a task are at rest, and return the time by their clock."""
    lag = None
    if _has_digests(task):
        paths = [file.fragment.path for file in task.fragments]
        lag = clock_lag(own_file, paths)
    large_files = (
        file.identity
        for file in task.fragments
        if not (_has_digests(task) and digest_covers_file(file.identity))
    )
    return wait_for_rest(large_files, lag)


class _RunToRead(NamedTuple):
    """A run of a fragment, or None for a fragment without rows."""

    fragment: PresentFragment
    reader: ColumnsReader | TableColumns
    run: Run | None
    # The only column, if it holds strings that kernels may hash.
    text_column: TextColumn | None = None


class _HashedRun(NamedTuple):
    """The hashes or values of a run with the number of their index, and the key range of each.

    The ranges are complete once all hashes were taken.
    """

    fragment: PresentFragment
    hashes: Iterable[tuple[int, ZonePart]]
    ranges: list[BoundsBuilder]
    # The bytes and the digest of the file, if it was read whole.
    data: pa.Buffer | None = None
    digest: str | None = None


class _TrainedFile(NamedTuple):
    """The number of rows of a file that was read, and its digest if it was read whole."""

    num_rows: int
    digest: str | None


def _train_fragments(
    task: TrainTask,
    outputs: Sequence[_Output],
    footers: FooterCollector,
    threads: int,
    progress: ReportRows | None,
) -> list[_TrainedFile]:
    """Read fragments once, and train their zones for all outputs in row order.

    With several threads, runs are read and hashed in parallel.
    """
    specs = task.specs
    # Several indices may read the same column.
    columns = list(dict.fromkeys(column for spec in specs for column in spec.columns))
    columns_of_specs = [[columns.index(column) for column in spec.columns] for spec in specs]

    def hash_run(part: _RunToRead) -> _HashedRun:
        ranges = [BoundsBuilder(spec.range_type) for spec in specs]
        return _HashedRun(part.fragment, hashes_of(part, ranges), ranges)

    def hashes_of(
        part: _RunToRead, ranges: Sequence[BoundsBuilder]
    ) -> Iterator[tuple[int, ZonePart]]:
        run = part.run
        if run is None:
            return
        if part.text_column is None or run.row_groups is None:
            yield from hashes_by_arrow(part.reader, run, ranges)
            return
        for row_group in run.row_groups:
            hashed_texts = part.text_column.hash_row_group(row_group)
            if hashed_texts is None:
                run = part.text_column.run_of(row_group)
                yield from hashes_by_arrow(part.reader, run, ranges)
                continue
            for hashed in hashed_texts:
                ranges[0].add_texts(hashed.ends)
                ranges[0].count(hashed.hashes.num_rows, hashed.hashes.null_count)
                yield 0, hashed.hashes
                if progress is not None:
                    progress(hashed.hashes.values.size)

    def hashes_by_arrow(
        reader: ColumnsReader | TableColumns, run: Run, ranges: Sequence[BoundsBuilder]
    ) -> Iterator[tuple[int, ZonePart]]:
        for arrays in reader.read(run):
            for number, spec in enumerate(specs):
                of_spec = [arrays[position] for position in columns_of_specs[number]]
                if spec.rule == VALUES:
                    ranges[number].add(of_spec[0])
                for part in spec.parts(of_spec):
                    ranges[number].count(part.num_rows, part.null_count)
                    yield number, part
            if progress is not None:
                progress(len(arrays[0]))

    def hash_whole_file(fragment: PresentFragment) -> _HashedRun:
        path = fragment.fragment.path
        with file_errors(path, _BUILD_ADVICE):
            data = task.source.store.read_whole(path, _WHOLE_OBJECT_BYTES)
        if data.size != fragment.identity.size:
            raise _changed_error(fragment)
        digest = digest_of_bytes(data) if _has_digests(task) else ""
        reader = columns_reader(task.source, fragment.fragment, columns, data=data)
        (run,) = reader.runs(split=False)
        hashed = hash_run(_RunToRead(fragment, reader, run))

        def checked_hashes() -> Iterator[tuple[int, ZonePart]]:
            yield from hashed.hashes
            if digest and run.row_groups is None and content_digest(path) != digest:
                # PyArrow has read an encrypted file again.
                raise _changed_error(fragment)

        return hashed._replace(hashes=checked_hashes(), data=data, digest=digest)

    def hash_ahead(item: _RunToRead | Sequence[PresentFragment]) -> list[_HashedRun]:
        runs = [hash_run(item)] if isinstance(item, _RunToRead) else map(hash_whole_file, item)
        num_bytes_left, started_runs = _MAX_BYTES_AHEAD, []
        for run in runs:
            hashes, num_bytes_left = _take_ahead(iter(run.hashes), num_bytes_left)
            started_runs.append(run._replace(hashes=hashes))
        return started_runs

    files: list[_TrainedFile] = []
    with ExitStack() as stack:
        items = _items_to_read(task, columns, split=threads > 1)
        if threads > 1:
            pool = stack.enter_context(thread_pool(threads))
            hashed_runs = chain.from_iterable(map_in_order(pool, hash_ahead, items, threads + 1))
        else:
            hashed_runs = (
                hashed
                for item in items
                for hashed in (
                    [hash_run(item)] if isinstance(item, _RunToRead) else map(hash_whole_file, item)
                )
            )
        for fragment, runs in groupby(hashed_runs, key=attrgetter("fragment")):
            for output in outputs:
                output.begin_fragment(fragment.fragment_id)
            data = digest = None
            for run in runs:
                for number, hashes in run.hashes:
                    outputs[number].add(hashes)
                for output, key_range in zip(outputs, run.ranges, strict=True):
                    output.range.merge(key_range)
                data, digest = run.data, run.digest
            files.append(_TrainedFile(max(output.end_fragment() for output in outputs), digest))
            footers.add(fragment, data)
    return files


def _take_ahead(
    parts: Iterator[tuple[int, ZonePart]], max_bytes: int
) -> tuple[Iterator[tuple[int, ZonePart]], int]:
    """Compute the next parts up to about a number of bytes, and return all parts.

    Also return how many of the bytes are left. Whoever takes the other parts computes them.
    """
    first: list[tuple[int, ZonePart]] = []
    while max_bytes > 0 and (part := next(parts, None)) is not None:
        first.append(part)
        max_bytes -= part[1].num_bytes
    return chain(first, parts), max_bytes


def _items_to_read(
    task: TrainTask, columns: Sequence[Column], *, split: bool
) -> Iterator[_RunToRead | list[PresentFragment]]:
    """Yield the runs of large files, and several small files at a time, in the fragments' order.

    A thread reads several small files in a row, because passing work to a thread takes time.
    """
    small_files: list[PresentFragment] = []
    num_bytes = 0
    hashes_texts: bool | None = None
    for fragment in task.fragments:
        is_small = _is_read_whole(task, fragment)
        num_bytes += fragment.identity.size
        if small_files and not (is_small and num_bytes <= _SMALL_FILES_BYTES):
            yield small_files
            small_files, num_bytes = [], fragment.identity.size
        if is_small:
            small_files.append(fragment)
            continue
        reader = columns_reader(task.source, fragment.fragment, columns)
        text_column = None
        if hashes_texts is None:
            hashes_texts = _hashes_texts(task)
        if hashes_texts:
            # The import loads kernels, or compiles them. Other builds do not need them.
            from zonebloom.sources.text_columns import TextColumn

            file = fragment.fragment, fragment.identity
            text_column = TextColumn.open(task.source, *file, columns[0])
        for run in reader.runs(split=split) or [None]:
            yield _RunToRead(fragment, reader, run, text_column)
    if small_files:
        yield small_files


def _hashes_texts(task: TrainTask) -> bool:
    """Return whether kernels hash the pages of a column of strings, where they can decode them.

    While they are not loaded, PyArrow reads a small column, and a thread loads them for later ones.
    """
    spec, *others = task.specs
    is_text = hash_domain(spec.column.type) in ("string", "binary")
    if others or not (is_text and spec.hashes_values):
        return False
    if not task.source.is_parquet or task.source.store.has_round_trips:
        return False
    num_bytes = sum(file.identity.size for file in task.fragments)
    return KERNELS.are_loaded or KERNELS.are_worth(num_bytes // _BYTES_PER_CHECK)


def _is_read_whole(task: TrainTask, fragment: PresentFragment) -> bool:
    """Return whether a file is read once: for its digest, its footer, and its columns.

    The digests of such files cover all of their bytes.
    """
    size, source = fragment.identity.size, task.source
    if _has_digests(task):
        return source.is_parquet and 0 < size <= WHOLE_BYTES
    # The requests for the parts of an object of a store take longer than one for all of it.
    is_near = source.is_in_memory or not source.store.has_round_trips
    return source.is_parquet and not is_near and 0 < size <= _WHOLE_OBJECT_BYTES


class _Output:
    """The segment that a task writes for one index."""

    def __init__(self, task: TrainTask, number: int, num_writers: int):
        self._catalog = task.catalog
        self._segment = task.segment_name(number)
        self._ids = tuple(fragment.fragment_id for fragment in task.fragments)
        self.spec = task.specs[number]
        kind = index_kind(self.spec.kind)
        self._file = kind.file_name
        self.path = self._catalog.path(self._segment, self._file)
        self.writer: SegmentWriter = kind.create_writer(
            self._catalog, self.path, self.spec.parameters, num_writers, self.spec.column.type
        )
        self._ranges: dict[int, BoundsBuilder] = {}
        self._hashes = KeyHashes(self.spec.global_bytes)

    def begin_fragment(self, fragment_id: int) -> None:
        self._fragment_id = fragment_id
        self.range = self._ranges[fragment_id] = BoundsBuilder(self.spec.range_type)

    def add(self, part: ZonePart) -> None:
        if self.spec.global_bytes and isinstance(part, Hashes):
            self._hashes.add(part.of_valid_rows())
        self.writer.add(self._fragment_id, part)

    def end_fragment(self) -> int:
        """Write the last zones of a fragment. Return its number of rows."""
        self.writer.end_fragment(self._fragment_id)
        return self.range.num_rows

    def close(self) -> Segment:
        catalog, name = self._catalog, self._segment
        path = catalog.path(name, KEY_RANGES_FILE)
        written, ranges = catalog.store.map_requests(
            lambda write: write(),
            [
                self.writer.close,
                lambda: write_key_ranges(catalog, path, self.spec.range_type, self._ranges),
            ],
        )
        return Segment(
            name,
            self._file,
            written.num_bytes,
            written.checksum,
            written.num_zones,
            self._ids,
            ranges_bytes=ranges.num_bytes,
            ranges_checksum=ranges.checksum,
        )

    def write_global_filter_part(self) -> GlobalFilterPart | None:
        if not self.spec.global_bytes:
            return None
        return self._hashes.write(self._catalog, f"{self._segment}-keys")


class WrittenPageMap(NamedTuple):
    """A page map that was written, and which columns its files have besides the dataset's."""

    # None if no file has pages.
    page_map: PageMapEntry | None
    # Columns that the schema of the dataset lacks, each with the path of a file that has it.
    hidden_columns: dict[str, str]


class FooterCollector:
    """Reads the footers of some files, and makes a page map of the files."""

    def __init__(self, source: Source):
        self._source = source
        self._names = source.schema.names
        self._pages = PageMapBuilder()
        self._ids: list[int] = []
        self._hidden_columns: dict[str, str] = {}

    def add(self, present: PresentFragment, data: pa.Buffer | None = None) -> None:
        """Add a file, whose bytes are ``data`` if that is given."""
        if not self._source.is_parquet:
            return
        # Lookups read whole row groups of a file without a page map. Its columns may be encrypted.
        with suppress(FragmentUnreadable):
            fragment_id = present.fragment_id
            if data is not None:
                schema = self._add_footer(fragment_id, data.size, reader_of_bytes(data))
            else:
                path, identity = present.fragment.path, present.identity
                with FragmentFile(self._source.filesystem, path, identity, ReadCounter()) as file:
                    schema = self._add_footer(fragment_id, file.num_bytes, file.read)
            self._ids.append(fragment_id)
            for name in set(schema.names).difference(self._names):
                self._hidden_columns.setdefault(name, present.fragment.path)

    def _add_footer(self, fragment_id: int, file_bytes: int, read: ReadRanges) -> FileSchema:
        pages = read_footer(file_bytes, read, with_pages=True)
        self._pages.add(fragment_id, pages)
        return pages.schema

    def write_page_map(self, catalog: Catalog, segment: str) -> WrittenPageMap:
        """Write the page map as a segment."""
        page_map = None
        if self._ids:
            written = catalog.write(catalog.path(segment, PAGE_MAP_FILE), self._pages.encode())
            page_map = PageMapEntry(segment, *written, tuple(self._ids))
        return WrittenPageMap(page_map, self._hidden_columns)


def _has_digests(task: TrainTask) -> bool:
    return not task.source.is_in_memory and task.source.store.has_digests


def _digests_of_large_files(task: TrainTask, read_at: int | None = None) -> list[str]:
    """Return the digests of local files that are not read whole, and empty strings for others.

    `read_at` is the time when reading begins. With it, files at rest get no digest, because their
    times prove whether they were written later.
    """
    if not _has_digests(task):
        return [""] * len(task.fragments)
    digests = []
    for file in task.fragments:
        rests = read_at is not None and is_at_rest(file.identity, read_at)
        if rests or _is_read_whole(task, file):
            digests.append("")
            continue
        with file_errors(file.fragment.path, _BUILD_ADVICE):
            digests.append(content_digest(file.fragment.path))
    return digests


def _require_unchanged(
    task: TrainTask, early_digests: Sequence[str], digests: Sequence[str]
) -> None:
    """Raise `FragmentUnreadable` if a file changed since the task was made."""
    identities = task.source.identities([file.fragment for file in task.fragments])
    for file, now, early, digest in zip(
        task.fragments, identities, early_digests, digests, strict=True
    ):
        if not file.identity.is_still(now) or (early and early != digest):
            raise _changed_error(file)


def _changed_error(file: PresentFragment) -> FragmentUnreadable:
    return FragmentUnreadable(
        f"{file.fragment.path} changed while it was indexed; build again when writers are done"
    )
