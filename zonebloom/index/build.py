"""Building the segments of an index: the work cut into tasks, and one task's training.

Every engine runs the same tasks: threads of this process (`train_locally`), or Spark
(`zonebloom.spark.build`). A task reads its column of its fragments once and writes one
segment; the caller commits what all of them wrote, or deletes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from zonebloom.errors import CommitConflict, FragmentUnreadable
from zonebloom.index.catalog import Catalog, IndexEntry, KnownFragment, Segment, Version, now
from zonebloom.index.table import TableWriter
from zonebloom.index.zones import ZoneParameters, Zones, join, regroup, train
from zonebloom.storage.columns import Column, ColumnReader, Run, TableColumn
from zonebloom.storage.files import FileIdentity, ReadCounter, identities
from zonebloom.storage.fragments import is_plain_parquet
from zonebloom.storage.parquet.pagemap import FooterPages, map_rows, page_map_file, read_footer
from zonebloom.storage.ranges import RangeFile
from zonebloom.threads import cores, in_order
from zonebloom.values import hash_domain

if TYPE_CHECKING:
    import pyarrow.dataset as pads

# Data bytes a task: enough to be worth a segment, little enough to share out.
_TASK_BYTES = 64 << 20
_MAX_TASKS = 256

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class TrainFragment:
    """A fragment to train on: its id for the table, and what its file must be throughout."""

    fragment_id: int
    path: str
    identity: FileIdentity


@dataclass(frozen=True, slots=True)
class TrainTask:
    """All a worker needs to write one segment; it pickles.

    ``table`` holds the rows of a dataset in memory, whose one fragment has no file.
    """

    segment: str
    catalog: Catalog
    format: pads.FileFormat
    filesystem: pafs.FileSystem
    schema: pa.Schema
    column: Column
    parameters: ZoneParameters
    fragments: tuple[TrainFragment, ...]
    table: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class TrainedSegment:
    """A segment as written, and the rows found in each of its fragments."""

    segment: Segment
    num_rows: dict[int, int]


def cut_tasks(
    prefix: str,
    catalog: Catalog,
    format: pads.FileFormat,
    filesystem: pafs.FileSystem,
    schema: pa.Schema,
    column: Column,
    parameters: ZoneParameters,
    fragments: Sequence[TrainFragment],
    table: pa.Table | None = None,
) -> list[TrainTask]:
    """Share the fragments out over tasks of about equal bytes, the same for every engine."""
    total = sum(fragment.identity.size for fragment in fragments)
    limit = max(_TASK_BYTES, total // _MAX_TASKS)
    groups: list[list[TrainFragment]] = [[]]
    held = 0
    for fragment in fragments:
        if held and held + fragment.identity.size > limit:
            groups.append([])
            held = 0
        groups[-1].append(fragment)
        held += fragment.identity.size
    return [
        TrainTask(
            f"{prefix}-{number:04d}",
            catalog,
            format,
            filesystem,
            schema,
            column,
            parameters,
            tuple(group),
            table,
        )
        for number, group in enumerate(groups)
    ]


def train_task(
    task: TrainTask, *, threads: int = 1, progress: Progress | None = None
) -> TrainedSegment:
    """Train one segment and write it.

    Parameters
    ----------
    task : TrainTask
    threads : int
        How many threads may read row groups of one file.
    progress : callable, optional
        Told the number of rows done since it was last told.

    Raises
    ------
    FragmentUnreadable
        When a file cannot be read, or changes meanwhile.
    SchemaMismatch
    """
    path = task.catalog.segment_path(task.segment)
    target = task.catalog.filesystem
    target.create_dir(os.path.dirname(path), recursive=True)
    parameters = task.parameters
    writer = TableWriter(
        target, path, parameters.number_of_items, parameters.probability, parameters.fold
    )
    num_rows: dict[int, int] = {}
    try:
        for fragment in task.fragments:
            rows = 0
            for zones in _fragment_zones(task, fragment, threads, progress):
                writer.write(fragment.fragment_id, zones)
                rows += int(zones.lengths.sum())
            num_rows[fragment.fragment_id] = rows
        _require_unchanged(task)
    except BaseException:
        writer.abort()
        raise
    written = writer.close()
    map_bytes, map_checksum = _write_page_map(task)
    segment = Segment(
        task.segment,
        written.num_bytes,
        written.checksum,
        written.num_zones,
        tuple(fragment.fragment_id for fragment in task.fragments),
        map_bytes,
        map_checksum,
    )
    return TrainedSegment(segment, num_rows)


def _fragment_zones(
    task: TrainTask, fragment: TrainFragment, threads: int, progress: Progress | None
) -> Iterator[Zones]:
    if task.table is not None:
        reader = TableColumn(task.table, task.column)
    else:
        reader = ColumnReader(task.format, task.filesystem, fragment.path, task.column, task.schema)
    begun = False
    try:
        for zones in _reader_zones(reader, task.parameters, threads, progress):
            begun = True
            yield zones
    except FragmentUnreadable as error:
        if begun or isinstance(reader, TableColumn) or "crypt" not in str(error):
            raise
        # The format may hold the keys of an encrypted file.
        reader.leave_to_pyarrow()
        yield from _reader_zones(reader, task.parameters, threads, progress)


def _reader_zones(
    reader: ColumnReader | TableColumn,
    parameters: ZoneParameters,
    threads: int,
    progress: Progress | None,
) -> Iterator[Zones]:
    runs = reader.runs(split=threads > 1)

    def trained(run: Run) -> Iterator[Zones]:
        for zones in train(reader.read(run), parameters, run.first_row):
            if progress is not None:
                progress(int(zones.lengths.sum()))
            yield zones

    if threads > 1 and len(runs) > 1:
        with ThreadPoolExecutor(threads) as pool:
            found = (
                zones
                for run in in_order(pool, lambda run: list(trained(run)), runs, threads + 1)
                for zones in run
            )
            yield from regroup(join(found, parameters.number_of_items), parameters)
    else:
        found = (zones for run in runs for zones in trained(run))
        yield from regroup(join(found, parameters.number_of_items), parameters)


def _write_page_map(task: TrainTask) -> tuple[int, str]:
    """Keep where the pages of the task's files lie; a file that cannot be mapped is left out."""
    if task.table is not None or not is_plain_parquet(task.format):
        return 0, ""
    rows = []
    for fragment in task.fragments:
        counter = ReadCounter()
        try:
            with RangeFile(task.filesystem, fragment.path, fragment.identity, counter) as file:
                pages = FooterPages(read_footer(file.num_bytes, file.read), file.read)
                pages.load_all()
                rows += map_rows(fragment.fragment_id, pages)
        except FragmentUnreadable:
            # Encrypted columns, say: its lookups read row groups.
            continue
    data = page_map_file(rows)
    with task.catalog.filesystem.open_output_stream(
        task.catalog.page_map_path(task.segment)
    ) as sink:
        sink.write(data)
    return data.size, xxhash.xxh3_64_hexdigest(data)


def _require_unchanged(task: TrainTask) -> None:
    if task.table is not None:
        return
    after = identities(task.filesystem, (fragment.path for fragment in task.fragments))
    for fragment, identity in zip(task.fragments, after, strict=True):
        if identity != fragment.identity:
            raise FragmentUnreadable(
                f"{fragment.path} changed while it was indexed; build again when writers are done"
            )


def train_locally(
    tasks: Sequence[TrainTask], *, workers: int | None = None, progress: Progress | None = None
) -> list[TrainedSegment]:
    """Run tasks on threads of this process.

    Parameters
    ----------
    tasks : sequence of TrainTask
    workers : int, optional
        Number of threads; the machine's cores by default.
    progress : callable, optional

    Returns
    -------
    list of TrainedSegment
        In the order of the tasks.
    """
    workers = workers or cores()
    threads = max(1, workers // len(tasks))
    with ThreadPoolExecutor(min(workers, len(tasks))) as pool:
        return list(
            in_order(
                pool,
                lambda task: train_task(task, threads=threads, progress=progress),
                tasks,
                len(tasks) + 1,
            )
        )


def commit_index(
    catalog: Catalog,
    base: Version,
    name: str,
    column: Column,
    parameters: ZoneParameters,
    fragments: Sequence[tuple[str, TrainFragment]],
    segments: Sequence[Segment],
    num_rows: Mapping[int, int],
    *,
    replace_existing: bool,
    expected: IndexEntry | None = None,
) -> Version:
    """Commit what the tasks wrote as an index.

    Parameters
    ----------
    base : Version
        The version the fragments' ids were taken from.
    fragments : sequence of (key, TrainFragment)
        Those the tasks read.
    segments : sequence of Segment
        All of the index.
    num_rows : mapping of int to int
        Rows of each of the fragments, by id.
    expected : IndexEntry, optional
        What the index must still be: it was made from that.

    Raises
    ------
    CommitConflict
        When another writer gave these ids to other files, took the name, or changed the index.
    """
    built = {
        key: KnownFragment(
            fragment.fragment_id, key, fragment.identity, num_rows[fragment.fragment_id]
        )
        for key, fragment in fragments
    }
    entry = IndexEntry(
        name,
        column.path,
        hash_domain(column.type),
        parameters,
        tuple(segments),
        now(),
    )

    def change(latest: Version) -> Version:
        _require_same_ids(latest, base, built, catalog)
        if name in latest.indices and not replace_existing and name not in base.indices:
            raise CommitConflict(
                f"another writer made an index {name!r} meanwhile; give another name"
            )
        if expected is not None and latest.indices.get(name) != expected:
            raise CommitConflict(f"another writer changed index {name!r} meanwhile; try again")
        next_id = max([latest.next_fragment_id, *(f.fragment_id + 1 for f in built.values())])
        return replace(
            latest,
            next_fragment_id=next_id,
            fragments={**latest.fragments, **built},
            # Last, also when it replaces one: of several on a column the last made is used. One
            # brought up to date keeps its place.
            indices={
                **{k: v for k, v in latest.indices.items() if k != name or expected is not None},
                name: entry,
            },
        )

    return catalog.commit(change)


def _require_same_ids(
    latest: Version, base: Version, built: dict[str, KnownFragment], catalog: Catalog
) -> None:
    """Refuse when an id in the new segments means another file by now."""
    for key, known in built.items():
        theirs = latest.fragments.get(key)
        if theirs is not None and theirs.fragment_id == known.fragment_id:
            agreed = theirs.identity == known.identity
        else:
            # The id is ours to give if it was free when we took it and nobody gave any since.
            agreed = (
                known.fragment_id >= base.next_fragment_id
                and latest.next_fragment_id == base.next_fragment_id
            )
        if not agreed:
            raise CommitConflict(
                f"{catalog.folder}: another writer indexed {key} meanwhile; build again"
            )
