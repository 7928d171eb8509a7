"""Which fragments and indices there are: numbered versions of a catalog, in a folder of its own.

    _zonebloom/orders/
      versions/00000000000000000007.json    one catalog, whole; created once, never changed
      versions/00000000000000000007-<random>.arrow     fragments of it and later ones: id, key,
                                            rows, identity; a version names one or more of these
      segments/<name>/bloomfilter.arrow     one table over a set of fragments
      segments/<name>/ranges.arrow          the least and greatest key of each of them
      segments/<name>/global.sbbf           one filter over the keys of all fragments
      segments/<name>/pages.arrow           where the pages of a set of files lie

Readers pin a version. One that is not what was written is passed over: the one before it is as
good as its fragments still are what they were.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import posixpath
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from zonebloom.base.notices import warn
from zonebloom.base.threads import REMOTE_THREADS
from zonebloom.base.version import NewerFormat
from zonebloom.catalog.folder import (
    NewFile,
    create_file,
    delete_segment,
    find_missing_file,
    list_folder,
    open_folder,
    read_file,
    read_whole_file,
    sync_files,
    wrapping_write_errors,
    write_atomically,
)
from zonebloom.catalog.model import Listing, Version
from zonebloom.catalog.names import SEGMENTS, VERSIONS
from zonebloom.catalog.version_log import VersionLog, encode_document, to_json
from zonebloom.catalog.versions import (
    FragmentsByKey,
    decode_listing,
    decode_version,
    encode_listing,
    encode_version,
    listing_references,
    plan_listings,
    require_plain_name,
)
from zonebloom.errors import (
    CatalogError,
    CommitConflict,
    CorruptIndex,
    EncryptedIndex,
    IndexNotUsedWarning,
)
from zonebloom.storage.encryption import (
    EncryptingStream,
    Encryption,
    FileCipher,
    encrypting_filesystem,
)
from zonebloom.storage.files import OutputStream, is_local
from zonebloom.storage.patterns import data_folder_of, shared_folder_of

_MAX_TRIES = 16
_VERSION_KEYS = frozenset({"version", "next_fragment_id", "fragments", "indices"})


# Folders of local catalogs of which this process has read a version.
_read_before: set[str] = set()


def _is_folder(filesystem: pafs.FileSystem, path: str) -> bool:
    return filesystem.get_file_info(path).type == pafs.FileType.Directory


class _NotRead(CorruptIndex):
    """A version of a newer format, or not to be read now: a reader may pass over it, but nothing
    may be written on top of what is older."""


class Catalog:
    """`files` is the file system with the contents of the index as they were before they were
    encrypted, `filesystem` as they are stored."""

    def __init__(
        self, filesystem: pafs.FileSystem, folder: str, encryption: Encryption | None = None
    ):
        self.filesystem = filesystem
        self.folder = folder
        self.encryption = encryption
        self._seal = None if encryption is None else FileCipher(folder, encryption)
        self.decrypted_filesystem: pafs.FileSystem = (
            filesystem if self._seal is None else encrypting_filesystem(filesystem, self._seal)
        )
        self._versions = posixpath.join(folder, VERSIONS)
        # The document read or written last, and what it says.
        self._last: tuple[bytes, Version] | None = None

    def __repr__(self) -> str:
        return f"<Catalog {self.folder}>"

    def __getstate__(self) -> dict[str, Any]:
        # Sent to workers, which write to it and look nothing up.
        return {**self.__dict__, "_last": None}

    @property
    def _log(self) -> VersionLog:
        # Made anew: one that was kept would keep the catalog until Python looks for garbage.
        return VersionLog(self.filesystem, self._versions, _VERSION_KEYS, self.create_local_file)

    def share_cache_of(self, other: Catalog) -> None:
        """Know what another catalog of the same folder has read."""
        self._last = other._last

    def path(self, segment: str, file: str) -> str:
        return posixpath.join(self.folder, SEGMENTS, segment, file)

    def open_output_stream(self, path: str) -> OutputStream:
        """Create a file of the index, and its folder. What is written is encrypted on the way if
        the index is. Whoever may read the data may read the file."""
        stream = self.create_raw_file(path)
        return stream if self._seal is None else EncryptingStream(stream, self._seal, path)

    def create_raw_file(self, path: str) -> OutputStream:
        """Create a file of the index, and its folder. The bytes are stored as they are written."""
        if is_local(self.filesystem):
            return self.create_local_file(path)
        self.filesystem.create_dir(posixpath.dirname(path), recursive=True)
        return self.filesystem.open_output_stream(path, compression=None)

    def create_local_file(self, path: str) -> NewFile:
        shared = shared_folder_of(self.folder)
        parent = None if shared is None else os.path.dirname(shared) or "."
        if shared is not None and parent is not None and os.path.isdir(parent):
            # Whoever may add a dataset to the parent may add its index.
            with open_folder(shared, base=parent, model_folder=parent):
                pass
        return create_file(path, self.folder, model_folder=self._model)

    @property
    def _model(self) -> str:
        """The local folder whose permissions the index takes: the data's or the index_dir's."""
        folder = self.folder.rstrip("/")
        data = data_folder_of(folder)
        if data is not None and os.path.isdir(data):
            return data
        while folder and not os.path.isdir(folder):
            folder = posixpath.dirname(folder)
        return folder or "."

    def read(self, path: str, num_bytes: int, checksum: str | None) -> pa.Buffer:
        return read_file(self.decrypted_filesystem, path, num_bytes, checksum)

    def write(self, path: str, data: Any) -> tuple[int, str]:
        with contextlib.closing(self.open_output_stream(path)) as stream:
            stream.write(data)
        return memoryview(data).nbytes, xxhash.xxh3_64_hexdigest(data)

    def latest(self, *, for_writing: bool = False) -> Version:
        """The newest version that can be read; a damaged one is reported and passed over."""
        # Before it is looked for: another thread may write the first one.
        was_read = self.was_read
        try:
            numbers = self._numbers()[::-1]
        except CatalogError as error:
            if for_writing:
                raise
            warn(IndexNotUsedWarning(f"{error}. The data is read instead"))
            return Version()
        if not numbers and was_read and not for_writing:
            self.forget()
            self._warn_if_gone()
        while numbers:
            number = numbers.pop(0)
            try:
                return self.version(number)
            except EncryptedIndex as error:
                if for_writing:
                    raise
                warn(IndexNotUsedWarning(f"{error}. The data is read instead"))
                return Version(locked_reason=str(error))
            except CorruptIndex as error:
                # A commit on top of what is older would hide what is newer.
                if for_writing and isinstance(error, _NotRead):
                    raise
                now_there = self._numbers()
                if number not in now_there:
                    # A vacuum deleted it since: there is a newer one.
                    numbers = now_there[::-1]
                    continue
                warn(IndexNotUsedWarning(str(error)))
        return Version()

    def newest_number(self) -> int:
        """Of the newest version, be it readable or not; 0 without any."""
        return max(self._numbers(), default=0)

    @property
    def was_read(self) -> bool:
        """Whether this process has read a version of it, as far as its place tells it."""
        is_known = is_local(self.filesystem) and os.path.abspath(self.folder) in _read_before
        return self._last is not None or is_known

    def forget(self) -> None:
        """Forget that this process has read the index, so that it is not missed any more."""
        self._last = None
        _read_before.discard(os.path.abspath(self.folder))

    def _warn_if_gone(self) -> None:
        """Warn of an index that was at a default place, if its data is still there."""
        data = data_folder_of(self.folder)
        if data is not None and _is_folder(self.filesystem, data):
            self.forget()
            warn(
                IndexNotUsedWarning(
                    f"the index in {self.folder} is gone since it was last read, as when Spark "
                    "overwrites a folder with the index in it; the data is read instead: build the "
                    "index again"
                )
            )

    def commit(self, change: Callable[[Version], Version]) -> Version:
        with wrapping_write_errors(self.folder):
            return self._commit(change)

    def _commit(self, change: Callable[[Version], Version]) -> Version:
        synced: set[str] = set()
        for _ in range(_MAX_TRIES):
            # A damaged version still has its number: ours comes after it.
            number = self.newest_number() + 1
            was_read = self._last is not None
            latest = self.latest(for_writing=True)
            if number == 1 and was_read:
                raise CommitConflict(
                    f"the index in {self.folder} was moved or deleted while this writer was at "
                    "work; try again"
                )
            version = replace(change(latest), number=number)
            if version.moved_to and version.moved_to == latest.moved_to:
                raise CommitConflict(
                    f"the index in {self.folder} is on its way to {version.moved_to}; if no move "
                    "is at work, finish it: zonebloom move-index"
                )
            before, named = self.referenced_files(latest), self.referenced_files(version)
            new = {path: size for path, size in named.items() if path not in before}
            self._require(new, latest.segments_to_delete)
            if is_local(self.filesystem):
                sync_files(new.keys() - synced)
                synced |= new.keys()
            try:
                made = self._create(version, latest)
            except FileNotFoundError:
                # A vacuum takes a draft for one that a crash left.
                continue
            if made is not None and self._is_in_use(made, change, new):
                return made
        raise CommitConflict(
            f"{self.folder}: other writers committed {_MAX_TRIES} times in between; try again"
        )

    def referenced_files(self, version: Version) -> dict[str, int]:
        """Paths and sizes of the files that a version names."""
        return {self.path(*place): size for place, size in version.file_sizes.items()}

    def _require(self, files: Mapping[str, int], doomed: Iterable[str]) -> None:
        """Refuse to name files that are gone, or that a vacuum is about to delete."""
        path = find_missing_file(self.decrypted_filesystem, files)
        for name in doomed:
            path = path or next((each for each in files if each.split("/")[-2] == name), None)
        if path is not None:
            raise CommitConflict(
                f"{path} is gone before it was committed: a vacuum() at that time deletes what no "
                "version names yet; build again, and vacuum with an older_than above what builds "
                "take"
            )

    def is_damaged(self, version: Version) -> bool:
        """Whether a version is the newest, and not all of its files are there."""
        is_newest = self.latest(for_writing=True).number == version.number
        return (
            is_newest
            and find_missing_file(self.decrypted_filesystem, self.referenced_files(version))
            is not None
        )

    def _is_in_use(
        self, version: Version, change: Callable[[Version], Version], new: Mapping[str, int]
    ) -> bool:
        """Whether a version just written is the newest, or below it.

        Its number may be free since others committed it and more, and a vacuum deleted theirs, as
        it then deletes this one.
        """
        if self.newest_number() <= version.number:
            return True
        newest = self.latest(for_writing=True)
        # A newer build of the same files has page maps of its own.
        tables = new.keys() - self.referenced_files(Version(page_maps=version.page_maps)).keys()
        if tables:
            is_in_it = tables <= self.referenced_files(newest).keys()
        else:
            try:
                is_in_it = replace(change(newest), number=newest.number) == newest
            except CommitConflict:
                # What it was to change has changed, by this version if by none later.
                is_in_it = True
        if not is_in_it:
            with contextlib.suppress(FileNotFoundError):
                self.filesystem.delete_file(self._log.path(version.number))
        return is_in_it

    def new_segment_prefix(self) -> str:
        return uuid.uuid4().hex[:16]

    def delete_orphan_segments(self, prefixes: Iterable[str]) -> Exception | None:
        """Delete segments of finished builds that the newest version does not name. Return an
        error if some could not be deleted."""
        starts = tuple(prefixes)
        base = posixpath.join(self.folder, SEGMENTS)
        try:
            infos = list_folder(self.filesystem, base, self.folder)
            infos = [info for info in infos if info.base_name.startswith(starts)]
            named = self.latest(for_writing=True).segment_names if infos else set()
        except (CatalogError, OSError) as error:
            return error
        failure = None
        for info in infos:
            try:
                if info.base_name not in named:
                    delete_segment(self.filesystem, info.path, self.folder)
            except (CatalogError, OSError) as error:
                failure = error
        # A first build that fails leaves no folder behind.
        self.remove_empty_folders()
        return failure

    def remove_empty_folders(self) -> None:
        """Remove the local folders of the index that hold nothing."""
        if not is_local(self.filesystem):
            return
        folder, shared = self.folder.rstrip("/"), shared_folder_of(self.folder)
        folders = [posixpath.join(folder, "segments"), folder]
        # Folders of partitions lie between.
        while shared is not None and folder != shared:
            folder = posixpath.dirname(folder)
            folders.append(folder)
        for path in folders:
            with contextlib.suppress(OSError):
                os.rmdir(path)

    def _numbers(self) -> list[int]:
        try:
            return self._log.numbers()
        except OSError as error:
            raise CatalogError(
                f"{self.folder} cannot be listed ({error}); make it readable, or give "
                "another index_dir"
            ) from None

    def _create(self, version: Version, before: Version) -> Version | None:
        """Write a version; as it is then, with its listings, or None where its number is taken."""
        listings, added = plan_listings(version, before)
        if added:
            data = encode_listing(added.values())
            # A name of its own: a version can only ever refer to the bytes it was made with.
            name = f"{version.number:020d}-{uuid.uuid4().hex[:16]}.arrow"
            path = posixpath.join(self._versions, name)
            if is_local(self.filesystem):
                stored = data if self._seal is None else self._seal.encrypt(path, data)
                write_atomically(path, stored, self.create_local_file, os.replace)
            else:
                self.write(path, data)
            listings += (Listing(name, xxhash.xxh3_64_hexdigest(data), tuple(added)),)
        made = replace(version, listings=listings)
        document = encode_document(self._sealed(made.number, encode_version(made)))
        if not self._log.create(made.number, document):
            return None
        self._last = document, made
        return made

    def _sealed(self, number: int, content: dict[str, Any]) -> dict[str, Any]:
        if self._seal is None:
            return content
        key_id = self._seal.encryption.key_id
        stored = self._seal.encrypt(self._log.path(number), to_json(content).encode())
        return {
            "sealed_by": key_id,
            "key_check": self._seal.encryption.key_check(key_id),
            "content": base64.b64encode(stored).decode(),
        }

    def _opened(self, number: int, content: Any) -> Any:
        """What a document says, or EncryptedIndex."""
        if not isinstance(content, dict) or "sealed_by" not in content:
            if self._seal is not None:
                raise ValueError("it is not encrypted; build the index again")
            return content
        key_id = str(content["sealed_by"])
        what = f"the index in {self.folder} is encrypted by key {key_id!r}"
        if self._seal is None:
            raise EncryptedIndex(f"{what}; open the dataset with encryption=zb.Encryption(...)")
        if self._seal.encryption.key_check(key_id) != content["key_check"]:
            raise EncryptedIndex(f"{what}, and the key given for that is another")
        stored = base64.b64decode(content["content"])
        return json.loads(self._seal.decrypt(self._log.path(number), stored))

    def version(self, number: int) -> Version:
        """One version; CorruptIndex when it is damaged, or gone."""
        path = self._log.path(number)
        try:
            document = self._log.document(number)
            last = self._last
            if last is not None and last[0] == document:
                self._note_read()
                return last[1]
            content = self._opened(number, self._log.content(document))
            if content["version"] != number:
                raise ValueError(f"it is version {content['version']!r}")
            version = decode_version(content, *self._listed(listing_references(content)))
            self._last = document, version
            self._note_read()
            return version
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
            pa.ArrowException,
        ) as error:
            # A file that is not there will not come back; anything else may pass.
            may_pass = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
            kind = _NotRead if may_pass or isinstance(error, NewerFormat) else CorruptIndex
            raise kind(f"{path} cannot be read ({error}); the version before it is used") from None

    def _listed(self, named: Sequence[Any]) -> tuple[list[Listing], list[FragmentsByKey]]:
        """The listings that a document names, and the fragments in each."""

        def read(each: Any) -> tuple[Listing, FragmentsByKey]:
            name, checksum = require_plain_name(each["file"]), each["checksum"]
            data = read_whole_file(self.decrypted_filesystem, posixpath.join(self._versions, name))
            if xxhash.xxh3_64_hexdigest(data) != checksum:
                raise ValueError("the checksum of its fragments does not match")
            part = decode_listing(data)
            return Listing(name, checksum, tuple(part)), part

        if len({each["file"] for each in named}) < len(named):
            raise ValueError("it names a listing twice")
        if is_local(self.filesystem):
            read_all = list(map(read, named))
        else:
            with ThreadPoolExecutor(REMOTE_THREADS) as pool:
                read_all = list(pool.map(read, named))
        return [listing for listing, _ in read_all], [part for _, part in read_all]

    def _note_read(self) -> None:
        if is_local(self.filesystem):
            _read_before.add(os.path.abspath(self.folder))
