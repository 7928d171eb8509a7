"""One lookup in a process that has just begun, with its files dropped from the page cache.

``python -m bench.cold FOLDER COMPETITOR KEY`` prints what it took, as JSON. Importing is timed
apart: a service imports once, and how long that takes says nothing of an index.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.processes import run_module


@dataclass(frozen=True, slots=True)
class FirstLookup:
    """What the first lookup of a process took.

    Attributes
    ----------
    import_seconds, seconds : float
        Until the packages are there; from opening the data set to the rows.
    storage_bytes : int or None
        Fetched from the disk, read ahead included; None where the system does not tell.
    peak_bytes : int
        The most memory the process held.
    rows : int
        Found.
    """

    import_seconds: float
    seconds: float
    storage_bytes: int | None
    peak_bytes: int
    rows: int


def drop_from_cache(paths: Iterable[Path]) -> None:
    """Ask the system to forget the pages of files; those mapped by a process stay."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            # Only pages that are on disk are dropped.
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def bytes_read() -> tuple[int, int] | None:
    """Bytes this process fetched from storage, and by reads; None where it cannot be known."""
    try:
        text = Path("/proc/self/io").read_text(encoding="ascii")
    except OSError:
        return None
    counts = dict(line.split(": ") for line in text.splitlines())
    return int(counts["read_bytes"]), int(counts["rchar"])


def peak_bytes() -> int:
    """The most memory this process held."""
    status = Path("/proc/self/status")
    if status.exists():
        # Of this program alone: what getrusage tells begins with the parent's.
        lines = status.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def first_lookup(folder: Path, competitor: str, key: Any) -> FirstLookup:
    """Look a key up in a fresh process."""
    return FirstLookup(**run_module("bench.cold", str(folder), competitor, json.dumps(key)))


def main(folder: str, name: str, key: str) -> None:
    """Look up in this process, and print."""
    started = time.perf_counter()
    from bench.competitors import BY_NAME
    from bench.data import DataSet

    competitor = BY_NAME[name](DataSet.load(Path(folder)))
    importlib.import_module(competitor.package)
    import_seconds = time.perf_counter() - started
    drop_from_cache(competitor.paths())

    keys = [json.loads(key)]
    before = bytes_read()
    started = time.perf_counter()
    competitor.open()
    found = competitor.lookup(keys)
    seconds = time.perf_counter() - started
    after = bytes_read()
    taken = FirstLookup(
        import_seconds,
        seconds,
        after[0] - before[0] if after and before else None,
        peak_bytes(),
        found.num_rows,
    )
    print(json.dumps(asdict(taken)))


if __name__ == "__main__":
    main(*sys.argv[1:])
