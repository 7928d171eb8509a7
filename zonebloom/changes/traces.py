"""Find what still holds erased keys: older versions of a table, files without an owner, filters."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from zonebloom.base.text import count_text
from zonebloom.base.threads import thread_pool
from zonebloom.catalog.model import SEGMENTS
from zonebloom.changes.key_test import RowTest
from zonebloom.changes.receipt import Receipt, Trace, Traces
from zonebloom.changes.tables import ChangeableTable
from zonebloom.errors import CatalogError
from zonebloom.scan.opened import OpenedDataset
from zonebloom.sources.fragment_rows import read_view_batches
from zonebloom.sources.source import Fragment, Source
from zonebloom.storage.files import FILE_ERRORS

# The bytes of files are searched in pieces of this size.
_PIECE_BYTES = 16 << 20
# The folder of a Delta table's change data feed holds rows.
_CHANGE_DATA = "_change_data"


def find_traces(
    table: ChangeableTable, receipt: Receipt, test: RowTest | None, *, is_thorough: bool
) -> Traces:
    """Return what still holds the keys of a receipt.

    With a test, the files that only older versions have, or none, are searched for the keys. A
    thorough search also reads the files of the newest version, and all others for bytes of texts.
    """
    filesystem, root = table.opened.source.filesystem, table.opened.source.root
    removed = {file.path for file in receipt.files_removed}
    # A file of a folder has the same path before and after.
    named_by_receipt = removed.difference(file.path for file in receipt.files_added)
    if receipt.traces is not None:
        named_by_receipt |= {trace.path for trace in receipt.traces.found if trace.kind == "file"}
    stored = _stored_files(filesystem, root)
    history = table.read_history()
    held_by = table.retained_files(history)
    fragments = {file.fragment.path: file.fragment for file in table.snapshot.fragments}
    current = set(fragments)
    data_files = {path for path in stored if _is_data(path, root)}

    def trace(path: str) -> Trace | None:
        if path not in stored and filesystem.get_file_info(path).type != pafs.FileType.File:
            return None
        reason = "it held a key"
        if test is not None:
            reason = _reason_in_file(table.opened.source, path, fragments.get(path), test)
        if not reason:
            return None
        if path in current:
            reason += "; it is part of the newest version, so erase again"
        elif path not in held_by:
            reason += "; no version names it"
        return Trace("file", path, held_by.get(path, ()), reason)

    to_search = set(named_by_receipt)
    if test is not None:
        all_files = data_files | current | set(held_by)
        to_search |= all_files if is_thorough else all_files - current
    with thread_pool(table.opened.source.store.num_threads) as pool:
        traces = [part for part in pool.map(trace, sorted(to_search)) if part is not None]
    paths_with_keys = named_by_receipt | {part.path for part in traces}
    logs = table.logs_of(history, paths_with_keys)
    traces += [Trace("log", path, (), "it has statistics of such a file") for path in logs]
    traces += _index_traces(table.opened, paths_with_keys | removed)
    needles = [text.encode() for text in test.texts()] if test and is_thorough else []
    if needles:
        # The values of data files were compared. A key may be part of another value.
        traced = {part.path for part in traces}
        traces += _byte_traces(table, stored - data_files, traced, needles)
    kinds = {part.kind for part in traces}
    calls = table.purge_calls() if kinds & {"file", "log"} else ()
    if "index" in kinds:
        calls = (*calls, "ds.create_scalar_index(...) for each index", "ds.vacuum(timedelta(0))")
    return Traces(tuple(traces), calls, test is not None and is_thorough)


def _reason_in_file(source: Source, path: str, fragment: Fragment | None, test: RowTest) -> str:
    """Return why a file holds a key, or may hold one. Return an empty text if it holds none."""
    try:
        if fragment is not None:
            batches = read_view_batches(source, fragment, source.filesystem, test.columns)
            count = sum(test.count(pa.Table.from_batches([batch])) for batch in batches)
        else:
            with source.filesystem.open_input_file(path) as stream, pq.ParquetFile(stream) as file:
                # A column may have had another name, or an old file's path may give it.
                missing = test.missing_columns(file.schema_arrow)
                stored = test.without(missing)
                if stored is None:
                    return f"it may hold a key, because it has no column {missing[0]!r}"
                batches = file.iter_batches(columns=stored.columns)
                count = sum(stored.count(pa.Table.from_batches([batch])) for batch in batches)
    except FileNotFoundError:
        return ""
    except (*FILE_ERRORS, TypeError) as error:
        return f"it cannot be read ({type(error).__name__})"
    return f"it has {count_text(count, 'row')} with a key" if count else ""


def _byte_traces(
    table: ChangeableTable, stored: set[str], traced: set[str], needles: Sequence[bytes]
) -> list[Trace]:
    """Return the other files of the table and of the index that have the bytes of a key."""
    catalog = table.opened.catalog
    index_files = _stored_files(catalog.filesystem, catalog.folder)
    traces: list[Trace] = []
    for path in sorted((stored | index_files) - traced):
        kind = "index" if path in index_files else "log"
        source = catalog if kind == "index" else table.opened.source
        # A segment is traced as a whole.
        if posixpath.dirname(path) in traced:
            continue
        try:
            contents = _pieces(source.filesystem, path, max(map(len, needles)))
            if kind == "log":
                contents = chain(contents, table.decoded(path))
            has_key = any(needle in content for content in contents for needle in needles)
            reason = "it has bytes of a key" if has_key else ""
        except FileNotFoundError:
            continue
        except Exception as error:  # noqa: BLE001 - readers of formats raise what they like
            reason = f"it cannot be searched ({type(error).__name__})"
        if reason:
            traces.append(Trace(kind, path, (), reason))
    return traces


def _pieces(filesystem: pafs.FileSystem, path: str, overlap: int) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces, each with the end of the one before."""
    window = b""
    with filesystem.open_input_stream(path, compression=None) as stream:
        while piece := stream.read(_PIECE_BYTES):
            window = window[-overlap:] + piece
            yield window


def _stored_files(filesystem: pafs.FileSystem, root: str) -> set[str]:
    selector = pafs.FileSelector(root, allow_not_found=True, recursive=True)
    infos = filesystem.get_file_info(selector)
    return {info.path for info in infos if info.type == pafs.FileType.File}


def _is_data(path: str, root: str) -> bool:
    """Return whether a path is that of a data file: Parquet, and in no folder of metadata."""
    folders = posixpath.relpath(path, root).split("/")[:-1]
    hidden = any(
        folder.startswith(("_", ".")) and "=" not in folder and folder != _CHANGE_DATA
        for folder in folders
    )
    # An interrupted change of a folder leaves temporary files.
    return path.endswith((".parquet", ".tmp")) and not hidden


def _index_traces(opened: OpenedDataset, paths: Iterable[str]) -> list[Trace]:
    """Return the segments of the index that were built over files that held a key."""
    catalog = opened.catalog
    # The keys of files are whole paths, or begin at the root.
    keys = {key for path in paths for key in (path, path.removeprefix(f"{opened.source.root}/"))}
    segments: dict[str, set[int]] = {}
    ids: set[int] = set()
    unknown: list[Trace] = []
    for number in catalog.numbers():
        try:
            version = catalog.version(number)
        except CatalogError as error:
            path = posixpath.join(catalog.folder, f"version {number}")
            unknown.append(Trace("index", path, (), f"it cannot be read ({error})"))
            continue
        ids |= {fragment.fragment_id for key, fragment in version.fragments.items() if key in keys}
        for page_map in version.page_maps:
            # It says where pages lie, and holds no keys.
            segments.setdefault(page_map.segment, set())
        for index in version.indices.values():
            parts = [(segment.name, segment.fragment_ids) for segment in index.segments]
            if index.global_filter is not None:
                parts.append((index.global_filter.segment, index.global_filter.fragment_ids))
            for name, fragment_ids in parts:
                segments.setdefault(name, set()).update(fragment_ids)
    # A file that was written anew at its path has another id.
    ids -= opened.look().coverage.known_ids
    folder = posixpath.join(catalog.folder, SEGMENTS)
    selector = pafs.FileSelector(folder, allow_not_found=True)
    existing = {info.base_name for info in catalog.filesystem.get_file_info(selector)}
    traces = [
        Trace("index", posixpath.join(folder, name), (), "its filters may say perhaps")
        for name in sorted(existing)
        if name not in segments or not segments[name].isdisjoint(ids)
    ]
    return [*unknown, *traces]
