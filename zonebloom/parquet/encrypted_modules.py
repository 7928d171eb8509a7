"""What an encrypted Parquet file is made of: modules, and pages in clear that two of them become.

    page as it is stored    size  nonce  header  tag    size  nonce  body  tag
    in clear                header, longer by what the others took   |   body

A page in clear is as long as it was stored, so it takes the same place in what is read. A module
is bound to where it belongs by what it authenticates: the file's prefix and id, the kind of the
module, and the numbers of row group, column and page.

Source: Encryption.md of the Parquet format.
"""

from __future__ import annotations

import hmac
import zlib
from collections.abc import Iterator

from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.encryption_keys import ParquetKeys
from zonebloom.parquet.thrift import (
    BINARY,
    I32,
    STRUCT,
    Struct,
    ThriftReader,
    encode_integer,
    encode_struct,
)
from zonebloom.storage.encryption import NONCE_BYTES, TAG_BYTES, aes_gcm

# Kinds of modules.
(
    FOOTER_MODULE,
    COLUMN_MODULE,
    _PAGE,
    _DICTIONARY,
    _PAGE_HEADER,
    _DICTIONARY_HEADER,
    _,
    OFFSET_INDEX_MODULE,
) = range(8)
# What stands for the number of a page: the dictionary is before the first.
DICTIONARY_NUMBER = -1

LENGTH_BYTES = 4
_BEGIN = LENGTH_BYTES + NONCE_BYTES
_FIRST_BLOCK = (1).to_bytes(4, "big")
_MOST_ORDINAL = (1 << 15) - 1
# Of the checksum in a page header. It is of what was encrypted, and gives way to zeros of another
# type, which no reader takes for one; their length is written in two bytes.
_CHECKSUM = 4
_MOST_ZEROS = (1 << 14) - 1


class ModuleDecryptor:
    """Opens the modules of one file, of what it says of its algorithm and its footer's key."""

    def __init__(self, keys: ParquetKeys, algorithm: Struct, key_metadata: bytes | None):
        ((kind, described),) = algorithm.items()
        if kind not in (1, 2):
            raise FragmentUnreadable("it is encrypted by an algorithm that is not known")
        self._authenticates_pages = kind == 1
        stored = described.get(1, b"")
        if stored and keys.aad_prefix and stored != keys.aad_prefix:
            raise FragmentUnreadable("it was encrypted with another aad_prefix")
        self._file = (stored or keys.aad_prefix) + described.get(2, b"")
        self.footer_key: bytes = keys.find_key(key_metadata, of_column=False)

    def decrypt(self, module: memoryview, key: bytes, kind: int, place: bytes = b"") -> bytes:
        """What is in a module that authenticates it."""
        from cryptography.exceptions import InvalidTag

        bound = self._file + bytes([kind]) + place
        try:
            return aes_gcm(key).decrypt(module[LENGTH_BYTES:_BEGIN], module[_BEGIN:], bound)
        except (InvalidTag, ValueError):
            raise FragmentUnreadable("a part of it is not what its key has encrypted") from None

    def is_signed(self, footer: bytes, signature: bytes) -> bool:
        """Whether a footer in clear is what was signed."""
        nonce, tag = signature[:NONCE_BYTES], signature[NONCE_BYTES:]
        sealed = aes_gcm(self.footer_key).encrypt(
            nonce, footer, self._file + bytes([FOOTER_MODULE])
        )
        return hmac.compare_digest(sealed[-TAG_BYTES:], tag)

    def decrypt_header(self, module: memoryview, key: bytes, place: bytes, page: int) -> bytes:
        """The header of a page, or of the dictionary."""
        kind = _DICTIONARY_HEADER if page == DICTIONARY_NUMBER else _PAGE_HEADER
        header = self.decrypt(module, key, kind, place + encode_ordinal(page))
        # parquet-java encrypts what lies behind it in memory, too.
        return header[: ThriftReader(header).read_struct().stop]

    def decrypt_pages(
        self, data: memoryview, key: bytes, place: bytes, page: int
    ) -> Iterator[bytes]:
        """Pages of a chunk in clear, one after another as they lie, from some number on."""
        at = 0
        while at < len(data):
            stored = module_at(data, at)
            header = self.decrypt_header(stored, key, place, page)
            body = module_at(data, at + len(stored))
            raw = ThriftReader(header).read_struct()
            if raw.get(3) != len(body):
                raise FragmentUnreadable("a page is not as long as its header says")
            size = len(stored) + len(body)
            yield _page(header, raw, self._body(body, raw, key, place, page), size)
            at += size
            page += 1

    def _body(
        self, module: memoryview, header: Struct, key: bytes, place: bytes, page: int
    ) -> bytes:
        if self._authenticates_pages:
            kind = _DICTIONARY if page == DICTIONARY_NUMBER else _PAGE
            return self.decrypt(module, key, kind, place + encode_ordinal(page))
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        # Nothing else tells of values that were changed.
        checksum = header.get(_CHECKSUM)
        if type(checksum) is int and checksum & 0xFFFFFFFF != zlib.crc32(module):
            raise FragmentUnreadable("a page does not have the checksum of its header")
        mode = modes.CTR(bytes(module[LENGTH_BYTES:_BEGIN]) + _FIRST_BLOCK)
        return Cipher(algorithms.AES(key), mode).decryptor().update(module[_BEGIN:])


def encode_ordinal(number: int) -> bytes:
    """What a number is bound by: nothing for the dictionary, of which there is one."""
    if not DICTIONARY_NUMBER <= number <= _MOST_ORDINAL:
        raise FragmentUnreadable("it has more parts than are encrypted")
    return b"" if number == DICTIONARY_NUMBER else number.to_bytes(2, "little")


def module_at(data: memoryview, at: int = 0) -> memoryview:
    """The module that begins at a place, its size included."""
    size = int.from_bytes(data[at : at + LENGTH_BYTES], "little")
    if not NONCE_BYTES <= size <= len(data) - at - LENGTH_BYTES:
        raise FragmentUnreadable("an encrypted part of it is not as long as it claims")
    return data[at : at + LENGTH_BYTES + size]


def _page(header: bytes, raw: Struct, body: bytes, size: int) -> bytes:
    """A page in clear of some size."""
    kind, plain_size = raw.get(1), raw.get(2)
    inner = [each for each in raw.items() if isinstance(each[1], Struct)]
    if len(inner) != 1 or type(kind) is not int or type(plain_size) is not int:
        raise FragmentUnreadable("a page header does not describe its page")
    sizes = [
        (1, I32, encode_integer(kind)),
        (2, I32, encode_integer(plain_size)),
        (3, I32, encode_integer(len(body))),
    ]
    described = inner[0][0], STRUCT, header[inner[0][1].start : inner[0][1].stop]

    def with_zeros(count: int) -> bytes:
        zeros = bytes([count & 0x7F | 0x80, count >> 7]) + bytes(count)
        return encode_struct([*sizes, (_CHECKSUM, BINARY, zeros), described])

    count = size - len(body) - len(with_zeros(0))
    if not 0 <= count <= _MOST_ZEROS:
        raise FragmentUnreadable("a page header is not laid out as others are")
    return with_zeros(count) + body
