"""Encrypted Parquet files read as if they were not: what reads pages by their places reads these.

Source: Encryption.md of the Parquet format.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.encrypted_modules import (
    COLUMN_MODULE,
    DICTIONARY_NUMBER,
    FOOTER_MODULE,
    LENGTH_BYTES,
    OFFSET_INDEX_MODULE,
    ModuleDecryptor,
    encode_ordinal,
    module_at,
)
from zonebloom.parquet.encryption_keys import MAX_CACHED, ParquetKeys
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
from zonebloom.parquet.page_headers import PageHeader, parse_page_header, walk_pages
from zonebloom.parquet.thrift import Struct, ThriftReader
from zonebloom.storage.random_access import FragmentFile, read_merged_ranges

# Of FileMetaData; of FileCryptoMetaData; of RowGroup; of ColumnChunk.
_ALGORITHM, _SIGNING_KEY = 8, 9
_FILE_ALGORITHM, _FOOTER_KEY = 1, 2
_ORDINAL = 7
_METADATA, _CRYPTO, _ENCRYPTED_METADATA = 3, 8, 9
# Most headers fit, encrypted.
_HEADER_BYTES = 512


class _Place(NamedTuple):
    """A chunk, and what its modules are opened by; no key where it is in clear."""

    start: int
    row_group: int
    leaf: int
    chunk: ColumnChunk
    key: bytes | None
    bound: bytes

    @property
    def first_page(self) -> int:
        return DICTIONARY_NUMBER if self.start < self.chunk.data_start else 0


class _Chunks(Sequence[ColumnChunk]):
    """The chunks of a row group, each known when it is asked for: its key may not be given."""

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
    """What the footer of an encrypted file says."""

    def __init__(self, data: bytes, file_bytes: int, modules: ModuleDecryptor, keys: ParquetKeys):
        self.modules = modules
        self._keys = keys
        self._file_bytes = file_bytes
        # Of chunks that were asked for, by their first byte.
        self._places: list[_Place] = []
        self._lock = threading.Lock()
        self.pages: FilePages = parse_footer(data, file_bytes, self._chunks)

    def _chunks(
        self, group: Struct, number: int, leaves: tuple[SchemaLeaf, ...]
    ) -> Sequence[ColumnChunk]:
        def opened(leaf: int) -> ColumnChunk:
            try:
                bound = encode_ordinal(group.get(_ORDINAL, number)) + encode_ordinal(leaf)
                metadata, key = self._column(group[1][leaf], bound)
                chunk = parse_chunk(group[1][leaf], metadata, leaves[leaf], self._file_bytes)
            except PARSE_ERRORS as error:
                raise FragmentUnreadable(f"its footer is malformed ({error!r})") from None
            if chunk.num_values:
                with self._lock:
                    insort(self._places, _Place(chunk.start, number, leaf, chunk, key, bound))
            return chunk

        return _Chunks(len(leaves), opened)

    def _column(self, raw: Struct, bound: bytes) -> tuple[Struct, bytes | None]:
        """The metadata of a chunk, and its key if it is encrypted."""
        if _CRYPTO not in raw:
            return raw[_METADATA], None
        key, of_column = self.modules.footer_key, raw[_CRYPTO].get(2)
        if of_column is not None:
            key = self._keys.find_key(of_column.get(2), of_column=True)
        if _ENCRYPTED_METADATA not in raw:
            return raw[_METADATA], key
        module = module_at(memoryview(raw[_ENCRYPTED_METADATA]))
        return ThriftReader(
            self.modules.decrypt(module, key, COLUMN_MODULE, bound)
        ).read_struct(), key

    def place(self, at: int) -> _Place:
        """The chunk that a byte of the file is of."""
        with self._lock:
            before = bisect_right(self._places, at, key=lambda place: place.start)
            place = self._places[before - 1] if before else None
        if place is None or at >= place.chunk.stop:
            raise FragmentUnreadable("bytes of no column chunk were asked for")
        return place


def _opened_footer(file_bytes: int, read: ReadRanges, keys: ParquetKeys) -> _Footer | None:
    """The footer of an encrypted file; None of another."""
    data, tail = read_footer_bytes(file_bytes, read, (PARQUET_MAGIC, ENCRYPTED_MAGIC))
    try:
        raw = ThriftReader(data).read_struct()
        rest = data[raw.stop :]
        if tail.endswith(ENCRYPTED_MAGIC):
            modules = ModuleDecryptor(keys, raw[_FILE_ALGORITHM], raw.get(_FOOTER_KEY))
            data = modules.decrypt(module_at(memoryview(rest)), modules.footer_key, FOOTER_MODULE)
        elif _ALGORITHM in raw:
            modules = ModuleDecryptor(keys, raw[_ALGORITHM], raw.get(_SIGNING_KEY))
            if not modules.is_signed(data[: raw.stop], rest):
                raise FragmentUnreadable("its footer is not what was signed")
        elif keys.is_single_key:
            raise FragmentUnreadable("it is not encrypted")
        else:
            return None
    except PARSE_ERRORS as error:
        raise FragmentUnreadable(f"its footer is malformed ({error!r})") from None
    return _Footer(data, file_bytes, modules, keys)


class DecryptedFile(FragmentFile):
    """A data file that may be encrypted; its pages are read in clear, where they lie."""

    _footer: _Footer | None = None

    def pages(self, keys: ParquetKeys) -> FilePages:
        """Where they lie; asked before any is read."""
        named, kept = (self.path, self.identity), keys.cached_footers
        footer = kept.get(named) or _opened_footer(self.num_bytes, self._read, keys)
        if footer is None:
            return read_footer(self.num_bytes, self._read)
        # Of other files another may have the same size and time.
        if self.identity.inode or self.identity.tag:
            if len(kept) >= MAX_CACHED:
                kept.clear()
            kept[named] = footer
        located = footer.pages.with_locate(lambda *chunk: self._locate(footer, *chunk))
        self._located: FilePages = located
        self._footer = footer
        return located

    @property
    def coalesce(self) -> int:
        """Nothing is decrypted for lying between two pages."""
        return super().coalesce if self._footer is None else 0

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
            return super()._read(ranges)
        stored = read_merged_ranges(super()._read, ranges, super().coalesce)
        return [
            self._opened(footer, start, data)
            for (start, _), data in zip(ranges, stored, strict=True)
        ]

    def _opened(self, footer: _Footer, start: int, stored: memoryview) -> bytes:
        """Pages that lie one after another, of one chunk or several."""
        parts: list[bytes | memoryview] = []
        at = 0
        while at < len(stored):
            place = footer.place(start + at)
            data = stored[at : place.chunk.stop - start]
            if place.key is None:
                parts.append(data)
            else:
                page = self._page(place, start + at)
                parts += footer.modules.decrypt_pages(data, place.key, place.bound, page)
            at += len(data)
        return b"".join(parts)

    def _page(self, place: _Place, at: int) -> int:
        """The number of the page that begins at a place; by another it does not open."""
        if at == place.start:
            return place.first_page
        located = self._located.locations(place.row_group, place.leaf)
        return 0 if located is None else int(np.searchsorted(located.starts, at))

    def _locate(self, footer: _Footer, row_group: int, leaf: int) -> PageLocations | None:
        group, read = footer.pages.row_groups[row_group], super()._read
        chunk = group.chunks[leaf]
        if not group.num_rows:
            return None
        place = footer.place(chunk.start)
        if chunk.index_bytes:
            (data,) = read([(chunk.index_start, chunk.index_start + chunk.index_bytes)])
            if place.key is not None:
                module = module_at(memoryview(data))
                data = footer.modules.decrypt(module, place.key, OFFSET_INDEX_MODULE, place.bound)
            return parse_offset_index(data, chunk, group.num_rows)
        if not self.is_local:
            # A request for each page would take longer than one for all.
            return None
        numbers = count(place.first_page)

        def header_at(at: int) -> PageHeader:
            (data,) = read([(at, min(at + _HEADER_BYTES, chunk.stop))])
            size = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
            if size > len(data):
                (data,) = read([(at, min(at + size, chunk.stop))])
            module = module_at(memoryview(data))
            header = footer.modules.decrypt_header(
                module, place.key or b"", place.bound, next(numbers)
            )
            described = parse_page_header(header)
            return described._replace(size=described.size - len(header) + len(module))

        return walk_pages(read, chunk, group.num_rows, header_at if place.key else None)
