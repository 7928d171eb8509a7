"""What indices an opened dataset has, what they cover, and whether they are whole."""

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
    """A dataset that says what indices it has, and shows them."""

    def advise(
        self,
        columns: str | Sequence[str] | None = None,
        *,
        number_of_items: int = DEFAULT_NUMBER_OF_ITEMS,
        probability: float = DEFAULT_ZONE_PROBABILITY,
    ) -> Advices:
        """Say which columns are worth an index, from a sample, as `Advices` tell it.

        Parameters
        ----------
        columns : str or list of str, optional
            Those that can be indexed by default.
        number_of_items, probability
            As `Dataset.create_scalar_index` takes them.

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
        """What indices there are, and what they cover of the files as they are now.

        >>> print(ds.describe_indices())
        index         column    zones   rows  files covered  size
        id_idx        id           30  3,000  3 of 3         10.0 kB
        customer_idx  customer     30  3,000  3 of 3         10.0 kB
        >>> ds.describe_indices()[0].num_rows_indexed
        3000
        """
        return describe(self.opened.version.indices.values(), self.opened.planner.coverage())

    def embedded_filters(self) -> DisplayedList[EmbeddedDescription]:
        """The Bloom filters inside the Parquet files themselves, by column.

        A dataset opened with ``embedded_filters=True`` uses them for fragments no index covers;
        every file's footer is read to list them.

        >>> options = {"id": {"ndv": 3000, "fpp": 0.01}}
        >>> pq.write_table(table, "own.parquet", bloom_filter_options=options)
        >>> print(zb.dataset("own.parquet").embedded_filters())
        filters in files  files  row groups  size
        id                    1           1  4.1 kB
        """
        planner = self.opened.planner
        return describe_embedded(
            (column for column in planner.embedded_filters.columns(each.fragment, each.identity))
            for each in planner.coverage().fragments
        )

    def list_indices(self) -> DisplayedList[dict[str, Any]]:
        """The indices as dictionaries with Lance's keys.

        >>> ds.list_indices()[0]
        {'name': 'id_idx', 'type': 'BloomFilter', 'fields': ['id'], ...'num_fragments_indexed': 3}
        """
        indices = [
            {
                "name": each.name,
                "type": "BloomFilter",
                "fields": [each.column],
                "version": self.version,
                "num_fragments_indexed": each.num_fragments_indexed,
            }
            for each in self.describe_indices()
        ]
        return DisplayedList(indices, list(indices[0]) if indices else [], _values, NO_INDEX)

    def index_statistics(self, name: str) -> DisplayedDict:
        """Coverage, size, real fill and estimated false positive probability of an index.

        Returns
        -------
        dict
            Sizes in bytes; ``fill_mean`` and ``fill_max`` are shares of the bits that are set,
            ``estimated_fpp_mean`` and ``estimated_fpp_max`` probabilities. All filters are read.

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
        described = next(each for each in self.describe_indices() if each.name == name)
        return index_statistics(described, entry, self.opened.planner.loaded_indices[name].tables())

    def key_ranges(self, column: str) -> pa.Table:
        """Least and greatest value of an indexed column in each fragment, as built.

        Parameters
        ----------
        column : str
            With an index.

        Returns
        -------
        pyarrow.Table
            A row for each fragment there is, in scan order: ``fragment_id`` uint64, ``path``
            string, ``minimum`` and ``maximum`` (the column's values, in a type Arrow orders;
            null where a fragment holds only nulls and NaN), ``is_known`` bool (False for new
            and changed files, and where no bounds were kept: any value may be there),
            ``has_nan`` bool, ``null_count`` and ``num_rows`` int64 (null where not known).
            Bounds may be wider than the values.

        Examples
        --------
        >>> ds.key_ranges("id").select(["fragment_id", "minimum", "maximum"]).to_pylist()[0]
        {'fragment_id': 0, 'minimum': 0, 'maximum': 2997}
        """
        return self.opened.planner.key_ranges(column)

    def global_filter(self, column: str) -> GlobalFilter | None:
        """The filter over all keys of a column, None when its index was built without.

        >>> ds.create_scalar_index("id", global_filter=True)
        >>> ds.global_filter("id").sbbf.check([42, -1])
        array([ True, False])
        """
        return self.opened.planner.global_filter(column)

    def prewarm_index(self, name: str) -> None:
        """Bring an index into memory, and compile or load the kernels that search it.

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

        Fragment ids in it are this dataset's. To have a Lance dataset use the file, see
        `zonebloom.exchange.lance.commit_to_lance`.

        Raises
        ------
        CorruptIndex
            When a segment is damaged.

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
        """Read an index whole, and hold it against its checksums and the rows of the files.

        Zones are read back from the files, and their values asked of all that the index says:
        filters, null flags, key ranges, the filter over all keys; page maps must give the same
        rows. A value it denies would be lost to a lookup.

        Parameters
        ----------
        name : str
        sample : int or "all"
            How many zones to read: at even distances over all zones of the files that are as
            they were indexed, the first and the last among them, the same ones each time. "all"
            reads the column whole and leaves no doubt; 0 verifies checksums alone.

        Returns
        -------
        ValidatedIndex
            An int, the number of zones. Its ``state`` is "sound", or "stale" when files it
            covers have ``changed`` or are ``gone``: those are scanned, and no row is lost.

        Raises
        ------
        CorruptIndex
            Naming what is damaged, or the rows whose values the index denies.
        SchemaMismatch
            When the column was dropped or has another type, so the index is not used.
        FragmentUnreadable
            When rows cannot be read back.

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
        described = self.describe_indices()
        table = table_html(INDEX_HEADERS, list(map(index_cells, described)))
        return styled_html(title_html(self._title()), table if described else list_html([NO_INDEX]))


def _values(row: dict[str, Any]) -> list[object]:
    return list(row.values())
