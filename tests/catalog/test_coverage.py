"""Coverage: which files are unchanged since they were indexed, and which ids the others get."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.helpers import cases

from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT, OFFSET_BITS
from zonebloom.catalog.coverage import Drift, FragmentColumns, compute_coverage, measure_drift
from zonebloom.catalog.model import IndexEntry, KnownFragment, Segment, Version
from zonebloom.errors import NoFragments, SourceError
from zonebloom.sources.source import Fragment
from zonebloom.storage.files import UNKNOWN_MTIME, FileIdentity, is_at_rest

SAME = FileIdentity(1000, 5_000_000_000)


def files(*keys):
    return [Fragment(f"/data/{key}", key, pc.scalar(True)) for key in keys]


def version(*keys, next_fragment_id=10):
    seen_at = 90_000_000_000
    fragments = {
        key: KnownFragment(i, key, SAME, 100 + i, "", seen_at) for i, key in enumerate(keys)
    }
    return Version(3, next_fragment_id, fragments, {})


def shown(coverage):
    return [(p.fragment.key, p.fragment_id, p.is_known, p.num_rows) for p in coverage.fragments]


@pytest.mark.parametrize("seed", range(cases(20)))
def test_many_files_are_matched_as_each_of_them(seed, tmp_path):
    """Columns of a catalog decide by the rules of `zonebloom.catalog.freshness` for each file."""
    dice = random.Random(seed)
    second = 10**9
    times, tags = [0, 3 * second, 3 * second + 5, 9 * second], ["", '"a"', "a", "b"]

    def identity():
        time = dice.choice(times[1:])
        mtime = dice.choice([time, time, UNKNOWN_MTIME])
        return FileIdentity(
            dice.choice([5, 5, 6]),
            mtime,
            dice.choice(times),
            dice.choice(tags),
            dice.choice([0, 7]),
        )

    entries, current = {}, []
    for number in range(50):
        now = dice.choice([None, identity(), identity(), identity()])
        indexed = dice.choice([now, now, identity()]) or identity()
        current.append(now)
        digest, seen_at = dice.choice(["", "0" * 32]), dice.choice([0, 4 * second, 90 * second])
        if dice.random() < 0.9:
            entry = KnownFragment(number, f"{number}", indexed, 10, digest, seen_at)
            entries[entry.key] = entry
    version = Version(next_fragment_id=100, fragments=entries)
    listed = [Fragment(str(tmp_path / str(number)), str(number)) for number in range(50)]
    columns = FragmentColumns(*map(pa.array, zip(*(file[:2] for file in listed), strict=True)))
    wanted = []
    for file, now in zip(listed, current, strict=True):
        if now is not None:
            entry = entries.get(file.key)
            is_known = entry is not None and is_unchanged_by_identity(entry, now)
            wanted.append((file, now, int(file.key) + (0 if is_known else 100), is_known))
    for fragments in (listed, columns):
        coverage = compute_coverage(fragments, current, version, lambda key, _: 100 + int(key))
        found = coverage.fragments
        assert [(f.fragment, f.identity, f.fragment_id, f.is_known) for f in found] == wanted
        unknown = tuple(file for file in found if not file.is_known)
        assert coverage.unknown_fragments == unknown
        assert all(file.is_new == (file.fragment.key not in entries) for file in unknown)
        assert coverage.known_ids == {file.fragment_id for file in found} - {
            file.fragment_id for file in unknown
        }
        missing = [file.key for file, now in zip(listed, current, strict=True) if now is None]
        assert coverage.missing_keys == tuple(missing)


def is_unchanged_by_identity(entry, now):
    """Return whether a file is unchanged whose content cannot be read."""
    if now.mtime_ns == UNKNOWN_MTIME and not now.tag:
        return False
    at_rest = is_at_rest(now if entry.identity.tag else entry.identity, entry.seen_at)
    return entry.identity.is_still(now) and at_rest


def test_new_files_get_unused_ids():
    coverage = compute_coverage(files("x", "a", "y"), [SAME] * 3, version("a", next_fragment_id=7))
    assert shown(coverage) == [("x", 7, False, None), ("a", 0, True, 100), ("y", 8, False, None)]
    assert coverage.fragments[0].reason == "not indexed"


def test_a_dataset_without_any_existing_file_raises():
    with pytest.raises(NoFragments, match="open it again"):
        compute_coverage(files("a", "b"), [None, None], version("a"))


def test_the_universe_has_every_row_and_only_unknown_files_are_counted():
    coverage = compute_coverage(files("a", "new"), [SAME, SAME], version("a"))
    counted = []

    def count(fragment):
        counted.append(fragment.fragment.key)
        return 42

    assert list(coverage.all_rows(count)) == [
        (0, 100),
        (10 << OFFSET_BITS, (10 << OFFSET_BITS) + 42),
    ]
    assert counted == ["new"]


def test_an_empty_fragment_is_no_part_of_the_universe():
    coverage = compute_coverage(files("a", "new"), [SAME, SAME], version("a"))
    assert list(coverage.all_rows(lambda _: 0)) == [(0, 100)]


def test_a_fragment_with_too_many_rows_for_an_address_raises():
    coverage = compute_coverage(files("new"), [SAME], version())
    assert len(coverage.all_rows(lambda _: MAX_ROWS_PER_FRAGMENT)) == MAX_ROWS_PER_FRAGMENT
    with pytest.raises(SourceError, match=r"/data/new has 4,294,967,296 .* 4,294,967,295"):
        coverage.all_rows(lambda _: MAX_ROWS_PER_FRAGMENT + 1)


# How files changed since an index was built


def indexed(version, **ids):
    entries = [
        IndexEntry(
            name,
            ("id",),
            "int64",
            "BLOOMFILTER",
            {"number_of_items": 8192},
            (Segment("s", "bloomfilter.arrow", 1, "", 1, fragment_ids),),
        )
        for name, fragment_ids in ids.items()
    ]
    return version.with_indices({entry.name: entry for entry in entries})


def test_a_rewritten_file_counts_as_appended_and_deleted():
    version_3 = indexed(version("a", "b", "c"), all=(0, 1, 2), some=(0, 1))
    larger = FileIdentity(1001, SAME.mtime_ns)
    present = compute_coverage(files("a", "b", "d"), [SAME, larger, SAME], version_3).fragments
    drift = measure_drift(version_3, ["all"], present)
    assert drift == Drift(indexed=(1000,) * 3, appended=(1001, 1000), deleted=(1000, 1000))
    # A fragment is covered if all indices cover it.
    drift_of_both = measure_drift(version_3, ["all", "some"], present)
    assert drift_of_both == Drift(indexed=(1000, 1000), appended=(1001, 1000), deleted=(1000,))
    assert not measure_drift(version_3, ["all", "none"], present).indexed


def test_a_file_that_the_catalog_lost_counts_as_deleted_with_the_mean_size():
    version_3 = indexed(version("a"), all=(0, 7))
    drift = measure_drift(
        version_3, ["all"], compute_coverage(files("a"), [SAME], version_3).fragments
    )
    assert drift == Drift(indexed=(1000, 1000), appended=(), deleted=(1000,))
