"""Small JSON documents that tell when they are not what was written.

    {"format_version": 2, "checksum": "<XXH3-128 of every byte but these 32>",
    "content": {...}}

The checksum is taken of the bytes and not of what they mean: whatever bit is another, in a
number, in a key's name or in the format's own, is noticed. Documents of format 1 had no
checksum and all keys of their content at the top, so that one of format 2 never passes for one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Set
from typing import Any

import xxhash

FORMAT_VERSION = 2
_PARTS = re.compile(
    rb'(\{"format_version": \d+, "checksum": ")([0-9a-f]{32})(",\n"content": .*)', re.DOTALL
)


def to_document(content: Any) -> bytes:
    """The bytes of a document."""
    head = f'{{"format_version": {FORMAT_VERSION}, "checksum": "'.encode()
    tail = f'",\n"content": {json.dumps(content, indent=1)}}}\n'.encode()
    return head + _checksum(head, tail) + tail


def from_document(data: bytes, first_keys: Set[str]) -> tuple[int, Any]:
    """What a document holds.

    Its format. One above `FORMAT_VERSION` is certainly a newer zonebloom's, and its content
    means nothing here.
    """
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
    """Of the bytes before and after it."""
    return xxhash.xxh3_128_hexdigest(head + tail).encode()
