"""Read and commit the versions of a catalog, which names the fragments and indices of a dataset.

    _zonebloom/orders/
      versions/00000000000000000007.json    a whole catalog; created once, never changed
      versions/00000000000000000007-<random>.arrow     a listing of fragments: id, key, rows,
                                            identity; a version names one or more listings
      segments/<name>/bloomfilter.arrow     one table over a set of fragments, named by its kind
      segments/<name>/ranges.arrow          the least and greatest key of each fragment
      segments/<name>/global.sbbf           one filter over the keys of all fragments
      segments/<name>/pages.arrow           where the pages of a set of files lie

Readers pin a version. They skip a damaged version and use the one before it, which is correct for
all fragments that have not changed since.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import posixpath
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from zonebloom.base.notices import warn
from zonebloom.base.threads import REMOTE_THREADS, thread_pool
from zonebloom.base.version import NewerFormat
from zonebloom.catalog.model import (
    SEGMENTS,
    VERSIONS,
    Listing,
    Version,
    is_segment_file_name,
    is_segment_name,
)
from zonebloom.catalog.version_log import VersionLog, encode_document, from_json, to_json
from zonebloom.catalog.versions import (
    decode_listing,
    decode_version,
    encode_listing,
    encode_version,
    plan_listings,
    require_plain_name,
)
from zonebloom.errors import (
    CatalogError,
    CommitConflict,
    CorruptIndex,
    EncryptedIndex,
    IndexNotUsedWarning,
    ZoneBloomError,
)
from zonebloom.storage.files import OutputStream
from zonebloom.storage.patterns import data_folder_of, shared_folder_of
from zonebloom.storage.store import Store, store_of

if TYPE_CHECKING:
    from zonebloom.storage.encryption import Encryption, FileCipher, IndexStore

_MAX_TRIES = 16


class MissingIndexFile(CorruptIndex):
    """An error for a file of the index that does not exist."""


def read_file(store: IndexStore, path: str, num_bytes: int, checksum: str) -> pa.Buffer:
    """Read a file of the index into memory and verify its size and checksum.

    The file is not mapped, so the verified bytes cannot change afterwards.
    """
    try:
        buffer = store.read_whole(path, num_bytes)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise CorruptIndex(
                f"{path} has more than the {num_bytes:,} bytes that were written; build the index "
                "again"
            ) from None
        kind = MissingIndexFile if isinstance(error, FileNotFoundError) else CorruptIndex
        raise kind(f"cannot open {path} ({error}); build the index again") from None
    if buffer.size != num_bytes:
        raise CorruptIndex(
            f"{path} has {buffer.size:,} bytes, {num_bytes:,} were written; build the index again"
        )
    if xxhash.xxh3_64_hexdigest(buffer) != checksum:
        raise CorruptIndex(f"the checksum of {path} does not match; build the index again")
    return buffer


def delete_segment(store: Store, path: str) -> None:
    """Delete the folder of a segment with its files.

    Raises
    ------
    OSError
        With ``errno.ENOTEMPTY`` if the folder contains anything else. In this case nothing is
        deleted, unless the other file appeared during the deletion.
    """
    infos = store.list_index_folder(path)
    if not is_segment_name(posixpath.basename(path)) or not all(map(is_own_file, infos)):
        raise OSError(errno.ENOTEMPTY, "there are files that do not belong to the index", path)
    store.delete_folder(path)


def is_own_file(info: pafs.FileInfo) -> bool:
    """Return whether an entry of a segment folder is a file that a build writes there."""
    return info.type == pafs.FileType.File and is_segment_file_name(info.base_name)


@contextlib.contextmanager
def wrapping_write_errors(folder: str) -> Iterator[None]:
    try:
        yield
    except ZoneBloomError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            step = "make room there, or give another index_dir"
        elif error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            raise CommitConflict(
                f"cannot write to {folder} ({error}); another process is changing it, such as "
                "vacuum(); try again when that is done"
            ) from None
        else:
            step = "make it writable, or give another index_dir"
        raise CatalogError(f"cannot write to {folder} ({error}); {step}") from None


class _UnreadableVersion(CorruptIndex):
    """An error for a version in a newer format, or one that cannot be read at the moment.

    Readers may skip such a version. Writers must not, because a commit on top of the version before
    would discard its changes.
    """


class Catalog:
    """The catalog of an index folder: reads versions and files, and commits new versions.

    Attributes
    ----------
    filesystem : pyarrow.fs.FileSystem
    store : Store
        The store of the file system, with the stored bytes, which are encrypted if the index is.
    decrypted_store : Store or DecryptingStore
        The same store with decrypted bytes.
    """

    def __init__(
        self, filesystem: pafs.FileSystem, folder: str, encryption: Encryption | None = None
    ):
        self.filesystem = filesystem
        self.store = store_of(filesystem)
        self.folder = folder
        self.encryption = encryption
        self._cipher: FileCipher | None = None
        self.decrypted_store: IndexStore = self.store
        if encryption is not None:
            from zonebloom.storage.encryption import DecryptingStore, FileCipher

            self._cipher = FileCipher(folder, encryption)
            self.decrypted_store = DecryptingStore(self.store, self._cipher)
        self._versions = posixpath.join(folder, VERSIONS)
        # The last document that was read or written, with the version it describes.
        self._last: tuple[bytes, Version] | None = None

    def __repr__(self) -> str:
        return f"<Catalog {self.folder}>"

    def __getstate__(self) -> dict[str, Any]:
        # Workers of a build only write segments, so do not send the cached version to them.
        return {**self.__dict__, "_last": None}

    @property
    def _log(self) -> VersionLog:
        # Do not store the log. It refers to a method of the catalog, and the reference cycle would
        # keep both in memory until Python collects garbage.
        return VersionLog(self.store, self._versions)

    def path(self, segment: str, file: str) -> str:
        return posixpath.join(self.folder, SEGMENTS, segment, file)

    def open_output_stream(self, path: str) -> OutputStream:
        """Create a file of the index, and its folder.

        The stream encrypts what is written if the index is encrypted.
        """
        stream = self.store.create_file(path)
        if self._cipher is None:
            return stream
        from zonebloom.storage.encryption import EncryptingStream

        return EncryptingStream(stream, self._cipher, path)

    def read(self, path: str, num_bytes: int, checksum: str) -> pa.Buffer:
        """Read and decrypt a file. Raise `CorruptIndex` if its size or XXH3-64 is wrong."""
        return read_file(self.decrypted_store, path, num_bytes, checksum)

    def write(self, path: str, data: Any) -> tuple[int, str]:
        """Write a file of the index. Return the size and the XXH3-64 of the data."""
        with contextlib.closing(self.open_output_stream(path)) as stream:
            stream.write(data)
        return memoryview(data).nbytes, xxhash.xxh3_64_hexdigest(data)

    def latest(self, *, for_writing: bool = False, numbers: Sequence[int] | None = None) -> Version:
        """Return the newest readable version. Warn of damaged versions and skip them.

        With `for_writing`, raise an error if a commit on the result could undo a newer version.
        `numbers` are those of the versions, if they were listed already.
        """
        # Read this before listing, because another thread may write the first version meanwhile.
        was_read = self.was_read
        try:
            numbers = list(self.numbers() if numbers is None else numbers)[::-1]
        except CatalogError as error:
            if for_writing:
                raise
            warn(IndexNotUsedWarning(f"{error}. The data is read instead"))
            return Version()
        if not numbers and was_read and not for_writing:
            self._warn_if_gone()
        while numbers:
            number = numbers.pop(0)
            if for_writing:
                # A version that builds on the one before an incomplete one would undo its change.
                self._log.wait_for_writer(number)
            try:
                return self.version(number)
            except EncryptedIndex as error:
                if for_writing:
                    raise
                warn(IndexNotUsedWarning(f"{error}. The data is read instead"))
                return Version(locked_reason=str(error))
            except CorruptIndex as error:
                # A commit on top of an older version would undo this one.
                if for_writing and isinstance(error, _UnreadableVersion):
                    raise
                current_numbers = self.numbers()
                if number not in current_numbers:
                    # A vacuum deleted the version since, so there is a newer one.
                    numbers = current_numbers[::-1]
                    continue
                warn(IndexNotUsedWarning(str(error)))
        return Version()

    def newest_number(self) -> int:
        """Return the number of the newest version, readable or not, or 0 if there is none."""
        return max(self.numbers(), default=0)

    @property
    def was_read(self) -> bool:
        """True if this object has read or written a version. The index may be gone by now."""
        return self._last is not None

    def _warn_if_gone(self) -> None:
        """Warn once that an index in a default folder was deleted, if its data still exists."""
        self._last = None
        data = data_folder_of(self.folder)
        if data is not None and self.store.is_folder(data):
            warn(
                IndexNotUsedWarning(
                    f"the index in {self.folder} is gone since it was last read, as when Spark "
                    "overwrites a folder with the index in it; the data is read instead: build the "
                    "index again"
                )
            )

    def commit(self, change: Callable[[Version], Version]) -> Version:
        """Commit `change(newest version)` as the next version, and return that.

        If another writer commits first, `change` is called again with its version.

        Raises
        ------
        CommitConflict
            If the change is impossible, or other writers are always faster.
        """
        with wrapping_write_errors(self.folder):
            return self._commit(change)

    def _commit(self, change: Callable[[Version], Version]) -> Version:
        synced_paths: set[str] = set()
        for _ in range(_MAX_TRIES):
            # Also count damaged versions, so that the new number is above theirs.
            numbers = self.numbers()
            number = max(numbers, default=0) + 1
            was_read = self.was_read
            latest = self.latest(for_writing=True, numbers=numbers)
            if number == 1 and was_read:
                raise CommitConflict(
                    f"the index in {self.folder} was moved or deleted while this process wrote to "
                    "it; try again"
                )
            version = replace(change(latest), number=number)
            before, named = self.referenced_files(latest), self.referenced_files(version)
            new = {path: size for path, size in named.items() if path not in before}
            self._require_committable(new, latest.segments_to_delete)
            self.store.sync(new.keys() - synced_paths)
            synced_paths |= new.keys()
            try:
                committed = self._create(version, latest)
            except FileNotFoundError:
                # A vacuum deleted the draft, because it looked like the remains of a crash.
                continue
            if committed is not None and self._is_in_use(committed, change, new):
                return committed
        raise CommitConflict(
            f"{self.folder}: other writers committed {_MAX_TRIES} times meanwhile; try again"
        )

    def referenced_files(self, version: Version) -> dict[str, int]:
        """Return the paths and sizes of the files that a version names."""
        return {
            self.path(segment, file): size for (segment, file), size in version.file_sizes.items()
        }

    def _require_committable(
        self, files: Mapping[str, int], segments_to_delete: Iterable[str]
    ) -> None:
        """Raise `CommitConflict` if a file is missing, or its segment is marked for deletion."""
        path = self._find_missing_file(files)
        for name in segments_to_delete:
            path = path or next((file for file in files if file.split("/")[-2] == name), None)
        if path is not None:
            raise CommitConflict(
                f"{path} is gone before it was committed, because a vacuum() deletes files that no "
                "version names yet; build again, and vacuum with an older_than that is longer than "
                "builds take"
            )

    def is_damaged(self, version: Version) -> bool:
        """Return whether a version is the newest, and some of its files are missing."""
        is_newest = self.latest(for_writing=True).number == version.number
        return is_newest and self._find_missing_file(self.referenced_files(version)) is not None

    def _find_missing_file(self, files: Mapping[str, int]) -> str | None:
        """Return the path of a file that is missing or has another size, or None."""
        if self._cipher is not None:
            from zonebloom.storage.encryption import encrypted_size

            files = {path: encrypted_size(size) for path, size in files.items()}
        identities = self.store.identities(list(files))
        for identity, (path, size) in zip(identities, files.items(), strict=True):
            if identity is None or identity.size != size:
                return path
        return None

    def _is_in_use(
        self, version: Version, change: Callable[[Version], Version], new: Mapping[str, int]
    ) -> bool:
        """Return whether a version just written is the newest, or its change is in the newest.

        Another writer may have used the number before, for a version that a vacuum then deleted.
        In that case newer versions exist without this change, and this method deletes the version
        just written.
        """
        if self.newest_number() <= version.number:
            return True
        newest = self.latest(for_writing=True)
        # Do not compare page maps: a newer build of the same files replaces them.
        tables = new.keys() - self.referenced_files(Version(page_maps=version.page_maps)).keys()
        if tables:
            has_change = tables <= self.referenced_files(newest).keys()
        else:
            try:
                has_change = replace(change(newest), number=newest.number) == newest
            except CommitConflict:
                # The change does not apply to the newest version, so it has been made already.
                has_change = True
        if not has_change:
            with contextlib.suppress(FileNotFoundError):
                self.filesystem.delete_file(self._log.path(version.number))
        return has_change

    def new_segment_prefix(self) -> str:
        return uuid.uuid4().hex[:16]

    def delete_orphan_segments(
        self, prefixes: Iterable[str], version: Version | None = None
    ) -> Exception | None:
        """Delete segments with these prefixes that a version does not name.

        The version is the one that the builds with these prefixes have committed last, or the
        newest one. The builds must have ended. Return the last error if some segments could not be
        deleted.
        """
        starts = tuple(prefixes)
        base = posixpath.join(self.folder, SEGMENTS)
        try:
            infos = self.store.list_index_folder(base)
            infos = [info for info in infos if info.base_name.startswith(starts)]
            if infos and version is None:
                version = self.latest(for_writing=True)
            named = set() if version is None else version.segment_names
        except (CatalogError, OSError) as error:
            return error
        failure = None
        for info in infos:
            try:
                if info.base_name not in named:
                    delete_segment(self.store, info.path)
            except (CatalogError, OSError) as error:
                failure = error
        # If a first build fails, it should leave no folder behind.
        self.remove_empty_folders()
        return failure

    def remove_empty_folders(self) -> None:
        folder, shared = self.folder.rstrip("/"), shared_folder_of(self.folder)
        folders = [posixpath.join(folder, "segments"), folder]
        # The folders of partitions lie between the shared folder and this one.
        while shared is not None and folder != shared:
            folder = posixpath.dirname(folder)
            folders.append(folder)
        self.store.remove_empty_folders(folders)

    def numbers(self) -> list[int]:
        """Return the numbers of the versions that exist, ascending."""
        try:
            return self._log.numbers()
        except OSError as error:
            raise CatalogError(
                f"{self.folder} cannot be listed ({error}); make it readable, or give "
                "another index_dir"
            ) from None

    def _create(self, version: Version, before: Version) -> Version | None:
        """Write a version. Return it with its listings, or None if its number is taken."""
        listings, added = plan_listings(version, before)
        if added:
            data = encode_listing(added.values())
            # Use a unique name, so that a version always refers to the bytes it was made with.
            name = f"{version.number:020d}-{uuid.uuid4().hex[:16]}.arrow"
            path = posixpath.join(self._versions, name)
            stored = data if self._cipher is None else self._cipher.encrypt(path, data)
            self.store.replace(path, stored)
            checksum = xxhash.xxh3_64_hexdigest(data)
            keys = pa.chunked_array([list(added)], pa.string())
            listings += (Listing(name, len(data), checksum, keys),)
        committed = replace(version, listings=listings)
        document = encode_document(
            self._encrypt_content(committed.number, encode_version(committed))
        )
        if not self._log.create(committed.number, document):
            return None
        self._last = document, committed
        return committed

    def _encrypt_content(self, number: int, content: dict[str, Any]) -> dict[str, Any]:
        if self._cipher is None:
            return content
        key_id = self._cipher.encryption.key_id
        stored = self._cipher.encrypt(self._log.path(number), to_json(content).encode())
        return {
            "sealed_by": key_id,
            "key_check": self._cipher.encryption.key_check(key_id),
            "content": base64.b64encode(stored).decode(),
        }

    def _decrypt_content(self, number: int, content: Any) -> Any:
        """Return the decrypted content of a document, or raise `EncryptedIndex`."""
        if not isinstance(content, dict) or "sealed_by" not in content:
            if self._cipher is not None:
                raise ValueError("it is not encrypted; build the index again")
            return content
        key_id = str(content["sealed_by"])
        text = f"the index in {self.folder} is encrypted by key {key_id!r}"
        if self._cipher is None:
            raise EncryptedIndex(f"{text}; open the dataset with encryption=zb.Encryption(...)")
        if self._cipher.encryption.key_check(key_id) != content["key_check"]:
            raise EncryptedIndex(f"{text}, and the given key of that name is not this key")
        stored = base64.b64decode(content["content"])
        return json.loads(self._cipher.decrypt(self._log.path(number), stored))

    def version(self, number: int) -> Version:
        """Return a version. Raise `CorruptIndex` if it is damaged or missing."""
        with self._wrapping_read_errors(number):
            document = self._log.document(number)
            last = self._last
            if last is not None and last[0] == document:
                return last[1]
            content = self._content(number, document)
            version = decode_version(content, *self._read_listings(content["fragments"]))
            self._last = document, version
            return version

    def version_without_fragments(self, number: int) -> Version:
        """Return a version with the names of its listings, which are not read.

        Raises
        ------
        MissingIndexFile
            If there is no such version.
        CorruptIndex
            If it is damaged.
        """
        with self._wrapping_read_errors(number):
            try:
                document = self._log.document(number)
            except FileNotFoundError as error:
                raise MissingIndexFile(f"{self._log.path(number)} is gone ({error})") from None
            content = self._content(number, document)
            no_keys = pa.chunked_array([], pa.string())
            listings = [
                Listing(*_listing_reference(reference), no_keys)
                for reference in content["fragments"]
            ]
            return decode_version(content, listings, parts=())

    def _content(self, number: int, document: bytes) -> Any:
        content = self._decrypt_content(number, self._log.content(document))
        if content["version"] != number:
            raise ValueError(f"it is version {content['version']!r}")
        return content

    @contextlib.contextmanager
    def _wrapping_read_errors(self, number: int) -> Iterator[None]:
        try:
            yield
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
            # A missing file does not come back, but other I/O errors may be temporary.
            is_temporary = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
            is_readable_later = is_temporary or isinstance(error, NewerFormat)
            error_class = _UnreadableVersion if is_readable_later else CorruptIndex
            raise error_class(
                f"{self._log.path(number)} cannot be read ({error}); the version before it is "
                "used, or the data if there is none"
            ) from None

    def _read_listings(self, references: Sequence[Any]) -> tuple[list[Listing], list[pa.Table]]:
        """Read the listings that a document names. Return them, and the fragments in each."""

        def read(reference: Any) -> tuple[Listing, pa.Table]:
            name, num_bytes, checksum = _listing_reference(reference)
            path = posixpath.join(self._versions, name)
            data = self.decrypted_store.read_whole(path, num_bytes)
            if xxhash.xxh3_64_hexdigest(data) != checksum:
                raise ValueError("the checksum of its fragments does not match")
            fragments = decode_listing(data)
            return Listing(name, num_bytes, checksum, fragments["key"]), fragments

        if len({reference["file"] for reference in references}) < len(references):
            raise ValueError("it names a listing twice")
        if not self.store.has_round_trips:
            listings = list(map(read, references))
        else:
            with thread_pool(REMOTE_THREADS) as pool:
                listings = list(pool.map(read, references))
        return [listing for listing, _ in listings], [fragments for _, fragments in listings]


def _listing_reference(reference: Any) -> tuple[str, int, str]:
    """Return the name, the size and the checksum of a listing that a document names."""
    num_bytes = from_json(int, reference["num_bytes"])
    return require_plain_name(reference["file"]), num_bytes, from_json(str, reference["checksum"])
