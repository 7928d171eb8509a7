"""Read what earlier formats of the catalog stored differently.

Format 1 had no checksums in its documents, which had their content at the top level, and identified
a file by size and modification time only. In formats 1 and 2, page maps belonged to the segments of
an index. Formats before 4 had no digests of footers. In formats before 5, one file listed all
fragments of a version. In formats before 6, all indices were of one kind.
"""

from __future__ import annotations

import json
from collections.abc import Set
from typing import Any

from zonebloom.catalog.model import DEFAULT_KIND

# The number of columns that listings of fragments had before format 4, and in format 1.
EARLIER_LISTING_WIDTHS = (10, 5)

# The file of a segment by what was stored instead of its name.
_FILES_BY_LAYOUT = {"table": "bloomfilter.arrow", "sliced": "bloomfilter.sliced"}


def decode_format_1(data: bytes, keys: Set[str]) -> Any:
    """Return the content of a document in format 1. Raise ValueError if it is none.

    ``keys`` are the top-level keys that such a document may have, apart from its version.
    """
    document = json.loads(data)
    if not isinstance(document, dict) or not document.keys() <= {*keys, "format_version"}:
        raise ValueError("it is damaged, or not a document of an index")
    version = document.pop("format_version", None)
    if type(version) is not int or version != 1:
        raise ValueError(f"it has no checksum, and its format is {version!r}")
    return document


def upgrade_content(content: Any) -> Any:
    """Return the content of a catalog document in the current format. It may be changed in place.

    Raise KeyError, TypeError, AttributeError or ValueError if it is malformed.
    """
    if not isinstance(content["fragments"], list):
        content["fragments"] = [content["fragments"]]
    if "page_maps" not in content:
        content["page_maps"] = _take_page_maps(content)
    if "doomed" in content:
        content["segments_to_delete"] = content.pop("doomed")
    for entry in content["indices"]:
        if "kind" not in entry:
            entry["kind"] = DEFAULT_KIND
            for segment in entry["segments"]:
                segment["file"] = _FILES_BY_LAYOUT[segment.pop("layout", "table")]
    return content


def _take_page_maps(content: Any) -> list[Any]:
    """Remove the page maps from the segments of indices, and return them, the largest first.

    Segments of the layout "pages" hold nothing else.
    """
    page_maps = []
    for entry in content["indices"]:
        for segment in entry["segments"]:
            num_bytes, checksum = segment.pop("page_map_bytes"), segment.pop("page_map_checksum")
            if num_bytes:
                ids = segment["fragment_ids"]
                page_maps.append((segment["name"], num_bytes, checksum, ids))
        entry["segments"] = [
            segment for segment in entry["segments"] if segment.get("layout") != "pages"
        ]
    names = ("segment", "num_bytes", "checksum", "fragment_ids")
    page_maps.sort(key=lambda page_map: -len(page_map[3]))
    return [dict(zip(names, page_map, strict=True)) for page_map in page_maps]
