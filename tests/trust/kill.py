"""Kill a writer at any call or instant, then check lookups, a second run and the clean-up.

The killed process is forked from one that has imported all modules and has no threads.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

from trust.injection import KILL, NativeCalls, PythonCalls, is_native
from trust.report import Report
from trust.small import (
    NUMBERS,
    WRITERS,
    before_writer,
    check_answers,
    copied,
    prepare,
    quiet,
    validate_all,
    write_anew,
)

import zonebloom as zb

MOST_SECONDS = 60
# Modules that are slow to import, such as those with kernels.
PRELOADED = [
    "trust.kill",
    "zonebloom.sbbf.blocks",
    "zonebloom.sbbf.slices",
    "zonebloom.building.builder",
]
PRELOADED += ["zonebloom.sbbf.slice_search", "zonebloom.sbbf.xxh64", "zonebloom.building.train"]
PRELOADED += ["zonebloom.storage.pread_kernel"]


def _write(folder: str, operation: str, is_inner: bool, call: int, report_path: str) -> None:
    """Write in a new process, and die at the call with a number if it is given."""
    # The index lies beside the data folder.
    calls = (NativeCalls if is_inner else PythonCalls)(Path(folder).parent)
    with quiet():
        ds = zb.dataset(folder)
        Path(report_path).write_text("0 0")
        start = time.perf_counter()
        with calls.armed(call, KILL):
            write_anew(ds, operation)
        Path(report_path).write_text(f"{calls.count} {time.perf_counter() - start}")


def _run(
    folder: Path, writer: tuple[str, bool], call: int, seconds: float | None, report_path: Path
) -> int | None:
    context = multiprocessing.get_context("forkserver")
    # The server uses the path of its environment, not the one of this process.
    os.environ["PYTHONPATH"] = os.pathsep.join(folder for folder in sys.path if folder)
    context.set_forkserver_preload(PRELOADED)
    report_path.unlink(missing_ok=True)
    child = context.Process(target=_write, args=(str(folder), *writer, call, str(report_path)))
    child.start()
    if seconds is not None:
        while not report_path.exists() and child.is_alive():
            time.sleep(0.001)
        time.sleep(seconds)
        child.kill()
    child.join(MOST_SECONDS)
    if child.is_alive():
        child.kill()
        child.join()
        return None
    return child.exitcode


def run_case(report: Report, number: int, folder: Path, max_kills: int | None = None) -> None:
    """Kill one writer at each of its calls, or at ``max_kills`` of them, and at random times."""
    rng = report.begin(number)
    operation, indexed = WRITERS[number % len(WRITERS)]
    is_inner = is_native() and number // len(WRITERS) % 2 == 1
    writer = operation, is_inner
    start, data, report_path = folder / "start", folder / "work" / "data", folder / "found"
    with quiet():
        prepare(start, indexed)
        before_writer(zb.dataset(start), operation)
        copied(start, data)
        if (code := _run(data, writer, -1, None, report_path)) != 0:
            report.fail(f"{operation}, {indexed}: clean, but exit code {code}")
            return
        count, seconds = (float(word) for word in report_path.read_text().split())
        instants: list[tuple[int, float | None]] = [(call, None) for call in range(int(count))]
        anytime = [(-1, rng.uniform(0, seconds)) for _ in range(20)]
        # Calls that PyArrow makes itself, as in a vacuum, are no Python calls.
        instants = instants + anytime if max_kills is None else (instants or anytime)
        instants = (
            instants if max_kills is None else rng.sample(instants, min(max_kills, len(instants)))
        )
        for call, delay in instants:
            copied(start, data)
            code = _run(data, writer, call, delay, report_path)
            event = "an instant" if delay is not None else "a native call" if is_inner else "a call"
            report.tried[f"{operation}, at {event}"] += 1
            problem = None if code in (-signal.SIGKILL, 0) else f"exit code {code}"
            problem = problem or after_kill(data, operation)
            if problem:
                when = f"call {call} of {int(count)}" if delay is None else f"{delay:.4f} s"
                report.fail(f"{operation}, {indexed}: killed at {when}: {problem}")


def after_kill(data: Path, operation: str) -> str | None:
    """Return what is wrong with a dataset whose writer was killed."""
    try:
        ds = zb.dataset(data)
        check_answers(ds, NUMBERS)
        validate_all(ds)
        if not (operation == "drop" and "id_idx" not in ds.opened.version.indices):
            write_anew(ds, operation)
        check_answers(zb.dataset(data), NUMBERS)
        write_anew(zb.dataset(data), "vacuum")
        ds = zb.dataset(data)
        check_answers(ds, NUMBERS)
        validate_all(ds)
        leftover = strays(ds)
        return f"vacuum left {leftover}" if leftover else None
    except Exception as error:  # noqa: BLE001 - nothing may fail
        return repr(error)[:300]


def strays(ds: zb.Dataset) -> list[str]:
    """Return the files of the index folder that the newest version does not name."""
    named = ds.opened.version.segment_names
    folder = Path(ds.index_dir)
    versions = [path.name for path in folder.glob("versions/.*")]
    return (
        versions + [segment for segment in os.listdir(folder / "segments") if segment not in named]
        if (folder / "segments").exists()
        else versions
    )
