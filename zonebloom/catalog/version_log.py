"""Write numbered documents to a folder, each atomically: the commits of catalogs and managers.

    00000000000000000007.json    {"format_version": 1, "checksum": "<XXH3-128 of all other bytes>",
                                 "content": {...}}

A local document is written as a draft and then linked to its number, which fails if the number is
taken. Without hard links, it is created exclusively at its number and written there. Readers skip
it while it is not complete, and writers wait for a moment. An object store with a conditional put
takes the document in one request. In other stores, only one writer may work at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
import time
import types
import uuid
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, get_args, get_origin, get_type_hints

import xxhash

from zonebloom.base.version import FORMAT_VERSION, NewerFormat
from zonebloom.storage.store import Store

_DOCUMENT = re.compile(
    rb'(\{"format_version": \d+, "checksum": ")([0-9a-f]{32})(",\n"content": .*)', re.DOTALL
)
# A larger document is damaged. One of 10 million fragments in several indices has 300 MB.
MAX_DOCUMENT_BYTES = 1 << 30
# How each document ends.
_END = b"}\n"
# Seconds after which a document that is not complete is taken for the remains of a killed writer.
_WRITE_SECONDS = 2.0
_WAIT_SECONDS = 0.05
_DOCUMENT_NAME = re.compile(r"(\d{20})\.json")


class VersionLog:
    """The log of documents in one folder.

    Parameters
    ----------
    store : Store
    folder : str
    """

    def __init__(self, store: Store, folder: str):
        self._store = store
        self._folder = folder

    def path(self, number: int) -> str:
        return posixpath.join(self._folder, f"{number:020d}.json")

    def numbers(self) -> list[int]:
        matches = map(_DOCUMENT_NAME.fullmatch, self._store.names_in(self._folder))
        return sorted(int(match[1]) for match in matches if match)

    def read(self, number: int) -> Any:
        """Return the content of a document.

        Raises
        ------
        NewerFormat
            If a newer version of this library wrote it.
        ValueError
            If it is damaged.
        OSError
            If it cannot be read.
        """
        return self.content(self.document(number))

    def content(self, document: bytes) -> Any:
        """Return the content of a document that was read. Raise the same errors as `read`."""
        written_as, content = decode_document(document)
        if written_as > FORMAT_VERSION:
            raise NewerFormat(written_as)
        return content

    def document(self, number: int) -> bytes:
        """Return the bytes of a document. Documents of two writers never have equal bytes."""
        data = self._store.read_whole(self.path(number), MAX_DOCUMENT_BYTES)
        return data.to_pybytes()

    def wait_for_writer(self, number: int) -> None:
        """Wait until a local document is complete, or so old that its writer must be gone."""
        path = self.path(number)
        # The document may be deleted meanwhile, or be damaged. The caller's read will tell.
        with contextlib.suppress(OSError):
            while self._store.shows_unfinished_files and not self.document(number).endswith(_END):
                if not 0 <= time.time() - os.stat(path).st_mtime < _WRITE_SECONDS:
                    return
                time.sleep(_WAIT_SECONDS)

    def create(self, number: int, document: bytes) -> bool:
        """Write a document made by `encode_document`. Return False if its number is taken."""
        return self._store.put_if_absent(self.path(number), document)


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def encode_document(content: Any) -> bytes:
    head = f'{{"format_version": {FORMAT_VERSION}, "checksum": "'.encode()
    # A random writer id makes the bytes of every document unique.
    tail = f'",\n"content": {to_json(content)}, "writer": "{uuid.uuid4().hex}"'.encode() + _END
    return head + _checksum(head, tail) + tail


def decode_document(data: bytes) -> tuple[int, Any]:
    """Return the format version and the content of a document, or raise ValueError."""
    match = _DOCUMENT.fullmatch(data)
    if match is None:
        raise ValueError("it is damaged, or not a document of an index")
    if match[2] != _checksum(match[1], match[3]):
        raise ValueError("its checksum does not match")
    document = json.loads(data)
    return document["format_version"], document["content"]


def _checksum(head: bytes, tail: bytes) -> bytes:
    return xxhash.xxh3_128_hexdigest(head + tail).encode()


def to_json(content: Any) -> str:
    return json.dumps(content, default=_fields)


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def from_json(kind: Any, value: Any) -> Any:
    """Convert a JSON value to a type: a dataclass, tuple, enum, string, number, bool or None.

    Raises
    ------
    ValueError
        If the value does not have the type.
    """
    if kind in (int, str, bool):
        return _require_type(kind, value)
    if isinstance(kind, types.UnionType):
        inner, _ = get_args(kind)
        return None if value is None else from_json(inner, value)
    if get_origin(kind) is tuple:
        inner, _ = get_args(kind)
        if inner in (int, str) and set(map(type, _require_type(list, value))) <= {inner}:
            # A fast path for long lists of fragment ids.
            return tuple(value)
        return tuple(from_json(inner, part) for part in _require_type(list, value))
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        if unknown := _require_type(dict, value).keys() - hints.keys():
            raise ValueError(f"there is no {sorted(unknown)[0]!r} in a {kind.__name__}")
        try:
            return kind(**{name: from_json(hints[name], part) for name, part in value.items()})
        except TypeError as error:
            raise ValueError(str(error)) from None
    if issubclass(kind, StrEnum):
        return kind(_require_type(str, value))
    return float(value) if kind is float and type(value) is int else _require_type(kind, value)


def _require_type(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{str(value)[:50]!r} is no {kind.__name__}")
    return value


@lru_cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
