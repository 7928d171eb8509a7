"""Build, describe, validate, export and renew the indices of an opened dataset.

`zonebloom.Dataset` and the command line call these functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from zonebloom.base import arguments
from zonebloom.base.display import DisplayedDict, DisplayedList
from zonebloom.base.notices import warn
from zonebloom.base.progress import ProgressOption, require_progress
from zonebloom.base.text import bytes_text
from zonebloom.building.builder import (
    Builder,
    Refreshed,
    failed_refresh,
    refreshed_table,
)
from zonebloom.building.request import IndexRequest
from zonebloom.catalog.model import DEFAULT_KIND, RETENTION, IndexEntry, Version
from zonebloom.catalog.vacuum import vacuum_catalog
from zonebloom.errors import (
    CatalogError,
    CorruptIndex,
    InvalidArgument,
    SchemaMismatch,
    StaleIndexWarning,
    UnknownIndexKind,
    ZoneBloomWarning,
)
from zonebloom.facade.engine import choose_engine
from zonebloom.index.describe import (
    NO_INDEX,
    IndexDescription,
    describe,
    index_statistics,
)
from zonebloom.index.row_keys.rules import indexed_text
from zonebloom.index.validate import ValidatedIndex, validate_index
from zonebloom.scan.opened import OpenDataset, OpenedDataset
from zonebloom.sources.column_batches import Column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A build of BLOOMFILTER over more rows is warned about.
_MANY_ROWS = 16_000_000


def build(
    opened: OpenedDataset, request: IndexRequest, *, spark: Any, progress: ProgressOption
) -> OpenedDataset:
    """Return the dataset at a new version of the catalog that has the requested indices."""
    specs = request.make_specs(opened)
    engine = choose_engine(spark)
    version = Builder(opened).build(specs, request.replace, engine, progress, train=request.train)
    if request.kind.name == DEFAULT_KIND:
        for spec in specs:
            _warn_of_many_rows(version, version.indices[spec.name])
    return opened.at_version(version)


def _warn_of_many_rows(version: Version, entry: IndexEntry) -> None:
    covered = entry.fragment_ids
    num_rows = sum(
        fragment.num_rows
        for fragment in version.fragments.values()
        if fragment.fragment_id in covered
    )
    if num_rows > _MANY_ROWS:
        warn(
            ZoneBloomWarning(
                f"index {entry.name!r} has filters for {num_rows:,} rows, all of which the first "
                f"lookup of a process reads ({bytes_text(entry.num_bytes)}); "
                'build it with index_type="HASH", of which a lookup reads some kilobytes',
                commands={'index_type="HASH"': "--type HASH"},
            )
        )


def describe_opened(opened: OpenedDataset) -> DisplayedList[IndexDescription]:
    """Return a description of each index, and how many of the current files it covers."""
    return describe(opened.version.indices.values(), opened.look().coverage)


def statistics_of(opened: OpenedDataset, name: str) -> DisplayedDict:
    """Return parameters, coverage and size of an index, and statistics that its kind has."""
    entry = opened.index_entry(name)
    description = next(index for index in describe_opened(opened) if index.name == name)
    return index_statistics(description, entry, opened.indices[name].tables())


def validate_opened(
    opened: OpenedDataset, name: str, sample: int | Literal["all"]
) -> ValidatedIndex:
    """Compare an index with its checksums and with rows of the files."""
    entry, coverage = opened.index_entry(name), opened.look().coverage
    return validate_index(opened.catalog, entry, opened.version, opened.source, coverage, sample)


def export_to_lance(opened: OpenedDataset, name: str, path: str) -> None:
    """Write an index as the file of an index of Lance."""
    from zonebloom.exchange.lance import to_lance

    entry, path = opened.index_entry(name), arguments.require_path(path, "path")
    if entry.rule:
        raise InvalidArgument(
            f"index {name!r} holds {indexed_text(entry)}, which no index of Lance does; give one "
            "of the values of a column"
        )
    tables = opened.indices[name].tables()
    if len(tables) < len(entry.segments):
        raise CorruptIndex(
            f"{len(entry.segments) - len(tables):,} of {len(entry.segments):,} segments of "
            f"index {name!r} are damaged; call create_scalar_index again"
        )
    to_lance(tables, path)


class DatasetOptimizer:
    """The methods that bring the indices of a dataset up to date; see ``Dataset.optimize``."""

    def __init__(self, dataset: OpenDataset):
        self._dataset = dataset

    def __repr__(self) -> str:
        return f"<zonebloom.DatasetOptimizer of {self._dataset.title}>"

    def optimize_indices(
        self,
        index_names: Sequence[str] | None = None,
        *,
        retention: timedelta | None = RETENTION,
        repair: bool = False,
        spark: SparkSession | Literal[False] | None = None,
        progress: ProgressOption = None,
    ) -> DisplayedList[Refreshed]:
        """Index new and changed files, and forget deleted files.

        This method first lists the files again, as `Dataset.refresh` does. It reads only new and
        changed files, so a refresh costs about as much as it adds.

        Parameters
        ----------
        index_names : list of str, optional
            The indices to refresh. By default all indices of this dataset, but not those of other
            datasets that share the index_dir. If the column of an index was dropped or has another
            type, that index stays as it is, with a StaleIndexWarning. If it is named here, nothing
            is refreshed.
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
        ds = self._dataset
        require_progress(progress)
        arguments.require_bool(repair, "repair")
        if retention is not None:
            arguments.require_instance(retention, timedelta, "retention")
        if index_names is not None:
            index_names = arguments.require_name_list(index_names, "index_names")
        ds.refresh()
        ds.opened, refreshed = refresh_indices(
            ds.opened,
            index_names,
            retention=retention,
            repair=repair,
            spark=spark,
            progress=progress,
        )
        return refreshed


def refresh_indices(
    opened: OpenedDataset,
    index_names: Sequence[str] | None,
    *,
    retention: timedelta | None,
    repair: bool,
    spark: Any,
    progress: ProgressOption,
    only_appended: bool = False,
) -> tuple[OpenedDataset, DisplayedList[Refreshed]]:
    """Bring indices up to date with the files; see `DatasetOptimizer.optimize_indices`.

    With `only_appended`, add new files, and leave changed and deleted files for a later refresh.
    """
    builder = Builder(opened)
    names = builder.own_index_names() if index_names is None else index_names
    entries = [opened.index_entry(name) for name in dict.fromkeys(names)]
    indices: list[tuple[IndexEntry, Sequence[Column]]] = []
    misfits: list[Refreshed] = []
    for entry in entries:
        try:
            indices.append((entry, opened.indexed_columns(entry)))
        except SchemaMismatch as error:
            if index_names is not None:
                raise
            misfits.append(failed_refresh(entry, str(error)))
            builder.commands |= error.commands
    damages = _find_damage(opened, [entry.name for entry, _ in indices]) if repair else {}
    version, refreshed = builder.refresh(
        indices,
        choose_engine(spark),
        progress,
        damages,
        skip_misfits=index_names is None,
        only_appended=only_appended,
    )
    if repair and version.number < opened.catalog.newest_number():
        # The newest version cannot be read. Commit another one, so that readers do not try it.
        version = opened.catalog.commit(lambda latest: latest)
    opened = opened.at_version(version)
    if retention is not None and any(record.changed for record in refreshed):
        try:
            vacuum_catalog(opened.catalog, retention)
        except CatalogError as error:
            # The commit has succeeded.
            text = f"older versions of the index of {opened.source.root} are not deleted: {error}"
            warn(ZoneBloomWarning(text))
    by_name = {record.name: record for record in [*refreshed, *misfits]}
    refreshed = [by_name[entry.name] for entry in entries]
    for record in refreshed:
        if record.problem is not None:
            warn(StaleIndexWarning(record.problem, commands=builder.commands))
    return opened, DisplayedList(refreshed, refreshed_table, NO_INDEX)


def _find_damage(opened: OpenedDataset, names: Sequence[str]) -> dict[str, str]:
    """Return the damaged indices by name, each with a description of its damage."""
    damages = {}
    for name in names:
        try:
            validate_opened(opened, name, sample=0)
        except CorruptIndex as error:
            damages[name] = str(error)
        except UnknownIndexKind:
            # A refresh leaves this index as it is, and says why.
            continue
    return damages
