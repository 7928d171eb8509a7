"""Put foreign files, folders and symbolic links into an index folder while writers work in it.

Nothing that does not belong to the index may change, and lookups must equal brute force.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from support.helpers import index_folder
from trust.report import Report
from trust.small import NUMBERS, check_answers, prepare, quiet, write, write_anew

import zonebloom as zb
from zonebloom.errors import CatalogError

KINDS = ("BLOOMFILTER", "HASH", None)
OPERATIONS = ("build", "build HASH", "optimize", "merge", "drop", "vacuum")
# How often foreign files are added, and a writer runs, in one case.
ROUNDS = 4
SEGMENT_FILES = ("bloomfilter.arrow", "hash.buckets", "ranges.arrow", "global.sbbf")
AGES = (timedelta(0), timedelta(hours=1), timedelta(days=30))


def run_case(report: Report, number: int, folder: Path, rounds: int = ROUNDS) -> None:
    """Run intruders and writers of the index in turn."""
    rng = report.begin(number)
    data, foreign_folder = folder / "data", folder / "others"
    index = folder / "indices" if number % 4 == 3 else index_folder(data)
    foreign_folder.mkdir()
    for name in (*SEGMENT_FILES, "customers.parquet"):
        (foreign_folder / name).write_bytes(rng.randbytes(rng.randrange(100)))
    with quiet():
        prepare(data, KINDS[number % len(KINDS)])
        numbers = list(NUMBERS)
        planted: list[Path] = []
        for _ in range(rounds):
            for _ in range(rng.randrange(1, 5)):
                planted += _plant(index, foreign_folder, rng)
            before = _states([foreign_folder, *planted])
            if rng.random() < 0.5:
                numbers.append(len(numbers))
                write(data, numbers[-1])
            operation = rng.choice(OPERATIONS)
            index_dir = str(index) if index.name == "indices" else None
            try:
                report.tried[operation] += 1
                _write(zb.dataset(data, index_dir=index_dir), operation, rng)
            except CatalogError as error:
                # The error names a folder of the index that is a link.
                report.refused[f"{operation}: a link"] += 1
                if "symbolic link" not in str(error) or not _has_links(index):
                    report.fail(f"{operation} raised {error}")
            after = _states([foreign_folder, *planted])
            changed = [path for path in before if before[path] != after.get(path)]
            if changed:
                report.fail(f"{operation} changed {changed[0].name} of others: {planted}")
            try:
                check_answers(zb.dataset(data, index_dir=index_dir), numbers)
            except AssertionError as error:
                report.fail(f"after {operation}: {error}")


def _write(ds: zb.Dataset, operation: str, rng: random.Random) -> None:
    names = {index.name for index in ds.describe_indices()}
    if operation == "drop" and "id_idx" not in names:
        operation = "build"
    write_anew(ds, operation)
    ds.vacuum(rng.choice(AGES))


def _plant(index: Path, foreign_folder: Path, rng: random.Random) -> list[Path]:
    """Put foreign files into the index folder. Return the paths that could be created."""
    kinds: list[Callable[[Path, Path, random.Random], list[Path]]] = [
        _foreign_folder,
        _foreign_folder,
        _foreign_file,
        _foreign_file,
        _link,
        _link,
        _file_in_segment,
    ]
    if rng.random() < 0.1:
        kinds = [_linked_folder]
    try:
        paths = rng.choice(kinds)(index, foreign_folder, rng)
    except (FileExistsError, FileNotFoundError, NotADirectoryError):
        return []
    for path in paths:
        # Make most files old enough for a vacuum.
        if rng.random() < 0.8:
            os.utime(path, (0, 0), follow_symlinks=False)
    return paths


def _place(index: Path, rng: random.Random) -> Path:
    place = index / rng.choice(("segments", "segments", "versions"))
    place.mkdir(parents=True, exist_ok=True)
    return place


def _foreign_name(rng: random.Random) -> str:
    """Return a name that no index uses, though it may look like one."""
    prefix, number = f"{rng.getrandbits(64):016x}", f"{rng.randrange(9):020d}"
    return rng.choice(
        [
            "customers",
            prefix,
            f"{prefix}-",
            f"{prefix[:-1]}-0-0000-0",
            f"{prefix.upper()}X-0-0000-0",
            f"{prefix}-0-0000-copy",
            f"{prefix}-0-0000-0.bak",
            f"copy-{prefix}-0-0000-0",
            f"{number}.json.bak",
            f"{number}.parquet",
            f"{number}-old.arrow",
            f"!{number}.json",
            ".DS_Store",
            f".{prefix}",
            "0.json",
        ]
    )


def _own_name(place: Path, rng: random.Random) -> str:
    """Return a name that an index could use."""
    prefix = f"{rng.getrandbits(64):016x}"
    if place.name == "versions":
        return f"{0:020d}-{prefix}.arrow"
    return rng.choice([f"{prefix}-0-0000-{rng.randrange(3)}", f"{prefix}-0-all-0"])


def _foreign_folder(index: Path, foreign_folder: Path, rng: random.Random) -> list[Path]:
    place = _place(index, rng)
    has_own_name = rng.random() < 0.4
    folder = place / (_own_name(place, rng) if has_own_name else _foreign_name(rng))
    folder.mkdir()
    names: list[str] = list(rng.sample(SEGMENT_FILES, rng.randrange(3)))
    if has_own_name:
        # Without this file, the folder would look like the remains of a crash.
        names.append(rng.choice(["customers.parquet", "bloomfilter.arrow.crc", "x"]))
    for name in names:
        (folder / name).write_bytes(rng.randbytes(20))
    return [*(folder / name for name in names), folder]


def _foreign_file(index: Path, foreign_folder: Path, rng: random.Random) -> list[Path]:
    path = _place(index, rng) / _foreign_name(rng)
    with open(path, "xb") as file:
        file.write(rng.randbytes(20))
    return [path]


def _link(index: Path, foreign_folder: Path, rng: random.Random) -> list[Path]:
    place = _place(index, rng)
    name = rng.choice([_own_name(place, rng), _foreign_name(rng)])
    target = rng.choice(
        [foreign_folder, foreign_folder / "customers.parquet", foreign_folder / "bloomfilter.arrow"]
    )
    (place / name).symlink_to(rng.choice([target, target, foreign_folder / "nowhere"]))
    return [place / name]


def _file_in_segment(index: Path, foreign_folder: Path, rng: random.Random) -> list[Path]:
    segments = sorted((index / "segments").glob("*-0000-*"))
    if not segments:
        return []
    path = rng.choice(segments) / rng.choice(["notes.txt", "hash.buckets", "global.sbbf"])
    if path.name == "notes.txt":
        with open(path, "xb") as file:
            file.write(b"notes")
    else:
        path.symlink_to(foreign_folder / path.name)
    return [path]


def _linked_folder(index: Path, foreign_folder: Path, rng: random.Random) -> list[Path]:
    """Move a folder of the index, and put a link in its place."""
    place = index / rng.choice(["segments", "versions"])
    if place.is_symlink():
        return []
    # Links lead from here to the foreign folder. Inside that folder, they would be cycles.
    moved = foreign_folder.with_name(f"moved-{place.name}")
    place.rename(moved)
    place.symlink_to(moved)
    return [place, moved]


def _has_links(index: Path) -> bool:
    return any((index / name).is_symlink() for name in ("segments", "versions"))


def _states(places: list[Path]) -> dict[Path, tuple[int, object]]:
    """Return types of files and folders, and contents of files, without following links."""
    states: dict[Path, tuple[int, object]] = {}
    for place in places:
        for path in (place, *(place.rglob("*") if not place.is_symlink() else ())):
            mode = path.lstat().st_mode if os.path.lexists(path) else 0
            content: object = None
            if stat.S_ISLNK(mode):
                content = os.readlink(path)
            elif stat.S_ISREG(mode):
                content = path.read_bytes()
            states[path] = stat.S_IFMT(mode), content
    return states
