"""Dataset: what users hold in their hands, and what changes it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from zonebloom.base import arguments
from zonebloom.base.display import DisplayedList
from zonebloom.base.progress import ProgressOption, require_progress
from zonebloom.building.adopt import Adopted, adopt_files
from zonebloom.building.builder import (
    REFRESHED_HEADERS,
    Builder,
    Refreshed,
    failed_refresh,
    refreshed_cells,
)
from zonebloom.building.move import MovedIndex, move_opened_index
from zonebloom.building.request import IndexConfig, IndexRequest
from zonebloom.building.segments import require_layout
from zonebloom.catalog.model import (
    DEFAULT_NUMBER_OF_ITEMS,
    DEFAULT_ZONE_PROBABILITY,
    IndexEntry,
    Version,
)
from zonebloom.catalog.store import Catalog
from zonebloom.catalog.vacuum import RETENTION, Vacuumed, vacuum_catalog
from zonebloom.dataset.engine import choose_engine
from zonebloom.dataset.indices import IndexedDataset
from zonebloom.dataset.keys import KeyedDataset
from zonebloom.dataset.pickled import PickledDataset
from zonebloom.dataset.reading import ReadableDataset
from zonebloom.errors import (
    CatalogError,
    CorruptIndex,
    SchemaMismatch,
    SourceError,
    StaleIndexWarning,
    ZoneBloomWarning,
)
from zonebloom.index.describe import INDEX_TYPE, NO_INDEX
from zonebloom.opened import OpenedDataset
from zonebloom.sources.column_batches import Column
from zonebloom.sources.memory import TableSource
from zonebloom.sources.source import Source
from zonebloom.sources.table_snapshot import SnapshotSource

if TYPE_CHECKING:
    import polars as pl
    import pyarrow.dataset as pads
    from pyspark.sql import SparkSession


class DatasetOptimizer:
    """Brings the indices of a dataset up to date; it is ``Dataset.optimize``."""

    def __init__(self, dataset: Dataset):
        self._dataset = dataset

    def __repr__(self) -> str:
        return f"<zonebloom.DatasetOptimizer of {self._dataset.title}>"

    def optimize_indices(
        self,
        index_names: Sequence[str] | None = None,
        *,
        layout: Literal["auto", "table", "sliced"] = "auto",
        retention: timedelta | None = RETENTION,
        repair: bool = False,
        spark: SparkSession | Literal[False] | None = None,
        progress: ProgressOption = None,
    ) -> DisplayedList[Refreshed]:
        """Index files that came or changed, forget files that are gone, choose a layout.

        Files are listed anew first, as `Dataset.refresh` does. Files that are as they were
        indexed are not read again.

        Parameters
        ----------
        index_names : list of str, optional
            All indices by default, but those of other datasets that share the index_dir. By
            default an index whose column was dropped, or has another type than when it was
            indexed, is left as it is with a StaleIndexWarning, and the others are refreshed. If
            it is named here, nothing is refreshed.
        layout : {"auto", "table", "sliced"}
            As `Dataset.create_scalar_index` takes it. What came merges with what is of its size
            or smaller, so each refresh costs what it adds, and a large part is left alone.
        retention : timedelta, optional
            Versions and segments that were replaced longer ago are deleted after a change, as by
            `Dataset.vacuum`; None keeps them all. 7 days by default.
        repair : bool
            Whether to read the indices whole first, and build anew, with the same parameters,
            those whose checksums do not hold.
        spark, progress
            As `Dataset.create_scalar_index` takes them.

        Returns
        -------
        list of Refreshed
            One for each index, in the order of their names as given.

        Raises
        ------
        SchemaMismatch
            When the column of an index in ``index_names`` was dropped or has another type.
        FragmentUnreadable
        CorruptIndex
            When a segment that is kept is damaged, and repair=False.

        Examples
        --------
        >>> pq.write_table(table.slice(0, 10), "orders/late.parquet")
        >>> ds.optimize.optimize_indices(["id_idx"])
        [Refreshed(name='id_idx', fragments_added=1, fragments_dropped=0, ...)]
        """
        require_layout(layout)
        require_progress(progress)
        if retention is not None:
            arguments.require_instance(retention, timedelta, "retention")
        if index_names is not None:
            index_names = arguments.require_name_list(index_names, "index_names")
        repair = arguments.require_bool(repair, "repair")
        ds = self._dataset
        ds._renew()
        builder = Builder(ds.opened)
        names = builder.own_index_names() if index_names is None else index_names
        entries = [ds.opened.index_entry(name) for name in dict.fromkeys(names)]
        indices: list[tuple[IndexEntry, Column]] = []
        misfits: list[Refreshed] = []
        for entry in entries:
            try:
                indices.append((entry, ds.opened.indexed_column(entry)))
            except SchemaMismatch as error:
                if index_names is not None:
                    raise
                misfits.append(failed_refresh(entry, str(error)))
        fitting = [entry.name for entry, _ in indices]
        damaged = {name: why for name in fitting if (why := _damage(ds, name))} if repair else {}
        version, refreshed = builder.refresh(
            indices,
            layout,
            choose_engine(spark),
            progress,
            damaged,
            skip_misfits=index_names is None,
        )
        if repair and version.number < ds.opened.catalog.newest_number():
            # The newest cannot be read, and would be tried by every reader.
            version = ds.opened.catalog.commit(lambda latest: latest)
        ds.opened = ds.opened.at_version(version)
        if retention is not None and any(each.changed for each in refreshed):
            _forget(ds, retention)
        by_name = {record.name: record for record in [*refreshed, *misfits]}
        refreshed = [by_name[entry.name] for entry in entries]
        for record in refreshed:
            if record.problem is not None:
                warnings.warn(record.problem, StaleIndexWarning, stacklevel=2)
        return DisplayedList(refreshed, REFRESHED_HEADERS, refreshed_cells, NO_INDEX)


@arguments.with_methods_of(ReadableDataset, KeyedDataset, IndexedDataset)
class Dataset(IndexedDataset):
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
    NotPicklable
        By ``pickle`` and ``cloudpickle``, when a key or credential would travel in clear.

    Notes
    -----
    A dataset pickles as its arguments, the names of its files and the number of its catalog
    version. Another process opens it with the same files and index, whatever came since. Keys in
    clear do not travel: give functions that find them (`Encryption`, `ParquetKeys`), and let file
    systems take credentials from the environment. pyarrow drops the keys of encrypted files that a
    ``pyarrow.dataset.Dataset`` has. The files of a Delta or Iceberg table travel, and the table
    object does not, so `refresh` keeps the table's version there. A table in memory travels with
    its index. Scanners and plans do not pickle.

    Examples
    --------
    >>> print(ds)
    <zonebloom.Dataset orders: 3 parquet files, 3 columns>
      id_idx: BLOOMFILTER on id, 30 zones of 100 rows, 10.0 kB, 3 of 3 fragments covered
      customer_idx: BLOOMFILTER on customer, 30 zones of 100 rows, 10.0 kB, 3 of 3 fragments covered
    >>> ds.version, ds.index_dir, ds.files[0]
    (1, '..._zonebloom/orders', '...orders/0.parquet')
    >>> import pickle
    >>> pickle.loads(pickle.dumps(ds)).count_rows("id = 42")
    1
    """

    opened: OpenedDataset

    def __init__(
        self,
        opened: OpenedDataset,
        title: str | None = None,
        list_files: Callable[..., tuple[Source, Catalog]] | None = None,
    ):
        super().__init__(opened, title)
        # None where the files are named one by one: there is nothing to list.
        self._list_files = list_files

    def __copy__(self) -> Dataset:
        """Return a dataset with the same state, which the two change apart from each other."""
        return Dataset(self.opened, self.title, self._list_files)

    def __deepcopy__(self, memo: dict[int, Any]) -> Dataset:
        # The state is replaced as a whole and never changed, so it is shared.
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (PickledDataset.of(self.opened, self.title, self._list_files),)

    def refresh(self) -> None:
        """Take the files there are now, and the newest index of them.

        The source is opened again as it was: a folder or a pattern is listed anew, and files
        that are gone are forgotten. Of a Delta or Iceberg table the version counts that the
        table object has loaded by now; call its own ``update_incremental()`` or ``refresh()``
        first to have the newest. A dataset that was unpickled has no table object and keeps its
        version. LazyFrames made of the dataset see the same files from then on.

        Raises
        ------
        SourceError
            When the files were given one by one, or as a ``pyarrow.dataset.Dataset``, which has
            its own list of files: open those again with the files there are. When the files
            share another folder by now than the one their index lies in.
        NoFragments, FragmentUnreadable
            And the dataset is as it was.

        Examples
        --------
        >>> os.remove("orders/0.parquet")
        >>> ds.refresh()
        >>> len(ds.files), ds.count_rows()
        (2, 2000)
        """
        if self._list_files is None:
            if isinstance(self.opened.source, TableSource | SnapshotSource):
                self.checkout_latest()
                return
            raise SourceError(
                "the dataset was opened with a list of files, or with a pyarrow dataset that has "
                "one, so there is nothing to list anew; open it again with the files there are now"
            )
        self.opened = self.opened.with_current_files(*self._list_files())

    def checkout_latest(self) -> None:
        """Use the newest index of the files this dataset has, as other writers may have left it.

        Files that came since are not looked for: `refresh` does both.

        >>> zb.dataset("orders").create_scalar_index("day")
        >>> ds.version, ds.checkout_latest(), ds.version
        (1, None, 2)
        """
        self.opened = self.opened.with_newest_index()

    def _renew(self) -> None:
        """Take what is newest, to change it: what has been read so far does not matter."""
        if self._list_files is None:
            self.checkout_latest()
        else:
            self.refresh()

    def create_scalar_index(
        self,
        column: str | Sequence[str],
        index_type: str | IndexConfig = INDEX_TYPE,
        name: str | None = None,
        *,
        replace: bool = True,
        number_of_items: int = DEFAULT_NUMBER_OF_ITEMS,
        probability: float = DEFAULT_ZONE_PROBABILITY,
        sizing: Literal["log2", "exact"] = "log2",
        fold: bool = True,
        max_false_zones: float | None = None,
        layout: Literal["auto", "table", "sliced"] = "auto",
        global_filter: bool = False,
        expected_num_items: int | None = None,
        global_probability: float | None = None,
        plaintext: bool = False,
        spark: SparkSession | Literal[False] | None = None,
        progress: ProgressOption = None,
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

        Examples
        --------
        >>> ds.create_scalar_index(["id", "day"], number_of_items=100, max_false_zones=0.01)
        >>> ds.create_scalar_index("customer", name="for_joins", global_filter=True)
        >>> [each.name for each in ds.describe_indices()]
        ['customer_idx', 'id_idx', 'day_idx', 'for_joins']
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
        self.opened = self.opened.in_writable_folder()
        version = Builder(self.opened).build(
            request.make_specs(self.opened),
            request.layout,
            request.replace,
            choose_engine(spark),
            progress,
        )
        self.opened = self.opened.at_version(version)

    @property
    def optimize(self) -> DatasetOptimizer:
        """Bringing indices up to date, as Lance names it: ``ds.optimize.optimize_indices()``."""
        return DatasetOptimizer(self)

    def adopt_index(self) -> Adopted:
        """Use the index for files that were copied, moved or uploaded together with it.

        A copied file has other times, and another store has other tags. Such a file counts as
        changed, and is read whole. This method finds the file that was indexed by its size and by
        the digest of its footer. It proves a local file up to 1 MiB by the digest of all its
        bytes. Of any other file it reads the indexed columns, and looks up every value in the
        index. Only Parquet files have such a footer. Renamed files are recognised, too.

        Returns
        -------
        Adopted
            How many files the index covers again, and the paths of those it does not.

        Raises
        ------
        CommitConflict
            When another writer indexed the files meanwhile.

        Examples
        --------
        >>> os.rename("orders/0.parquet", "orders/first.parquet")
        >>> ds.adopt_index()
        Adopted(num_files=1, left=())
        """
        self._renew()
        version, adopted = adopt_files(self.opened)
        self.opened = self.opened.at_version(version)
        return adopted

    def move_index(self, index_dir: str | None = None) -> MovedIndex:
        """Move the index to its default place beside the data folder, or to another folder.

        Everything is copied and read back before the old files are deleted, so a crash at any
        moment leaves one whole index; the same call then finishes the move. Older versions stay
        behind and are deleted. Readers that have the old index open read the data instead until
        they call `refresh`.

        Parameters
        ----------
        index_dir : str, optional
            In the same file system. Datasets find an index outside the default places only if they
            are opened with this ``index_dir``.

        Returns
        -------
        MovedIndex

        Raises
        ------
        IndexNotFound, EncryptedIndex, CorruptIndex
            When there is no index, or its newest version cannot be read.
        IndexExists
            When the folder holds an index already.
        InvalidArgument
            When the index is also of other files, which would lose it.
        CommitConflict
            When another writer commits meanwhile. The index is as it was.

        Examples
        --------
        >>> ds.move_index("elsewhere")
        MovedIndex(index_dir='...elsewhere', num_files=..., foreign_files=())
        >>> ds.move_index().index_dir
        '..._zonebloom/orders'
        """
        if index_dir is not None:
            index_dir = arguments.require_path(index_dir, "index_dir")
        self._renew()
        self.opened, moved = move_opened_index(self.opened, index_dir)
        if self._list_files is not None:
            self._list_files = partial(self._list_files, index_dir=moved.index_dir)
        return moved

    def drop_index(self, name: str) -> None:
        """Forget an index; its segments stay on disk for older readers until `vacuum`.

        Raises
        ------
        IndexNotFound

        Examples
        --------
        >>> ds.drop_index("id_idx")
        >>> ds
        <zonebloom.Dataset orders: 3 parquet files, 3 columns; indices: customer_idx>
        """
        self.opened.index_entry(name)

        def change(latest: Version) -> Version:
            left = {key: entry for key, entry in latest.indices.items() if key != name}
            return latest.with_indices(left)

        self.opened = self.opened.at_version(self.opened.catalog.commit(change))

    def vacuum(self, older_than: timedelta = RETENTION) -> Vacuumed:
        """Delete older versions of the index, and segments that only they name.

        Files and folders that are not the index's own, and symbolic links, are left alone; the
        result lists them.

        Parameters
        ----------
        older_than : timedelta
            Versions that were the newest since are kept for their readers, with all they name,
            and so is what was written since, for builds under way.

        Returns
        -------
        Vacuumed

        Examples
        --------
        >>> from datetime import timedelta
        >>> ds.drop_index("id_idx")
        >>> ds.vacuum(timedelta(0)).num_segments
        1
        """
        return vacuum_catalog(
            self.opened.catalog, arguments.require_instance(older_than, timedelta, "older_than")
        )

    def to_polars(self) -> pl.LazyFrame:
        """A Polars LazyFrame whose filters skip zones; see `zonebloom.polars.scan`.

        Raises
        ------
        MissingDependency
            Without Polars 2.0 or newer.

        Examples
        --------
        >>> import polars as pl
        >>> ds.to_polars().filter(pl.col("customer") == "C042").select("id").collect().height
        6
        """
        from zonebloom.polars import scan

        return scan(self)

    def to_arrow_dataset(self) -> pads.Dataset:
        """A ``pyarrow.dataset.Dataset`` of the files and indices there are now.

        DuckDB, Polars, DataFusion, Ibis and whatever else reads PyArrow's datasets reads it
        unchanged, and the filters they push down skip zones; joins push none. A scanner is an Arrow
        stream for the same libraries, filtered by its own filter alone.

        >>> import pyarrow.compute as pc
        >>> ds.to_arrow_dataset().count_rows(filter=pc.field("id") == 42)
        1
        """
        from zonebloom.arrow_dataset import ArrowDataset

        return ArrowDataset(self)


def _unpickled(pickled: PickledDataset) -> Dataset:
    return Dataset(pickled.open(), pickled.title, pickled.list_files)


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


def _damage(ds: Dataset, name: str) -> str | None:
    """What of an index is not as it was written."""
    try:
        ds.validate_index(name, sample=0)
    except CorruptIndex as error:
        return str(error)
    return None
