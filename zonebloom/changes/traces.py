"""Find and purge what still holds erased keys: older versions, files without an owner, filters."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from zonebloom.base import arguments
from zonebloom.base.arrays import to_numpy
from zonebloom.base.text import count_text
from zonebloom.base.threads import thread_pool
from zonebloom.building.builder import Builder
from zonebloom.catalog.fragment_table import fragment_table
from zonebloom.catalog.model import SEGMENTS, Version
from zonebloom.catalog.vacuum import vacuum_catalog
from zonebloom.changes.key_test import RowTest, row_test
from zonebloom.changes.receipt import Receipt, Trace, Traces
from zonebloom.changes.tables import ChangeableTable, retry_after_conflicts
from zonebloom.errors import CatalogError, InvalidArgument
from zonebloom.scan.opened import OpenDataset, OpenedDataset
from zonebloom.sources.fragment_rows import read_view_batches
from zonebloom.sources.source import Fragment
from zonebloom.storage.files import FILE_ERRORS
from zonebloom.storage.store import Store

# The bytes of files are searched in pieces of this size.
_PIECE_BYTES = 16 << 20
# The folder of a Delta table's change data feed holds rows.
_CHANGE_DATA = "_change_data"


@dataclass(frozen=True)
class FileSearch:
    """The result of a search of the files of a table. The index is searched after it.

    Attributes
    ----------
    table : ChangeableTable
    traces : list of Trace
    paths : set of str
        The data files that held a key.
    other_files : set of str
        The files below the root of the table that are no data files.
    segments : SegmentRecords
        What the versions of the index said of its segments when they were read.
    """

    table: ChangeableTable
    traces: list[Trace]
    paths: set[str]
    other_files: set[str]
    segments: SegmentRecords


class SegmentRecords:
    """Records of the segments of an index, gathered from its versions one by one.

    Attributes
    ----------
    numbers : set of int
        The versions that were added.
    file_ids : set of int
        The ids of all files that the versions name.
    held_ids : set of int
        The ids of the files that held a key.
    fragment_ids : dict of str to set of int
        The ids of the files of each segment.
    """

    def __init__(self, held_keys: pa.Array):
        self.numbers: set[int] = set()
        self.file_ids: set[int] = set()
        self.held_ids: set[int] = set()
        self.fragment_ids: dict[str, set[int]] = {}
        self._held_keys = held_keys
        # The number of zones in each segment that belong to none of its files.
        self._num_other_zones: dict[str, int] = {}

    def add(self, version: Version) -> None:
        self.numbers.add(version.number)
        files = fragment_table(version.fragments)
        is_held = pc.call_function(
            "is_in", [files.table["key"]], pc.SetLookupOptions(self._held_keys)
        )
        ids = files.numbers("fragment_id")
        self.held_ids.update(ids[to_numpy(is_held)].tolist())
        self.file_ids.update(ids.tolist())
        num_rows = dict(zip(ids.tolist(), files.numbers("num_rows").tolist(), strict=True))
        for page_map in version.page_maps:
            # It says where pages lie, and holds no keys.
            self.fragment_ids.setdefault(page_map.segment, set())
        for index in version.indices.values():
            for segment in index.segments:
                covered = segment.fragment_ids
                self.fragment_ids.setdefault(segment.name, set()).update(covered)
                items = index.number_of_items
                num_zones = sum(-(-num_rows.get(i, 0) // items) for i in covered)
                num_left = segment.num_zones - num_zones
                before = self._num_other_zones.get(segment.name, num_left)
                self._num_other_zones[segment.name] = min(before, num_left)
            if (stored := index.global_filter) is not None:
                self.fragment_ids.setdefault(stored.segment, set()).update(stored.fragment_ids)

    def reason(self, segment: str, current_ids: Collection[int]) -> str:
        """Return why a segment may hold a key, or an empty text if it does not."""
        ids = self.fragment_ids.get(segment)
        if ids is None or not ids.isdisjoint(self.held_ids.difference(current_ids)):
            return "its filters may say perhaps"
        # A refresh leaves the zones of a file that is gone where they are.
        if self._num_other_zones.get(segment, 0) > 0 or not ids <= self.file_ids:
            return "it also holds filters of files that no version names"
        return ""


def traces_of_failed_search(table: ChangeableTable, error: Exception) -> Traces:
    """Return the traces if a search failed."""
    reason = f"it cannot be searched ({type(error).__name__}); call receipt.check(ds) for more"
    return Traces((Trace("log", table.location, (), reason),))


def check_receipt(
    receipt: Receipt,
    dataset: OpenDataset,
    table: ChangeableTable,
    keys: Any,
    filter: Any,
    *,
    purge: bool,
) -> Traces:
    """Look again what holds the keys of a receipt; see `Receipt.check`."""
    arguments.require_bool(purge, "purge")
    if table.location != receipt.location:
        raise InvalidArgument(
            f"the receipt is of {receipt.location}, and the dataset of {table.location}; open the "
            "table of the receipt"
        )
    table.reopen_newest(dataset)
    test = None
    if keys is not None or filter is not None:
        what, unfit = ("keys", filter) if receipt.columns else ("a filter", keys)
        if unfit is not None:
            raise InvalidArgument(f"the receipt is of {what}; give {what}, and nothing else")
        test = row_test(dataset.opened, receipt.columns, keys, filter)
        if not receipt.keys.is_of(test.lines()):
            raise InvalidArgument(
                f"these are not the {count_text(receipt.keys.count, 'key')} of the receipt; give "
                "the same keys"
                if receipt.columns
                else "this is not the filter of the receipt; give the same filter"
            )
    traces = _find_traces(table, receipt, test, dataset.opened)
    if not purge or not traces.found:
        return traces
    retry_after_conflicts(table.location, lambda number: table.purge())
    if any(trace.kind == "index" for trace in traces.found):
        _rebuild_indices(dataset.opened)
    table.reopen_newest(dataset)
    return _find_traces(table, receipt, test, dataset.opened)


def _rebuild_indices(opened: OpenedDataset) -> None:
    builder = Builder(opened)
    entries = [opened.index_entry(name) for name in builder.own_index_names()]
    damages = {entry.name: "its filters may hold erased keys" for entry in entries}
    indices = [(entry, opened.indexed_columns(entry)) for entry in entries]
    builder.refresh(indices, None, None, damages)
    vacuum_catalog(opened.catalog, timedelta(0))


def _find_traces(
    table: ChangeableTable, receipt: Receipt, test: RowTest | None, opened: OpenedDataset
) -> Traces:
    """Return what still holds the keys of a receipt.

    With a test, all data files are searched for rows that pass it, and all other files for the
    bytes of keys.
    """
    search = find_in_files(table, receipt, test)
    traces = with_index_traces(search, opened)
    if test is None:
        return traces
    needles, keys_without_search = test.byte_forms()
    all_traces = list(traces.found)
    if needles:
        # The values of data files were compared. A key may be part of another value.
        all_traces += _byte_traces(search, {trace.path for trace in all_traces}, needles)
    return Traces(
        tuple(all_traces),
        _calls(table, all_traces),
        is_searched=True,
        not_searched=tuple(keys_without_search),
    )


def find_in_files(table: ChangeableTable, receipt: Receipt, test: RowTest | None) -> FileSearch:
    """Find the data files that a receipt names, and the files of the log with their statistics.

    With a test, all data files are searched for rows that pass it.
    """
    source = table.opened.source
    removed = {file.path for file in receipt.files_removed}
    # A file of a folder has the same path before and after.
    named_by_receipt = removed.difference(file.path for file in receipt.files_added)
    if receipt.traces is not None:
        named_by_receipt |= {trace.path for trace in receipt.traces.found if trace.kind == "file"}
    stored = _stored_files(source.store, source.root)
    unreadable: list[Trace] = []
    history = table.read_history(stored, unreadable)
    held_by = table.retained_files(history)
    current = {fragment.path: fragment for fragment in source.fragments}
    data_files = {path for path in stored if _is_data(path, source.root)}

    def trace(path: str) -> Trace | None:
        if path not in stored and not _exists(source.filesystem, path):
            return None
        reason = "it held a key"
        if test is not None:
            reason = _reason_in_file(table, path, current.get(path), test)
        if not reason:
            return None
        if path in current:
            reason += "; it is part of the newest version, so erase again"
        elif path not in held_by:
            reason += "; no version names it"
        return Trace("file", path, held_by.get(path, ()), reason)

    to_search = set(named_by_receipt)
    if test is not None:
        to_search |= data_files | current.keys() | held_by.keys()
    with thread_pool(source.store.num_threads) as pool:
        traces = [part for part in pool.map(trace, sorted(to_search)) if part is not None]
    paths = named_by_receipt | {part.path for part in traces}
    logs = table.logs_of(history, stored, paths)
    traces += [Trace("log", path, (), "it has statistics of such a file") for path in logs]
    paths |= removed
    # The keys of files are whole paths, or begin at the root.
    forms = {key for path in paths for key in (path, path.removeprefix(f"{source.root}/"))}
    segments = SegmentRecords(pa.array(sorted(forms), pa.string()))
    # Versions that cannot be read are read again, and named, after the refresh.
    _add_versions(segments, table.opened)
    return FileSearch(table, traces + unreadable, paths, stored - data_files, segments)


def with_index_traces(search: FileSearch, opened: OpenedDataset) -> Traces:
    """Return what a search of files has found, and the segments that were built over such files."""
    traces = search.traces + _index_traces(opened, search.segments)
    return Traces(tuple(traces), _calls(search.table, traces))


def _calls(table: ChangeableTable, traces: Sequence[Trace]) -> tuple[str, ...]:
    """Return the calls that remove traces."""
    kinds = {trace.kind for trace in traces}
    calls = table.purge_calls() if kinds & {"file", "log"} else ()
    if "index" in kinds:
        calls = (*calls, "ds.create_scalar_index(...) for each index", "ds.vacuum(timedelta(0))")
    return calls


def _reason_in_file(
    table: ChangeableTable, path: str, fragment: Fragment | None, test: RowTest
) -> str:
    """Return why a file holds a key, or may hold one. Return an empty text if it holds none."""
    source = table.opened.source
    try:
        if fragment is not None:
            batches = read_view_batches(source, fragment, source.filesystem, test.columns)
            return _reason_of_count(_count_rows(test, map(pa.table, batches)))
        with source.filesystem.open_input_file(path) as stream, pq.ParquetFile(stream) as file:
            # A column may have had another name, or an old file's path may give it.
            schema = file.schema_arrow
            names = table.stored_names(schema.names)
            types = [schema.field(stored).type for stored in names.values()]
            missing = test.missing_columns(pa.schema(zip(names, types, strict=True)))
            reduced_test = test.without(missing)
            if reduced_test is None:
                return f"it may hold a key, because it has no column {missing[0]!r}"
            names_by_stored = {names[name]: name for name in reduced_test.columns}
            batches = map(pa.table, file.iter_batches(columns=list(names_by_stored)))
            renamed = (batch.rename_columns(names_by_stored) for batch in batches)
            return _reason_of_count(_count_rows(reduced_test, renamed))
    except FileNotFoundError:
        return ""
    except (*FILE_ERRORS, TypeError) as error:
        return f"it cannot be read ({type(error).__name__})"


def _count_rows(test: RowTest, tables: Iterable[pa.Table]) -> int:
    return sum(int(np.count_nonzero(test.numbers_of(table) >= 0)) for table in tables)


def _reason_of_count(count: int) -> str:
    return f"it has {count_text(count, 'row')} with a key" if count else ""


def _byte_traces(search: FileSearch, traced: set[str], needles: Sequence[bytes]) -> list[Trace]:
    """Return the other files of the table and of the index that have the bytes of a key."""
    catalog, source = search.table.opened.catalog, search.table.opened.source
    index_files = _stored_files(catalog.store, catalog.folder)
    max_bytes = max(map(len, needles))

    def trace(path: str) -> Trace | None:
        is_index = path in index_files
        # A segment is traced as a whole.
        if posixpath.dirname(path) in traced:
            return None
        filesystem = catalog.filesystem if is_index else source.filesystem
        try:
            contents = _pieces(filesystem, path, max_bytes)
            if not is_index:
                contents = chain(contents, search.table.decoded(path))
            if not any(needle in content for content in contents for needle in needles):
                return None
            reason = "it has bytes of a key"
        except FileNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001 - readers of formats raise what they like
            reason = f"it cannot be searched ({type(error).__name__})"
        return Trace("index" if is_index else "log", path, (), reason)

    with thread_pool(source.store.num_threads) as pool:
        traces = pool.map(trace, sorted((search.other_files | index_files) - traced))
        return [part for part in traces if part is not None]


def _pieces(filesystem: pafs.FileSystem, path: str, overlap: int) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces, each with the end of the one before."""
    window = b""
    with filesystem.open_input_stream(path, compression=None) as stream:
        while piece := stream.read(_PIECE_BYTES):
            window = window[-overlap:] + piece
            yield window


def _stored_files(store: Store, root: str) -> set[str]:
    infos = store.list_folder(root, recursive=True)
    return {info.path for info in infos if info.type == pafs.FileType.File}


def _exists(filesystem: pafs.FileSystem, path: str) -> bool:
    return filesystem.get_file_info(path).type == pafs.FileType.File


def _is_data(path: str, root: str) -> bool:
    """Return whether a path is that of a data file: Parquet, and in no folder of metadata."""
    folders = posixpath.relpath(path, root).split("/")[:-1]
    hidden = any(
        folder.startswith(("_", ".")) and "=" not in folder and folder != _CHANGE_DATA
        for folder in folders
    )
    # An interrupted change of a folder leaves temporary files.
    return path.endswith((".parquet", ".tmp")) and not hidden


def _add_versions(segments: SegmentRecords, opened: OpenedDataset) -> list[Trace]:
    """Add the versions that exist, unless they were added before, for a version never changes.

    Return traces for those that cannot be read.
    """
    unreadable: list[Trace] = []
    # A copy reads them, so that the catalog in use keeps the newest version in memory.
    catalog = copy(opened.catalog)

    def read(number: int) -> Version:
        if number == opened.version.number:
            return opened.version
        try:
            return catalog.version(number)
        except CatalogError as error:
            path = posixpath.join(catalog.folder, f"version {number}")
            unreadable.append(Trace("index", path, (), f"it cannot be read ({error})"))
            return Version()

    numbers = [number for number in catalog.numbers() if number not in segments.numbers]
    for version in catalog.store.map_requests(read, numbers):
        if version.number:
            segments.add(version)
    return unreadable


def _index_traces(opened: OpenedDataset, segments: SegmentRecords) -> list[Trace]:
    """Return the segments of the index that were built over files that held a key."""
    catalog = opened.catalog
    folder = posixpath.join(catalog.folder, SEGMENTS)
    with thread_pool(2) as pool:
        looked = pool.submit(opened.look)
        listed = pool.submit(catalog.store.list_index_folder, folder)
        unreadable = _add_versions(segments, opened)
    # A file that was written anew at its path has another id.
    current_ids = looked.result().coverage.known_ids
    names = sorted(info.base_name for info in listed.result())
    reasons = {name: segments.reason(name, current_ids) for name in names}
    return unreadable + [
        Trace("index", posixpath.join(folder, name), (), reason)
        for name, reason in reasons.items()
        if reason
    ]
