"""Build, refresh and use indices on a store that cuts some of its answers short.

Every answer is right or a `ZoneBloomError`. When the store works again, every answer is right,
including the answers of the indices that were built meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from e2e_helpers import ShortReads
from trust.report import Report
from trust.small import (
    FILTERS,
    ROWS,
    WrongRows,
    build,
    check_answers,
    quiet,
    validate_all,
    write,
)

import zonebloom as zb

STEPS = 12


class Store:
    """A file system that cuts a random share of its reads, to nothing or to a part."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.share = 0.0

    def __call__(self, offset: int, num_bytes: int) -> int:
        if self.rng.random() >= self.share:
            return num_bytes
        return self.rng.choice([0, self.rng.randrange(num_bytes)])


def run_case(report: Report, number: int, folder: Path) -> None:
    """Build, append, refresh and look up, with some reads cut short in each step."""
    rng = report.begin(number)
    data, store = folder / "data", Store(rng)
    options = {
        "row_group_size": rng.choice([10, 30, 120]),
        "compression": rng.choice(["none", "snappy", "zstd"]),
        "write_page_index": rng.random() < 0.5,
        "use_dictionary": rng.random() < 0.5,
    }
    write(data, 0, **options)
    numbers = [0]

    def open_dataset() -> zb.Dataset:
        return zb.dataset(str(data), filesystem=ShortReads(store).wrapped())

    def append() -> None:
        numbers.append(len(numbers))
        write(data, numbers[-1], **options)

    def read_all() -> None:
        rows = open_dataset().to_table(["row"])["row"].to_pylist()
        if rows != list(range(len(numbers) * ROWS)):
            raise WrongRows(f"a scan of all gave {len(rows)} rows")

    def locate() -> None:
        places = open_dataset().locate("id", [10, 30, 5])["row"].to_pylist()
        if places != [1, 3, None]:
            raise WrongRows(f"keys were located at {places}")

    actions: list[Callable[[], object]] = [
        lambda: build(open_dataset(), rng.choice(["BLOOMFILTER", "HASH"])),
        lambda: open_dataset().optimize.optimize_indices(spark=False),
        lambda: open_dataset().adopt_index(),
        lambda: check_answers(open_dataset(), numbers, [rng.choice(list(FILTERS))]),
        lambda: check_answers(open_dataset(), numbers, [rng.choice(list(FILTERS))]),
        append,
        read_all,
        locate,
    ]
    with quiet():
        for _ in range(STEPS):
            action = rng.choice(actions)
            store.share = rng.choice([0.02, 0.1, 0.3])
            report.tried["reads cut short"] += 1
            try:
                action()
            except zb.errors.ZoneBloomError:
                report.refused["a store that cuts answers short"] += 1
            except Exception as error:  # noqa: BLE001 - not one of ours
                report.fail(f"{options}: {error!r:.200}")
                return
            store.share = 0.0
            try:
                check_answers(zb.dataset(data), numbers)
            except WrongRows as error:
                report.fail(f"{options}: {error}, although the store works again")
                return
        validate_all(zb.dataset(data))
