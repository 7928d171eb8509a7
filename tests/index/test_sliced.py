"""Test the sliced layout: lossless conversion, same answers as the row layout, few bytes read."""

from __future__ import annotations

import os
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow.fs as pafs
import pytest
from helpers import cases, hashes_of, reference_filter, run_python
from hypothesis import given, settings
from hypothesis import strategies as st
from seams import replace_function, set_constant

from zonebloom.errors import CorruptIndex, InvalidArgument
from zonebloom.index.table import ZoneRuns
from zonebloom.index.zone_bloom import sliced as sliced_module
from zonebloom.index.zone_bloom import sliced_merge, sliced_walk
from zonebloom.index.zone_bloom.rows import RowTableWriter, read_row_table, write_row_table
from zonebloom.index.zone_bloom.sliced import SlicedTable
from zonebloom.index.zone_bloom.sliced_file import TRAILER
from zonebloom.index.zone_bloom.sliced_merge import merge_tables
from zonebloom.index.zone_bloom.table import Zones
from zonebloom.sbbf import blocks
from zonebloom.storage.random_access import RandomAccessFile

LOCAL = pafs.LocalFileSystem()
ITEMS, PROBABILITY = 10, 0.01


def zones_of(count, num_blocks, seed=0, last=ITEMS):
    """Return zones of one fragment with half of the filter bits set."""
    source = np.random.default_rng(seed)
    filters = np.zeros((count, 8 * num_blocks), dtype=np.uint32)
    for row in filters:
        blocks.insert(row, source.integers(0, 2**64, 6 * num_blocks, dtype=np.uint64))
    lengths = np.full(count, ITEMS, dtype=np.uint64)
    lengths[-1:] = last
    starts = np.arange(count, dtype=np.uint64) * np.uint64(ITEMS)
    return Zones(starts, lengths, source.random(count) < 0.3, filters)


def rows_table(path, fragments, items=ITEMS):
    writer = RowTableWriter(LOCAL, str(path), items, PROBABILITY)
    for fragment_id, zones in fragments:
        writer.write(fragment_id, zones)
    outcome = writer.close()
    return read_row_table(LOCAL, str(path), outcome.num_bytes, outcome.checksum)


def sliced(path, fragments, tile_zones=4096):
    rows = rows_table(f"{path}.rows", fragments)
    return merge_tables([rows], LOCAL, str(path), tile_zones)


def sliced_table(path, fragments, tile_zones=4096, **options):
    outcome = sliced(path, fragments, tile_zones)
    assert outcome.num_bytes == os.path.getsize(path)
    return SlicedTable(LOCAL, str(path), outcome.num_bytes, outcome.checksum, **options)


def both(folder, fragments, tile_zones=4096):
    folder = Path(folder)
    rows = rows_table(folder / "rows", fragments)
    return rows, sliced_table(folder / "sliced", fragments, tile_zones)


def some_hashes(count, seed=1):
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


def places_both_ways(table, hashed):
    """Return the zones that NumPy finds, after checking that the kernels find the same."""
    (places, damaged), by_kernel = (
        table._positions_by_numpy(hashed),
        table._positions_by_kernel(hashed),
    )
    assert (places.tolist(), damaged) == (by_kernel[0].tolist(), by_kernel[1])
    return places


def in_rows(rows, hashes):
    hit = np.zeros(len(rows), dtype=bool)
    blocks.check_filters(rows.words, rows.first_words, rows.num_blocks, hashes, hit)
    return hit


def pairs_in_rows(rows, hashes):
    return {
        (key, zone)
        for key in range(len(hashes))
        for zone in np.flatnonzero(in_rows(rows, hashes[key : key + 1])).tolist()
    }


def pairs_of(table, hashes):
    result = [
        pair
        for keys, zones in table.pairs(hashes)
        for pair in zip(keys.tolist(), zones.tolist(), strict=True)
    ]
    assert len(result) == len(set(result))
    return set(result)


def assert_same(table, rows):
    assert len(table) == len(rows)
    for name in ("fragment_ids", "starts", "lengths", "has_null", "num_blocks"):
        ours, theirs = getattr(table, name), getattr(rows, name)
        assert ours.dtype == theirs.dtype, name
        assert np.array_equal(ours, theirs), name
    assert (table.number_of_items, table.probability) == (rows.number_of_items, rows.probability)


def may_hold(table, hashes):
    hit = np.zeros(len(table), dtype=bool)
    hit[table.find(hashes)] = True
    return hit


def filters_of(table):
    return [words.tobytes() for _, zones in table.zones() for words in zones.filters]


def assert_same_bits(rows, table):
    filters = [rows.filter_words(zone).tobytes() for zone in range(len(rows))]
    assert filters_of(table) == filters_of(rows) == filters


UNLIKE = [
    (4, zones_of(70, 8, 1, last=3)),
    (9, zones_of(5, 1, 2)),
    (9, zones_of(90, 3, 3)),
    (2, zones_of(40, 8, 4, last=1)),
    (7, zones_of(1, 3, 5, last=7)),
]


# Lossless conversion


@given(
    st.lists(st.tuples(st.integers(1, 60), st.sampled_from([1, 2, 5, 8])), min_size=1, max_size=5),
    st.sampled_from([1, 7, 64, 100, 4096]),
)
@settings(max_examples=25)
def test_a_sliced_table_holds_the_rows_it_was_made_from(tmp_path_factory, shapes, tile_zones):
    fragments = [(7 * n, zones_of(*shape, n)) for n, shape in enumerate(shapes)]
    rows, table = both(tmp_path_factory.mktemp("t"), fragments, tile_zones)
    assert_same(table, rows)
    assert_same_bits(rows, table)
    assert table.to_table().equals(rows.to_table(), check_metadata=True)
    hashes = some_hashes(6)
    assert np.array_equal(may_hold(table, hashes), in_rows(rows, hashes))
    assert pairs_of(table, hashes) == pairs_in_rows(rows, hashes)


@pytest.mark.parametrize("num_blocks", [604, 1024])
def test_filters_of_a_build_are_kept(tmp_path, num_blocks):
    rows, table = both(tmp_path, [(0, zones_of(70, num_blocks))])
    assert_same_bits(rows, table)
    for hashed in some_hashes(30)[:, None]:
        assert np.array_equal(may_hold(table, hashed), in_rows(rows, hashed))


@pytest.mark.parametrize("zones", [4095, 4096, 4097, 8200])
def test_tiles_end_where_they_are_full(tmp_path, zones):
    rows, table = both(tmp_path, [(0, zones_of(zones, 1))])
    sizes = [tile.num_zones for tile in table.directory.tiles]
    assert sizes == [4096] * (zones // 4096) + [zones % 4096] * bool(zones % 4096)
    assert all(tile.offset % 4096 == 0 for tile in table.directory.tiles if tile.num_zones == 4096)
    hashes = some_hashes(20)
    assert pairs_of(table, hashes) == pairs_in_rows(rows, hashes)
    assert_same_bits(rows, table)


def test_a_sliced_table_converts_back_to_the_same_row_table(tmp_path):
    fragments = [(3, zones_of(9000, 16, last=4)), (5, zones_of(100, 16, 1))]
    # A build writes 4 MiB of filters per batch.
    batches = [
        (fragment, zones.slice(start, start + 8192))
        for fragment, zones in fragments
        for start in range(0, len(zones), 8192)
    ]
    rows, table = both(tmp_path, batches)
    outcome = write_row_table([table], LOCAL, str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == (tmp_path / "rows").read_bytes()
    assert (outcome.num_bytes, outcome.num_zones) == (rows.num_bytes, 9100)


def test_filters_of_different_sizes_keep_the_order_of_zones(tmp_path):
    rows, table = both(tmp_path, UNLIKE, tile_zones=64)
    assert {tile.num_blocks for tile in table.directory.tiles} == {1, 3, 8}
    assert_same(table, rows)
    assert_same_bits(rows, table)
    for hashes in (some_hashes(1), some_hashes(10), some_hashes(500)):
        result = table.find(hashes)
        assert result.tolist() == np.flatnonzero(in_rows(rows, hashes)).tolist()
        assert pairs_of(table, hashes) == pairs_in_rows(rows, hashes)


def test_a_table_without_zones(tmp_path):
    rows, table = both(tmp_path, [])
    assert_same(table, rows)
    assert may_hold(table, some_hashes(3)).shape == (0,)
    assert list(table.pairs(some_hashes(3))) == []
    assert list(table.zones()) == []
    table.verify()


def test_an_empty_set_of_hashes_is_in_no_zone(tmp_path):
    _, table = both(tmp_path, [(0, zones_of(10, 2))])
    assert not may_hold(table, some_hashes(0)).any()
    assert list(table.pairs(some_hashes(0))) == []


def test_single_zones_are_located(tmp_path):
    rows, table = both(tmp_path, UNLIKE)
    zones = np.array([0, 69, 70, 100, 205], dtype=np.int64)
    ids, starts, lengths = table.runs.locate(zones)
    assert ids.tolist() == rows.fragment_ids[zones].tolist()
    assert starts.tolist() == rows.starts[zones].tolist()
    assert lengths.tolist() == rows.lengths[zones].tolist()


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=9
    )
)
def test_runs_can_represent_any_zones(zones):
    columns = [np.array(column, dtype=np.uint64) for column in zip(*zones, strict=True)]
    runs = ZoneRuns.from_zones(*columns, ITEMS)
    result = runs.locate(np.arange(len(zones), dtype=np.int64))
    assert [column.tolist() for column in result] == [column.tolist() for column in columns]


def test_zones_of_a_fragment_are_one_run():
    zones = zones_of(1000, 1, last=3)
    runs = ZoneRuns.from_zones(np.zeros(1000, dtype=np.uint64), zones.starts, zones.lengths, ITEMS)
    assert runs.num_zones.tolist() == [1000]
    assert runs.num_rows.tolist() == [9993]


# Searches


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("count", [1, 3, 40, 3000])
def test_all_search_methods_agree(tmp_path, count, remote, monkeypatch):
    set_constant(monkeypatch, sliced_walk, "_LOCAL_RUN_BYTES", 1 << 15)
    set_constant(monkeypatch, sliced_walk, "_REMOTE_RUN_BYTES", 1 << 16)
    set_constant(monkeypatch, sliced_walk, "_REMOTE_GAP_BYTES", 1 << 14)
    rows, table = both(tmp_path, [(0, zones_of(150, 60)), (1, zones_of(70, 60, 1))], 64)
    if remote:
        table = SlicedTable(pafs.SubTreeFileSystem(str(tmp_path), LOCAL), "sliced")
    hashes = some_hashes(count)
    hashes[-1] = hashes[0]
    wanted = pairs_in_rows(rows, hashes)
    for one_by_one in (False, True):
        if one_by_one and count > 100:
            continue
        cost = 0 if one_by_one else 1 << 40
        set_constant(monkeypatch, RandomAccessFile, "read_cost", cost)
        set_constant(
            monkeypatch, sliced_module, "_MAX_REMOTE_ROW_SEARCHES", count if one_by_one else 0
        )
        assert pairs_of(table, hashes) == wanted
        assert np.array_equal(may_hold(table, hashes), in_rows(rows, hashes))


def test_numpy_and_kernels_find_the_same_zones(tmp_path):
    rows, table = both(tmp_path, UNLIKE, 64)
    for hashed in some_hashes(20):
        by_numpy = places_both_ways(table, hashed)
        key = np.array([hashed], dtype=np.uint64)
        assert (
            sorted(table._order[by_numpy].tolist()) == np.flatnonzero(in_rows(rows, key)).tolist()
        )


def test_pairs_are_yielded_in_parts(tmp_path, monkeypatch):
    """Every zone holds every hash, so there are many more pairs than are held in memory at once."""
    zones = zones_of(1000, 2)
    zones.filters[:] = 0xFFFFFFFF
    table = sliced_table(tmp_path / "sliced", [(0, zones)])
    set_constant(monkeypatch, sliced_walk, "_MAX_PAIRS", 1 << 12)
    hashes = some_hashes(5000)
    list(table.pairs(hashes[:20]))
    tracemalloc.start()
    sizes = [keys.size for keys, _ in table.pairs(hashes)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(sizes) == 5000 * 1000
    # Small parts are joined until they reach a minimum size.
    assert max(sizes) < (1 << 16) + (1 << 12)
    assert peak < 4 << 20


def test_first_lookup_loads_no_numba_and_reads_eight_rows_per_tile(tmp_path):
    zones = zones_of(200, 64)
    rows, _ = both(tmp_path, [(0, zones)])
    hashed = int(some_hashes(1)[0])
    wanted = np.flatnonzero(in_rows(rows, np.array([hashed], dtype=np.uint64))).tolist()
    code = f"""
        import sys
        import numpy as np
        import pyarrow.fs as pafs
        from zonebloom.index.zone_bloom.sliced import SlicedTable
        table = SlicedTable(pafs.LocalFileSystem(), {str(tmp_path / "sliced")!r})
        opened = table.counter.num_bytes
        found = table.find(np.array([{hashed}], dtype=np.uint64)).tolist()
        read = table.counter.num_bytes - opened
        print(found, read, "numba" in sys.modules)
    """
    row = 4 * 8
    assert run_python(code).strip() == f"{wanted} {8 * row + 256 * 8} False"


def test_a_lookup_of_a_billion_rows_would_read_little(tmp_path):
    """The table has as many zones as a billion rows. The size of filters does not affect reads."""
    fragments = [
        (n, Zones(z.starts, z.lengths, z.has_null, z.filters))
        for n, z in ((n, zones_of(1000, 1, n % 3)) for n in range(122))
    ]
    sliced(tmp_path / "small", fragments)
    small = SlicedTable(LOCAL, str(tmp_path / "small"))
    merge_tables([small], LOCAL, str(tmp_path / "large"))
    table = SlicedTable(LOCAL, str(tmp_path / "large"))
    key = some_hashes(1)
    result = table.find(key)
    assert table.counter.num_bytes < 200_000
    assert table.counter.num_requests <= 2 + 9 * 4
    assert result.tolist() == small.find(key).tolist()


def test_adjacent_tiles_need_one_request_to_an_object_store(tmp_path):
    rows, _ = both(tmp_path, [(0, zones_of(300, 64))], tile_zones=128)
    table = SlicedTable(pafs.SubTreeFileSystem(str(tmp_path), LOCAL), "sliced")
    before = table.counter.num_requests
    key = some_hashes(1)
    assert np.array_equal(may_hold(table, key), in_rows(rows, key))
    assert table.counter.num_requests - before == 1


@pytest.mark.parametrize("count", [2, 300])
def test_many_hashes_find_the_same_rows(tmp_path, count):
    rows, table = both(tmp_path, UNLIKE, 64)
    hashes = some_hashes(count)
    result = [
        pair
        for keys, zones in rows.pairs(hashes)
        for pair in zip(keys.tolist(), zones.tolist(), strict=True)
    ]
    assert len(result) == len(set(result))
    assert set(result) == pairs_of(table, hashes)


@pytest.mark.parametrize("count", [2, 3, 40])
def test_first_of_very_many_hashes_are_looked_up_first(tmp_path, monkeypatch, count):
    """The first hashes may hit every zone, or leave some zones to the other hashes."""
    rows, table = both(tmp_path, UNLIKE, 64)
    expected = in_rows(rows, some_hashes(40))
    set_constant(monkeypatch, sliced_module, "_FIRST_HASHES", count)
    assert np.array_equal(may_hold(table, some_hashes(40)), expected)
    assert not table.find(np.empty(0, dtype=np.uint64)).size


# Append and merge


@pytest.fixture
def one_salt(monkeypatch):
    """Use the same salt in all files, so that files with the same zones have the same bytes."""
    replace_function(monkeypatch, sliced_merge, "new_salt", lambda: 2**64 - 1000)


def test_merge_fills_tiles(tmp_path, one_salt):
    first, second, third = UNLIKE[:2], UNLIKE[2:4], UNLIKE[4:]
    rows, _ = both(tmp_path, UNLIKE)
    base = sliced_table(tmp_path / "base", first)
    other_tables = [
        rows_table(tmp_path / "second", second),
        sliced_table(tmp_path / "third", third),
    ]
    for tile_zones in (32, 100, 32768):
        path = str(tmp_path / f"merged-{tile_zones}")
        outcome = merge_tables([base, *other_tables], LOCAL, path, tile_zones)
        merged = SlicedTable(LOCAL, path, outcome.num_bytes, outcome.checksum)
        repeated_outcome = merge_tables([merged], LOCAL, str(tmp_path / "again"), tile_zones)
        assert (tmp_path / "again").read_bytes() == Path(path).read_bytes()
        assert repeated_outcome.checksum == outcome.checksum
        sizes = [t.num_zones for t in merged.directory.tiles if t.num_blocks == 8]
        assert sizes == [tile_zones] * (110 // tile_zones) + [110 % tile_zones]
        merged.verify()
        assert_same(merged, rows)
        assert_same_bits(rows, merged)
        hashes = some_hashes(30)
        assert np.array_equal(may_hold(merged, hashes), in_rows(rows, hashes))


def test_tables_of_different_parameters_are_not_merged(tmp_path):
    rows = rows_table(tmp_path / "rows", UNLIKE[:1])
    other = rows_table(tmp_path / "other", UNLIKE[:1], items=11)
    with pytest.raises(InvalidArgument, match="2 sets of parameters"):
        merge_tables([rows, other], LOCAL, str(tmp_path / "merged"))


# Damage


@pytest.fixture
def sound(tmp_path):
    rows, table = both(tmp_path, UNLIKE, tile_zones=64)
    return rows, tmp_path / "sliced", table


def damaged_copy(path, change):
    data = bytearray(path.read_bytes())
    change(data)
    copy = path.with_name("damaged")
    copy.write_bytes(data)
    return str(copy)


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(CorruptIndex, match="is not a sliced bloomfilter table"):
        SlicedTable(LOCAL, str(tmp_path / "nowhere"))


def test_size_or_checksum_that_differs_from_the_catalog_is_refused(sound):
    _, path, table = sound
    with pytest.raises(CorruptIndex, match="were written"):
        SlicedTable(LOCAL, str(path), table.num_bytes + 1)
    with pytest.raises(CorruptIndex, match="not the catalog's"):
        SlicedTable(LOCAL, str(path), table.num_bytes, "0" * 16)


def test_a_file_truncated_anywhere_is_reported(sound):
    _, path, _ = sound
    data = path.read_bytes()
    for size in [0, 1, 8, TRAILER.size, len(data) // 2, len(data) - 1]:
        path.with_name("cut").write_bytes(data[:size])
        with pytest.raises(CorruptIndex):
            SlicedTable(LOCAL, str(path.with_name("cut")))
        path.with_name("cut").write_bytes(data[len(data) - size :])
        with pytest.raises(CorruptIndex):
            SlicedTable(LOCAL, str(path.with_name("cut")))


def test_any_flipped_bit_of_the_directory_is_noticed(sound):
    _, path, table = sound
    end = table.num_bytes
    start = max(tile.offset + tile.num_bytes for tile in table.directory.tiles)
    source = random.Random(1)
    reserved = range(end - 12, end - 8)
    for position in source.sample([n for n in range(start, end) if n not in reserved], 60):

        def flip(data, position=position):
            data[position] ^= 1 << source.randrange(8)

        with pytest.raises(CorruptIndex):
            SlicedTable(LOCAL, damaged_copy(path, flip))


@given(st.data())
@settings(max_examples=cases(150))
def test_wrong_numbers_with_a_valid_checksum_are_refused(tmp_path_factory, data):
    import xxhash

    folder = tmp_path_factory.mktemp("lies")
    table = sliced_table(folder / "sliced", UNLIKE[:3], 64)
    whole = bytearray((folder / "sliced").read_bytes())
    size = TRAILER.unpack(whole[-TRAILER.size :])[0]
    start = len(whole) - TRAILER.size - size
    directory = whole[start : start + size]
    position = data.draw(st.integers(0, size // 8 - 1)) * 8
    value = data.draw(
        st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 300), st.sampled_from([2**63, 2**32]))
    )
    directory[position : position + 8] = value.to_bytes(8, "little")
    fields = list(TRAILER.unpack(whole[-TRAILER.size :]))
    fields[1] = xxhash.xxh64_intdigest(bytes(directory))
    whole[start:] = bytes(directory) + TRAILER.pack(*fields)
    (folder / "lie").write_bytes(whole)
    reports = []
    try:
        lying = SlicedTable(LOCAL, str(folder / "lie"), report=reports.append)
    except CorruptIndex:
        return
    # A file with valid checksums may give wrong answers, but reads must stay within bounds.
    assert len(lying.fragment_ids) == len(lying.starts) == len(lying) == len(table)
    may_hold(lying, some_hashes(3))
    assert all(zone < len(lying) for _, zone in pairs_of(lying, some_hashes(300)))


@pytest.mark.parametrize("count", [1, 5000])
@pytest.mark.parametrize("remote", [False, True])
def test_a_damaged_tile_loses_no_row_and_is_reported_once(sound, count, remote):
    rows, path, table = sound
    tile = table.directory.tiles[0]

    def clear(data):
        data[tile.offset : tile.offset + tile.num_bytes] = bytes(tile.num_bytes)

    name = damaged_copy(path, clear)
    reports = []
    location = (
        (pafs.SubTreeFileSystem(str(path.parent), LOCAL), "damaged") if remote else (LOCAL, name)
    )
    result = SlicedTable(*location, table.num_bytes, report=reports.append)
    hashes = some_hashes(count)
    hit, wanted = may_hold(result, hashes), in_rows(rows, hashes)
    assert not (wanted & ~hit).any()
    assert hit[np.sort(table._order[: tile.num_zones])].all()
    assert pairs_of(result, hashes) >= pairs_in_rows(rows, hashes[:1])
    assert len(reports) == 1
    assert isinstance(reports[0], CorruptIndex)
    assert "build the index again" in str(reports[0])
    silent = SlicedTable(*location, table.num_bytes)
    with pytest.raises(CorruptIndex, match="damaged"):
        may_hold(silent, hashes)
    with pytest.raises(CorruptIndex, match="damaged"):
        list(silent.pairs(hashes))
    for use in (silent.verify, lambda: list(silent.zones())):
        with pytest.raises(CorruptIndex, match="bit rows are damaged"):
            use()
    with pytest.raises(CorruptIndex, match="damaged"):
        merge_tables([silent], LOCAL, str(path.with_name("merged")))


@given(st.integers(0, 2**30), st.integers(0, 7))
@settings(max_examples=40)
def test_a_flipped_bit_anywhere_loses_no_row(tmp_path_factory, position, bit):
    folder = tmp_path_factory.mktemp("flip")
    rows, _ = both(folder, UNLIKE[:3], 64)

    def flip(data):
        data[8 + position % (len(data) - 8)] ^= 1 << bit

    reports = []
    try:
        result = SlicedTable(LOCAL, damaged_copy(folder / "sliced", flip), report=reports.append)
    except CorruptIndex:
        return
    for hashes in (some_hashes(1), some_hashes(4000)):
        assert not (in_rows(rows, hashes) & ~may_hold(result, hashes)).any()


@pytest.mark.parametrize("count", [1, 5000])
@pytest.mark.parametrize("remote", [False, True])
def test_exchanged_blocks_are_noticed_as_damage(tmp_path, count, remote):
    """Replace a block by one of another tile, by its neighbour, and by itself."""
    rows, table = both(tmp_path, [(0, zones_of(128, 2))], tile_zones=64)
    first, second = table.directory.tiles
    size = first.block_words * 8
    offsets = [first.offset, first.offset + size, second.offset, second.offset + size]

    def exchange(data):
        whole = [bytes(data[offset : offset + size]) for offset in offsets]
        for offset, block in zip(offsets, [whole[1], whole[0], whole[3], whole[2]], strict=True):
            data[offset : offset + size] = block

    def across(data):
        for one, other in ((offsets[0], offsets[2]), (offsets[1], offsets[3])):
            data[one : one + size], data[other : other + size] = (
                data[other : other + size],
                data[one : one + size],
            )

    for change in (exchange, across):
        name = damaged_copy(tmp_path / "sliced", change)
        location = (pafs.SubTreeFileSystem(str(tmp_path), LOCAL), "damaged")
        reports = []
        result = SlicedTable(*(location if remote else (LOCAL, name)), report=reports.append)
        hashes = some_hashes(count)
        assert not (in_rows(rows, hashes) & ~may_hold(result, hashes)).any()
        assert may_hold(result, hashes).all()
        assert len(reports) == 1
        with pytest.raises(CorruptIndex, match="bit rows are damaged"):
            result.verify()


@pytest.mark.parametrize("count", [1, 5000])
def test_tiles_of_another_file_are_noticed_as_damage(tmp_path, count):
    """The other file has the same zones, so only the filters differ."""
    rows = {}
    for name, seed in (("one", 1), ("other", 2)):
        (tmp_path / name).mkdir()
        rows[name], _ = both(tmp_path / name, [(0, zones_of(70, 4, seed))])
    one, other = (SlicedTable(LOCAL, str(tmp_path / name / "sliced")) for name in rows)
    (tile,) = one.directory.tiles
    assert tile._replace(seed=0) == other.directory.tiles[0]._replace(seed=0)
    theirs = (tmp_path / "other" / "sliced").read_bytes()

    def swap(data):
        data[tile.offset : tile.offset + tile.num_bytes] = theirs[tile.offset :][: tile.num_bytes]

    reports = []
    mixed = SlicedTable(
        LOCAL, damaged_copy(tmp_path / "one" / "sliced", swap), report=reports.append
    )
    hashes = some_hashes(count)
    assert not (in_rows(rows["one"], hashes) & ~may_hold(mixed, hashes)).any()
    assert len(reports) == 1


def test_a_whole_file_of_another_index_is_refused(tmp_path):
    """The directories would be identical except for salt and digest."""
    no_nulls = np.zeros(70, dtype=bool)
    outcome = {}
    for name, seed in (("one", 1), ("other", 2)):
        zones = zones_of(70, 4, seed)
        zones = Zones(zones.starts, zones.lengths, no_nulls, zones.filters)
        outcome[name] = sliced(tmp_path / name, [(0, zones)])
    one, other = outcome["one"], outcome["other"]
    assert one.num_bytes == other.num_bytes
    SlicedTable(LOCAL, str(tmp_path / "one"), one.num_bytes, one.checksum).verify()
    with pytest.raises(CorruptIndex, match="not the catalog's"):
        SlicedTable(LOCAL, str(tmp_path / "other"), one.num_bytes, one.checksum)


def test_padding_that_changed_is_noticed_by_validate(tmp_path):
    """No lookup reads the padding, but the digest of the content includes it."""
    table = sliced_table(tmp_path / "sliced", [(0, zones_of(4096, 1))])
    (tile,) = table.directory.tiles
    table.verify()
    assert tile.offset == 4096

    def change(data):
        data[100] ^= 1

    changed = SlicedTable(LOCAL, damaged_copy(tmp_path / "sliced", change))
    with pytest.raises(CorruptIndex, match="its content is not what was written"):
        changed.verify()


# Files of version 1, which have no salt


GOLDEN = Path(__file__).parents[1] / "golden" / "version-1.sliced"
# Fragment, zones, blocks per filter, rows of the last zone. Each zone has three values.
GOLDEN_FRAGMENTS = [(4, 70, 2, 1), (9, 5, 1, 3)]


def golden_filters():
    """Return the filters of the file, zone after zone, computed by the pure Python reference."""
    for fragment, zones, num_blocks, _ in GOLDEN_FRAGMENTS:
        for zone in range(zones):
            values = [f"{fragment}/{zone}/{n}".encode() for n in range(3)]
            yield values, reference_filter(num_blocks, values)


def test_a_file_of_version_1_gives_the_same_answers(tmp_path):
    table = SlicedTable(LOCAL, str(GOLDEN), 20805, "60884a04a6a224c2")
    table.verify()
    assert (len(table), table.number_of_items, table.probability) == (75, 3, 0.01)
    assert table.fragment_ids.tolist() == [4] * 70 + [9] * 5
    assert table.lengths.tolist() == [3] * 69 + [1] + [3] * 5
    assert table.has_null.tolist() == [n % 3 == 0 for n in [*range(70), *range(5)]]
    filters = list(golden_filters())
    # A file merged from it has the current version and the same bits.
    outcome = merge_tables([table], LOCAL, str(tmp_path / "merged"))
    merged = SlicedTable(LOCAL, str(tmp_path / "merged"), outcome.num_bytes, outcome.checksum)
    merged.verify()
    written = write_row_table([table], LOCAL, str(tmp_path / "rows"))
    for candidate in (table, merged):
        filters_now = filters_of(candidate)
        rows = read_row_table(LOCAL, str(tmp_path / "rows"), written.num_bytes, written.checksum)
        hashes = hashes_of([value for values, _ in filters for value in values])
        for zone, (_, wanted) in enumerate(filters):
            assert filters_now[zone] == wanted
            for hashed in hashes[3 * zone : 3 * zone + 3]:
                assert zone in candidate.find(hashed.reshape(1))
                places_both_ways(candidate, hashed)
        assert pairs_of(candidate, hashes) == pairs_in_rows(rows, hashes)


def test_damage_to_a_file_of_version_1_is_noticed(tmp_path):
    (tmp_path / "golden").write_bytes(GOLDEN.read_bytes())
    offset = SlicedTable(LOCAL, str(GOLDEN)).directory.tiles[0].offset

    def clear(data):
        data[offset : offset + 2000] = bytes(2000)

    table = SlicedTable(LOCAL, damaged_copy(tmp_path / "golden", clear))
    with pytest.raises(CorruptIndex, match="bit rows are damaged"):
        table.verify()


@pytest.mark.parametrize("count", [1, 5000])
def test_a_file_truncated_after_opening_loses_no_row(sound, count):
    rows, path, _ = sound
    reports = []
    result = SlicedTable(LOCAL, str(path), report=reports.append)
    os.truncate(path, result.directory.tiles[1].offset)
    hashes = some_hashes(count)
    assert not (in_rows(rows, hashes) & ~may_hold(result, hashes)).any()
    assert len(reports) == 1
    places_both_ways(result, hashes[0])


def test_several_threads_can_search_one_table(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    rows, table = both(tmp_path, UNLIKE, 64)
    hashes = some_hashes(200)
    with ThreadPoolExecutor(4) as pool:
        result = list(pool.map(lambda key: may_hold(table, key), hashes[:, None]))
    assert all(
        np.array_equal(hit, in_rows(rows, key))
        for hit, key in zip(result, hashes[:, None], strict=True)
    )
