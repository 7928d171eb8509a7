"""Report the progress of long work: by a bar, by lines in a log, or by a function of the caller."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from zonebloom.base import arguments

ProgressOption: TypeAlias = bool | Callable[[int, int], Any] | None
Report = Callable[[int], None]
_SECONDS_BETWEEN_LINES = 10.0


def require_progress(progress: object) -> None:
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise arguments.invalid_value(progress, "progress", "give True, False or a function")


@contextmanager
def report_progress(progress: ProgressOption, total: int, title: str) -> Iterator[Report | None]:
    """Yield a function to call with the number of rows done since its last call, or None."""
    if not progress:
        yield None
    elif callable(progress):
        yield _summing_report(progress, total)
    else:
        with _bar(total, title) as show:
            yield _summing_report(show, total)


def _summing_report(show: Callable[[int, int], Any], total: int) -> Report:
    lock = threading.Lock()
    num_done = 0

    def report(rows: int) -> None:
        nonlocal num_done
        with lock:
            num_done += rows
            show(num_done, total)

    return report


@contextmanager
def _bar(total: int, title: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that draws a bar in a terminal or Jupyter, or prints lines to a log."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column
    except ImportError:
        yield _lines(title)
        return
    console = Console(stderr=True)
    if not console.is_terminal and not console.is_jupyter:
        yield _lines(title)
        return
    one_line = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    description = TextColumn("{task.description}", table_column=one_line)
    _, _, *other_columns = Progress.get_default_columns()
    columns = description, BarColumn(16), TextColumn("{task.fields[rate]}"), *other_columns
    # The bar disappears at the end: callers print or return what was done.
    with Progress(*columns, console=console, transient=True, expand=True) as bar:
        task, start_time = bar.add_task(title, total=total, rate=""), time.monotonic()

        def show(done: int, total: int) -> None:
            rate = _rate_text(done / max(time.monotonic() - start_time, 0.001))
            bar.update(task, completed=done, rate=rate)

        yield show


def _rate_text(rate: float) -> str:
    return f"{rate / 1e6:,.1f} M rows/s" if rate >= 1e5 else f"{rate:,.0f} rows/s"


def _lines(title: str) -> Callable[[int, int], None]:
    """Return a function that prints a line of progress every few seconds."""
    start_time = last_line_time = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal last_line_time
        now = time.monotonic()
        if now - last_line_time < _SECONDS_BETWEEN_LINES or not done:
            return
        last_line_time, rate = now, done / (now - start_time)
        print(
            f"{title}: {done:,} of {total:,} rows, {_rate_text(rate)}, "
            f"{max(total - done, 0) / rate:,.0f} s left",
            file=sys.stderr,
            flush=True,
        )

    return show
