"""Change the files of a Delta table by a transaction of deltalake."""

from __future__ import annotations

import datetime as dt
import json
import posixpath
import re
import time
import uuid
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from zonebloom.changes.receipt import Trace
from zonebloom.changes.tables import (
    ChangeableTable,
    CommitRefused,
    commit_in_doubt,
    read_log,
)
from zonebloom.changes.writing import FileChange, WrittenFile, columns_without_bounds
from zonebloom.errors import InvalidArgument
from zonebloom.sources.delta_lake import mapping_mode, stored_field
from zonebloom.sources.source import Fragment
from zonebloom.sources.table_snapshot import SnapshotSource
from zonebloom.storage.paths import key_below

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Writer features (PROTOCOL.md, "Valid Feature Names in Table Features") that deltalake writes, and
# that do not matter for files without any of the properties below.
_HARMLESS_FEATURES = {
    "appendonly",
    "changedatafeed",
    "checkconstraints",
    "columnmapping",
    "deletionvectors",
    "generatedcolumns",
    "invariants",
    "timestampntz",
    "v2checkpoint",
}
# Properties that oblige a writer to more than new files.
_REFUSED_PROPERTIES = {
    "delta.appendOnly": "takes no deletes (delta.appendOnly)",
    "delta.enableChangeDataFeed": "has a change data feed",
    "delta.enableRowTracking": "tracks rows",
    "delta.enableIcebergCompatV1": "is compatible with Iceberg",
    "delta.enableIcebergCompatV2": "is compatible with Iceberg",
}
_REFUSED_METADATA = {
    "delta.generationExpression": "is generated",
    "delta.identity.start": "is an identity column",
    "delta.invariants": "has an invariant",
    "CHAR_VARCHAR_TYPE_STRING": "has a limited length",
}
_COMMIT = re.compile(r"\d{20}\.json")
_MAX_COMMIT_BYTES = 1 << 31
_NUM_INDEXED_COLUMNS = 32
# Longer texts are no statistics, because they would have to be cut.
_MAX_STATISTICS_CHARACTERS = 64


class _LoggedAction(NamedTuple):
    """The addition or the removal of a file by a commit."""

    version: int
    kind: str
    path: str
    has_statistics: bool


class DeltaChanges(ChangeableTable):
    """A Delta table whose files can be replaced; see `ChangeableTable`."""

    kind = "delta"
    other_commands = "delete and merge of deltalake"

    def __init__(self, table: DeltaTable):
        super().__init__()
        self._table = table
        self.location = table.table_uri
        size = table.metadata().configuration.get("delta.targetFileSize", "")
        if size.isdigit():
            self.target_bytes = int(size)

    @property
    def version(self) -> str:
        return str(self._table.version())

    def load_newest(self) -> None:
        self._table.update_incremental()

    def require_changeable(self, changes: Sequence[FileChange]) -> None:
        configuration = self._table.metadata().configuration
        for field in json.loads(self._table.schema().to_json())["fields"]:
            for name, reason in _REFUSED_METADATA.items():
                if name in field.get("metadata", {}):
                    raise self.refused(f"has a column {field['name']!r} that {reason}")
        protocol = self._table.protocol()
        features = {feature.lower() for feature in protocol.writer_features or ()}
        unknown = sorted(features - _HARMLESS_FEATURES)
        if protocol.min_writer_version > 7 or unknown:
            need = ", ".join(unknown) or f"writer version {protocol.min_writer_version}"
            raise self.refused(f"needs {need}, which is not written here")
        for name, reason in _REFUSED_PROPERTIES.items():
            if configuration.get(name, "").lower() == "true":
                raise self.refused(reason)
        constraints = [name for name in configuration if name.startswith("delta.constraints.")]
        if constraints:
            raise self.refused(f"has a check constraint ({constraints[0]})")
        for change in changes:
            fragment = change.present.fragment
            if fragment.deleted_rows:
                raise self.refused(
                    f"has a deletion vector for {fragment.key}, which deltalake cannot remove"
                )
            self._logged_path(fragment)

    def _logged_path(self, fragment: Fragment) -> str:
        key = key_below(fragment.path, self._source.root)
        if posixpath.isabs(key) or key == fragment.path:
            raise self.refused(f"names {fragment.path}, which lies outside of its folder")
        return key

    @property
    def partition_columns(self) -> list[str]:
        return list(self._table.metadata().partition_columns)

    def partition_of(self, fragment: Fragment) -> Hashable:
        assert isinstance(self._source, SnapshotSource)
        values = self._source.values[fragment.path]
        return self._partition(tuple(values[name] for name in self.partition_columns))

    def _partition(self, values: tuple[pa.Scalar, ...]) -> Hashable:
        return tuple(map(_partition_text, values))

    def new_path(self, partition: Any, replaced: Fragment | None) -> str:
        name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
        if replaced is not None:
            return posixpath.join(posixpath.dirname(replaced.path), name)
        return self._hive_path(partition, name)

    def as_stored(
        self, tables: Iterable[pa.Table], schema: pa.Schema
    ) -> tuple[Iterable[pa.Table], pa.Schema]:
        if not self._is_mapped:
            return tables, schema
        fields = self._table_fields()
        logged = pa.schema([fields[name] for name in schema.names])
        stored = pa.schema(map(stored_field, logged))
        return (_with_schema(table.cast(logged), stored) for table in tables), stored

    @property
    def _is_mapped(self) -> bool:
        return mapping_mode(self._table) != "none"

    def _table_fields(self) -> dict[str, pa.Field]:
        """Return the columns by name, with what the log says of each."""
        fields = pa.schema(self._table.schema().to_arrow())  # pyright: ignore[reportArgumentType]
        return {field.name: field for field in fields}

    def stored_names(self, file_names: Collection[str]) -> dict[str, str]:
        if not self._is_mapped:
            return super().stored_names(file_names)
        # The fields inside a column have other names in files, too.
        plain = [field for field in self._table_fields().values() if not pt.is_nested(field.type)]
        names = {field.name: stored_field(field).name for field in plain}
        return {name: stored for name, stored in names.items() if stored in file_names}

    def commit(
        self,
        removed: Sequence[Fragment],
        written: Sequence[WrittenFile],
        summary: Mapping[str, str],
    ) -> list[str]:
        from deltalake import CommitProperties
        from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError
        from deltalake.transaction import AddAction, RemoveAction

        columns = self.partition_columns
        fields = self._table_fields()
        logged_names = [stored_field(fields[c]).name if self._is_mapped else c for c in columns]
        now = int(time.time() * 1000)

        def values(partition: Any) -> dict[str, str | None]:
            return dict(zip(logged_names, partition, strict=True))

        actions: list[Any] = [
            AddAction(
                key_below(file.path, self._source.root),
                file.num_bytes,
                values(file.partition),
                modification_time=now,
                data_change=True,
                stats=self._statistics(file.metadata),
            )
            for file in written
        ]
        actions += [
            RemoveAction(
                self._logged_path(fragment),
                data_change=True,
                deletion_timestamp=now,
                partition_values=values(self.partition_of(fragment)),
            )
            for fragment in removed
        ]
        properties = CommitProperties(
            custom_metadata={"operationParameters": dict(summary)}, max_commit_retries=0
        )
        try:
            self._table.create_write_transaction(
                actions, "append", self._table.schema(), columns, commit_properties=properties
            )
        except CommitFailedError as error:
            raise CommitRefused(str(error)) from None
        except DeltaProtocolError as error:
            raise self.refused(f"refused the commit ({error})") from None
        except DeltaError as error:
            raise commit_in_doubt(self.location, error) from None
        return [file.path for file in written]

    def read_history(self, stored: Collection[str], unreadable: list[Trace]) -> list[_LoggedAction]:
        """Return the additions and removals of files that the log still has, the oldest first."""
        store = self._source.store

        def read(path: str) -> list[_LoggedAction]:
            version = _version_of(path)
            lines = store.read_whole(path, _MAX_COMMIT_BYTES).to_pybytes().splitlines()
            return [
                _LoggedAction(version, kind, self._path_of(file["path"]), bool(file.get("stats")))
                for line in lines
                if line.strip()
                for kind, file in json.loads(line).items()
                if kind in ("add", "remove")
            ]

        def read_or_note(path: str) -> list[_LoggedAction]:
            return read_log(lambda: read(path), path, [str(_version_of(path))], unreadable)

        log = f"{self._log_folder}/"
        commits = sorted(path for path in stored if _COMMIT.fullmatch(path.removeprefix(log)))
        return [*chain(*store.map_requests(read_or_note, commits))]

    def retained_files(self, history: list[_LoggedAction]) -> dict[str, tuple[str, ...]]:
        """Return the data files that only older versions name, as far as the log says."""
        first = history[0].version if history else 0
        added = {file.path: file.version for file in history if file.kind == "add"}
        removed = {file.path: file.version for file in history if file.kind == "remove"}
        current = {fragment.path for fragment in self._source.fragments}
        return {
            path: (_span_text(added.get(path, first), version - 1),)
            for path, version in removed.items()
            if path not in current
        }

    @property
    def _log_folder(self) -> str:
        return posixpath.join(self._source.root, "_delta_log")

    def _path_of(self, logged: str) -> str:
        return posixpath.join(self._source.root, unquote(logged))

    def logs_of(
        self, history: list[_LoggedAction], stored: Collection[str], paths: Collection[str]
    ) -> list[str]:
        """Return the commits and checkpoints that have statistics of such files."""
        actions = (action for action in history if action.path in paths)
        commits = dict.fromkeys(action.version for action in actions if action.has_statistics)
        removals = {file.path: file.version for file in history if file.kind == "remove"}
        # A checkpoint names files until their removal. The log may no longer say when that was.
        last_removal = max((removals.get(path, int(self.version)) for path in paths), default=0)
        checkpoints = [
            path
            for path in sorted(stored)
            if posixpath.dirname(path) == self._log_folder
            and ".checkpoint." in path
            and _version_of(path) < last_removal
        ]
        folder = self._log_folder
        return [
            *(posixpath.join(folder, f"{version:020d}.json") for version in commits),
            *checkpoints,
        ]

    def purge_calls(self) -> tuple[str, ...]:
        return (
            "table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)",
            "table.create_checkpoint(), and the deletion of older files of _delta_log",
        )

    def purge(self) -> None:
        from deltalake.exceptions import CommitFailedError

        self._table.update_incremental()
        try:
            self._table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        except CommitFailedError as error:
            raise CommitRefused(str(error)) from None
        self._table.update_incremental()
        # Readers begin at the checkpoint, and need nothing before it.
        self._table.create_checkpoint()
        for info in self._source.store.list_folder(self._log_folder, recursive=False):
            number = info.base_name.partition(".")[0]
            if number.isdigit() and int(number) < self._table.version():
                self._filesystem.delete_file(info.path)

    def _statistics(self, metadata: pq.FileMetaData) -> str:
        """Return the statistics of a file, as PROTOCOL.md, "Per-file Statistics", says.

        Floats have none, because a footer does not tell whether one is NaN.
        """
        configuration = self._table.metadata().configuration
        limit = int(configuration.get("delta.dataSkippingNumIndexedCols", _NUM_INDEXED_COLUMNS))
        least: dict[str, Any] = {}
        greatest: dict[str, Any] = {}
        nulls: dict[str, int] = {}
        unbounded = columns_without_bounds(metadata)
        for number in range(metadata.num_columns)[: None if limit < 0 else limit]:
            path = metadata.schema.column(number).path
            groups = map(metadata.row_group, range(metadata.num_row_groups))
            parts = [group.column(number).statistics for group in groups]
            if "." in path or not all(part and part.has_null_count for part in parts):
                continue
            nulls[path] = sum(part.null_count for part in parts)
            values = [bound for part in parts if part.has_min_max for bound in (part.min, part.max)]
            if path not in unbounded and values and all(map(_is_bound, values)):
                least[path], greatest[path] = min(values), max(values)
        return json.dumps(
            {
                "numRecords": metadata.num_rows,
                "minValues": least,
                "maxValues": greatest,
                "nullCount": nulls,
            },
            default=dt.date.isoformat,
        )


@dataclass(frozen=True)
class _Renamed:
    """A batch that gives its values with another schema, as Arrow's PyCapsule interface says.

    The buffers are shared, so the types of both schemas differ in names only.
    """

    batch: pa.RecordBatch
    schema: pa.Schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self.schema.__arrow_c_schema__(), self.batch.__arrow_c_array__()[1]


def _with_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with a schema of the same types, but other names, inside its columns too."""
    batches = [pa.record_batch(_Renamed(batch, schema)) for batch in table.to_batches()]
    return pa.Table.from_batches(batches, schema)


def _is_bound(value: Any) -> bool:
    """Return whether a value is a bound in statistics: an integer, a date, or a short text."""
    return type(value) in (int, dt.date) or (
        isinstance(value, str) and len(value) <= _MAX_STATISTICS_CHARACTERS
    )


def _version_of(path: str) -> int:
    """Return the version in the name of a commit or a checkpoint."""
    return int(posixpath.basename(path).partition(".")[0])


def _span_text(first: int | None, last: int) -> str:
    return str(last) if first == last else f"{first} to {last}"


def _partition_text(value: pa.Scalar) -> str | None:
    """Return a partition value as PROTOCOL.md, "Partition Value Serialization", writes it."""
    if not value.is_valid:
        return None
    if pa.types.is_boolean(value.type):
        return "true" if value.as_py() else "false"
    if pa.types.is_timestamp(value.type):
        text = value.cast(pa.timestamp("us", value.type.tz)).as_py()
        if value.type.tz is not None:
            return text.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return text.strftime("%Y-%m-%d %H:%M:%S.%f")
    text = str(value.as_py())
    if not text:
        raise InvalidArgument(
            "rows have an empty text in a partition column, which Delta takes for null; give a null"
        )
    return text
