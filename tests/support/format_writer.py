"""Write an index folder that zonebloom can use, by the rules of docs/format.md alone.

It writes the first version of a folder, for one column of integers in small Parquet files.
"""

import json
import os
import secrets
import struct
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from support.format_reader import bits_of, block_of

FORMAT = {"zonebloom_format": "1"}


def required_fields(types):
    """Return a schema whose fields are never null."""
    return pa.schema([pa.field(name, type_, nullable=False) for name, type_ in types.items()])


FILTERS = required_fields(
    {
        "fragment_id": pa.uint64(),
        "zone_start": pa.uint64(),
        "zone_length": pa.uint64(),
        "has_null": pa.bool_(),
        "bloom_filter_data": pa.binary(),
    }
)
LISTING = required_fields(
    {
        "fragment_id": pa.uint64(),
        "key": pa.string(),
        "size": pa.int64(),
        "mtime_ns": pa.int64(),
        "num_rows": pa.int64(),
        "ctime_ns": pa.int64(),
        "tag": pa.string(),
        "inode": pa.uint64(),
        "digest": pa.string(),
        "seen_at": pa.int64(),
        "footer": pa.string(),
    }
)


def filter_of(num_blocks, forms):
    """Return the bytes of a filter of the byte forms of values."""
    words = [0] * (8 * num_blocks)
    for form in forms:
        hashed = xxhash.xxh64_intdigest(form)
        block = block_of(hashed, num_blocks)
        for word, bit in enumerate(bits_of(hashed)):
            words[8 * block + word] |= 1 << bit
    return struct.pack(f"<{len(words)}I", *words)


def write_file(path, data):
    """Write and sync a new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_arrow(path, rows, schema, metadata):
    """Write an Arrow file. Return its size and its checksum."""
    table = pa.Table.from_pylist(rows, schema.with_metadata({**metadata, **FORMAT}))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    write_file(path, data)
    return len(data), xxhash.xxh3_64_hexdigest(data)


def write_index(index_dir, files, column, items=100, num_blocks=8):
    """Index a column of int32 or int64. ``files`` has the paths by the keys of the catalog."""
    versions, segments = Path(index_dir, "versions"), Path(index_dir, "segments")
    # Two seconds after its last write, every later write to a file changes its times.
    time.sleep(2.1)
    zones, listing, kinds = [], [], set()
    for fragment_id, (key, path) in enumerate(files.items()):
        status, seen_at = os.stat(path), time.time_ns()
        values = pq.read_table(path, columns=[column])[column]
        kinds.add(values.type)
        for start in range(0, len(values), items):
            part = values.slice(start, items)
            width, numbers = values.type.byte_width, part.drop_null().to_pylist()
            forms = [number.to_bytes(width, "little", signed=True) for number in numbers]
            data = filter_of(num_blocks, forms)
            has_null = part.null_count > 0
            zones.append((fragment_id, start, len(part), has_null, data))
        identity = (status.st_size, status.st_mtime_ns, len(values), status.st_ctime_ns)
        listing.append((fragment_id, key, *identity, "", status.st_ino, "", seen_at, ""))
    (kind,) = kinds
    metadata = {"bloomfilter_item": str(items), "bloomfilter_probability": "0.01"}
    name = f"{secrets.token_hex(8)}-0"
    zone_rows = [dict(zip(FILTERS.names, zone, strict=True)) for zone in zones]
    num_bytes, checksum = write_arrow(
        segments / name / "bloomfilter.arrow", zone_rows, FILTERS, metadata
    )
    listing_name = f"{1:020d}-{secrets.token_hex(8)}.arrow"
    entries = [dict(zip(LISTING.names, entry, strict=True)) for entry in listing]
    listing_bytes, listing_checksum = write_arrow(versions / listing_name, entries, LISTING, {})
    segment = {
        "name": name,
        "file": "bloomfilter.arrow",
        "num_bytes": num_bytes,
        "checksum": checksum,
        "num_zones": len(zones),
        "fragment_ids": list(range(len(files))),
        "ranges_bytes": 0,
        "ranges_checksum": "",
    }
    index = {
        "name": f"{column}_idx",
        "column": [column],
        "domain": str(kind),
        "kind": "BLOOMFILTER",
        "parameters": {
            "number_of_items": items,
            "probability": 0.01,
            "fold": False,
        },
        "segments": [segment],
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "global_filter": None,
        "field": [],
    }
    content = {
        "version": 1,
        "next_fragment_id": len(files),
        "fragments": [
            {"file": listing_name, "num_bytes": listing_bytes, "checksum": listing_checksum}
        ],
        "indices": [index],
        "page_maps": [],
        "segments_to_delete": [],
    }
    head = '{"format_version": 1, "checksum": "'
    tail = f'",\n"content": {json.dumps(content)}, "writer": "{secrets.token_hex(16)}"}}\n'
    checksum = xxhash.xxh3_128_hexdigest((head + tail).encode())
    draft = versions / f".{secrets.token_hex(16)}"
    write_file(draft, (head + checksum + tail).encode())
    # This fails if another writer has committed version 1.
    os.link(draft, versions / f"{1:020d}.json")
    draft.unlink()
