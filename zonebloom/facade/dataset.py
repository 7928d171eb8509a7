"""`Dataset`, the class that users work with."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Unpack

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs

from zonebloom.base import arguments
from zonebloom.base.display import Displayed, list_html, styled_html, table_html, title_html
from zonebloom.base.exit_guard import GuardedIterator
from zonebloom.base.notices import warn
from zonebloom.base.progress import ProgressOption, require_progress
from zonebloom.base.row_ranges import SearchResult
from zonebloom.catalog.model import DEFAULT_KIND, DEFAULT_NUMBER_OF_ITEMS, RETENTION, Version
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CatalogError, IndexNotUsedWarning, InvalidArgument
from zonebloom.reading import (
    Filter,
    KeysLike,
    KeyTableLike,
    RowsLike,
    addresses_of_positions,
    count_all_rows,
    key_locations,
    look_up,
    take_rows,
)
from zonebloom.sbbf.kernel_loader import KERNELS
from zonebloom.scan.opened import OpenedDataset
from zonebloom.scan.ordering import OrderBy
from zonebloom.scan.plan import DEFAULT_BATCH_ROWS, ScanStats
from zonebloom.scan.planner import search_result
from zonebloom.scan.recheck import Columns
from zonebloom.scan.scanner import FragmentsLike, Scanner, plan_scan
from zonebloom.scan.search import global_filter, key_ranges
from zonebloom.sources.source import Source, unreadable_dataset

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import SparkSession

    from zonebloom.advise.judge import Advices
    from zonebloom.base.display import DisplayedDict, DisplayedList
    from zonebloom.catalog.vacuum import Vacuumed
    from zonebloom.changes.folder import FileLister
    from zonebloom.changes.receipt import Receipt, Traces
    from zonebloom.facade.fragments import ReadOptions, ScanOptions
    from zonebloom.facade.indices import DatasetOptimizer
    from zonebloom.index.describe import EmbeddedDescription, IndexDescription
    from zonebloom.index.global_filter import GlobalFilter
    from zonebloom.index.validate import ValidatedIndex
    from zonebloom.storage.encryption import Encryption


class Dataset(pads.UnionDataset, Displayed):
    """Files with their indices, as `dataset` returns them.

    Attributes
    ----------
    title : str
        The name of the dataset in displays and messages.
    opened : OpenedDataset
        Its files, its index folder, the index version in use, and its indices.

    Raises
    ------
    InvalidArgument, ColumnNotFound, FilterError, IndexNotFound
        By all methods, if an argument is invalid, a column or index does not exist, or a filter
        cannot be read.
    NotPicklable
        By ``pickle`` and ``cloudpickle``, if the dataset holds keys of encryption in clear.

    Notes
    -----
    The pickle of a dataset contains the names of its files and the number of its catalog version.
    Another process opens the same files and the same index, even if files were added since. The
    pickle has no table object of Delta Lake or Iceberg, so there `refresh` keeps the version.
    pyarrow drops the keys of encrypted files when it pickles a ``pyarrow.dataset.Dataset``.
    Scanners and plans cannot be pickled.

    The base class comes from ``pyarrow.dataset``, which imports pandas if it is installed. So the
    first dataset of a process takes a quarter of a second longer with pandas than without.

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

    title: str
    opened: OpenedDataset

    def __init__(
        self,
        opened: OpenedDataset,
        title: str,
        file_lister: FileLister | None = None,
        filters: tuple[Filter, ...] = (),
    ):
        super().__init__(opened.source.schema, [unreadable_dataset(opened.source.schema)])
        self.title = title
        self.opened = opened
        # It lists the files again. None if they were named one by one.
        self.file_lister = file_lister
        # The filters of `Dataset.filter`, which all reads apply.
        self._filters = filters

    def __copy__(self) -> Dataset:
        """Return a dataset with the same state. Later changes of one do not affect the other."""
        return Dataset(self.opened, self.title, self.file_lister, self._filters)

    def __deepcopy__(self, memo: dict[int, Any]) -> Dataset:
        # The state is immutable and replaced as a whole, so copies may share it.
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        source, catalog, version = self.opened.source, self.opened.catalog, self.opened.version
        pickled = PickledDataset(
            source=source,
            index_dir=catalog.folder,
            encryption=catalog.encryption,
            version=None if version.locked_reason else version.number,
            embedded_filters=self.opened.uses_embedded_filters,
            title=self.title,
            # The table object of Delta Lake or Iceberg is not pickled, but its files are.
            file_lister=None if source.is_table_snapshot else self.file_lister,
            filters=self._filters,
            index_files=_read_files(catalog.folder) if source.is_in_memory else {},
        )
        return PickledDataset.open, (pickled,)

    # The files and their state

    @property
    def schema(self) -> pa.Schema:
        """The dataset's schema."""
        return self.opened.source.schema

    @property
    def files(self) -> list[str]:
        """The paths of the fragments, in scan order."""
        return [fragment.path for fragment in self.opened.source.fragments]

    @property
    def version(self) -> int:
        """The number of the catalog version in use, or 0 before the first index."""
        return self.opened.version.number

    @property
    def index_dir(self) -> str:
        """The folder of the index."""
        return self.opened.catalog.folder

    def __len__(self) -> int:
        return self.count_rows()

    def __bool__(self) -> bool:
        # A dataset is true even if it has no rows, and truth must not cost a count.
        return True

    def refresh(self) -> None:
        """List the files again, and use their newest index.

        This lists a folder or a pattern again, and forgets files that were deleted. A dataset of
        files that were named one by one, or of a ``pyarrow.dataset.Dataset``, keeps its files. For
        a Delta or Iceberg table it takes the version that the table object has loaded; call the
        table's own ``update_incremental()`` or ``refresh()`` first to get the newest. LazyFrames
        made from the dataset see the new files from then on. Methods that change an index call this
        first.

        Raises
        ------
        SourceError
            If the common folder of the files is no longer the one that their index belongs to.
        NoFragments, FragmentUnreadable
            The dataset stays as it was.

        Examples
        --------
        >>> os.remove("orders/0.parquet")
        >>> ds.refresh()
        >>> len(ds.files), ds.count_rows()
        (2, 2000)
        """
        if self.file_lister is None:
            self.opened = self.opened.with_newest_index()
        else:
            self.opened = self.opened.with_current_files(*self.file_lister())

    # Reads

    def scanner(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        columns: Columns = None,
        filter: Filter = None,
        *,
        limit: int | None = None,
        offset: int | None = None,
        order_by: OrderBy = None,
        fragments: FragmentsLike = None,
        with_row_address: bool = False,
        batch_size: int = DEFAULT_BATCH_ROWS,
        use_scalar_index: bool = True,
        scan_stats_callback: Callable[[ScanStats], Any] | None = None,
        **options: Unpack[ScanOptions],
    ) -> Scanner:
        """Return a scanner, which reads when one of its methods is called.

        Parameters
        ----------
        columns : list of str, or dict of name to SQL or pyarrow Expression, optional
            All columns by default. A field of a struct is named "a.b".
        filter : str, pyarrow Expression, DNF tuples, polars.Expr, Predicate, or list, optional
            A list of strings, pyarrow Expressions and Predicates means that all must match.
        limit : int, optional
            The largest number of rows to return.
        offset : int, optional
            The number of rows to leave out first.
        order_by : str, or list of str and (str, "ascending" or "descending"), optional
            Columns to sort the rows by, of the result or of the dataset. NaN and then null come
            last. Rows with equal values stay in the order of the files. With a limit, only so many
            rows are kept in memory.
        fragments : iterable of str or fragment, optional
            The files to read: members of `files`, or fragments of `get_fragments`.
        with_row_address : bool
            Whether to add a column ``_rowaddr`` with the addresses that `take_rows` takes. Then a
            file that is rewritten while it is read always raises `FragmentChanged`.
        batch_size : int
            The largest number of rows in a batch.
        use_scalar_index : bool
            False reads everything, without the index.
        scan_stats_callback : callable, optional
            A function that is called with a `ScanStats` at the end of each run.

        Notes
        -----
        The page "Filters" of the documentation says which parts of a filter an index can answer,
        how values are compared, and what is refused. The whole filter is applied to the rows that
        are read, by Polars if it is a Polars expression, by DuckDB if it is SQL beyond plain
        conditions (``pip install 'zonebloom[sql]'``), else by PyArrow.

        If a file is rewritten in place while it is read with an index, it is read again, or
        `FragmentChanged` is raised before its last rows are returned. Files that are read whole
        are read as PyArrow does, without this check.

        Examples
        --------
        >>> scan = ds.scanner(["day"], "id = 42")
        >>> scan.to_table().to_pylist()
        [{'day': datetime.date(2024, 5, 2)}]
        >>> ds.scanner(["id"], "customer = 'C042' AND year(day) = 2024 AND id % 2 = 0").count_rows()
        6
        >>> import pyarrow.compute as pc
        >>> ds.scanner(["id"], ["customer = 'C042'", pc.field("id") < 1000]).count_rows()
        2
        >>> ds.scanner({"next": pc.field("id") + 1}, pc.field("id") == 42).to_table().to_pylist()
        [{'next': 43}]
        >>> last_first = [("id", "descending")]
        >>> ds.to_table({"who": "lower(customer)"}, order_by=last_first, limit=1).to_pylist()
        [{'who': 'c499'}]
        >>> ds.scanner(["id"], "id = 42", with_row_address=True).to_table().to_pylist()
        [{'id': 42, '_rowaddr': 4294967634}]
        >>> runs = []
        >>> ds.scanner(filter="id = 42", scan_stats_callback=runs.append).count_rows()
        1
        >>> runs[0].rows_read
        100
        """
        if options:
            from zonebloom.facade.fragments import require_scan_options

            require_scan_options(options)
        return plan_scan(
            self.opened,
            columns,
            self._all_filters(filter),
            limit=limit,
            offset=offset,
            order_by=order_by,
            fragments=fragments,
            with_row_address=with_row_address,
            batch_size=batch_size,
            use_scalar_index=use_scalar_index,
            scan_stats_callback=scan_stats_callback,
        )

    def to_table(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, columns: Columns = None, filter: Filter = None, **options: Unpack[ReadOptions]
    ) -> pa.Table:
        """Read rows as a table. The parameters are those of `scanner`.

        >>> ds.to_table(["id", "day"], "id IN (42, 43)").to_pylist()
        [{'id': 42, 'day': ...2024, 5, 2)}, {'id': 43, 'day': ...2024, 5, 3)}]
        >>> ds.to_table(filter=[("customer", "=", "C042")], limit=2).num_rows
        2
        """
        return self.scanner(columns, filter, **options).to_table()

    def to_batches(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, columns: Columns = None, filter: Filter = None, **options: Unpack[ReadOptions]
    ) -> Iterator[pa.RecordBatch]:
        """Read rows as batches. The parameters are those of `scanner`.

        >>> [batch.num_rows for batch in ds.to_batches(["id"], "id < 100")]
        [34, 33, 33]
        """
        return self.scanner(columns, filter, **options).to_batches()

    def to_pandas(
        self, columns: Columns = None, filter: Filter = None, **options: Unpack[ReadOptions]
    ) -> Any:
        """Read rows as a pandas DataFrame. The parameters are those of `scanner`.

        >>> ds.to_pandas(["id", "customer"], "id = 42")
           id customer
        0  42     C042
        """
        return self.to_table(columns, filter, **options).to_pandas()

    def head(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        num_rows: int = 5,
        columns: Columns = None,
        filter: Filter = None,
        **options: Unpack[ReadOptions],
    ) -> pa.Table:
        """Read the first rows. The other parameters are those of `scanner`.

        >>> ds.head(2, filter="customer = 'C042'")["id"].to_pylist()
        [2042, 2542]
        >>> ds.head().num_rows
        5
        """
        return self.scanner(columns, filter, **options).head(num_rows)

    def count_rows(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, filter: Filter = None, **options: Unpack[ReadOptions]
    ) -> int:
        """Count rows. The parameters are those of `scanner`.

        Without a filter only the footers of Parquet files are read.

        >>> ds.count_rows(), ds.count_rows("customer = 'C042' AND id < 1000")
        (3000, 2)
        """
        if filter is None and not self._filters and not options:
            return count_all_rows(self.opened)
        return self.scanner(None, filter, **options).count_rows()

    def take(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        indices: RowsLike,
        columns: Columns = None,
        filter: Filter = None,
        **options: Unpack[ReadOptions],
    ) -> pa.Table:
        """Read rows by position, in the order of the positions, as PyArrow and Lance do.

        Parameters
        ----------
        indices : integers, shape (n,)
            Row numbers over all files in scan order, or over the rows that match ``filter``. Rows
            that a Delta or Iceberg table has deleted are not counted. `take_rows` reads rows by
            address.
        columns, filter, options : as for `scanner`

        Raises
        ------
        InvalidArgument
            If a position is outside the dataset.

        Examples
        --------
        >>> ds.take([2999, 0], ["id"])["id"].to_pylist()
        [1991, 0]
        """
        opened, scanner = self.opened, self.scanner(columns, filter, **options)
        # Only a scanner applies these, and calls back.
        names = "limit", "offset", "order_by", "fragments", "with_row_address"
        needs_scan = filter is not None or any(
            options.get(name) for name in (*names, "scan_stats_callback")
        )
        needs_scan |= options.get("limit") is not None
        if needs_scan or self._filters:
            return scanner.take(indices)
        return take_rows(opened, addresses_of_positions(opened, indices), columns)

    def take_rows(self, rows: RowsLike, columns: Columns = None) -> pa.Table:
        """Read rows by address, in the order of the addresses. Repeated addresses repeat rows.

        Parameters
        ----------
        rows : integers, shape (n,), or the table that `locate` returns
            ``fragment_id << 32 | row offset in the fragment``, with fragment ids as in the result
            of `search`. Rows of the table that hold nulls, for keys that do not exist, are left
            out.
        columns : as for `scanner`

        Raises
        ------
        InvalidArgument
            If an address refers to no row of the current files, or to a row that a Delta or Iceberg
            table has deleted.

        Examples
        --------
        >>> ds.take_rows([1 << 32 | 338, 7], ["id"])["id"].to_pylist()
        [42, 1063]
        >>> ds.take_rows(ds.locate("id", [42, -1]), ["id"])["id"].to_pylist()
        [42]
        """
        require_no_filter(self, "take_rows")
        return take_rows(self.opened, rows, columns)

    def filter(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, expression: Filter
    ) -> Dataset:
        """Return the same dataset with one more filter. Every read applies it as well as its own.

        Methods that cannot apply it, such as `lookup` and `take_rows`, raise `InvalidArgument`.

        Parameters
        ----------
        expression : str, pyarrow Expression, DNF tuples, Predicate, or a list of these
            ``now()`` in SQL is the time of each read.

        Examples
        --------
        >>> few = ds.filter("customer = 'C042'")
        >>> few.count_rows(), few.count_rows("id < 1000")
        (6, 2)
        """
        opened = self.opened
        if isinstance(expression, list) and not all(
            isinstance(e, list | tuple) for e in expression
        ):
            # Keep the parts, because SQL may contain the current time.
            opened.translate((expression,))
            return Dataset(opened, self.title, self.file_lister, (*self._filters, *expression))
        if isinstance(expression, list | tuple):
            # The lists of DNF tuples may change later, and an iterator in them yields only once.
            expression, _ = opened.translate((expression,))
        filters = self._filters if expression is None else (*self._filters, expression)
        # A Polars expression cannot be combined with other filters, so adding one refuses it here.
        opened.translate((*filters, "TRUE"))
        return Dataset(opened, self.title, self.file_lister, filters)

    def search(self, filter: Filter) -> SearchResult:
        """Return the rows that may match a filter, by the indices alone.

        Parameters
        ----------
        filter : as for `scanner`

        Returns
        -------
        SearchResult
            "AtMost" ranges: rows outside them cannot match.

        Examples
        --------
        >>> print(ds.search("id = 42 AND customer = 'C042'"))
        SearchResult: AtMost, 100 of 3,000 rows in 1 of 3 fragments
          1.parquet: 300-400
        """
        opened = self.opened
        _, predicate = opened.translate(self._all_filters(filter), is_applied=False)
        return search_result(*opened.search_filter(predicate))

    def _all_filters(self, filter: Filter) -> Sequence[Filter]:
        if filter is None and self._filters:
            return self._filters
        return (*self._filters, filter)

    # Many keys

    def search_many(self, column: str, keys: KeysLike) -> pa.RecordBatchReader:
        """Return the zones that may hold each of many keys, by the index alone.

        Parameters
        ----------
        column : str
            A column with an index.
        keys : array, series or iterable
            A million at a time is fine: an array of pyarrow or NumPy, a series of pandas or Polars,
            any object that exports one column to Arrow, or an iterable of Python values. They are
            converted exactly, nanoseconds included, or refused. Keys of another type than the
            column's are compared exactly (5.5 is in no zone of integers), or refused. For a column
            of UUIDs give ``uuid.UUID`` or text; for UUIDs stored as binary(16), ``uuid.UUID`` or
            bytes.

        Returns
        -------
        pyarrow.RecordBatchReader
            ``key_index`` int64 (position in ``keys``), ``fragment_id`` uint64, ``zone`` uint32
            (number of the zone in its fragment; null for a whole fragment that the index does not
            cover). Each pair occurs once, in no particular order; ``read_all`` returns a table.
            Null keys are in no zone. NaN keys may be in every zone.

        Raises
        ------
        InvalidArgument
            If the keys are not a list, have no common type that holds them exactly, or have a type
            that cannot be compared with the column's.

        Examples
        --------
        >>> ds.search_many("id", [42, -1]).read_all().to_pylist()
        [{'key_index': 0, 'fragment_id': 1, 'zone': 3}]
        """
        from zonebloom.index.key_search import CANDIDATE_SCHEMA

        require_no_filter(self, "search_many")
        batches = self.opened.search_many(column, keys)
        return pa.RecordBatchReader.from_batches(CANDIDATE_SCHEMA, GuardedIterator(batches))

    def lookup(
        self,
        column: str | Sequence[str],
        keys: KeysLike | KeyTableLike,
        columns: Sequence[str] | None = None,
        *,
        nulls: bool = False,
    ) -> pa.Table:
        """Read the rows that hold one of the given keys.

        Parameters
        ----------
        column : str or sequence of str
            A column that is or could be indexed, or several that must all be equal. Without an
            index the whole column is read. A column that the paths hold chooses files by them.
        keys : array, series or iterable; a table, dictionary or list of tuples for several columns
            One or millions, as in `search_many` and `locate`.
        columns : list of str, optional
            All columns by default.
        nulls : bool
            Whether null keys match rows where the column is null; by default they match nothing.

        Returns
        -------
        pyarrow.Table
            ``key_index`` int64 (position in ``keys``) and the columns, in scan order. A row is
            repeated for each position of its key. NaN equals nothing.

        Raises
        ------
        UnsupportedType, FragmentUnreadable

        Examples
        --------
        >>> ds.lookup("id", [42, -1, 7], ["customer"]).to_pylist()
        [{'key_index': 2, 'customer': 'C007'}, {'key_index': 0, 'customer': 'C042'}]
        """
        if self._filters:
            require_no_filter(self, "lookup")
        return look_up(self.opened, column, keys, columns, nulls=nulls)

    def locate(
        self,
        columns: str | Sequence[str],
        keys: KeysLike | KeyTableLike,
        *,
        filter: Filter = None,
    ) -> pa.Table:
        """Return the file and row of each given key, or nulls for a key that does not exist.

        Parameters
        ----------
        columns : str or list of str
            A column that is or could be indexed, or several that must all be equal. Partition
            columns (``day=2024-05-01`` in the path) may be among several: then a key is searched
            only in the files of its partition.
        keys : array, series or iterable; a table, dictionary or list of tuples for several columns
            One or millions, as in `lookup`.
        filter : as for `scanner`, optional
            The rows must match it, too. It is applied to the rows that hold a key.

        Returns
        -------
        pyarrow.Table
            ``key_index`` int64 (position in ``keys``), ``fragment_id`` uint64, ``path`` dictionary
            of string (as in `files`) and ``row`` int64 (number of the row in its file). ``_file``
            and ``_pos`` are the same path and row under Iceberg's names. If there are partitions,
            ``_partition`` is a struct of the values that the path or the table gives to all rows
            of the file, null where it gives none. The table is in the order of the keys. It has
            one row for each row of the dataset that equals the key, in scan order, or one row of
            nulls if there is none. Null and NaN equal nothing.

        Raises
        ------
        ColumnNotFound, UnsupportedType, InvalidArgument, FilterError, FragmentUnreadable
        FragmentChanged
            If a file was rewritten during the call; call again.

        Examples
        --------
        >>> places = ds.locate("id", [42, -1])
        >>> places.select(["key_index", "fragment_id", "row"]).to_pylist()
        [{'key_index': 0, 'fragment_id': 1, 'row': 338}, {'key_index': 1, 'fragment_id': None, ...}]
        >>> ds.locate("id", [42], filter="customer = 'C007'")["row"].to_pylist()
        [None]
        """
        return key_locations(self.opened, columns, keys, self._all_filters(filter)).by_key()

    def files_with_keys(
        self,
        columns: str | Sequence[str],
        keys: KeysLike | KeyTableLike,
        *,
        filter: Filter = None,
    ) -> pa.Table:
        """Return the files that contain rows with the given keys, for example to erase them.

        Parameters
        ----------
        columns, keys, filter
            As in `locate`, which also raises the same errors.

        Returns
        -------
        pyarrow.Table
            A row for each file that contains a key, in scan order: ``path`` string,
            ``fragment_id`` uint64, ``num_keys`` int64 (distinct keys), ``num_rows`` int64 (rows
            with one of them), ``_file`` and ``_partition`` (as in `locate`).

        Examples
        --------
        >>> files = ds.files_with_keys("id", [42, 45, -1])
        >>> files.select(["fragment_id", "num_keys", "num_rows"]).to_pylist()
        [{'fragment_id': 1, 'num_keys': 2, 'num_rows': 2}]
        """
        return key_locations(self.opened, columns, keys, self._all_filters(filter)).by_file()

    # Changes

    def erase(
        self,
        columns: str | Sequence[str] | None = None,
        keys: KeysLike | KeyTableLike | None = None,
        *,
        filter: Filter = None,
        plan: bool = False,
        commit_properties: Mapping[str, str] | None = None,
        progress: ProgressOption = None,
    ) -> Receipt:
        """Delete the rows that hold some keys, and prove it.

        Only the files that hold a key are read and written again, and then the indices are
        refreshed. A Delta or Iceberg table changes in one commit, and a folder of Parquet files one
        file after another: after an interruption, call again.

        Parameters
        ----------
        columns, keys
            As in `locate`, but null and NaN are refused: no row equals them. Rows with a null are
            deleted by ``filter="id IS NULL"``.
        filter : as for `scanner`, optional
            Instead of columns and keys, the rows to delete.
        plan : bool
            Whether only to say what would happen. Nothing is changed then.
        commit_properties : mapping of str to str, optional
            Written to the commit of a Delta table, or to the summary of an Iceberg snapshot.
        progress : bool or callable, optional
            As in `create_scalar_index`.

        Returns
        -------
        Receipt
            With the proof, and with what still holds the rows: older versions, files, filters.

        Raises
        ------
        InvalidArgument, ColumnNotFound, FilterError
            Before anything is written.
        ChangeRefused
            If the table does not allow the change. Nothing was written.
        ChangeConflict
            If other writers came first five times. Nothing was changed.

        Examples
        --------
        >>> receipt = ds.erase("id", [42, 4242])
        >>> receipt.num_deleted, receipt.verification.is_proven
        (1, True)
        >>> ds.count_rows("id = 42")
        0
        """
        from zonebloom.facade.changing import erase

        require_no_filter(self, "erase")
        return erase(
            self,
            columns,
            keys,
            filter,
            plan=plan,
            commit_properties=commit_properties,
            progress=progress,
        )

    def upsert(
        self,
        rows: Any,
        on: str | Sequence[str],
        *,
        when_matched: Literal["update", "ignore"] = "update",
        when_not_matched: Literal["insert", "ignore"] = "insert",
        columns: Sequence[str] | None = None,
        plan: bool = False,
        commit_properties: Mapping[str, str] | None = None,
        progress: ProgressOption = None,
    ) -> Receipt:
        """Update the rows whose keys exist, insert the others, and prove it.

        Parameters
        ----------
        rows : pyarrow Table or RecordBatchReader, or a frame of Polars or pandas
            Columns of the dataset, in types that hold the same values. Columns that are left out
            keep their values in updated rows, and are null in inserted ones. The rows of a reader
            may be more than fit into memory.
        on : str or list of str
            The columns that are the key. No key may be null, NaN, or occur twice in the rows. If
            the dataset has several rows with a key, all are updated.
        when_matched : {"update", "ignore"}
            What to do with rows whose key exists.
        when_not_matched : {"insert", "ignore"}
            What to do with rows whose key is new.
        columns : list of str, optional
            The columns to update; all columns of the rows by default.
        plan, commit_properties, progress
            As in `erase`, which also raises the same errors.

        Examples
        --------
        >>> rows = pa.table({"id": [42, 5000], "customer": ["C999", "C999"]})
        >>> receipt = ds.upsert(rows, on="id")
        >>> receipt.num_updated, receipt.num_inserted, receipt.verification.is_proven
        (1, 1, True)
        >>> ds.to_table(filter="id IN (42, 5000)")["day"].to_pylist()
        [datetime.date(2024, 5, 2), None]
        """
        from zonebloom.facade.changing import upsert

        require_no_filter(self, "upsert")
        return upsert(
            self,
            rows,
            on,
            when_matched,
            when_not_matched,
            columns,
            plan=plan,
            commit_properties=commit_properties,
            progress=progress,
        )

    def _check_receipt(self, receipt: Receipt, keys: Any, filter: Filter, *, purge: bool) -> Traces:
        """Look what still holds the keys of a receipt; see `Receipt.check`."""
        from zonebloom.changes.traces import check_receipt
        from zonebloom.facade.changing import changeable_table

        return check_receipt(receipt, self, changeable_table(self), keys, filter, purge=purge)

    # Indices

    def create_scalar_index(
        self,
        column: str | tuple[str, ...] | Sequence[str | tuple[str, ...]],
        index_type: str = DEFAULT_KIND,
        name: str | None = None,
        *,
        replace: bool = True,
        number_of_items: int | None = None,
        probability: float | None = None,
        fold: bool | None = None,
        global_filter: bool = False,
        plaintext: bool = False,
        train: bool = True,
        tokens: Literal["words", "trigrams"] | None = None,
        lower: bool = False,
        spark: SparkSession | Literal[False] | None = None,
        progress: ProgressOption = None,
    ) -> None:
        """Index a column: store for each zone of rows which values it may hold.

        By default, the index has one split-block Bloom filter for each zone. This method first
        lists the files again, as `refresh` does.

        Parameters
        ----------
        column : str, tuple of str, or list of these
            A column, or a leaf of a struct as "a.b". A tuple is one index of several columns
            together. "tags[]" are the elements of a list, "events[].id" a field of the structs in
            it, and "attrs[]" the entries of a map. Each item of a list gets its own index, and one
            commit adds them all.
        index_type : str
            The name of a kind of index in any case. "BLOOMFILTER" has a Bloom filter for each
            zone. "HASH" goes from the hash of a key to its zones; it takes ``number_of_items``
            (1024) and ``probability`` (0.004). "ZONEMAP" has the least and the greatest value of
            each zone, also answers ranges, and takes ``number_of_items``. `Dataset.advise` says
            which is better.
        name : str, optional
            ``<column>_idx`` by default; ``<column>_words_idx`` and the like for an index of tokens,
            and ``<column>_zonemap_idx`` and the like beside an index that answers other questions,
            or that is of other columns.
        replace : bool
            Whether to replace an existing index of that name.
        number_of_items : int, optional
            Number of rows in a zone; 8192 by default. The filter of a zone is sized for as many
            distinct values.
        probability : float, optional
            Target false positive probability of a zone, between 0 and 1; 0.00057 by default.
        fold : bool, optional
            Whether to halve filters with few distinct values as often as the probability allows;
            True by default. False keeps all filters as large as Lance's.
        global_filter : bool
            Whether to build a filter over all keys of the column as well, for joins. Its false
            positive probability is 0.001, or 0.01 if it would be larger than 128 MiB.
        plaintext : bool
            Whether to build an unencrypted index over encrypted files. By default this is refused,
            because filters reveal which keys exist, and bounds are stored as they are.
        train : bool
            False creates an index that covers no file yet. `optimize.optimize_indices` or a
            refresh on Spark indexes the files later, and until then all of them are read.
        tokens : {"words", "trigrams"}, optional
            Index the words of each string, or all of its pieces of three bytes, for conditions
            such as ``contains_token(message, 'error')`` or ``message LIKE '%timeout%'``.
        lower : bool
            Whether tokens are without regard to case. Such an index also answers ILIKE.
        spark : SparkSession or False, optional
            The Spark session to build in, or False for threads of this process. By default the
            active session is used if there is one and at least a gigabyte of data to read.
        progress : bool or callable, optional
            True for a progress bar, or a function that gets the rows done and the rows in total.

        Raises
        ------
        InvalidArgument, ColumnNotFound, UnsupportedType
            Before anything is read.
        IndexExists
            If replace=False, both default names are of indices of other columns, or the index
            belongs to another dataset that shares the index_dir.
        FragmentUnreadable, SchemaMismatch
            While the files are read. The build then leaves no index behind.

        Examples
        --------
        >>> ds.create_scalar_index(["id", "day"], number_of_items=100)
        >>> ds.create_scalar_index("customer", name="for_joins", global_filter=True)
        >>> [index.name for index in ds.describe_indices()]
        ['customer_idx', 'id_idx', 'day_idx', 'for_joins']
        """
        from zonebloom.building.request import IndexRequest

        request = IndexRequest(
            column=column,
            index_type=index_type,
            name=name,
            replace=replace,
            number_of_items=number_of_items,
            probability=probability,
            fold=fold,
            global_filter=global_filter,
            plaintext=plaintext,
            train=train,
            tokens=tokens,
            lower=lower,
        )
        require_progress(progress)
        self.refresh()
        self.opened.warn_if_first_index_is_inside()
        self.opened = _indices().build(self.opened, request, spark=spark, progress=progress)

    def advise(
        self,
        columns: str | Sequence[str] | None = None,
        *,
        number_of_items: int = DEFAULT_NUMBER_OF_ITEMS,
    ) -> Advices:
        """Return which columns are worth an index, and of which kind, as `Advices`.

        The answer is judged from a sample of zones, and has the calls that build the indices.

        Parameters
        ----------
        columns : str or list of str, optional
            By default all columns that can be indexed, elements of lists and entries of maps.
        number_of_items : int
            Number of rows in a zone.

        Examples
        --------
        >>> advices = ds.advise(number_of_items=100)
        >>> advices.calls
        ["ds.create_scalar_index('day', 'ZONEMAP', number_of_items=100)"]
        >>> print(advices["id"])
        id: id_idx (BLOOMFILTER) exists; a lookup reads 1.0 of 30 zones
        """
        from zonebloom.advise.advise import advise

        return advise(self.opened, columns, number_of_items=number_of_items)

    def describe_indices(self) -> DisplayedList[IndexDescription]:
        """Return a description of each index, and how many of the current files it covers.

        >>> print(ds.describe_indices())
        index         column    zones   rows  files covered  size
        id_idx        id           30  3,000  3 of 3         10.0 kB
        customer_idx  customer     30  3,000  3 of 3         10.0 kB
        >>> ds.describe_indices()[0].num_rows_indexed
        3000
        """
        return _indices().describe_opened(self.opened)

    def index_statistics(self, name: str) -> DisplayedDict:
        """Return parameters, coverage and size of an index, and statistics that its kind has.

        Sizes are in bytes. For a "BLOOMFILTER" index, this method reads all filters, and also
        returns ``filter_bytes``, ``fill_mean`` and ``fill_max``, the shares of bits that are set,
        and ``estimated_fpp_mean`` and ``estimated_fpp_max``, which are probabilities.

        >>> figures = ds.index_statistics("id_idx")
        >>> figures["filter_bytes"], round(figures["fill_mean"], 2)
        (256, 0.33)
        """
        return _indices().statistics_of(self.opened, name)

    def embedded_filters(self) -> DisplayedList[EmbeddedDescription]:
        """Return a description of the Bloom filters inside the Parquet files, by column.

        A dataset opened with ``embedded_filters=True`` uses them for fragments that no index
        covers. This method reads the footer of every file.

        >>> options = {"id": {"ndv": 3000, "fpp": 0.01}}
        >>> pq.write_table(table, "own.parquet", bloom_filter_options=options)
        >>> print(zb.dataset("own.parquet").embedded_filters())
        filters in files  files  row groups  size
        id                    1           1  4.1 kB
        """
        from zonebloom.index.describe import describe_embedded

        opened = self.opened
        return describe_embedded(opened.embedded_filters, opened.look().fragments)

    def key_ranges(self, column: str) -> pa.Table:
        """Return the least and the greatest value of a column in each fragment, from its index.

        Parameters
        ----------
        column : str
            A column with an index.

        Returns
        -------
        pyarrow.Table
            A row for each existing fragment, in scan order: ``fragment_id`` uint64, ``path``
            string, ``minimum`` and ``maximum`` (in a type that Arrow can order; null if all rows
            are null or NaN), ``is_known`` bool (False where any value may occur, as in new and
            changed files), ``has_nan`` bool, ``null_count`` and ``num_rows`` int64 (null if
            unknown). Bounds may be wider than the values.

        Examples
        --------
        >>> ds.key_ranges("id").select(["fragment_id", "minimum", "maximum"]).to_pylist()[0]
        {'fragment_id': 0, 'minimum': 0, 'maximum': 2997}
        """
        opened = self.opened
        return key_ranges(opened.look(), column)

    def global_filter(self, column: str) -> GlobalFilter | None:
        """Return the filter over all keys of a column, or None if its index has none.

        A damaged filter causes an IndexNotUsedWarning, and None.

        >>> ds.create_scalar_index("id", global_filter=True)
        >>> ds.global_filter("id").sbbf.check([42, -1])
        array([ True, False])
        """
        return global_filter(self.opened.look(), column)

    def prewarm_index(self, name: str) -> None:
        """Load an index into memory, and compile or load the kernels of lookups.

        >>> ds.prewarm_index("id_idx")
        """
        opened = self.opened
        opened.index_entry(name)
        KERNELS.load()
        for table in opened.indices[name].tables():
            table.verify()

    def validate_index(self, name: str, *, sample: int | Literal["all"] = 16) -> ValidatedIndex:
        """Read a whole index, and compare it with its checksums and with rows of the files.

        This method reads some zones of the files, and looks up their values in every part of the
        index: filters, null flags, key ranges, page maps and the global filter.

        Parameters
        ----------
        name : str
        sample : int or "all"
            How many zones to read. They are spread evenly over the zones of unchanged files,
            include the first and the last, and are the same each time. "all" reads the whole
            column and leaves no doubt; 0 verifies only checksums.

        Returns
        -------
        ValidatedIndex
            An int, the number of zones. Its ``state`` is "sound", or "stale" if files that it
            covers have ``changed`` or are ``gone``. Scans read such files whole, so no row is lost.

        Raises
        ------
        CorruptIndex
            Its message names the damaged part, or the rows whose values the index lacks.
        SchemaMismatch
            If the column was dropped or has another type, so the index is not used.
        FragmentUnreadable
            If the rows cannot be read.

        Examples
        --------
        >>> ds.validate_index("id_idx", sample="all")
        <ValidatedIndex sound: 30 zones, 30 read from the files, 0 files changed, 0 gone>
        """
        return _indices().validate_opened(self.opened, name, sample)

    def index_to_lance(self, name: str, path: str) -> None:
        """Write an index as the ``bloomfilter.lance`` or ``zonemap.lance`` file of Lance.

        The file contains the fragment ids of this dataset. To add the index to a Lance dataset,
        use `zonebloom.exchange.lance.commit_to_lance`.

        Raises
        ------
        CorruptIndex
            If a segment is damaged.
        InvalidArgument
            If the index is not of the kind "BLOOMFILTER" or "ZONEMAP".

        Examples
        --------
        >>> ds.index_to_lance("id_idx", "bloomfilter.lance")
        """
        _indices().export_to_lance(self.opened, name, path)

    @property
    def optimize(self) -> DatasetOptimizer:
        """The methods that bring indices up to date, as in Lance:
        ``ds.optimize.optimize_indices()``."""
        return _indices().DatasetOptimizer(self)

    def drop_index(self, name: str) -> None:
        """Remove an index. Its segments stay on disk for older readers until `vacuum`.

        >>> ds.drop_index("id_idx")
        >>> ds
        <zonebloom.Dataset orders: 3 parquet files, 3 columns; indices: customer_idx>
        """
        opened = self.opened
        opened.index_entry(name)
        version = opened.catalog.commit(
            lambda latest: latest.with_indices(
                {key: entry for key, entry in latest.indices.items() if key != name}
            )
        )
        self.opened = opened.at_version(version)

    def vacuum(self, older_than: timedelta = RETENTION) -> Vacuumed:
        """Delete older versions of the index, and segments that only they refer to.

        Files and folders that are not part of the index, and symbolic links, are left alone; the
        result lists them.

        Parameters
        ----------
        older_than : timedelta
            Versions that were the newest at some time within this period are kept for their
            readers, and files written within it for running builds.

        Raises
        ------
        EncryptedIndex
            If the index is encrypted, and its key was not given.

        Examples
        --------
        >>> from datetime import timedelta
        >>> ds.drop_index("id_idx")
        >>> ds.vacuum(timedelta(0)).num_segments
        1
        """
        from zonebloom.catalog.vacuum import vacuum_catalog

        self.opened.require_unlocked()
        return vacuum_catalog(
            self.opened.catalog, arguments.require_instance(older_than, timedelta, "older_than")
        )

    # Other libraries

    def to_polars(self) -> pl.LazyFrame:
        """Return a Polars LazyFrame whose filters skip zones.

        It has the rows, order and types of `to_table`. Each query looks at the files and chooses
        the zones when it runs; `explain_plan` of a scanner with the same filter shows them. Without
        Polars, this method raises `MissingDependency`.

        >>> import polars as pl
        >>> ds.to_polars().filter(pl.col("customer") == "C042").select("id").collect().height
        6
        """
        from zonebloom.lazy_frame import lazy_frame

        require_no_filter(self, "to_polars")
        return lazy_frame(self)

    def unindexed(self) -> pads.Dataset:
        """Return the rows as a plain PyArrow dataset, for code that does not call our methods.

        PyArrow's own ``join``, ``join_asof`` and ``sort_by`` are such code. The result reads the
        files. It contains the rows in memory instead if this dataset has a filter, or if it is a
        Delta or Iceberg table with deleted rows or renamed columns, which PyArrow alone would read
        wrongly.

        >>> ds.unindexed().count_rows()
        3000
        """
        opened = self.opened
        source = opened.source
        if self._filters or source.has_views:
            return pads.InMemoryDataset(self.to_table())
        # Missing files are left out with a warning, or raise an error, as in a scan.
        files = opened.look_at_all_files().fragments
        return source.scan_whole([(file.fragment, None) for file in files], source.filesystem)

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[Any]:
        """Return all fragments, or only those that may contain a match of a filter.

        Give the same filter to the scanners of these fragments: then they skip zones. Engines such
        as DataFusion read a dataset in this way.

        >>> import pyarrow.compute as pc
        >>> len(list(ds.get_fragments())), len(list(ds.get_fragments(pc.field("id") == 42)))
        (3, 1)
        """
        if self._filters:
            raise InvalidArgument(
                "fragments contain rows that the dataset's own filter leaves out; give the filter "
                "to get_fragments and to the fragments' scanners instead"
            )
        if filter is None and not self.opened.source.has_views:
            return self.unindexed().get_fragments()
        from zonebloom.facade.fragments import CandidateFragment

        # A refresh must not change the files while the caller iterates.
        opened = self.opened
        plan = plan_scan(opened, None, [filter]).plan()
        return (
            CandidateFragment(
                opened,
                filter,
                replace_fields(plan, fragments=(part,), paths=frozenset({part.fragment.path})),
            )
            for part in plan.fragments
        )

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return all rows as an Arrow stream, for libraries that take such streams."""
        return self.scanner().__arrow_c_stream__(requested_schema)

    # Displays

    def __str__(self) -> str:
        from zonebloom.index.describe import NO_INDEX

        lines = [str(index) for index in self.describe_indices()] or [NO_INDEX]
        return "\n".join([f"<{self._title()}>", *(f"  {line}" for line in lines)])

    def __repr__(self) -> str:
        names = ", ".join(self.opened.version.indices)
        return f"<{self._title()}; {f'indices: {names}' if names else 'no index'}>"

    def _title(self) -> str:
        count = len(self.opened.source.fragments)
        # SQL binds AND more tightly than OR, so several filters need parentheses.
        texts = [f"({part})" if len(self._filters) > 1 else str(part) for part in self._filters]
        filters = " where " + " AND ".join(texts) if texts else ""
        return (
            f"zonebloom.Dataset {self.title}: {count:,} "
            f"{self.opened.source.format.default_extname} {'file' if count == 1 else 'files'}, "
            f"{len(self.schema.names)} columns{filters}"
        )

    def _repr_html_(self) -> str:
        from zonebloom.index.describe import NO_INDEX, index_table

        descriptions = self.describe_indices()
        table = table_html(*index_table(descriptions))
        content = table if descriptions else list_html([NO_INDEX])
        return styled_html(title_html(self._title()), content)


def require_no_filter(dataset: Dataset, caller: str) -> None:
    """Raise `InvalidArgument` if the dataset has a filter that the caller would ignore."""
    if dataset._filters:  # noqa: SLF001
        raise InvalidArgument(
            f"{caller} does not apply the dataset's own filter; call it on the dataset "
            "without Dataset.filter, or use to_table"
        )


@dataclass(frozen=True, slots=True)
class PickledDataset:
    """The state of a dataset that is pickled and sent to another process."""

    # The files by name, so that the other process reads no files that were added since.
    source: Source
    index_dir: str
    encryption: Encryption | None
    # The number of the catalog version, or None if the index is encrypted and the key is missing.
    version: int | None
    embedded_filters: bool
    title: str
    file_lister: FileLister | None
    filters: tuple[Filter, ...]
    # The index files of a table in memory by path. Other processes lack its temporary folder.
    index_files: Mapping[str, bytes]

    def open(self) -> Dataset:
        if self.source.is_in_memory:
            catalog = temporary_catalog(self.index_files)
        else:
            catalog = Catalog(self.source.filesystem, self.index_dir, self.encryption)
        version = self._version(catalog)
        opened = OpenedDataset(self.source, catalog, version, self.embedded_filters)
        return Dataset(opened, self.title, self.file_lister, self.filters)

    def _version(self, catalog: Catalog) -> Version | None:
        """Return the catalog version that was pickled, or None to use the newest."""
        if self.version is None:
            return None
        if self.version == 0:
            # Number 0 means that there was no index, so the catalog has no such version.
            return Version()
        try:
            return catalog.version(self.version)
        except CatalogError as error:
            if self.source.stale == "raise":
                raise
            warn(
                IndexNotUsedWarning(
                    f"{self.title} was pickled with version {self.version} of its index, which "
                    f"cannot be read any more, so the newest is used: {error}"
                )
            )
            return None


def temporary_catalog(files: Mapping[str, bytes] = MappingProxyType({})) -> Catalog:
    """Return a catalog in a temporary folder, which is deleted together with the catalog."""
    # Lookups in files do not need these modules.
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="zonebloom-")
    catalog = Catalog(pafs.LocalFileSystem(), folder)
    weakref.finalize(catalog, shutil.rmtree, folder, ignore_errors=True)
    for name, data in files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return catalog


def _read_files(folder: str) -> dict[str, bytes]:
    """Return the contents of all files below a folder, by path relative to it."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in Path(folder).rglob("*")
        if os.path.isfile(path)
    }


def _indices():
    """Return the module for work on indices. It loads much that a process which reads does not."""
    from zonebloom.facade import indices

    return indices
