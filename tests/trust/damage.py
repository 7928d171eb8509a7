"""Files of an index, and of the data, are damaged: right rows, or an error, and it is noticed.

Of a damaged data file rows are right that are those of the sound file, or those that
pyarrow reads of the damaged one.
"""

from __future__ import annotations

import os
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pads
from trust.report import Report
from trust.small import (
    FILTERS,
    NUMBERS,
    WrongRows,
    build,
    check_answers,
    copied,
    prepare,
    validate_all,
    wanted,
    write,
    write_anew,
)

import zonebloom as zb

LAYOUTS = ("table", "sliced", "mixed", "data", "data, stale", "data without an index")
FLIPS = 6


def damages(path: Path, others: list[Path], rng: random.Random) -> Iterator[tuple[str, Callable]]:
    """Names of what may happen to a file, and what does it."""
    data = path.read_bytes()
    size = len(data)

    def written(content: bytes) -> Callable:
        return lambda: path.write_bytes(content)

    for _ in range(FLIPS):
        at, bit = rng.randrange(size), rng.randrange(8)
        flipped = bytearray(data)
        flipped[at] ^= 1 << bit
        yield f"flip of bit {bit} at {at}", written(bytes(flipped))
    for stop in {0, 1, size // 2, size - 1, rng.randrange(size)}:
        yield f"truncation to {stop}", written(data[:stop])
    for length in (64, 4096):
        at = rng.randrange(max(1, size - length))
        zeroed = bytearray(data)
        zeroed[at : at + length] = bytes(len(zeroed[at : at + length]))
        if zeroed != data:
            yield f"{length} zeros at {at}", written(bytes(zeroed))
    for length in (8, 32, 256, 8192):
        first, second = sorted(rng.randrange(0, max(1, size - length), 8) for _ in range(2))
        if first + length <= second and data[first : first + length] != data[second:][:length]:
            other = bytearray(data)
            other[first : first + length] = data[second : second + length]
            other[second : second + length] = data[first : first + length]
            yield f"{length} bytes at {first} and {second} exchanged", written(bytes(other))
    yield "garbage behind it", written(data + rng.randbytes(100))
    yield "deletion", path.unlink
    for other in others:
        content = other.read_bytes()
        if content != data:
            yield f"the bytes of {other.parent.name}/{other.name}", written(content)


def run_case(report: Report, number: int, folder: Path, most: int | None = None) -> None:
    """An index in one layout, or data, with one file damaged after another."""
    rng = report.begin(number)
    layout = LAYOUTS[number % len(LAYOUTS)]
    start, data = folder / "start", folder / "data"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", zb.errors.ZoneBloomWarning)
        if layout.startswith("data"):
            for each in NUMBERS:
                write(start, each, compression="none", write_page_checksum=rng.random() < 0.3)
            if layout != "data without an index":
                build(zb.dataset(start), "table")
            files = sorted(start.glob("*.parquet"))
        else:
            prepare(start, "sliced" if layout == "sliced" else "table")
            if layout == "mixed":
                zb.dataset(start).optimize.optimize_indices(spark=False)
                # Files of older versions are nobody's.
                write_anew(zb.dataset(start), "vacuum")
            files = [each for each in sorted(start.glob("_zonebloom/**/*")) if each.is_file()]
        for path in files:
            alike = [each for each in files if each.suffix == path.suffix and each != path]
            same_name = [each for each in alike if each.name == path.name] or alike
            every = list(damages(path, rng.sample(same_name, min(3, len(same_name))), rng))
            for what, damage in every if most is None else rng.sample(every, most):
                copied(start, data)
                target = data / path.relative_to(start)
                # What damages was made for the sound file: do it there, and put that back.
                sound = path.read_bytes()
                status = path.stat()
                damage()
                if path.exists():
                    shutil.copy(path, target)
                else:
                    target.unlink()
                path.write_bytes(sound)
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
                if target.exists() and layout == "data":
                    # The index holds the damaged file for the sound one, if it can.
                    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
                of_data = layout.startswith("data")
                kind = what.split(" ")[0] if "exchanged" not in what else "exchange"
                report.tried[f"{'data' if of_data else path.name}, {kind}"] += 1
                problem = data_problem(data) if of_data else index_problem(data)
                if problem:
                    shown = path.relative_to(start)
                    report.fail(f"{layout}: {shown}: {what}: {problem}")


def index_problem(data: Path) -> str | None:
    """What is wrong with a dataset whose index is damaged: rows, or that nobody says so."""
    said: list[warnings.WarningMessage]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", zb.errors.IndexNotUsedWarning)
        try:
            ds = zb.dataset(data)
            noticed = bool(said) or len(ds.describe_indices()) < 2
        except zb.errors.ZoneBloomError:
            return None
        try:
            check_answers(ds, NUMBERS)
        except zb.errors.ZoneBloomError:
            pass
        except WrongRows as error:
            return f"{error}, {len(said)} warnings"
        except Exception as error:  # noqa: BLE001 - not one of ours
            return f"raised {error!r:.200}"
        try:
            validate_all(ds)
        except zb.errors.ZoneBloomError:
            noticed = True
        except Exception as error:  # noqa: BLE001 - not one of ours
            return f"validate_index raised {error!r:.200}"
        return None if noticed else "validate_index says it is sound"


def data_problem(data: Path) -> str | None:
    """What is wrong with the rows of a dataset of which a file is damaged."""
    try:
        theirs = pads.dataset(data, exclude_invalid_files=False).to_table()
        rows = {row["row"]: row for row in theirs.to_pylist()}
    except (pa.ArrowException, OSError, ValueError, UnicodeDecodeError):
        theirs = None
    try:
        ds = zb.dataset(data)
    except zb.errors.ZoneBloomError:
        return None
    except Exception as error:  # noqa: BLE001 - not one of ours
        return f"opening raised {error!r:.200}"
    for filter in FILTERS:
        try:
            found = ds.to_table(["row"], filter)["row"].to_pylist()
        except zb.errors.ZoneBloomError:
            continue
        except Exception as error:  # noqa: BLE001 - not one of ours
            return f"{filter} raised {error!r:.200}"
        if found == wanted(NUMBERS, filter):
            continue
        if theirs is None:
            return f"{filter} gave {found[:9]}, where pyarrow reads nothing"
        try:
            expected = zb.dataset(theirs).to_table(["row"], filter)["row"].to_pylist()
        except zb.errors.ZoneBloomError:
            continue
        # Row by row: of some rows the page of one column may be read, and not the other's.
        wrong = set(found).symmetric_difference(expected) & set(found).symmetric_difference(
            wanted(NUMBERS, filter)
        )
        if wrong and rows:
            return f"{filter} gave {found[:9]}, pyarrow {expected[:9]}"
    return None
