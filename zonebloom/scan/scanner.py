"""The scanner of a dataset: it plans a filtered read, runs it, and returns batches.

Rows and their order are the same as in ``pyarrow.dataset``. Of indexed fragments, only pages with
candidate rows are read, and the whole filter is applied to these rows. PyArrow's scanner reads the
other fragments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base import arguments
from zonebloom.base.arrays import empty_table
from zonebloom.base.display import Displayed
from zonebloom.base.exit_guard import GuardedIterator
from zonebloom.base.pickling import ProcessBound
from zonebloom.errors import InvalidArgument
from zonebloom.predicates import Equals, IsIn, is_same_filter
from zonebloom.predicates.ast import TypeRequirement, probed_columns
from zonebloom.predicates.type_requirements import columns_of_unfitting_literals
from zonebloom.scan.binding import Binding
from zonebloom.scan.execute import Execution
from zonebloom.scan.explain import PlanText, ScanPlan, narrowed_request
from zonebloom.scan.opened import OpenedDataset
from zonebloom.scan.ordering import OrderBy, checked_sort_keys, require_sortable, sorted_batches
from zonebloom.scan.plan import (
    ADDRESS_FIELD,
    DEFAULT_BATCH_ROWS,
    MAX_BATCH_ROWS,
    Request,
    ScanStats,
)
from zonebloom.scan.recheck import Columns, filter_text, gather, is_key_test
from zonebloom.storage.files import ReadCounter

# Paths of files, or fragments that have a path.
FragmentsLike: TypeAlias = "Iterable[Any] | str | None"


class Scanner(ProcessBound, Displayed):
    """A filtered read of a dataset, made by `Dataset.scanner`. Each run makes a new plan."""

    def __init__(
        self,
        opened: OpenedDataset,
        request: Request,
        planned: ScanPlan | None = None,
        stats_callback: Callable[[ScanStats], Any] | None = None,
    ):
        self._opened = opened
        self._source = opened.source
        self._request = request
        # None if each run makes a plan.
        self._planned = planned
        self._stats_callback = stats_callback
        self._projected_schema: pa.Schema | None = None

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of the batches."""
        schema = self.schema_read
        if self._request.num_hidden_columns:
            visible = list(schema)[: -self._request.num_hidden_columns]
            schema = pa.schema(visible, schema.metadata)
        return schema.append(ADDRESS_FIELD) if self._request.has_addresses else schema

    @property
    def schema_read(self) -> pa.Schema:
        """Return the schema with columns that are only sorted by, and without addresses."""
        dataset_schema, columns = self._source.schema, self._request.columns
        if columns is None:
            return dataset_schema
        if not isinstance(columns, dict):
            return pa.schema(
                [dataset_schema.field(name) for name in columns], dataset_schema.metadata
            )
        if self._projected_schema is None:
            self._projected_schema = Binding(dataset_schema).projected_schema(columns)
        return self._projected_schema

    @property
    def projected_schema(self) -> pa.Schema:
        """Return the schema of the batches, under PyArrow's name for it."""
        return self.schema

    @property
    def dataset_schema(self) -> pa.Schema:
        """Return the schema of the dataset, with all columns."""
        return self._source.schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Read the matching rows as an iterator of batches, without empty ones.

        >>> [batch.num_rows for batch in ds.scanner(["id"], "id < 100").to_batches()]
        [34, 33, 33]
        """
        return self._run(ScanStats())

    def to_reader(self) -> pa.RecordBatchReader:
        """Read the matching rows as a stream for other Arrow libraries.

        >>> ds.scanner(["id"], "id < 100").to_reader().read_all().num_rows
        100
        """
        return pa.RecordBatchReader.from_batches(self.schema, GuardedIterator(self.to_batches()))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_table(self) -> pa.Table:
        """Read all matching rows.

        >>> ds.scanner(["id"], "id = 42").to_table().to_pylist()
        [{'id': 42}]
        """
        return pa.Table.from_batches(self.to_batches(), schema=self.schema)

    def head(self, num_rows: int) -> pa.Table:
        """Read the first matching rows.

        Raises
        ------
        InvalidArgument

        Examples
        --------
        >>> ds.scanner(["id"], "customer = 'C042'").head(1).to_pylist()
        [{'id': 2042}]
        """
        limit = arguments.require_integer(num_rows, "num_rows")
        if self._request.limit is not None:
            limit = min(limit, self._request.limit)
        return self._with_request(limit=limit).to_table()

    def take(self, indices: Any) -> pa.Table:
        """Read the matching rows at some positions, in the order of the positions.

        >>> ds.scanner(["id"], "customer = 'C042'").take([1, 0])["id"].to_pylist()
        [2542, 2042]
        """
        rows = self.to_table()
        positions = arguments.require_integers(indices, "indices", rows.num_rows - 1)
        return gather(rows, positions.astype(np.int64))

    def count_rows(self) -> int:
        """Count the matching rows. Only the columns of the filter are read.

        >>> ds.scanner(filter="customer = 'C042'").count_rows()
        6
        """
        stats = ScanStats()
        counted = self._with_request(
            columns=[], sort_keys=(), num_hidden_columns=0, has_addresses=False
        )
        for _ in counted._run(stats):
            pass
        return stats.rows_found

    def _with_request(self, **changes: Any) -> Scanner:
        request = replace(self._request, **changes)
        return Scanner(self._opened, request, self._planned, self._stats_callback)

    def plan(self) -> ScanPlan:
        """Return the plan of a run without running it. `explain_plan` shows it as text.

        >>> plan = ds.scanner(filter="id = 42").plan()
        >>> plan.skipped, plan.num_fragments, plan.indices[0].kept_zones
        (2, 3, 1)
        """
        return self._plan(is_described=True)

    def planned(self, plan: ScanPlan) -> Scanner:
        """Return a scanner of the same read that uses a plan made before.

        The plan must be that of a scan of the same opened files, with the same filter or none, and
        the same ``fragments``.

        Raises
        ------
        InvalidArgument
            If the plan was made for other files or another filter.

        Examples
        --------
        >>> scan = ds.scanner(filter="id = 42")
        >>> scan.planned(scan.plan()).count_rows()
        1
        """
        plan = arguments.require_instance(plan, ScanPlan, "plan")
        if plan.source is not self._source:
            raise InvalidArgument(
                "the plan was made for another dataset, or before its files were listed again, so "
                "it may leave out rows; plan this scan again"
            )
        if plan.paths != self._request.paths:
            raise InvalidArgument(
                "the plan was made for other files of the dataset; give a plan of a scan with the "
                "same fragments="
            )
        # A plan without a filter reads all rows.
        if plan.filter is not None and not is_same_filter(plan.filter, self._request.filter):
            raise InvalidArgument(
                f"the plan was made for rows where {filter_text(plan.filter)}, which may leave out "
                "rows of this scan; give a plan of a scan with the same filter"
            )
        return Scanner(self._opened, self._request, plan, self._stats_callback)

    def _plan(self, *, is_described: bool) -> ScanPlan:
        if self._planned is not None:
            return self._planned
        request = self._request
        names = tuple(self._source.schema.names if request.columns is None else request.columns)
        if request.num_hidden_columns:
            names = names[: -request.num_hidden_columns]
        plan = self._opened.plan(
            names, request.filter, request.predicate, is_described=is_described
        )
        if request.paths is None:
            return plan
        chosen = tuple(part for part in plan.fragments if part.fragment.path in request.paths)
        return replace(plan, fragments=chosen, paths=request.paths)

    def explain_plan(self) -> PlanText:
        """Return a text of what a run would read, and why. Jupyter shows it as HTML.

        >>> print(ds.scanner(filter="id = 42").explain_plan())
        ZoneBloomScan: id = 42
          columns: id, customer, day
          index id_idx on id: 1 of 30 zones kept, 3 of 3 fragments covered, 10.0 kB
          fragments: 1 read in part, 0 read whole, 2 skipped
            1.parquet: rows 300-400
        """
        return PlanText(self._plan(is_described=True))

    def analyze_plan(self) -> PlanText:
        """Run the scan and return a text of the plan and of what was read. Jupyter shows HTML.

        >>> ran = ds.scanner(filter="id = 42").analyze_plan()
        >>> print(ran)
        ZoneBloomScan: id = 42
          columns: ...
          rows found: 1
          data read: ... reads, 1 fragment opened
          index read: ...
          time: ... ms
        >>> ran.stats.rows_read
        100
        """
        started = time.perf_counter()
        plan = self._plan(is_described=True)
        stats = ScanStats()
        for _ in self._run(stats, plan):
            pass
        stats.seconds = time.perf_counter() - started
        return PlanText(plan, stats, self._page_size_line(plan))

    def _page_size_line(self, plan: ScanPlan) -> str:
        """Return a line about the pages in which a plan searches rows, or ""."""
        # A lookup does not need this module, so load it only here.
        from zonebloom.scan.explain import page_size_line

        request = self._request
        if request.limit is not None or request.predicate is None:
            # A scan with a limit may stop before it reads all of them.
            return ""
        parts = [
            (part.pages, part.rows)
            for part in plan.fragments
            if part.pages is not None and part.rows
        ]
        return page_size_line(parts, probed_columns(request.predicate))

    def __str__(self) -> str:
        request, columns = self._request, self._request.columns
        names = "all columns" if columns is None else ", ".join(self.schema.names)
        filter = "" if request.filter is None else f" where {request.predicate or request.filter}"
        limit = "" if request.limit is None else f", at most {request.limit:,} rows"
        if request.offset:
            limit = f", without the first {request.offset:,} rows{limit}"
        if request.sort_keys:
            limit = f", by {', '.join(key.column for key in request.sort_keys)}{limit}"
        advice = "explain_plan() says what it reads, to_table() reads it"
        return f"zonebloom.Scanner: {names}{filter}{limit}\n  {advice}"

    def _cast_to_schema(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of computed columns in the schema that is read."""
        schema = self.schema_read
        if self._request.has_addresses:
            schema = schema.append(ADDRESS_FIELD)
        if batch.schema.equals(schema):
            return batch
        columns = [
            values if values.type == field.type else values.cast(field.type)
            for values, field in zip(batch.columns, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _arranged(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows of batches in their order, with the columns of the result."""
        request = self._request
        if isinstance(request.columns, dict):
            batches = map(self._cast_to_schema, batches)
        if not request.sort_keys:
            return iter(batches)
        schema = self.schema_read
        num_columns = len(schema) - request.num_hidden_columns
        visible = list(range(num_columns))
        if request.has_addresses:
            visible.append(len(schema))
            schema = schema.append(ADDRESS_FIELD)
        max_rows = None if request.limit is None else request.offset + request.limit
        ordered = sorted_batches(batches, schema, request.sort_keys, max_rows, request.batch_size)
        if not request.num_hidden_columns:
            return ordered
        return (batch.select(visible) for batch in ordered)

    def _run(self, stats: ScanStats, plan: ScanPlan | None = None) -> Iterator[pa.RecordBatch]:
        started = time.perf_counter()
        counting = plan is not None or self._stats_callback is not None
        num_rows_left = self._request.limit
        num_rows_to_skip = self._request.offset
        wants_rows = num_rows_left != 0
        if plan is None:
            plan = (
                self._plan(is_described=counting) if wants_rows else ScanPlan(None, None, (), (), 0)
            )
        stats.index_bytes = plan.index_bytes
        counter = ReadCounter() if counting else None
        row_filter = self._request.filter
        batches: Iterable[pa.RecordBatch] = ()
        if plan.fragments and wants_rows:
            request = narrowed_request(plan, self._request, self._source.schema)
            execution = Execution(self._source, request, counter, stats)
            if request.has_addresses:
                batches = execution.batches_with_addresses(plan.fragments)
            else:
                batches = execution.batches(plan.fragments)
            batches = self._arranged(batches)
        elif row_filter is not None and not isinstance(row_filter, pc.Expression):
            # Refuse an invalid filter even if no rows are read. PyArrow's were checked before.
            _ = row_filter.matching_rows(empty_table(self._source.schema))
        try:
            for batch in batches:
                if num_rows_to_skip:
                    num_skipped = min(num_rows_to_skip, batch.num_rows)
                    num_rows_to_skip -= num_skipped
                    batch = batch.slice(num_skipped)
                if num_rows_left is not None:
                    batch = batch.slice(0, num_rows_left)
                    num_rows_left -= batch.num_rows
                stats.rows_found += batch.num_rows
                if batch.num_rows:
                    yield batch
                if num_rows_left == 0:
                    break
        finally:
            if counter is not None:
                stats.data_bytes = plan.data_bytes + counter.num_bytes
                stats.data_reads = plan.data_reads + counter.num_requests
            stats.seconds = time.perf_counter() - started
            if self._stats_callback is not None:
                self._stats_callback(stats)


def plan_scan(
    opened: OpenedDataset,
    columns: Columns,
    filters: Sequence[Any],
    *,
    limit: int | None = None,
    batch_size: int = DEFAULT_BATCH_ROWS,
    use_scalar_index: bool = True,
    scan_stats_callback: Callable[[ScanStats], Any] | None = None,
    offset: int | None = None,
    order_by: OrderBy = None,
    fragments: FragmentsLike = None,
    with_row_address: bool = False,
) -> Scanner:
    """Return a scanner of the rows that match all filters; see `Dataset.scanner`."""
    if limit is not None:
        limit = arguments.require_integer(limit, "limit")
    batch_size = arguments.require_integer(batch_size, "batch_size", 1, MAX_BATCH_ROWS)
    uses_index = arguments.require_bool(use_scalar_index, "use_scalar_index")
    callback = arguments.require_function(scan_stats_callback, "scan_stats_callback")
    offset = 0 if offset is None else arguments.require_integer(offset, "offset")
    has_addresses = arguments.require_bool(with_row_address, "with_row_address")
    if has_addresses and ADDRESS_FIELD.name in opened.source.schema.names:
        raise InvalidArgument(
            f"the dataset has a column {ADDRESS_FIELD.name!r}; leave out with_row_address"
        )
    sort_keys = () if order_by is None else checked_sort_keys(order_by)
    paths = None if fragments is None else _checked_paths(fragments, opened)
    projection = opened.binding.checked_columns(columns)
    num_hidden_columns = 0
    if sort_keys:
        projection, num_hidden_columns = opened.binding.with_columns(
            projection, [key.column for key in sort_keys]
        )
    expression, bound = opened.translate(filters)
    predicate = bound
    if not uses_index:
        # A condition that is simplified by the types of the dataset needs files of these types.
        unfitting = columns_of_unfitting_literals(predicate, opened.source.schema)
        predicate = TypeRequirement(True, frozenset(unfitting)) if unfitting else None
    is_predicate_exact = False
    if len(filters) == 1 and isinstance(filters[0], str):
        # If a SQL text translates to a single equality or IN, this predicate is the whole filter.
        is_predicate_exact = isinstance(predicate, Equals | IsIn)
    elif len(filters) == 1 and predicate is not None:
        is_predicate_exact = is_key_test(expression, predicate, opened.source.schema)
    request = Request(
        projection,
        expression,
        limit,
        batch_size,
        predicate,
        is_predicate_exact,
        bound=bound,
        offset=offset,
        sort_keys=sort_keys,
        num_hidden_columns=num_hidden_columns,
        has_addresses=has_addresses,
        paths=paths,
    )
    scanner = Scanner(opened, request, stats_callback=callback)
    if sort_keys:
        require_sortable(sort_keys, scanner.schema_read)
    return scanner


def _checked_paths(fragments: Iterable[Any] | str, opened: OpenedDataset) -> frozenset[str]:
    """Return the paths of some fragments. Raise `InvalidArgument` if one is not in the dataset."""
    advice = "give members of files, or of get_fragments()"
    if not isinstance(fragments, Iterable):
        raise arguments.invalid_value(fragments, "fragments", advice)
    known = {fragment.path for fragment in opened.source.fragments}
    paths: list[str] = []
    for fragment in [fragments] if isinstance(fragments, str) else fragments:
        path = fragment if isinstance(fragment, str) else getattr(fragment, "path", None)
        if path not in known:
            raise arguments.invalid_value(fragment, "fragments", advice)
        paths.append(path)
    return frozenset(paths)
