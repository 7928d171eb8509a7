"""Bodies of pages with a bit flipped: pyarrow's values, or a refusal where pyarrow refuses."""

from __future__ import annotations

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import cases
from storage.parquet.parquet_helpers import File, same

from zonebloom.errors import FragmentUnreadable
from zonebloom.ranges import RowRanges

ROWS = 300
VALUES = {
    "int64": pa.array([i * i % 91 if i % 7 else None for i in range(ROWS)], pa.int64()),
    "binary": pa.array([f"{'xyz' * (i % 4)}{i % 50}" for i in range(ROWS)], pa.binary()),
}
EVERYTHING = RowRanges([(0, ROWS)])


def read(data: bytes) -> pa.ChunkedArray | None:
    try:
        table = pq.ParquetFile(io.BytesIO(data)).read()
    except (pa.ArrowException, OSError):
        return None
    return table.column(0) if table.num_rows == ROWS else None


@pytest.mark.parametrize("use_dictionary", [False, True])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd", "lz4"])
@pytest.mark.parametrize("kind", VALUES)
def test_flipped_bits(kind: str, codec: str, version: str, use_dictionary: bool) -> None:
    sink = io.BytesIO()
    pq.write_table(
        pa.table({"x": VALUES[kind]}),
        sink,
        compression=codec,
        data_page_version=version,
        use_dictionary=use_dictionary,
        write_page_index=True,
    )
    sound = sink.getvalue()
    file = File(sound)
    assert file.rows_by_kernels(0, EVERYTHING, file.indexed, [0])
    whole = pa.chunked_array([VALUES[kind]])
    chunk = file.footer.row_groups[0].chunks[0]
    rng = random.Random(f"{kind} {codec} {version}")
    refused = 0
    for _ in range(cases(100)):
        data = bytearray(sound)
        data[rng.randrange(chunk.start, chunk.stop)] ^= 1 << rng.randrange(8)
        wanted = read(bytes(data))
        damaged = File(bytes(data))
        try:
            found = damaged.rows_by_kernels(0, EVERYTHING, damaged.indexed, [0])
        except FragmentUnreadable:
            refused += 1
            continue
        # What kernels do not decode they leave to pyarrow; it minds headers they do not need.
        if found and not same(found[0], whole):
            assert wanted is not None
            assert same(found[0], wanted)
    assert refused or codec == "none"
