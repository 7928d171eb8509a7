"""A log of numbered documents in a folder: the atomic commit of catalogs and of managers.

    00000000000000000007.json    {"format_version": 3, "checksum": "<XXH3-128 of all other bytes>",
                                 "content": {...}}

A document is written whole and then linked to its number, which fails if that is taken. Object
stores have no such link: let one writer at a time write there. Format 1 had no checksum and its
content at the top; in format 2 page maps belonged to the segments of an index.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
import types
from collections.abc import Callable, Set
from dataclasses import is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, get_args, get_origin, get_type_hints

import pyarrow.fs as pafs
import xxhash

from zonebloom.catalog.folder import sync, write_whole
from zonebloom.storage.files import is_local

FORMAT_VERSION = 3
_PARTS = re.compile(
    rb'(\{"format_version": \d+, "checksum": ")([0-9a-f]{32})(",\n"content": .*)', re.DOTALL
)
_NAME = re.compile(r"(\d{20})\.json")


class NewerFormat(ValueError):
    """A document of a newer zonebloom, whose content means nothing here."""


class VersionLog:
    """The documents of one folder; `first_keys` are those a document of format 1 has at its top,
    `prepare` makes the folder of a file about to be written."""

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        folder: str,
        first_keys: Set[str],
        prepare: Callable[[str], None] | None = None,
    ):
        self._filesystem = filesystem
        self._folder = folder
        self._first_keys = first_keys
        self._prepare = prepare or self._make_folder

    def path(self, number: int) -> str:
        return posixpath.join(self._folder, f"{number:020d}.json")

    def numbers(self) -> list[int]:
        selector = pafs.FileSelector(self._folder, allow_not_found=True)
        for last in (False, False, True):
            try:
                infos = self._filesystem.get_file_info(selector)
                break
            except FileNotFoundError:
                # pyarrow looks twice: a folder another writer made in between is no error.
                if last:
                    raise
        names = (_NAME.fullmatch(info.base_name) for info in infos)
        return sorted(int(name[1]) for name in names if name)

    def read(self, number: int) -> Any:
        """The content of a document; NewerFormat, ValueError when it is damaged, or OSError."""
        with self._filesystem.open_input_file(self.path(number)) as file:
            written_as, content = from_document(file.read(), self._first_keys)
        if written_as > FORMAT_VERSION:
            raise NewerFormat(
                f"it was written by a newer zonebloom (format {written_as}); update this one"
            )
        return content

    def create(self, number: int, content: Any) -> bool:
        path = self.path(number)
        if not is_local(self._filesystem):
            if self._filesystem.get_file_info(path).type != pafs.FileType.NotFound:
                return False
            self._prepare(path)
            with self._filesystem.open_output_stream(path) as sink:
                sink.write(to_document(content))
            return True
        if not write_whole(path, to_document(content), self._prepare, os.link):
            return False
        with contextlib.suppress(OSError):
            sync(self._folder)
        return True

    def _make_folder(self, path: str) -> None:
        self._filesystem.create_dir(posixpath.dirname(path), recursive=True)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def to_document(content: Any) -> bytes:
    head = f'{{"format_version": {FORMAT_VERSION}, "checksum": "'.encode()
    tail = f'",\n"content": {json.dumps(content, indent=1)}}}\n'.encode()
    return head + _checksum(head, tail) + tail


def from_document(data: bytes, first_keys: Set[str]) -> tuple[int, Any]:
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


def from_json(kind: Any, value: Any) -> Any:
    """A value of JSON as a type of records, tuples, texts, numbers and flags, or ValueError."""
    if kind in (int, str, bool):
        return _of(kind, value)
    if isinstance(kind, types.UnionType):
        inner, _ = get_args(kind)
        return None if value is None else from_json(inner, value)
    if get_origin(kind) is tuple:
        inner, _ = get_args(kind)
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
