"""Access files wherever they are: one protocol, and a class for each kind of file system.

    Store          any file system of pyarrow, and those of fsspec, which pyarrow wraps
    LocalStore     the local disk, by calls of the operating system
    ObjectStore    buckets, by requests of obstore: pyarrow's S3 file systems, and obstore's stores

`store_of` chooses. Code outside of this folder asks a store for what it needs, and not which class
it is. PyArrow's own readers take the store's file system.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from itertools import zip_longest
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from zonebloom.base.threads import (
    REMOTE_THREADS,
    Item,
    Result,
    map_in_order,
    num_cores,
    thread_pool,
)
from zonebloom.errors import FragmentUnreadable, SourceError
from zonebloom.storage.files import (
    UNKNOWN_MTIME,
    FileIdentity,
    OutputStream,
    below_subtrees,
    lookup_error,
    open_regular_file,
    require_size,
)
from zonebloom.storage.local_files import (
    NewFile,
    create_exclusively,
    list_without_links,
    require_no_link,
    sync_files,
    write_atomically,
)
from zonebloom.storage.object_store import (
    StoreHandler,
    object_reader,
    obstore_handler,
    s3_options,
)
from zonebloom.storage.paths import full_path

_OBJECT_STORES = ("s3", "gcs", "abfs")
# The fields in which stores return a tag of an object's content or version.
_TAG_FIELDS = ("etag", "e_tag", "generation", "versionid", "version_id")


class Store:
    """A place of files. Paths are those of its file system, which PyArrow's own readers take.

    Attributes
    ----------
    filesystem : pyarrow.fs.FileSystem
    num_threads : int
        How many files are read at once.
    has_round_trips : bool
        Whether a read waits for the answer of a server. Reads are then sent together, and it pays
        to read more bytes than are needed.
    has_digests : bool
        Whether the digest of a file costs little.
    shows_unfinished_files : bool
        Whether others see a file while it is written.
    """

    has_round_trips = True
    has_digests = False
    shows_unfinished_files = False

    def __init__(self, filesystem: pafs.FileSystem):
        self.filesystem = filesystem

    @property
    def num_threads(self) -> int:
        return REMOTE_THREADS

    # Identities

    def identities(
        self, paths: Sequence[str], before: Iterable[FileIdentity | None] = ()
    ) -> list[FileIdentity | None]:
        """Return the current identity of each file, or None if it is gone. Bypass cached listings.

        An unchanged local file gets the object from `before`, because creating many new objects
        takes as long as looking at the files.
        """
        fsspec = _fsspec_of(self.filesystem)
        has_round_trips = getattr(fsspec, "async_impl", False) or _sends_tags(self.filesystem)
        if len(paths) < 2 or not has_round_trips:
            return list(map(self._identity, paths))
        with thread_pool(min(REMOTE_THREADS, len(paths))) as pool:
            return list(pool.map(self._identity, paths))

    def _identity(self, path: str) -> FileIdentity | None:
        fsspec = _fsspec_of(self.filesystem)
        try:
            if fsspec is not None:
                return _fsspec_identity(fsspec, below_subtrees(self.filesystem, path)[1])
            if _sends_tags(self.filesystem):
                with self.filesystem.open_input_file(path) as file:
                    tagged = _tagged_identity(file)
                if tagged is not None:
                    return tagged
            info = self.filesystem.get_file_info(path)
            if info.type == pafs.FileType.NotFound:
                return None
            _require_file(path, info.type == pafs.FileType.File)
            mtime_ns = UNKNOWN_MTIME if info.mtime_ns is None else info.mtime_ns
            return FileIdentity(info.size or 0, mtime_ns)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except FragmentUnreadable:
            raise
        except Exception as error:  # noqa: BLE001 - fsspec's implementations raise their own errors
            raise lookup_error(path, error) from None

    def identity_of_open_file(self, path: str, file: pa.NativeFile) -> FileIdentity | None:
        """Return the identity of an open file, from the response to its opening where possible."""
        tagged = _tagged_identity(file) if _sends_tags(self.filesystem) else None
        return tagged or self.identities([path])[0]

    # Folders

    def forget_listings(self) -> None:
        """Drop cached listings, so that the next ones show what is there now."""
        fsspec = _fsspec_of(self.filesystem)
        if fsspec is not None:
            fsspec.invalidate_cache()

    def list_folder(self, folder: str, *, recursive: bool) -> list[pafs.FileInfo]:
        """Return the files and folders below a folder, or none if it does not exist."""
        self.forget_listings()
        selector = pafs.FileSelector(folder, allow_not_found=True, recursive=recursive)
        for _ in range(2):
            # PyArrow looks at the folder twice, and fails if it is created in between. It also
            # lists folders of an index, in which a vacuum may delete files meanwhile.
            with contextlib.suppress(FileNotFoundError):
                return self.filesystem.get_file_info(selector)
        return self.filesystem.get_file_info(selector)

    def names_in(self, folder: str) -> list[str]:
        """Return the names of all entries of a folder, or none if it does not exist."""
        return [info.base_name for info in self.list_folder(folder, recursive=False)]

    def list_index_folder(self, folder: str) -> list[pafs.FileInfo]:
        """Return the entries of a folder of an index, or none if it does not exist.

        Symbolic links have the type Unknown. Raise `CatalogError` if the folder itself is one.
        """
        return self.list_folder(folder, recursive=False)

    def is_folder(self, path: str) -> bool:
        """Return whether a folder exists. Raise OSError if it cannot be looked at."""
        return self.filesystem.get_file_info(path).type == pafs.FileType.Directory

    # Reads and writes

    def map_requests(
        self, request: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[Result]:
        """Yield what ``request`` returns for items, in their order, as it is asked for.

        It reads small files, or writes files. Requests that wait for a server are sent together.
        Others run one after another: to read small local files, threads would take turns with
        Python's lock, which takes three times as long.
        """
        if not self.has_round_trips:
            yield from map(request, items)
            return
        with thread_pool(self.num_threads) as pool:
            yield from map_in_order(pool, request, items, 2 * self.num_threads)

    def read_whole(self, path: str, max_bytes: int) -> pa.Buffer:
        """Return the bytes of a file. An object takes one request.

        Raise OSError, before anything is read, if the file is larger than ``max_bytes``.
        """
        with self.filesystem.open_input_file(path) as file:
            require_size(path, file.size(), max_bytes)
            return file.read_buffer()

    def create_file(self, path: str) -> OutputStream:
        """Create a file of an index, and its folder."""
        self.create_folder(posixpath.dirname(path))
        return self.open_output(path)

    def open_output(self, path: str) -> pa.NativeFile:
        """Open a file to write it, in the place of one of this name if there is one."""
        return self.filesystem.open_output_stream(path, compression=None)

    def create_folder(self, path: str) -> None:
        """Create a folder, unless it exists. Some object stores get an empty object for it."""
        self.filesystem.create_dir(path, recursive=True)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write a whole file. Return False if there is one already.

        In a store without a conditional put, a file that another writer creates at the same time
        is overwritten.
        """
        is_absent = self.identities([path])[0] is None
        if is_absent:
            self.replace(path, data)
        return is_absent

    def replace(self, path: str, data: bytes) -> None:
        """Write a whole file, in place of one of this name if there is one."""
        with contextlib.closing(self.create_file(path)) as sink:
            sink.write(data)

    def sync(self, paths: Iterable[str]) -> None:
        """Sync files to disk, then the folders that contain them. Other stores need no sync."""

    def publish(self, hidden_path: str, path: str) -> None:
        """Give a complete file its name, in the place of the file that has it."""
        self.filesystem.move(hidden_path, path)

    def delete_checksums(self, path: str) -> None:
        """Delete the checksums of a file that Hadoop keeps beside local files, if there are any."""

    def locked(self, folder: str) -> AbstractContextManager[None]:
        """Keep others of this machine from locking a folder, a folder below it, or one above it."""
        return contextlib.nullcontext()

    def delete_file(self, path: str) -> None:
        """Delete a file of an index, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(path)

    def delete_folder(self, path: str) -> None:
        """Delete a folder of an index with its files."""
        self.filesystem.delete_dir(path)

    def remove_empty_folders(self, folders: Iterable[str]) -> None:
        """Remove those folders that are empty, one after another. Most stores have no folders."""

    # Paths

    def is_link(self, path: str) -> bool:
        return False

    def absolute_path(self, path: str) -> str:
        """Return a path that does not depend on the working directory."""
        return path

    def resolve(self, path: str) -> str:
        """Return the one path of a file or folder that several paths may name, such as links."""
        return path.rstrip("/")

    def is_mount(self, path: str) -> bool:
        return False

    def may_hold_index(self, folder: str) -> bool:
        """Return whether a folder may hold the index of a folder inside it."""
        # The first part of a path in a PyArrow object store is a bucket, which must not be created.
        return folder.strip("/") != "" or isinstance(self.filesystem, pafs.SubTreeFileSystem)


class LocalStore(Store):
    """The store of the local disk."""

    has_round_trips = False
    has_digests = True
    shows_unfinished_files = True

    def __init__(self) -> None:
        # Do not use a file system of the user's: it may be set to memory-map files.
        super().__init__(pafs.LocalFileSystem())

    def __reduce__(self) -> str:
        return "LOCAL"

    @property
    def num_threads(self) -> int:
        return num_cores()

    def identities(
        self, paths: Sequence[str], before: Iterable[FileIdentity | None] = ()
    ) -> list[FileIdentity | None]:
        found: list[FileIdentity | None] = [None] * len(paths)
        for number, (path, known) in enumerate(zip_longest(paths, before)):
            try:
                now = os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, ValueError) as error:
                raise lookup_error(path, error) from None
            fields = now.st_size, now.st_mtime_ns, now.st_ctime_ns, "", now.st_ino
            found[number] = known if fields == known else FileIdentity(*fields)
        return found

    def names_in(self, folder: str) -> list[str]:
        # PyArrow looks at every file after listing the folder, and leaves out those that are
        # deleted meanwhile. If a vacuum deletes the only version that was listed after a newer one
        # was committed, the folder would seem to have no version.
        try:
            return os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def list_index_folder(self, folder: str) -> list[pafs.FileInfo]:
        return list_without_links(folder)

    def read_whole(self, path: str, max_bytes: int) -> pa.Buffer:
        handle, status = open_regular_file(path)
        with open(handle, "rb", buffering=0) as file:
            require_size(path, status.st_size, max_bytes)
            buffer = pa.allocate_buffer(status.st_size)
            view, num_read = memoryview(buffer).cast("B"), 0
            while count := file.readinto(view[num_read:]):
                num_read += count
            return buffer if num_read == buffer.size else buffer.slice(0, num_read)

    def create_file(self, path: str) -> OutputStream:
        # A link in the place of a folder would lead elsewhere.
        for folder in (posixpath.dirname(posixpath.dirname(path)), posixpath.dirname(path)):
            require_no_link(folder)
        return NewFile(path)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        return create_exclusively(path, data)

    def replace(self, path: str, data: bytes) -> None:
        write_atomically(path, data, os.replace)

    def sync(self, paths: Iterable[str]) -> None:
        sync_files(paths)

    def publish(self, hidden_path: str, path: str) -> None:
        sync_files([hidden_path])
        os.replace(hidden_path, path)
        sync_files([path])

    def delete_checksums(self, path: str) -> None:
        folder, name = posixpath.split(path)
        # Such a name may be too long, or that of a folder.
        with contextlib.suppress(OSError):
            self.delete_file(posixpath.join(folder, f".{name}.crc"))

    @contextlib.contextmanager
    def locked(self, folder: str) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(ImportError):  # Windows
                import fcntl

                path, mode = self.resolve(folder), fcntl.LOCK_EX
                # All go from below to above, so they cannot wait for one another in a circle.
                while path:
                    try:
                        handle = os.open(path, os.O_RDONLY)
                        stack.callback(os.close, handle)
                        # The system gives the lock back when the process ends.
                        fcntl.flock(handle, mode)
                    except OSError as error:
                        # A folder above that cannot be read or locked cannot be changed either.
                        is_out_of_reach = isinstance(error, FileNotFoundError | PermissionError)
                        if mode == fcntl.LOCK_EX and not is_out_of_reach:
                            raise SourceError(
                                f"cannot lock {path}: {error}; move the folder to a file system "
                                "that locks folders"
                            ) from None
                    above = posixpath.dirname(path)
                    path, mode = "" if above == path else above, fcntl.LOCK_SH
            yield

    def delete_file(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            require_no_link(posixpath.dirname(path))
            os.unlink(path)

    def delete_folder(self, path: str) -> None:
        for info in list_without_links(path):
            self.delete_file(info.path)
        os.rmdir(path)

    def remove_empty_folders(self, folders: Iterable[str]) -> None:
        for folder in folders:
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def is_link(self, path: str) -> bool:
        return os.path.islink(path)

    def absolute_path(self, path: str) -> str:
        return full_path(path)

    def resolve(self, path: str) -> str:
        return full_path(os.path.realpath(path))

    def is_mount(self, path: str) -> bool:
        if os.name == "nt":
            return os.path.ismount(path)
        # `os.path.ismount` resolves the folder above, but links are resolved already.
        try:
            here, above = os.lstat(path), os.lstat(os.path.dirname(path))
        except OSError:
            return False
        return here.st_dev != above.st_dev or here.st_ino == above.st_ino

    def may_hold_index(self, folder: str) -> bool:
        # In a folder with the sticky bit, as /tmp has, another user could create an index that
        # hides rows, and the owner of the data could not delete it.
        try:
            return folder.strip("/") != "" and not os.stat(folder).st_mode & stat.S_ISVTX
        except OSError:
            return True


LOCAL = LocalStore()


class ObjectStore(Store):
    """The store of buckets that obstore reads.

    PyArrow does what obstore cannot: it reads S3 buckets whose options obstore lacks, or where
    obstore is not installed.
    """

    def _bucket(self, *paths: str) -> StoreHandler | None:
        return object_reader(self.filesystem, *paths)

    def identities(
        self, paths: Sequence[str], before: Iterable[FileIdentity | None] = ()
    ) -> list[FileIdentity | None]:
        """Return the identities of objects.

        A listing covers a thousand objects in one request, so it is tried first for many objects.
        """
        bucket = self._bucket(*paths)
        if bucket is None:
            return super().identities(paths)
        listed_identities: dict[str, FileIdentity] = {}
        if len(paths) > REMOTE_THREADS:
            # Plain HTTP servers cannot list.
            with contextlib.suppress(OSError):
                heads = bucket.list_heads(paths)
                listed_identities = {
                    path: _identity_from_metadata(meta) for path, meta in heads.items()
                }

        def identity(path: str) -> FileIdentity | None:
            try:
                return listed_identities.get(path) or _identity_from_metadata(bucket.head(path))
            except FileNotFoundError:
                return None
            except OSError as error:
                raise lookup_error(path, error) from None

        if len(listed_identities) == len(paths):
            return [listed_identities[path] for path in paths]
        with thread_pool(REMOTE_THREADS) as pool:
            return list(pool.map(identity, paths))

    def list_folder(self, folder: str, *, recursive: bool) -> list[pafs.FileInfo]:
        bucket = self._bucket(folder)
        if isinstance(self.filesystem, pafs.S3FileSystem) and bucket and bucket.key(folder):
            selector = pafs.FileSelector(folder, allow_not_found=True, recursive=recursive)
            # PyArrow lists names that obstore refuses, and says what fails. It also tells empty
            # objects that mark folders from files.
            with contextlib.suppress(OSError):
                infos = bucket.get_file_info_selector(selector)
                if all(info.size != 0 for info in infos):
                    return infos
        return super().list_folder(folder, recursive=recursive)

    def create_folder(self, path: str) -> None:
        """Do nothing: PyArrow would put an object for each folder of the path."""

    def is_folder(self, path: str) -> bool:
        bucket = self._bucket(path)
        if bucket is None:
            return super().is_folder(path)
        return bucket.folder_info(path).type == pafs.FileType.Directory

    def read_whole(self, path: str, max_bytes: int) -> pa.Buffer:
        bucket = self._bucket(path)
        if bucket is None:
            return super().read_whole(path, max_bytes)
        return bucket.read(path, max_bytes)

    def open_output(self, path: str) -> pa.NativeFile:
        """Open an object to write it. It takes one request unless it is large."""
        bucket = self._bucket(path)
        # Objects that obstore writes would lack these.
        has_metadata = isinstance(self.filesystem, pafs.S3FileSystem) and s3_options(
            self.filesystem
        ).get("default_metadata")
        if bucket is None or has_metadata:
            return super().open_output(path)
        return bucket.open_output_stream(path)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        is_put = None
        # PyArrow may have other keys. If it has the same, its put below fails too.
        with contextlib.suppress(PermissionError):
            bucket = self._bucket(path)
            if bucket is not None and bucket.supports_put_if_absent(posixpath.dirname(path)):
                is_put = bucket.put_if_absent(path, data)
        if is_put is not None:
            return is_put
        is_absent = self.identities([path])[0] is None
        if is_absent:
            with super().open_output(path) as sink:
                sink.write(data)
        return is_absent

    def may_hold_index(self, folder: str) -> bool:
        # The root of obstore's stores is a bucket.
        return obstore_handler(self.filesystem) is not None or super().may_hold_index(folder)


def store_of(filesystem: pafs.FileSystem) -> Store:
    """Return the store of a file system."""
    if isinstance(filesystem, pafs.LocalFileSystem):
        return LOCAL
    if isinstance(filesystem, pafs.S3FileSystem) or obstore_handler(filesystem) is not None:
        return ObjectStore(filesystem)
    return Store(filesystem)


def identities(filesystem: pafs.FileSystem, paths: Sequence[str]) -> list[FileIdentity | None]:
    """Return the identities of files of a file system; see `Store.identities`."""
    return store_of(filesystem).identities(paths)


def _fsspec_of(filesystem: pafs.FileSystem) -> Any:
    """Return the file system of fsspec that pyarrow wraps, or None."""
    handler = getattr(below_subtrees(filesystem)[0], "handler", None)
    return handler.fs if isinstance(handler, pafs.FSSpecHandler) else None


def _sends_tags(filesystem: pafs.FileSystem) -> bool:
    """Return whether a file system sends the tag of an object when it opens it."""
    return below_subtrees(filesystem)[0].type_name in _OBJECT_STORES


def _identity_from_metadata(meta: Any) -> FileIdentity:
    # Round to seconds: for a single object, stores return times less precisely than in listings.
    mtime_ns = int(meta["last_modified"].timestamp()) * 10**9
    return FileIdentity(meta["size"], mtime_ns, 0, _tag_of(meta))


def _tag_of(metadata: Any) -> str:
    return next((str(metadata[key]) for key in _TAG_FIELDS if metadata.get(key)), "")


def _tagged_identity(file: pa.NativeFile) -> FileIdentity | None:
    """Return the identity that an object store sent with an open object, or None without a tag."""
    metadata = {key.lower(): value.decode() for key, value in (file.metadata() or {}).items()}
    tag, mtime_ns = _tag_of(metadata), UNKNOWN_MTIME
    if not tag:
        return None
    with contextlib.suppress(KeyError, ValueError):
        mtime = datetime.fromisoformat(metadata["last-modified"])
        mtime_ns = int(mtime.timestamp()) * 10**9 + mtime.microsecond * 1000
    return FileIdentity(file.size(), mtime_ns, 0, tag)


def _fsspec_identity(filesystem: Any, path: str) -> FileIdentity:
    # The information may come from a cached listing of the folder.
    filesystem.invalidate_cache(path)
    info = filesystem.info(path)
    _require_file(path, info["type"] == "file")
    tag = _tag_of({key.lower(): value for key, value in info.items() if isinstance(key, str)})
    mtime_ns = None if tag else pafs.FileInfo(path, mtime=info.get("mtime")).mtime_ns
    if mtime_ns is not None:
        return FileIdentity(info["size"] or 0, mtime_ns)
    # Without a time or tag, use a digest of all fields: some field changes when the file does.
    all_fields = str(sorted(info.items(), key=str)).encode()
    tag = tag or xxhash.xxh3_64_hexdigest(all_fields)
    return FileIdentity(info["size"] or 0, UNKNOWN_MTIME, 0, tag)


def _require_file(path: str, is_file: bool) -> None:
    if not is_file:
        raise FragmentUnreadable(
            f"{path} is no longer a file; put the file back, or open the dataset again"
        )
