"""Describe the files of a dataset and what they share: schema, format, file system and folder."""

from __future__ import annotations

import os
import posixpath
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base.row_ranges import RowRanges
from zonebloom.errors import FragmentUnreadable
from zonebloom.storage.file_view import FieldNames, FileView
from zonebloom.storage.files import FileIdentity
from zonebloom.storage.store import Store, store_of

if TYPE_CHECKING:
    import pyarrow.dataset as pads

    from zonebloom.parquet.encryption_keys import ParquetKeys

Stale: TypeAlias = Literal["read", "raise", "ignore-missing"]


class Fragment(NamedTuple):
    """One file of a dataset. The partition holds the values that its path gives to all rows.

    A fragment with a view differs from the table in names, defaults or deleted rows, so PyArrow's
    dataset cannot scan it.
    """

    path: str  # in the dataset's file system
    key: str  # the path below the dataset's root: its name in the catalog
    partition: pads.Expression | None = None  # None if the path gives no values
    # None if the file has the table's rows and columns.
    view: FileView | None = None

    @property
    def names(self) -> FieldNames | None:
        return None if self.view is None else self.view.names

    @property
    def defaults(self) -> Mapping[str, pa.Scalar]:
        """The values of columns that the file lacks. Other missing columns are null."""
        return {} if self.view is None else self.view.defaults

    @property
    def deleted_rows(self) -> RowRanges:
        """The offsets of the rows that the table has deleted."""
        return RowRanges() if self.view is None else self.view.deleted


@dataclass(frozen=True, slots=True)
class Source:
    """The files of a dataset, and how they are read."""

    schema: pa.Schema
    file_format: pads.FileFormat | None  # None means Parquet with pyarrow's default options
    filesystem: pafs.FileSystem
    root: str  # the folder that contains all fragments
    fragments: Sequence[Fragment]  # in the order in which `pyarrow.dataset` scans them
    # How scans treat files that changed since they were listed or indexed.
    stale: Stale = field(default="read", kw_only=True)
    # How `schema` relates to the files' own schemas. "first": it is the first file's, and other
    # files may differ. "shared": all files have these types. "cast": other types are cast to these.
    type_agreement: Literal["first", "shared", "cast"] = field(default="shared", kw_only=True)
    # Changes with each version of a table, even if files, names and types stay the same.
    table_version: str = field(default="", kw_only=True)
    # The keys of encrypted Parquet files. They also give the format if `file_format` is None.
    parquet_keys: ParquetKeys | None = field(default=None, kw_only=True, repr=False)
    # True if folders of a list were listed, so a later listing may find other files.
    has_listed_folders: bool = field(default=False, kw_only=True)
    # True if fragments are Parquet files read with pyarrow's default options. Other options may
    # change types, for example read columns as dictionaries, so pyarrow reads those files.
    is_parquet: bool = field(init=False)
    store: Store = field(init=False, repr=False, compare=False)
    # True if a table has deleted rows of a file, or has other names for its columns.
    has_views: bool = field(init=False, repr=False, compare=False)
    _paths: list[str] = field(init=False, repr=False, compare=False)
    # Cached results of `lacks_column_keys`, by path.
    _lacks_keys: dict[str, bool] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    # The results of `partition_columns` and `constant_columns`, which look at all fragments.
    _path_columns: dict[str, set[str]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        is_parquet = self.file_format is None or is_plain_parquet(self.file_format)
        object.__setattr__(self, "is_parquet", is_parquet)
        object.__setattr__(self, "store", store_of(self.filesystem))
        has_views = any(fragment.view is not None for fragment in self.fragments)
        object.__setattr__(self, "has_views", has_views)
        object.__setattr__(self, "_paths", [fragment.path for fragment in self.fragments])

    def __repr__(self) -> str:
        return f"<Source {self.root}, files: {len(self.fragments):,}>"

    @property
    def format(self) -> pads.FileFormat:
        if self.file_format is None and self.parquet_keys is not None:
            return self.parquet_keys.format
        # Import pyarrow.dataset late here and elsewhere, because it imports pandas.
        import pyarrow.dataset as pads

        return pads.ParquetFileFormat() if self.file_format is None else self.file_format

    def open(self, fragment: Fragment, filesystem: pafs.FileSystem) -> pads.Fragment:
        """Return a new pyarrow fragment that reads through a file system and has cached nothing."""
        return self.format.make_fragment(fragment.path, filesystem, fragment.partition)

    def count_rows(self, fragment: Fragment, filesystem: pafs.FileSystem) -> int:
        """Return the number of rows of a fragment, by the metadata of its file if it has some."""
        return self.open(fragment, filesystem).count_rows()

    def with_paths_as_keys(self) -> Source:
        """Return the same source with the whole path of each fragment as its key."""
        fragments = tuple(fragment._replace(key=fragment.path) for fragment in self.fragments)
        return replace(self, fragments=fragments)

    def with_absolute_paths(self) -> Source:
        """Return the same files by paths that do not depend on the working directory."""
        absolute_path = self.store.absolute_path
        root = absolute_path(self.root)
        if root == self.root or os.path.isabs(self.root):
            return self
        fragments = tuple(
            fragment._replace(path=absolute_path(fragment.path)) for fragment in self.fragments
        )
        return replace(self, root=root, fragments=fragments)

    def path_of(self, key: str) -> str:
        """Return the path of a file by its catalog key, also of a file of another dataset."""
        # Either all keys are whole paths or none is, so look at the first fragment only. A whole
        # path need not begin with a slash.
        if any(fragment.key == fragment.path for fragment in self.fragments[:1]):
            return key
        return posixpath.join(self.root, key)

    def partition_columns(self) -> set[str]:
        """Return the columns whose values come from the paths of files, not from their content.

        Other files may store such a column; see `constant_columns`.
        """
        if "any" not in self._path_columns:
            partitioned = (part for part in self.fragments if part.partition is not None)
            names = {name for fragment in partitioned for name in self.constants(fragment)}
            self._path_columns["any"] = names
        return self._path_columns["any"]

    def constant_columns(self) -> set[str]:
        """Return the partition columns that no file has to be read for."""
        if "all" not in self._path_columns:
            columns = set(self.partition_columns()) if self.fragments else set[str]()
            for fragment in self.fragments if columns else ():
                columns &= self.constants(fragment).keys()
                if not columns:
                    break
            self._path_columns["all"] = columns
        return self._path_columns["all"]

    def field_of(self, column: tuple[str, ...]) -> tuple[str, ...]:
        """Return what identifies a column after renaming, or the column itself."""
        return column

    def column_of(self, field: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the column with an identifier that `field_of` returned."""
        return field

    @property
    def is_in_memory(self) -> bool:
        """Return whether the rows are in memory, and not in files."""
        return False

    @property
    def is_table_snapshot(self) -> bool:
        """Return whether the files belong to one version of a Delta or Iceberg table."""
        return False

    def constants(self, fragment: Fragment) -> dict[str, Any]:
        """Return the columns that have the same value in all rows of a fragment, by its path."""
        if fragment.partition is None:
            return {}
        import pyarrow.dataset as pads

        values = pads.get_partition_keys(fragment.partition)
        has_column = self.schema.get_all_field_indices
        return {name: value for name, value in values.items() if has_column(name)}

    def lacks_column_keys(self, fragment: Fragment, filesystem: pafs.FileSystem) -> bool:
        """Return whether a Parquet file has a footer in clear and encrypted columns without keys.

        pyarrow crashes the process when it reads the statistics of such a column, for example to
        apply a filter to row groups. The footer is read once, from ``filesystem``.
        """
        if not self.has_statistics or self.parquet_keys is not None:
            return False
        options = self.format.default_fragment_scan_options
        if getattr(options, "decryption_config", None) is not None:
            return False
        path = fragment.path
        if path not in self._lacks_keys:
            self._lacks_keys[path] = _is_signed(filesystem, path)
        return self._lacks_keys[path]

    @property
    def has_statistics(self) -> bool:
        """Return whether pyarrow skips parts of a fragment by statistics in the file."""
        if self.is_parquet:
            return True
        import pyarrow.dataset as pads

        return isinstance(self.format, pads.ParquetFileFormat)

    @property
    def is_ipc(self) -> bool:
        if self.is_parquet:
            return False
        import pyarrow.dataset as pads

        return isinstance(self.format, pads.IpcFileFormat)

    def scan_whole(
        self,
        fragments: Sequence[tuple[Fragment, tuple[int, ...] | None]],
        filesystem: pafs.FileSystem,
    ) -> Any:
        """Return a pyarrow dataset of fragments, each with all or some of its row groups."""
        import pyarrow.dataset as pads

        if any(fragment.view is not None for fragment, _ in fragments):
            raise ValueError(
                "pyarrow would return deleted rows of this table, or lose its renamed columns"
            )
        arrow_fragments = []
        for fragment, row_groups in fragments:
            arrow_fragment = self.open(fragment, filesystem)
            if row_groups is not None:
                arrow_fragment = arrow_fragment.subset(row_group_ids=list(row_groups))
            arrow_fragments.append(arrow_fragment)
        return pads.FileSystemDataset(arrow_fragments, self.schema, self.format, filesystem)

    def identities(
        self,
        fragments: Sequence[Fragment] | None = None,
        before: Iterable[FileIdentity | None] = (),
    ) -> list[FileIdentity | None]:
        """Return the current identities of fragments, by default all; None for missing files."""
        if fragments is None:
            return self.store.identities(self._paths, before)
        return self.store.identities([fragment.path for fragment in fragments], before)


def _is_signed(filesystem: pafs.FileSystem, path: str) -> bool:
    """Return whether a signature follows the footer, which means that columns are encrypted."""
    import pyarrow.parquet as pq

    try:
        with filesystem.open_input_file(path) as file:
            (length,) = struct.unpack("<I", file.read_at(4, file.size() - 8))
            return pq.read_metadata(file).serialized_size != length
    except (pa.ArrowException, OSError, ValueError, struct.error):
        # Reading the file raises an error if it is damaged or its footer is encrypted.
        return False


def unreadable_dataset(schema: pa.Schema) -> pads.Dataset:
    """Return a PyArrow dataset that has a schema and fails when it is read.

    It stands behind `zonebloom.Dataset`. C++ code that bypasses the methods of that class then
    fails, and never misses a row.
    """
    import pyarrow.dataset as pads

    file_format, filesystem = pads.IpcFileFormat(), pafs.LocalFileSystem()
    # No file can exist at this path. PyArrow's error shows it.
    fragment = file_format.make_fragment(
        "/dev/null/zonebloom.Dataset is read by its Python methods; for other code take "
        "ds.unindexed()",
        filesystem,
    )
    return pads.FileSystemDataset([fragment], schema, file_format, filesystem)


def is_plain_parquet(format: pads.FileFormat) -> bool:
    """Return whether a format is Parquet without options that only pyarrow's scanner supports."""
    import pyarrow.dataset as pads

    return (
        isinstance(format, pads.ParquetFileFormat)
        and format.read_options == pads.ParquetReadOptions()
    )


def stated_row_count(fragment: pads.Fragment) -> int | None:
    """Return the number of rows that a file's metadata states, or None if it states none.

    For a Parquet fragment that was scanned before, the metadata is in memory.
    """
    import pyarrow.dataset as pads

    if isinstance(fragment, pads.ParquetFileFragment):
        # Fragment.count_rows() would also count row groups outside the fragment's subset.
        return sum(group.num_rows for group in fragment.row_groups)
    format = fragment.format if isinstance(fragment, pads.FileFragment) else None
    if isinstance(format, pads.IpcFileFormat) or getattr(format, "default_extname", "") == "orc":
        return fragment.count_rows()
    return None


def require_all_rows(name: str, num_rows: int, num_stated: int | None) -> None:
    """Raise `FragmentUnreadable` if a read returned fewer or more rows than the metadata states.

    PyArrow takes a short read within a column chunk for the end of the chunk.
    """
    if num_stated is not None and num_rows != num_stated:
        raise FragmentUnreadable(
            f"cannot read {name}: {num_rows:,} of {num_stated:,} rows came; try again, and if this "
            "fails again, repair or remove the file"
        )


def assemble_columns(
    schema: pa.Schema,
    names: Sequence[str],
    num_rows: int,
    constants: Mapping[str, Any],
    stored: Mapping[str, pa.Array | pa.ChunkedArray],
    defaults: Mapping[str, pa.Scalar],
) -> pa.Table:
    """Return columns with a dataset's types: constants, stored columns, defaults, or nulls."""
    if names != schema.names:
        schema = pa.schema([schema.field(name) for name in names])
    columns = []
    for name, wanted in zip(schema.names, schema.types, strict=True):
        if name in constants:
            columns.append(pa.repeat(pa.scalar(constants[name], wanted), num_rows))
        elif name not in stored:
            columns.append(missing_column(wanted, num_rows, defaults.get(name)))
        else:
            values = stored[name]
            columns.append(values if values.type == wanted else values.cast(wanted))
    return pa.Table.from_arrays(columns, schema=schema)


def missing_column(kind: pa.DataType, num_rows: int, default: pa.Scalar | None) -> pa.Array:
    """Return a column that a file lacks: its default, or nulls."""
    return pa.nulls(num_rows, kind) if default is None else pa.repeat(default, num_rows)


def groups_with_rows(
    rows: RowRanges, counts: Iterable[int]
) -> Iterator[tuple[int, int, RowRanges]]:
    """Yield the groups that contain rows: number, first row, and the rows counted from there.

    Take no more counts after the group of the last row, because each may cost a read.
    """
    if not rows:
        return
    first, next_row, last_stop = 0, int(rows.starts[0]), rows.stops[-1]
    for number, count in enumerate(counts):
        if count and next_row < first + count:
            is_all = first == 0 and last_stop <= count
            yield number, first, rows if is_all else rows.window(first, first + count)
        first += count
        if next_row < first:
            next_range = int(rows.stops.searchsorted(first, side="right"))
            if next_range == rows.stops.size:
                return
            next_row = int(rows.starts[next_range])
