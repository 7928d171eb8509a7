"""Find what still holds erased keys: older versions of a table, files without an owner, filters."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from zonebloom.base.display import Displayed, list_html, styled_html, table_html, title_html
from zonebloom.base.text import count_text, table_text
from zonebloom.base.threads import thread_pool
from zonebloom.catalog.names import SEGMENTS
from zonebloom.changes.key_test import RowTest
from zonebloom.changes.tables import ChangeableTable
from zonebloom.errors import CatalogError
from zonebloom.scan.opened import OpenedDataset
from zonebloom.storage.files import FILE_ERRORS

# The bytes of files are searched in pieces of this size.
_PIECE_BYTES = 16 << 20
# The folder of a Delta table's change data feed holds rows.
_CHANGE_DATA = "_change_data"


@dataclass(frozen=True)
class Trace:
    """Something that still holds erased keys, or may hold them.

    Attributes
    ----------
    kind : {"file", "log", "index"}
    path : str
    versions : tuple of str
        The versions of the table that still name it.
    reason : str
    """

    kind: Literal["file", "log", "index"]
    path: str
    versions: tuple[str, ...]
    reason: str


@dataclass(frozen=True, repr=False)
class Traces(Displayed):
    """The places that still hold the keys of a receipt, or may hold them.

    Attributes
    ----------
    found : tuple of Trace
    calls : tuple of str
        The calls that remove what was found. ``Receipt.check(ds, keys, purge=True)`` makes them.
    is_searched : bool
        Whether the files of the table were searched for the keys. Otherwise only the files and
        segments that the receipt names were looked for.
    """

    found: tuple[Trace, ...]
    calls: tuple[str, ...] = ()
    is_searched: bool = False

    def __bool__(self) -> bool:
        return bool(self.found)

    @property
    def verdict(self) -> str:
        """The result of the search in a sentence."""
        if self.found:
            return f"{count_text(len(self.found), 'place')} may still hold these keys:"
        if self.is_searched:
            return "Nothing holds these keys."
        return "Nothing that the receipt names is left. Give the keys or the filter to search all."

    def _cells(self) -> list[list[object]]:
        return [
            [trace.kind, trace.path, ", ".join(trace.versions), trace.reason]
            for trace in self.found
        ]

    def __str__(self) -> str:
        lines = [self.verdict]
        if self.found:
            lines.append(table_text(["kind", "path", "versions", "why"], self._cells()))
        if self.calls:
            lines += ["These calls remove them, and older versions with them:", *self.calls]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        headers = ["kind", "path", "versions", "why"]
        table = table_html(headers, self._cells()) if self.found else ""
        return styled_html(title_html(self.verdict), table, list_html(self.calls))


def find_traces(
    opened: OpenedDataset,
    table: ChangeableTable,
    removed_paths: Iterable[str],
    known_paths: Iterable[str],
    test: RowTest | None,
    *,
    is_thorough: bool,
) -> Traces:
    """Return what still holds some keys.

    Parameters
    ----------
    opened : OpenedDataset
        The newest version of the table.
    table : ChangeableTable
    removed_paths : iterable of str
        Files that the change replaced.
    known_paths : iterable of str
        Those of them that no new file has the path of, and other files that held a key.
    test : RowTest or None
        If given, the files that only older versions have, or none, are searched for the keys.
    is_thorough : bool
        Whether to search the files of the newest version as well, and all files that are no data
        for the bytes of texts.
    """
    stored = _stored_files(opened.source.filesystem, opened.source.root)
    history = table.read_history()
    held_by = table.retained_files(history)
    known = set(known_paths)
    found = _file_traces(opened, stored | set(held_by), held_by, known, test, is_thorough)
    holding = known | {trace.path for trace in found}
    found += [
        Trace("log", path, (), "it has statistics of such a file")
        for path in table.logs_of(history, holding)
    ]
    found += _index_traces(opened, holding | set(removed_paths))
    needles = [text.encode() for text in test.texts()] if test and is_thorough else []
    if needles:
        # The values of data files were compared. A key may be part of another value.
        others = {path for path in stored if not _is_data(path, opened.source.root)}
        seen = {trace.path for trace in found}
        found += _byte_traces(opened, table, others, seen, needles)
    kinds = {trace.kind for trace in found}
    calls = table.purge_calls() if kinds & {"file", "log"} else ()
    if "index" in kinds:
        calls = (*calls, "ds.create_scalar_index(...) for each index", "ds.vacuum(timedelta(0))")
    return Traces(tuple(found), calls, test is not None and is_thorough)


def _file_traces(
    opened: OpenedDataset,
    paths: Collection[str],
    held_by: Mapping[str, tuple[str, ...]],
    known: Collection[str],
    test: RowTest | None,
    is_thorough: bool,
) -> list[Trace]:
    """Return the data files that hold a key."""
    filesystem, root = opened.source.filesystem, opened.source.root
    current = {file.fragment.path for file in opened.look().fragments}

    def trace(path: str) -> Trace | None:
        if path not in paths and filesystem.get_file_info(path).type != pafs.FileType.File:
            return None
        reason = "it held a key"
        if test is not None:
            reason = _reason_in_file(filesystem, path, test)
            if not reason:
                return None
        if path in current:
            reason += "; it is part of the newest version, so erase again"
        elif path not in held_by:
            reason += "; no version names it"
        return Trace("file", path, held_by.get(path, ()), reason)

    searched = set(known)
    if test is not None:
        data_files = {path for path in paths if path in held_by or _is_data(path, root)}
        searched |= data_files | current if is_thorough else data_files - current
    with thread_pool(opened.source.store.num_threads) as pool:
        return [found for found in pool.map(trace, sorted(searched)) if found is not None]


def _reason_in_file(filesystem: pafs.FileSystem, path: str, test: RowTest) -> str:
    """Return why a file holds a key, or may hold one. Return an empty text if it holds none."""
    try:
        with filesystem.open_input_file(path) as stream, pq.ParquetFile(stream) as file:
            # Its path may give a column, or the column may have had another name.
            stored = test.within(file.schema_arrow.names)
            if stored is None:
                return f"it may hold a key, because it has no column {test.columns[0]!r}"
            batches = file.iter_batches(columns=stored.columns)
            count = sum(stored.count(pa.Table.from_batches([batch])) for batch in batches)
    except FileNotFoundError:
        return ""
    except (*FILE_ERRORS, TypeError) as error:
        return f"it cannot be read ({type(error).__name__})"
    return f"it has {count_text(count, 'row')} with a key" if count else ""


def _byte_traces(
    opened: OpenedDataset,
    table: ChangeableTable,
    stored: Collection[str],
    seen: Collection[str],
    needles: Sequence[bytes],
) -> list[Trace]:
    """Return the other files of the table and of the index that have the bytes of a key."""
    catalog = opened.catalog
    index_files = _stored_files(catalog.filesystem, catalog.folder)
    traces: list[Trace] = []
    for path in sorted({*stored, *index_files}.difference(seen)):
        kind = "index" if path in index_files else "log"
        filesystem = catalog.filesystem if kind == "index" else opened.source.filesystem
        # A segment is traced as a whole.
        if posixpath.dirname(path) in seen:
            continue
        try:
            contents = _pieces(filesystem, path, max(map(len, needles)))
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
    keys = {_key_of(opened, path) for path in paths}
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


def _key_of(opened: OpenedDataset, path: str) -> str:
    root = f"{opened.source.root}/"
    has_paths_as_keys = opened.source.path_of("x") == "x"
    return path if has_paths_as_keys else path.removeprefix(root)
