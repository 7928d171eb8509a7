"""A dataset as a Polars LazyFrame: the index says what to read, Polars does all else.

Fragments the index leaves whole are scanned by Polars' own scan_parquet, the kept rows of others
come from a source of ours. Polars applies every filter itself, so rows, order and types are those
of ``pl.scan_parquet``. The plan is made when a query is explained or run, over the files the
dataset has by then; a scan of a path, whose dataset nobody else can refresh, lists them anew.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from operator import and_, is_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.dataset import Dataset, dataset
from zonebloom.errors import InvalidArgument, MissingDependency, SchemaMismatch
from zonebloom.opened import OpenedDataset
from zonebloom.parquet.encryption_keys import ParquetKeys
from zonebloom.predicates import And
from zonebloom.predicates.polars import predicate_from_polars, pushed_down_filter, to_frame
from zonebloom.scan.execute import Execution
from zonebloom.scan.explain import ScanPlan
from zonebloom.scan.plan import DEFAULT_BATCH_ROWS, FragmentPlan, Request
from zonebloom.sources.discovery import Partitioning, Schema
from zonebloom.sources.memory import TableSource
from zonebloom.sources.source import Source, Stale
from zonebloom.storage.encryption import Encryption

if TYPE_CHECKING:
    import polars as pl

__all__ = ["scan"]


def __dir__() -> list[str]:
    return __all__


# With more of a file than this to read, Polars' own scan of all of it was measured quicker.
_MOST = 0.2


def scan(
    source: Any,
    *,
    format: str = "parquet",
    filesystem: Any = None,
    index_dir: str | None = None,
    partitioning: Partitioning = "auto",
    stale: Stale = "read",
    embedded_filters: bool = False,
    schema: Schema = None,
    encryption: Encryption | None = None,
    parquet_keys: ParquetKeys | None = None,
) -> pl.LazyFrame:
    """Scan a dataset lazily.

    Parameters
    ----------
    source : Dataset, or whatever `zonebloom.dataset` takes
    format, filesystem, index_dir, partitioning, stale, embedded_filters, schema, encryption, \
    parquet_keys
        As `zonebloom.dataset` takes them; none with a Dataset, which is open already.

    Returns
    -------
    polars.LazyFrame
        With the rows, order and types of ``pl.scan_parquet``. Filters that an index answers
        read only the zones that may match; `explain` shows how many.

    Raises
    ------
    MissingDependency
        Polars is not installed, or older than 2.0.
    InvalidArgument
        A Dataset was given together with options of how to open one.
    NoFragments, FragmentUnreadable, SourceError

    Examples
    --------
    >>> import polars as pl
    >>> import zonebloom.polars
    >>> frame = zonebloom.polars.scan("orders").filter(pl.col("id") == 42)
    >>> frame.collect().rows()
    [(42, 'C042', datetime.date(2024, 5, 2))]
    """
    try:
        from polars.lazyframe.resolver import LazyFrameResolver, ResolvedLazyFrameProps
    except ImportError:
        raise MissingDependency(
            "a scan as a LazyFrame needs Polars 2.0 or newer; run pip install 'zonebloom[polars]'"
        ) from None

    is_path = isinstance(source, str | os.PathLike)
    # In the order of `dataset`.
    way = format, filesystem, index_dir, partitioning
    place = schema, encryption, parquet_keys
    if not isinstance(source, Dataset):
        opened = dataset(source, *way, stale, embedded_filters, *place)
    elif all(map(is_, (*way, stale, embedded_filters, *place), dataset.__defaults__ or ())):
        opened = source
    else:
        raise InvalidArgument(
            "the dataset is open already; give how to open it to zonebloom.dataset"
        )
    version = itertools.count()

    class ZoneBloomScan(LazyFrameResolver):
        """A frame that becomes a query once its filters are known."""

        dataset = opened

        def __init__(self) -> None:
            self._query = _Query(opened.opened)

        def schema(self) -> Any:
            return self._query.schema

        def cse_eq(self, other: object) -> bool:
            return getattr(other, "dataset", None) is opened

        def resolve_lazyframe(
            self,
            *,
            projection: list[str] | None,
            limit: int | None,
            filters: list[Any],
            **others: Any,
        ) -> Any:
            if is_path:
                opened.refresh()
            if self._query.opened is not opened.opened:
                query = _Query(opened.opened)
                if query.schema != self._query.schema:
                    raise SchemaMismatch(
                        "the columns of the dataset have changed since the LazyFrame was made; "
                        "make it again"
                    )
                self._query = query
            # A limit counts rows before the filters, so it leaves nothing to skip.
            frame = self._query.frame([each.expr for each in filters] if limit is None else [])
            if limit is not None:
                frame = frame.head(limit)
            if projection is not None:
                frame = frame.select(projection)
            # A new version each time: the files may have changed. No filter is said to be
            # applied, so Polars applies them all.
            return frame, ResolvedLazyFrameProps(version_key=str(next(version)))

    return ZoneBloomScan().lazy()


class _Query:
    def __init__(self, opened: OpenedDataset):
        self.opened = opened
        self._source = opened.source

    @functools.cached_property
    def schema(self) -> pl.Schema:
        import polars as pl

        types = dict(to_frame(self._source.schema.empty_table()).schema)
        if pl.Date in types.values() and self._by_polars():
            # Days that Arrow stores as milliseconds: pyarrow forgets that, Polars does not.
            first = self._source.fragments[0].path
            for name, dtype in pl.scan_parquet(first, glob=False).collect_schema().items():
                if types.get(name) == pl.Date and isinstance(dtype, pl.Datetime):
                    types[name] = dtype
        return pl.Schema(types)

    @functools.cached_property
    def _table(self) -> pl.DataFrame:
        assert isinstance(self._source, TableSource)
        return to_frame(self._source.table)

    def _by_polars(self) -> bool:
        """Whether Polars can read the files itself, and would read the same in them."""
        import pyarrow.dataset as pads

        source = self._source
        # Table formats give their files columns and types of their own.
        return (
            type(source) is Source
            and source.is_parquet
            and source.parquet_keys is None
            # Polars casts to wider integers and floats, and to nothing else.
            and source.type_agreement != "cast"
            and isinstance(source.filesystem, pafs.LocalFileSystem)
            and source.format.default_fragment_scan_options == pads.ParquetFragmentScanOptions()
        )

    def frame(self, filters: Sequence[pl.Expr]) -> pl.LazyFrame:
        """A query of all rows that may pass the filters, in order."""
        arrow = self._source.schema
        names = tuple(arrow.names)
        whole_filter = predicate = None
        if filters:
            predicate = And(tuple(predicate_from_polars(each, arrow) for each in filters))
            whole_filter = pushed_down_filter(functools.reduce(and_, filters), self.schema)
        plan = self.opened.planner.plan(names, whole_filter, predicate)
        frames = [
            self._whole(run) if whole else self._in_part(plan, run)
            for whole, run in itertools.groupby(plan.fragments, self._is_whole)
        ]
        return _one_after_another(frames) if frames else self._in_part(plan, ())

    def _is_whole(self, part: FragmentPlan) -> bool:
        if part.row_groups is not None:
            return False
        if part.rows is None:
            return self._by_polars() or isinstance(self._source, TableSource)
        pages = part.pages
        most = pages is not None and len(part.rows) > _MOST * pages.num_rows
        return most and self._by_polars()

    def _whole(self, run: Iterator[FragmentPlan]) -> pl.LazyFrame:
        if isinstance(self._source, TableSource):
            return self._table.lazy()
        return _one_after_another(
            [
                self._files([part.fragment.path for part in parts], dict(constants))
                for constants, parts in itertools.groupby(run, self._constants)
            ]
        )

    def _constants(self, part: FragmentPlan) -> list[tuple[str, Any]]:
        return sorted(self._source.constants(part.fragment).items())

    def _files(self, paths: list[str], constants: dict[str, Any]) -> pl.LazyFrame:
        import polars as pl

        schema = self.schema
        frame = pl.scan_parquet(
            paths,
            glob=False,
            hive_partitioning=False,
            schema={name: kind for name, kind in schema.items() if name not in constants},
            missing_columns="insert",
            extra_columns="ignore",
            # What pyarrow does with a file of narrower types than the first.
            cast_options=pl.ScanCastOptions(
                integer_cast="upcast",
                float_cast="upcast",
                missing_struct_fields="insert",
                extra_struct_fields="ignore",
            ),
        )
        if not constants:
            return frame
        given = [pl.lit(value).cast(schema[name]).alias(name) for name, value in constants.items()]
        return frame.with_columns(given).select(schema.names())

    def _in_part(self, plan: ScanPlan, run: Sequence[FragmentPlan] | Any) -> pl.LazyFrame:
        from polars.io.plugins import register_io_source

        fragments = tuple(run)
        detail = "; ".join([*map(str, plan.indices), plan.fragments_text])
        schema = self.schema

        def read(
            columns: list[str] | None,
            predicate: pl.Expr | None,
            limit: int | None,
            batch_size: int | None,
        ) -> Iterator[pl.DataFrame]:
            names = schema.names() if columns is None else columns
            # The plan was made for these rows: they pass all filters, pushed this far or not.
            wanted = plan.filter if predicate is None else pushed_down_filter(predicate, schema)
            request = Request(
                # Polars counts rows by a column, and a table without one has none.
                names or schema.names()[:1],
                wanted,
                None,
                batch_size or DEFAULT_BATCH_ROWS,
            )
            left = limit
            for batch in Execution(self._source, request).batches(fragments):
                frame = to_frame(pa.Table.from_batches([batch]), schema).select(names)
                if left is not None:
                    frame = frame.head(left)
                    left -= frame.height
                if frame.height:
                    yield frame
                if left == 0:
                    return

        return register_io_source(
            read, schema=schema, explain_name="ZONEBLOOM", explain_detail=detail
        )


def _one_after_another(frames: list[pl.LazyFrame]) -> pl.LazyFrame:
    import polars as pl

    return frames[0] if len(frames) == 1 else pl.concat(frames)
