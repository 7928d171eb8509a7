"""Encode and decode the document and the listings of fragments of a version, with checks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT
from zonebloom.base.version import require_known_format, with_format_version
from zonebloom.catalog.fragment_table import (
    LISTING_SCHEMA,
    FragmentTable,
    columns_of_fragments,
    require_consistent,
)
from zonebloom.catalog.model import (
    IndexEntry,
    KnownFragment,
    Listing,
    PageMapEntry,
    Version,
    is_table_file_name,
    require_row_count,
)
from zonebloom.catalog.version_log import from_json
from zonebloom.storage.ipc_layout import open_uncompressed

# Catalog entries of fragments by their keys.
FragmentsByKey: TypeAlias = dict[str, KnownFragment]

# Half of the ids that row addresses have room for. Files that are not indexed use the other half.
_MAX_FRAGMENT_ID = 1 << 30
_PLAIN_NAME = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z_.-]*")

# A commit merges the last listing into its new one if that listing is small, or at most eight times
# as large as the new one. So each rewrite of a large listing makes it an eighth larger or more.
_FEW_FRAGMENTS = 256
_MERGE_RATIO = 8


def encode_version(version: Version) -> dict[str, Any]:
    return {
        "version": version.number,
        "next_fragment_id": version.next_fragment_id,
        "fragments": [
            {"file": listing.file, "num_bytes": listing.num_bytes, "checksum": listing.checksum}
            for listing in version.listings
        ],
        "indices": list(version.indices.values()),
        "page_maps": version.page_maps,
        "segments_to_delete": version.segments_to_delete,
    }


def decode_version(content: Any, listings: Sequence[Listing], parts: Sequence[pa.Table]) -> Version:
    """Return the version in a document, with the fragments of its listings.

    Raise ValueError, KeyError or TypeError if the document is malformed or inconsistent.
    """
    fragments = FragmentTable(parts)
    next_id = from_json(int, content["next_fragment_id"])
    if not 0 <= next_id <= _MAX_FRAGMENT_ID:
        raise ValueError(f"next_fragment_id is {next_id}")
    indices = from_json(tuple[IndexEntry, ...], content["indices"])
    if not all(entry.column for entry in indices):
        raise ValueError("one of its indices has no column")
    files = [(segment.name, segment.file) for entry in indices for segment in entry.segments]
    if len(set(files)) < len(files):
        # Each index loads its segments, so many of one segment would use up the memory.
        raise ValueError("a segment belongs to two indices")
    version = Version(
        from_json(int, content["version"]),
        next_id,
        fragments,
        {entry.name: entry for entry in indices},
        from_json(tuple[PageMapEntry, ...], content["page_maps"]),
        tuple(listings),
        from_json(tuple[str, ...], content["segments_to_delete"]),
    )
    fragment_ids = np.sort(fragments.numbers("fragment_id"))
    if (fragment_ids[1:] == fragment_ids[:-1]).any():
        raise ValueError("two fragments share an id")
    # Only the least and the greatest id are compared below.
    covered: list[Sequence[int]] = [fragment_ids[:1].tolist() + fragment_ids[-1:].tolist()]
    covered += (page_map.fragment_ids for page_map in version.page_maps)
    for entry in version.indices.values():
        covered += [segment.fragment_ids for segment in entry.segments]
        covered += [entry.global_filter.fragment_ids] if entry.global_filter is not None else []
        for segment in entry.segments:
            if not is_table_file_name(segment.file):
                raise ValueError(f"{segment.file!r} is not a file name of an index")
        if not 0 < from_json(int, entry.number_of_items) <= MAX_ROWS_PER_FRAGMENT:
            raise ValueError(f"it has an index with zones of {entry.number_of_items} rows")
    for name in version.segment_names:
        require_plain_name(name)
    if any(ids and not 0 <= min(ids) <= max(ids) < next_id for ids in covered):
        raise ValueError("it names a fragment whose id was never assigned")
    return version.with_indices(version.indices)


def require_plain_name(name: Any) -> str:
    """Return a name of a file or folder. Raise ValueError if it could lead to another folder."""
    if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name) or ".." in name:
        raise ValueError(f"{name!r} is not a file name of an index")
    return name


def plan_listings(version: Version, before: Version) -> tuple[tuple[Listing, ...], FragmentsByKey]:
    """Return the listings of `before` that can be kept, and the fragments for a new listing."""
    old, new = before.fragments, version.fragments
    if not old.keys() <= new.keys():
        return (), dict(new)
    # Compare identities first: most entries are the same objects.
    same = ((key, old.get(key), fragment) for key, fragment in new.items())
    keys = {key: None for key, was, fragment in same if was is not fragment and was != fragment}
    listings = list(before.listings)
    while (
        keys
        and listings
        and len(listings[-1].keys) <= max(_MERGE_RATIO * len(keys), _FEW_FRAGMENTS)
    ):
        keys |= dict.fromkeys(listings.pop().keys.to_pylist())
    return tuple(listings), {key: new[key] for key in keys}


def encode_listing(fragments: Iterable[KnownFragment]) -> bytes:
    """Return the bytes of a listing. Raise `SourceError` if a fragment has too many rows."""
    fragments = list(fragments)
    for fragment in fragments:
        require_row_count(fragment.key, fragment.num_rows)
    schema = with_format_version(LISTING_SCHEMA)
    columns = columns_of_fragments(fragments)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return sink.getvalue().to_pybytes()


def decode_listing(data: pa.Buffer) -> pa.Table:
    """Return the table of a listing. Raise ValueError if it is damaged."""
    table = open_uncompressed(data).read_all()
    require_known_format(table.schema)
    table.validate(full=True)
    if not table.schema.equals(LISTING_SCHEMA):
        raise ValueError("its fragments have other columns")
    require_consistent(table)
    return table
