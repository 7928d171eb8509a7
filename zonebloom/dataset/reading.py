"""Reading an opened dataset: its rows by a filter, by address, or all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base import arguments
from zonebloom.base.row_ranges import SearchResult
from zonebloom.errors import without_secrets
from zonebloom.opened import OpenedDataset
from zonebloom.predicates import Equals, IsIn, Predicate
from zonebloom.scan.explain import ScanPlan
from zonebloom.scan.plan import DEFAULT_BATCH_ROWS, MAX_BATCH_ROWS, Request, ScanStats
from zonebloom.scan.recheck import Columns, gather
from zonebloom.scan.scanner import Scanner

if TYPE_CHECKING:
    import polars as pl


Filter: TypeAlias = "str | pc.Expression | Sequence[Any] | pl.Expr | Predicate | None"


class ReadableDataset:
    """Files as they are open, read where a filter's rows may be."""

    title: str
    opened: OpenedDataset

    def __init__(self, opened: OpenedDataset, title: str | None = None):
        self.title = without_secrets(title or opened.source.root)
        self.opened = opened

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

        Examples
        --------
        >>> print(ds.search("id = 42 AND customer = 'C042'"))
        SearchResult: AtMost, 100 of 3,000 rows in 1 of 3 fragments
          1.parquet: 300-400
        """
        _, predicate = self.opened.translate(filter, is_applied=False)
        return self.opened.planner.search(predicate)

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

        Notes
        -----
        What an index answers of a filter; the whole filter is applied to the rows that are read,
        by Polars if it is a Polars expression, else by PyArrow:

            a = 5, a IN (5, 6), a IS NULL, a <=> 5      yes
            p AND q                                     if p or q is; zones that both keep
            p OR q                                      if both are
            NOT p                                       where it comes to one of these
            ranges, !=, NOT IN, IS NOT NULL, LIKE       no, but for columns given by paths

        A literal is compared exactly: ``a = 5.5`` on integers matches nothing, and where an engine
        would round, every zone may match. ``= NULL`` matches nothing, NaN equals nothing (but NaN
        in a Polars expression), 0.0 equals -0.0. Casts that lose nothing are looked through. A
        time without a zone is refused beside a column with one, and the other way round, for
        engines differ in the zone they take; the message gives both spellings. A UUID is compared
        with its text or ``UUID '...'``, its bytes in binary(16) with ``UUID '...'`` or ``X'...'``.
        Names in SQL match exactly, then without case. A chain of OR of more than 4,000 conditions
        is refused, unless all are equalities of one column, which are taken as a set.

        A file that is written in place while an index is used on it is read again, or raises
        `FragmentChanged` before its last rows come out. Files that are read whole are read as
        PyArrow does, without this check.

        Examples
        --------
        >>> scan = ds.scanner(["day"], "id = 42")
        >>> scan.to_table().to_pylist()
        [{'day': datetime.date(2024, 5, 2)}]
        >>> import pyarrow.compute as pc
        >>> ds.scanner({"next": pc.field("id") + 1}, pc.field("id") == 42).to_table().to_pylist()
        [{'next': 43}]
        >>> runs = []
        >>> ds.scanner(filter="id = 42", scan_stats_callback=runs.append).count_rows()
        1
        >>> runs[0].rows_read
        100
        """
        if limit is not None:
            limit = arguments.require_integer(limit, "limit")
        batch_size = arguments.require_integer(batch_size, "batch_size", 1, MAX_BATCH_ROWS)
        asks_index = arguments.require_bool(use_scalar_index, "use_scalar_index")
        callback = arguments.require_function(scan_stats_callback, "scan_stats_callback")
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
            return self.opened.planner.plan(names, expression, asked, is_described=described)

        return Scanner(opened.source, request, plan, callback)

    def to_table(
        self,
        columns: Columns = None,
        filter: Filter = None,
        *,
        limit: int | None = None,
        batch_size: int = DEFAULT_BATCH_ROWS,
        use_scalar_index: bool = True,
        scan_stats_callback: Callable[[ScanStats], Any] | None = None,
    ) -> pa.Table:
        """Read as a table; the parameters are those of `scanner`.

        >>> ds.to_table(["id", "day"], "id IN (42, 43)").to_pylist()
        [{'id': 42, 'day': ...2024, 5, 2)}, {'id': 43, 'day': ...2024, 5, 3)}]
        >>> ds.to_table(filter=[("customer", "=", "C042")], limit=2).num_rows
        2
        """
        return self.scanner(
            columns, filter, limit, batch_size, use_scalar_index, scan_stats_callback
        ).to_table()

    def to_batches(
        self,
        columns: Columns = None,
        filter: Filter = None,
        *,
        limit: int | None = None,
        batch_size: int = DEFAULT_BATCH_ROWS,
        use_scalar_index: bool = True,
        scan_stats_callback: Callable[[ScanStats], Any] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Read as batches; the parameters are those of `scanner`.

        >>> [batch.num_rows for batch in ds.to_batches(["id"], "id < 100")]
        [34, 33, 33]
        """
        return self.scanner(
            columns, filter, limit, batch_size, use_scalar_index, scan_stats_callback
        ).to_batches()

    def head(
        self,
        num_rows: int,
        filter: Filter = None,
        *,
        columns: Columns = None,
        batch_size: int = DEFAULT_BATCH_ROWS,
        use_scalar_index: bool = True,
        scan_stats_callback: Callable[[ScanStats], Any] | None = None,
    ) -> pa.Table:
        """Read the first rows; the parameters are those of `scanner`.

        >>> ds.head(2, "customer = 'C042'")["id"].to_pylist()
        [2042, 2542]
        """
        return self.scanner(
            columns, filter, None, batch_size, use_scalar_index, scan_stats_callback
        ).head(num_rows)

    def count_rows(
        self,
        filter: Filter = None,
        *,
        limit: int | None = None,
        batch_size: int = DEFAULT_BATCH_ROWS,
        use_scalar_index: bool = True,
        scan_stats_callback: Callable[[ScanStats], Any] | None = None,
    ) -> int:
        """Count rows, up to a limit; the parameters are those of `scanner`.

        >>> ds.count_rows(), ds.count_rows("customer = 'C042' AND id < 1000")
        (3000, 2)
        """
        return self.scanner(
            None, filter, limit, batch_size, use_scalar_index, scan_stats_callback
        ).count_rows()

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

        Examples
        --------
        >>> ds.take([1 << 32 | 338, 7], ["id"])["id"].to_pylist()
        [42, 1063]
        """
        request = Request(self.opened.binding.checked_columns(columns), None)
        addresses = arguments.require_integers(row_addresses, "row_addresses").astype(np.int64)
        plan, read = self.opened.planner.plan_rows(addresses)
        rows = Scanner(self.opened.source, request, lambda described: plan).to_table()
        order = np.argsort(read)
        return gather(rows, order[np.searchsorted(read, addresses, sorter=order)])

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """All rows, for libraries that take Arrow streams."""
        return self.scanner().__arrow_c_stream__(requested_schema)
