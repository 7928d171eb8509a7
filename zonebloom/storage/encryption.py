"""Encrypt index files with AES-GCM in modules of 4 KiB: a lookup decrypts only what it reads.

    head      magic, key id in UTF-8 padded with zeros                  64 bytes
    module    nonce, 4 KiB of the file, tag                             12 + 4096 + 16 bytes
    ...       the last module is shorter; an empty file has one empty module

As in Parquet's modular encryption (Encryption.md, sections 4 and 5), each module authenticates
additional data (AAD) that binds it to its place: the key id, the path of the file below its
folder, the module's number, and whether it is the last one. So no module can be changed,
exchanged, dropped or added without notice.
"""

from __future__ import annotations

import hmac
import io
import os
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
import pyarrow as pa

from zonebloom.base.arguments import invalid_secret
from zonebloom.base.pickling import KeyHolder, is_importable
from zonebloom.errors import EncryptedIndex, InvalidArgument, MissingDependency
from zonebloom.storage.files import OutputStream, ReadCounter
from zonebloom.storage.random_access import RandomAccessFile
from zonebloom.storage.store import Store

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


_ENCRYPTED_MAGIC = b"ZBSEALED"
_HEAD_BYTES = 64
_MODULE_BYTES = 4 << 10
NONCE_BYTES = 12
TAG_BYTES = 16
_STORED_BYTES = NONCE_BYTES + _MODULE_BYTES + TAG_BYTES
KEY_SIZES = (16, 24, 32)


@dataclass(frozen=True, slots=True)
class Encryption(KeyHolder):
    """The keys that encrypt an index: its filters, key ranges, page maps and lists of files.

    Parameters
    ----------
    key_id : str
        The id of the key that encrypts new files, at most 56 bytes of UTF-8. It is stored in
        clear.
    keys : Mapping of str to bytes, or callable
        The keys by their ids, 16, 24 or 32 bytes each, for AES-128, -192 or -256. A callable
        takes an id and returns the key, for example from a key store. It raises KeyError for an
        unknown id. A dataset pickles only with a function that can be imported, whose name is
        pickled instead of the keys. The tasks of builds on Spark get the keys in any case.

    Raises
    ------
    InvalidArgument
        When the key id is too long, or has no key of one of these sizes.
    MissingDependency
        When the package ``cryptography`` is not installed.

    Notes
    -----
    The names, sizes and times of the index's own files and the ids of keys stay in clear. The
    key ``key_id`` encrypts new files, and older files stay encrypted by their own keys. Keep
    those keys in ``keys`` until the index is rebuilt. Each module of 4 KiB is bound to its file
    and position, so none can be changed or exchanged unnoticed. An older copy of the whole
    folder can be put back unnoticed.

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
        max_bytes = _HEAD_BYTES - len(_ENCRYPTED_MAGIC)
        # The arguments may be interchanged, so no message shows the key id.
        is_utf8 = isinstance(key_id, str) and key_id.encode(errors="ignore").decode() == key_id
        if not is_utf8 or not 0 < len(key_id.encode()) <= max_bytes:
            raise invalid_secret(key_id, "key_id", "give a text of 1 to 56 bytes of UTF-8")
        if not callable(self.keys) and not isinstance(self.keys, Mapping):
            advice = 'give the keys by their ids, {"id": key}, or a function that takes an id'
            raise invalid_secret(self.keys, "keys", advice)
        key = self._find_key(key_id)
        if not _is_key(key):
            fault = "no key" if key is None else "a key that is not 16, 24 or 32 bytes"
            raise InvalidArgument(f"keys has {fault} for key_id; add the key of this id")
        aes_gcm(key)

    @property
    def holds_keys(self) -> bool:
        """Return whether a pickle of this object could contain keys in clear."""
        return not is_importable(self.keys)

    def reduce_with_keys(self) -> tuple[Any, ...]:
        """Return what `__reduce__` returns, with all keys."""
        return Encryption, (self.key_id, self.keys)

    def key(self, key_id: str) -> bytes:
        """Return the key of an id. Raise `EncryptedIndex` if it is missing or of a wrong size."""
        key = self._find_key(key_id)
        if key is None:
            raise EncryptedIndex(f"keys has none for {key_id!r}; add the key of this id")
        if not _is_key(key):
            raise EncryptedIndex(
                f"the key {key_id!r} is not 16, 24 or 32 bytes; give a key of one of these sizes"
            )
        return key

    def _find_key(self, key_id: str) -> Any:
        """Return what the keys have for an id, or None. The KeyError would show the id."""
        try:
            return self.keys(key_id) if callable(self.keys) else self.keys[key_id]
        except KeyError:
            return None

    def key_check(self, key_id: str) -> str:
        """Return a short digest that identifies a key without revealing it."""
        return hmac.digest(self.key(key_id), b"zonebloom key check", "sha256")[:8].hex()


def _is_key(key: object) -> TypeGuard[bytes]:
    return isinstance(key, bytes) and len(key) in KEY_SIZES


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
    """Encrypts and decrypts the files below a folder."""

    def __init__(self, folder: str, encryption: Encryption):
        self.encryption = encryption
        self._folder = folder

    def name(self, path: str) -> str:
        """Return the path of a file below the folder. It survives moves of the folder."""
        return posixpath.relpath(path, self._folder)

    def encrypt(self, path: str, data: Any) -> bytes:
        """Return the whole encrypted file for some data."""
        sink = io.BytesIO()
        stream = EncryptingStream(sink, self, path)
        stream.write(memoryview(data).cast("B"))
        stream.finish()
        return sink.getvalue()

    def decrypt(self, path: str, data: Any) -> bytes:
        """Return the data of a whole encrypted file. Raise ValueError if it was changed."""
        view = memoryview(data).cast("B")
        modules = EncryptedModules(self, path, len(view), bytes(view[:_HEAD_BYTES]))
        pieces, damage = modules.decrypt(range(modules.count), view[_HEAD_BYTES:])
        if damage is not None:
            raise ValueError(damage)
        return b"".join(pieces)


def _aad_template(key_id: str, name: str) -> bytes:
    """Return a template of the AAD of a file's modules, for the module's number and is_last."""
    return b"%b\0%b\0%%d\0%%d" % (_escape_percent(key_id), _escape_percent(name))


def _escape_percent(text: str) -> bytes:
    return text.encode().replace(b"%", b"%%")


class EncryptingStream:
    """An output stream that encrypts what is written and passes it to another stream."""

    closed = False

    def __init__(self, stream: OutputStream, cipher: FileCipher, path: str):
        key_id = cipher.encryption.key_id
        self._stream = stream
        self._aes_gcm = aes_gcm(cipher.encryption.key(key_id))
        self._aad_template = _aad_template(key_id, cipher.name(path))
        self._module_number = 0
        self._pending = b""
        stream.write((_ENCRYPTED_MAGIC + key_id.encode()).ljust(_HEAD_BYTES, b"\0"))

    def write(self, data: Any) -> int:
        """Write the modules of the data. Keep the rest, which may become the last module."""
        pending = self._pending + bytes(data)
        end = max(0, len(pending) - 1) // _MODULE_BYTES * _MODULE_BYTES
        self._pending = pending[end:]
        starts = range(0, end, _MODULE_BYTES)
        modules = [
            self._module(pending[start : start + _MODULE_BYTES], is_last=False) for start in starts
        ]
        self._stream.write(b"".join(modules))
        return len(data)

    def finish(self) -> None:
        """Write the last module, and leave the other stream open."""
        self._stream.write(self._module(self._pending, is_last=True))

    def _module(self, data: bytes, *, is_last: bool) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        aad = self._aad_template % (self._module_number, is_last)
        self._module_number += 1
        return nonce + self._aes_gcm.encrypt(nonce, data, aad)

    def flush(self) -> None:
        """Do nothing: the last bytes can be encrypted only when the file is complete."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.finish()
            self._stream.close()


class EncryptedModules:
    """The modules of an encrypted file: their positions and their decryption."""

    def __init__(self, cipher: FileCipher, path: str, stored_bytes: int, head: bytes):
        if len(head) < _HEAD_BYTES or not head.startswith(_ENCRYPTED_MAGIC):
            raise ValueError("it is not encrypted")
        self._key_id = head[len(_ENCRYPTED_MAGIC) :].rstrip(b"\0").decode()
        try:
            self._aes_gcm = aes_gcm(cipher.encryption.key(self._key_id))
        except EncryptedIndex as error:
            raise ValueError(str(error)) from None
        self._aad_template = _aad_template(self._key_id, cipher.name(path))
        self._stored_bytes = stored_bytes
        self.num_bytes = decrypted_size(stored_bytes)
        self.count = max(1, -(-self.num_bytes // _MODULE_BYTES))

    def stored_ranges(self, numbers: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the offsets of modules in the stored file, and their sizes."""
        starts = np.array(numbers, dtype=np.int64) * _STORED_BYTES + _HEAD_BYTES
        return starts, np.minimum(self._stored_bytes - starts, _STORED_BYTES)

    def decrypt(
        self, numbers: Iterable[int], stored: memoryview | bytes
    ) -> tuple[list[bytes], str | None]:
        """Decrypt modules that are stored one after another.

        Return the data of each module, and a message about a damaged one or None. The data of a
        damaged module are zeros.
        """
        from cryptography.exceptions import InvalidTag

        decrypt, last = self._aes_gcm.decrypt, self.count - 1
        pieces, damage, start = [], None, 0
        for number in numbers:
            data_start, stop = start + NONCE_BYTES, start + _STORED_BYTES
            aad = self._aad_template % (number, number == last)
            try:
                pieces.append(decrypt(stored[start:data_start], stored[data_start:stop], aad))
            except (InvalidTag, ValueError):
                pieces.append(bytes(_MODULE_BYTES))
                damage = f"module {number} was changed, or not encrypted by key {self._key_id!r}"
            start = stop
        return pieces, damage


def decrypted_size(stored_bytes: int) -> int:
    """Return the size of the data in an encrypted file of a size.

    Raise ValueError if no encrypted file has this size.
    """
    num_full, rest = divmod(stored_bytes - _HEAD_BYTES, _STORED_BYTES)
    overhead = NONCE_BYTES + TAG_BYTES
    # Only an empty file has an empty module, and that is its only one.
    is_valid = (
        rest > overhead or (rest == 0 and num_full > 0) or (rest == overhead and num_full == 0)
    )
    if stored_bytes < _HEAD_BYTES or not is_valid:
        raise ValueError(f"no encrypted file has a size of {stored_bytes} bytes")
    return num_full * _MODULE_BYTES + max(0, rest - overhead)


def encrypted_size(num_bytes: int) -> int:
    """Return the size of the encrypted file of some data."""
    num_modules = max(1, -(-num_bytes // _MODULE_BYTES))
    return _HEAD_BYTES + num_bytes + num_modules * (NONCE_BYTES + TAG_BYTES)


class EncryptedFile(RandomAccessFile):
    """An encrypted file, open for random access. Offsets count bytes of the decrypted data."""

    def __init__(self, raw: RandomAccessFile, cipher: FileCipher, path: str):
        self._raw = raw
        self.counter, self.has_round_trips = raw.counter, raw.has_round_trips
        (head,) = raw.read([(0, _HEAD_BYTES)])
        self._modules = EncryptedModules(cipher, path, raw.num_bytes, head)
        self.num_bytes = self._modules.num_bytes

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of ranges. Raise OSError if a module was changed."""
        bounds = np.array(ranges, dtype=np.int64).reshape(-1, 2)
        data, starts, damage = self._decrypt_ranges(bounds[:, 0], bounds[:, 1])
        if damage is not None:
            raise OSError(damage)
        sizes = np.minimum(bounds[:, 1], self.num_bytes) - bounds[:, 0]
        return [
            data[start : start + size] for start, size in zip(starts, sizes.tolist(), strict=True)
        ]

    def read_pieces(self, offsets: np.ndarray, sizes: np.ndarray, out: np.ndarray) -> int:
        """Read pieces into an array. Bytes past the end and of changed modules become zeros."""
        data, starts, _ = self._decrypt_ranges(offsets, offsets + sizes)
        target, position = out.reshape(-1).data.cast("B"), 0
        for start, size in zip(starts, sizes.tolist(), strict=True):
            target[position : position + size] = data[start : start + size].ljust(size, b"\0")
            position += size
        return position

    def _decrypt_ranges(
        self, starts: np.ndarray, stops: np.ndarray
    ) -> tuple[bytes, list[int], str | None]:
        """Decrypt the modules that cover ranges.

        Return their data one after another, the position of each range in it, and a message
        about a changed module or None. The data of a changed module are zeros.
        """
        first_numbers = (starts // _MODULE_BYTES).tolist()
        stop_numbers = (np.maximum(starts, stops - 1) // _MODULE_BYTES + 1).tolist()
        covering = {number for span in map(range, first_numbers, stop_numbers) for number in span}
        # A range that begins at the end of the file lies in no module.
        numbers = sorted(number for number in covering if number < self._modules.count)
        pieces, damage = self._modules.decrypt(numbers, self._read_modules(numbers))
        positions = {number: index * _MODULE_BYTES for index, number in enumerate(numbers)}
        end = len(numbers) * _MODULE_BYTES
        range_starts = [
            positions.get(number, end) + offset
            for number, offset in zip(first_numbers, (starts % _MODULE_BYTES).tolist(), strict=True)
        ]
        return b"".join(pieces), range_starts, damage

    def _read_modules(self, numbers: Sequence[int]) -> memoryview:
        """Read encrypted modules in one call, and return them one after another."""
        starts, sizes = self._modules.stored_ranges(numbers)
        stored = np.empty(int(sizes.sum()), dtype=np.uint8)
        self._raw.read_pieces(starts, sizes, stored)
        return stored.data

    def close(self) -> None:
        self._raw.close()


class DecryptingStore:
    """A store of which only files are read, and decrypted."""

    def __init__(self, store: Store, cipher: FileCipher):
        self.store = store
        self.cipher = cipher

    def read_whole(self, path: str, max_bytes: int) -> pa.Buffer:
        stored = self.store.read_whole(path, encrypted_size(max_bytes))
        try:
            return pa.py_buffer(self.cipher.decrypt(path, stored))
        except ValueError as error:
            raise OSError(str(error)) from None


# A store of the files of an index, which are encrypted or not.
IndexStore: TypeAlias = Store | DecryptingStore


def open_random_access(
    store: IndexStore, path: str, counter: ReadCounter, num_bytes: int | None
) -> RandomAccessFile:
    """Open a file for random access, and decrypt it if its store decrypts.

    Raise OSError or ValueError if it cannot be read or is not what was encrypted.
    """
    if not isinstance(store, DecryptingStore):
        return RandomAccessFile(store.filesystem, path, counter, num_bytes)
    raw = RandomAccessFile(store.store.filesystem, path, counter)
    return EncryptedFile(raw, store.cipher, path)
