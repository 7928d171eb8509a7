"""Read the pages of encrypted Parquet files, decrypted, at the places they have in the file.

    page in the file    size  nonce  header  tag    size  nonce  body  tag
    decrypted page      header, with padding                  |   body

A decrypted page is as long as the page in the file, so its offset in the data read stays the same.
Each module authenticates where it belongs: the prefix and id of the file, the kind of the module,
and the numbers of row group, column and page.

Source: Encryption.md of the Parquet format.
"""

from __future__ import annotations

import hmac
import threading
import weakref
import zlib
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from zonebloom.base.memory_cache import MEMORY_CACHE
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.encryption_keys import ParquetKeys
from zonebloom.parquet.file_layout import (
    ColumnChunk,
    FilePages,
    PageLocations,
    ReadRanges,
    SchemaLeaf,
)
from zonebloom.parquet.footer import (
    ENCRYPTED_MAGIC,
    PARQUET_MAGIC,
    PARSE_ERRORS,
    parse_chunk,
    parse_footer,
    parse_offset_index,
    read_footer,
    read_footer_bytes,
)
from zonebloom.parquet.page_headers import walk_pages
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
from zonebloom.storage.random_access import FragmentFile, read_merged_ranges

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
# Field numbers of FileMetaData, of FileCryptoMetaData, of RowGroup, and of ColumnChunk.
_ALGORITHM, _SIGNING_KEY = 8, 9
_FILE_ALGORITHM, _FOOTER_KEY = 1, 2
_ORDINAL = 7
_METADATA, _CRYPTO, _ENCRYPTED_METADATA = 3, 8, 9
# Most encrypted page headers fit in one read of this size.
_HEADER_BYTES = 512
# A parsed footer takes about this many times as many bytes as a stored one.
_PARSED_SIZE = 16


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


class _ChunkPlace(NamedTuple):
    """A column chunk, and what decrypts its modules. The key is None if it is not encrypted.

    ``ordinals`` are the encoded numbers of row group and column, which its modules authenticate.
    """

    start: int
    row_group: int
    leaf: int
    chunk: ColumnChunk
    key: bytes | None
    ordinals: bytes

    @property
    def first_page(self) -> int:
        """The number of the first page, which may be the dictionary page."""
        return DICTIONARY_NUMBER if self.start < self.chunk.data_start else 0


class _Chunks(Sequence[ColumnChunk]):
    """The chunks of a row group. Each is decrypted at its first use, as its key may be missing."""

    def __init__(self, size: int, opened: Callable[[int], ColumnChunk]):
        self._size, self._opened = size, opened
        self._known: dict[int, ColumnChunk] = {}

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, leaf: Any) -> Any:
        if leaf not in self._known:
            self._known[leaf] = self._opened(leaf)
        return self._known[leaf]


class _Footer:
    """The decrypted footer of a file."""

    def __init__(self, data: bytes, file_bytes: int, modules: ModuleDecryptor, keys: ParquetKeys):
        self.modules = modules
        self.num_bytes = _PARSED_SIZE * len(data)
        self._keys = keys
        self._file_bytes = file_bytes
        # The chunks that were used so far, ordered by their first byte.
        self._places: list[_ChunkPlace] = []
        self._lock = threading.Lock()
        self.pages: FilePages = parse_footer(data, file_bytes, self._chunks)

    def _chunks(
        self, group: Struct, number: int, leaves: tuple[SchemaLeaf, ...]
    ) -> Sequence[ColumnChunk]:
        def decrypt_chunk(leaf: int) -> ColumnChunk:
            try:
                ordinals = encode_ordinal(group.get(_ORDINAL, number)) + encode_ordinal(leaf)
                metadata, key = self._decrypt_metadata(group[1][leaf], ordinals)
                chunk = parse_chunk(group[1][leaf], metadata, leaves[leaf], self._file_bytes)
            except PARSE_ERRORS as error:
                raise FragmentUnreadable(f"its footer is malformed ({error!r})") from None
            if chunk.num_values:
                place = _ChunkPlace(chunk.start, number, leaf, chunk, key, ordinals)
                with self._lock:
                    insort(self._places, place)
            return chunk

        return _Chunks(len(leaves), decrypt_chunk)

    def _decrypt_metadata(self, raw: Struct, ordinals: bytes) -> tuple[Struct, bytes | None]:
        """Return the metadata of a chunk, and its key if it is encrypted."""
        if _CRYPTO not in raw:
            return raw[_METADATA], None
        key, column_key = self.modules.footer_key, raw[_CRYPTO].get(2)
        if column_key is not None:
            key = self._keys.find_key(column_key.get(2), is_column_key=True)
        if _ENCRYPTED_METADATA not in raw:
            return raw[_METADATA], key
        module = module_at(memoryview(raw[_ENCRYPTED_METADATA]))
        metadata = self.modules.decrypt(module, key, COLUMN_MODULE, ordinals)
        return ThriftReader(metadata).read_struct(), key

    def place(self, offset: int) -> _ChunkPlace:
        """Return the chunk that contains a byte of the file."""
        with self._lock:
            num_before = bisect_right(self._places, offset, key=lambda place: place.start)
            place = self._places[num_before - 1] if num_before else None
        if place is None or offset >= place.chunk.stop:
            raise FragmentUnreadable("a read lies outside the column chunks")
        return place


def _decrypt_footer(file_bytes: int, read: ReadRanges, keys: ParquetKeys) -> _Footer | None:
    """Return the footer of an encrypted file, or None if the file is not encrypted."""
    data, tail = read_footer_bytes(file_bytes, read, (PARQUET_MAGIC, ENCRYPTED_MAGIC))
    # The keys own the cached footer, and would never be freed if it kept them.
    keys = weakref.proxy(keys)
    try:
        raw = ThriftReader(data).read_struct()
        rest = data[raw.stop :]
        if tail.endswith(ENCRYPTED_MAGIC):
            modules = ModuleDecryptor(keys, raw[_FILE_ALGORITHM], raw.get(_FOOTER_KEY))
            data = modules.decrypt(module_at(memoryview(rest)), modules.footer_key, FOOTER_MODULE)
        elif _ALGORITHM in raw:
            modules = ModuleDecryptor(keys, raw[_ALGORITHM], raw.get(_SIGNING_KEY))
            if not modules.is_signed(data[: raw.stop], rest):
                raise FragmentUnreadable("the signature of its footer is wrong")
        elif keys.is_single_key:
            raise FragmentUnreadable("it is not encrypted")
        else:
            return None
    except PARSE_ERRORS as error:
        raise FragmentUnreadable(f"its footer is malformed ({error!r})") from None
    return _Footer(data, file_bytes, modules, keys)


class DecryptedFile(FragmentFile):
    """A Parquet file that may be encrypted. Reads return decrypted pages at their file offsets."""

    _footer: _Footer | None = None

    def pages(self, keys: ParquetKeys) -> FilePages:
        """Return the pages of the file. Call this before pages are read."""
        if self.cache_key is not None:
            # Only who has the same keys may use cached parts.
            self.cache_key = keys.cache_owner.token, self.path, self.identity
        footer = MEMORY_CACHE.get(self.cache_key, _Footer)
        if footer is None:
            footer = _decrypt_footer(self.num_bytes, self.read_stored, keys)
            if footer is None:
                return read_footer(self.num_bytes, self.read_stored)
            if self.cache_key is not None:
                MEMORY_CACHE.put(self.cache_key, footer)
        pages = footer.pages.with_locate(lambda *chunk: self._locate(footer, *chunk))
        self._pages: FilePages = pages
        self._footer = footer
        return pages

    @property
    def coalesce(self) -> int:
        """Return 0 for encrypted files, so that no bytes between two pages are decrypted."""
        return super().coalesce if self._footer is None else 0

    @property
    def handle(self) -> None:
        """No kernel reads the file, because its bytes are encrypted."""
        return None

    def read_pieces(self, offsets: np.ndarray, sizes: np.ndarray, out: np.ndarray) -> int:
        if self._footer is None:
            return super().read_pieces(offsets, sizes, out)
        spans = zip(offsets.tolist(), (offsets + sizes).tolist(), strict=True)
        data = b"".join(self._read(list(spans)))
        out.view(np.uint8)[:] = np.frombuffer(data, dtype=np.uint8)
        return len(data)

    def _read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        footer = self._footer
        if footer is None:
            return self.read_stored(ranges)
        stored = read_merged_ranges(self.read_stored, ranges, super().coalesce)
        return [
            self._decrypt(footer, start, data)
            for (start, _), data in zip(ranges, stored, strict=True)
        ]

    def _decrypt(self, footer: _Footer, start: int, stored: memoryview) -> bytes:
        """Decrypt consecutive pages of one chunk or several."""
        parts: list[bytes | memoryview] = []
        offset = 0
        while offset < len(stored):
            place = footer.place(start + offset)
            data = stored[offset : place.chunk.stop - start]
            if place.key is None:
                parts.append(data)
            else:
                page = self._page_number(place, start + offset)
                parts += footer.modules.decrypt_pages(data, place.key, place.ordinals, page)
            offset += len(data)
        return b"".join(parts)

    def _page_number(self, place: _ChunkPlace, start: int) -> int:
        """Return the number of the page at ``start``. Its modules authenticate this number."""
        if start == place.start:
            return place.first_page
        pages = self._pages.locations(place.row_group, place.leaf)
        return 0 if pages is None else int(np.searchsorted(pages.starts, start))

    def _locate(self, footer: _Footer, row_group: int, leaf: int) -> PageLocations | None:
        group, read = footer.pages.row_groups[row_group], self.read_stored
        chunk = group.chunks[leaf]
        if not group.num_rows:
            return None
        place = footer.place(chunk.start)
        if chunk.index_bytes:
            (data,) = read([(chunk.index_start, chunk.index_start + chunk.index_bytes)])
            if place.key is not None:
                module = module_at(memoryview(data))
                ordinals = place.ordinals
                data = footer.modules.decrypt(module, place.key, OFFSET_INDEX_MODULE, ordinals)
            return parse_offset_index(data, chunk, group.num_rows)
        if self.has_round_trips:
            # One request for the whole chunk takes less time than a request for each page header.
            return None
        page_numbers = count(place.first_page)

        def read_header(start: int) -> list[tuple[bytes, int]]:
            (data,) = read([(start, min(start + _HEADER_BYTES, chunk.stop))])
            size = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
            if size > len(data):
                (data,) = read([(start, min(start + size, chunk.stop))])
            module = module_at(memoryview(data))
            header = footer.modules.decrypt_header(
                module, place.key or b"", place.ordinals, next(page_numbers)
            )
            return [(header, len(module) - len(header))]

        return walk_pages(read, chunk, group.num_rows, read_header if place.key else None)
