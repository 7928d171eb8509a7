"""The command ``zonebloom``: its entry, its exit codes (see README), and how it writes."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from zonebloom.cli.text import FAILED, say
from zonebloom.errors import ZoneBloomError, ZoneBloomWarning

INTERRUPTED = 130
_INTERRUPTED_TEXT = "interrupted; nothing is left half done"


def main(arguments: Sequence[str] | None = None) -> int:
    if arguments is None:
        # What is imported stays until the command ends: to look at it again costs a lookup's time.
        gc.freeze()
    try:
        import click
    except ImportError:
        say("Error: the command needs the packages of an extra: pip install 'zonebloom[cli]'")
        return FAILED
    with warnings.catch_warnings(), _noticing_interrupts() as interrupts:
        _show_warnings_as_lines()
        try:
            from zonebloom.cli.commands import zonebloom

            code = zonebloom.main(arguments, prog_name="zonebloom", standalone_mode=False)
            return code or 0
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except (click.Abort, KeyboardInterrupt):
            say(_INTERRUPTED_TEXT)
            return INTERRUPTED
        except Exception as error:
            # A module whose import is interrupted may raise whatever it likes.
            if interrupts:
                say(_INTERRUPTED_TEXT)
                return INTERRUPTED
            if isinstance(error, ZoneBloomError | OSError | pa.ArrowException):
                say(f"Error: {_one_line(error)}")
                return FAILED
            raise


@contextmanager
def _noticing_interrupts() -> Iterator[list[int]]:
    seen: list[int] = []

    def notice(number: int, frame: object) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = signal.signal(signal.SIGINT, notice)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def _one_line(error: Exception) -> str:
    # A line of carets points into the line above, and points nowhere in one line.
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    return " ".join(lines) or type(error).__name__


def _show_warnings_as_lines() -> None:
    shown = warnings.showwarning

    def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, ZoneBloomWarning):
            say(f"Warning: {message}")
        else:
            shown(message, category, *where, **more)

    warnings.showwarning = show
    warnings.simplefilter("always", ZoneBloomWarning)
    if not sys.warnoptions:
        # Other packages' plans for their next versions are no business of a user's.
        warnings.simplefilter("ignore", FutureWarning)
