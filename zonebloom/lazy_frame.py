"""The LazyFrame of a dataset: the index decides what to read, and Polars does the rest.

    query of Polars -> filter, columns, limit -> plan -> kept rows of files   -> our reader
                                                         files that are whole -> pl.scan_parquet

Polars asks for the rows when a query runs, and says which of them it needs. The plan is made then,
for the files that the dataset has at that time. Polars' own reader is faster where a file must be
read whole. Where it refuses a file, or finds other types, our reader takes over, so a LazyFrame has
the rows, order and types of `Dataset.to_table`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from zonebloom.base.arrays import empty_table
from zonebloom.errors import MissingDependency, SchemaMismatch
from zonebloom.index.key_search import FILTERED_BY_POLARS
from zonebloom.predicates import IsIn
from zonebloom.predicates.polars import (
    has_types_of_polars,
    predicate_from_polars,
    pushed_down_filter,
    to_frame,
)
from zonebloom.scan.execute import Execution
from zonebloom.scan.explain import narrowed_request
from zonebloom.scan.opened import OpenDataset, OpenedDataset
from zonebloom.scan.plan import DEFAULT_BATCH_ROWS, FragmentPlan, Request
from zonebloom.scan.recheck import is_key_test
from zonebloom.sources.column_batches import require_fitting_type
from zonebloom.sources.memory import TableSource
from zonebloom.sources.source import Source

if TYPE_CHECKING:
    import polars as pl

# Measured: if more than this share of a file must be read, Polars' own scan of all of it is faster.
_MAX_READ_SHARE = 0.2


def lazy_frame(ds: OpenDataset) -> pl.LazyFrame:
    """Return a LazyFrame of a dataset; see `Dataset.to_polars`."""
    try:
        from polars.io.plugins import register_io_source
    except ImportError:
        raise MissingDependency(
            "a scan as a LazyFrame needs Polars 2.1 or newer; run pip install 'zonebloom[polars]'"
        ) from None

    reader = _Reader(ds.opened)
    schema = reader.schema

    def read(
        columns: list[str] | None,
        predicate: pl.Expr | None,
        limit: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        nonlocal reader
        if reader.opened is not ds.opened:
            reader = _Reader(ds.opened)
        if reader.schema != schema:
            raise SchemaMismatch(
                "the columns of the dataset have changed since the LazyFrame was made; make it "
                "again"
            )
        return reader.read(columns, predicate, limit, batch_size or DEFAULT_BATCH_ROWS)

    return register_io_source(
        read,
        schema=schema,
        # Polars may read the rows once if a query needs them twice.
        is_pure=True,
        explain_name="ZONEBLOOM",
        explain_detail="an index chooses the rows when the query runs; "
        "ds.scanner(filter=...).explain_plan() shows how many",
    )


class _Reader:
    """Reads one state of a dataset as frames of Polars."""

    def __init__(self, opened: OpenedDataset):
        self.opened = opened
        self._source = opened.source

    @functools.cached_property
    def schema(self) -> pl.Schema:
        return to_frame(empty_table(self._source.schema)).schema

    @functools.cached_property
    def _can_use_polars(self) -> bool:
        """Return whether Polars' own reader may be able to read the files."""
        import pyarrow.dataset as pads

        source = self._source
        # Subclasses of Source, for table formats, change the columns and types of their files.
        return (
            type(source) is Source
            and source.is_parquet
            and source.parquet_keys is None
            # Polars can cast only to wider integers and floats.
            and source.type_agreement != "cast"
            and not source.store.has_round_trips
            and source.format.default_fragment_scan_options == pads.ParquetFragmentScanOptions()
            and has_types_of_polars(source.schema)
        )

    def read(
        self,
        columns: list[str] | None,
        predicate: pl.Expr | None,
        limit: int | None,
        batch_size: int,
    ) -> Iterator[pl.DataFrame]:
        """Yield the rows that match a predicate, in scan order.

        A limit counts rows before the predicate applies, so with a limit no row can be skipped.
        """
        names = self.schema.names()
        if columns is not None:
            needed = set(columns)
            if limit is not None and predicate is not None:
                needed.update(predicate.meta.root_names())
            # Read at least one column, because the rows of no column cannot be counted.
            names = [name for name in names if name in needed] or names[:1]
        request = Request(names, None, limit=limit, batch_size=batch_size)
        if limit is None:
            frames = self._matching_rows(request, predicate)
        else:
            frames = _first_rows(self._matching_rows(request, None), limit)
            if predicate is not None:
                frames = (frame.filter(predicate) for frame in frames)
        for frame in frames:
            yield _with_columns(frame, columns)

    def _matching_rows(self, request: Request, expr: pl.Expr | None) -> Iterator[pl.DataFrame]:
        request, fragments = self._plan(request, expr)
        execution = Execution(self._source, request)
        for is_whole, parts in itertools.groupby(fragments, self._is_read_whole):
            if is_whole:
                yield from self._read_whole(execution, request, tuple(parts), expr)
            else:
                yield from self._read_rows(execution, parts)

    def _plan(
        self, request: Request, expr: pl.Expr | None
    ) -> tuple[Request, tuple[FragmentPlan, ...]]:
        """Return the request of the rows that match an expression, and how each file is read."""
        names, schema = tuple(request.columns or ()), self._source.schema
        if expr is None:
            return request, self.opened.plan(names, None, None, is_described=False).fragments
        predicate = predicate_from_polars(expr, schema)
        row_filter = pushed_down_filter(expr, self.schema)
        cost = FILTERED_BY_POLARS
        if isinstance(predicate, IsIn) and self._can_use_polars:
            # No other condition limits the rows.
            cost = cost._replace(max_share=_MAX_READ_SHARE)
        plan = self.opened.plan(names, row_filter, predicate, is_described=False, cost=cost)
        request = replace(
            request,
            filter=row_filter,
            predicate=plan.predicate,
            is_predicate_exact=is_key_test(row_filter, predicate, schema),
        )
        return narrowed_request(plan, request, schema), plan.fragments

    def _is_read_whole(self, part: FragmentPlan) -> bool:
        """Return whether Polars itself should read all of a fragment."""
        if part.row_groups is not None:
            return False
        if part.rows is None:
            return self._can_use_polars or isinstance(self._source, TableSource)
        if part.pages is None or len(part.rows) <= _MAX_READ_SHARE * part.pages.num_rows:
            return False
        return self._can_use_polars

    def _read_rows(
        self, execution: Execution, parts: Iterable[FragmentPlan]
    ) -> Iterator[pl.DataFrame]:
        """Yield the matching rows of fragments that our reader reads."""
        for batch in execution.batches(parts):
            yield to_frame(pa.Table.from_batches([batch]), self.schema)

    def _read_whole(
        self,
        execution: Execution,
        request: Request,
        parts: tuple[FragmentPlan, ...],
        expr: pl.Expr | None,
    ) -> Iterator[pl.DataFrame]:
        """Yield the matching rows of whole fragments, which Polars reads if it can."""
        import polars as pl

        frame = self._scan(parts)
        if request.limit is not None:
            frame = frame.head(request.limit)
        if expr is not None:
            frame = frame.filter(expr)
        num_rows = 0
        try:
            for batch in frame.select(request.columns).collect_batches():
                yield batch
                num_rows += batch.height
            return
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
            # Polars' reader refuses a file or its types, or the predicate fails at a row. Our
            # reader reads the files, or says what is wrong.
            if num_rows:
                # The first rows of a file that was rewritten meanwhile may be others.
                execution.require_unchanged(parts)
        if expr is not None and not self._source.is_in_memory:
            # Polars compares a column that it casts. Where PyArrow has rounded, no value matches.
            for part, name in itertools.product(parts, expr.meta.root_names()):
                require_fitting_type(self._source, part.fragment, (name,))
        for batch in self._read_rows(execution, parts):
            num_skipped = min(num_rows, batch.height)
            num_rows -= num_skipped
            yield batch.slice(num_skipped)

    def _scan(self, parts: tuple[FragmentPlan, ...]) -> pl.LazyFrame:
        """Return a query of Polars for all rows of fragments."""
        import polars as pl

        if isinstance(self._source, TableSource):
            return to_frame(self._source.table).lazy()
        frames = [
            self._scan_files([part.fragment.path for part in group], dict(constants))
            # Columns such as partitions are constant in a fragment.
            for constants, group in itertools.groupby(
                parts, lambda part: sorted(self._source.constants(part.fragment).items())
            )
        ]
        return frames[0] if len(frames) == 1 else pl.concat(frames)

    def _scan_files(self, paths: list[str], constants: dict[str, Any]) -> pl.LazyFrame:
        import polars as pl

        schema = self.schema
        frame = pl.scan_parquet(
            paths,
            glob=False,
            hive_partitioning=False,
            schema={name: dtype for name, dtype in schema.items() if name not in constants},
            missing_columns="insert",
            extra_columns="ignore",
            # Accept files with narrower types than the first one, as pyarrow does.
            cast_options=pl.ScanCastOptions(
                integer_cast="upcast",
                float_cast="upcast",
                missing_struct_fields="insert",
                extra_struct_fields="ignore",
            ),
        )
        if not constants:
            return frame
        columns = [
            pl.lit(value).cast(schema[name]).alias(name) for name, value in constants.items()
        ]
        return frame.with_columns(columns).select(schema.names())


def _first_rows(frames: Iterator[pl.DataFrame], limit: int) -> Iterator[pl.DataFrame]:
    for frame in frames:
        yield frame.head(limit)
        limit -= frame.height
        if limit <= 0:
            return


def _with_columns(frame: pl.DataFrame, columns: list[str] | None) -> pl.DataFrame:
    """Return the columns of a frame. A frame of no columns keeps its height."""
    import polars as pl

    if columns is None:
        return frame
    return frame.select(columns) if columns else pl.DataFrame(height=frame.height)
