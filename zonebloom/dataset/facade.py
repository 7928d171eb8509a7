"""`Dataset`, the class that users work with, and the methods that change its indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from zonebloom.base import arguments
from zonebloom.base.display import DisplayedList
from zonebloom.base.notices import warn
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
    """The methods that bring the indices of a dataset up to date; see ``Dataset.optimize``."""

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
        """Index new and changed files, forget deleted files, and choose a layout.

        This method first lists the files again, as `Dataset.refresh` does. It does not read files
        that are unchanged since they were indexed.

        Parameters
        ----------
        index_names : list of str, optional
            The indices to refresh. By default all indices of this dataset, but not those of other
            datasets that share the index_dir. If the column of an index was dropped or has another
            type than when it was indexed, a StaleIndexWarning is given, that index stays as it
            is, and the others are refreshed. If such an index is named here, nothing is refreshed.
        layout : {"auto", "table", "sliced"}
            As in `Dataset.create_scalar_index`. A new segment is merged with segments of its size
            or smaller. So a refresh costs about as much as it adds, and leaves large segments
            alone.
        retention : timedelta, optional
            After a change, delete versions and segments that were replaced longer ago than this,
            as `Dataset.vacuum` does; None keeps them all. 7 days by default.
        repair : bool
            Whether to verify all checksums of the indices first, and to build damaged indices
            again with the same parameters.
        spark, progress
            As in `Dataset.create_scalar_index`.

        Returns
        -------
        list of Refreshed
            One for each index, in the order of ``index_names``.

        Raises
        ------
        SchemaMismatch
            If the column of an index in ``index_names`` was dropped or has another type.
        FragmentUnreadable
        CorruptIndex
            If a segment that would be kept is damaged, and repair=False.

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
        damages = _find_damage(ds, [entry.name for entry, _ in indices]) if repair else {}
        version, refreshed = builder.refresh(
            indices,
            layout,
            choose_engine(spark),
            progress,
            damages,
            skip_misfits=index_names is None,
        )
        if repair and version.number < ds.opened.catalog.newest_number():
            # The newest version cannot be read. Commit another one, so that readers do not try it.
            version = ds.opened.catalog.commit(lambda latest: latest)
        ds.opened = ds.opened.at_version(version)
        if retention is not None and any(record.changed for record in refreshed):
            _vacuum_after_commit(ds, retention)
        by_name = {record.name: record for record in [*refreshed, *misfits]}
        refreshed = [by_name[entry.name] for entry in entries]
        for record in refreshed:
            if record.problem is not None:
                warn(StaleIndexWarning(record.problem))
        return DisplayedList(refreshed, REFRESHED_HEADERS, refreshed_cells, NO_INDEX)


@arguments.with_methods_of(ReadableDataset, KeyedDataset, IndexedDataset)
class Dataset(IndexedDataset):
    """Files with their indices, as `dataset` returns them.

    Attributes
    ----------
    title : str
        The name of the dataset in texts.
    opened : OpenedDataset
        Its files, its index folder, the index version in use, and the planner of its scans.

    Raises
    ------
    InvalidArgument, ColumnNotFound, FilterError, IndexNotFound
        By all methods, if an argument is invalid, a column or index does not exist, or a filter
        cannot be read.
    NotPicklable
        By ``pickle`` and ``cloudpickle``, if the pickle would contain a key or credential in clear
        text.

    Notes
    -----
    The pickle of a dataset contains its arguments, the names of its files and the number of its
    catalog version. Another process opens the same files and the same index, even if files were
    added since. Keys in clear text are never pickled: give functions that find them (`Encryption`,
    `ParquetKeys`), and let file systems take credentials from the environment. pyarrow drops the
    keys of encrypted files when it pickles a ``pyarrow.dataset.Dataset``. The pickle contains the
    files of a Delta or Iceberg table but not the table object, so there `refresh` keeps the
    table's version. A table in memory is pickled with its index. Scanners and plans cannot be
    pickled.

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
        # None if the files were named one by one, because then there is nothing to list.
        self._list_files = list_files

    def __copy__(self) -> Dataset:
        """Return a dataset with the same state. Later changes of one do not affect the other."""
        return Dataset(self.opened, self.title, self._list_files)

    def __deepcopy__(self, memo: dict[int, Any]) -> Dataset:
        # The state is immutable and replaced as a whole, so copies may share it.
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (PickledDataset.of(self.opened, self.title, self._list_files),)

    def refresh(self) -> None:
        """List the files again, and use their newest index.

        This opens the source again in the same way: it lists a folder or a pattern, and forgets
        files that were deleted. For a Delta or Iceberg table it takes the version that the table
        object has loaded; call the table's own ``update_incremental()`` or ``refresh()`` first to
        get the newest. An unpickled dataset has no table object and keeps its version. LazyFrames
        made from the dataset see the new files from then on.

        Raises
        ------
        SourceError
            If the files were given one by one, or as a ``pyarrow.dataset.Dataset``, which has a
            fixed list of files: open a new dataset with the files that exist now. Also if the
            common folder of the files is no longer the one that their index belongs to.
        NoFragments, FragmentUnreadable
            The dataset stays as it was.

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
        """Use the newest index version, which another writer may have committed.

        This does not look for new files; `refresh` does both.

        >>> zb.dataset("orders").create_scalar_index("day")
        >>> ds.version, ds.checkout_latest(), ds.version
        (1, None, 2)
        """
        self.opened = self.opened.with_newest_index()

    def _renew(self) -> None:
        """Get the newest files and the newest index before a change."""
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
        """Index a column: build one split-block Bloom filter for each zone of rows.

        This method first lists the files again, as `refresh` does.

        Parameters
        ----------
        column : str or list of str
            A column, a leaf of a struct as "a.b", or a list of these. Each gets its own index.
            The files are read once for all of them, and one commit adds them all.
        index_type : str or IndexConfig
            "BLOOMFILTER", or a configuration with its parameters.
        name : str, optional
            ``<column>_idx`` by default.
        replace : bool
            Whether to replace an existing index of that name.
        number_of_items : int
            Number of rows in a zone. The filter of a zone is sized for as many distinct values.
        probability : float
            Target false positive probability of a zone, between 0 and 1.
        sizing : {"log2", "exact"}
            "log2" gives filters the sizes that Lance uses, "exact" the smallest that reach the
            probability.
        fold : bool
            Whether to halve filters with few distinct values, such as those of short zones, as
            often as the probability allows. False keeps all filters as large as Lance's.
        max_false_zones : float, optional
            The number of zones in the whole dataset that a lookup may read needlessly, on average.
            Replaces the probability.
        layout : {"auto", "table", "sliced"}
            "table" stores one filter after another. "sliced" stores one bit of all filters after
            another, so a lookup of one key needs eight short reads. "auto" chooses "sliced" for
            4096 zones or more.
        global_filter : bool
            Whether to build a filter over all keys of the column as well, for joins.
        expected_num_items : int, optional
            Number of distinct keys that the global filter is sized for; by default the number of
            rows.
        global_probability : float, optional
            False positive probability of the global filter at that many keys. By default 0.001, or
            0.01 if the filter would be larger than 128 MiB (some 63 million keys).
        plaintext : bool
            Whether to build an unencrypted index over encrypted files. By default this is refused
            if the dataset was opened without ``encryption``, because filters reveal which keys
            exist, and key ranges reveal the least and the greatest.
        spark : SparkSession or False, optional
            The Spark session to build in, or False for threads of this process. By default the
            active session is used if there is one and at least a gigabyte of data to read; this
            process is faster for less. The progress bar shows where the build runs.
        progress : bool or callable, optional
            True for a progress bar, or a function that gets the rows done and the rows in total.

        Raises
        ------
        InvalidArgument, ColumnNotFound, UnsupportedType
            Before anything is read.
        IndexExists
            If replace=False, or the index belongs to another dataset that shares the index_dir.
        FragmentUnreadable, SchemaMismatch
            Nothing is left behind.

        Examples
        --------
        >>> ds.create_scalar_index(["id", "day"], number_of_items=100, max_false_zones=0.01)
        >>> ds.create_scalar_index("customer", name="for_joins", global_filter=True)
        >>> [index.name for index in ds.describe_indices()]
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
        """The methods that bring indices up to date, as in Lance:
        ``ds.optimize.optimize_indices()``."""
        return DatasetOptimizer(self)

    def adopt_index(self) -> Adopted:
        """Use the index for files that were copied, moved or uploaded together with it.

        A copied file has other times, and another store has other tags. Such a file counts as
        changed, and is read whole. This method finds the file that was indexed by its size and by
        the digest of its footer. It proves a local file up to 1 MiB by the digest of all its
        bytes. For any other file it reads the indexed columns, and looks up every value in the
        index. Only Parquet files have such a footer. Renamed files are recognised, too.

        Returns
        -------
        Adopted
            How many files the index covers again, and the paths of those it does not.

        Raises
        ------
        CommitConflict
            If another writer indexed the files meanwhile.

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

        All files are copied and read back before the old ones are deleted, so a crash at any
        moment leaves one complete index; the same call then finishes the move. Older versions are
        not copied and are deleted. Readers that have the old index open read the data instead
        until they call `refresh`.

        Parameters
        ----------
        index_dir : str, optional
            A folder in the same file system. Datasets find an index outside the default places
            only if they are opened with this ``index_dir``.

        Returns
        -------
        MovedIndex

        Raises
        ------
        IndexNotFound, EncryptedIndex, CorruptIndex
            If there is no index, or its newest version cannot be read.
        IndexExists
            If the folder already contains an index.
        InvalidArgument
            If the index also covers other files, which would lose it.
        CommitConflict
            If another writer commits or moves the index meanwhile. Its index stays complete.
        CatalogError
            If the old files cannot be deleted. The index was moved, and the same call deletes them.

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
        """Remove an index. Its segments stay on disk for older readers until `vacuum`.

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
            others = {key: entry for key, entry in latest.indices.items() if key != name}
            return latest.with_indices(others)

        self.opened = self.opened.at_version(self.opened.catalog.commit(change))

    def vacuum(self, older_than: timedelta = RETENTION) -> Vacuumed:
        """Delete older versions of the index, and segments that only they refer to.

        Files and folders that are not part of the index, and symbolic links, are left alone; the
        result lists them.

        Parameters
        ----------
        older_than : timedelta
            Versions that were the newest at some time within this period are kept for their
            readers, with all their segments. Files written within it are kept as well, because a
            running build may need them.

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
        """Return a Polars LazyFrame whose filters skip zones; see `zonebloom.polars.scan`.

        Raises
        ------
        MissingDependency
            If Polars 2.0 or newer is not installed.

        Examples
        --------
        >>> import polars as pl
        >>> ds.to_polars().filter(pl.col("customer") == "C042").select("id").collect().height
        6
        """
        from zonebloom.polars import scan

        return scan(self)

    def to_arrow_dataset(self) -> pads.Dataset:
        """Return a ``pyarrow.dataset.Dataset`` of the files and indices in use now.

        DuckDB, Polars, DataFusion, Ibis and any other library that reads PyArrow datasets can read
        it, and the filters that they push down skip zones. Joins push down no filter. The same
        libraries can read a scanner as an Arrow stream, to which only the scanner's own filter
        applies.

        >>> import pyarrow.compute as pc
        >>> ds.to_arrow_dataset().count_rows(filter=pc.field("id") == 42)
        1
        """
        from zonebloom.arrow_dataset import ArrowDataset

        return ArrowDataset(self)


def _unpickled(pickled: PickledDataset) -> Dataset:
    return Dataset(pickled.open(), pickled.title, pickled.list_files)


def _vacuum_after_commit(ds: Dataset, retention: timedelta) -> None:
    """Vacuum, but only warn if that fails, because the commit before it has succeeded."""
    try:
        ds.vacuum(retention)
    except CatalogError as error:
        warn(
            ZoneBloomWarning(f"older versions of the index of {ds.title} are not deleted: {error}")
        )


def _find_damage(ds: Dataset, names: Sequence[str]) -> dict[str, str]:
    """Return the damaged indices by name, each with a description of its damage."""
    damages = {}
    for name in names:
        try:
            ds.validate_index(name, sample=0)
        except CorruptIndex as error:
            damages[name] = str(error)
    return damages
