"""The catalog: versions, concurrent writers, crashes, damage and forged files."""

from __future__ import annotations

import errno
import json
import math
import os
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
import xxhash
from support.helpers import flipped_bits, rewrite_document, without_privileges
from support.seams import replace_function, set_constant

from zonebloom.catalog import store as catalog_module
from zonebloom.catalog import vacuum as vacuum_module
from zonebloom.catalog import version_log as log_module
from zonebloom.catalog.fragment_table import (
    LISTING_SCHEMA,
)
from zonebloom.catalog.model import (
    GlobalFilterEntry,
    IndexEntry,
    KnownFragment,
    PageMapEntry,
    Segment,
    Version,
)
from zonebloom.catalog.store import Catalog
from zonebloom.catalog.vacuum import vacuum_catalog
from zonebloom.catalog.version_log import FORMAT_VERSION, from_json
from zonebloom.errors import (
    CatalogError,
    CommitConflict,
    CorruptIndex,
    IndexNotUsedWarning,
    SourceError,
)
from zonebloom.storage.files import FileIdentity
from zonebloom.storage.local_files import NewFile

LOCAL = pafs.LocalFileSystem()
# Prefixes of segment names, as builds create them.
ABC, ABD = "abcabcabcabcabca", "abdabdabdabdabda"
AAA, BBB, DDD, EEE, MINE = (digit * 16 for digit in "abde1")


def fragment(number, key=None):
    return KnownFragment(number, key or f"part/{number}.parquet", FileIdentity(10, 20), 30)


def entry(name="id_idx", segments=1):
    # No two indices share a segment.
    end = "" if name == "id_idx" else f"-{int.from_bytes(name.encode())}"
    return IndexEntry(
        name,
        ("st", "id"),
        "int64",
        "BLOOMFILTER",
        {"number_of_items": 100, "probability": 0.01, "fold": True},
        tuple(
            Segment(f"{ABC}-{i:04d}{end}", "bloomfilter.arrow", 1000 + i, "00ff", 7, (0, 1))
            for i in range(segments)
        ),
        "2026-01-01T00:00:00+00:00",
    )


class Filled(Catalog):
    """A catalog that writes the files of segments before it commits them."""

    def commit(self, change):
        def filled(latest):
            version = change(latest)
            for entry in version.indices.values():
                for segment in entry.segments:
                    path = self.path(segment.name, "bloomfilter.arrow")
                    if self.filesystem.get_file_info(path).size == segment.num_bytes:
                        continue
                    # Concurrent writers of a test share the name, unlike builds.
                    self.store.replace(path, bytes(segment.num_bytes))
            return version

        return super().commit(filled)


def adding(name, fragments=2):
    """Return a change that adds an index, and entries of fragments."""

    def change(latest):
        new_fragments = {f.key: f for f in map(fragment, range(fragments))}
        return replace(
            latest,
            next_fragment_id=max(latest.next_fragment_id, fragments),
            fragments={**latest.fragments, **new_fragments},
            indices={**latest.indices, name: entry(name)},
        )

    return change


@pytest.fixture(params=["local", "other"])
def catalog(request, tmp_path):
    """Return a catalog on the local file system, or on one that `os` functions do not reach."""
    if request.param == "local":
        return Filled(LOCAL, str(tmp_path / "_zonebloom"))
    return Filled(pafs.SubTreeFileSystem(str(tmp_path), LOCAL), "_zonebloom")


@pytest.fixture
def local(tmp_path):
    return Filled(LOCAL, str(tmp_path / "_zonebloom"))


def anew(catalog):
    """Return the same catalog, as another process opens it."""
    return Filled(catalog.filesystem, catalog.folder)


def versions_of(catalog):
    return Path(catalog.folder) / "versions"


def json_of(catalog, number):
    return versions_of(catalog) / f"{number:020d}.json"


def tree(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# Versions


def test_reading_a_folder_without_a_catalog_gives_version_0_and_writes_nothing(catalog, tmp_path):
    assert catalog.latest() == Version()
    assert list(tmp_path.iterdir()) == []


def test_round_trip_of_a_version(catalog):
    written = catalog.commit(
        lambda latest: Version(
            99,
            5,
            {f.key: f for f in (fragment(0), fragment(4, "a=1/é x.parquet"))},
            {e.name: e for e in (entry("one"), entry("two", segments=3))},
        )
    )
    assert written.number == 1
    assert anew(catalog).latest() == catalog.latest() == written
    assert catalog.latest().indices["two"].num_bytes == 1000 + 1001 + 1002


def test_a_change_that_raises_writes_nothing(local, tmp_path):
    def refuse(latest):
        raise CommitConflict("no")

    with pytest.raises(CommitConflict, match="no"):
        local.commit(refuse)
    assert tree(tmp_path) == {}


# Several writers


def test_eight_concurrent_writers_all_commit_and_readers_see_whole_versions(local):
    names = [f"idx{i}" for i in range(8)]
    barrier = threading.Barrier(len(names))
    stop_event = threading.Event()
    trouble = []

    def write(name):
        barrier.wait()
        return local.commit(adding(name, fragments=40)).number

    def read():
        newest_number = 0
        try:
            # An unreadable version would warn, and warnings are errors in tests.
            while not stop_event.is_set():
                latest = local.latest()
                assert latest.number >= newest_number
                assert len(latest.indices) == latest.number
                newest_number = latest.number
        except Exception as error:  # noqa: BLE001 - handed to the test's thread
            trouble.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    with ThreadPoolExecutor(len(names)) as pool:
        numbers = list(pool.map(write, names))
    stop_event.set()
    reader.join()
    assert trouble == []
    assert sorted(numbers) == list(range(1, 9))
    assert sorted(local.latest().indices) == names


def test_a_losing_writer_never_damages_the_winners_version(local, monkeypatch):
    first = local.commit(adding("a"))

    def fail(descriptor):
        raise OSError("disk full")

    # Both use the same number and the same fragments. The loser dies writing its listing.
    replace_function(monkeypatch, os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        local._create(first, Version())
    monkeypatch.undo()
    assert anew(local).latest() == first
    assert local._create(replace(first, indices={}), Version()) is None
    assert local.latest() == anew(local).latest() == first


def test_an_overtaken_writer_repeats_its_change_on_the_newer_version(local):
    calls = []

    def change(latest):
        calls.append(latest.number)
        if len(calls) == 1:
            local.commit(adding("other"))
        return adding("mine")(latest)

    assert local.commit(change).number == 2
    assert calls == [0, 1]
    assert sorted(local.latest().indices) == ["mine", "other"]


def test_a_writer_that_is_always_overtaken_raises_a_clear_error(local, monkeypatch):
    set_constant(monkeypatch, catalog_module, "_MAX_TRIES", 3)

    def change(latest):
        local._create(replace(adding("other")(latest), number=latest.number + 1), latest)
        return adding("mine")(latest)

    with pytest.raises(CommitConflict, match="3 times meanwhile; try again"):
        local.commit(change)
    assert list(local.latest().indices) == ["other"]


# Crashes


def test_readers_ignore_files_that_a_crash_left(local):
    first = local.commit(adding("a"))
    folder = versions_of(local)
    (folder / ".0123456789abcdef").write_bytes(b'{"format_version": 1')
    (folder / f"{2:020d}-0000000000000000.arrow").write_bytes(b"ARROW1")
    (folder / "2.json").write_bytes(b"{}")
    (folder / f"{9:020d}.json.tmp").write_bytes(b"{}")
    assert local.latest() == first
    second = local.commit(adding("b"))
    assert second.number == 2
    assert local.latest() == second


@pytest.mark.parametrize("call", ["link", "fsync", "replace"])
def test_a_crash_while_committing_leaves_the_last_version_and_the_next_commit_works(
    local, monkeypatch, call
):
    first = local.commit(adding("a"))

    def crash(*_, **__):
        raise KeyboardInterrupt

    replace_function(monkeypatch, os, call, crash)
    with pytest.raises(KeyboardInterrupt):
        local.commit(adding("b", fragments=3))
    monkeypatch.undo()
    assert local.latest() == first
    assert not [name for name in tree(versions_of(local)) if name.startswith(".")]
    assert local.commit(adding("b")).number == 2


# Damage


def check_falls_back(catalog, expected, match="cannot be read"):
    with pytest.warns(IndexNotUsedWarning, match=match) as caught:
        assert catalog.latest() == expected
    assert len(caught) == 1


def listing_of(catalog, number):
    (listing,) = versions_of(catalog).glob(f"{number:020d}-*.arrow")
    return listing


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "gone"])
@pytest.mark.parametrize("which", [json_of, listing_of])
def test_a_damaged_newest_version_is_reported_and_the_previous_one_is_used(local, which, damage):
    first = local.commit(adding("a"))
    local.commit(adding("b", fragments=3))
    path = which(local, 2)
    if damage == "gone" and which is json_of:
        path.unlink()
        assert local.latest() == first
        return
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        data[0] ^= 0xFF
        path.write_bytes(data)
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
    local = anew(local)
    check_falls_back(local, first)
    with pytest.warns(IndexNotUsedWarning):
        third = local.commit(adding("c"))
    assert third.number == 3
    assert sorted(third.indices) == ["a", "c"]
    assert local.latest() == third


@pytest.mark.slow
@pytest.mark.parametrize("which", [json_of, listing_of])
def test_every_flipped_bit_of_a_version_is_noticed(local, which):
    first = local.commit(adding("a"))
    local.commit(adding("b", fragments=3))
    path = which(local, 2)
    for damaged in flipped_bits(path.read_bytes()):
        path.write_bytes(damaged)
        check_falls_back(anew(local), first)


# Forged files


def forge(catalog, number, change):
    """Rewrite the JSON document of a version."""
    rewrite_document(json_of(catalog, number), change)


def put(*path, value):
    def change(document):
        node = document
        for step in path[:-1]:
            node = node[step]
        node[path[-1]] = value

    change.__name__ = f"{'.'.join(map(str, path))}={str(value)[:30]}"
    return change


def dropped(*path):
    def change(document):
        node = document
        for step in path[:-1]:
            node = node[step]
        del node[path[-1]]

    change.__name__ = f"no {'.'.join(map(str, path))}"
    return change


SEGMENT = ("indices", 0, "segments", 0)


def page_map(**parts):
    return {"segment": "a", "num_bytes": 1, "checksum": "00", "fragment_ids": [0], **parts}


HOSTILE = [
    *(
        put(*where, value=name)
        for where in (("fragments", 0, "file"), (*SEGMENT, "name"))
        for name in (
            "../../etc/passwd",
            "/etc/passwd",
            "..",
            "a/b",
            "a\\..\\b",
            "a..b",
            ".hidden",
            "",
            "a\0b",
            "a\n",
            None,
            7,
            ["a"],
        )
    ),
    *(put("next_fragment_id", value=value) for value in (-1, 1, 2**63, "many", math.inf)),
    *(put(*SEGMENT, "fragment_ids", value=[value]) for value in (None, -1, 2**70)),
    put("indices", 0, "column", value=[]),
    *(
        put("indices", 0, "parameters", value=value)
        for value in ({"number_of_items": 0}, {"probability": 2}, {"fold": "best"}, {"evil": 1})
    ),
    put("fragments", 0, "checksum", value="0"),
    put("fragments", 0, "num_bytes", value=5),
    put("version", value=1),
    dropped("fragments", 0, "file"),
    lambda document: document["fragments"].append(document["fragments"][0]),
    lambda document: document["fragments"].append({"file": "../a", "checksum": "0"}),
    lambda document: document["fragments"].append(5),
    lambda document: [],
]


HOSTILE_PAGE_MAPS = [
    5,
    [{"segment": "../a"}],
    *([page_map(**part)] for part in ({"segment": "../a"}, {"fragment_ids": [3]})),
    [page_map(num_bytes="1")],
]


@pytest.mark.parametrize(
    "change",
    [*HOSTILE, *(put("page_maps", value=value) for value in HOSTILE_PAGE_MAPS)],
    ids=lambda change: change.__name__,
)
def test_an_invalid_version_is_not_used(local, change):
    first = local.commit(adding("a"))
    local.commit(adding("b", fragments=3))
    forge(local, 2, change)
    check_falls_back(local, first)


def replaced(value, other):
    """Yield a JSON value with each part replaced in turn, and with an unknown part added."""
    yield other
    if isinstance(value, dict):
        yield {**value, "unknown": 1}
    keys = range(len(value)) if isinstance(value, list) else value
    for key in keys if isinstance(value, dict | list) else ():
        for part in replaced(value[key], other):
            changed = value.copy()
            changed[key] = part
            yield changed


def test_records_are_read_back_unchanged_or_raise():
    written = replace(entry(), global_filter=GlobalFilterEntry("g", 1, "00", (0,), 5, 0.5))
    value = json.loads(json.dumps(asdict(written)))
    assert from_json(IndexEntry, value) == written
    assert from_json(IndexEntry, {**value, "global_filter": None}).global_filter is None
    # The kind of an index checks what its parameters are, and `rule_of` what its rule is.
    parameters = value.pop("parameters")
    del value["rule"]
    for other in (object(), b"", {"a": 1}, [[]]):
        for changed in replaced(value, other):
            if isinstance(changed, dict):
                changed = {"parameters": parameters, **changed}
            with pytest.raises(ValueError):
                from_json(IndexEntry, changed)
    for other in (object(), b"", [[]], None):
        with pytest.raises(ValueError):
            from_json(IndexEntry, {**value, "parameters": other})


def test_too_deeply_nested_json_is_not_used(local):
    first = local.commit(adding("a"))
    local.commit(adding("b"))
    json_of(local, 2).write_text("[" * 200_000)
    check_falls_back(local, first)


def test_the_error_names_a_version_of_a_newer_format(local):
    first = local.commit(adding("a"))
    local.commit(adding("b"))
    with pytest.MonkeyPatch.context() as patch:
        set_constant(patch, log_module, "FORMAT_VERSION", FORMAT_VERSION + 1)
        forge(local, 2, lambda content: content)
    with pytest.raises(CorruptIndex, match="newer zonebloom"):
        local.commit(adding("c"))
    check_falls_back(local, first, match="newer zonebloom .*install that one")


# The fields of a listing after the number of rows.
OTHERS = (8, "tag", 2**64 - 1, "digest", 9, "footer")


def forge_listing(catalog, number, rows, fields=LISTING_SCHEMA, nullable=False):
    """Replace the fragments of a version, with a valid checksum."""
    schema = pa.schema([field.with_nullable(nullable) for field in fields])
    columns = [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    data = sink.getvalue().to_pybytes()
    listing_of(catalog, number).write_bytes(data)
    forge(catalog, number, put("fragments", 0, "checksum", value=xxhash.xxh3_64_hexdigest(data)))
    forge(catalog, number, put("fragments", 0, "num_bytes", value=len(data)))


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([(0, "a", 1, 1, -1), (1, "b", 1, 1, 1)], id="negative rows"),
        pytest.param([(0, "a", 1, 1, 2**32), (1, "b", 1, 1, 1)], id="too many rows"),
        pytest.param([(0, "a", 1, 1, 1), (0, "b", 1, 1, 1)], id="an id twice"),
        pytest.param([(0, "a", 1, 1, 1), (1, "a", 1, 1, 1)], id="a key twice"),
        pytest.param([(0, "a", 1, 1, 1), (3, "b", 1, 1, 1)], id="an id not given yet"),
        pytest.param([(2**64 - 1, "a", 1, 1, 1)], id="an id of 64 bits"),
        pytest.param([(0, "a", 1, 1, None)], id="null"),
    ],
)
def test_invalid_fragments_are_not_used(local, rows):
    first = local.commit(adding("a"))
    local.commit(adding("b", fragments=3))
    forge_listing(local, 2, [(*row, *OTHERS) for row in rows])
    check_falls_back(local, first)


def test_as_many_rows_as_addresses_have_room_for(local):
    """Commits and readers have one limit, so a commit never writes what no reader takes."""

    def with_rows(num_rows):
        return lambda latest: replace(
            latest,
            next_fragment_id=1,
            fragments={"f0": fragment(0)._replace(key="f0", num_rows=num_rows)},
        )

    limit = 2**32 - 1
    written = local.commit(with_rows(limit))
    assert Catalog(LOCAL, local.folder).latest().fragments["f0"].num_rows == limit
    with pytest.raises(SourceError, match=r"f0 has 4,294,967,296 rows.* at most 4,294,967,295"):
        local.commit(with_rows(limit + 1))
    assert Catalog(LOCAL, local.folder).latest().number == written.number


def test_a_well_formed_forgery_is_read(local):
    # Check the forging itself: without a change, the version is valid.
    local.commit(adding("a"))
    forge_listing(local, 1, [(1, "x", 5, 6, 7, *OTHERS)])
    identity = FileIdentity(5, 6, 8, "tag", 2**64 - 1)
    forged = KnownFragment(1, "x", identity, 7, "digest", 9, "footer")
    assert local.latest().fragments == {"x": forged}
    fragments = local.latest().fragments
    local.commit(lambda latest: replace(latest, fragments=fragments))
    assert local.latest().fragments == fragments


@pytest.mark.parametrize("name", ["document", "listing"])
@pytest.mark.parametrize("kind", ["pipe", "sparse"])
def test_a_pipe_or_a_huge_file_is_not_read(local, name, kind):
    first = local.commit(adding("a"))
    local.commit(adding("b", fragments=3))
    path = json_of(local, 2) if name == "document" else listing_of(local, 2)
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        with open(path, "wb") as file:
            file.truncate(40 << 30)
    start = time.monotonic()
    check_falls_back(anew(local), first)
    assert time.monotonic() - start < 10


def grown(key, fragments):
    """Return a change that adds so many fragments."""

    def change(latest):
        first = latest.next_fragment_id
        new = [fragment(i, f"{key}/{i}") for i in range(first, first + fragments)]
        all_fragments = {**latest.fragments, **{fragment.key: fragment for fragment in new}}
        return replace(latest, next_fragment_id=first + fragments, fragments=all_fragments)

    return change


@pytest.mark.slow
def test_a_commit_lists_what_it_adds_and_listings_stay_few(local):
    local.commit(grown("a", 5000))
    written, max_listings = 0, 0
    for number in range(300):
        before = set(versions_of(local).glob("*.arrow"))
        version = local.commit(grown("b", 1))
        new = set(versions_of(local).glob("*.arrow")) - before
        assert len(new) == 1
        written += sum(path.stat().st_size for path in new)
        max_listings = max(max_listings, len(version.listings))
        if number % 50 == 7:
            vacuum_catalog(local, timedelta(0))
            assert len(list(versions_of(local).glob("*.arrow"))) == len(version.listings)
            assert anew(local).latest() == version
    assert max_listings == 3
    (whole,) = versions_of(local).glob(version.listings[0].file)
    assert written < 16 * whole.stat().st_size
    # Changed fragments go to a new listing. After a deletion, all fragments are listed anew.
    changed = fragment(7, "a/7")._replace(num_rows=5)
    at_rest = local.commit(
        lambda latest: replace(latest, fragments={**latest.fragments, "a/7": changed})
    )
    assert anew(local).latest() == at_rest
    assert anew(local).latest().fragments["a/7"].num_rows == 5
    same = local.commit(lambda latest: replace(latest, indices={}))
    assert same.listings == at_rest.listings
    one_fragment = {"a/7": changed}
    assert len(local.commit(lambda latest: replace(latest, fragments=one_fragment)).listings) == 1
    assert anew(local).latest().fragments == one_fragment


# Folders that cannot be written


def test_a_read_only_folder_is_read_and_commits_to_it_raise(open_folder):
    catalog = Filled(LOCAL, str(open_folder / "_zonebloom"))
    first = catalog.commit(adding("a"))
    before = tree(open_folder)
    for path in (open_folder, *open_folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    with without_privileges():
        assert catalog.latest() == first
        with pytest.raises(CatalogError, match=r"cannot write to .*; make it writable"):
            Catalog.commit(catalog, lambda latest: replace(latest, indices={}))
    open_folder.chmod(0o755)
    assert tree(open_folder) == before


def test_a_file_in_place_of_the_folder_is_no_catalog(local, tmp_path):
    (tmp_path / "_zonebloom").write_bytes(b"x")
    assert local.latest() == Version()
    with pytest.raises(CatalogError, match=r"cannot write to .*_zonebloom"):
        local.commit(lambda latest: latest)
    assert (tmp_path / "_zonebloom").read_bytes() == b"x"


# Conditions of a commit


def writing(catalog, name, prefix):
    """Return a change that names a segment it has written."""
    segment = Segment(f"{prefix}-0000", "bloomfilter.arrow", 7, "00ff", 1, ())
    catalog.write(catalog.path(segment.name, "bloomfilter.arrow"), b"segment")

    def change(latest):
        new_entry = replace(entry(name, segments=0), segments=(segment,))
        return replace(latest, indices={**latest.indices, name: new_entry})

    return change


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_version_that_names_a_missing_file_is_not_written(catalog, tmp_path, damage):
    first = catalog.commit(adding("a"))
    change = writing(catalog, "b", BBB)
    path = tmp_path / "_zonebloom" / "segments" / f"{BBB}-0000" / "bloomfilter.arrow"
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"seg")
    with pytest.raises(CommitConflict, match=rf"{BBB}-0000.* is gone before it was committed"):
        Catalog.commit(catalog, change)
    assert catalog.latest() == first
    assert len(list((tmp_path / "_zonebloom" / "versions").glob("*.json"))) == 1


@pytest.mark.parametrize("deleted", ["at once", "later"])
@pytest.mark.parametrize("name", ["b", "a"])
def test_a_version_never_names_what_a_vacuum_deletes(local, monkeypatch, name, deleted):
    first = local.commit(adding("a"))
    change = writing(local, name, BBB)
    link = os.link

    def vacuumed_meanwhile(*paths):
        # At this point, the commit has found all files.
        replace_function(monkeypatch, os, "link", link)
        if deleted == "later":
            replace_function(monkeypatch, vacuum_module, "_delete_orphan", lambda *place: False)
        vacuum_catalog(local, timedelta(0))
        link(*paths)

    replace_function(monkeypatch, os, "link", vacuumed_meanwhile)
    with pytest.raises(CommitConflict, match="gone before it was committed"):
        local.commit(change)
    latest = local.latest()
    assert latest.segments_to_delete == (f"{BBB}-0000",)
    assert latest.indices == first.indices
    assert latest.fragments == first.fragments
    # The commit is still refused after others have committed.
    local.commit(adding("c"))
    with pytest.raises(CommitConflict, match="gone before it was committed"):
        Catalog.commit(local, change)
    monkeypatch.undo()
    for prefix in (DDD, EEE):
        local.commit(writing(local, "d", prefix))
        vacuum_catalog(local, timedelta(0))
    # Deleted segments are no longer listed as marked.
    assert local.latest().segments_to_delete == (f"{DDD}-0000",)
    assert segments_of(local) == sorted(local.latest().segment_names)


def test_a_vacuum_keeps_segments_that_are_committed_before_it_marks_them(local, monkeypatch):
    local.commit(adding("a"))
    change = writing(local, "b", BBB)
    commit = Catalog.commit

    def after_another(self, dooming):
        replace_function(monkeypatch, Catalog, "commit", commit)
        commit(self, change)
        return commit(self, dooming)

    replace_function(monkeypatch, Catalog, "commit", after_another)
    assert vacuum_catalog(Catalog(LOCAL, local.folder), timedelta(0)).num_segments == 0
    assert sorted(local.latest().indices) == ["a", "b"]
    assert local.latest().segments_to_delete == ()
    assert segments_of(local) == sorted(local.latest().segment_names)


def test_a_reader_uses_the_newer_version_if_a_vacuum_deletes_its_own(local, monkeypatch):
    local.commit(adding("a"))
    original = Catalog.version

    def overtaken(self, number):
        replace_function(monkeypatch, Catalog, "version", original)
        local.commit(adding("b"))
        vacuum_catalog(local, timedelta(0))
        return original(self, number)

    replace_function(monkeypatch, Catalog, "version", overtaken)
    assert sorted(local.latest().indices) == ["a", "b"]


def test_files_are_on_disk_before_the_version_that_names_them(local, monkeypatch):
    events = []
    fsync, link = os.fsync, os.link

    def noted(descriptor):
        fsync(descriptor)
        events.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    replace_function(monkeypatch, os, "fsync", noted)
    replace_function(monkeypatch, os, "link", lambda *paths: (events.append("link"), link(*paths)))
    local.commit(writing(local, "a", AAA))
    path = local.path(f"{AAA}-0000", "bloomfilter.arrow")
    assert events[0] == path
    before = events[: events.index("link")]
    assert {os.path.dirname(path), os.path.dirname(os.path.dirname(path))} <= set(before)
    # Every file is synced exactly once.
    events.clear()
    local.commit(writing(local, "b", BBB))
    assert path not in events
    assert len(events) == len(set(events))


@pytest.mark.parametrize("built", [True, False])
def test_a_commit_whose_number_was_used_and_vacuumed_gets_a_higher_number(
    local, monkeypatch, built
):
    local.commit(adding("a"))
    local.commit(adding("b"))
    create = Catalog._create
    change = writing(local, "mine", MINE) if built else lambda latest: replace(latest, indices={})

    def overtaken(self, version, before):
        if version.number == 3:
            replace_function(monkeypatch, Catalog, "_create", create)
            for name in ("c", "d"):
                local.commit(adding(name))
            if built:
                # The vacuum does not delete a file that was created after it listed the folder.
                in_future = time.time() + 1000
                os.utime(local.path(f"{MINE}-0000", "bloomfilter.arrow"), (in_future, in_future))
            vacuum_catalog(local, timedelta(0))
            assert sorted(int(p.name[:20]) for p in versions_of(local).glob("*.json")) == [4]
        return create(self, version, before)

    replace_function(monkeypatch, Catalog, "_create", overtaken)
    written = local.commit(change)
    assert written.number == 5
    assert sorted(written.indices) == (["a", "b", "c", "d", "mine"] if built else [])
    assert local.latest() == written


def test_a_draft_that_a_vacuum_deleted_is_written_again(local, monkeypatch):
    local.commit(adding("a"))
    link = os.link

    def vacuumed(draft, path):
        replace_function(monkeypatch, os, "link", link)
        vacuum_catalog(local, timedelta(0))
        assert not os.path.exists(draft)
        link(draft, path)

    replace_function(monkeypatch, os, "link", vacuumed)
    # The index has the segment of before, because the vacuum deletes new ones.
    assert local.commit(adding("a", fragments=3)).number == 2
    assert len(local.latest().fragments) == 3


def without_links(*paths):
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_writers_without_hard_links_lose_no_commit(local, monkeypatch):
    replace_function(monkeypatch, os, "link", without_links)
    names = [f"i{number}" for number in range(12)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: anew(local).commit(adding(name)), names))
    assert sorted(anew(local).latest().indices) == sorted(names)
    assert [int(path.stem) for path in sorted(versions_of(local).glob("*.json"))][-1] == 12


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["at work", "killed"])
def test_an_incomplete_document_is_no_version(local, monkeypatch, writer):
    replace_function(monkeypatch, os, "link", without_links)
    local.commit(adding("a"))
    local.commit(adding("b"))
    torn = versions_of(local) / f"{2:020d}.json"
    document = torn.read_bytes()
    torn.write_bytes(document[: len(document) // 2])
    with pytest.warns(IndexNotUsedWarning, match="the version before it is used"):
        assert list(anew(local).latest().indices) == ["a"]
    if writer == "killed":
        with pytest.warns(IndexNotUsedWarning, match="the version before it is used"):
            assert sorted(anew(local).commit(adding("c")).indices) == ["a", "c"]
        assert sorted(anew(local).latest().indices) == ["a", "c"]
        return
    timer = threading.Timer(0.3, torn.write_bytes, [document])
    timer.start()
    assert sorted(anew(local).commit(adding("c")).indices) == ["a", "b", "c"]
    timer.join()


def test_a_document_that_cannot_be_written_is_not_left_behind(local, monkeypatch):
    replace_function(monkeypatch, os, "link", without_links)
    local.commit(adding("a"))
    sync = NewFile.sync

    def full_disk(file):
        if (versions_of(local) / f"{2:020d}.json").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(file)

    before = sorted(os.listdir(versions_of(local)))
    replace_function(monkeypatch, NewFile, "sync", full_disk)
    with pytest.raises(CatalogError, match="make room there"):
        local.commit(lambda latest: replace(latest, indices={}))
    assert sorted(os.listdir(versions_of(local))) == before


# Segments


def segment_files(catalog, *names):
    for name in names:
        path = catalog.path(name, "bloomfilter.arrow")
        catalog.filesystem.create_dir(os.path.dirname(path), recursive=True)
        with catalog.filesystem.open_output_stream(path) as sink:
            sink.write(b"x")


def segments_of(catalog):
    base = os.path.dirname(os.path.dirname(catalog.path("x", "bloomfilter.arrow")))
    selector = pafs.FileSelector(base, allow_not_found=True)
    return sorted(info.base_name for info in catalog.filesystem.get_file_info(selector))


def test_deleting_the_segments_of_a_build_keeps_the_named_ones(catalog):
    version = catalog.commit(adding("id_idx"))
    assert version.segment_names == {f"{ABC}-0000"}
    segment_files(catalog, f"{ABC}-0001", f"{ABD}-0000", f"{BBB}-0000")
    assert catalog.delete_orphan_segments([ABC, ABD]) is None
    assert segments_of(catalog) == [f"{ABC}-0000", f"{BBB}-0000"]


def test_the_catalog_keeps_page_maps_of_files_that_an_index_covers(catalog):
    entries = [PageMapEntry(f"m{i}", 5, "00", ids) for i, ids in enumerate([(0,), (1, 2)])]
    for page_map in entries:
        catalog.write(catalog.path(page_map.segment, "pages.arrow"), b"pages")

    def change(latest):
        changed = adding("a")(latest)
        return changed.with_indices(changed.indices, entries)

    version = catalog.commit(change)
    # Fragment 2 has no filter.
    assert version.page_maps == (entries[0], replace(entries[1], fragment_ids=(1,)))
    assert catalog.latest() == version
    newer = PageMapEntry("m2", 5, "01", (0, 1))
    assert version.with_indices(version.indices, [newer]).page_maps == (newer,)
    assert version.with_indices({}).page_maps == ()


def test_a_failed_first_build_leaves_no_folder(local, tmp_path):
    segment_files(local, f"{AAA}-0000")
    local.delete_orphan_segments([AAA])
    assert list(tmp_path.iterdir()) == []


def test_deleting_the_last_segment_keeps_the_versions(local):
    first = local.commit(lambda latest: latest)
    segment_files(local, f"{AAA}-0000")
    local.delete_orphan_segments([AAA])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert local.latest() == first
