"""Make every call to the operating system fail once, in readers and in writers.

A first run counts the calls. Then the first call fails, then the second, and so on. Every run must
end with the right rows or a `ZoneBloomError`. After the fault, reads must return the right rows,
and a second run of the writer must leave a valid index.
"""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
from trust.injection import (
    FAULTS,
    FileSystemCalls,
    NativeCalls,
    PythonCalls,
    is_native,
)
from trust.report import Report
from trust.small import (
    NUMBERS,
    WRITERS,
    WrongRows,
    before_writer,
    check_answers,
    copied,
    prepare,
    quiet,
    validate_all,
    wanted,
    write_anew,
)

import zonebloom as zb

KINDS = {"python": PythonCalls, "file system": FileSystemCalls, "native": NativeCalls}
READS = ("open and look up", "look up", "count", "no index", "take", "search_many", "to_polars")
READS += ("validate",)
SCENARIOS = [(name, indexed, False) for name in READS for indexed in ("BLOOMFILTER", "HASH")]
SCENARIOS += [(name, indexed, True) for name, indexed in WRITERS]
IN_POLARS = "id = 1370"
# A number that no call has, to count the calls without a fault.
CLEAN = -1


def read(ds: zb.Dataset, operation: str) -> None:
    """Read in one way, and compare the result with plain Python."""
    if operation == "count":
        for filter in ("id = 1370", "name IS NULL"):
            if ds.count_rows(filter) != len(wanted(NUMBERS, filter)):
                raise WrongRows(f"counted wrong: {filter}")
    elif operation == "no index":
        matches = ds.to_table(["row"], "id = 1370", use_scalar_index=False)["row"].to_pylist()
        if matches != wanted(NUMBERS, "id = 1370"):
            raise WrongRows(f"without an index {matches}")
    elif operation == "take":
        universe = ds.search("id = 1370").to_table().to_pylist()
        addresses = [row_range["fragment_id"] << 32 | row_range["start"] for row_range in universe]
        rows_taken = ds.take_rows(addresses, ["row"])["row"].to_pylist()
        numbers = {f"{number}.parquet": number for number in NUMBERS}
        if rows_taken != [
            numbers[row_range["path"]] * 120 + row_range["start"] for row_range in universe
        ]:
            raise WrongRows(f"took {rows_taken} for {universe}")
    elif operation == "search_many":
        matches = ds.search_many("id", [10, 1370, 2550]).read_all()
        if set(matches["key_index"].to_pylist()) != {0, 1, 2}:
            raise WrongRows("search_many denies a key")
    elif operation == "to_polars":
        rows = ds.to_polars().filter(pl.col("id") == 1370).collect()["row"].to_list()
        if rows != wanted(NUMBERS, IN_POLARS):
            raise WrongRows(f"Polars got {rows}")
    elif operation == "validate":
        validate_all(ds)
    else:
        check_answers(ds, NUMBERS)


def run_case(report: Report, number: int, folder: Path, max_faults: int | None = None) -> None:
    """Run a scenario with a fault at each call in turn, or at ``max_faults`` random calls."""
    rng = report.begin(number)
    name, indexed, is_writer = SCENARIOS[number % len(SCENARIOS)]
    kind = list(KINDS)[number // len(SCENARIOS) % len(KINDS)]
    if kind == "native" and not is_native():
        report.refused["native: started without its library"] += 1
        return
    fault = rng.choice(list(FAULTS))
    lasting = rng.random() < 0.3
    _Scenario(report, folder, name, indexed, is_writer, kind).run(fault, lasting, max_faults, rng)


class _Scenario:
    def __init__(
        self,
        report: Report,
        folder: Path,
        name: str,
        indexed: str | None,
        is_writer: bool,
        kind: str,
    ):
        self.report, self.name, self.is_writer, self.kind = report, name, is_writer, kind
        self.indexed = indexed
        self.start, self.folder = folder / "start", folder / "work" / "data"
        # The index lies beside the data folder.
        self.calls = KINDS[kind](self.folder.parent)
        with quiet():
            prepare(self.start, indexed)
            if is_writer:
                before_writer(zb.dataset(self.start), name)

    def open(self) -> zb.Dataset:
        return zb.dataset(str(self.folder), filesystem=self.calls.filesystem())

    def once(self, call: int, fault: int, *, lasting: bool) -> str | None:
        """Run with one failing call. Return what went wrong."""
        ds = None
        copied(self.start, self.folder)
        if self.name != "open and look up":
            ds = self.open()
        try:
            with self.calls.armed(call, fault, lasting=lasting):
                ds = ds or self.open()
                (write_anew if self.is_writer else read)(ds, self.name)
        except zb.errors.ZoneBloomError:
            pass
        except WrongRows as error:
            return f"wrong rows: {error}"
        except pl.exceptions.PolarsError as error:
            # Polars adds its own frames to the end of a traceback.
            if self.name != "to_polars":
                return f"raised {error!r:.200}"
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is not ours
            return f"raised {error!r:.200}"
        if call == CLEAN:
            return None
        try:
            if ds is not None:
                check_answers(ds, NUMBERS)
            check_answers(self.open(), NUMBERS)
            if self.is_writer:
                validate_all(self.open())
                if not (self.name == "drop" and "id_idx" not in self.open().opened.version.indices):
                    write_anew(self.open(), self.name)
                check_answers(self.open(), NUMBERS)
                validate_all(self.open())
        except BaseException as error:  # noqa: BLE001 - nothing fails any more
            return f"after the fault: {error!r:.200}"
        return None

    def run(self, fault: str, lasting: bool, max_faults: int | None, rng: random.Random) -> None:
        with quiet():
            problem = self.once(CLEAN, 0, lasting=False)
            count = self.calls.count
            if problem is not None or not count:
                self.report.fail(f"{self.name}, clean, {count} calls: {problem}")
                return
            reported = set()
            for call in (
                range(count)
                if max_faults is None
                else rng.sample(range(count), min(max_faults, count))
            ):
                problem = self.once(call, FAULTS[fault], lasting=lasting)
                self.report.tried[f"{self.kind}: {self.name}"] += 1
                description = f"{self.calls.last}: {problem}"
                if problem is not None and description not in reported:
                    reported.add(description)
                    self.report.fail(
                        f"{self.kind}, {self.name}, {self.indexed}: {fault}"
                        f"{' from' if lasting else ' at'} call {call} of {count} ({description})"
                    )
