"""Cases in processes of their own, side by side: a crash is a failure of its case."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import tempfile
import time
import traceback
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from trust.report import PEER, Report

# Longer than any case takes.
MOST_SECONDS = 1800
# Numbers of cases that a process takes before a new one takes its place.
MOST_CASES = 200


def work(part: str, seed: int, cases: range, until: float, out: Connection) -> None:
    """Run cases in turn, telling of each when it begins and what came of it."""
    # Polars' panics say their one line only.
    os.environ["RUST_BACKTRACE"] = "0"
    module = importlib.import_module(f"trust.{part}")
    for case in cases:
        report = Report(part, seed)
        report.on_phase = lambda name, case=case: out.send((case, name))
        out.send((case, "began"))
        with tempfile.TemporaryDirectory(prefix="trust-") as folder:
            try:
                module.run_case(report, case, Path(folder))
            except Exception:  # noqa: BLE001 - of the harness, or what it did not expect
                report.case = case
                report.fail(traceback.format_exc())
        report.on_phase = print
        out.send((case, report))
        if time.time() > until:
            break
    out.send((None, "done"))


class Worker:
    """One process that runs every so-many-th case, and is started again when it dies."""

    def __init__(self, report: Report, cases: range, until: float):
        self.report, self.cases, self.until = report, cases, until
        self.is_done = False
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.out, there = context.Pipe(duplex=False)
        arguments = (self.report.part, self.report.seed, self.cases[:MOST_CASES], self.until, there)
        self.process = context.Process(target=work, args=arguments)
        self.process.start()
        there.close()
        self.at: tuple[Any, Any] = (None, "start")

    def hear(self) -> None:
        """Take what the process says, or note how it died."""
        try:
            case, said = self.out.recv()
        except EOFError:
            self.process.join()
            self.died()
            return
        if isinstance(said, Report):
            self.report.add(said)
            for _, text in said.failures[:2]:
                print(f"FAILED {text}\n  {self.report.command(case)}", flush=True)
            self.cases = self.cases[self.cases.index(case) + 1 :]
        self.at = case, said
        if said == "done":
            self.process.join()
            self.again()

    def died(self) -> None:
        case, phase = self.at
        if case is None:
            raise RuntimeError(f"part {self.report.part} does not start")
        if isinstance(phase, Report):
            case, phase = self.cases[0], "between cases"
        if phase == PEER:
            self.report.refused["another library crashed"] += 1
        else:
            self.report.case = case
            self.report.fail(f"exit code {self.process.exitcode} ({phase})")
        self.cases = self.cases[self.cases.index(case) + 1 :]
        self.again()

    def again(self) -> None:
        self.out.close()
        self.is_done = not self.cases or time.time() > self.until
        if not self.is_done:
            self.start()


def run(part: str, seed: int, cases: range, seconds: float, jobs: int) -> Report:
    """Run a part in processes side by side."""
    report = Report(part, seed)
    until = time.time() + seconds
    workers = [Worker(report, cases[job::jobs], until) for job in range(min(jobs, len(cases)))]
    while workers:
        ready = wait([each.out for each in workers], timeout=MOST_SECONDS)
        for each in workers:
            if each.out in ready or not ready:
                if not ready:
                    each.process.kill()
                each.hear()
        workers = [each for each in workers if not each.is_done]
    return report
