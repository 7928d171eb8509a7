"""Methods that read the rows of an opened dataset: by a filter, by address, or all."""

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
    """A dataset whose methods read rows, and skip zones that no row of a filter can be in."""

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

    def search(self, filter: Filter) -> SearchResult:
        """Return the rows that may match a filter, by the indices alone.

        Parameters
        ----------
        filter : as for `scanner`

        Returns
        -------
        SearchResult
            "AtMost" ranges: rows outside them cannot match. They contain no rows that a Delta or
            Iceberg table has deleted.

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
        """Return a scanner, which reads when one of its methods is called.

        Parameters
        ----------
        columns : list of str, or dict of name to pyarrow Expression, optional
            All columns by default.
        filter : str, pyarrow Expression, DNF tuples, polars.Expr, or Predicate, optional
        limit : int, optional
            The largest number of rows to return.
        batch_size : int
            The largest number of rows in a batch.
        use_scalar_index : bool
            False reads everything, without the index.
        scan_stats_callback : callable, optional
            A function that is called with a `ScanStats` at the end of each run.

        Notes
        -----
        An index can answer these parts of a filter. The whole filter is then applied to the rows
        that are read, by Polars if it is a Polars expression, else by PyArrow:

            a = 5, a IN (5, 6), a IS NULL, a <=> 5      yes
            p AND q                                     if it can answer p or q
            p OR q                                      if it can answer both
            NOT p                                       if it simplifies to one of these
            ranges, !=, NOT IN, IS NOT NULL, LIKE       no, except for partition columns

        Literals are compared exactly: ``a = 5.5`` on integers matches nothing, and where an engine
        would round, every zone may match. ``= NULL`` matches nothing, NaN equals nothing (except in
        a Polars expression), 0.0 equals -0.0. Lossless casts of a column do not prevent the use of
        its index. Comparing a time without a time zone to a column with one, or the reverse, is
        refused, because engines assume different zones; the message gives both spellings. Compare
        a UUID column with text or ``UUID '...'``, and UUIDs stored as binary(16) with
        ``UUID '...'`` or ``X'...'``. Names in SQL match exactly, or else without case. A chain of
        more than 4,000 OR conditions is refused, unless all are equalities of one column, which
        become a set.

        If a file is rewritten in place while it is read with an index, it is read again, or
        `FragmentChanged` is raised before its last rows are returned. Files that are read whole
        are read as PyArrow does, without this check.

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
        uses_index = arguments.require_bool(use_scalar_index, "use_scalar_index")
        callback = arguments.require_function(scan_stats_callback, "scan_stats_callback")
        opened = self.opened
        projection = opened.binding.checked_columns(columns)
        expression, predicate = opened.translate(filter)
        if not uses_index:
            predicate = None
        # A SQL text that translates to one leaf contains nothing else, so the leaf is the filter.
        is_predicate = isinstance(filter, str) and isinstance(predicate, Equals | IsIn)
        request = Request(projection, expression, limit, batch_size, predicate, is_predicate)
        names = tuple(self.schema.names if projection is None else projection)

        def plan(described: bool) -> ScanPlan:
            # Plan with the files that the dataset has when the scanner runs.
            return self.opened.planner.plan(names, expression, predicate, is_described=described)

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
        """Read rows as a table. The parameters are those of `scanner`.

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
        """Read rows as batches. The parameters are those of `scanner`.

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
        """Read the first rows. The parameters are those of `scanner`.

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
        """Count rows, up to a limit. The parameters are those of `scanner`.

        >>> ds.count_rows(), ds.count_rows("customer = 'C042' AND id < 1000")
        (3000, 2)
        """
        return self.scanner(
            None, filter, limit, batch_size, use_scalar_index, scan_stats_callback
        ).count_rows()

    def take(
        self, row_addresses: Sequence[int] | np.ndarray | pa.Array, columns: Columns = None
    ) -> pa.Table:
        """Read rows by address, in the order of the addresses. Repeated addresses repeat rows.

        Parameters
        ----------
        row_addresses : integers, shape (n,)
            ``fragment_id << 32 | row offset in the fragment``, with fragment ids as in the result
            of `search`.
        columns : as for `scanner`

        Raises
        ------
        InvalidArgument
            If an address refers to no row of the current files, or to a row that a Delta or Iceberg
            table has deleted.

        Examples
        --------
        >>> ds.take([1 << 32 | 338, 7], ["id"])["id"].to_pylist()
        [42, 1063]
        """
        request = Request(self.opened.binding.checked_columns(columns), None)
        addresses = arguments.require_integers(row_addresses, "row_addresses").astype(np.int64)
        plan, addresses_in_scan_order = self.opened.planner.plan_rows(addresses)
        rows = Scanner(self.opened.source, request, lambda described: plan).to_table()
        order = np.argsort(addresses_in_scan_order)
        positions = np.searchsorted(addresses_in_scan_order, addresses, sorter=order)
        return gather(rows, order[positions])

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return all rows as an Arrow stream, for libraries that take such streams."""
        return self.scanner().__arrow_c_stream__(requested_schema)
