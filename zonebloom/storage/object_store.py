"""Stores of obstore: as a file system of pyarrow, and for what those have no call for: ranges of
an object as it was, all objects of a folder with their tags, and a put that replaces nothing."""

from __future__ import annotations

import os
import pickle
import posixpath
import sys
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base.threads import REMOTE_THREADS
from zonebloom.errors import FragmentChanged, InvalidArgument, without_secrets
from zonebloom.storage.paths import is_uri, split_path

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore

_KINDS = ("S3Store", "GCSStore", "AzureStore", "HTTPStore", "LocalStore", "MemoryStore")
_LISTED = 1000
_ROOTS = ("bucket", "container_name")
# Options of pyarrow's S3 that are not carried over.
_NOT_CARRIED = ("role_arn", "external_id", "tls_ca_file_path")


def is_store(value: Any) -> bool:
    stores = sys.modules.get("obstore.store")
    return stores is not None and isinstance(value, tuple(getattr(stores, k) for k in _KINDS))


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """What obstore raises, as what pyarrow's file systems raise, without its dump of the cause."""
    from obstore import exceptions

    try:
        yield
    except exceptions.BaseError as error:
        said = without_secrets(str(error).partition("\n")[0])
        denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
        raise (PermissionError if isinstance(error, denied) else OSError)(said) from None


class StoreHandler(pafs.FileSystemHandler):
    """A store as a file system; a folder is there while an object is in it.

    Paths may begin with a root that keys do not have, as pyarrow's S3 has buckets there.
    """

    def __init__(self, store: ObjectStore, root: str = ""):
        self.store, self.root = store, root
        self._keeps_objects: bool | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoreHandler):
            return False
        return (self.root, self.store) == (other.root, other.store)

    def __hash__(self) -> int:
        return hash(repr(self.store))

    def key(self, path: str) -> str:
        return path.strip("/").removeprefix(self.root).strip("/")

    def get_type_name(self) -> str:
        return "obstore"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        # Each is a file, a folder or neither, which is asked at once.
        with ThreadPoolExecutor(REMOTE_THREADS) as pool:
            files, folders = pool.map(self._file, paths), pool.map(self._folder, paths)
            return [file or folder for file, folder in zip(files, folders, strict=True)]

    def _file(self, path: str) -> pafs.FileInfo | None:
        try:
            return _file_info(path, self.head(path)) if self.key(path) else None
        except FileNotFoundError:
            return None

    def _folder(self, path: str) -> pafs.FileInfo:
        key, is_one = self.key(path), None
        # Servers of plain files have no listing.
        passed_over = [OSError] if type(self.store).__name__ == "HTTPStore" else []
        with suppress(*passed_over), _as_os_errors():
            is_one = not key or next(iter(self.store.list(key, chunk_size=1)), None)
        return pafs.FileInfo(path, pafs.FileType.Directory if is_one else pafs.FileType.NotFound)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        base = selector.base_dir.rstrip("/")
        key = self.key(selector.base_dir)
        with _as_os_errors():
            if selector.recursive:
                found, below = list(self._objects(key)), set()
            else:
                listed = self.store.list_with_delimiter(key or None)
                found, below = listed["objects"], set(listed["common_prefixes"])
        if not (found or below or selector.allow_not_found or not key):
            raise FileNotFoundError(selector.base_dir)

        def named(key_below: str) -> str:
            return posixpath.join(base, key_below[len(key) :].strip("/"))

        for each in found if selector.recursive else ():
            folder = posixpath.dirname(each["path"])
            while len(folder) > len(key) and folder not in below:
                below.add(folder)
                folder = posixpath.dirname(folder)
        folders = [pafs.FileInfo(named(each), pafs.FileType.Directory) for each in sorted(below)]
        # Consoles make folders as empty objects.
        files = [_file_info(named(each["path"]), each) for each in found if each["path"] != key]
        return folders + files

    def _objects(self, key: str, after: str | None = None) -> Iterator[ObjectMeta]:
        for chunk in self.store.list(key or None, offset=after, chunk_size=_LISTED):
            yield from chunk

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(_Reader(self, path), mode="r")

    open_input_stream = open_input_file

    def open_output_stream(self, path: str, metadata: Any = None) -> pa.NativeFile:
        import obstore

        with _as_os_errors():
            return pa.PythonFile(_Writer(obstore.open_writer(self.store, self.key(path))), "w")

    def open_append_stream(self, path: str, metadata: Any = None) -> pa.NativeFile:
        raise NotImplementedError("objects of a store are not appended to")

    def create_dir(self, path: str, recursive: bool) -> None:
        """Nothing: folders of a store are parts of names."""

    def delete_file(self, path: str) -> None:
        with _as_os_errors():
            self.store.delete(self.key(path))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        with _as_os_errors():
            self.store.delete([each["path"] for each in self._objects(self.key(path))])

    delete_dir = delete_dir_contents

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("a store is not emptied")

    def move(self, src: str, dest: str) -> None:
        with _as_os_errors():
            self.store.rename(self.key(src), self.key(dest))

    def copy_file(self, src: str, dest: str) -> None:
        with _as_os_errors():
            self.store.copy(self.key(src), self.key(dest))

    # What file systems of pyarrow have no call for

    def head(self, path: str) -> ObjectMeta:
        """Size, time and tags of an object, or FileNotFoundError."""
        with _as_os_errors():
            return self.store.head(self.key(path))

    def read(self, path: str) -> pa.Buffer:
        """All of an object."""
        with _as_os_errors():
            return pa.py_buffer(self.store.get(self.key(path)).bytes())

    def list_heads(self, paths: Sequence[str]) -> dict[str, ObjectMeta]:
        """What a listing says of some objects; of those that it does not reach, nothing."""
        keys = {self.key(path): path for path in paths}
        first, last = min(keys), max(keys)
        most = _LISTED + 4 * len(keys)
        found: dict[str, ObjectMeta] = {}
        with _as_os_errors():
            # Listings begin after what they are given.
            for number, each in enumerate(self._objects(_common_folder(first, last), first[:-1])):
                if each["path"] in keys:
                    found[keys[each["path"]]] = each
                if len(found) == len(keys) or number >= most:
                    break
        return found

    def read_range(self, path: str, start: int, stop: int, tag: str = "") -> bytes:
        """Bytes of an object, as far as it has them; `FragmentChanged` where it is not the one of a
        tag any more."""
        from obstore import exceptions

        options: GetOptions = {"range": (start, stop)}
        # Weak tags match nothing; what the answer says is held against them.
        if tag and not tag.startswith("W/"):
            options["if_match"] = tag
        changed = f"{path} changed while it was read; read it again"
        with _as_os_errors():
            try:
                answer = self.store.get(self.key(path), options=options)
            except exceptions.PreconditionError:
                raise FragmentChanged(changed) from None
            if tag and answer.meta["e_tag"] not in (tag, None):
                raise FragmentChanged(changed)
            return answer.bytes().to_bytes()

    def put_if_absent(self, path: str, data: bytes) -> bool | None:
        """Put an object that is not there yet; whether it was not, or None where nothing was put
        since the store has no word for it."""
        from obstore import exceptions

        key = self.key(path)
        with _as_os_errors():
            try:
                self.store.put(key, data, mode="create", use_multipart=False)
            except exceptions.AlreadyExistsError:
                # It may be our own: a request that the store did not answer is sent again.
                return self.store.get(key).bytes().to_bytes() == data
            except (NotImplementedError, exceptions.NotSupportedError):
                return None
        return True

    def supports_put_if_absent(self, folder: str) -> bool:
        """Whether `put_new` leaves what is there as it is: some stores pass over the word."""
        if self._keeps_objects is None:
            probe = posixpath.join(folder, f".{uuid.uuid4().hex}")
            self.put_if_absent(probe, b"first")
            self._keeps_objects = self.put_if_absent(probe, b"second") is False
            with suppress(OSError):
                self.delete_file(probe)
        return self._keeps_objects


class _Reader:
    """An object as pyarrow reads a file of Python: every read is a request."""

    closed = False

    def __init__(self, handler: StoreHandler, path: str):
        meta = handler.head(path)
        self._size, self._at = meta["size"], 0
        self._read = partial(handler.read_range, path, tag=meta["e_tag"] or "")

    def read(self, num_bytes: int | None = -1) -> bytes:
        left = self._size - self._at
        stop = self._at + (left if num_bytes is None or num_bytes < 0 else min(num_bytes, left))
        data = self._read(self._at, stop) if stop > self._at else b""
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        self.closed = True


class _Writer:
    """An object as pyarrow writes a file of Python; it is there when it is closed."""

    closed = False

    def __init__(self, writer: Any):
        self._writer, self._at = writer, 0

    def write(self, data: Any) -> int:
        # The view of an Arrow buffer is one of signed bytes.
        view = memoryview(data).cast("B")
        with _as_os_errors():
            self._writer.write(view)
        self._at += len(view)
        return len(view)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        """Nothing: an object is written as a whole."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with _as_os_errors():
                self._writer.close()


def obstore_handler(filesystem: pafs.FileSystem | None) -> StoreHandler | None:
    """What a file system of pyarrow was made of, if it is a store of obstore."""
    handler = getattr(filesystem, "handler", None)
    return handler if isinstance(handler, StoreHandler) else None


def path_in(filesystem: pafs.FileSystem | None, path: str) -> str:
    """A path as a file system has it: of a URI what is below the root of a store.

    Raises
    ------
    InvalidArgument
        When a URI is of another place.
    """
    handler = obstore_handler(filesystem)
    # Those of fsspec take URIs of their own as they are.
    if not is_uri(path) or (handler is None and isinstance(filesystem, pafs.PyFileSystem)):
        return path
    if handler is None:
        scheme, below = split_path(path)
        if filesystem is not None and bool(scheme) == isinstance(filesystem, pafs.LocalFileSystem):
            raise InvalidArgument(
                f"{path} is not in the file system of the data, which is {filesystem.type_name}; "
                "give a path in it"
            )
        return below
    config = getattr(handler.store, "config", {})
    place, _, key = path.partition("://")[2].partition("/")
    prefix = str(getattr(handler.store, "prefix", None) or "").strip("/")
    # abfs://container@account/key
    is_there = {config.get(name) for name in _ROOTS} & {place, place.partition("@")[0]}
    if not is_there or not f"{key}/".startswith(f"{prefix}/" if prefix else ""):
        raise InvalidArgument(
            f"{path} is not in the store given as filesystem; give the path below its root"
        )
    return key[len(prefix) :].strip("/")


def object_reader(filesystem: pafs.FileSystem, *paths: str) -> StoreHandler | None:
    """What objects are read by: the store a file system was made of, or their bucket of pyarrow's
    S3 where obstore is installed, which asks less often and side by side."""
    if not isinstance(filesystem, pafs.S3FileSystem):
        return obstore_handler(filesystem)
    buckets = {path.strip("/").partition("/")[0] for path in paths}
    # obstore takes no name with a control character.
    if len(buckets) != 1 or not all(map(str.isprintable, paths)):
        return None
    return _bucket(pickle.dumps(filesystem), buckets.pop())


@lru_cache(64)
def _bucket(filesystem: bytes, name: str) -> StoreHandler | None:
    """A bucket as a pickled S3 file system has it open; None where obstore cannot have it so."""
    try:
        from obstore.store import S3Store
    except ImportError:
        return None
    # What it is pickled as: there is no other way to ask it.
    _, (options, *_) = pickle.loads(filesystem).__reduce__()
    proxy = options.get("proxy_options") or {}
    has_keys = options["access_key"] or options["anonymous"] or "AWS_ACCESS_KEY_ID" in os.environ
    if not has_keys or proxy.get("host") or any(options.get(name) for name in _NOT_CARRIED):
        return None
    config: dict[str, Any] = {
        "access_key_id": options["access_key"],
        "secret_access_key": options["secret_key"],
        "session_token": options["session_token"],
        "region": options["region"],
        "skip_signature": options["anonymous"],
        "virtual_hosted_style_request": options["force_virtual_addressing"],
    }
    at = options["endpoint_override"] or os.environ.get("AWS_ENDPOINT_URL", "")
    if at and "://" not in at:
        at = f"{options['scheme']}://{at}"
    config["endpoint"] = at
    given = {name: value for name, value in config.items() if value}
    store = S3Store(name, client_options={"allow_http": at.startswith("http://")}, **given)
    return StoreHandler(store, f"{name}/")


def create_object(filesystem: pafs.FileSystem, path: str, data: bytes) -> bool | None:
    """Put an object that is not there yet; whether it was not, or None where nothing was put since
    the store cannot tell.

    Stores take ``If-None-Match: *`` for it, or a word of their own; pyarrow has none.
    """
    handler = object_reader(filesystem, path)
    if handler is None:
        return None
    try:
        keeps_objects = handler.supports_put_if_absent(posixpath.dirname(path))
        return handler.put_if_absent(path, data) if keeps_objects else None
    except PermissionError:
        # The keys that pyarrow has may be others; if not, it says so too.
        return None


def _common_folder(first: str, last: str) -> str:
    return posixpath.commonpath([posixpath.dirname(first), posixpath.dirname(last)])


def _file_info(path: str, meta: ObjectMeta) -> pafs.FileInfo:
    return pafs.FileInfo(path, pafs.FileType.File, mtime=meta["last_modified"], size=meta["size"])
