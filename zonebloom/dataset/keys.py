"""Asking an opened dataset for many keys at once."""

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


Keys: TypeAlias = pa.Array | pa.ChunkedArray | Iterable[Any] | ArrowExport
KeyTable: TypeAlias = pa.Table | Mapping[str, Keys] | ArrowExport


class KeyedDataset(ReadableDataset):
    """A dataset that is asked for many keys at once."""

    def search_many(self, column: str, keys: Keys) -> pa.RecordBatchReader:
        """Ask the index of a column for many keys at once: which zones may hold each.

        Parameters
        ----------
        column : str
            With an index.
        keys : array, series or iterable
            A million at a time is fine: a pyarrow, NumPy, pandas or Polars array or series, any
            object that exports one column to Arrow, or an iterable of Python, NumPy or pandas
            values. They are converted exactly, nanoseconds included, or refused. Keys of the
            column's own type are hashed in bulk. Keys of another type are compared exactly (5.5 is
            in no zone of integers), or refused. For a column of UUIDs they are ``uuid.UUID`` or
            text; for the same as binary(16), ``uuid.UUID`` or bytes.

        Returns
        -------
        pyarrow.RecordBatchReader
            ``key_index`` int64 (position in ``keys``), ``fragment_id`` uint64, ``zone`` uint32
            (number of the zone in its fragment; null for a whole fragment of which the index
            says nothing). Each pair once, in no order; ``read_all`` makes it a table. Null keys
            are in no zone, NaN may be in all.

        Raises
        ------
        InvalidArgument
            When keys are no list, have no common type that holds them exactly, or are of a type
            that is not compared with the column's.

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
        keys: Keys,
        columns: Sequence[str] | None = None,
        *,
        nulls: bool = False,
    ) -> pa.Table:
        """Read the rows that hold one of some keys.

        Parameters
        ----------
        column : str
            An indexed column, or any that could be: without an index all of it is read.
        keys : array, series or iterable
            One or millions, as `search_many` takes them.
        columns : list of str, optional
            All columns by default.
        nulls : bool
            Whether null keys match rows where the column is null; by default they match nothing.

        Returns
        -------
        pyarrow.Table
            ``key_index`` int64 (position in ``keys``) and the columns, in scan order; a row comes
            once for each position of its key. NaN equals nothing, as in SQL.

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

    def locate(self, columns: str | Sequence[str], keys: Keys | KeyTable) -> pa.Table:
        """Tell for each of some keys where its rows lie, and which keys are new.

        Parameters
        ----------
        columns : str or list of str
            An indexed column, or any that could be; or several, of which all must be equal. Those
            with an index tell zones apart. Columns that the paths of the files give
            (``day=2024-05-01``) may be among several: a key is looked for in its own files alone.
        keys : array, series or iterable; a table for several columns
            One or millions, as `lookup` takes them. A table (of pyarrow, pandas, Polars or DuckDB)
            or a dictionary holds the columns by their names.

        Returns
        -------
        pyarrow.Table
            ``key_index`` int64 (position in ``keys``), ``fragment_id`` uint64, ``path`` dictionary
            of string (as in `files`) and ``row`` int64 (number of the row in its file). In the
            order of the keys, a row for each row that equals the key, in scan order, and one of
            nulls for a key that none does. Null and NaN equal nothing.

        Raises
        ------
        ColumnNotFound, UnsupportedType, InvalidArgument, FragmentUnreadable
        FragmentChanged
            When a file is written anew meanwhile; call again.

        Notes
        -----
        An index with ``global_filter=True`` rules keys out that are nowhere before any file is
        read: among many keys of which few are there, most of the time is saved.

        Examples
        --------
        >>> ds.locate("id", [42, -1]).drop_columns("path").to_pylist()
        [{'key_index': 0, 'fragment_id': 1, 'row': 338}, {'key_index': 1, 'fragment_id': None, ...}]
        """
        return self._located(columns, keys).by_key()

    def files_with_keys(self, columns: str | Sequence[str], keys: Keys | KeyTable) -> pa.Table:
        """Tell which files hold rows of some keys, as an erasure request must know.

        Parameters
        ----------
        columns, keys
            As `locate` takes them.

        Returns
        -------
        pyarrow.Table
            A row for each file that holds a key, in scan order: ``path`` string, ``fragment_id``
            uint64, ``num_keys`` int64 (distinct keys) and ``num_rows`` int64 (rows of those).

        Raises
        ------
        As `locate`.

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
        checked = [opened.key_column(arguments.require_text(name, "columns")) for name in names]
        given = [keys] if isinstance(columns, str) else select_key_columns(keys, names)
        return locate_keys(opened.source, opened.planner, checked, given)
