"""All competitors behind one interface: the same data, the same keys, the same resulting rows.

Every lookup returns all columns of the matching rows, as an Arrow table. Each competitor is used
as its documentation recommends and as our measurements confirm. If there are several ways, its
class says which one is used and why.
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
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from bench.data import ZONE_ROWS, DataSet
from bench.layouts import RECOMMENDED_OPTIONS, ROW_GROUP_ROWS, without_views

if TYPE_CHECKING:
    import zonebloom as zb

# The default of Lance's BLOOMFILTER and of zonebloom, used for filters in files as well.
PROBABILITY = 0.00057


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The time and size of what a competitor builds for lookups, besides the plain data.

    Attributes
    ----------
    seconds : float or None
        None if there is nothing to build.
    index_bytes : int
        Bytes on disk.
    """

    seconds: float | None = None
    index_bytes: int = 0


class Competitor(ABC):
    """A way to look up keys in one data set.

    Attributes
    ----------
    name : str
        The name in reports.
    package : str
        The package that it imports.
    """

    name: ClassVar[str]
    package: ClassVar[str]

    def __init__(self, data: DataSet):
        self.data = data
        self.column = data.column

    def build(self) -> BuildResult:
        """Write the files that lookups need, and replace older ones."""
        return BuildResult()

    @abstractmethod
    def open(self) -> None:
        """Open the data set for lookups in this process."""

    def warm(self) -> None:
        """Load the index into memory, if the competitor has a call for that."""
        return

    @abstractmethod
    def lookup(self, keys: list) -> pa.Table:
        """Return the rows that hold one of the keys: by ``=`` for one key, by ``IN`` for more."""

    def zones_kept(self, key: Any) -> int | None:
        """Return how many zones must be read for a key, or None if that is not known."""
        return None

    def close(self) -> None:
        """Release files and memory."""
        for name in [name for name in vars(self) if name not in ("data", "column")]:
            delattr(self, name)
        gc.collect()

    def paths(self) -> list[Path]:
        """Return the files that a lookup may read."""
        return [file for file in self.data.folder.rglob("*") if file.is_file()]


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _literal(key: Any) -> str:
    return str(key) if isinstance(key, int) else "'" + key.replace("'", "''") + "'"


def _condition(column: str, keys: list) -> str:
    """Return an SQL condition for rows with one of the keys."""
    if len(keys) == 1:
        return f"{column} = {_literal(keys[0])}"
    return f"{column} IN ({', '.join(map(_literal, keys))})"


# Competitors that scan the files.


class PyArrow(Competitor):
    """``pyarrow.dataset`` with a filter, which skips row groups by their minima and maxima."""

    name = "pyarrow scan"
    package = "pyarrow.dataset"

    def open(self) -> None:
        import pyarrow.dataset as pads

        # Files may declare their strings as views, which pyarrow cannot filter.
        schema = without_views(pads.dataset(self.data.plain, format="parquet").schema)
        self._dataset = pads.dataset(self.data.plain, format="parquet", schema=schema)

    def lookup(self, keys: list) -> pa.Table:
        import pyarrow.compute as pc

        field = pc.field(self.column)
        values = pa.array(keys)
        return self._dataset.to_table(
            filter=field == values[0] if len(keys) == 1 else field.isin(values)
        )


class Polars(Competitor):
    """``scan_parquet`` with a filter, or with a semi join for many keys.

    `warm` measures both engines of Polars with a filter and with a join, and the faster one is used
    for each.
    """

    name = "Polars scan"
    package = "polars"
    _join_from = 100

    def open(self) -> None:
        import polars as pl

        self._frame = pl.scan_parquet(self.data.plain / "*.parquet")
        self._engines = {False: "streaming", True: "streaming"}

    def warm(self) -> None:
        for keys in (self.data.present_keys(1), self.data.present_keys(1000)):
            seconds = {}
            for engine in ("streaming", "in-memory"):
                self._engines[len(keys) >= self._join_from] = engine
                self.lookup(keys)
                start = time.perf_counter()
                self.lookup(keys)
                seconds[engine] = time.perf_counter() - start
            self._engines[len(keys) >= self._join_from] = min(seconds, key=seconds.__getitem__)

    def lookup(self, keys: list) -> pa.Table:
        import polars as pl

        column = pl.col(self.column)
        is_many = len(keys) >= self._join_from
        if is_many:
            key_frame = pl.LazyFrame({self.column: pl.Series(keys).unique()})
            rows = self._frame.join(key_frame, on=self.column, how="semi")
        elif len(keys) > 1:
            rows = self._frame.filter(column.is_in(keys))
        else:
            rows = self._frame.filter(column == keys[0])
        return rows.collect(engine=self._engines[is_many]).to_arrow()


class DuckDB(Competitor):
    """A view over ``read_parquet`` in one connection, which caches the metadata of Parquet files.

    Literals in SQL were faster than prepared statements. From about a hundred keys on, a semi join
    with the keys as an Arrow table is faster than a list.
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
            return self._query(f"FROM data WHERE {_condition(self.column, keys)}")
        self._connection.register("lookup_keys", pa.table({"key": keys}))
        return self._query(f"FROM data WHERE {self.column} IN (SELECT key FROM lookup_keys)")

    def _query(self, sql: str) -> pa.Table:
        return self._connection.sql(sql).to_arrow_table()

    def close(self) -> None:
        if hasattr(self, "_connection"):
            self._connection.close()
        super().close()


# Competitors that use Bloom filters inside the Parquet files.


@cache
def embed(data: DataSet) -> BuildResult:
    """Write the data again with a Bloom filter in each row group, and otherwise the same options.

    The time is that of the whole rewrite, because filters cannot be added to existing files. All
    competitors share the result.
    """
    import pyarrow.parquet as pq

    folder = embedded_folder(data)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    filters = {data.column: {"ndv": ROW_GROUP_ROWS, "fpp": PROBABILITY}}
    start = time.perf_counter()
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
        metadata = pq.read_metadata(folder / path.name)
        column = metadata.schema.names.index(data.column)
        num_bytes += sum(
            metadata.row_group(group).column(column).bloom_filter_length or 0
            for group in range(metadata.num_row_groups)
        )
    return BuildResult(time.perf_counter() - start, num_bytes)


def embedded_folder(data: DataSet) -> Path:
    """Return the folder of the files with filters inside."""
    return data.folder / "embedded"


class DuckDBEmbedded(DuckDB):
    """DuckDB over files with filters inside, by which it skips row groups for ``=``."""

    name = "DuckDB, filters in files"

    def _folder(self) -> Path:
        return embedded_folder(self.data)

    def build(self) -> BuildResult:
        return embed(self.data)


class DataFusionEmbedded(Competitor):
    """DataFusion with the Bloom filters, page index and late materialization of its reader.

    The DataFrame API avoids parsing SQL. Many keys are faster as a semi join.
    """

    name = "DataFusion, filters in files"
    package = "datafusion"
    _join_from = 100

    def build(self) -> BuildResult:
        return embed(self.data)

    def open(self) -> None:
        from datafusion import SessionConfig, SessionContext

        config = SessionConfig()
        for option in ("bloom_filter_on_read", "pushdown_filters", "reorder_filters"):
            config = config.set(f"datafusion.execution.parquet.{option}", "true")
        self._context = SessionContext(config)
        self._context.register_parquet("data", f"{embedded_folder(self.data)}/")
        self._table = self._context.table("data")

    def lookup(self, keys: list) -> pa.Table:
        from datafusion import col, functions, literal

        # Without double quotes DataFusion converts names to lower case.
        column = col(f'"{self.column}"')
        if len(keys) == 1:
            return self._table.filter(column == literal(keys[0])).to_arrow_table()
        if len(keys) < self._join_from:
            condition = functions.in_list(column, [literal(key) for key in keys])
            return self._table.filter(condition).to_arrow_table()
        if self._context.table_exist("lookup_keys"):
            self._context.deregister_table("lookup_keys")
        key_table = pa.table({"key": keys})
        self._context.register_record_batches("lookup_keys", [key_table.to_batches()])
        return self._context.sql(
            f'SELECT * FROM data WHERE "{self.column}" IN (SELECT key FROM lookup_keys)'
        ).to_arrow_table()


# Competitors that use indices of Lance.


class Lance(Competitor):
    """Lance files, one for each Parquet file, with one scalar index.

    Every index type has its own copy of the data, because Lance uses one index per column. `warm`
    prewarms the index. From about a thousand keys on, expressions are faster than SQL text.
    """

    package = "lance"
    index_type: ClassVar[str]
    _expression_from = 1000

    def _folder(self) -> Path:
        return self.data.folder / f"lance-{self.index_type.lower()}"

    def _index(self) -> str:
        return f"{self.column}_idx"

    def build(self) -> BuildResult:
        import lance

        folder = self._folder()
        shutil.rmtree(folder, ignore_errors=True)
        # Lance never changes a data file, so the copies can share them by hard links.
        shutil.copytree(_lance_data(self.data), folder, copy_function=os.link)
        dataset = lance.dataset(folder)
        start = time.perf_counter()
        dataset.create_scalar_index(self.column, self.index_type, name=self._index())
        return BuildResult(time.perf_counter() - start, folder_bytes(folder / "_indices"))

    def open(self) -> None:
        import lance

        self._dataset = lance.dataset(self._folder())

    def warm(self) -> None:
        self._dataset.prewarm_index(self._index())

    def lookup(self, keys: list) -> pa.Table:
        import pyarrow.compute as pc

        if len(keys) < self._expression_from:
            return self._dataset.to_table(filter=_condition(self.column, keys))
        return self._dataset.to_table(filter=pc.field(self.column).isin(keys))

    def zones_kept(self, key: Any) -> int | None:
        """Return the number of scanned rows in the plan as zones, rounded up."""
        plan = self._dataset.scanner(filter=_condition(self.column, [key])).analyze_plan()
        match = re.search(r"rows_scanned=([\d.]+) ?([KMB]?)", plan)
        if match is None:
            return None
        num_rows = float(match[1]) * {"": 1, "K": 1e3, "M": 1e6, "B": 1e9}[match[2]]
        return math.ceil(round(num_rows) / ZONE_ROWS)


def _lance_data(data: DataSet) -> Path:
    """Return the same rows in Lance's format, one file for each file. All layouts share them."""
    import lance
    import pyarrow.dataset as pads

    folder = data.first_folder / "lance"
    if not folder.exists():
        files = [str(file) for file in data.files]
        # Lance cannot store string views.
        schema = without_views(pads.dataset(files).schema)
        for number, file in enumerate(files):
            table = pads.dataset(file).to_table().cast(schema)
            mode = "append" if number else "create"
            lance.write_dataset(table, folder, mode=mode, max_rows_per_file=1 << 30)
    return folder


class LanceBloom(Lance):
    """Bloom filters with the defaults: zones of 8,192 rows and filters of 32 KiB."""

    name = "Lance BLOOMFILTER"
    index_type = "BLOOMFILTER"


class LanceZoneMap(Lance):
    """The least and the greatest key of each zone of 8,192 rows."""

    name = "Lance ZONEMAP"
    index_type = "ZONEMAP"


class LanceBTree(Lance):
    """All keys in order, with the addresses of their rows."""

    name = "Lance BTREE"
    index_type = "BTREE"


# zonebloom in several configurations.


class ZoneBloom(Competitor):
    """zonebloom with filters of Lance's size and bits."""

    name = "zonebloom"
    package = "zonebloom"

    def _folder(self) -> Path:
        return self.data.folder / re.sub(r"\W+", "-", self.name)

    def build(self) -> BuildResult:
        import zonebloom as zb

        # Kernels are compiled once per machine, which is not part of a build.
        zb.warmup()
        shutil.rmtree(self._folder(), ignore_errors=True)
        dataset = zb.dataset(self.data.plain, index_dir=str(self._folder()))
        start = time.perf_counter()
        self._create_index(dataset)
        return BuildResult(time.perf_counter() - start, folder_bytes(self._folder()))

    def _create_index(self, dataset: zb.Dataset) -> None:
        dataset.create_scalar_index(self.column, spark=False)

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
    """The same index used by ``to_table`` with a filter, which must be translated and planned."""

    name = "zonebloom, by a filter"

    def lookup(self, keys: list) -> pa.Table:
        return self._dataset.to_table(filter=self._filter(keys))


class ZoneBloomHash(ZoneBloom):
    """The hash index of zonebloom, from the hash of a key to its zones of 1,024 rows."""

    name = "zonebloom HASH"

    def _create_index(self, dataset: zb.Dataset) -> None:
        dataset.create_scalar_index(self.column, "HASH", spark=False)

    def zones_kept(self, key: Any) -> int | None:
        """Return the rows of the kept zones as zones of filters, rounded up."""
        from zonebloom.index.hash.parameters import DEFAULT_ZONE_ROWS

        return math.ceil((super().zones_kept(key) or 0) * DEFAULT_ZONE_ROWS / ZONE_ROWS)


ALL: tuple[type[Competitor], ...] = (
    ZoneBloom,
    ZoneBloomFilter,
    ZoneBloomHash,
    LanceBloom,
    LanceZoneMap,
    LanceBTree,
    DuckDBEmbedded,
    DataFusionEmbedded,
    DuckDB,
    Polars,
    PyArrow,
)
BY_NAME = {competitor.name: competitor for competitor in ALL}


# The competitors that zonebloom is compared with in every layout.
SCANS = (DuckDB, Polars, PyArrow)
PEERS = (ZoneBloom, ZoneBloomFilter, ZoneBloomHash, LanceBloom, LanceBTree, *SCANS)


def competitors() -> tuple[list[type[Competitor]], list[str]]:
    """Return the competitors that can run here, and a message about each that cannot."""
    available: list[type[Competitor]] = []
    missing: list[str] = []
    for competitor in ALL:
        package = competitor.package.partition(".")[0]
        if find_spec(package) is None:
            missing.append(f"{competitor.name} is left out: {package} is not installed")
        else:
            available.append(competitor)
    return available, missing
