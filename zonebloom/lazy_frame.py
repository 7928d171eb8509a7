"""The LazyFrame of a dataset: the index decides what to read, and Polars does the rest.

Polars' own scan_parquet reads fragments that must be read whole. An IO source of this package
reads the kept rows of the others. Polars applies every filter itself, so rows, order and types are
those of ``pl.scan_parquet``. The plan is made when a query is explained or run, for the files that
the dataset has at that time.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import and_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base.arrays import empty_table
from zonebloom.errors import MissingDependency, SchemaMismatch
from zonebloom.index.key_search import FILTERED_BY_POLARS
from zonebloom.predicates import IsIn
from zonebloom.predicates.ast import conjunction
from zonebloom.predicates.polars import (
    is_same_list,
    predicate_from_polars,
    pushed_down_filter,
    to_frame,
)
from zonebloom.scan.execute import Execution
from zonebloom.scan.explain import ScanPlan
from zonebloom.scan.opened import OpenDataset, OpenedDataset
from zonebloom.scan.plan import DEFAULT_BATCH_ROWS, FragmentPlan, Request
from zonebloom.scan.recheck import is_key_test, narrow_filter
from zonebloom.sources.memory import TableSource
from zonebloom.sources.source import Source

if TYPE_CHECKING:
    import polars as pl

# Measured: if more than this share of a file must be read, Polars' own scan of all of it is faster.
_MAX_READ_SHARE = 0.2


def lazy_frame(ds: OpenDataset, *, is_listed_again: bool = False) -> pl.LazyFrame:
    """Return a LazyFrame of a dataset; see `zonebloom.polars.scan`.

    If ``is_listed_again``, each query lists the files first. Raise `MissingDependency` if Polars
    2.0 is not installed.
    """
    try:
        from polars.lazyframe.resolver import LazyFrameResolver, ResolvedLazyFrameProps
    except ImportError:
        raise MissingDependency(
            "a scan as a LazyFrame needs Polars 2.0 or newer; run pip install 'zonebloom[polars]'"
        ) from None

    version = itertools.count()

    class ZoneBloomScan(LazyFrameResolver):
        """A LazyFrame that is resolved to a query when Polars knows its filters."""

        dataset = ds

        def __init__(self) -> None:
            self._query = _Query(ds.opened)

        def schema(self) -> Any:
            return self._query.schema

        def cse_eq(self, other: object) -> bool:
            """Return whether Polars may compute both scans once, because they are the same."""
            return getattr(other, "dataset", None) is ds

        def resolve_lazyframe(
            self,
            *,
            projection: list[str] | None,
            limit: int | None,
            filters: list[Any],
            **other_options: Any,
        ) -> Any:
            if is_listed_again:
                ds.refresh()
            if self._query.opened is not ds.opened:
                query = _Query(ds.opened)
                if query.schema != self._query.schema:
                    raise SchemaMismatch(
                        "the columns of the dataset have changed since the LazyFrame was made; "
                        "make it again"
                    )
                self._query = query
            # A limit counts rows before the filters apply, so with a limit no zone can be skipped.
            frame = self._query.frame([part.expr for part in filters] if limit is None else [])
            if limit is not None:
                frame = frame.head(limit)
            if projection is not None:
                frame = frame.select(projection)
            # The version is new each time, because the files may have changed. The properties do
            # not claim that any filter was applied, so Polars applies them all.
            return frame, ResolvedLazyFrameProps(version_key=str(next(version)))

    return ZoneBloomScan().lazy()


class _Query:
    """A Polars query over one state of a dataset."""

    def __init__(self, opened: OpenedDataset):
        self.opened = opened
        self._source = opened.source

    @functools.cached_property
    def schema(self) -> pl.Schema:
        import polars as pl

        types = dict(to_frame(empty_table(self._source.schema)).schema)
        if pl.Date in types.values() and self._can_use_polars():
            # For Arrow dates in milliseconds, pyarrow returns dates but Polars returns datetimes.
            first = self._source.fragments[0].path
            for name, dtype in pl.scan_parquet(first, glob=False).collect_schema().items():
                if types.get(name) == pl.Date and isinstance(dtype, pl.Datetime):
                    types[name] = dtype
        return pl.Schema(types)

    @functools.cached_property
    def _table(self) -> pl.DataFrame:
        assert isinstance(self._source, TableSource)
        return to_frame(self._source.table)

    def _can_use_polars(self) -> bool:
        """Return whether Polars' own reader can read the files, with the same result."""
        import pyarrow.dataset as pads

        source = self._source
        # Subclasses of Source, for table formats, change the columns and types of their files.
        return (
            type(source) is Source
            and source.is_parquet
            and source.parquet_keys is None
            # Polars can cast only to wider integers and floats.
            and source.type_agreement != "cast"
            and isinstance(source.filesystem, pafs.LocalFileSystem)
            and source.format.default_fragment_scan_options == pads.ParquetFragmentScanOptions()
        )

    def frame(self, filters: Sequence[pl.Expr]) -> pl.LazyFrame:
        """Return a query for all rows that may match the filters, in scan order."""
        arrow_schema = self._source.schema
        names = tuple(arrow_schema.names)
        row_filter = predicate = None
        if filters:
            predicate = conjunction(
                predicate_from_polars(filter, arrow_schema) for filter in filters
            )
            row_filter = pushed_down_filter(functools.reduce(and_, filters), self.schema)
        cost = FILTERED_BY_POLARS
        if isinstance(predicate, IsIn) and self._can_use_polars():
            # No other condition limits the rows.
            cost = cost._replace(max_share=_MAX_READ_SHARE)
        plan = self.opened.plan(names, row_filter, predicate, cost=cost)
        frames = [
            self._scan_whole(fragments) if is_whole else self._scan_kept_rows(plan, fragments)
            for is_whole, fragments in itertools.groupby(plan.fragments, self._is_read_whole)
        ]
        return _concatenate(frames) if frames else self._scan_kept_rows(plan, ())

    def _is_read_whole(self, part: FragmentPlan) -> bool:
        """Return whether Polars itself should read all of a fragment."""
        if part.row_groups is not None:
            return False
        if part.rows is None:
            return self._can_use_polars() or isinstance(self._source, TableSource)
        if part.pages is None or len(part.rows) <= _MAX_READ_SHARE * part.pages.num_rows:
            return False
        return self._can_use_polars()

    def _scan_whole(self, fragments: Iterable[FragmentPlan]) -> pl.LazyFrame:
        if isinstance(self._source, TableSource):
            return self._table.lazy()
        return _concatenate(
            [
                self._scan_files([part.fragment.path for part in parts], dict(constants))
                for constants, parts in itertools.groupby(fragments, self._constants)
            ]
        )

    def _constants(self, part: FragmentPlan) -> list[tuple[str, Any]]:
        """Return the values of columns that are constant in a fragment, such as partitions."""
        return sorted(self._source.constants(part.fragment).items())

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

    def _scan_kept_rows(self, plan: ScanPlan, parts: Iterable[FragmentPlan]) -> pl.LazyFrame:
        from polars.io.plugins import register_io_source

        fragments = tuple(parts)
        detail = "; ".join([*map(str, plan.indices), plan.fragments_text])
        schema = self.schema

        def read(
            columns: list[str] | None,
            predicate: pl.Expr | None,
            limit: int | None,
            batch_size: int | None,
        ) -> Iterator[pl.DataFrame]:
            names = schema.names() if columns is None else columns
            request = self._request(plan, predicate)
            request = replace(
                request,
                # A Polars frame without columns has no rows, so read at least one column.
                columns=names or schema.names()[:1],
                batch_size=batch_size or DEFAULT_BATCH_ROWS,
            )
            num_rows_to_emit = limit
            for batch in Execution(self._source, request).batches(fragments):
                frame = to_frame(pa.Table.from_batches([batch]), schema).select(names)
                if num_rows_to_emit is not None:
                    frame = frame.head(num_rows_to_emit)
                    num_rows_to_emit -= frame.height
                if frame.height:
                    yield frame
                if num_rows_to_emit == 0:
                    return

        return register_io_source(
            read, schema=schema, explain_name="ZONEBLOOM", explain_detail=detail
        )

    def _request(self, plan: ScanPlan, pushed_expr: pl.Expr | None) -> Request:
        """Return a request of the rows that match the filter of a plan and an expression."""
        # The plan was made for rows that match all filters, so its filter may be applied even if
        # Polars did not push a predicate down to here.
        row_filter, predicate, schema = plan.filter, plan.predicate, self._source.schema
        if pushed_expr is not None:
            row_filter = pushed_down_filter(pushed_expr, self.schema)
            predicate = predicate_from_polars(pushed_expr, schema)
        request = Request(None, row_filter, predicate=plan.narrow_predicate)
        if (
            isinstance(predicate, IsIn)
            and is_same_list(predicate, plan.predicate)
            and is_key_test(row_filter, predicate, schema)
        ):
            return replace(request, is_predicate_exact=True)
        if not plan.narrow_lists:
            return request
        return replace(request, narrow_filter=narrow_filter(row_filter, plan.narrow_lists, schema))


def _concatenate(frames: list[pl.LazyFrame]) -> pl.LazyFrame:
    import polars as pl

    return frames[0] if len(frames) == 1 else pl.concat(frames)
