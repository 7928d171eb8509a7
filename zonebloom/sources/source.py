"""A dataset as pyarrow found it: its files, and what is the same for all of them."""

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
from zonebloom.storage.files import FileIdentity, identities
from zonebloom.storage.paths import key_below

if TYPE_CHECKING:
    import pyarrow.dataset as pads

    from zonebloom.parquet.encryption_keys import ParquetKeys

Stale: TypeAlias = Literal["read", "raise", "ignore-missing"]


class Fragment(NamedTuple):
    """One file of a dataset; the partition is what its path says of every row in it.

    With a view it is not what the table has: PyArrow's dataset cannot scan it.
    """

    path: str  # in the dataset's file system
    key: str  # the path below the dataset's root: its name in the catalog
    partition: pads.Expression | None = None  # None: nothing
    # None: the rows and columns are the table's.
    view: FileView | None = None

    @property
    def names(self) -> FieldNames | None:
        return None if self.view is None else self.view.names

    @property
    def defaults(self) -> Mapping[str, pa.Scalar]:
        """Values of columns that the file does not have; null of others."""
        return {} if self.view is None else self.view.defaults

    @property
    def deleted_rows(self) -> RowRanges:
        """Offsets of the rows that the table has deleted."""
        return RowRanges() if self.view is None else self.view.deleted_rows


@dataclass(frozen=True, slots=True)
class Source:
    schema: pa.Schema
    file_format: pads.FileFormat | None  # None: Parquet by pyarrow's defaults
    filesystem: pafs.FileSystem
    root: str  # the folder all fragments lie below
    fragments: tuple[Fragment, ...]  # in the order `pyarrow.dataset` scans them
    # What becomes of files that are others than when they were listed or indexed.
    stale: Stale = field(default="read", kw_only=True)
    # What is known of the files' own schemas: this one is the first file's, and others may hold
    # more; columns have these types in all; or they may be cast to these.
    type_agreement: Literal["first", "shared", "cast"] = field(default="shared", kw_only=True)
    # What changes with a table even where its files, names and types stay the same.
    table_version: str = field(default="", kw_only=True)
    # Of encrypted files: what the pages, and PyArrow's scan where there is no format, are read by.
    parquet_keys: ParquetKeys | None = field(default=None, kw_only=True, repr=False)
    # True if folders of a list were listed, so that there may be other files later.
    has_listed_folders: bool = field(default=False, kw_only=True)
    # Whether fragments are Parquet read with pyarrow's default options. Options such as columns
    # read as dictionaries change types; those are left to pyarrow.
    is_parquet: bool = field(init=False)
    # Whether files hold encrypted columns, by path.
    _encryption: dict[str, bool] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        is_parquet = self.file_format is None or is_plain_parquet(self.file_format)
        object.__setattr__(self, "is_parquet", is_parquet)

    def __repr__(self) -> str:
        return f"<Source {self.root}, files: {len(self.fragments):,}>"

    @property
    def format(self) -> pads.FileFormat:
        if self.file_format is None and self.parquet_keys is not None:
            return self.parquet_keys.format
        # Imported late, as everywhere: it brings pandas in.
        import pyarrow.dataset as pads

        return pads.ParquetFileFormat() if self.file_format is None else self.file_format

    def open(self, fragment: Fragment, filesystem: pafs.FileSystem) -> pads.Fragment:
        """A pyarrow fragment that reads through the given file system, with nothing cached."""
        return self.format.make_fragment(fragment.path, filesystem, fragment.partition)

    def with_paths_as_keys(self) -> Source:
        """The same, its fragments known by their whole path rather than that below the root."""
        named = tuple(Fragment(e.path, e.path, e.partition, e.view) for e in self.fragments)
        return replace(self, fragments=named)

    def with_absolute_paths(self) -> Source:
        """Return the same local files by paths that do not depend on the working directory."""
        if os.path.isabs(self.root):
            return self
        files = tuple(e._replace(path=os.path.abspath(e.path)) for e in self.fragments)
        return replace(self, root=os.path.abspath(self.root), fragments=files)

    def with_keys_below_root(self) -> Source:
        """Return the same with fragments known by their path below the root, which can be moved."""
        named = (f._replace(key=key_below(f.path, self.root)) for f in self.fragments)
        return replace(self, fragments=tuple(named))

    def path_of(self, key: str) -> str:
        """Where a file lies, of this dataset or another in one catalog, that has a key there."""
        # Of all or of none the key is the whole path, which need not begin with a slash.
        if any(fragment.key == fragment.path for fragment in self.fragments[:1]):
            return key
        return posixpath.join(self.root, key)

    def partition_columns(self) -> set[str]:
        """Columns whose value the path of a file gives, whatever the file holds."""
        named = (each for each in self.fragments if each.partition is not None)
        return {name for fragment in named for name in self.constants(fragment)}

    def field_of(self, column: tuple[str, ...]) -> tuple[str, ...]:
        """What stays of a column when it is renamed; its name where nothing does."""
        return column

    def column_of(self, field: tuple[str, ...]) -> tuple[str, ...] | None:
        """The column that `field_of` says this of."""
        return field

    @property
    def has_views(self) -> bool:
        return any(fragment.view is not None for fragment in self.fragments)

    def constants(self, fragment: Fragment) -> dict[str, Any]:
        if fragment.partition is None:
            return {}
        import pyarrow.dataset as pads

        given = pads.get_partition_keys(fragment.partition)
        return {name: given[name] for name in given if name in self.schema.names}

    def lacks_column_keys(self, fragment: Fragment) -> bool:
        """Return whether a Parquet file has encrypted columns under a footer in clear, and no keys.

        pyarrow ends the process when it asks such a column for its statistics, as it does to
        apply a filter to row groups.
        """
        if not self.has_statistics or self.parquet_keys is not None:
            return False
        options = self.format.default_fragment_scan_options
        if getattr(options, "decryption_config", None) is not None:
            return False
        path = fragment.path
        if path not in self._encryption:
            self._encryption[path] = _is_signed(self.filesystem, path)
        return self._encryption[path]

    @property
    def has_statistics(self) -> bool:
        """Whether pyarrow passes over parts of a fragment by statistics that writers left."""
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
        import pyarrow.dataset as pads

        if any(fragment.view is not None for fragment, _ in fragments):
            raise ValueError(
                "rows that a table deleted would come back, or renamed columns be lost"
            )
        opened = []
        for fragment, row_groups in fragments:
            each = self.open(fragment, filesystem)
            if row_groups is not None:
                each = each.subset(row_group_ids=list(row_groups))
            opened.append(each)
        return pads.FileSystemDataset(opened, self.schema, self.format, filesystem)

    def identities(
        self,
        fragments: Sequence[Fragment] | None = None,
        before: Iterable[FileIdentity | None] = (),
    ) -> list[FileIdentity | None]:
        asked = self.fragments if fragments is None else fragments
        return identities(self.filesystem, (fragment.path for fragment in asked), before)


def _is_signed(filesystem: pafs.FileSystem, path: str) -> bool:
    """Return whether a signature follows the footer, as it does where columns are encrypted."""
    import pyarrow.parquet as pq

    try:
        with filesystem.open_input_file(path) as file:
            (length,) = struct.unpack("<I", file.read_at(4, file.size() - 8))
            return pq.read_metadata(file).serialized_size != length
    except (pa.ArrowException, OSError, ValueError, struct.error):
        # A file that is damaged, or whose footer is encrypted, is refused when it is read.
        return False


def is_plain_parquet(format: pads.FileFormat) -> bool:
    """Whether a format is Parquet without options that only pyarrow's scanner knows."""
    import pyarrow.dataset as pads

    return (
        isinstance(format, pads.ParquetFileFormat)
        and format.read_options == pads.ParquetReadOptions()
    )


def stated_row_count(fragment: pads.Fragment) -> int | None:
    """Return how many rows the metadata of a file states, or None if its format states none.

    Nothing is read for a Parquet fragment that was scanned before.
    """
    import pyarrow.dataset as pads

    if isinstance(fragment, pads.ParquetFileFragment):
        # Fragment.count_rows() counts the row groups that were left out, too.
        return sum(group.num_rows for group in fragment.row_groups)
    format = fragment.format if isinstance(fragment, pads.FileFragment) else None
    if isinstance(format, pads.IpcFileFormat) or getattr(format, "default_extname", "") == "orc":
        return fragment.count_rows()
    return None


def require_all_rows(name: str, num_rows: int, num_stated: int | None) -> None:
    """Raise `FragmentUnreadable` if a read gave other rows than the metadata of its files states.

    PyArrow takes a short read within a column chunk for the end of the chunk.
    """
    if num_stated is not None and num_rows != num_stated:
        raise FragmentUnreadable(
            f"cannot read {name}: {num_rows:,} of {num_stated:,} rows came; try again, and if that "
            "does not help, repair or remove the file"
        )


def assemble_columns(
    schema: pa.Schema,
    names: Sequence[str],
    num_rows: int,
    constants: Mapping[str, Any],
    stored: Mapping[str, pa.ChunkedArray],
    defaults: Mapping[str, pa.Scalar] | None = None,
) -> pa.Table:
    """Columns with a dataset's types: the constants, what a file stores, defaults, or nulls."""
    columns = []
    for name in names:
        wanted = schema.field(name).type
        if name in constants:
            columns.append(pa.repeat(pa.scalar(constants[name], wanted), num_rows))
        elif name not in stored:
            columns.append(missing_column(wanted, num_rows, (defaults or {}).get(name)))
        else:
            values = stored[name]
            columns.append(values if values.type == wanted else values.cast(wanted))
    return pa.Table.from_arrays(columns, schema=pa.schema([schema.field(name) for name in names]))


def missing_column(kind: pa.DataType, num_rows: int, default: pa.Scalar | None) -> pa.Array:
    """A column that a file does not have."""
    return pa.nulls(num_rows, kind) if default is None else pa.repeat(default, num_rows)


def groups_with_rows(
    rows: RowRanges, counts: Iterable[int]
) -> Iterator[tuple[int, int, RowRanges]]:
    """Groups with a wanted row: number, first row, and rows from it on; no count is asked for after
    the last."""
    if not rows:
        return
    first, wanted = 0, int(rows.starts[0])
    for number, count in enumerate(counts):
        if count and wanted < first + count:
            yield number, first, rows.window(first, first + count)
        first += count
        if wanted < first:
            later = int(rows.stops.searchsorted(first, side="right"))
            if later == rows.stops.size:
                return
            wanted = int(rows.starts[later])
