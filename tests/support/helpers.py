"""Define the indexable types, random values of them, and helpers that many test files share."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import xxhash
from support.format_writer import filter_of

from zonebloom.catalog.place import default_index_folder
from zonebloom.catalog.version_log import decode_document, encode_document
from zonebloom.index.zone_bloom.rows import ZoneParameters, Zones
from zonebloom.index.zone_bloom.train import ZoneTrainer
from zonebloom.sbbf.hashing import hash_in_batches
from zonebloom.sbbf.kernel_loader import KernelLoader

THOROUGH = "ZONEBLOOM_THOROUGH"
ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "zonebloom"
GOLDEN = ROOT / "tests" / "golden"
GOLDEN_KEYS = {"golden": bytes(range(32))}

FIXED_TYPES = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.decimal32(7, 2),
    pa.decimal64(16, 4),
    pa.decimal128(38, 10),
    pa.decimal256(76, 0),
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    pa.timestamp("s"),
    pa.timestamp("ms", "UTC"),
    pa.timestamp("us", "Europe/Paris"),
    pa.timestamp("ns"),
    pa.duration("s"),
    pa.duration("ns"),
    pa.binary(1),
    pa.binary(4),
    pa.binary(13),
    pa.binary(16),
    pa.binary(32),
    pa.binary(37),
]
STRING_TYPES = [pa.string(), pa.large_string(), pa.string_view()]
BINARY_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view()]
VARIABLE_TYPES = STRING_TYPES + BINARY_TYPES
PLAIN_TYPES = FIXED_TYPES + VARIABLE_TYPES

REFUSED_TYPES = [
    pa.bool_(),
    pa.null(),
    pa.list_(pa.int32()),
    pa.large_list(pa.int32()),
    pa.list_(pa.int32(), 2),
    pa.struct([("a", pa.int32())]),
    pa.map_(pa.string(), pa.int32()),
    pa.month_day_nano_interval(),
]


class Label(pa.ExtensionType):
    """An extension type that is defined in Python, so that it has no hash."""

    def __init__(self, storage):
        super().__init__(storage, "zonebloom.label")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, serialized):
        return cls(storage)


def cases(number: int, quick: int | None = None) -> int:
    """Return the number of random cases: a quarter of them, or all with ``pytest --thorough``."""
    if os.environ.get(THOROUGH):
        return number
    return max(number // 4, 10) if quick is None else quick


def sample(
    arrow_type: pa.DataType, rows: int = 100, *, nulls: float = 0.2, seed: int = 0
) -> tuple[pa.Array, list[bytes | None]]:
    """Return random values of a plain type, some of them null, and the bytes that are hashed."""
    rng = random.Random(seed)
    is_null = [rng.random() < nulls for _ in range(rows)]
    if arrow_type in STRING_TYPES:
        texts = ["".join(rng.choices("aZ0é€😀", k=rng.randrange(40))) for _ in range(rows)]
        array = pa.array(texts, arrow_type, mask=np.array(is_null))
        encoded = [text.encode() for text in texts]
    elif arrow_type in BINARY_TYPES:
        encoded = [rng.randbytes(rng.randrange(60)) for _ in range(rows)]
        array = pa.array(encoded, arrow_type, mask=np.array(is_null))
    else:
        encoded = [rng.randbytes(arrow_type.byte_width) for _ in range(rows)]
        bitmap = np.packbits(np.logical_not(is_null), bitorder="little")
        buffers = [pa.py_buffer(bitmap), pa.py_buffer(b"".join(encoded))]
        array = pa.Array.from_buffers(arrow_type, rows, buffers)
    return array, [None if null else data for data, null in zip(encoded, is_null, strict=True)]


def xxh64(data: bytes) -> int:
    """Return the XXH64 hash with seed 0, by the xxhash package."""
    return xxhash.xxh64_intdigest(data)


def hashes_of(values: list[bytes]) -> np.ndarray:
    """Return the XXH64 hash of each value, by the xxhash package."""
    return np.array([xxh64(data) for data in values], dtype=np.uint64)


# The constants of XXH64.
PRIMES = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def inverse(odd: int) -> np.uint64:
    """Return the number whose product with an odd number is 1, modulo 2**64."""
    return np.uint64(pow(odd, -1, 1 << 64))


def words_with_hashes(hashes: np.ndarray) -> np.ndarray:
    """Return the eight bytes, as uint64, that have each XXH64: its steps, undone from the last."""

    def rotate_right(words: np.ndarray, bits: int) -> np.ndarray:
        return (words >> np.uint64(bits)) | (words << np.uint64(64 - bits))

    words = (hashes ^ (hashes >> np.uint64(32))) * inverse(PRIMES[2])
    words = (words ^ (words >> np.uint64(29)) ^ (words >> np.uint64(58))) * inverse(PRIMES[1])
    words = words ^ (words >> np.uint64(33))
    words = rotate_right((words - np.uint64(PRIMES[3])) * inverse(PRIMES[0]), 27)
    words = (words ^ np.uint64(PRIMES[4] + 8)) * inverse(PRIMES[0])
    return rotate_right(words, 31) * inverse(PRIMES[1])


def reference_filter(num_blocks: int, values: list[bytes | None]) -> bytes:
    """Return the bytes of a filter of all values except None, by the rules of the format."""
    return filter_of(num_blocks, [value for value in values if value is not None])


def index_folder(data: str | os.PathLike[str], filesystem: pafs.FileSystem | None = None) -> Path:
    """Return the index folder of a data folder. The index folder may not exist yet."""
    if filesystem is not None:
        return Path(default_index_folder(filesystem, str(data)))
    return Path(default_index_folder(pafs.LocalFileSystem(), os.path.abspath(data)))


def copy_dataset(source: Path, target: Path, **options: Any) -> Path:
    """Copy a data folder and its index folder, and return the copied data folder."""
    shutil.copytree(source, target, **options)
    index = index_folder(source)
    if index.exists() and source not in index.parents:
        shutil.copytree(index, index_folder(target))
    return target


def without_thread(max_checks: int) -> KernelLoader:
    """Return a loader without a thread: lookups use kernels after this many checks by NumPy."""
    loader = KernelLoader((), max_checks)
    loader.in_background = False
    return loader


def run_python(code: str, /, *arguments: object, **environment: str) -> str:
    """Run code in a new process that can import the package. Return its output."""
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def run_command(*arguments: object) -> int:
    """Run a command of ``zonebloom`` in this process. Return its exit code."""
    from zonebloom.cli.main import main

    return main([str(argument) for argument in arguments])


def rewrite_document(path: Path, change: Callable[[Any], Any]) -> None:
    """Change the content of one of our JSON documents, and write it with a valid checksum.

    ``change`` returns the new content, or None if it changed its argument in place.
    """
    _, content = decode_document(path.read_bytes())
    changed = change(content)
    path.write_bytes(encode_document(content if changed is None else changed))


def flipped_bits(data: bytes) -> Iterator[bytes]:
    """Yield copies of data with one flipped bit: every seventh bit, or all if thorough."""
    for bit in range(0, len(data) * 8, 1 if os.environ.get(THOROUGH) else 7):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """Run as another user if the user is root, because root may write anywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def copy_golden(tmp_path: Path, name: str | None) -> tuple[Path, Path]:
    """Copy the golden data, with the times of the files, and an index. Return both folders."""
    folder, index_dir = tmp_path / "data", tmp_path / "_zonebloom" / "data"
    shutil.copytree(GOLDEN / "data", folder)
    for number in range(2):
        time = 1_700_000_000_000_000_000 + number
        os.utime(folder / f"part={number}" / "data.parquet", ns=(time, time))
    if name is not None:
        shutil.copytree(GOLDEN / name, index_dir)
    return folder, index_dir


def train_zones(arrays: Iterable[pa.Array], parameters: ZoneParameters) -> Iterator[Zones]:
    """Yield the zones of a fragment whose column is stored in these arrays."""
    trainer = ZoneTrainer(parameters)
    for array in arrays:
        for hashes in hash_in_batches(array):
            yield from trainer.add(hashes)
    yield from trainer.finish()
