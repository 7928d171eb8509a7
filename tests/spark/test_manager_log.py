"""The log of an index: entries one after another, whoever writes them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading

import pytest
from helpers import PACKAGE

from zonebloom.errors import CommitConflict, CorruptIndex, InvalidState
from zonebloom.spark.manager.actions import Actions
from zonebloom.spark.manager.log import Record, State, System
from zonebloom.spark.manager.states import TRANSITIONS

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
def test_what_is_not_an_entry_is_refused(tmp_path, change):
    log = System(str(tmp_path)).log("ids")
    log.append(record(), 0)
    path = tmp_path / "ids" / "00000000000000000001.json"
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))
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
        before, during, _ = TRANSITIONS[action]
    system = System(str(tmp_path))
    log = system.log("ids")
    log.append(record(before), 0)
    code = """
        import sys, time
        from dataclasses import replace
        from zonebloom.spark.manager.log import State, System
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
        for refused in (actions.delete, actions.restore, actions.vacuum, actions.cancel):
            with pytest.raises(CommitConflict, match=rf"'ids' is {during}.*at work"):
                refused("ids")
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert log.latest().state == during
    for refused in (actions.delete, actions.restore, actions.vacuum):
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
        actions.optimize("ids", "quick")
    actions.cancel("ids")
    assert log.latest().state == State.ACTIVE


def test_stable_states_are_those():
    assert {str(each) for each in State if each.is_stable} == STABLE
    assert {each for _, during, _ in TRANSITIONS.values() for each in [during]} == (
        {each for each in State if not each.is_stable} - {State.CANCELLING}
    )
