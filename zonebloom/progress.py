"""Progress of long work: a bar in a terminal or Jupyter, or the caller's own function."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from zonebloom import arguments

Progress: TypeAlias = bool | Callable[[int, int], Any] | None
Report = Callable[[int], None]


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
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield lambda done, total: None
        print(f"{title}: {total:,} rows done", file=sys.stderr)
        return
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done, total: bar.update(task, completed=done)
