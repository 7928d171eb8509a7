"""Progress of long work: a bar in a terminal or Jupyter, lines in a log, or a function given."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from zonebloom import arguments

Progress: TypeAlias = bool | Callable[[int, int], Any] | None
Report = Callable[[int], None]
_SECONDS_A_LINE = 10.0


def require_progress(progress: object) -> None:
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise arguments.refusal(progress, "progress", "give True, False or a function")


@contextmanager
def reporting(progress: Progress, total: int, title: str) -> Iterator[Report | None]:
    """Hand out a function given how many more rows are done."""
    if not progress:
        yield None
    elif callable(progress):
        yield _summing(progress, total)
    else:
        with _bar(total, title) as show:
            yield _summing(show, total)


def _summing(show: Callable[[int, int], Any], total: int) -> Report:
    lock = threading.Lock()
    done = 0

    def report(rows: int) -> None:
        nonlocal done
        with lock:
            done += rows
            show(done, total)

    return report


@contextmanager
def _bar(total: int, title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with rate and time left in a terminal or Jupyter, or lines in a log."""
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            ProgressColumn,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column
        from rich.text import Text
    except ImportError:
        yield _lines(title)
        return
    console = Console(stderr=True)
    if not console.is_terminal and not console.is_jupyter:
        yield _lines(title)
        return

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(_rate_text(task.finished_speed or task.speed or 0))

    line = Column(no_wrap=True)
    words = TextColumn(
        "{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
    )
    columns = (
        *(words, BarColumn(16, table_column=line), TaskProgressColumn(table_column=line)),
        *(Rate(table_column=line), TimeRemainingColumn(table_column=line)),
    )
    # What was done is said, or seen, when it is.
    with Progress(*columns, console=console, transient=True, expand=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done, total: bar.update(task, completed=done)


def _rate_text(rate: float) -> str:
    return f"{rate / 1e6:,.1f} M rows/s" if rate >= 1e5 else f"{rate:,.0f} rows/s"


def _lines(title: str) -> Callable[[int, int], None]:
    """What says now and then how far it is, of work that takes long."""
    begun = said = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said < _SECONDS_A_LINE or not done:
            return
        said, rate = now, done / (now - begun)
        print(
            f"{title}: {done:,} of {total:,} rows, {_rate_text(rate)}, "
            f"{max(total - done, 0) / rate:,.0f} s left",
            file=sys.stderr,
            flush=True,
        )

    return show
