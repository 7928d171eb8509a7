"""Decrypt the modules of an encrypted Parquet file, and make plain pages of them.

    page in the file    size  nonce  header  tag    size  nonce  body  tag
    decrypted page      header, with padding                  |   body

A decrypted page is as long as the page in the file, so its offset in the data read stays the same.
Each module authenticates where it belongs: the prefix and id of the file, the kind of the module,
and the numbers of row group, column and page.

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
# The page number of a dictionary page, which precedes data page 0.
DICTIONARY_NUMBER = -1

LENGTH_BYTES = 4
_CIPHERTEXT_START = LENGTH_BYTES + NONCE_BYTES
_FIRST_BLOCK = (1).to_bytes(4, "big")
_MAX_ORDINAL = (1 << 15) - 1
# The field number of the checksum in a page header. The checksum covers the encrypted bytes, so it
# is wrong for a decrypted page. Zeros in a field of binary type replace it. Readers ignore a field
# of another type, so the zeros pad the page to its size in the file. Two bytes hold their count.
_CHECKSUM = 4
_MAX_ZEROS = (1 << 14) - 1


class ModuleDecryptor:
    """Decrypts the modules of one file.

    Parameters
    ----------
    keys : ParquetKeys
    algorithm : Struct
        The EncryptionAlgorithm of the file.
    key_metadata : bytes or None
        Identifies the key of the footer.
    """

    def __init__(self, keys: ParquetKeys, algorithm: Struct, key_metadata: bytes | None):
        ((kind, parameters),) = algorithm.items()
        if kind not in (1, 2):
            raise FragmentUnreadable("it is encrypted by an unknown algorithm")
        self._authenticates_pages = kind == 1
        prefix = parameters.get(1, b"")
        if prefix and keys.aad_prefix and prefix != keys.aad_prefix:
            raise FragmentUnreadable("it was encrypted with another aad_prefix")
        self._file = (prefix or keys.aad_prefix) + parameters.get(2, b"")
        self.footer_key: bytes = keys.find_key(key_metadata, is_column_key=False)

    def decrypt(self, module: memoryview, key: bytes, kind: int, ordinals: bytes = b"") -> bytes:
        """Return the content of a module. Raise `FragmentUnreadable` if it is not authentic."""
        from cryptography.exceptions import InvalidTag

        aad = self._file + bytes([kind]) + ordinals
        try:
            return aes_gcm(key).decrypt(
                module[LENGTH_BYTES:_CIPHERTEXT_START], module[_CIPHERTEXT_START:], aad
            )
        except (InvalidTag, ValueError):
            raise FragmentUnreadable("a part of it cannot be decrypted with its key") from None

    def is_signed(self, footer: bytes, signature: bytes) -> bool:
        """Return whether the signature of a footer that is not encrypted is right."""
        nonce, tag = signature[:NONCE_BYTES], signature[NONCE_BYTES:]
        sealed = aes_gcm(self.footer_key).encrypt(
            nonce, footer, self._file + bytes([FOOTER_MODULE])
        )
        return hmac.compare_digest(sealed[-TAG_BYTES:], tag)

    def decrypt_header(self, module: memoryview, key: bytes, ordinals: bytes, page: int) -> bytes:
        """Return the header of a data page or of the dictionary page."""
        kind = _DICTIONARY_HEADER if page == DICTIONARY_NUMBER else _PAGE_HEADER
        header = self.decrypt(module, key, kind, ordinals + encode_ordinal(page))
        # parquet-java also encrypts some bytes that follow the header in its memory.
        return header[: ThriftReader(header).read_struct().stop]

    def decrypt_pages(
        self, data: memoryview, key: bytes, ordinals: bytes, page: int
    ) -> Iterator[bytes]:
        """Yield consecutive pages of a chunk, decrypted. ``page`` is the number of the first."""
        offset = 0
        while offset < len(data):
            stored = module_at(data, offset)
            header = self.decrypt_header(stored, key, ordinals, page)
            body = module_at(data, offset + len(stored))
            raw = ThriftReader(header).read_struct()
            if raw.get(3) != len(body):
                raise FragmentUnreadable("a page is not as long as its header says")
            size = len(stored) + len(body)
            yield _plain_page(header, raw, self._decrypt_body(body, raw, key, ordinals, page), size)
            offset += size
            page += 1

    def _decrypt_body(
        self, module: memoryview, header: Struct, key: bytes, ordinals: bytes, page: int
    ) -> bytes:
        if self._authenticates_pages:
            kind = _DICTIONARY if page == DICTIONARY_NUMBER else _PAGE
            return self.decrypt(module, key, kind, ordinals + encode_ordinal(page))
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        # AES_GCM_CTR_V1 does not authenticate bodies, so only the checksum can reveal a change.
        checksum = header.get(_CHECKSUM)
        if type(checksum) is int and checksum & 0xFFFFFFFF != zlib.crc32(module):
            raise FragmentUnreadable("a page does not have the checksum of its header")
        mode = modes.CTR(bytes(module[LENGTH_BYTES:_CIPHERTEXT_START]) + _FIRST_BLOCK)
        return Cipher(algorithms.AES(key), mode).decryptor().update(module[_CIPHERTEXT_START:])


def encode_ordinal(number: int) -> bytes:
    """Return the bytes of a number in a module's AAD, which are none for the dictionary page."""
    if not DICTIONARY_NUMBER <= number <= _MAX_ORDINAL:
        raise FragmentUnreadable("it has more row groups, columns or pages than can be encrypted")
    return b"" if number == DICTIONARY_NUMBER else number.to_bytes(2, "little")


def module_at(data: memoryview, start: int = 0) -> memoryview:
    """Return the module that begins at ``start``, including the bytes of its size."""
    size = int.from_bytes(data[start : start + LENGTH_BYTES], "little")
    if not NONCE_BYTES <= size <= len(data) - start - LENGTH_BYTES:
        raise FragmentUnreadable("an encrypted part of it is not as long as it claims")
    return data[start : start + LENGTH_BYTES + size]


def _plain_page(header: bytes, raw: Struct, body: bytes, size: int) -> bytes:
    """Return a decrypted page, padded to ``size`` bytes. ``raw`` is its parsed header."""
    kind, uncompressed_size = raw.get(1), raw.get(2)
    structs = [(number, value) for number, value in raw.items() if isinstance(value, Struct)]
    if len(structs) != 1 or type(kind) is not int or type(uncompressed_size) is not int:
        raise FragmentUnreadable("a page header does not describe its page")
    sizes = [
        (1, I32, encode_integer(kind)),
        (2, I32, encode_integer(uncompressed_size)),
        (3, I32, encode_integer(len(body))),
    ]
    ((number, description),) = structs
    encoded_description = number, STRUCT, header[description.start : description.stop]

    def with_zeros(count: int) -> bytes:
        zeros = bytes([count & 0x7F | 0x80, count >> 7]) + bytes(count)
        return encode_struct([*sizes, (_CHECKSUM, BINARY, zeros), encoded_description])

    count = size - len(body) - len(with_zeros(0))
    if not 0 <= count <= _MAX_ZEROS:
        raise FragmentUnreadable("a page header has no room for padding, or too much")
    return with_zeros(count) + body
