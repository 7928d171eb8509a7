"""Files in AES-GCM: encrypted piece by piece, so that a lookup decrypts only what it reads.

    head      magic, key id in UTF-8 padded with zeros                  64 bytes
    module    nonce, 4 KiB of the file, tag                             12 + 4096 + 16 bytes
    ...       the last one is shorter; an empty file has one of nothing

As in Parquet's modular encryption (Encryption.md, sections 4 and 5) each module is bound to its
place by what it authenticates beside its bytes: the key id, the name of the file in its folder,
its number, and whether it is the last. So none can be changed, exchanged, dropped or added.
"""

from __future__ import annotations

import hmac
import os
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base.arguments import invalid_value
from zonebloom.errors import EncryptedIndex, InvalidArgument, MissingDependency
from zonebloom.storage.random_access import RandomAccessFile

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from zonebloom.storage.files import OutputStream, ReadCounter

_MAGIC = b"ZBSEALED"
_HEAD_BYTES = 64
_MODULE_BYTES = 4 << 10
NONCE_BYTES = 12
TAG_BYTES = 16
_STORED_BYTES = NONCE_BYTES + _MODULE_BYTES + TAG_BYTES
KEY_SIZES = (16, 24, 32)


@dataclass(frozen=True, slots=True)
class Encryption:
    """Keys of an index, whose filters, ranges, page maps and lists of files are encrypted by them.

    Parameters
    ----------
    key_id : str
        Of the key that new files are encrypted by; at most 56 bytes of UTF-8. It is stored in
        clear.
    keys : Mapping of str to bytes, or callable
        Keys by their ids, 16, 24 or 32 bytes each, for AES-128, -192 or -256. A callable, which
        may ask a key store, is given an id and raises KeyError for one it does not know; it is
        pickled where Spark builds. A dataset pickles only with a callable, which travels instead
        of the keys.

    Raises
    ------
    InvalidArgument
        When the key id is too long, or has no key of such a size.
    MissingDependency
        Without the package ``cryptography``.

    Notes
    -----
    In clear stay names, sizes and times of the index's own files and ids of keys. New files are
    written by the key named, older ones read by theirs: keep those in ``keys`` until a rebuild.
    Each module of 4 KiB is bound to its file and place, so none can be changed or exchanged; an
    older state of the whole folder can be put back unnoticed.

    Examples
    --------
    >>> encryption = zb.Encryption("2026", {"2026": bytes(32), "2025": bytes(16)})
    >>> sealed = zb.dataset("orders", index_dir="sealed", encryption=encryption)
    >>> sealed.create_scalar_index("id")
    >>> sealed.count_rows("id = 42")
    1
    """

    key_id: str
    keys: Mapping[str, bytes] | Callable[[str], bytes] = field(repr=False)

    def __post_init__(self) -> None:
        key_id = self.key_id
        if not isinstance(key_id, str) or not 0 < len(key_id.encode()) <= _HEAD_BYTES - len(_MAGIC):
            raise invalid_value(key_id, "key_id", "give a text of 1 to 56 bytes")
        try:
            self.key(key_id)
        except EncryptedIndex as error:
            raise InvalidArgument(str(error)) from None
        aes_gcm(self.key(key_id))

    @property
    def holds_keys(self) -> bool:
        """Return whether a pickle of this object holds keys in clear."""
        return not callable(self.keys)

    def key(self, key_id: str) -> bytes:
        """The key of an id, or EncryptedIndex."""
        try:
            key = self.keys(key_id) if callable(self.keys) else self.keys[key_id]
        except KeyError:
            raise EncryptedIndex(f"keys has none for {key_id!r}; add the one it names") from None
        if not isinstance(key, bytes) or len(key) not in KEY_SIZES:
            raise EncryptedIndex(f"the key {key_id!r} is not 16, 24 or 32 bytes; give such a one")
        return key

    def key_check(self, key_id: str) -> str:
        """What tells a key from another, and nothing of the key itself."""
        return hmac.digest(self.key(key_id), b"zonebloom key check", "sha256")[:8].hex()


@lru_cache(maxsize=64)
def aes_gcm(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError:
        raise MissingDependency(
            "encryption needs the package cryptography; run pip install 'zonebloom[encryption]'"
        ) from None
    return AESGCM(key)


class FileCipher:
    """Seals and opens the files below a folder."""

    def __init__(self, folder: str, encryption: Encryption):
        self.encryption = encryption
        self._folder = folder

    def name(self, path: str) -> str:
        """What a file is called in the folder, wherever that lies."""
        return posixpath.relpath(path, self._folder)

    def encrypt(self, path: str, data: Any) -> bytes:
        """All bytes of the file that is to hold some data."""
        view, sealing = memoryview(data).cast("B"), Sealing(self, path)
        return b"".join((sealing.head, sealing.modules(view), sealing.last()))

    def decrypt(self, path: str, data: Any) -> bytes:
        """The data of a file of which all bytes are given; ValueError if they were changed."""
        view = memoryview(data).cast("B")
        modules = EncryptedModules(self, path, len(view), bytes(view[:_HEAD_BYTES]))
        opened, damage = modules.open(range(modules.count), view[_HEAD_BYTES:])
        if damage is not None:
            raise ValueError(damage)
        return b"".join(opened)


def _place(key_id: str, name: str) -> bytes:
    """What the modules of a file are bound to, but for their number and whether one is the last."""
    return b"%b\0%b\0%%d\0%%d" % (_literal(key_id), _literal(name))


def _literal(text: str) -> bytes:
    return text.encode().replace(b"%", b"%%")


class Sealing:
    """The bytes of one sealed file in the making."""

    def __init__(self, seal: FileCipher, path: str):
        key_id = seal.encryption.key_id
        self._cipher = aes_gcm(seal.encryption.key(key_id))
        self._place = _place(key_id, seal.name(path))
        self._number = 0
        self._rest = b""
        self.head = (_MAGIC + key_id.encode()).ljust(_HEAD_BYTES, b"\0")

    def modules(self, data: Any) -> bytes:
        """Modules of data that follows; the last bytes wait, for they may be the file's last."""
        data = self._rest + bytes(data)
        end = max(0, len(data) - 1) // _MODULE_BYTES * _MODULE_BYTES
        self._rest = data[end:]
        starts = range(0, end, _MODULE_BYTES)
        return b"".join(self._module(data[at : at + _MODULE_BYTES], False) for at in starts)

    def last(self) -> bytes:
        return self._module(self._rest, True)

    def _module(self, data: bytes, is_last: bool) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        place = self._place % (self._number, is_last)
        self._number += 1
        return nonce + self._cipher.encrypt(nonce, data, place)


class EncryptedModules:
    """Where the modules of a sealed file lie, and what is in them."""

    def __init__(self, seal: FileCipher, path: str, stored_bytes: int, head: bytes):
        if len(head) < _HEAD_BYTES or not head.startswith(_MAGIC):
            raise ValueError("it is not encrypted")
        self._key_id = head[len(_MAGIC) :].rstrip(b"\0").decode()
        try:
            self._cipher = aes_gcm(seal.encryption.key(self._key_id))
        except EncryptedIndex as error:
            raise ValueError(str(error)) from None
        self._place = _place(self._key_id, seal.name(path))
        self._stored_bytes = stored_bytes
        self.num_bytes = opened_bytes(stored_bytes)
        self.count = max(1, -(-self.num_bytes // _MODULE_BYTES))

    def spans(self, numbers: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Where modules begin in the file as it is stored, and their sizes."""
        starts = np.array(numbers, dtype=np.int64) * _STORED_BYTES + _HEAD_BYTES
        return starts, np.minimum(self._stored_bytes - starts, _STORED_BYTES)

    def open(
        self, numbers: Iterable[int], stored: memoryview | bytes
    ) -> tuple[list[bytes], str | None]:
        """The bytes of modules that are given one after another, as they are stored; zeros for
        one that is not what was sealed, and which that is."""
        from cryptography.exceptions import InvalidTag

        decrypt, place, last = self._cipher.decrypt, self._place, self.count - 1
        opened, damage, start = [], None, 0
        for number in numbers:
            inner, stop = start + NONCE_BYTES, start + _STORED_BYTES
            bound = place % (number, number == last)
            try:
                opened.append(decrypt(stored[start:inner], stored[inner:stop], bound))
            except (InvalidTag, ValueError):
                opened.append(bytes(_MODULE_BYTES))
                damage = f"module {number} is not what was encrypted by key {self._key_id!r}"
            start = stop
        return opened, damage


def opened_bytes(stored_bytes: int) -> int:
    """Bytes of the data in a sealed file of so many bytes; ValueError where none is so long."""
    whole, rest = divmod(stored_bytes - _HEAD_BYTES, _STORED_BYTES)
    least = NONCE_BYTES + TAG_BYTES
    # A module of nothing is there alone.
    is_whole = rest > least or (rest == 0 and whole > 0) or (rest == least and whole == 0)
    if stored_bytes < _HEAD_BYTES or not is_whole:
        raise ValueError(f"{stored_bytes} bytes are no encrypted file")
    return whole * _MODULE_BYTES + max(0, rest - least)


class EncryptedFile(RandomAccessFile):
    """A sealed file open for reads at positions, which are those of its data."""

    # A module is decrypted for each.
    read_cost = 128 << 10

    def __init__(self, raw: RandomAccessFile, seal: FileCipher, path: str):
        self._raw = raw
        self.counter, self.is_local = raw.counter, raw.is_local
        (head,) = raw.read([(0, _HEAD_BYTES)])
        self._modules = EncryptedModules(seal, path, raw.num_bytes, head)
        self.num_bytes = self._modules.num_bytes

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """As a file's own; OSError where a module was changed."""
        bounds = np.array(ranges, dtype=np.int64).reshape(-1, 2)
        data, starts, damage = self._opened(bounds[:, 0], bounds[:, 1])
        if damage is not None:
            raise OSError(damage)
        sizes = np.minimum(bounds[:, 1], self.num_bytes) - bounds[:, 0]
        return [data[at : at + size] for at, size in zip(starts, sizes.tolist(), strict=True)]

    def read_into(self, start: int, out: np.ndarray) -> None:
        self.read_pieces(np.array([start]), np.array([out.nbytes]), out)

    def read_pieces(self, offsets: np.ndarray, sizes: np.ndarray, out: np.ndarray) -> int:
        """As a file's own; what is of a module that was changed becomes zeros, too."""
        data, starts, _ = self._opened(offsets, offsets + sizes)
        from_view, to_view = memoryview(data), out.reshape(-1).data.cast("B")
        at = 0
        for start, size in zip(starts, sizes.tolist(), strict=True):
            piece = from_view[start : start + size]
            to_view[at : at + len(piece)] = piece
            at += size
            if len(piece) < size:
                to_view[at - size + len(piece) : at] = bytes(size - len(piece))
        return at

    def _opened(self, starts: np.ndarray, stops: np.ndarray) -> tuple[bytes, list[int], str | None]:
        """Modules that hold some ranges, one after another, and where each range begins in them;
        zeros for one that was changed, and what was."""
        firsts = (starts // _MODULE_BYTES).tolist()
        ends = (np.maximum(starts, stops - 1) // _MODULE_BYTES + 1).tolist()
        held = {number for span in map(range, firsts, ends) for number in span}
        # Of a range that begins at the end of the file there is nothing.
        numbers = sorted(number for number in held if number < self._modules.count)
        parts, damage = self._modules.open(numbers, self._stored(numbers))
        at = {number: place * _MODULE_BYTES for place, number in enumerate(numbers)}
        end = len(numbers) * _MODULE_BYTES
        within = (starts % _MODULE_BYTES).tolist()
        places = [at.get(a, end) + rest for a, rest in zip(firsts, within, strict=True)]
        return b"".join(parts), places, damage

    def _stored(self, numbers: Sequence[int]) -> memoryview | bytes:
        """Modules as they are stored, one after another, read at once."""
        starts, sizes = self._modules.spans(numbers)
        if not self.is_local:
            stops = (starts + sizes).tolist()
            return b"".join(self._raw.read(list(zip(starts.tolist(), stops, strict=True))))
        stored = np.empty(int(sizes.sum()), dtype=np.uint8)
        self._raw.read_pieces(starts, sizes, stored)
        return stored.data

    def close(self) -> None:
        self._raw.close()


class EncryptingStream:
    """A stream whose bytes are sealed on the way to another."""

    closed = False

    def __init__(self, stream: OutputStream, seal: FileCipher, path: str):
        self._stream, self._sealing = stream, Sealing(seal, path)
        stream.write(self._sealing.head)

    def write(self, data: Any) -> int:
        self._stream.write(self._sealing.modules(data))
        return len(data)

    def flush(self) -> None:
        """Nothing is flushed: the last bytes wait, for they may be the file's last."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._stream.write(self._sealing.last())
            self._stream.close()


class _Handler(pafs.FileSystemHandler):
    """A file system whose files are sealed; nothing else is done to them."""

    def __init__(self, filesystem: pafs.FileSystem, seal: FileCipher):
        self.filesystem, self.seal = filesystem, seal

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def get_type_name(self) -> str:
        return f"sealed {self.filesystem.type_name}"

    def normalize_path(self, path: str) -> str:
        return self.filesystem.normalize_path(path)

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        return [_opened_info(info) for info in self.filesystem.get_file_info(list(paths))]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        return [_opened_info(info) for info in self.filesystem.get_file_info(selector)]

    def open_input_file(self, path: str) -> pa.NativeFile:
        with self.filesystem.open_input_file(path) as file:
            stored = file.read_buffer()
        try:
            return pa.BufferReader(self.seal.decrypt(path, stored))
        except ValueError as error:
            raise OSError(str(error)) from None

    open_input_stream = open_input_file

    def open_output_stream(self, path: str, metadata: Any = None) -> pa.NativeFile:
        stream = self.filesystem.open_output_stream(path)
        return pa.PythonFile(EncryptingStream(stream, self.seal, path), mode="w")

    def _refused(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("sealed files are read and written, no more")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refused
    delete_file = move = copy_file = open_append_stream = _refused


def _opened_info(info: pafs.FileInfo) -> pafs.FileInfo:
    if info.type != pafs.FileType.File:
        return info
    try:
        size = opened_bytes(info.size)
    except ValueError:
        size = -1
    return pafs.FileInfo(info.path, info.type, mtime_ns=info.mtime_ns, size=size)


def encrypting_filesystem(filesystem: pafs.FileSystem, seal: FileCipher) -> pafs.FileSystem:
    """A file system whose files are sealed on the way to another."""
    return pafs.PyFileSystem(_Handler(filesystem, seal))


def open_random_access(
    filesystem: pafs.FileSystem, path: str, counter: ReadCounter, num_bytes: int | None
) -> RandomAccessFile:
    """Open a file for reads at positions, through its seal if it has one; OSError, ValueError."""
    handler = getattr(filesystem, "handler", None)
    if not isinstance(handler, _Handler):
        return RandomAccessFile(filesystem, path, counter, num_bytes)
    return EncryptedFile(RandomAccessFile(handler.filesystem, path, counter), handler.seal, path)
