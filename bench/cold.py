"""Measure one lookup in a new process, with its files dropped from the page cache.

``python -m bench.cold FOLDER COMPETITOR KEY`` prints the measurements as JSON. Imports are timed
separately, because a service imports once, and the time of that says nothing about an index.
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
    """The time and memory of the first lookup of a process.

    Attributes
    ----------
    import_seconds : float
        Time to import the packages.
    seconds : float
        Time from opening the data set until the rows are there.
    storage_bytes : int or None
        Bytes read from the disk, including readahead; None if the system does not report them.
    peak_bytes : int
        Peak memory of the process.
    rows : int
        Number of rows found.
    """

    import_seconds: float
    seconds: float
    storage_bytes: int | None
    peak_bytes: int
    rows: int


def drop_from_cache(paths: Iterable[Path]) -> None:
    """Ask the system to drop the pages of files. Pages that a process maps stay."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            # The system drops only pages that are already on disk.
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def bytes_read() -> tuple[int, int] | None:
    """Return the bytes that this process read from storage, and by read calls, or None."""
    try:
        text = Path("/proc/self/io").read_text(encoding="ascii")
    except OSError:
        return None
    counts = dict(line.split(": ") for line in text.splitlines())
    return int(counts["read_bytes"]), int(counts["rchar"])


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    status = Path("/proc/self/status")
    if status.exists():
        # The peak that getrusage reports starts with that of the parent process.
        lines = status.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def first_lookup(folder: Path, competitor: str, key: Any) -> FirstLookup:
    """Look up a key in a new process."""
    return FirstLookup(**run_module("bench.cold", str(folder), competitor, json.dumps(key)))


def main(folder: str, name: str, key: str) -> None:
    """Look up a key in this process, and print the measurements."""
    start = time.perf_counter()
    from bench.competitors import BY_NAME
    from bench.data import DataSet

    competitor = BY_NAME[name](DataSet.load(Path(folder)))
    importlib.import_module(competitor.package)
    import_seconds = time.perf_counter() - start
    drop_from_cache(competitor.paths())

    keys = [json.loads(key)]
    before = bytes_read()
    start = time.perf_counter()
    competitor.open()
    rows = competitor.lookup(keys)
    seconds = time.perf_counter() - start
    after = bytes_read()
    result = FirstLookup(
        import_seconds=import_seconds,
        seconds=seconds,
        storage_bytes=after[0] - before[0] if after and before else None,
        peak_bytes=peak_bytes(),
        rows=rows.num_rows,
    )
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main(*sys.argv[1:])
