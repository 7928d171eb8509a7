"""Use obstore's stores as pyarrow file systems, and for requests that pyarrow cannot make.

These are reads of a range of one version of an object, listings with tags, and a put that never
replaces an object.
"""

from __future__ import annotations

import os
import posixpath
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base.threads import REMOTE_THREADS, thread_pool
from zonebloom.errors import FragmentChanged, InvalidArgument, without_secrets
from zonebloom.storage.files import require_size
from zonebloom.storage.paths import is_uri, split_path

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore

_STORE_CLASSES = ("S3Store", "GCSStore", "AzureStore", "HTTPStore", "LocalStore", "MemoryStore")
_OBJECTS_PER_PAGE = 1000
_ROOT_OPTIONS = ("bucket", "container_name")
# Options of pyarrow's S3 file system that obstore has no counterpart for.
_UNSUPPORTED_OPTIONS = ("role_arn", "external_id", "tls_ca_file_path")
# The other options that matter for reading, by their names in obstore.
_OBSTORE_NAMES = {
    "access_key_id": "access_key",
    "secret_access_key": "secret_key",
    "session_token": "session_token",
    "region": "region",
    "skip_signature": "anonymous",
    "virtual_hosted_style_request": "force_virtual_addressing",
}
# Variables of the environment with the credentials, by their names in obstore.
_VARIABLES = {
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}


def is_store(value: Any) -> bool:
    stores = sys.modules.get("obstore.store")
    return stores is not None and isinstance(
        value, tuple(getattr(stores, k) for k in _STORE_CLASSES)
    )


def as_arrow_filesystem(filesystem: Any) -> pafs.FileSystem | None:
    if filesystem is None:
        return None
    from zonebloom.storage.fsspec_files import FsspecHandler, with_os_errors

    if isinstance(filesystem, pafs.FileSystem):
        return with_os_errors(filesystem)
    if is_store(filesystem):
        return pafs.PyFileSystem(StoreHandler(filesystem))
    if not hasattr(filesystem, "open") or not hasattr(filesystem, "info"):
        raise InvalidArgument(
            f"filesystem is a {type(filesystem).__name__}; give a file system of pyarrow.fs or "
            "fsspec, or a store of obstore"
        )
    return pafs.PyFileSystem(FsspecHandler(filesystem))


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Turn obstore's errors into OSError, as pyarrow raises, without their dump of the cause."""
    from obstore import exceptions

    try:
        yield
    except exceptions.BaseError as error:
        message = without_secrets(str(error).partition("\n")[0])
        denials = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
        raise (PermissionError if isinstance(error, denials) else OSError)(message) from None


class StoreHandler(pafs.FileSystemHandler):
    """A pyarrow file system over an obstore store. A folder exists while it contains an object.

    Paths may begin with a root that is not part of the keys, such as the bucket in pyarrow's S3
    paths.
    """

    def __init__(self, store: ObjectStore, root: str = ""):
        self.store, self.root = store, root
        self._has_put_if_absent: bool | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoreHandler):
            return False
        return (self.root, self.store) == (other.root, other.store)

    def __hash__(self) -> int:
        return hash(repr(self.store))

    def key(self, path: str) -> str:
        return f"{path.strip('/')}/".removeprefix(self.root).strip("/")

    def get_type_name(self) -> str:
        return "obstore"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        # Ask for each path both as a file and as a folder, all at once.
        with thread_pool(REMOTE_THREADS) as pool:
            files, folders = (
                pool.map(self._file_or_none, paths),
                pool.map(self.folder_info, paths),
            )
            return [file or folder for file, folder in zip(files, folders, strict=True)]

    def _file_or_none(self, path: str) -> pafs.FileInfo | None:
        try:
            return _file_info(path, self.head(path)) if self.key(path) else None
        except FileNotFoundError:
            return None

    def folder_info(self, path: str) -> pafs.FileInfo:
        """Return whether a folder exists, in one request. An object of this name is no folder."""
        key, exists = self.key(path), None
        # Plain HTTP servers cannot list.
        ignored = [OSError] if type(self.store).__name__ == "HTTPStore" else []
        with suppress(*ignored), _as_os_errors():
            exists = not key or next(iter(self.store.list(key, chunk_size=1)), None)
        return pafs.FileInfo(path, pafs.FileType.Directory if exists else pafs.FileType.NotFound)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        base = selector.base_dir.rstrip("/")
        key = self.key(selector.base_dir)
        with _as_os_errors():
            if selector.recursive:
                objects, folder_keys = list(self._list_objects(key)), set()
            else:
                listing = self.store.list_with_delimiter(key or None)
                objects, folder_keys = listing["objects"], set(listing["common_prefixes"])
        if not (objects or folder_keys or selector.allow_not_found or not key):
            raise FileNotFoundError(selector.base_dir)

        def path_of(key_below: str) -> str:
            return posixpath.join(base, key_below[len(key) :].strip("/"))

        for meta in objects if selector.recursive else ():
            folder = posixpath.dirname(meta["path"])
            while len(folder) > len(key) and folder not in folder_keys:
                folder_keys.add(folder)
                folder = posixpath.dirname(folder)
        folders = [
            pafs.FileInfo(path_of(folder_key), pafs.FileType.Directory)
            for folder_key in sorted(folder_keys)
        ]
        # Web consoles create a folder as an empty object with the folder's own key; leave it out.
        files = [_file_info(path_of(meta["path"]), meta) for meta in objects if meta["path"] != key]
        return folders + files

    def _list_objects(self, key: str, after: str | None = None) -> Iterator[ObjectMeta]:
        for chunk in self.store.list(key or None, offset=after, chunk_size=_OBJECTS_PER_PAGE):
            yield from chunk

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(_ObjectReader(self, path), mode="r")

    open_input_stream = open_input_file

    def open_output_stream(self, path: str, metadata: Any = None) -> pa.NativeFile:
        import obstore

        with _as_os_errors():
            return pa.PythonFile(
                _ObjectWriter(obstore.open_writer(self.store, self.key(path))), "w"
            )

    def open_append_stream(self, path: str, metadata: Any = None) -> pa.NativeFile:
        raise NotImplementedError("object stores cannot append to an object")

    def create_dir(self, path: str, recursive: bool) -> None:
        """Do nothing: folders of a store are only prefixes of keys."""

    def delete_file(self, path: str) -> None:
        with _as_os_errors():
            self.store.delete(self.key(path))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        with _as_os_errors():
            self.store.delete([meta["path"] for meta in self._list_objects(self.key(path))])

    delete_dir = delete_dir_contents

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("zonebloom does not delete all objects of a store")

    def move(self, src: str, dest: str) -> None:
        with _as_os_errors():
            self.store.rename(self.key(src), self.key(dest))

    def copy_file(self, src: str, dest: str) -> None:
        with _as_os_errors():
            self.store.copy(self.key(src), self.key(dest))

    # The methods below are no part of pyarrow's file system interface.

    def head(self, path: str) -> ObjectMeta:
        """Return size, time and tags of an object. Raise FileNotFoundError if it does not exist."""
        with _as_os_errors():
            return self.store.head(self.key(path))

    def read(self, path: str, max_bytes: int) -> pa.Buffer:
        """Return the content of an object. Raise OSError if it has more than ``max_bytes``."""
        with _as_os_errors():
            response = self.store.get(self.key(path))
            require_size(path, response.meta["size"], max_bytes)
            return pa.py_buffer(response.bytes())

    def list_heads(self, paths: Sequence[str]) -> dict[str, ObjectMeta]:
        """Return size, time and tags of objects from listings, several at a time.

        A listing stops after a limit, and objects that it does not reach are left out.
        """
        keys = {self.key(path): path for path in paths}
        ordered = sorted(keys)
        parts = [
            {key: keys[key] for key in ordered[start : start + _OBJECTS_PER_PAGE]}
            for start in range(0, len(ordered), _OBJECTS_PER_PAGE)
        ]
        if len(parts) == 1:
            return self._list_part(parts[0])
        heads: dict[str, ObjectMeta] = {}
        with thread_pool(min(REMOTE_THREADS, len(parts))) as pool:
            for part in pool.map(self._list_part, parts):
                heads |= part
        return heads

    def _list_part(self, keys: Mapping[str, str]) -> dict[str, ObjectMeta]:
        """Return the metadata of objects from one listing. ``keys`` has the path of each key."""
        first, last = min(keys), max(keys)
        max_listed = _OBJECTS_PER_PAGE + 4 * len(keys)
        heads: dict[str, ObjectMeta] = {}
        with _as_os_errors():
            prefix = posixpath.commonpath([posixpath.dirname(first), posixpath.dirname(last)])
            # A listing begins after the given key, so give it a key before the first one.
            objects = self._list_objects(prefix, first[:-1])
            for number, meta in enumerate(objects):
                if meta["path"] in keys:
                    heads[keys[meta["path"]]] = meta
                if len(heads) == len(keys) or number >= max_listed:
                    break
        return heads

    def read_range(self, path: str, start: int, stop: int, tag: str = "") -> bytes:
        """Return a range of an object's bytes, cut at the object's end.

        Raise `FragmentChanged` if the object no longer has the given tag.
        """
        from obstore import exceptions

        options: GetOptions = {"range": (start, stop)}
        # Weak tags never satisfy If-Match, so they are compared with the tag of the answer below.
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
        """Put an object unless one exists, and return whether it was put.

        Return None and put nothing if the store has no such request.
        """
        from obstore import exceptions

        key = self.key(path)
        with _as_os_errors():
            try:
                self.store.put(key, data, mode="create", use_multipart=False)
            except exceptions.AlreadyExistsError:
                # The object may be our own, because a request without an answer is sent again.
                return self.store.get(key).bytes().to_bytes() == data
            except (NotImplementedError, exceptions.NotSupportedError):
                return None
        return True

    def supports_put_if_absent(self, folder: str) -> bool:
        """Return whether `put_if_absent` keeps existing objects. Some stores ignore the header."""
        if self._has_put_if_absent is None:
            probe = posixpath.join(folder, f".{uuid.uuid4().hex}")
            self.put_if_absent(probe, b"first")
            self._has_put_if_absent = self.put_if_absent(probe, b"second") is False
            with suppress(OSError):
                self.delete_file(probe)
        return self._has_put_if_absent


class _ObjectReader:
    """A Python file object that reads an object for pyarrow. Every read is a request."""

    closed = False

    def __init__(self, handler: StoreHandler, path: str):
        meta = handler.head(path)
        self._size, self._position = meta["size"], 0
        self._read = partial(handler.read_range, path, tag=meta["e_tag"] or "")

    def read(self, num_bytes: int | None = -1) -> bytes:
        remaining = self._size - self._position
        if num_bytes is None or num_bytes < 0:
            num_bytes = remaining
        stop = self._position + min(num_bytes, remaining)
        data = self._read(self._position, stop) if stop > self._position else b""
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        self.closed = True


class _ObjectWriter:
    """A Python file object that writes an object for pyarrow. Closing it creates the object."""

    closed = False

    def __init__(self, writer: Any):
        self._writer, self._position = writer, 0

    def write(self, data: Any) -> int:
        # The view of an Arrow buffer has signed bytes, so cast it.
        view = memoryview(data).cast("B")
        with _as_os_errors():
            self._writer.write(view)
        self._position += len(view)
        return len(view)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Do nothing: an object is written as a whole when it is closed."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with _as_os_errors():
                self._writer.close()


def obstore_handler(filesystem: pafs.FileSystem | None) -> StoreHandler | None:
    """Return the handler of a pyarrow file system over an obstore store, or None for others."""
    handler = getattr(filesystem, "handler", None)
    return handler if isinstance(handler, StoreHandler) else None


def path_in(filesystem: pafs.FileSystem | None, path: str) -> str:
    """Return a path or URI as a path in the file system.

    Raises
    ------
    InvalidArgument
        When a URI names another store or file system.
    """
    handler = obstore_handler(filesystem)
    # File systems of fsspec take URIs as they are.
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
    host, _, key = path.partition("://")[2].partition("/")
    prefix = str(getattr(handler.store, "prefix", None) or "").strip("/")
    # The host is a bucket, or container@account as in abfs://container@account/key.
    is_same_root = {config.get(name) for name in _ROOT_OPTIONS} & {host, host.partition("@")[0]}
    if not is_same_root or not f"{key}/".startswith(f"{prefix}/" if prefix else ""):
        raise InvalidArgument(
            f"{path} is not in the store given as filesystem; give the path below its root"
        )
    return key[len(prefix) :].strip("/")


def object_reader(filesystem: pafs.FileSystem, *paths: str) -> StoreHandler | None:
    """Return the obstore handler that reads some paths of a file system, or None.

    A pyarrow S3 file system is read by obstore where it is installed, because obstore sends fewer
    requests, and sends them in parallel.
    """
    if not isinstance(filesystem, pafs.S3FileSystem):
        return obstore_handler(filesystem)
    buckets = {path.strip("/").partition("/")[0] for path in paths}
    # obstore accepts no name with a control character.
    if len(buckets) != 1 or not all(map(str.isprintable, paths)):
        return None
    config = _obstore_config(s3_options(filesystem))
    return None if config is None else _open_bucket(buckets.pop(), config)


def s3_options(filesystem: pafs.S3FileSystem) -> Mapping[str, Any]:
    """Return the options of a pyarrow S3 file system, or none if this pyarrow hides them.

    pyarrow has no public access to them. This is the only place that relies on how it pickles a
    file system: as a call with the options as its first argument. Tests pin this layout.
    """
    # An object that does not pickle raises TypeError.
    with suppress(TypeError):
        match filesystem.__reduce__():
            case (_, (dict() as options, *_)):
                return options
    return {}


def _obstore_config(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...] | None:
    """Translate options of pyarrow's S3 file system for obstore, or return None if it lacks one."""
    if not options.keys() >= {*_OBSTORE_NAMES.values(), "endpoint_override", "scheme"}:
        return None
    proxy = options.get("proxy_options") or {}
    has_keys = options["access_key"] or options["anonymous"] or "AWS_ACCESS_KEY_ID" in os.environ
    if not has_keys or proxy.get("host") or any(options.get(name) for name in _UNSUPPORTED_OPTIONS):
        return None
    endpoint = options["endpoint_override"] or os.environ.get("AWS_ENDPOINT_URL", "")
    if endpoint and "://" not in endpoint:
        endpoint = f"{options['scheme']}://{endpoint}"
    config = {name: options[option] for name, option in _OBSTORE_NAMES.items()}
    if not (options["access_key"] or options["anonymous"]):
        # obstore would take them itself, but a bucket with other ones must be opened again.
        config |= {name: os.environ.get(variable) for name, variable in _VARIABLES.items()}
    return tuple((name, value) for name, value in {**config, "endpoint": endpoint}.items() if value)


@lru_cache(64)
def _open_bucket(name: str, config: tuple[tuple[str, Any], ...]) -> StoreHandler | None:
    """Open a bucket with obstore, or return None if it is not installed."""
    try:
        from obstore.store import S3Store
    except ImportError:
        return None
    options = dict(config)
    is_http = options.get("endpoint", "").startswith("http://")
    store = S3Store(name, client_options={"allow_http": is_http}, **options)
    return StoreHandler(store, f"{name}/")


def _file_info(path: str, meta: ObjectMeta) -> pafs.FileInfo:
    return pafs.FileInfo(path, pafs.FileType.File, mtime=meta["last_modified"], size=meta["size"])
