"""dataset() and Dataset: what users hold in their hands."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace as replace_fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from zonebloom import arguments
from zonebloom.build.adopt import Adopted, adopt
from zonebloom.build.builder import WORTH_AN_ENGINE, Builder, Engine, Refreshed
from zonebloom.build.layout import require_layout
from zonebloom.build.spec import IndexConfig, IndexRequest
from zonebloom.catalog.model import DEFAULT_ITEMS, DEFAULT_PROBABILITY, Version
from zonebloom.catalog.store import Catalog
from zonebloom.catalog.vacuum import RETENTION, Vacuumed, vacuum
from zonebloom.errors import (
    CatalogError,
    CorruptIndex,
    InvalidArgument,
    SourceError,
    ZoneBloomWarning,
    without_secrets,
)
from zonebloom.index.batch_lookup import SCHEMA
from zonebloom.index.describe import (
    INDEX_TYPE,
    EmbeddedDescription,
    IndexDescription,
    describe,
    describe_embedded,
    index_statistics,
)
from zonebloom.index.global_filter import GlobalFilter
from zonebloom.opened import Opened, beside
from zonebloom.predicates import Equals, IsIn, Predicate
from zonebloom.progress import Progress, require_progress
from zonebloom.ranges import SearchResult
from zonebloom.scan.binding import check_columns
from zonebloom.scan.explain import ScanPlan
from zonebloom.scan.locate import Located, key_columns, locate
from zonebloom.scan.lookup import lookup
from zonebloom.scan.plan import DEFAULT_BATCH_ROWS, MOST_BATCH_ROWS, Request, ScanStats
from zonebloom.scan.recheck import Columns, gather
from zonebloom.scan.scanner import Scanner
from zonebloom.storage.columns import Column
from zonebloom.storage.delta import is_delta, open_delta
from zonebloom.storage.discovery import Partitioning, Schema, open_source, require_no_schema
from zonebloom.storage.iceberg import is_iceberg, open_iceberg
from zonebloom.storage.memory import TableSource, open_table
from zonebloom.storage.paths import absolute_path, is_uri
from zonebloom.storage.sealed import Encryption
from zonebloom.storage.source import Source, Stale
from zonebloom.text import bytes_text, lines_html, table_html

if TYPE_CHECKING:
    import polars as pl
    import pyarrow.dataset as pads
    from pyspark.sql import SparkSession

    from zonebloom.advise.judge import Advices
    from zonebloom.index.validate import ValidatedIndex

Filter: TypeAlias = "str | pc.Expression | Sequence[Any] | pl.Expr | Predicate | None"


def dataset(
    source: Any,
    format: str = "parquet",
    filesystem: Any = None,
    index_dir: str | None = None,
    partitioning: Partitioning = "auto",
    stale: Stale = "read",
    embedded_filters: bool = False,
    schema: Schema = None,
    encryption: Encryption | None = None,
) -> Dataset:
    """Open a dataset as it lies.

    Parameters
    ----------
    source : path, URI, list of them, or dataset of pyarrow, deltalake or pyiceberg
        A folder, a file, a glob pattern, a URI, several files, a ``pyarrow.dataset.Dataset``
        over files, a ``pyarrow.Table`` in memory, a ``deltalake.DeltaTable`` or a pyiceberg
        ``Table`` at the version it has loaded.
    format : str
        "parquet", or another format of ``pyarrow.dataset``; those are read a whole fragment
        at a time.
    filesystem : pyarrow.fs or fsspec file system, optional
        Where the paths are.
    index_dir : str, optional
        Folder of the index, in the same file system; ``_zonebloom`` beside the data by
        default, which pyarrow and Spark do not list. Several datasets may share one: names of
        indices are common to them, and none replaces an index of another.
    partitioning : "auto", "hive", list of str, pyarrow.dataset.Partitioning, or None
        What folders say of the rows in them, as ``pyarrow.dataset.dataset`` takes it. "auto"
        is "hive" (``year=2024/month=1``) below a folder and None for files named one by one.
    stale : {"read", "raise", "ignore-missing"}
        What becomes of files that are others than when the dataset was opened or indexed. One
        that changed or came is read whole, with a warning; "raise" refuses whatever would use
        the index instead, with StaleIndex, and with CorruptIndex where the index is damaged. One
        that is gone is an error, or with "ignore-missing" left out with a warning. The files of a
        Delta or Iceberg table are never left out.
    embedded_filters : bool
        Whether row groups of files no index covers are passed over by the Bloom filters that
        writers put inside them. Parquet has no checksum for those: where one bit of a filter
        has changed, rows are lost that are there. Filters that lack a bound of their column
        chunk's statistics are not used.
    schema : pyarrow.Schema or "union", optional
        The columns of the dataset: those given, or those of all files by name, in types all of
        a column's files widen to as ``pyarrow.unify_schemas(..., promote_options="permissive")``
        has it, for which every file's schema is read. By default those of the first file, as
        for ``pyarrow.dataset.dataset``. A column that a file lacks is null in it.
    encryption : Encryption, optional
        Keys by which the index is read and written. One that is encrypted is not used without
        them: that is warned of, and the data is read. One that is not encrypted is not used with
        them, for it may be forged.

    Returns
    -------
    Dataset
        Of the files and the catalog version found now. A file rewritten later is noticed at the
        next scan, a new one by `Dataset.refresh` and by whatever builds or optimizes an index.

    Raises
    ------
    NoFragments, FragmentUnreadable, SchemaMismatch, SourceError, InvalidArgument
    """
    if isinstance(source, pa.Table) or is_delta(source) or is_iceberg(source):
        require_no_schema(source, schema)
    if index_dir is not None:
        index_dir = arguments.path(index_dir, "index_dir")
    if isinstance(source, pa.Table):
        return _in_memory(source, index_dir)
    arguments.choice(stale, "stale", get_args(Stale))
    if encryption is not None:
        arguments.of_type(encryption, Encryption, "encryption")
    embedded_filters = arguments.flag(embedded_filters, "embedded_filters")
    title = arguments.path(source, "source") if isinstance(source, str | os.PathLike) else None
    if title is not None and filesystem is None and not is_uri(title):
        # It means the same after the process went to another folder.
        source = absolute_path(title)
    where: Any = source

    def files_and_index() -> tuple[Source, Catalog]:
        if is_delta(where):
            files = open_delta(where, filesystem)
        elif is_iceberg(where):
            files = open_iceberg(where, filesystem)
        else:
            files = open_source(where, format, filesystem, partitioning, schema)
        return beside(replace_fields(files, stale=stale), index_dir, encryption)

    opened = Opened.of(*files_and_index(), embedded_filters=embedded_filters)
    is_listed = title is not None or is_delta(source) or is_iceberg(source)
    return Dataset(opened, title, files_and_index if is_listed else None)


def _in_memory(table: pa.Table, index_dir: str | None) -> Dataset:
    """A table with indices that live as long as the dataset."""
    if index_dir is not None:
        # Another table could not be told from this one later.
        raise InvalidArgument(
            "the index of a table in memory is gone with it; leave index_dir out, or write the "
            "table to Parquet"
        )
    folder = tempfile.mkdtemp(prefix="zonebloom-")
    ds = Dataset(Opened.of(open_table(table), Catalog(pafs.LocalFileSystem(), folder)))
    weakref.finalize(ds, shutil.rmtree, folder, ignore_errors=True)
    return ds


class DatasetOptimizer:
    """Brings the indices of a dataset up to date; it is ``Dataset.optimize``."""

    def __init__(self, dataset: Dataset):
        self._dataset = dataset

    def optimize_indices(
        self,
        index_names: Sequence[str] | None = None,
        *,
        layout: Literal["auto", "table", "sliced"] = "auto",
        retention: timedelta | None = RETENTION,
        spark: SparkSession | Literal[False] | None = None,
        progress: Progress = None,
    ) -> list[Refreshed]:
        """Index files that came or changed, forget files that are gone, choose a layout.

        Files are listed anew first, as `Dataset.refresh` does. Files that are as they were
        indexed are not read again.

        Parameters
        ----------
        index_names : list of str, optional
            All indices by default, but those of other datasets that share the index_dir.
        layout : {"auto", "table", "sliced"}
            As `Dataset.create_scalar_index` takes it. What came merges with what is of its size
            or smaller, so each refresh costs what it adds, and a large part is left alone.
        retention : timedelta, optional
            Versions and segments that were replaced longer ago are deleted after a change, as by
            `Dataset.vacuum`; None keeps them all. 7 days by default.
        spark, progress
            As `Dataset.create_scalar_index` takes them.

        Raises
        ------
        SchemaMismatch, FragmentUnreadable
        CorruptIndex
            When a segment that is kept is damaged; build that index again.
        """
        require_layout(layout)
        require_progress(progress)
        if retention is not None:
            arguments.of_type(retention, timedelta, "retention")
        if index_names is not None:
            index_names = arguments.names(index_names, "index_names")
        ds = self._dataset
        ds._renew()
        builder = Builder(ds.opened)
        names = builder.own_indices() if index_names is None else index_names
        work = {name: ds.opened.entry(name) for name in names}
        indices = [(entry, ds.opened.indexed_column(entry)) for entry in work.values()]
        version, refreshed = builder.refresh(indices, layout, _engine(spark), progress)
        ds.opened = ds.opened.at(version)
        if retention is not None and any(each.changed for each in refreshed):
            _forget(ds, retention)
        return refreshed


class Dataset:
    """Files with their indices; made by `dataset`.

    Attributes
    ----------
    title : str
        What it is called where it is shown.
    opened : Opened
        Its files, its index folder, the version of that in use, and what answers over them.

    Raises
    ------
    InvalidArgument, ColumnNotFound, FilterError, IndexNotFound
        Of all methods, when there is no such value, column or index, or a filter cannot be read.
    """

    def __init__(
        self,
        opened: Opened,
        title: str | None = None,
        reopen: Callable[[], tuple[Source, Catalog]] | None = None,
    ):
        self.title = without_secrets(title or opened.source.root)
        self.opened = opened
        # None where the files are named one by one: there is nothing to list.
        self._reopen = reopen

    # What there is

    @property
    def schema(self) -> pa.Schema:
        """The dataset's schema."""
        return self.opened.source.schema

    @property
    def files(self) -> list[str]:
        """Paths of the fragments, in scan order."""
        return [fragment.path for fragment in self.opened.source.fragments]

    @property
    def version(self) -> int:
        """The catalog version in use; 0 before the first index."""
        return self.opened.version.number

    @property
    def index_dir(self) -> str:
        """Folder of the index."""
        return self.opened.catalog.folder

    def refresh(self) -> None:
        """Take the files there are now, and the newest index of them.

        The source is opened again as it was: a folder or a pattern is listed anew, and files
        that are gone are forgotten. Of a Delta or Iceberg table the version counts that the
        table object has loaded by now; call its own ``update_incremental()`` or ``refresh()``
        first to have the newest. LazyFrames made of the dataset see the same files from then on.

        Raises
        ------
        SourceError
            When the files were given one by one, or as a ``pyarrow.dataset.Dataset``, which has
            its own list of files: open those again with the files there are. When the files
            share another folder by now than the one their index lies in.
        NoFragments, FragmentUnreadable
            And the dataset is as it was.
        """
        if self._reopen is None:
            if isinstance(self.opened.source, TableSource):
                self.checkout_latest()
                return
            raise SourceError(
                "the dataset was opened with a list of files, or with a pyarrow dataset that has "
                "one, so there is nothing to list anew; open it again with the files there are now"
            )
        self.opened = self.opened.renewed(*self._reopen())

    def checkout_latest(self) -> None:
        """Use the newest index of the files this dataset has, as other writers may have left it.

        Files that came since are not looked for: `refresh` does both.
        """
        self.opened = self.opened.at(self.opened.catalog.latest())

    def _renew(self) -> None:
        """Take what is newest, to change it: what has been read so far does not matter."""
        if self._reopen is None:
            self.checkout_latest()
        else:
            self.refresh()

    # Building

    def create_scalar_index(
        self,
        column: str | Sequence[str],
        index_type: str | IndexConfig = INDEX_TYPE,
        name: str | None = None,
        *,
        replace: bool = True,
        number_of_items: int = DEFAULT_ITEMS,
        probability: float = DEFAULT_PROBABILITY,
        sizing: Literal["log2", "exact"] = "log2",
        fold: bool = True,
        max_false_zones: float | None = None,
        layout: Literal["auto", "table", "sliced"] = "auto",
        global_filter: bool = False,
        expected_num_items: int | None = None,
        global_probability: float | None = None,
        plaintext: bool = False,
        spark: SparkSession | Literal[False] | None = None,
        progress: Progress = None,
    ) -> None:
        """Index a column: one split-block Bloom filter for each zone of rows.

        Files are listed anew first, as `refresh` does.

        Parameters
        ----------
        column : str or list of str
            A column, a leaf of a struct as "a.b", or several, each with an index of its own;
            files are read once for all of them, and all are committed at once.
        index_type : str or IndexConfig
            "BLOOMFILTER", or a configuration with its parameters.
        name : str, optional
            ``<column>_idx`` by default.
        replace : bool
            Whether an index of that name is replaced.
        number_of_items : int
            Rows a zone, and the distinct values its filter is sized for.
        probability : float
            Target false positive probability of a zone, between 0 and 1.
        sizing : {"log2", "exact"}
            Filter sizes as Lance's, or the least that reach the probability.
        fold : bool
            Whether filters that hold few distinct values, as those of short zones do, are halved
            as often as the probability allows; False keeps them all as large as Lance's.
        max_false_zones : float, optional
            Instead of a probability: zones of the whole dataset that a lookup may read in vain
            on average.
        layout : {"auto", "table", "sliced"}
            A filter after another, or bit by bit of all filters, which answers a key from eight
            short reads; "auto" slices from 4096 zones on.
        global_filter : bool
            Whether to make one filter over all keys of the column as well, for joins.
        expected_num_items : int, optional
            Distinct keys the global filter is sized for; the rows there are by default.
        global_probability : float, optional
            Of a false positive of the global filter at that many keys; by default 0.001, or 0.01
            where the filter would be over 128 MiB (some 63 million keys).
        plaintext : bool
            Of files that are encrypted an index is refused that is not, as long as the dataset was
            opened without ``encryption``: filters tell which keys there are, ranges the least and
            the greatest. True builds it all the same.
        spark : SparkSession or False, optional
            Where to build: a session, or False for threads of this process. By default the
            active session if there is one and there is a gigabyte of data to read; less is done
            sooner here. A bar of progress says where.
        progress : bool or callable, optional
            True for a bar, or a function given rows done and rows in all.

        Raises
        ------
        InvalidArgument, ColumnNotFound, UnsupportedType
            Before anything is read.
        IndexExists
            And replace=False, or it is of another dataset that shares the index_dir.
        FragmentUnreadable, SchemaMismatch
            And nothing is left behind.
        """
        request = IndexRequest(
            column=column,
            index_type=index_type,
            name=name,
            replace=replace,
            layout=layout,
            number_of_items=number_of_items,
            probability=probability,
            sizing=sizing,
            fold=fold,
            max_false_zones=max_false_zones,
            global_filter=global_filter,
            expected_num_items=expected_num_items,
            global_probability=global_probability,
            plaintext=plaintext,
        )
        require_progress(progress)
        self._renew()
        version = Builder(self.opened).build(
            request.specs(self.opened), request.layout, request.replace, _engine(spark), progress
        )
        self.opened = self.opened.at(version)

    @property
    def optimize(self) -> DatasetOptimizer:
        """Bringing indices up to date, as Lance names it: ``ds.optimize.optimize_indices()``."""
        return DatasetOptimizer(self)

    def validate_index(self, name: str, *, sample: int | Literal["all"] = 16) -> ValidatedIndex:
        """Read an index whole, and hold it against its checksums and the rows of the files.

        Zones are read back from the files, and their values asked of all that the index says:
        filters, null flags, key ranges, the filter over all keys; page maps must give the same
        rows. A value it denies would be lost to a lookup.

        Parameters
        ----------
        name : str
        sample : int or "all"
            How many zones to read: at even distances over all zones of the files that are as
            they were indexed, the first and the last among them, the same ones each time. "all"
            reads the column whole and leaves no doubt; 0 verifies checksums alone.

        Returns
        -------
        ValidatedIndex
            An int, the number of zones. Its ``state`` is "sound", or "stale" when files it
            covers have ``changed`` or are ``gone``: those are scanned, and no row is lost.

        Raises
        ------
        CorruptIndex
            Naming what is damaged, or the rows whose values the index denies.
        FragmentUnreadable, SchemaMismatch
            When rows cannot be read back.
        """
        from zonebloom.index.validate import validate

        opened, entry = self.opened, self.opened.entry(name)
        coverage = opened.planner.coverage()
        return validate(opened.catalog, entry, opened.version, opened.source, coverage, sample)

    def adopt_index(self) -> Adopted:
        """Use the index for files that were copied, moved or uploaded together with it.

        A copied file has other times, and another store has other tags: it counts as changed, and
        is read whole. This says which are the files that were indexed all the same, by their size
        and a digest of their footer, which the build kept, and between local disks by samples of
        their content; the data is not read. Parquet alone has such a footer. A file that was
        renamed is known again too; a name alone tells nothing.

        Returns
        -------
        Adopted
            How many files the index covers again, and the paths of those it does not.

        Raises
        ------
        CommitConflict
            When another writer indexed the files meanwhile.
        """
        self._renew()
        version, adopted = adopt(self.opened)
        self.opened = self.opened.at(version)
        return adopted

    def drop_index(self, name: str) -> None:
        """Forget an index; its segments stay on disk for older readers until `vacuum`."""
        self.opened.entry(name)

        def change(latest: Version) -> Version:
            left = {key: entry for key, entry in latest.indices.items() if key != name}
            return latest.with_indices(left)

        self.opened = self.opened.at(self.opened.catalog.commit(change))

    def vacuum(self, older_than: timedelta = RETENTION) -> Vacuumed:
        """Delete older versions of the index, and segments that only they name.

        Parameters
        ----------
        older_than : timedelta
            Versions that were the newest since are kept for their readers, with all they name,
            and so is what was written since, for builds under way.
        """
        return vacuum(self.opened.catalog, arguments.of_type(older_than, timedelta, "older_than"))

    # Describing

    def advise(
        self,
        columns: str | Sequence[str] | None = None,
        *,
        number_of_items: int = DEFAULT_ITEMS,
        probability: float = DEFAULT_PROBABILITY,
    ) -> Advices:
        """Say which columns are worth an index, from a sample, as `Advices` tell it."""
        from zonebloom.advise.advise import advise

        return advise(
            self.opened, columns, number_of_items=number_of_items, probability=probability
        )

    def describe_indices(self) -> list[IndexDescription]:
        """What indices there are, and what they cover of the files as they are now."""
        return describe(self.opened.version.indices.values(), self.opened.planner.coverage())

    def embedded_filters(self) -> list[EmbeddedDescription]:
        """The Bloom filters inside the Parquet files themselves, by column.

        A dataset opened with ``embedded_filters=True`` uses them for fragments no index covers;
        every file's footer is read to list them.
        """
        planner = self.opened.planner
        return describe_embedded(
            (column for column in planner.embedded.columns(each.fragment, each.identity))
            for each in planner.coverage().present
        )

    def list_indices(self) -> list[dict[str, Any]]:
        """The indices as dictionaries with Lance's keys."""
        return [
            {
                "name": each.name,
                "type": "BloomFilter",
                "fields": [each.column],
                "version": self.version,
                "num_fragments_indexed": each.num_fragments_indexed,
            }
            for each in self.describe_indices()
        ]

    def index_statistics(self, name: str) -> dict[str, Any]:
        """Coverage, size, real fill and estimated false positive probability of an index."""
        entry = self.opened.entry(name)
        described = next(each for each in self.describe_indices() if each.name == name)
        return index_statistics(described, entry, self.opened.planner.loaded[name].tables())

    def key_ranges(self, column: str) -> pa.Table:
        """Least and greatest value of an indexed column in each fragment, as built.

        Parameters
        ----------
        column : str
            With an index.

        Returns
        -------
        pyarrow.Table
            A row for each fragment there is, in scan order: ``fragment_id`` uint64, ``path``
            string, ``minimum`` and ``maximum`` (the column's values, in a type Arrow orders;
            null where a fragment holds only nulls and NaN), ``is_known`` bool (False for new
            and changed files, and where no bounds were kept: any value may be there),
            ``has_nan`` bool, ``null_count`` and ``num_rows`` int64 (null where not known).
            Bounds may be wider than the values.
        """
        return self.opened.planner.key_ranges(column)

    def global_filter(self, column: str) -> GlobalFilter | None:
        """The filter over all keys of a column, None when its index was built without."""
        return self.opened.planner.global_filter(column)

    def prewarm_index(self, name: str) -> None:
        """Bring an index into memory, and compile or load the kernels that search it."""
        self.opened.entry(name)
        import zonebloom.sbbf.blocks  # noqa: F401

        for table in self.opened.planner.loaded[name].tables():
            table.verify()

    def index_to_lance(self, name: str, path: str) -> None:
        """Write an index as the ``bloomfilter.lance`` file of a Lance dataset.

        Fragment ids in it are this dataset's. To have a Lance dataset use the file, see
        `zonebloom.exchange.lance.commit_to_lance`.

        Raises
        ------
        CorruptIndex
            When a segment is damaged.
        """
        from zonebloom.exchange.lance import to_lance

        entry, path = self.opened.entry(name), arguments.path(path, "path")
        tables = self.opened.planner.loaded[name].tables()
        if len(tables) < len(entry.segments):
            raise CorruptIndex(
                f"{len(entry.segments) - len(tables):,} of {len(entry.segments):,} segments of "
                f"index {name!r} are damaged; call create_scalar_index again"
            )
        to_lance(tables, path)

    # Querying

    def search(self, filter: Filter) -> SearchResult:
        """Ask the indices alone which rows may match a filter.

        Parameters
        ----------
        filter : as for `scanner`

        Returns
        -------
        SearchResult
            "AtMost" ranges: rows outside them cannot match. Rows that a Delta or Iceberg table has
            deleted are in none.
        """
        _, predicate = self.opened.translate(filter, is_applied=False)
        return self.opened.planner.search(predicate)

    def search_many(
        self, column: str, keys: pa.Array | pa.ChunkedArray | Sequence[Any]
    ) -> pa.RecordBatchReader:
        """Ask the index of a column for many keys at once: which zones may hold each.

        Parameters
        ----------
        column : str
            With an index.
        keys : pyarrow Array or ChunkedArray, or a sequence
            A million at a time is fine. Of the column's own type they are hashed in bulk. Those
            of another type are compared exactly (5.5 is in no zone of integers), or refused. For
            a column of UUIDs they are ``uuid.UUID`` or text; for the same as binary(16),
            ``uuid.UUID`` or bytes.

        Returns
        -------
        pyarrow.RecordBatchReader
            ``key_index`` int64 (position in ``keys``), ``fragment_id`` uint64, ``zone`` uint32
            (number of the zone in its fragment; null for a whole fragment of which the index
            says nothing). Each pair once, in no order; ``read_all`` makes it a table. Null keys
            are in no zone, NaN may be in all.

        Raises
        ------
        InvalidArgument
            When keys are no list, or of a type that is not compared with the column's.
        """
        batches = self.opened.planner.search_many(column, keys)
        return pa.RecordBatchReader.from_batches(SCHEMA, batches)

    def lookup(
        self,
        column: str,
        keys: pa.Array | pa.ChunkedArray | Sequence[Any],
        columns: Sequence[str] | None = None,
        *,
        nulls: bool = False,
    ) -> pa.Table:
        """Read the rows that hold one of some keys.

        Parameters
        ----------
        column : str
            An indexed column, or any that could be: without an index all of it is read.
        keys : pyarrow Array or ChunkedArray, or a sequence
            One or millions, as `search_many` takes them.
        columns : list of str, optional
            All columns by default.
        nulls : bool
            Whether null keys match rows where the column is null; by default they match nothing.

        Returns
        -------
        pyarrow.Table
            ``key_index`` int64 (position in ``keys``) and the columns, in scan order; a row comes
            once for each position of its key. NaN equals nothing, as in SQL.

        Raises
        ------
        ColumnNotFound, UnsupportedType, InvalidArgument, FragmentUnreadable

        Examples
        --------
        >>> import pyarrow as pa
        >>> ds = dataset(pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}))
        >>> ds.lookup("id", [3, 7, 1]).to_pylist()
        [{'key_index': 2, 'id': 1, 'name': 'a'}, {'key_index': 0, 'id': 3, 'name': 'c'}]
        """
        column, nulls = arguments.text(column, "column"), arguments.flag(nulls, "nulls")
        opened, names = self.opened, check_columns(columns, self.schema)
        names = self.schema.names if names is None else names
        return lookup(opened.source, opened.planner, opened.column(column), keys, names, nulls)

    def locate(
        self, columns: str | Sequence[str], keys: pa.Array | pa.ChunkedArray | pa.Table | Any
    ) -> pa.Table:
        """Tell for each of some keys where its rows lie, and which keys are new.

        Parameters
        ----------
        columns : str or list of str
            An indexed column, or any that could be; or several, of which all must be equal. Those
            with an index tell zones apart. Columns that the paths of the files give
            (``day=2024-05-01``) may be among several: a key is looked for in its own files alone.
        keys : pyarrow Array or ChunkedArray, or a sequence; of several columns a pyarrow Table
            One or millions, as `lookup` takes them; a table, or a dictionary, holds the columns by
            their names.

        Returns
        -------
        pyarrow.Table
            ``key_index`` int64 (position in ``keys``), ``fragment_id`` uint64, ``path`` dictionary
            of string (as in `files`) and ``row`` int64 (number of the row in its file). In the
            order of the keys, a row for each row that equals the key, in scan order, and one of
            nulls for a key that none does. Null and NaN equal nothing.

        Raises
        ------
        ColumnNotFound, UnsupportedType, InvalidArgument, FragmentUnreadable
        FragmentChanged
            When a file is written anew meanwhile; call again.

        Notes
        -----
        An index with ``global_filter=True`` rules keys out that are nowhere before any file is
        read: among many keys of which few are there, most of the time is saved.

        Examples
        --------
        >>> import pyarrow as pa
        >>> ds = dataset(pa.table({"id": [1, 2, 1]}))
        >>> ds.locate("id", [1, 7]).drop(["fragment_id", "path"]).to_pylist()
        [{'key_index': 0, 'row': 0}, {'key_index': 0, 'row': 2}, {'key_index': 1, 'row': None}]
        """
        return self._located(columns, keys).by_key()

    def files_with_keys(
        self, columns: str | Sequence[str], keys: pa.Array | pa.ChunkedArray | pa.Table | Any
    ) -> pa.Table:
        """Tell which files hold rows of some keys, as an erasure request must know.

        Parameters
        ----------
        columns, keys
            As `locate` takes them.

        Returns
        -------
        pyarrow.Table
            A row for each file that holds a key, in scan order: ``path`` string, ``fragment_id``
            uint64, ``num_keys`` int64 (distinct keys) and ``num_rows`` int64 (rows of those).

        Raises
        ------
        As `locate`.
        """
        return self._located(columns, keys).by_file()

    def _located(self, columns: str | Sequence[str], keys: Any) -> Located:
        opened = self.opened
        names = [columns] if isinstance(columns, str) else arguments.names(columns, "columns")
        if not names or len(set(names)) < len(names):
            raise arguments.refusal(columns, "columns", "name one at least, each once")
        by_path = opened.source.partition_columns()
        checked = [
            Column((name,), self.schema.field(name).type)
            if name in by_path
            else opened.column(arguments.text(name, "columns"))
            for name in names
        ]
        given = [keys] if isinstance(columns, str) else key_columns(keys, names)
        return locate(opened.source, opened.planner, checked, given)

    def scanner(
        self,
        columns: Columns = None,
        filter: Filter = None,
        limit: int | None = None,
        batch_size: int = DEFAULT_BATCH_ROWS,
        use_scalar_index: bool = True,
        scan_stats_callback: Callable[[ScanStats], Any] | None = None,
    ) -> Scanner:
        """Prepare a read.

        Parameters
        ----------
        columns : list of str, or dict of name to pyarrow Expression, optional
            All columns by default.
        filter : str, pyarrow Expression, DNF tuples, polars.Expr, or Predicate, optional
        limit : int, optional
            Rows at most.
        batch_size : int
            Rows a batch at most.
        use_scalar_index : bool
            False reads everything.
        scan_stats_callback : callable, optional
            Given a `ScanStats` at the end of each run.
        """
        if limit is not None:
            limit = arguments.whole(limit, "limit")
        batch_size = arguments.whole(batch_size, "batch_size", 1, MOST_BATCH_ROWS)
        asks_index = arguments.flag(use_scalar_index, "use_scalar_index")
        callback = arguments.function(scan_stats_callback, "scan_stats_callback")
        opened = self.opened
        checked = opened.binding.checked_columns(columns)
        expression, predicate = opened.translate(filter)
        asked = predicate if asks_index else None
        # A text that comes to one leaf says no more than that.
        is_predicate = isinstance(filter, str) and isinstance(asked, Equals | IsIn)
        request = Request(checked, expression, limit, batch_size, asked, is_predicate)
        names = tuple(self.schema.names if checked is None else checked)

        def plan(described: bool) -> ScanPlan:
            # Of the files there are when it is run.
            return self.opened.planner.plan(names, expression, asked, described=described)

        return Scanner(opened.source, request, plan, callback)

    def to_table(self, columns: Columns = None, filter: Filter = None, **options: Any) -> pa.Table:
        """Read as a table; the parameters are those of `scanner`."""
        return self.scanner(columns, filter, **options).to_table()

    def to_batches(
        self, columns: Columns = None, filter: Filter = None, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        """Read as batches; the parameters are those of `scanner`."""
        return self.scanner(columns, filter, **options).to_batches()

    def head(self, num_rows: int, filter: Filter = None, **options: Any) -> pa.Table:
        """Read the first rows; the parameters are those of `scanner`."""
        return self.scanner(filter=filter, **options).head(num_rows)

    def count_rows(self, filter: Filter = None, **options: Any) -> int:
        """Count rows; the parameters are those of `scanner`."""
        return self.scanner(filter=filter, **options).count_rows()

    def take(
        self, row_addresses: Sequence[int] | np.ndarray | pa.Array, columns: Columns = None
    ) -> pa.Table:
        """Read rows by address, in the order asked, repeated where asked twice.

        Parameters
        ----------
        row_addresses : integers, shape (n,)
            ``fragment_id << 32 | row offset in the fragment``, with the fragment ids that
            `search` tells.
        columns : as for `scanner`

        Raises
        ------
        InvalidArgument
            When an address is of no row of the files as they are now, or of one that a Delta or
            Iceberg table has deleted.
        """
        request = Request(self.opened.binding.checked_columns(columns), None)
        addresses = arguments.whole_numbers(row_addresses, "row_addresses").astype(np.int64)
        plan, read = self.opened.planner.plan_rows(addresses)
        rows = Scanner(self.opened.source, request, lambda described: plan).to_table()
        order = np.argsort(read)
        return gather(rows, order[np.searchsorted(read, addresses, sorter=order)])

    # Other libraries

    def to_polars(self) -> pl.LazyFrame:
        """A Polars LazyFrame whose filters skip zones; see `zonebloom.polars.scan`."""
        from zonebloom.polars import scan

        return scan(self)

    def to_arrow_dataset(self) -> pads.Dataset:
        """A ``pyarrow.dataset.Dataset`` of the files and indices there are now.

        DuckDB, Polars, DataFusion, Ibis and whatever else reads PyArrow's datasets reads it
        unchanged, and the filters they push down skip zones.
        """
        from zonebloom.arrow_dataset import ArrowDataset

        return ArrowDataset(self)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """All rows, for libraries that take Arrow streams."""
        return self.scanner().__arrow_c_stream__(requested_schema)

    # Showing

    def __repr__(self) -> str:
        count = len(self.opened.source.fragments)
        lines = [
            f"<zonebloom.Dataset {self.title}: {count:,} "
            f"{self.opened.source.format.default_extname} {'file' if count == 1 else 'files'}, "
            f"{len(self.schema.names)} columns>"
        ]
        lines += [f"  {index}" for index in self.describe_indices()]
        if len(lines) == 1:
            lines.append("  no index; make one with create_scalar_index(column)")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if not self.opened.version.indices:
            return lines_html(repr(self))
        title, *_ = repr(self).splitlines()
        rows = [
            (
                each.name,
                each.column,
                each.num_zones,
                f"{each.num_fragments_indexed:,} of {each.num_fragments:,}",
                bytes_text(each.num_bytes),
            )
            for each in self.describe_indices()
        ]
        headers = ["index", "column", "zones", "fragments covered", "size"]
        return table_html(headers, rows, title.strip("<>"))


def _forget(ds: Dataset, retention: timedelta) -> None:
    """Vacuum after a commit, which stands whatever comes of that."""
    try:
        ds.vacuum(retention)
    except CatalogError as error:
        warnings.warn(
            f"older versions of the index of {ds.title} are not deleted: {error}",
            ZoneBloomWarning,
            stacklevel=3,
        )


def _engine(spark: Any) -> Engine | None:
    """What trains elsewhere than in this process: a session given, or the active one."""
    least_bytes = 0
    if spark is None:
        # Without pyspark imported there is no active session.
        sql = sys.modules.get("pyspark.sql")
        spark = sql.SparkSession.getActiveSession() if sql is not None else None
        least_bytes = WORTH_AN_ENGINE
    if spark is None or spark is False:
        return None
    from zonebloom.spark.jobs import spark_engine

    return spark_engine(spark, least_bytes)


__all__ = ["Dataset", "DatasetOptimizer", "IndexConfig", "IndexDescription", "dataset"]
