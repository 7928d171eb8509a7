"""Test the documents of managers under concurrent writes and crashes."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.helpers import ROOT, THOROUGH, flipped_bits, index_folder, rewrite_document, run_python
from support.local_manager import LocalManager

import zonebloom as zb
from zonebloom.errors import (
    CommitConflict,
    CorruptIndex,
    IndexExists,
    IndexNotFound,
    IndexNotUsedWarning,
    InvalidArgument,
    NoFragments,
    StaleIndexWarning,
)
from zonebloom.spark import BFIndexConfig
from zonebloom.spark.managed_indices import Documents, ManagedIndex, State

STORED = ManagedIndex("ids", "/lake", "/ü", ("id", "a.b"), expected_num_items=7, fpp=0.01)


def test_documents_are_read_back_unchanged(tmp_path):
    documents = Documents(str(tmp_path / "not" / "there"))
    assert documents.all() == [] and documents.get("ids") is None
    assert documents.create(STORED) and not documents.create(STORED)
    assert documents.get("ids") == STORED
    assert STORED.indices == {"id": "ids.id", "a.b": "ids.a.b"}
    deleted = replace(STORED, is_deleted=True)
    documents.replace(deleted)
    assert documents.all() == [deleted]
    names = ["a b", "ü%2F", "C:\\x"]
    for name in names:
        documents.create(replace(STORED, name=name))
    assert [managed.name for managed in documents.all()] == sorted([*names, "ids"])
    documents.remove("ids")
    assert documents.get("ids") is None


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(columns="id"),
        lambda document: document.update(path=5),
        lambda document: document.update(is_deleted="no"),
        lambda document: document.update(name="other"),
        lambda document: document.update(more=1),
        lambda document: document.pop("columns"),
        lambda document: document.clear(),
    ],
)
def test_invalid_documents_are_refused(tmp_path, change):
    documents = Documents(str(tmp_path))
    documents.create(STORED)
    rewrite_document(tmp_path / "ids.json", change)
    with pytest.raises(CorruptIndex, match=r"ids\.json cannot be read"):
        documents.get("ids")


def test_damaged_documents_are_noticed_and_leave_the_others_in_use(tmp_path):
    documents = Documents(str(tmp_path))
    documents.create(STORED)
    path = tmp_path / "ids.json"
    for damaged in [*flipped_bits(path.read_bytes()), path.read_bytes()[:40]]:
        path.write_bytes(damaged)
        with pytest.raises(CorruptIndex, match=r"ids\.json cannot be read"):
            documents.get("ids")
    path.unlink()
    path.mkdir()
    documents.create(replace(STORED, name="others"))
    with pytest.warns(IndexNotUsedWarning, match=r"'ids' is not used.*ids\.json"):
        assert [managed.name for managed in documents.all()] == ["others"]


def test_a_folder_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(InvalidArgument, match=r"dbfs://x.*mounted.*set zonebloom\.system"):
        Documents("dbfs://x/indexes")
    (tmp_path / "file").write_bytes(b"")
    documents = Documents(str(tmp_path / "file"))
    for action in (documents.all, lambda: documents.get("ids")):
        with pytest.raises(InvalidArgument, match=r"file \(.*set zonebloom\.system"):
            action()


# An action removes only what it made. The files are small, so builds run in this process.


@pytest.fixture
def lake(tmp_path):
    folder = tmp_path / "lake"
    folder.mkdir()
    for number in range(3):
        ids = np.arange(100) + number * 100
        pq.write_table(pa.table({"id": ids}), folder / f"{number}.parquet")
    return folder


IDS = BFIndexConfig("ids", ["id"])


def run_locally(code, *arguments, **environment):
    """Run code that uses `LocalManager` in a new process."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    return run_python(code, *arguments, PYTHONPATH=path, **environment)


def state_in(folder, lake):
    managed = Documents(str(folder)).get("ids")
    return State.DOESNOTEXIST if managed is None else managed.state_in(in_catalog(lake))


def in_catalog(lake):
    return dict(zb.dataset(lake).opened.version.indices)


def in_use(lake):
    return zb.dataset(lake).opened.version.segment_names


def segments(lake):
    folder = index_folder(lake) / "segments"
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def once(action):
    """Return a progress function that runs an action once during a build."""
    calls = []

    def report(*_):
        if not calls:
            calls.append(True)
            action()

    return report


@pytest.mark.parametrize("fails", [True, False])
def test_what_another_manager_creates_meanwhile_stays(lake, tmp_path, fails):
    one, other = LocalManager(tmp_path / "one"), LocalManager(tmp_path / "other")
    theirs = {}

    def meanwhile():
        other.create_index(lake, IDS)
        theirs.update(in_catalog(lake))
        if fails:
            raise NoFragments("gone")

    with pytest.raises(NoFragments if fails else CommitConflict):
        one.create_index(lake, IDS, progress=once(meanwhile))
    assert list(theirs) == ["ids.id"] and in_catalog(lake) == theirs
    assert segments(lake) == in_use(lake)
    assert zb.dataset(lake).validate_index("ids.id") == 3
    assert state_in(tmp_path / "other", lake) == State.ACTIVE
    with pytest.raises(IndexExists):
        one.create_index(lake, IDS)


def test_a_name_is_taken_while_its_index_is_built(lake, tmp_path):
    one, other = LocalManager(tmp_path / "system"), LocalManager(tmp_path / "system")

    def meanwhile():
        with pytest.raises(IndexExists, match="if its build was interrupted"):
            other.create_index(lake, IDS)

    one.create_index(lake, IDS, progress=once(meanwhile))
    assert state_in(tmp_path / "system", lake) == State.ACTIVE


def test_an_index_that_a_refresh_builds_meanwhile_keeps_its_document(lake, tmp_path):
    one, other = LocalManager(tmp_path / "system"), LocalManager(tmp_path / "system")
    with pytest.raises(CommitConflict):
        one.create_index(lake, IDS, progress=once(lambda: other.refresh_index("ids", "full")))
    assert list(in_catalog(lake)) == ["ids.id"]
    assert state_in(tmp_path / "system", lake) == State.ACTIVE


def test_a_full_refresh_of_an_index_that_is_vacuumed_meanwhile_raises(lake, tmp_path):
    manager = LocalManager(tmp_path / "system")
    manager.create_index(lake, IDS)

    def vacuum():
        manager.delete_index("ids")
        manager.vacuum_index("ids")

    with pytest.raises(CommitConflict, match="vacuumed while it was built"):
        manager.refresh_index("ids", "full", progress=once(vacuum))
    assert in_catalog(lake) == {} and segments(lake) == in_use(lake)
    manager.create_index(lake, IDS)


# Crashes

KILLED = """
    import os, signal, sys, warnings
    from pathlib import Path
    import numpy as np, pyarrow as pa, pyarrow.parquet as pq
    import zonebloom as zb
    from support.local_manager import LocalManager
    from zonebloom.spark import BFIndexConfig

    CHANGES = ("os.mkdir", "os.link", "os.rename", "os.remove", "os.rmdir")

    def write(lake, number, rows=100):
        table = pa.table({"id": np.arange(rows) + number * 100})
        pq.write_table(table, lake / f"{number}.parquet")

    def prepared(folder, action):
        lake = folder / "lake"
        lake.mkdir(parents=True)
        for number in range(3):
            write(lake, number)
        manager = LocalManager(folder / "system")
        config = BFIndexConfig("ids", ["id"])
        if action == "create":
            return lambda: manager.create_index(lake, config)
        manager.create_index(lake, config)
        if action in ("full", "incremental", "quick", "optimize"):
            write(lake, 3)
            if action == "optimize":
                manager.refresh_index("ids", "incremental")
                return lambda: manager.optimize_index("ids", "full")
            write(lake, 1, rows=50)
            (lake / "2.parquet").unlink()
            return lambda: manager.refresh_index("ids", action)
        if action in ("restore", "vacuum"):
            manager.delete_index("ids")
        return lambda: getattr(manager, f"{action}_index")("ids")

    def killed_at(number):
        left = number

        def hook(event, arguments):
            nonlocal left
            writes = event == "open" and isinstance(arguments[2], int) and bool(
                arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            )
            if writes or event in CHANGES:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)

    warnings.simplefilter("ignore")
    zb.warmup()
    folder, action = Path(sys.argv[1]), sys.argv[2]
    for number in range(0, 200, int(sys.argv[3])):
        child = os.fork()
        if not child:
            run = prepared(folder / str(number), action)
            killed_at(number)
            run()
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            break
"""
EITHER = {
    "create": (State.DOESNOTEXIST, State.ACTIVE),
    "delete": (State.ACTIVE, State.DELETED),
    "restore": (State.DELETED, State.ACTIVE),
    "vacuum": (State.DELETED, State.DOESNOTEXIST),
}


@pytest.mark.parametrize(
    "action", [*EITHER, *("full", "incremental", "quick"), "optimize"], ids=str
)
def test_a_process_that_dies_at_any_step_leaves_a_usable_index(tmp_path, action):
    """The index is as before or after the action, gives right results, and can be used further."""
    # Test only some of the many changes, unless all are requested.
    step = {"create": 15, "full": 15, "incremental": 15, "quick": 15, "optimize": 4}.get(action, 1)
    run_locally(KILLED, tmp_path, action, 1 if os.environ.get(THOROUGH) else step)
    folders = sorted(tmp_path.iterdir(), key=lambda folder: int(folder.name))
    assert len(folders) > 2
    states = [_state_after_crash(folder, action) for folder in folders]
    before, after = EITHER.get(action, (State.ACTIVE, State.ACTIVE))
    assert (states[0], states[-1]) == (before, after)
    assert states == sorted(states, key=(before, after).index)


def _state_after_crash(folder, action):
    lake, system = folder / "lake", folder / "system"
    manager = LocalManager(system)
    state = state_in(system, lake)
    _assert_right(lake)
    managed = Documents(str(system)).get("ids")
    if managed is not None and managed.is_deleted and not in_catalog(lake):
        with pytest.raises(IndexNotFound, match="vacuum it"):
            manager.restore_index("ids")
        manager.vacuum_index("ids")
    new_state = state_in(system, lake)
    if new_state == State.DELETED:
        manager.restore_index("ids")
    if Documents(str(system)).get("ids") is None:
        manager.create_index(lake, IDS)
    else:
        # A process that died between the document and the commit left an index that is not there.
        manager.refresh_index("ids", "full" if new_state == State.DOESNOTEXIST else "incremental")
    _assert_right(lake)
    dataset = zb.dataset(lake)
    assert dataset.validate_index("ids.id") == len(dataset.files)
    dataset.vacuum(timedelta(0))
    assert segments(lake) == in_use(lake)
    return state


def _assert_right(lake):
    dataset = zb.dataset(lake)
    ids = pa.concat_tables(map(pq.read_table, lake.glob("*.parquet")))["id"].to_pylist()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StaleIndexWarning)
        for value in (0, 120, 170, 250, 399):
            assert dataset.count_rows(filter=[("id", "=", value)]) == ids.count(value)
