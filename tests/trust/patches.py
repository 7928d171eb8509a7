"""Patch large indexed files in place, and restore their times.

Every lookup must return the rows that the file has now, after any refresh.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from trust.report import Report
from trust.small import quiet

import zonebloom as zb

# More than 1 MiB of values of 8 bytes, so that the file's digest covers samples only.
ROWS = 150_000
STEPS = 12


class Patched:
    """A file of even ids, some of which are replaced by odd ones."""

    def __init__(self, folder: Path, rng: random.Random):
        self.rng = rng
        self.path = folder / "data" / "a.parquet"
        self.path.parent.mkdir(parents=True)
        self.ids = np.random.default_rng(rng.randrange(1 << 30)).permutation(ROWS) * 2
        pq.write_table(
            pa.table({"id": self.ids}),
            self.path,
            compression="none",
            use_dictionary=False,
            write_statistics=rng.random() < 0.5,
            write_page_index=rng.random() < 0.5,
            row_group_size=rng.choice([40_000, ROWS]),
        )
        data = self.path.read_bytes()
        # Pages hold values of 8 bytes one after another.
        # The bytes of one value may also lie across two others, but those of two values do not.
        pairs = {row: self.ids[row : row + 2].tobytes() for row in rng.sample(range(ROWS - 1), 60)}
        self.places = {row: data.find(pair) for row, pair in pairs.items() if pair in data}

    def patch(self) -> None:
        row, place = self.rng.choice(sorted(self.places.items()))
        status = self.path.stat()
        # The new value keeps the file's statistics right.
        value = 2 * self.rng.randrange(ROWS // 4, ROWS // 2) + 1
        with self.path.open("r+b") as file:
            file.seek(place)
            if file.read(8) != int(self.ids[row]).to_bytes(8, "little"):
                raise AssertionError(f"row {row} does not lie at {place}")
            file.seek(place)
            file.write(value.to_bytes(8, "little"))
        os.utime(self.path, ns=(status.st_atime_ns, status.st_mtime_ns))
        self.ids[row] = value

    def change_attributes(self) -> None:
        self.path.chmod(self.rng.choice([0o600, 0o644]))

    def copy(self) -> None:
        copied = shutil.copy2(self.path, self.path.parent.parent / "copy")
        os.replace(copied, self.path)

    def wrong_answer(self, ds: zb.Dataset) -> str | None:
        row = self.rng.choice(sorted(self.places))
        even, odd = 2 * self.rng.randrange(ROWS), 2 * self.rng.randrange(ROWS) + 1
        # A lookup returns a row once for each equal key.
        keys = sorted({int(self.ids[row]), even, odd})
        places = np.flatnonzero(np.isin(self.ids, keys))
        if ds.count_rows(f"id IN ({', '.join(map(str, keys))})") != places.size:
            return f"a filter of {keys} does not give {places.size} rows"
        if sorted(ds.lookup("id", keys)["id"].to_pylist()) != sorted(self.ids[places].tolist()):
            return f"a lookup of {keys} does not give {places.size} rows"
        return None


def run_case(report: Report, number: int, folder: Path) -> None:
    """Patch, copy, build and refresh in random order."""
    rng = report.begin(number)
    file = Patched(folder, rng)
    readers = [zb.dataset(file.path.parent)]

    def reopen() -> None:
        readers[:] = [*readers[-1:], zb.dataset(file.path.parent)]

    deeds: list[Callable[[], object]] = [
        *(file.patch, file.patch, file.change_attributes, file.copy, reopen),
        lambda: readers[-1].create_scalar_index("id", spark=False, global_filter=True),
        lambda: readers[-1].optimize.optimize_indices(spark=False),
    ]
    deed_names = []
    with quiet():
        readers[0].create_scalar_index("id", spark=False)
        for _ in range(STEPS):
            deed = rng.choice(deeds)
            deed_names.append(deed.__name__)
            deed()
            for reader in readers:
                report.tried["lookups in a patched file"] += 1
                problem = file.wrong_answer(reader)
                if problem is not None:
                    report.fail(f"after {', '.join(deed_names[-5:])}: {problem}")
                    return
