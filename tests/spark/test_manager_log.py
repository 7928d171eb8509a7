"""The log of an index: entries one after another, whoever writes them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import PACKAGE, flipped_bits, rewrite_document

import zonebloom as zb
from zonebloom.errors import (
    CommitConflict,
    CorruptIndex,
    IndexExists,
    InvalidState,
    NoFragments,
    ZoneBloomWarning,
)
from zonebloom.spark.hyperspace.actions import TRANSITIONS, Actions
from zonebloom.spark.hyperspace.log import Record, State, System

STABLE = {"ACTIVE", "DELETED", "DOESNOTEXIST"}


def record(state=State.ACTIVE, **fields):
    return Record("ids", state=state, path="/lake", columns=("id", "a.b"), fpp=0.01, **fields)


def test_entries_come_back_as_they_were_written(tmp_path):
    log = System(str(tmp_path)).log("ids")
    assert log.latest().state == State.DOESNOTEXIST
    assert log.history() == []
    first = log.append(record(State.CREATING, expected_num_items=7, message="ü"), 0)
    second = log.append(record(), first.number)
    assert (first.number, second.number) == (1, 2)
    assert log.history() == [first, second]
    assert log.latest() == log.latest_stable() == second
    assert first.expected_num_items == 7 and first.message == "ü" and first.fpp == 0.01
    assert first.columns == ("id", "a.b")
    assert first.indices == {"id": "ids.id", "a.b": "ids.a.b"}
    assert sorted(p.name for p in (tmp_path / "ids").iterdir() if p.suffix == ".json") == [
        "00000000000000000001.json",
        "00000000000000000002.json",
    ]


def test_of_many_writers_of_one_entry_one_wins(tmp_path):
    log = System(str(tmp_path)).log("ids")
    start = threading.Barrier(8)
    outcomes = []

    def write(number):
        start.wait()
        try:
            outcomes.append(log.append(record(message=str(number)), 0).message)
        except CommitConflict:
            outcomes.append(None)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [each for each in outcomes if each is not None]
    assert len(winners) == 1
    assert [each.message for each in log.history()] == winners
    # Drafts of the others are gone.
    assert [path.name for path in (tmp_path / "ids").iterdir()] == ["00000000000000000001.json"]


def test_names_that_are_no_folder_names(tmp_path):
    system = System(str(tmp_path))
    names = ["a b", "ü%2F", "x.y", "C:\\x"]
    for name in names:
        system.log(name).append(Record(name, state=State.ACTIVE), 0)
    assert [log.latest().name for log in system.logs()] == sorted(names)


@pytest.mark.parametrize("written_as", [1, 2])
@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(format_version=2),
        lambda document: document.update(state="ASLEEP"),
        lambda document: document.update(columns="id"),
        lambda document: document.update(path=5),
        lambda document: document.update(fpp="x"),
        lambda document: document.update(name="other"),
        lambda document: document.update(more=1),
        lambda document: document.pop("columns"),
        lambda document: document.clear(),
    ],
)
def test_what_is_not_an_entry_is_refused(tmp_path, change, written_as):
    log = System(str(tmp_path)).log("ids")
    log.append(record(), 0)
    path = tmp_path / "ids" / "00000000000000000001.json"
    rewrite_document(path, change, written_as)
    with pytest.raises(CorruptIndex, match=r"0001\.json cannot be read"):
        log.latest()


def test_entry_without_a_checksum_is_still_read(tmp_path):
    log = System(str(tmp_path)).log("ids")
    written = log.append(record(), 0)
    path = tmp_path / "ids" / "00000000000000000001.json"
    rewrite_document(path, lambda document: None, written_as=1)
    assert b"checksum" not in path.read_bytes()
    assert log.latest() == written


def test_records_of_earlier_versions_open():
    system = System(str(Path(__file__).parents[1] / "golden" / "manager-1"))
    (log,) = system.logs()
    assert [str(r.state) for r in log.history()] == ["CREATING", "ACTIVE", "REFRESHING", "ACTIVE"]
    latest = log.latest()
    assert (latest.action, latest.path) == ("refresh quick", "/lake")
    assert latest.columns == ("id", "st.a")
    assert (latest.expected_num_items, latest.fpp, latest.source_bytes) == (3000, 0.01, 12345)
    assert latest.accepted_changes == ("+f89c76e3c8034215", "-1")
    assert latest.build == "0353fbbea22e4370"


def test_every_flipped_bit_of_an_entry_is_noticed(tmp_path):
    log = System(str(tmp_path)).log("ids")
    log.append(record(), 0)
    path = tmp_path / "ids" / "00000000000000000001.json"
    for damaged in flipped_bits(path.read_bytes()):
        path.write_bytes(damaged)
        with pytest.raises(CorruptIndex, match=r"0001\.json cannot be read"):
            log.latest()


def test_torn_entry_is_refused(tmp_path):
    log = System(str(tmp_path)).log("ids")
    log.append(record(), 0)
    path = tmp_path / "ids" / "00000000000000000001.json"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(CorruptIndex):
        log.history()


@pytest.mark.parametrize("action", TRANSITIONS)
def test_the_lock_of_another_process_is_seen_and_falls_with_it(tmp_path, action):
    """A process at work is waited for; one that died is to be cancelled."""
    if action == "create":
        before, during = State.DOESNOTEXIST, State.CREATING
    else:
        before, during, *_ = TRANSITIONS[action]
    system = System(str(tmp_path))
    log = system.log("ids")
    log.append(record(before), 0)
    code = """
        import sys, time
        from dataclasses import replace
        from zonebloom.spark.hyperspace.log import State, System
        log = System(sys.argv[1]).log("ids")
        with log.locked():
            before = log.latest()
            log.append(replace(before, state=State(sys.argv[2])), before.number)
            print("in", flush=True)
            time.sleep(60)
    """
    code = "\n".join(line[8:] for line in code.splitlines())
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), str(during)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(PACKAGE.parent)},
    )
    actions = Actions(system, False)
    try:
        assert child.stdout is not None and child.stdout.readline() == "in\n"
        for refused in (
            actions.delete_index,
            actions.restore_index,
            actions.vacuum_index,
            actions.cancel,
        ):
            with pytest.raises(CommitConflict, match=rf"'ids' is {during}.*at work"):
                refused("ids")
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert log.latest().state == during
    for refused in (actions.delete_index, actions.restore_index, actions.vacuum_index):
        with pytest.raises(InvalidState, match=rf"is {during}.*cancel\('ids'\) first"):
            refused("ids")
    actions.cancel("ids")
    wanted = State.DOESNOTEXIST if action == "vacuum" else before
    assert log.latest().state == wanted
    states = [str(each.state) for each in log.history()]
    assert states == [before, during, "CANCELLING", wanted]


def test_a_cancel_that_died_is_cancelled_again(tmp_path):
    system = System(str(tmp_path))
    log = system.log("ids")
    for number, state in enumerate([State.ACTIVE, State.REFRESHING, State.CANCELLING]):
        log.append(record(state), number)
    actions = Actions(system, False)
    with pytest.raises(InvalidState, match="is CANCELLING"):
        actions.optimize_index("ids", "quick")
    actions.cancel("ids")
    assert log.latest().state == State.ACTIVE


def test_stable_states_are_those():
    assert {str(each) for each in State if each.is_stable} == STABLE
    assert {each for _, during, *_ in TRANSITIONS.values() for each in [during]} == (
        {each for each in State if not each.is_stable} - {State.CANCELLING}
    )


# What an action did not make it does not remove. Files of the lake are small, so builds are here.


@pytest.fixture
def lake(tmp_path):
    folder = tmp_path / "lake"
    folder.mkdir()
    for number in range(3):
        ids = np.arange(100) + number * 100
        pq.write_table(pa.table({"id": ids}), folder / f"{number}.parquet")
    return folder


def actions_in(folder):
    return Actions(System(str(folder)), False)


def to_build(lake, **fields):
    opened = zb.dataset(lake)
    made = Record(
        "ids",
        path=str(lake),
        index_dir=opened.index_dir,
        columns=("id",),
        expected_num_items=300,
        fpp=0.01,
        **fields,
    )
    return opened, made


def in_catalog(lake):
    return dict(zb.dataset(lake).opened.version.indices)


def in_use(lake):
    return zb.dataset(lake).opened.version.folders


def segments(lake):
    folder = lake / "_zonebloom" / "segments"
    return {each.name for each in folder.iterdir()} if folder.exists() else set()


def once(action):
    """As progress of a build: something that happens while it is under way."""
    done = []

    def report(*_):
        if not done:
            done.append(True)
            action()

    return report


@pytest.mark.parametrize("fails", [True, False])
def test_an_index_that_another_manager_made_meanwhile(lake, tmp_path, fails):
    one, other = actions_in(tmp_path / "one"), actions_in(tmp_path / "other")
    theirs = {}

    def meanwhile():
        other.create(*to_build(lake))
        theirs.update(in_catalog(lake))
        if fails:
            raise NoFragments("gone")

    with pytest.raises(NoFragments if fails else CommitConflict):
        one.create(*to_build(lake), once(meanwhile))
    assert list(theirs) == ["ids.id"] and in_catalog(lake) == theirs
    assert segments(lake) == in_use(lake)
    assert zb.dataset(lake).validate_index("ids.id") == 3
    assert System(str(tmp_path / "one")).log("ids").latest().state == State.DOESNOTEXIST
    assert System(str(tmp_path / "other")).log("ids").latest().state == State.ACTIVE
    with pytest.raises(IndexExists, match="by hand, or by a manager with another system path"):
        one.create(*to_build(lake))
    # What was refused before it began is not in the log.
    assert len(System(str(tmp_path / "one")).log("ids").history()) == 2


def test_cancel_leaves_an_index_that_the_creation_did_not_make(lake, tmp_path):
    opened, wanted = to_build(lake, state=State.CREATING)
    log = System(str(tmp_path / "system")).log("ids")
    log.append(wanted, 0)
    opened.create_scalar_index("id", name="ids.id")
    theirs = in_catalog(lake)
    actions_in(tmp_path / "system").cancel("ids")
    assert log.latest().state == State.DOESNOTEXIST
    assert in_catalog(lake) == theirs and segments(lake) == in_use(lake)


@pytest.mark.parametrize("committed", [True, False])
def test_cancel_removes_what_the_creation_made(lake, tmp_path, committed):
    actions, log = actions_in(tmp_path / "system"), System(str(tmp_path / "system")).log("ids")
    actions.create(*to_build(lake))
    # As if it had died after its commit, and somebody had dropped what it made before the cancel.
    (tmp_path / "system" / "ids" / "00000000000000000002.json").unlink()
    zb.dataset(lake).create_scalar_index("id", name="mine")
    if not committed:
        zb.dataset(lake).drop_index("ids.id")
    mine = in_catalog(lake)["mine"]
    assert segments(lake) > mine.folders
    actions.cancel("ids")
    assert log.latest().state == State.DOESNOTEXIST
    assert in_catalog(lake) == {"mine": mine} and segments(lake) == in_use(lake)


# Errors on the way back


def test_the_first_error_is_the_one_that_is_seen(lake, tmp_path):
    system = tmp_path / "system"
    actions = actions_in(system)

    def fail():
        # The log cannot be written any more.
        system.rename(tmp_path / "elsewhere")
        system.write_bytes(b"")
        raise NoFragments("the cause")

    with pytest.raises(NoFragments, match="the cause") as seen:
        actions.create(*to_build(lake), once(fail))
    assert "call cancel('ids')" in "".join(seen.value.__notes__)
    assert in_catalog(lake) == {}


def undeletable(lake, name):
    """A file where a folder of a segment would be: it cannot be deleted as one."""
    (lake / "_zonebloom" / "segments" / f"{name}-file").write_bytes(b"")


def test_a_vacuum_that_cannot_delete_segments_says_so_and_is_done(lake, tmp_path):
    actions, log = actions_in(tmp_path / "system"), System(str(tmp_path / "system")).log("ids")
    actions.create(*to_build(lake))
    for name in segments(lake):
        undeletable(lake, name)
    actions.delete_index("ids")
    with pytest.warns(ZoneBloomWarning, match=r"segments of ids\.id are left in .*vacuum\(\)"):
        actions.vacuum_index("ids")
    assert log.latest().state == State.DOESNOTEXIST and log.latest().action == "vacuum"
    assert in_catalog(lake) == {}


def test_a_build_whose_leftovers_cannot_be_deleted_stands(lake, tmp_path):
    actions = actions_in(tmp_path / "system")
    opened, wanted = to_build(lake)
    before = set()

    def block(done, total):
        for name in segments(lake) - before:
            if not name.endswith("-file"):
                undeletable(lake, name)

    actions.create(opened, wanted, block)
    assert any(name.endswith("-file") for name in segments(lake))
    assert list(in_catalog(lake)) == ["ids.id"]
    assert zb.dataset(lake).validate_index("ids.id") == 3
    before |= segments(lake)
    made = in_catalog(lake)
    actions.refresh_index("ids", "full", progress=block)
    assert in_catalog(lake) != made and zb.dataset(lake).validate_index("ids.id") == 3
    # Nor does it hide why a build failed.
    before |= segments(lake)
    made = in_catalog(lake)

    def fail(done, total):
        block(done, total)
        if segments(lake) - before:
            raise NoFragments("the cause")

    with pytest.raises(NoFragments, match="the cause"):
        actions.refresh_index("ids", "full", progress=fail)
    assert in_catalog(lake) == made
