"""All competitors behind one interface: the same data, the same keys, the same rows out.

Every lookup returns all columns of the rows found, as an Arrow table. Each competitor is used
the way its documentation recommends and our measurements confirm; where there are several ways
to ask, the class says which is taken and why.
"""

from __future__ import annotations

import gc
import math
import os
import re
import shutil
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from bench.data import ZONE_ROWS, DataSet
from bench.layouts import RECOMMENDED_OPTIONS, ROW_GROUP_ROWS, without_views

# Of Lance's BLOOMFILTER and of ours, for filters in files too.
PROBABILITY = 0.00057


@dataclass(frozen=True, slots=True)
class Built:
    """What it took to prepare for lookups, beyond the plain data.

    Attributes
    ----------
    seconds : float or None
        None where there is nothing to build.
    index_bytes : int
        On disk.
    """

    seconds: float | None = None
    index_bytes: int = 0


class Competitor(ABC):
    """Something that finds the rows of keys of one data set.

    Attributes
    ----------
    name : str
        As reports show it.
    package : str
        What it imports.
    """

    name: ClassVar[str]
    package: ClassVar[str]

    def __init__(self, data: DataSet):
        self.data = data
        self.column = data.column

    def build(self) -> Built:
        """Make anew on disk what lookups need."""
        return Built()

    @abstractmethod
    def open(self) -> None:
        """Get ready for lookups in this process."""

    def warm(self) -> None:
        """Bring into memory what the competitor can be told to."""
        return

    @abstractmethod
    def lookup(self, keys: list) -> pa.Table:
        """The rows that hold one of some keys: ``=`` of one key, ``IN`` of more."""

    def zones_kept(self, key: Any) -> int | None:
        """Zones' worth of rows the index leaves to be read, where that can be known."""
        return None

    def close(self) -> None:
        """Let go of files and memory."""
        for name in [name for name in vars(self) if name not in ("data", "column")]:
            delattr(self, name)
        gc.collect()

    def paths(self) -> list[Path]:
        """Files a lookup may read."""
        return [file for file in self.data.folder.rglob("*") if file.is_file()]


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _literal(key: Any) -> str:
    return str(key) if isinstance(key, int) else "'" + key.replace("'", "''") + "'"


def _listed(column: str, keys: list) -> str:
    """SQL that is true for rows with one of some keys."""
    if len(keys) == 1:
        return f"{column} = {_literal(keys[0])}"
    return f"{column} IN ({', '.join(map(_literal, keys))})"


# Scans


class PyArrow(Competitor):
    """``pyarrow.dataset`` with a filter: row groups are skipped by their minima and maxima."""

    name = "pyarrow scan"
    package = "pyarrow.dataset"

    def open(self) -> None:
        import pyarrow.dataset as pads

        # Files may say their texts are views, which pyarrow does not filter.
        schema = without_views(pads.dataset(self.data.plain, format="parquet").schema)
        self._dataset = pads.dataset(self.data.plain, format="parquet", schema=schema)

    def lookup(self, keys: list) -> pa.Table:
        import pyarrow.compute as pc

        field = pc.field(self.column)
        wanted = pa.array(keys)
        return self._dataset.to_table(
            filter=field == wanted[0] if len(keys) == 1 else field.isin(wanted)
        )


class Polars(Competitor):
    """``scan_parquet`` and a filter, many keys by a semi join.

    Both engines are tried when opened warm, and the quicker one is kept for the kind of
    question it won.
    """

    name = "Polars scan"
    package = "polars"
    _join_from = 100

    def open(self) -> None:
        import polars as pl

        self._frame = pl.scan_parquet(self.data.plain / "*.parquet")
        self._engines = {False: "streaming", True: "streaming"}

    def warm(self) -> None:
        for keys in (self.data.present(1), self.data.present(1000)):
            taken = {}
            for engine in ("streaming", "in-memory"):
                self._engines[len(keys) >= self._join_from] = engine
                self.lookup(keys)
                started = time.perf_counter()
                self.lookup(keys)
                taken[engine] = time.perf_counter() - started
            self._engines[len(keys) >= self._join_from] = min(taken, key=taken.__getitem__)

    def lookup(self, keys: list) -> pa.Table:
        import polars as pl

        column = pl.col(self.column)
        is_many = len(keys) >= self._join_from
        if is_many:
            wanted = pl.LazyFrame({self.column: pl.Series(keys).unique()})
            found = self._frame.join(wanted, on=self.column, how="semi")
        elif len(keys) > 1:
            found = self._frame.filter(column.is_in(keys))
        else:
            found = self._frame.filter(column == keys[0])
        return found.collect(engine=self._engines[is_many]).to_arrow()


class DuckDB(Competitor):
    """A view over ``read_parquet`` on one connection, metadata of Parquet files cached.

    Literals in SQL were quicker than prepared statements, and from about a hundred keys a
    semi join with the keys as an Arrow table is quicker than a list.
    """

    name = "DuckDB scan"
    package = "duckdb"
    _join_from = 100

    def _folder(self) -> Path:
        return self.data.plain

    def open(self) -> None:
        import duckdb

        self._connection = duckdb.connect()
        self._connection.execute("SET parquet_metadata_cache = true")
        files = f"read_parquet('{self._folder()}/*.parquet')"
        self._connection.execute(f"CREATE VIEW data AS FROM {files}")

    def lookup(self, keys: list) -> pa.Table:
        if len(keys) < self._join_from:
            return self._ask(f"FROM data WHERE {_listed(self.column, keys)}")
        self._connection.register("wanted", pa.table({"key": keys}))
        return self._ask(f"FROM data WHERE {self.column} IN (SELECT key FROM wanted)")

    def _ask(self, sql: str) -> pa.Table:
        found = self._connection.sql(sql)
        return found.to_arrow_table()

    def close(self) -> None:
        if hasattr(self, "_connection"):
            self._connection.close()
        super().close()


# Filters in the files


@cache
def embed(data: DataSet) -> Built:
    """Write the data again with a Bloom filter in each row group; other options stay.

    The time is that of the whole rewrite, which is what it takes to add filters to files. Done
    once for all who read them.
    """
    import pyarrow.parquet as pq

    folder = embedded(data)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    filters = {data.column: {"ndv": ROW_GROUP_ROWS, "fpp": PROBABILITY}}
    started = time.perf_counter()
    num_bytes = 0
    for path in data.files:
        file = pq.ParquetFile(path)
        chunk = file.metadata.row_group(0).column(file.schema_arrow.get_field_index(data.column))
        has_dictionary = chunk.dictionary_page_offset is not None
        with pq.ParquetWriter(
            folder / path.name,
            file.schema_arrow,
            use_dictionary=has_dictionary,
            bloom_filter_options=filters,
            write_page_index=RECOMMENDED_OPTIONS["write_page_index"],
            max_rows_per_page=RECOMMENDED_OPTIONS["max_rows_per_page"],
        ) as writer:
            for batch in file.iter_batches(ROW_GROUP_ROWS):
                table = pa.Table.from_batches([batch])
                writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        written = pq.read_metadata(folder / path.name)
        column = written.schema.names.index(data.column)
        num_bytes += sum(
            written.row_group(group).column(column).bloom_filter_length or 0
            for group in range(written.num_row_groups)
        )
    return Built(time.perf_counter() - started, num_bytes)


def embedded(data: DataSet) -> Path:
    """Folder of the files with filters inside."""
    return data.folder / "embedded"


class DuckDBEmbedded(DuckDB):
    """DuckDB as for scans, over files with filters inside: it skips row groups for ``=``."""

    name = "DuckDB, filters in files"

    def _folder(self) -> Path:
        return embedded(self.data)

    def build(self) -> Built:
        return embed(self.data)


class DataFusionEmbedded(Competitor):
    """DataFusion with its reader's Bloom filters, page index and late materialization on.

    The DataFrame API skips parsing SQL; many keys are quicker as a semi join.
    """

    name = "DataFusion, filters in files"
    package = "datafusion"
    _join_from = 100

    def build(self) -> Built:
        return embed(self.data)

    def open(self) -> None:
        from datafusion import SessionConfig, SessionContext

        config = SessionConfig()
        for option in ("bloom_filter_on_read", "pushdown_filters", "reorder_filters"):
            config = config.set(f"datafusion.execution.parquet.{option}", "true")
        self._context = SessionContext(config)
        self._context.register_parquet("data", f"{embedded(self.data)}/")
        self._table = self._context.table("data")

    def lookup(self, keys: list) -> pa.Table:
        from datafusion import col, functions, literal

        # Double quotes keep upper case letters in names.
        column = col(f'"{self.column}"')
        if len(keys) == 1:
            return self._table.filter(column == literal(keys[0])).to_arrow_table()
        if len(keys) < self._join_from:
            listed = functions.in_list(column, [literal(key) for key in keys])
            return self._table.filter(listed).to_arrow_table()
        if self._context.table_exist("wanted"):
            self._context.deregister_table("wanted")
        wanted = pa.table({"key": keys})
        self._context.register_record_batches("wanted", [wanted.to_batches()])
        return self._context.sql(
            f'SELECT * FROM data WHERE "{self.column}" IN (SELECT key FROM wanted)'
        ).to_arrow_table()


# Lance


class Lance(Competitor):
    """Lance's own files, one for each Parquet file, with one scalar index.

    Every index type has the data to itself, for Lance uses one index a column. When warm, the
    index is prewarmed. Expressions come in quicker than SQL text from about a thousand keys.
    """

    package = "lance"
    index_type: ClassVar[str]
    _expression_from = 1000

    def _folder(self) -> Path:
        return self.data.folder / f"lance-{self.index_type.lower()}"

    def _index(self) -> str:
        return f"{self.column}_idx"

    def build(self) -> Built:
        import lance

        folder = self._folder()
        shutil.rmtree(folder, ignore_errors=True)
        # Data files of Lance never change, so the copies may share them.
        shutil.copytree(_lance_data(self.data), folder, copy_function=os.link)
        dataset = lance.dataset(folder)
        started = time.perf_counter()
        dataset.create_scalar_index(self.column, self.index_type, name=self._index())
        return Built(time.perf_counter() - started, folder_bytes(folder / "_indices"))

    def open(self) -> None:
        import lance

        self._dataset = lance.dataset(self._folder())

    def warm(self) -> None:
        self._dataset.prewarm_index(self._index())

    def lookup(self, keys: list) -> pa.Table:
        import pyarrow.compute as pc

        if len(keys) < self._expression_from:
            return self._dataset.to_table(filter=_listed(self.column, keys))
        return self._dataset.to_table(filter=pc.field(self.column).isin(keys))

    def zones_kept(self, key: Any) -> int | None:
        """From the rows the plan says were scanned, rounded up to zones."""
        plan = self._dataset.scanner(filter=_listed(self.column, [key])).analyze_plan()
        scanned = re.search(r"rows_scanned=([\d.]+) ?([KMB]?)", plan)
        if scanned is None:
            return None
        number = float(scanned[1]) * {"": 1, "K": 1e3, "M": 1e6, "B": 1e9}[scanned[2]]
        return math.ceil(round(number) / ZONE_ROWS)


def _lance_data(data: DataSet) -> Path:
    """The same rows in Lance's format, written once for all layouts, a file for each file."""
    import lance
    import pyarrow.dataset as pads

    folder = data.first_folder / "lance"
    if not folder.exists():
        files = [str(file) for file in data.files]
        # Lance does not store views.
        plain = without_views(pads.dataset(files).schema)
        for number, file in enumerate(files):
            table = pads.dataset(file).to_table().cast(plain)
            mode = "append" if number else "create"
            lance.write_dataset(table, folder, mode=mode, max_rows_per_file=1 << 30)
    return folder


class LanceBloom(Lance):
    """With defaults, which are zones of 8,192 rows and filters of 32 KiB."""

    name = "Lance BLOOMFILTER"
    index_type = "BLOOMFILTER"


class LanceZoneMap(Lance):
    """A least and a greatest key for each zone of 8,192 rows."""

    name = "Lance ZONEMAP"
    index_type = "ZONEMAP"


class LanceBTree(Lance):
    """Every key, sorted, with the addresses of its rows."""

    name = "Lance BTREE"
    index_type = "BTREE"


# Ours


class ZoneBloom(Competitor):
    """Row layout, filters of Lance's size and with Lance's bits."""

    name = "zonebloom"
    package = "zonebloom"
    layout: ClassVar[str] = "table"
    sizing: ClassVar[str] = "log2"

    def _folder(self) -> Path:
        return self.data.folder / re.sub(r"\W+", "-", self.name)

    def build(self) -> Built:
        import zonebloom as zb

        # Compiling once a machine is not building.
        zb.warmup()
        shutil.rmtree(self._folder(), ignore_errors=True)
        dataset = zb.dataset(self.data.plain, index_dir=str(self._folder()))
        started = time.perf_counter()
        dataset.create_scalar_index(
            self.column, spark=False, sizing=self.sizing, layout=self.layout
        )
        return Built(time.perf_counter() - started, folder_bytes(self._folder()))

    def open(self) -> None:
        import zonebloom as zb

        self._dataset = zb.dataset(self.data.plain, index_dir=str(self._folder()))

    def warm(self) -> None:
        self._dataset.prewarm_index(f"{self.column}_idx")

    def _filter(self, keys: list) -> Any:
        import pyarrow.compute as pc

        if len(keys) == 1:
            return pc.field(self.column) == keys[0]
        return pc.field(self.column).isin(pa.array(keys))

    def lookup(self, keys: list) -> pa.Table:
        return self._dataset.lookup(self.column, keys).remove_column(0)

    def zones_kept(self, key: Any) -> int | None:
        plan = self._dataset.scanner(filter=self._filter([key])).plan()
        return sum(use.kept_zones for use in plan.indices)


class ZoneBloomFilter(ZoneBloom):
    """The same index asked by a filter, ``to_table``, which is translated and planned."""

    name = "zonebloom, by a filter"

    def lookup(self, keys: list) -> pa.Table:
        return self._dataset.to_table(filter=self._filter(keys))


class ZoneBloomSliced(ZoneBloom):
    """The same bits, sliced: a lookup reads eight rows of bits instead of a block a zone."""

    name = "zonebloom sliced"
    layout = "sliced"


class ZoneBloomExact(ZoneBloom):
    """Row layout, the least filters that reach the probability asked of Lance's."""

    name = "zonebloom exact size"
    sizing = "exact"


ALL: tuple[type[Competitor], ...] = (
    ZoneBloom,
    ZoneBloomFilter,
    ZoneBloomSliced,
    ZoneBloomExact,
    LanceBloom,
    LanceZoneMap,
    LanceBTree,
    DuckDBEmbedded,
    DataFusionEmbedded,
    DuckDB,
    Polars,
    PyArrow,
)
BY_NAME = {each.name: each for each in ALL}


# Those the bars are about: asked in every layout.
SCANS = (DuckDB, Polars, PyArrow)
PEERS = (ZoneBloom, ZoneBloomFilter, LanceBloom, *SCANS)


def competitors() -> tuple[list[type[Competitor]], list[str]]:
    """Those that can run here, and a line on each that cannot."""
    here: list[type[Competitor]] = []
    missing: list[str] = []
    for each in ALL:
        package = each.package.partition(".")[0]
        if find_spec(package) is None:
            missing.append(f"{each.name} is left out: {package} is not installed")
        else:
            here.append(each)
    return here, missing
