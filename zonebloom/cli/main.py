"""The entry point of the command ``zonebloom``, its exit codes, and its messages on stderr."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from zonebloom.cli.text import FAILED, print_to_stderr, wrap_lines
from zonebloom.errors import ZoneBloomError, ZoneBloomWarning
from zonebloom.sbbf.kernel_loader import KERNELS

INTERRUPTED = 130
# The commands of `zonebloom.cli.reading`.
READING_COMMANDS = ("lookup", "head", "count", "explain", "locate", "files")
_INTERRUPTED_TEXT = "interrupted; nothing is left half done"
# The commands of `zonebloom.cli.changing`.
CHANGING_COMMANDS = ("erase", "upsert", "receipt")
_INTERRUPTED_CHANGE_TEXT = (
    "interrupted; a Delta or Iceberg table is as before or as after the change, and some files of "
    "a folder may have changed; run the command again to complete it"
)


def main_of_process() -> int:
    """Run the command of this process. Return its exit code, or exit."""
    arguments = sys.argv[1:]
    code = main(arguments)
    # Commands that only read leave nothing behind. Python would delete all objects one by one,
    # which takes 50 ms.
    if arguments and arguments[0] in READING_COMMANDS:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return code


def main(arguments: Sequence[str]) -> int:
    """Run a command with its arguments. Return its exit code."""
    _replace_closed_streams()
    # A command ends before a thread has loaded the kernels.
    KERNELS.in_background = False
    try:
        import click
    except ImportError:
        print_to_stderr(
            "Error: the command needs the packages of an extra: pip install 'zonebloom[cli]'"
        )
        return FAILED
    with warnings.catch_warnings(), _recorded_interrupts() as interrupts:
        _show_warnings_as_lines()
        try:
            from zonebloom.cli.commands import zonebloom

            code = zonebloom.main(arguments, prog_name="zonebloom", standalone_mode=False)
            return code or 0
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except (click.Abort, KeyboardInterrupt):
            print_to_stderr(_interrupted_text(arguments))
            return INTERRUPTED
        except Exception as error:
            # An interrupt during an import may turn into any other error.
            if interrupts:
                print_to_stderr(_interrupted_text(arguments))
                return INTERRUPTED
            if isinstance(error, ZoneBloomError | OSError | pa.ArrowException):
                print_to_stderr(_error_text(error))
                return FAILED
            raise


def _replace_closed_streams() -> None:
    """Let messages go nowhere if the caller closed stdout or stderr, as ``2>&-`` does.

    Python has no stream then, and ``print`` would write messages for stderr to stdout.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            null_device = io.BufferedWriter(io.FileIO(os.devnull, "w"))
            setattr(sys, name, io.TextIOWrapper(null_device))


@contextmanager
def _recorded_interrupts() -> Iterator[list[int]]:
    """Yield a list to which each interrupt is added before it raises KeyboardInterrupt."""
    interrupts: list[int] = []

    def record(signal_number: int, frame: object) -> None:
        interrupts.append(signal_number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    previous_handler = signal.signal(signal.SIGINT, record)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, previous_handler)


def _interrupted_text(arguments: Sequence[str]) -> str:
    is_change = bool(arguments) and arguments[0] in CHANGING_COMMANDS
    return _INTERRUPTED_CHANGE_TEXT if is_change else _INTERRUPTED_TEXT


def _error_text(error: Exception) -> str:
    message = error.text_with_commands() if isinstance(error, ZoneBloomError) else str(error)
    lines = [line.rstrip() for line in message.splitlines() if line.strip()]
    first, *others = lines or [type(error).__name__]
    lines = [f"Error: {first}", *others]
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        # Indented lines are a filter, and carets that point into it.
        lines = [line if line.startswith(" ") else wrap_lines(line, width) for line in lines]
    return "\n".join(lines)


def _show_warnings_as_lines() -> None:
    show_other_warning = warnings.showwarning

    def show(message: Any, category: type[Warning], *args: Any, **options: Any) -> None:
        if isinstance(message, ZoneBloomWarning):
            print_to_stderr(f"Warning: {message.text_with_commands()}")
        else:
            show_other_warning(message, category, *args, **options)

    warnings.showwarning = show
    warnings.simplefilter("always", ZoneBloomWarning)
    if not sys.warnoptions:
        # Users of the command cannot act on announcements of changes in other packages.
        warnings.simplefilter("ignore", FutureWarning)
