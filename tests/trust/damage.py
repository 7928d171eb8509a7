"""Test that damaged index and data files are detected, and never give wrong rows.

The right rows of a damaged data file are those of the sound file, or those that pyarrow reads from
the damaged one.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
from support.helpers import index_folder
from trust.report import Report
from trust.small import (
    FILTERS,
    NUMBERS,
    WrongRows,
    build,
    check_answers,
    check_requests,
    prepare,
    validate_all,
    wanted,
    write,
)

import zonebloom as zb
from zonebloom.predicates import translate_filter

SUBJECTS = ("BLOOMFILTER", "HASH", "data", "data, stale", "data without an index")
FLIPS = 6


def damages(
    path: Path, other_files: list[Path], rng: random.Random
) -> Iterator[tuple[str, Callable]]:
    """Yield the name of each damage, and a function that damages the file."""
    data = path.read_bytes()
    size = len(data)

    def written(content: bytes) -> Callable:
        return lambda: path.write_bytes(content)

    # One bit of a document is enough to change a name, so flip more bits there.
    for _ in range(FLIPS * (10 if path.suffix == ".json" else 1)):
        position, bit = rng.randrange(size), rng.randrange(8)
        flipped = bytearray(data)
        flipped[position] ^= 1 << bit
        yield f"flip of bit {bit} at {position}", written(bytes(flipped))
    for stop in {0, 1, size // 2, size - 1, rng.randrange(size)}:
        yield f"truncation to {stop}", written(data[:stop])
    for length in (64, 4096):
        start = rng.randrange(max(1, size - length))
        zeroed = bytearray(data)
        zeroed[start : start + length] = bytes(len(zeroed[start : start + length]))
        if zeroed != data:
            yield f"{length} zeros at {start}", written(bytes(zeroed))
    for first, second, length in exchanges(path, size, rng):
        if first + length <= second and data[first : first + length] != data[second:][:length]:
            other = bytearray(data)
            other[first : first + length] = data[second : second + length]
            other[second : second + length] = data[first : first + length]
            yield f"{length} bytes at {first} and {second} exchanged", written(bytes(other))
    yield "garbage behind it", written(data + rng.randbytes(100))
    yield "deletion", path.unlink
    for other in other_files:
        content = other.read_bytes()
        if content != data:
            yield f"the bytes of {other.parent.name}/{other.name}", written(content)


def exchanges(path: Path, size: int, rng: random.Random) -> Iterator[tuple[int, int, int]]:
    """Yield two offsets in a file and a length."""
    for length in (8, 32, 256, 8192):
        first, second = sorted(rng.randrange(0, max(1, size - length), 8) for _ in range(2))
        yield first, second, length


def run_case(report: Report, number: int, folder: Path, max_damages: int | None = None) -> None:
    """Damage one file of an index, or of the data, after another."""
    rng = report.begin(number)
    subject = SUBJECTS[number % len(SUBJECTS)]
    data = folder / "data"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", zb.errors.ZoneBloomWarning)
        if subject.startswith("data"):
            for file_number in NUMBERS:
                has_checksums = rng.random() < 0.3
                write(data, file_number, compression="none", write_page_checksum=has_checksums)
            if subject != "data without an index":
                build(zb.dataset(data), "BLOOMFILTER")
            files = sorted(data.glob("*.parquet"))
        else:
            prepare(data, subject)
            files = [path for path in sorted(index_folder(data).rglob("*")) if path.is_file()]
        for path in files:
            same_type = [other for other in files if other.suffix == path.suffix and other != path]
            same_name = [other for other in same_type if other.name == path.name] or same_type
            sound, status = path.read_bytes(), path.stat()
            every = list(damages(path, rng.sample(same_name, min(3, len(same_name))), rng))
            for damage_name, damage in (
                every if max_damages is None else rng.sample(every, max_damages)
            ):
                damage()
                if path.exists() and subject == "data":
                    # Keep the times, so that the index takes the damaged file for the sound one.
                    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
                of_data = subject.startswith("data")
                kind = "exchange" if "exchanged" in damage_name else damage_name.split(" ")[0]
                kind = {"the": "swap", "64": "zeros", "4096": "zeros"}.get(kind, kind)
                name = path.name if "0000" not in path.name else f"version{path.suffix}"
                report.tried[f"{'data' if of_data else name}, {kind}"] += 1
                problem = data_problem(data) if of_data else index_problem(data)
                path.write_bytes(sound)
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
                if problem:
                    report.fail(f"{subject}: {path.relative_to(folder)}: {damage_name}: {problem}")


def index_problem(data: Path) -> str | None:
    """Return the problem of a dataset with a damaged index: wrong rows, or no error and warning."""
    issued: list[warnings.WarningMessage]
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always", zb.errors.IndexNotUsedWarning)
        try:
            ds = zb.dataset(data)
            noticed = bool(issued) or len(ds.describe_indices()) < 2
        except zb.errors.ZoneBloomError:
            return None
        try:
            check_answers(ds, NUMBERS)
            check_requests(ds, NUMBERS)
        except WrongRows as error:
            return f"{error}, {len(issued)} warnings"
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
    """Return what is wrong with the rows of a dataset with a damaged file."""
    try:
        ds = zb.dataset(data)
    except zb.errors.ZoneBloomError:
        return None
    except Exception as error:  # noqa: BLE001 - not one of ours
        return f"opening raised {error!r:.200}"
    for filter in FILTERS:
        try:
            rows = ds.to_table(["row"], filter)["row"].to_pylist()
        except zb.errors.ZoneBloomError:
            continue
        except Exception as error:  # noqa: BLE001 - not one of ours
            return f"{filter} raised {error!r:.200}"
        if rows == wanted(NUMBERS, filter):
            continue
        names = ["row", *(name for name in ("id", "name", "twin") if name in filter)]
        # With the filter, pyarrow skips row groups that it cannot read.
        theirs = _read_by_pyarrow(data, names, None)
        theirs = theirs or _read_by_pyarrow(data, names, translate_filter(filter, ds.schema)[0])
        if theirs is None:
            return f"{filter} gave {rows[:9]}, but pyarrow cannot read the file"
        expected = [row["row"] for row in theirs if FILTERS[filter](row)]
        # Each row may equal the sound file or the rows of pyarrow, so compare row by row.
        wrong = set(rows).symmetric_difference(expected)
        if wrong & set(rows).symmetric_difference(wanted(NUMBERS, filter)):
            return f"{filter} gave {rows[:9]}, pyarrow {expected[:9]}"
    return None


def _read_by_pyarrow(data: Path, names: list[str], filter: Any) -> list[dict] | None:
    try:
        return pads.dataset(data).to_table(columns=names, filter=filter).to_pylist()
    except (pa.ArrowException, OSError, ValueError):
        return None
