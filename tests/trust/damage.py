"""Files of an index, and of the data, are damaged: right rows, or an error, and it is noticed.

Of a damaged data file rows are right that are those of the sound file, or those that
pyarrow reads of the damaged one.
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
import pyarrow.fs as pafs
from helpers import index_folder
from trust.report import Report
from trust.small import (
    FILTERS,
    NUMBERS,
    WrongRows,
    build,
    check_answers,
    prepare,
    validate_all,
    wanted,
    write,
    write_anew,
)

import zonebloom as zb
from zonebloom.index.sliced import SlicedTable
from zonebloom.predicates import translate_filter

LAYOUTS = ("table", "sliced", "mixed", "data", "data, stale", "data without an index")
FLIPS = 6


def damages(path: Path, others: list[Path], rng: random.Random) -> Iterator[tuple[str, Callable]]:
    """Names of what may happen to a file, and what does it."""
    data = path.read_bytes()
    size = len(data)

    def written(content: bytes) -> Callable:
        return lambda: path.write_bytes(content)

    # One bit of a document is enough to make one name another.
    for _ in range(FLIPS * (10 if path.suffix == ".json" else 1)):
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
    for first, second, length in exchanges(path, size, rng):
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


def exchanges(path: Path, size: int, rng: random.Random) -> Iterator[tuple[int, int, int]]:
    """Two places of a file and a length; of a sliced one, of two of its blocks."""
    for length in (8, 32, 256, 8192):
        first, second = sorted(rng.randrange(0, max(1, size - length), 8) for _ in range(2))
        yield first, second, length
    if path.suffix == ".sliced":
        for tile in SlicedTable(pafs.LocalFileSystem(), str(path)).directory.tiles:
            for _ in range(3 if tile.num_blocks > 1 else 0):
                first, second = sorted(rng.sample(range(tile.num_blocks), 2))
                length = tile.block_words * 8
                yield tile.offset + first * length, tile.offset + second * length, length


def run_case(report: Report, number: int, folder: Path, most: int | None = None) -> None:
    """An index in one layout, or data, with one file damaged after another."""
    rng = report.begin(number)
    layout = LAYOUTS[number % len(LAYOUTS)]
    data = folder / "data"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", zb.errors.ZoneBloomWarning)
        if layout.startswith("data"):
            for each in NUMBERS:
                write(data, each, compression="none", write_page_checksum=rng.random() < 0.3)
            if layout != "data without an index":
                build(zb.dataset(data), "table")
            files = sorted(data.glob("*.parquet"))
        else:
            prepare(data, "sliced" if layout == "sliced" else "table")
            if layout == "mixed":
                zb.dataset(data).optimize.optimize_indices(spark=False)
                # Files of older versions are nobody's.
                write_anew(zb.dataset(data), "vacuum")
            files = [each for each in sorted(index_folder(data).rglob("*")) if each.is_file()]
        for path in files:
            alike = [each for each in files if each.suffix == path.suffix and each != path]
            same_name = [each for each in alike if each.name == path.name] or alike
            sound, status = path.read_bytes(), path.stat()
            every = list(damages(path, rng.sample(same_name, min(3, len(same_name))), rng))
            for what, damage in every if most is None else rng.sample(every, most):
                damage()
                if path.exists() and layout == "data":
                    # The index holds the damaged file for the sound one, if it can.
                    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
                of_data = layout.startswith("data")
                kind = "exchange" if "exchanged" in what else what.split(" ")[0]
                kind = {"the": "swap", "64": "zeros", "4096": "zeros"}.get(kind, kind)
                name = path.name if "0000" not in path.name else f"version{path.suffix}"
                report.tried[f"{'data' if of_data else name}, {kind}"] += 1
                problem = data_problem(data) if of_data else index_problem(data)
                path.write_bytes(sound)
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
                if problem:
                    report.fail(f"{layout}: {path.relative_to(data)}: {what}: {problem}")


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
        names = ["row", *(name for name in ("id", "name", "twin") if name in filter)]
        # With the filter, it passes over row groups that it could not read.
        theirs = _read_by_pyarrow(data, names, None)
        theirs = theirs or _read_by_pyarrow(data, names, translate_filter(filter, ds.schema)[0])
        if theirs is None:
            return f"{filter} gave {found[:9]}, where pyarrow reads nothing"
        expected = [row["row"] for row in theirs if FILTERS[filter](row)]
        # Row by row: one may be read of a page that the index knows, another as pyarrow does.
        wrong = set(found).symmetric_difference(expected)
        if wrong & set(found).symmetric_difference(wanted(NUMBERS, filter)):
            return f"{filter} gave {found[:9]}, pyarrow {expected[:9]}"
    return None


def _read_by_pyarrow(data: Path, names: list[str], filter: Any) -> list[dict] | None:
    try:
        return pads.dataset(data).to_table(columns=names, filter=filter).to_pylist()
    except (pa.ArrowException, OSError, ValueError):
        return None
