"""Which fragments and indices there are: numbered versions of a catalog, beside the data.

    _zonebloom/
      versions/00000000000000000007.json    one catalog, whole; created once, never changed
      versions/00000000000000000007-<checksum>.arrow   its fragments: id, key, rows, identity
      segments/<name>/bloomfilter.arrow     one table over a set of fragments
      segments/<name>/pages.arrow           where the pages of those fragments lie
      segments/<name>/ranges.arrow          the least and greatest key of each of them
      segments/<name>/global.sbbf           one filter over the keys of all fragments

A version is written under a name of its own and then linked to its number, which fails if
the number is taken: of two writers one starts again on top of the other. A crash leaves the
last version whole. Readers pin a version. Nothing read from here is trusted: sizes, ids,
names and checksums are checked before use. A version that is not what was written is passed
over: the one before it is as good as its fragments still are what they were.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from zonebloom.catalog.document import FORMAT_VERSION, from_document, to_document
from zonebloom.catalog.durable import missing, not_written, sync, sync_files
from zonebloom.catalog.model import (
    KEY_RANGES_FILE,
    SLICED_FILE,
    TABLE_FILE,
    GlobalFilterEntry,
    IndexEntry,
    KnownFragment,
    Segment,
    Version,
    ZoneParameters,
)
from zonebloom.catalog.permissions import make_file, make_folder
from zonebloom.errors import (
    CatalogError,
    CommitConflict,
    CorruptIndex,
    IndexNotUsedWarning,
    ZoneBloomError,
)
from zonebloom.storage.files import FileIdentity, is_local
from zonebloom.storage.parquet.pagemap import FILE_NAME as PAGE_MAP

FOLDER = "_zonebloom"
GLOBAL_FILTER = "global.sbbf"

_VERSION_NAME = re.compile(r"(\d{20})\.json")
_SEGMENT_NAME = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z_.-]*")
# Of a segment that is a page map alone, what is in another by now.
MERGED_FILES = (TABLE_FILE, SLICED_FILE, KEY_RANGES_FILE)
_FILE_NAMES = {"table": TABLE_FILE, "sliced": SLICED_FILE, "pages": TABLE_FILE}
_MAX_TRIES = 16
# Half of what row addresses have room for: files not yet indexed take ids above.
_MAX_FRAGMENT_ID = 1 << 30
_VERSION_KEYS = frozenset({"version", "next_fragment_id", "fragments", "indices"})
_FRAGMENT_FIELDS = pa.schema(
    [
        pa.field("fragment_id", pa.uint64(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("mtime_ns", pa.int64(), nullable=False),
        pa.field("num_rows", pa.int64(), nullable=False),
    ]
)
# Not in listings of the first versions: there mtime and size alone tell files apart.
_IDENTITY_FIELDS = pa.schema(
    [
        pa.field("ctime_ns", pa.int64(), nullable=False),
        pa.field("tag", pa.string(), nullable=False),
        pa.field("inode", pa.uint64(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
        pa.field("seen_at", pa.int64(), nullable=False),
    ]
)
_ALL_FIELDS = pa.schema([*_FRAGMENT_FIELDS, *_IDENTITY_FIELDS])


class _NotRead(CorruptIndex):
    """A version that is not known to be damaged: of a newer format, or not to be read now.

    A reader may pass over it. Nothing may be written on top of what is older.
    """


class Catalog:
    """The index folder of one dataset."""

    def __init__(self, filesystem: pafs.FileSystem, folder: str):
        self.filesystem = filesystem
        self.folder = folder

    def segment_path(self, name: str, layout: str = "table") -> str:
        """Path of a segment's table."""
        return posixpath.join(self.folder, "segments", name, _FILE_NAMES[layout])

    def page_map_path(self, name: str) -> str:
        """Path of a segment's page map."""
        return posixpath.join(self.folder, "segments", name, PAGE_MAP)

    def ranges_path(self, name: str) -> str:
        """Path of a segment's key ranges."""
        return posixpath.join(self.folder, "segments", name, KEY_RANGES_FILE)

    def global_filter_path(self, name: str) -> str:
        """Path of a filter over all keys, or of what a task found for it."""
        return posixpath.join(self.folder, "segments", name, GLOBAL_FILTER)

    def prepare(self, path: str) -> None:
        """Make the folder of a file about to be written, and who may read the data may read it."""
        folder = posixpath.dirname(path)
        if not is_local(self.filesystem):
            self.filesystem.create_dir(folder, recursive=True)
            return
        make_folder(folder, self._model)
        make_file(path, self._model)

    @property
    def _model(self) -> str:
        """The local folder whose permissions are those of the index.

        That of the data, or of an index apart from it the index folder itself.
        """
        folder = self.folder.rstrip("/")
        if posixpath.basename(folder) == FOLDER:
            folder = posixpath.dirname(folder)
        while folder and not os.path.isdir(folder):
            folder = posixpath.dirname(folder)
        return folder or "."

    def write(self, path: str, data: Any) -> tuple[int, str]:
        """Write a file of a segment; its size and checksum."""
        self.prepare(path)
        with self.filesystem.open_output_stream(path) as sink:
            sink.write(data)
        return memoryview(data).nbytes, xxhash.xxh3_64_hexdigest(data)

    def latest(self) -> Version:
        """The newest version that can be read; a damaged one is reported and passed over."""
        return self._latest(for_writing=False)

    def latest_for_writing(self) -> Version:
        """The same, for what a change is based on."""
        return self._latest(for_writing=True)

    def _latest(self, for_writing: bool) -> Version:
        try:
            numbers = sorted(self._numbers(), reverse=True)
        except CatalogError as error:
            if for_writing:
                raise
            warnings.warn(f"{error}. The data is read instead", IndexNotUsedWarning, stacklevel=4)
            return Version()
        while numbers:
            number = numbers.pop(0)
            try:
                return self._read(number)
            except CorruptIndex as error:
                # A commit on top of what is older would hide what is newer.
                if for_writing and isinstance(error, _NotRead):
                    raise
                now_there = self._numbers()
                if number not in now_there:
                    # A vacuum deleted it since: there is a newer one.
                    numbers = sorted(now_there, reverse=True)
                    continue
                warnings.warn(str(error), IndexNotUsedWarning, stacklevel=4)
        return Version()

    def commit(self, change: Callable[[Version], Version]) -> Version:
        """Put a change on top of the newest version."""
        try:
            return self._commit(change)
        except OSError as error:
            if isinstance(error, ZoneBloomError):
                raise
            raise not_written(self.folder, error) from None

    def _commit(self, change: Callable[[Version], Version]) -> Version:
        synced: set[str] = set()
        for _ in range(_MAX_TRIES):
            # A damaged version still has its number: ours comes after it.
            number = max(self._numbers(), default=0) + 1
            latest = self.latest_for_writing()
            version = replace(change(latest), number=number)
            before = self._files(latest.indices.values())
            named = self._files(version.indices.values())
            new = {path: size for path, size in named.items() if path not in before}
            self._require(new)
            if is_local(self.filesystem):
                sync_files(new.keys() - synced)
                synced |= new.keys()
            try:
                is_made = self._create(version)
            except FileNotFoundError:
                # A vacuum takes a draft for one that a crash left.
                continue
            if is_made:
                try:
                    self._require(new)
                except CommitConflict:
                    self._take_back(version, latest)
                    raise
                if self._is_in_use(version, change, new):
                    return version
        raise CommitConflict(
            f"{self.folder}: other writers committed {_MAX_TRIES} times in between; try again"
        )

    def _files(self, entries: Iterable[IndexEntry]) -> dict[str, int]:
        """The files of segments that indices name, with their sizes."""
        found = {}
        for entry in entries:
            for each in entry.segments:
                if each.layout != "pages":
                    found[self.segment_path(each.name, each.layout)] = each.num_bytes
                if each.page_map_bytes:
                    found[self.page_map_path(each.name)] = each.page_map_bytes
                if each.ranges_bytes:
                    found[self.ranges_path(each.name)] = each.ranges_bytes
            over_all = entry.global_filter
            if over_all is not None:
                found[self.global_filter_path(over_all.segment)] = over_all.num_bytes
        return found

    def _require(self, files: Mapping[str, int]) -> None:
        path = missing(self.filesystem, files)
        if path is not None:
            raise CommitConflict(
                f"{path} is gone before it was committed: a vacuum() at that time deletes what no "
                "version names yet; build again, and vacuum with an older_than above what builds "
                "take"
            )

    def _is_in_use(
        self, version: Version, change: Callable[[Version], Version], new: Mapping[str, int]
    ) -> bool:
        """Whether a version just written is the newest, or the newest was made on top of it.

        Its number was free; that may be so because others committed it and more, and a vacuum
        deleted theirs. It is deleted then, as theirs was.
        """
        if max(self._numbers(), default=0) <= version.number:
            return True
        newest = self.latest_for_writing()
        if new:
            is_in_it = new.items() <= self._files(newest.indices.values()).items()
        else:
            try:
                is_in_it = replace(change(newest), number=newest.number) == newest
            except CommitConflict:
                # What it was to change has changed, by this version if by none later.
                is_in_it = True
        if not is_in_it:
            with contextlib.suppress(FileNotFoundError):
                self.filesystem.delete_file(self._path(version.number, "json"))
        return is_in_it

    def _take_back(self, version: Version, before: Version) -> None:
        """Commit what was before a version whose files are gone, in so far as its files are there.

        The version cannot be deleted: a vacuum that has seen it may have deleted the one before.
        """

        def change(newest: Version) -> Version:
            indices = {}
            for name, entry in newest.indices.items():
                old = before.indices.get(name)
                if entry == old or entry != version.indices.get(name):
                    indices[name] = entry
                elif old is not None and missing(self.filesystem, self._files([old])) is None:
                    indices[name] = old
            return replace(newest, indices=indices)

        # The conflict is what the user is to see: readers of the version scan the data meanwhile.
        with contextlib.suppress(OSError, CatalogError):
            self._commit(change)

    def new_segment_prefix(self) -> str:
        """A prefix of segment names no other build uses."""
        return uuid.uuid4().hex[:16]

    def delete_segments(self, prefix: str, keep: Iterable[str] = ()) -> None:
        """Delete the segments of a build that are not to be kept, and folders left empty."""
        kept = set(keep)
        base = posixpath.join(self.folder, "segments")
        for info in self.filesystem.get_file_info(pafs.FileSelector(base, allow_not_found=True)):
            if info.base_name.startswith(prefix) and info.base_name not in kept:
                self.filesystem.delete_dir(info.path)
        if is_local(self.filesystem):
            for folder in (base, self.folder):
                try:
                    os.rmdir(folder)
                except OSError:
                    break

    def delete_tables(self, names: Iterable[str]) -> None:
        """Delete what is not used any more of segments whose page map alone is."""
        paths = [
            path for name in names for path in (self.segment_path(name), self.ranges_path(name))
        ]
        for path in paths:
            if self.filesystem.get_file_info(path).type == pafs.FileType.File:
                self.filesystem.delete_file(path)

    def _numbers(self) -> list[int]:
        selector = pafs.FileSelector(posixpath.join(self.folder, "versions"), allow_not_found=True)
        for last in (False, False, True):
            try:
                found = self.filesystem.get_file_info(selector)
                break
            except OSError as error:
                # pyarrow looks twice: a folder another writer made in between is no error.
                if last or not isinstance(error, FileNotFoundError):
                    raise CatalogError(
                        f"{self.folder} cannot be listed ({error}); make it readable, or give "
                        "another index_dir"
                    ) from None
        names = (_VERSION_NAME.fullmatch(info.base_name) for info in found)
        return [int(name[1]) for name in names if name]

    def _path(self, number: int, suffix: str) -> str:
        return posixpath.join(self.folder, "versions", f"{number:020d}.{suffix}")

    def _create(self, version: Version) -> bool:
        """Write a version unless its number is taken."""
        folder = posixpath.join(self.folder, "versions")
        fragments = _fragments_to_bytes(version.fragments.values())
        # Named by content: a version can only ever refer to the bytes it was made with.
        listing = f"{version.number:020d}-{xxhash.xxh3_64_hexdigest(fragments)}.arrow"
        document = _to_json(version, listing, fragments)
        self._write(posixpath.join(folder, listing), fragments)
        path = self._path(version.number, "json")
        if not is_local(self.filesystem):
            if self.filesystem.get_file_info(path).type != pafs.FileType.NotFound:
                return False
            self._write(path, document)
            return True
        draft = posixpath.join(folder, f".{uuid.uuid4().hex}")
        self._write(draft, document)
        try:
            os.link(draft, path)
        except BaseException as error:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)
            if isinstance(error, FileExistsError):
                return False
            raise
        # From here on the version is there, whatever fails.
        with contextlib.suppress(OSError):
            os.unlink(draft)
        with contextlib.suppress(OSError):
            sync(folder)
        return True

    def _write(self, path: str, data: bytes) -> None:
        """Write a file so that nobody sees a part of it."""
        if not is_local(self.filesystem):
            self.write(path, data)
            return
        draft = posixpath.join(posixpath.dirname(path), f".{uuid.uuid4().hex}")
        try:
            self.prepare(draft)
            with open(draft, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            if os.path.exists(draft):
                os.unlink(draft)
            raise

    def _read(self, number: int) -> Version:
        path = self._path(number, "json")
        try:
            with self.filesystem.open_input_file(path) as file:
                data = file.read()
            written_as, document = from_document(data, _VERSION_KEYS)
            if written_as > FORMAT_VERSION:
                raise _NotRead(
                    f"{path} was written by a newer zonebloom (format {written_as}); update this "
                    "one; the version before it is used"
                )
            if document["version"] != number:
                raise ValueError(f"it is version {document['version']!r}")
            listing = document["fragments"]
            name = _plain_name(listing["file"])
            with self.filesystem.open_input_file(
                posixpath.join(self.folder, "versions", name)
            ) as file:
                fragments = file.read()
            if xxhash.xxh3_64_hexdigest(fragments) != listing["checksum"]:
                raise ValueError("the checksum of its fragments does not match")
            return _from_json(number, document, _fragments_from_bytes(fragments))
        except OSError as error:
            # A file that is not there will not come back; anything else may pass.
            kind = CorruptIndex if isinstance(error, FileNotFoundError) else _NotRead
            raise kind(f"{path} cannot be read ({error}); the version before it is used") from None
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
            pa.ArrowException,
        ) as error:
            raise CorruptIndex(
                f"{path} cannot be read ({error}); the version before it is used"
            ) from None


def _plain_name(name: Any) -> str:
    if not isinstance(name, str) or not _SEGMENT_NAME.fullmatch(name) or ".." in name:
        raise ValueError(f"{name!r} is not a file name of ours")
    return name


def _layout(layout: Any) -> str:
    if layout not in _FILE_NAMES:
        raise ValueError(f"there is no layout {layout!r}")
    return layout


def _global_filter(entry: Any) -> GlobalFilterEntry | None:
    if entry is None:
        return None
    return GlobalFilterEntry(
        _plain_name(entry["segment"]),
        int(entry["num_bytes"]),
        str(entry["checksum"]),
        tuple(int(i) for i in entry["fragment_ids"]),
        int(entry["num_items"]),
        float(entry["probability"]),
    )


def now() -> str:
    """The time of a commit, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _to_json(version: Version, listing: str, fragments: bytes) -> bytes:
    content = {
        "version": version.number,
        "next_fragment_id": version.next_fragment_id,
        "fragments": {"file": listing, "checksum": xxhash.xxh3_64_hexdigest(fragments)},
        "indices": [asdict(entry) for entry in version.indices.values()],
    }
    return to_document(content)


def _from_json(number: int, document: Any, fragments: dict[str, KnownFragment]) -> Version:
    known = {fragment.fragment_id for fragment in fragments.values()}
    next_id = int(document["next_fragment_id"])
    if not 0 <= next_id <= _MAX_FRAGMENT_ID:
        raise ValueError(f"next_fragment_id is {next_id}")
    if any(fragment_id >= next_id for fragment_id in known):
        raise ValueError("a fragment's id is not below next_fragment_id")
    indices = {}
    for entry in document["indices"]:
        if not isinstance(entry["name"], str):
            raise ValueError(f"{entry['name']!r} is not the name of an index")
        segments = tuple(
            Segment(
                _plain_name(each["name"]),
                int(each["num_bytes"]),
                str(each["checksum"]),
                int(each["num_zones"]),
                tuple(int(i) for i in each["fragment_ids"]),
                int(each["page_map_bytes"]),
                str(each["page_map_checksum"]),
                _layout(each.get("layout", "table")),
                int(each.get("ranges_bytes", 0)),
                str(each.get("ranges_checksum", "")),
            )
            for each in entry["segments"]
        )
        over_all = _global_filter(entry.get("global_filter"))
        covered = [segment.fragment_ids for segment in segments]
        covered += [over_all.fragment_ids] if over_all is not None else []
        if any(not 0 <= i < next_id for ids in covered for i in ids):
            raise ValueError("a segment covers a fragment whose id was never given")
        indices[entry["name"]] = IndexEntry(
            entry["name"],
            tuple(str(part) for part in entry["column"]),
            str(entry["domain"]),
            ZoneParameters(**entry["parameters"]),
            segments,
            str(entry["created_at"]),
            over_all,
        )
    return Version(number, next_id, fragments, indices)


def _fragments_to_bytes(fragments: Iterable[KnownFragment]) -> bytes:
    rows = [
        (
            *(f.fragment_id, f.key, f.identity.size, f.identity.mtime_ns, f.num_rows),
            *(f.identity.ctime_ns, f.identity.tag, f.identity.inode, f.digest, f.seen_at),
        )
        for f in fragments
    ]
    columns = list(zip(*rows, strict=True)) or [()] * len(_ALL_FIELDS)
    batch = pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(columns, _ALL_FIELDS, strict=True)],
        schema=_ALL_FIELDS,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _ALL_FIELDS) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _fragments_from_bytes(data: bytes) -> dict[str, KnownFragment]:
    table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    table.validate(full=True)
    if table.schema not in (_FRAGMENT_FIELDS, _ALL_FIELDS):
        raise ValueError("its fragments have other columns")
    columns = [column.to_pylist() for column in table.columns]
    found = {}
    for fragment_id, key, size, mtime_ns, num_rows, *more in zip(*columns, strict=True):
        if key in found or not 0 <= num_rows <= 1 << 32:
            raise ValueError(f"its entry for fragment {key!r} does not hold")
        ctime_ns, tag, inode, digest, seen_at = more or (0, "", 0, "", 0)
        identity = FileIdentity(size, mtime_ns, ctime_ns, tag, inode)
        found[key] = KnownFragment(fragment_id, key, identity, num_rows, digest, seen_at)
    if len({fragment.fragment_id for fragment in found.values()}) != len(found):
        raise ValueError("two fragments share an id")
    return found
