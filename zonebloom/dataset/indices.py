"""Methods that describe, validate and export the indices of an opened dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from zonebloom.base import arguments
from zonebloom.base.display import (
    Displayed,
    DisplayedDict,
    DisplayedList,
    list_html,
    styled_html,
    table_html,
    title_html,
)
from zonebloom.catalog.model import DEFAULT_NUMBER_OF_ITEMS, DEFAULT_ZONE_PROBABILITY
from zonebloom.dataset.keys import KeyedDataset
from zonebloom.errors import CorruptIndex
from zonebloom.index.describe import (
    INDEX_HEADERS,
    NO_INDEX,
    EmbeddedDescription,
    IndexDescription,
    describe,
    describe_embedded,
    index_cells,
    index_statistics,
)
from zonebloom.index.global_filter import GlobalFilter

if TYPE_CHECKING:
    from zonebloom.advise.judge import Advices
    from zonebloom.index.validate import ValidatedIndex


class IndexedDataset(KeyedDataset, Displayed):
    """A dataset whose methods describe its indices."""

    def advise(
        self,
        columns: str | Sequence[str] | None = None,
        *,
        number_of_items: int = DEFAULT_NUMBER_OF_ITEMS,
        probability: float = DEFAULT_ZONE_PROBABILITY,
    ) -> Advices:
        """Return which columns are worth an index, judged by a sample, as `Advices`.

        Parameters
        ----------
        columns : str or list of str, optional
            By default all columns that can be indexed.
        number_of_items, probability
            As in `Dataset.create_scalar_index`.

        Examples
        --------
        >>> advices = ds.advise(number_of_items=100)
        >>> advices.worth_it
        ['id', 'customer']
        >>> print(advices["day"])
        day: clustered: key ranges alone leave 10 of 30 zones, and Parquet keeps them
        """
        from zonebloom.advise.advise import advise

        return advise(
            self.opened, columns, number_of_items=number_of_items, probability=probability
        )

    def describe_indices(self) -> DisplayedList[IndexDescription]:
        """Return a description of each index, and how many of the current files it covers.

        >>> print(ds.describe_indices())
        index         column    zones   rows  files covered  size
        id_idx        id           30  3,000  3 of 3         10.0 kB
        customer_idx  customer     30  3,000  3 of 3         10.0 kB
        >>> ds.describe_indices()[0].num_rows_indexed
        3000
        """
        return describe(self.opened.version.indices.values(), self.opened.planner.coverage())

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
        planner = self.opened.planner
        return describe_embedded(
            planner.embedded_filters.columns(file.fragment, file.identity)
            for file in planner.coverage().fragments
        )

    def list_indices(self) -> DisplayedList[dict[str, Any]]:
        """Return the indices as dictionaries with the keys that Lance uses.

        >>> ds.list_indices()[0]
        {'name': 'id_idx', 'type': 'BloomFilter', 'fields': ['id'], ...'num_fragments_indexed': 3}
        """
        indices = [
            {
                "name": index.name,
                "type": "BloomFilter",
                "fields": [index.column],
                "version": self.version,
                "num_fragments_indexed": index.num_fragments_indexed,
            }
            for index in self.describe_indices()
        ]
        return DisplayedList(indices, list(indices[0]) if indices else [], _values, NO_INDEX)

    def index_statistics(self, name: str) -> DisplayedDict:
        """Return coverage, size, fill and estimated false positive probability of an index.

        This method reads all filters of the index.

        Returns
        -------
        dict
            Sizes in bytes. ``fill_mean`` and ``fill_max`` are shares of bits that are set,
            ``estimated_fpp_mean`` and ``estimated_fpp_max`` are probabilities.

        Raises
        ------
        IndexNotFound

        Examples
        --------
        >>> figures = ds.index_statistics("id_idx")
        >>> figures["filter_bytes"], round(figures["fill_mean"], 2)
        (256, 0.33)
        """
        entry = self.opened.index_entry(name)
        description = next(index for index in self.describe_indices() if index.name == name)
        return index_statistics(
            description, entry, self.opened.planner.loaded_indices[name].tables()
        )

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
            string, ``minimum`` and ``maximum`` (values in a type that Arrow can order; null if
            the fragment holds only nulls and NaN), ``is_known`` bool (False for new and changed
            files and where the index has no bounds; any value may occur there), ``has_nan`` bool,
            ``null_count`` and ``num_rows`` int64 (null if unknown). Bounds may be wider than the
            values.

        Examples
        --------
        >>> ds.key_ranges("id").select(["fragment_id", "minimum", "maximum"]).to_pylist()[0]
        {'fragment_id': 0, 'minimum': 0, 'maximum': 2997}
        """
        return self.opened.planner.key_ranges(column)

    def global_filter(self, column: str) -> GlobalFilter | None:
        """Return the filter over all keys of a column, or None if its index has none.

        >>> ds.create_scalar_index("id", global_filter=True)
        >>> ds.global_filter("id").sbbf.check([42, -1])
        array([ True, False])
        """
        return self.opened.planner.global_filter(column)

    def prewarm_index(self, name: str) -> None:
        """Load an index into memory, and compile or load the kernels that search it.

        Raises
        ------
        IndexNotFound

        Examples
        --------
        >>> ds.prewarm_index("id_idx")
        """
        self.opened.index_entry(name)
        import zonebloom.sbbf.blocks  # noqa: F401

        for table in self.opened.planner.loaded_indices[name].tables():
            table.verify()

    def index_to_lance(self, name: str, path: str) -> None:
        """Write an index as the ``bloomfilter.lance`` file of a Lance dataset.

        The file contains the fragment ids of this dataset. To add the index to a Lance dataset,
        use `zonebloom.exchange.lance.commit_to_lance`.

        Raises
        ------
        CorruptIndex
            If a segment is damaged.

        Examples
        --------
        >>> ds.index_to_lance("id_idx", "bloomfilter.lance")
        """
        from zonebloom.exchange.lance import to_lance

        entry, path = self.opened.index_entry(name), arguments.require_path(path, "path")
        tables = self.opened.planner.loaded_indices[name].tables()
        if len(tables) < len(entry.segments):
            raise CorruptIndex(
                f"{len(entry.segments) - len(tables):,} of {len(entry.segments):,} segments of "
                f"index {name!r} are damaged; call create_scalar_index again"
            )
        to_lance(tables, path)

    def validate_index(self, name: str, *, sample: int | Literal["all"] = 16) -> ValidatedIndex:
        """Read a whole index, and compare it with its checksums and with rows of the files.

        This method reads some zones of the files, and looks up their values in every part of the
        index: filters, null flags, key ranges and the global filter. Page maps must lead to the
        same rows. If the index did not contain a value, lookups would miss its rows.

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
        from zonebloom.index.validate import validate_index

        opened, entry = self.opened, self.opened.index_entry(name)
        coverage = opened.planner.coverage()
        return validate_index(
            opened.catalog, entry, opened.version, opened.source, coverage, sample
        )

    def __str__(self) -> str:
        indices = [str(index) for index in self.describe_indices()] or [NO_INDEX]
        return "\n".join([f"<{self._title()}>", *(f"  {line}" for line in indices)])

    def __repr__(self) -> str:
        names = ", ".join(self.opened.version.indices)
        return f"<{self._title()}; {f'indices: {names}' if names else 'no index'}>"

    def _title(self) -> str:
        count = len(self.opened.source.fragments)
        return (
            f"zonebloom.Dataset {self.title}: {count:,} "
            f"{self.opened.source.format.default_extname} {'file' if count == 1 else 'files'}, "
            f"{len(self.schema.names)} columns"
        )

    def _repr_html_(self) -> str:
        indices = self.describe_indices()
        table = table_html(INDEX_HEADERS, list(map(index_cells, indices)))
        return styled_html(title_html(self._title()), table if indices else list_html([NO_INDEX]))


def _values(row: dict[str, Any]) -> list[object]:
    return list(row.values())
