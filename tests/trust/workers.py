"""Run cases in parallel processes, so that a crash is a failure of its case."""

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
MAX_SECONDS = 1800
# The number of cases that a process runs before a new process replaces it.
MAX_CASES = 200


def work(part: str, seed: int, cases: range, until: float, out: Connection) -> None:
    """Run cases in turn. Send a message when a case begins, and its report when it ends."""
    # Polars' panics print only one line then.
    os.environ["RUST_BACKTRACE"] = "0"
    module = importlib.import_module(f"trust.{part}")
    for case in cases:
        report = Report(part, seed)
        report.on_phase = lambda name, case=case: out.send((case, name))
        out.send((case, "began"))
        with tempfile.TemporaryDirectory(prefix="trust-") as folder:
            try:
                module.run_case(report, case, Path(folder))
            except Exception:  # noqa: BLE001 - any error is a failure of the case
                report.case = case
                report.fail(traceback.format_exc())
        report.on_phase = print
        out.send((case, report))
        if time.time() > until:
            break
    out.send((None, "done"))


class Worker:
    """A process that runs its share of the cases, and is restarted when it dies."""

    def __init__(self, report: Report, cases: range, until: float):
        self.report, self.cases, self.until = report, cases, until
        self.is_done = False
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, sender = context.Pipe(duplex=False)
        cases = self.cases[:MAX_CASES]
        arguments = (self.report.part, self.report.seed, cases, self.until, sender)
        self.process = context.Process(target=work, args=arguments)
        self.process.start()
        sender.close()
        self.last_message: tuple[Any, Any] = (None, "start")

    def receive(self) -> None:
        """Handle a message of the process, or record how it died."""
        try:
            case, message = self.connection.recv()
        except EOFError:
            self.process.join()
            self.record_crash()
            return
        if isinstance(message, Report):
            self.report.add(message)
            for _, text in message.failures[:2]:
                print(f"FAILED {text}\n  {self.report.command(case)}", flush=True)
            self.cases = self.cases[self.cases.index(case) + 1 :]
        self.last_message = case, message
        if message == "done":
            self.process.join()
            self.restart()

    def record_crash(self) -> None:
        case, phase = self.last_message
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
        self.restart()

    def restart(self) -> None:
        """Start a new process unless all cases are done or the time is over."""
        self.connection.close()
        self.is_done = not self.cases or time.time() > self.until
        if not self.is_done:
            self.start()


def run(part: str, seed: int, cases: range, seconds: float, jobs: int) -> Report:
    """Run a part in parallel processes."""
    report = Report(part, seed)
    until = time.time() + seconds
    workers = [Worker(report, cases[job::jobs], until) for job in range(min(jobs, len(cases)))]
    while workers:
        ready = wait([worker.connection for worker in workers], timeout=MAX_SECONDS)
        for worker in workers:
            if worker.connection in ready or not ready:
                if not ready:
                    worker.process.kill()
                worker.receive()
        workers = [worker for worker in workers if not worker.is_done]
    return report
