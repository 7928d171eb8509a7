"""Find a key with an index folder of zonebloom, by the rules of docs/format.md alone."""

import json
import math
import os
import re
import struct
from pathlib import Path

import pyarrow as pa
import xxhash
from support.hash_reader import HashFile, segment_checksum

FORMAT = 1
DOCUMENT = re.compile(
    rb'(\{"format_version": [0-9]+, "checksum": ")([0-9a-f]{32})(",\n"content": .*)', re.DOTALL
)
SALT = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D)
SALT += (0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)


def require(condition, problem):
    if not condition:
        raise ValueError(problem)


def read_arrow(data):
    table = pa.ipc.open_file(data).read_all()
    table.validate(full=True)
    metadata = table.schema.metadata or {}
    require(int(metadata.get(b"zonebloom_format", b"1")) <= FORMAT, "a newer format")
    return table


def read_version(path):
    """Return the content of a document, and the entries of its fragments by key."""
    match = DOCUMENT.fullmatch(path.read_bytes())
    require(match, "not a document")
    require(xxhash.xxh3_128_hexdigest(match[1] + match[3]) == match[2].decode(), "damaged")
    document = json.loads(match[0])
    content = document["content"]
    require(document["format_version"] == FORMAT and "sealed_by" not in content, "not readable")
    require(content["version"] == int(path.stem), "another number")
    fragments = {}
    for listing in content["fragments"]:
        require(re.fullmatch(r"[0-9]{20}-[0-9a-f]{16}\.arrow", listing["file"]), "a bad name")
        data = (path.parent / listing["file"]).read_bytes()
        require(len(data) == listing["num_bytes"], "another size")
        require(xxhash.xxh3_64_hexdigest(data) == listing["checksum"], "damaged")
        fragments |= {entry["key"]: entry for entry in read_arrow(data).to_pylist()}
    return content, fragments


def newest_version(index_dir):
    """Return the newest version that is readable, or None."""
    paths = sorted((Path(index_dir) / "versions").glob("[0-9]*.json"), reverse=True)
    for path in paths:
        try:
            return read_version(path)
        except (ValueError, KeyError, TypeError, OSError):
            continue
    return None


def is_fresh(path, entry):
    """Return whether a local file still is the file that was indexed."""
    now = os.stat(path)
    if now.st_size != entry["size"]:
        return False
    is_same = (
        entry["mtime_ns"] == now.st_mtime_ns
        and entry["ctime_ns"] in (0, now.st_ctime_ns)
        and entry["inode"] in (0, now.st_ino)
    )
    written = entry["ctime_ns"] or entry["mtime_ns"]
    rest = 50_000_000 if written % 1_000_000_000 else 2_000_000_000
    if is_same and written + rest < entry["seen_at"]:
        return True
    if not entry["digest"] or now.st_size > 1 << 20:
        return False
    data = Path(path).read_bytes()
    return xxhash.xxh3_128_hexdigest(struct.pack("<Q", len(data)) + data) == entry["digest"]


def domain_of(kind):
    """Return the name of the byte form of a type."""
    if kind in (pa.string(), pa.large_string(), pa.string_view()):
        return "string"
    if kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        return "binary"
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return f"timestamp[{kind.unit}, UTC]"
    return str(kind)


def hashes_of(key):
    """Return the hashes of a key of the column's type, or None if any zone may hold it."""
    if not key.is_valid:
        return []
    if domain_of(key.type) in ("string", "binary"):
        forms = [key.as_buffer().to_pybytes()]
    elif pa.types.is_floating(key.type) and math.isnan(key.as_py()):
        return None
    else:
        keys = [0.0, -0.0] if pa.types.is_floating(key.type) and key.as_py() == 0 else [key]
        width = key.type.byte_width
        forms = [pa.array([k], key.type).buffers()[1].to_pybytes()[:width] for k in keys]
    return [xxhash.xxh64_intdigest(form, seed=0) for form in forms]


def block_of(hashed, num_blocks):
    return ((hashed >> 32) * num_blocks) >> 32


def bits_of(hashed):
    """Return the bit of each of the eight words of a block, from 0 to 31."""
    return [((hashed & 0xFFFFFFFF) * salt & 0xFFFFFFFF) >> 27 for salt in SALT]


def may_hold(blocks, hashed):
    words = struct.unpack_from("<8I", blocks, 32 * block_of(hashed, len(blocks) // 32))
    return all(word >> bit & 1 for word, bit in zip(words, bits_of(hashed), strict=True))


def row_layout(data, segment, hashes):
    """Yield each zone: fragment, first row, length, has_null, and whether it may hold a hash."""
    require(xxhash.xxh3_64_hexdigest(data) == segment["checksum"], "damaged")
    for zone in read_arrow(data).to_pylist():
        blocks = zone["bloom_filter_data"]
        require(blocks and len(blocks) % 32 == 0, "not whole blocks")
        is_hit = any(may_hold(blocks, hashed) for hashed in hashes)
        place = zone["fragment_id"], zone["zone_start"], zone["zone_length"]
        yield *place, zone["has_null"], is_hit


def hash_layout(data, segment, hashes):
    """Yield the same for the file of a hash index."""
    require(segment_checksum(data) == segment["checksum"], "damaged")
    file = HashFile(data)
    hits = set().union(*map(file.zones, hashes))
    nulls, zone = file.zones_with_null, 0
    items = file.head.number_of_items
    for fragment_id, first_row, run_zones, num_rows in file.runs:
        for start in range(0, items * run_zones, items):
            length = num_rows if run_zones == 1 else min(items, num_rows - start)
            yield fragment_id, first_row + start, length, zone in nulls, zone in hits
            zone += 1


LAYOUTS = {
    "BLOOMFILTER": {"bloomfilter.arrow": row_layout},
    "HASH": {"hash.buckets": hash_layout},
}


def zones_of_index(index_dir, index, hashes):
    """Return the zones of an index by fragment: first row, length, has_null, and hit."""
    zones = {}
    for segment in index["segments"]:
        try:
            require(re.fullmatch(r"[0-9a-f]{16}(-[0-9a-z]+)+", segment["name"]), "a bad name")
            path = Path(index_dir, "segments", segment["name"], segment["file"])
            data = path.read_bytes()
            require(len(data) == segment["num_bytes"], "another size")
            read_layout = LAYOUTS[index["kind"]][segment["file"]]
            segment_zones = list(read_layout(data, segment, hashes))
        except (ValueError, KeyError, OSError, struct.error):
            # The fragments of this segment have no zones, so they are read whole.
            continue
        for fragment_id, *zone in segment_zones:
            if fragment_id in segment["fragment_ids"]:
                zones.setdefault(fragment_id, []).append(zone)
    return zones


def find(index_dir, files, column, key):
    """Return for each file the ranges of rows that may hold a key. None means all rows.

    ``files`` has the paths by key of the catalog. ``key`` is a scalar of the column's type. For a
    null, the ranges are of the rows that may be null.
    """
    ranges = dict.fromkeys(files)
    version, hashes = newest_version(index_dir), hashes_of(key)
    if version is None or hashes is None:
        return ranges
    content, fragments = version
    for index in content["indices"]:
        if index["column"] != [column] or index["kind"] not in LAYOUTS or index["field"]:
            continue
        if index["domain"] != domain_of(key.type):
            continue
        zones = zones_of_index(index_dir, index, hashes)
        for name, path in files.items():
            entry = fragments.get(name)
            if entry is None or not is_fresh(path, entry):
                continue
            own = sorted(zones.get(entry["fragment_id"], []))
            stops = [0, *(zone[0] + zone[1] for zone in own)]
            # The zones must cover all rows. Otherwise, some rows may hold any key.
            if [zone[0] for zone in own] == stops[:-1] and stops[-1] == entry["num_rows"]:
                ranges[name] = [
                    (start, start + length)
                    for start, length, has_null, is_hit in own
                    if (is_hit if key.is_valid else has_null)
                ]
        break
    return ranges
