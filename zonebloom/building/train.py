"""Train the tasks of a build, here or on a Spark worker, with one pass over each file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack
from itertools import groupby
from typing import NamedTuple

from zonebloom.base.threads import map_in_order, num_cores, thread_pool
from zonebloom.building.tasks import TrainedTask, TrainTask
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
from zonebloom.index.global_filter import GlobalFilterPart, KeyHashes
from zonebloom.index.key_ranges import KeyRangeBuilder, write_ranges
from zonebloom.index.kinds import SegmentWriter, built_layout, index_kind
from zonebloom.parquet.footer import footer_digest, read_footer
from zonebloom.parquet.page_map import encode_page_map, page_map_rows
from zonebloom.sbbf.hashing import Hashes, hash_in_batches
from zonebloom.sources.column_batches import ColumnsReader, Run, TableColumns, columns_reader
from zonebloom.sources.source import Source
from zonebloom.storage.files import ReadCounter, content_digest, file_errors, is_at_rest, is_local
from zonebloom.storage.random_access import FragmentFile

ReportRows = Callable[[int], None]

# Runs of more rows are not hashed ahead, because their hashes would take too much memory.
_MAX_ROWS_AHEAD = 4 << 20


def train_locally(
    tasks: Sequence[TrainTask], *, workers: int | None = None, progress: ReportRows | None = None
) -> list[TrainedTask]:
    """Run tasks on threads of this process. Return the results in the order of the tasks."""
    workers = workers or num_cores()
    threads = max(1, workers // len(tasks))
    is_stopped = threading.Event()

    def report(rows: int) -> None:
        if is_stopped.is_set():
            raise CancelledError
        if progress is not None:
            progress(rows)

    num_tasks = min(workers, len(tasks))
    with thread_pool(num_tasks) as pool:
        try:
            return list(
                map_in_order(
                    pool,
                    lambda task: train_task(
                        task, threads=threads, num_tasks=num_tasks, progress=report
                    ),
                    tasks,
                    len(tasks) + 1,
                )
            )
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
        early_digests = _digests(task, seen_at)
        num_rows = _train_fragments(task, outputs, threads, progress)
        digests = _digests(task)
        _require_unchanged(task, early_digests, digests)
        segments = tuple(output.close() for output in outputs)
        # No error occurred, so keep the files.
        stack.pop_all()
    parts = tuple(output.write_global_filter_part() for output in outputs)
    pages = write_page_map(task.catalog, f"{task.segment}-pages", task.source, task.fragments)
    fragments = tuple(
        KnownFragment(
            fragment.fragment_id,
            fragment.fragment.key,
            fragment.identity,
            rows,
            digest,
            seen_at,
            pages.footers.get(fragment.fragment_id, ""),
        )
        for fragment, rows, digest in zip(task.fragments, num_rows, digests, strict=True)
    )
    return TrainedTask(segments, parts, fragments, pages.page_map, pages.hidden_columns)


def _wait_for_rest(task: TrainTask, own_file: str) -> int:
    """Wait until the large files of a task are at rest, and return the time by their clock."""
    lag = None
    if _is_local(task):
        paths = [file.fragment.path for file in task.fragments]
        lag = clock_lag(own_file, task.catalog.folder, paths)
    large_files = (
        file.identity
        for file in task.fragments
        if not (_is_local(task) and digest_covers_file(file.identity))
    )
    return wait_for_rest(large_files, lag)


class _RunToRead(NamedTuple):
    """A run of a fragment, or None for a fragment without rows."""

    fragment: PresentFragment
    reader: ColumnsReader | TableColumns
    run: Run | None


class _HashedRun(NamedTuple):
    """The hashes of a run with the number of their column, and the key range of each column."""

    hashes: list[tuple[int, Hashes]]
    ranges: list[KeyRangeBuilder]


def _train_fragments(
    task: TrainTask, outputs: Sequence[_Output], threads: int, progress: ReportRows | None
) -> list[int]:
    """Read fragments once, and train their zones for all outputs in row order.

    With several threads, runs are read and hashed in parallel. Return the rows of each fragment.
    """

    def hash_run(
        part: _RunToRead, run: Run, ranges: Sequence[KeyRangeBuilder]
    ) -> Iterator[tuple[int, Hashes]]:
        for arrays in part.reader.read(run):
            for number, array in enumerate(arrays):
                ranges[number].add(array)
                for hashes in hash_in_batches(array):
                    yield number, hashes
            if progress is not None:
                progress(len(arrays[0]))

    def hash_ahead(part: _RunToRead) -> tuple[_RunToRead, _HashedRun | None]:
        run = part.run
        if run is None or run.num_rows is None or run.num_rows > _MAX_ROWS_AHEAD:
            return part, None
        ranges = [KeyRangeBuilder(output.spec.column.type) for output in outputs]
        return part, _HashedRun(list(hash_run(part, run, ranges)), ranges)

    num_rows: list[int] = []
    with ExitStack() as stack:
        runs = _runs_to_read(task, split=threads > 1)
        hashed_runs: Iterator[tuple[_RunToRead, _HashedRun | None]] = ((run, None) for run in runs)
        if threads > 1:
            pool = stack.enter_context(thread_pool(threads))
            hashed_runs = map_in_order(pool, hash_ahead, runs, threads + 1)
        for fragment, parts in groupby(hashed_runs, key=lambda hashed: hashed[0].fragment):
            for output in outputs:
                output.begin_fragment(fragment.fragment_id)
            for part, hashed in parts:
                if hashed is not None:
                    for number, hashes in hashed.hashes:
                        outputs[number].add(hashes)
                    for output, key_range in zip(outputs, hashed.ranges, strict=True):
                        output.range.merge(key_range)
                elif part.run is not None:
                    ranges = [output.range for output in outputs]
                    for number, hashes in hash_run(part, part.run, ranges):
                        outputs[number].add(hashes)
            num_rows.append(max(output.end_fragment() for output in outputs))
    return num_rows


def _runs_to_read(task: TrainTask, *, split: bool) -> Iterator[_RunToRead]:
    columns = [spec.column for spec in task.specs]
    for fragment in task.fragments:
        reader = columns_reader(task.source, fragment.fragment, columns)
        for run in reader.runs(split=split) or [None]:
            yield _RunToRead(fragment, reader, run)


class _Output:
    """The segment that a task writes for one index."""

    def __init__(self, task: TrainTask, number: int, num_writers: int):
        self._catalog = task.catalog
        self._segment = task.segment_name(number)
        self._ids = tuple(fragment.fragment_id for fragment in task.fragments)
        self.spec = task.specs[number]
        kind = index_kind(self.spec.kind)
        self._file = kind.layouts[built_layout(kind)]
        self.path = self._catalog.path(self._segment, self._file)
        self.writer: SegmentWriter = kind.create_writer(
            self._catalog, self.path, self.spec.parameters, num_writers
        )
        self._ranges: list[dict] = []
        self._hashes = KeyHashes(self.spec.global_bytes)

    def begin_fragment(self, fragment_id: int) -> None:
        self._fragment_id = fragment_id
        self.range = KeyRangeBuilder(self.spec.column.type)

    def add(self, hashes: Hashes) -> None:
        self.range.num_rows += hashes.values.size
        self.range.null_count += hashes.null_count
        if self.spec.global_bytes:
            self._hashes.add(hashes.of_valid_rows())
        self.writer.add(self._fragment_id, hashes)

    def end_fragment(self) -> int:
        """Write the last zones of a fragment. Return its number of rows."""
        self.writer.end_fragment(self._fragment_id)
        self._ranges.append(self.range.to_row(self._fragment_id))
        return self.range.num_rows

    def close(self) -> Segment:
        catalog, name = self._catalog, self._segment
        written = self.writer.close()
        ranges = write_ranges(self._ranges, self.spec.column.type)
        num_bytes, checksum = catalog.write(catalog.path(name, KEY_RANGES_FILE), ranges)
        return Segment(
            name,
            self._file,
            written.num_bytes,
            written.checksum,
            written.num_zones,
            self._ids,
            ranges_bytes=num_bytes,
            ranges_checksum=checksum,
        )

    def write_global_filter_part(self) -> GlobalFilterPart | None:
        if not self.spec.global_bytes:
            return None
        return self._hashes.write(self._catalog, f"{self._segment}-keys")


class WrittenPageMap(NamedTuple):
    """A page map that was written, and other contents of the footers of its files."""

    # None if no file has pages.
    page_map: PageMapEntry | None
    # Digests of the footers by fragment id.
    footers: dict[int, str]
    # Columns that the schema of the dataset lacks, each with the path of a file that has it.
    hidden_columns: dict[str, str]


def write_page_map(
    catalog: Catalog, segment: str, source: Source, fragments: Sequence[PresentFragment]
) -> WrittenPageMap:
    """Read the footers of some files, and write a page map of them as a segment."""
    hidden_columns: dict[str, str] = {}
    footers: dict[int, str] = {}
    if not source.is_parquet:
        return WrittenPageMap(None, footers, hidden_columns)
    rows, ids = [], []
    for present in fragments:
        path = present.fragment.path
        try:
            with FragmentFile(source.filesystem, path, present.identity, ReadCounter()) as file:
                footers[present.fragment_id] = footer_digest(file.num_bytes, file.read)
                pages = read_footer(file.num_bytes, file.read, with_pages=True)
                rows += page_map_rows(present.fragment_id, pages)
                for name in set(pages.schema.names).difference(source.schema.names):
                    hidden_columns.setdefault(name, path)
        except FragmentUnreadable:
            # Lookups read whole row groups of such a file. Its columns may be encrypted.
            continue
        ids.append(present.fragment_id)
    if not ids:
        return WrittenPageMap(None, footers, hidden_columns)
    written = catalog.write(catalog.path(segment, PAGE_MAP_FILE), encode_page_map(rows))
    page_map = PageMapEntry(segment, *written, tuple(ids))
    return WrittenPageMap(page_map, footers, hidden_columns)


def _is_local(task: TrainTask) -> bool:
    return not task.source.is_in_memory and is_local(task.source.filesystem)


def _digests(task: TrainTask, read_at: int | None = None) -> list[str]:
    """Return the digests of local files, and empty strings for others.

    `read_at` is the time when reading begins. With it, files at rest get no digest, because their
    times prove whether they were written later.
    """
    if not _is_local(task):
        return [""] * len(task.fragments)
    digests = []
    for file in task.fragments:
        if read_at is not None and is_at_rest(file.identity, read_at):
            digests.append("")
            continue
        with file_errors(file.fragment.path, "repair or remove the file, then build again"):
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
            raise FragmentUnreadable(
                f"{file.fragment.path} changed while it was indexed; build again when writers are "
                "done"
            )
