"""A log of numbered documents in a folder: the atomic commit of catalogs and of managers.

    00000000000000000007.json    {"format_version": 5, "checksum": "<XXH3-128 of all other bytes>",
                                 "content": {...}}

A document is written whole and then linked to its number, which fails if that is taken. In a store
it is put where nothing is yet, if the store can be told so. In others a writer claims the number
first, by a file of its own, and writes the document when it sees no claim but its own:

    00000000000000000008-<random>.claim

Of two claims each is there before its writer looks, so one of them sees the other. Format 1 had
no checksum and its content at the top; in format 2 page maps belonged to the segments of an index;
format 3 had no digests of footers; in format 4 one file listed all fragments of a version.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import random
import re
import time
import types
import uuid
from collections.abc import Callable, Sequence, Set
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, get_args, get_origin, get_type_hints

import pyarrow.fs as pafs
import xxhash

from zonebloom.base.version import FORMAT_VERSION, NewerFormat
from zonebloom.catalog.folder import (
    NewFile,
    create_file,
    read_whole_file,
    sync_path,
    write_atomically,
)
from zonebloom.errors import CommitConflict
from zonebloom.storage.files import forget_listings, is_local
from zonebloom.storage.object_store import create_object

_PARTS = re.compile(
    rb'(\{"format_version": \d+, "checksum": ")([0-9a-f]{32})(",\n"content": .*)', re.DOTALL
)
_CLAIM = ".claim"
# Seconds waited at most for another writer, and again.
_PATIENCE = (*(0.1 * 2**turn for turn in range(6)), *[4.0] * 4)
_NAME = re.compile(r"(\d{20})\.json")


class VersionLog:
    """The documents of one folder; `first_keys` are those a document of format 1 has at its top,
    `create` creates a local file and its folder."""

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        folder: str,
        first_keys: Set[str],
        create: Callable[[str], NewFile] | None = None,
    ):
        self._filesystem = filesystem
        self._folder = folder
        self._first_keys = first_keys
        self._create_file = create or self._create_beside

    def path(self, number: int) -> str:
        return posixpath.join(self._folder, f"{number:020d}.json")

    def numbers(self) -> list[int]:
        names = (_NAME.fullmatch(info.base_name) for info in self._listed())
        return sorted(int(name[1]) for name in names if name)

    def _listed(self) -> list[pafs.FileInfo]:
        selector = pafs.FileSelector(self._folder, allow_not_found=True)
        # fsspec's may have listed it before another writer came.
        forget_listings(self._filesystem)
        for _ in range(2):
            # pyarrow looks twice: a folder another writer made in between is no error.
            with contextlib.suppress(FileNotFoundError):
                return self._filesystem.get_file_info(selector)
        return self._filesystem.get_file_info(selector)

    def read(self, number: int) -> Any:
        """The content of a document; NewerFormat, ValueError when it is damaged, or OSError."""
        return self.content(self.document(number))

    def content(self, document: bytes) -> Any:
        """The content of a document that was read; the same errors."""
        written_as, content = decode_document(document, self._first_keys)
        if written_as > FORMAT_VERSION:
            raise NewerFormat(written_as)
        return content

    def document(self, number: int) -> bytes:
        """A document as it lies there: no two writers write the same bytes."""
        return read_whole_file(self._filesystem, self.path(number)).to_pybytes()

    def create(self, number: int, document: bytes) -> bool:
        """Write a document, of `to_document`, of its own number; whether that was free.

        Raises
        ------
        CommitConflict
            Where another writer claims the number, and neither writes it nor gives it up.
        """
        path = self.path(number)
        if not is_local(self._filesystem):
            self._filesystem.create_dir(self._folder, recursive=True)
            is_made = create_object(self._filesystem, path, document)
            if is_made is None:
                return self._write_claimed(number, document)
            return is_made and self._is_kept(number, document)
        if not write_atomically(path, document, self._create_file, os.link):
            return False
        with contextlib.suppress(OSError):
            sync_path(self._folder)
        return True

    def _write_claimed(self, number: int, document: bytes) -> bool:
        claim = posixpath.join(self._folder, f"{number:020d}-{uuid.uuid4().hex}{_CLAIM}")
        others: list[str] = []
        for seconds in _PATIENCE:
            self._write(claim, b"")
            try:
                others = [path for path in self._claims(number) if path != claim]
                if number in self.numbers():
                    return False
                if not others:
                    self._write(self.path(number), document)
                    return True
            finally:
                self._filesystem.delete_file(claim)
            # Both may have given way.
            time.sleep(random.uniform(0, seconds))
        raise _claimed(others)

    def _is_kept(self, number: int, document: bytes) -> bool:
        """Whether a document put where none was is not overwritten by one who claimed its number
        and looked before."""
        claims: list[str] = []
        for seconds in (0.0, *_PATIENCE):
            time.sleep(seconds)
            before, claims = claims, self._claims(number)
            if not claims:
                return not before or self.document(number) == document
        raise _claimed(claims)

    def _claims(self, number: int) -> list[str]:
        start = f"{number:020d}-"
        return [
            info.path
            for info in self._listed()
            if info.base_name.startswith(start) and info.base_name.endswith(_CLAIM)
        ]

    def _write(self, path: str, data: bytes) -> None:
        with self._filesystem.open_output_stream(path) as sink:
            sink.write(data)

    def _create_beside(self, path: str) -> NewFile:
        """Create a local file with the permissions of the folder of documents."""
        os.makedirs(self._folder, exist_ok=True)
        return create_file(path, self._folder, model_folder=self._folder)


def _claimed(claims: Sequence[str]) -> CommitConflict:
    return CommitConflict(
        f"another writer is at work: {claims[0]} is there still. Its store has no conditional put "
        "that could be used, so one writes after the other; try again, and if no writer is at work "
        "any more delete that file"
    )


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def encode_document(content: Any) -> bytes:
    head = f'{{"format_version": {FORMAT_VERSION}, "checksum": "'.encode()
    # No two writers write the same: whose document it is can be told by its bytes.
    tail = f'",\n"content": {to_json(content)}, "writer": "{uuid.uuid4().hex}"}}\n'.encode()
    return head + _checksum(head, tail) + tail


def decode_document(data: bytes, first_keys: Set[str]) -> tuple[int, Any]:
    parts = _PARTS.fullmatch(data)
    if parts is not None:
        if parts[2] != _checksum(parts[1], parts[3]):
            raise ValueError("its checksum does not match")
        document = json.loads(data)
        return document["format_version"], document["content"]
    document = json.loads(data)
    if not isinstance(document, dict) or not document.keys() <= {*first_keys, "format_version"}:
        raise ValueError("it is damaged, or no document of ours")
    version = document.pop("format_version", None)
    if type(version) is not int or version != 1:
        raise ValueError(f"it has no checksum, and its format is {version!r}")
    return version, document


def _checksum(head: bytes, tail: bytes) -> bytes:
    return xxhash.xxh3_128_hexdigest(head + tail).encode()


def to_json(content: Any) -> str:
    return json.dumps(content, default=_fields)


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def from_json(kind: Any, value: Any) -> Any:
    """A value of JSON as a type of records, tuples, texts, numbers and flags, or ValueError."""
    if kind in (int, str, bool):
        return _of(kind, value)
    if isinstance(kind, types.UnionType):
        inner, _ = get_args(kind)
        return None if value is None else from_json(inner, value)
    if get_origin(kind) is tuple:
        inner, _ = get_args(kind)
        if inner in (int, str) and set(map(type, _of(list, value))) <= {inner}:
            # Ids of many files.
            return tuple(value)
        return tuple(from_json(inner, part) for part in _of(list, value))
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        if unknown := _of(dict, value).keys() - hints.keys():
            raise ValueError(f"there is no {sorted(unknown)[0]!r} in a {kind.__name__}")
        try:
            return kind(**{name: from_json(hints[name], part) for name, part in value.items()})
        except TypeError as error:
            raise ValueError(str(error)) from None
    if issubclass(kind, StrEnum):
        return kind(_of(str, value))
    return float(value) if kind is float and type(value) is int else _of(kind, value)


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{str(value)[:50]!r} is no {kind.__name__}")
    return value


@lru_cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
