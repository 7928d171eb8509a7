"""Methods that look up many keys at once in an opened dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from zonebloom.base import arguments
from zonebloom.base.exit_guard import GuardedIterator
from zonebloom.dataset.reading import ReadableDataset
from zonebloom.index.batch_lookup import CANDIDATE_SCHEMA
from zonebloom.scan.binding import checked_names
from zonebloom.scan.locate import KeyLocations, locate_keys, select_key_columns
from zonebloom.scan.lookup import lookup_keys


class ArrowExport(Protocol):
    """An object that exports its values to Arrow, such as a Polars Series."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


KeysLike: TypeAlias = pa.Array | pa.ChunkedArray | Iterable[Any] | ArrowExport
KeyTableLike: TypeAlias = pa.Table | Mapping[str, KeysLike] | ArrowExport


class KeyedDataset(ReadableDataset):
    """A dataset whose methods look up many keys at once."""

    def search_many(self, column: str, keys: KeysLike) -> pa.RecordBatchReader:
        """Return the zones that may hold each of many keys, by the index alone.

        Parameters
        ----------
        column : str
            A column with an index.
        keys : array, series or iterable
            A million at a time is fine: a pyarrow, NumPy, pandas or Polars array or series, any
            object that exports one column to Arrow, or an iterable of Python, NumPy or pandas
            values. They are converted exactly, nanoseconds included, or refused. Keys of the
            column's own type are hashed in bulk. Keys of another type are compared exactly (5.5 is
            in no zone of integers), or refused. For a column of UUIDs give ``uuid.UUID`` or
            text; for UUIDs stored as binary(16), ``uuid.UUID`` or bytes.

        Returns
        -------
        pyarrow.RecordBatchReader
            ``key_index`` int64 (position in ``keys``), ``fragment_id`` uint64, ``zone`` uint32
            (number of the zone in its fragment; null for a whole fragment that the index does not
            cover). Each pair comes once, in no order; ``read_all`` returns a table. Null keys are
            in no zone, NaN may be in all.

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
        batches = self.opened.planner.search_many(column, keys)
        return pa.RecordBatchReader.from_batches(CANDIDATE_SCHEMA, GuardedIterator(batches))

    def lookup(
        self,
        column: str,
        keys: KeysLike,
        columns: Sequence[str] | None = None,
        *,
        nulls: bool = False,
    ) -> pa.Table:
        """Read the rows that hold one of the given keys.

        Parameters
        ----------
        column : str
            A column that is or could be indexed. Without an index the whole column is read.
        keys : array, series or iterable
            One or millions, as in `search_many`.
        columns : list of str, optional
            All columns by default.
        nulls : bool
            Whether null keys match rows where the column is null; by default they match nothing.

        Returns
        -------
        pyarrow.Table
            ``key_index`` int64 (position in ``keys``) and the columns, in scan order. A row is
            repeated for each position of its key. NaN equals nothing, as in SQL.

        Raises
        ------
        ColumnNotFound, UnsupportedType, InvalidArgument, FragmentUnreadable

        Examples
        --------
        >>> ds.lookup("id", [42, -1, 7], ["customer"]).to_pylist()
        [{'key_index': 2, 'customer': 'C007'}, {'key_index': 0, 'customer': 'C042'}]
        """
        column, nulls = (
            arguments.require_text(column, "column"),
            arguments.require_bool(nulls, "nulls"),
        )
        opened, names = self.opened, checked_names(columns, self.schema)
        names = self.schema.names if names is None else names
        return lookup_keys(opened.source, opened.planner, opened.column(column), keys, names, nulls)

    def locate(self, columns: str | Sequence[str], keys: KeysLike | KeyTableLike) -> pa.Table:
        """Return the file and row of each given key, or nulls for a key that does not exist.

        Parameters
        ----------
        columns : str or list of str
            A column that is or could be indexed, or several that must all be equal. Columns with
            an index skip zones. Partition columns (``day=2024-05-01`` in the path) may be among
            several: then a key is searched only in the files of its partition.
        keys : array, series or iterable; a table for several columns
            One or millions, as in `lookup`. For several columns give a table (of pyarrow, pandas,
            Polars or DuckDB) or a dictionary with the columns by name.

        Returns
        -------
        pyarrow.Table
            ``key_index`` int64 (position in ``keys``), ``fragment_id`` uint64, ``path`` dictionary
            of string (as in `files`) and ``row`` int64 (number of the row in its file). The table
            is in the order of the keys. It has one row for each row of the dataset that equals
            the key, in scan order, or one row of nulls if there is none. Null and NaN equal
            nothing.

        Raises
        ------
        ColumnNotFound, UnsupportedType, InvalidArgument, FragmentUnreadable
        FragmentChanged
            If a file was rewritten during the call; call again.

        Notes
        -----
        An index with ``global_filter=True`` rules out absent keys before any file is read. If few
        of many keys exist, this saves most of the time.

        Examples
        --------
        >>> ds.locate("id", [42, -1]).drop_columns("path").to_pylist()
        [{'key_index': 0, 'fragment_id': 1, 'row': 338}, {'key_index': 1, 'fragment_id': None, ...}]
        """
        return self._located(columns, keys).by_key()

    def files_with_keys(
        self, columns: str | Sequence[str], keys: KeysLike | KeyTableLike
    ) -> pa.Table:
        """Return the files that contain rows with the given keys, for example to erase them.

        Parameters
        ----------
        columns, keys
            As in `locate`.

        Returns
        -------
        pyarrow.Table
            A row for each file that contains a key, in scan order: ``path`` string,
            ``fragment_id`` uint64, ``num_keys`` int64 (distinct keys) and ``num_rows`` int64 (rows
            with one of them).

        Raises
        ------
        As in `locate`.

        Examples
        --------
        >>> ds.files_with_keys("id", [42, 45, -1]).drop_columns("path").to_pylist()
        [{'fragment_id': 1, 'num_keys': 2, 'num_rows': 2}]
        """
        return self._located(columns, keys).by_file()

    def _located(self, columns: str | Sequence[str], keys: Any) -> KeyLocations:
        opened = self.opened
        names = (
            [columns]
            if isinstance(columns, str)
            else arguments.require_name_list(columns, "columns")
        )
        if not names or len(set(names)) < len(names):
            raise arguments.invalid_value(columns, "columns", "name one at least, each once")
        key_columns = [opened.key_column(arguments.require_text(name, "columns")) for name in names]
        values = [keys] if isinstance(columns, str) else select_key_columns(keys, names)
        return locate_keys(opened.source, opened.planner, key_columns, values)
