"""Check the arguments of ``create_scalar_index``, and turn them into specifications of indices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from zonebloom.base import arguments
from zonebloom.catalog.model import DEFAULT_KIND, GlobalFilterEntry, IndexEntry, Segment
from zonebloom.catalog.version_log import utc_now
from zonebloom.errors import FragmentUnreadable, IndexExists, InvalidArgument, UnsupportedType
from zonebloom.index.base_kind import IndexKind
from zonebloom.index.global_filter import GlobalFilterSize
from zonebloom.index.kinds import index_kind, is_known_kind
from zonebloom.index.row_keys.rules import (
    VALUES,
    ElementRule,
    EntryRule,
    KeyRule,
    TokenRule,
    TupleRule,
    column_values,
    columns_of_entry,
    rule_json,
    rule_of,
)
from zonebloom.index.row_keys.tokens import TRIGRAMS, WORDS
from zonebloom.index.table import ZonePart
from zonebloom.parquet.footer import is_encrypted
from zonebloom.scan.opened import OpenedDataset
from zonebloom.sources.column_batches import Column
from zonebloom.storage.files import ReadCounter
from zonebloom.storage.random_access import FragmentFile


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """The specification of one index to build."""

    name: str
    column: Column
    # The parameters that `IndexKind.check_parameters` returned.
    parameters: dict[str, Any]
    # The size of the global filter; None for an index without one.
    global_size: GlobalFilterSize | None = None
    # Stable identifier of the column in the table, which a renaming does not change.
    field: tuple[str, ...] = ()
    kind: str = DEFAULT_KIND
    # The keys that the index holds of each row.
    rule: KeyRule = VALUES
    # The columns of a combination after the first one.
    other_columns: tuple[Column, ...] = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.column, *self.other_columns

    @property
    def range_type(self) -> pa.DataType:
        """The type of the key ranges. Only the values of a column have bounds."""
        return self.column.type if self.rule == VALUES else pa.null()

    @property
    def hashes_values(self) -> bool:
        """Return whether the index holds the hash of the value of each row."""
        return self.rule == VALUES and not index_kind(self.kind).takes_values

    def parts(self, arrays: Sequence[pa.Array]) -> Iterator[ZonePart]:
        """Yield what the writer takes of consecutive rows, of which ``arrays`` are the columns."""
        if index_kind(self.kind).takes_values:
            return column_values(arrays)
        return self.rule.parts(arrays)

    @property
    def global_bytes(self) -> int:
        return 0 if self.global_size is None else self.global_size.num_bytes

    def make_entry(
        self, segments: Sequence[Segment], global_filter: GlobalFilterEntry | None = None
    ) -> IndexEntry:
        return IndexEntry(
            self.name,
            self.column.path,
            self.rule.domain([column.type for column in self.columns]),
            self.kind,
            self.parameters,
            tuple(segments),
            utc_now(),
            global_filter,
            rule_json(self.rule),
            () if self.field == self.column.path else self.field,
        )


@dataclass(slots=True, kw_only=True)
class IndexRequest:
    """The arguments of `Dataset.create_scalar_index`, checked before any file is listed."""

    column: str | tuple[str, ...] | Sequence[str | tuple[str, ...]]
    index_type: str
    name: str | None
    replace: bool
    number_of_items: int | None
    probability: float | None
    fold: bool | None
    global_filter: bool
    plaintext: bool
    train: bool = True
    tokens: str | None = None
    lower: bool = False
    kind: IndexKind = field(init=False)
    # The parameters that the caller gave, with the defaults of the kind, checked.
    _parameters: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        column = self.column
        self.column = _require_targets(column)
        if not self.column:
            raise InvalidArgument("column is an empty list; name at least one")
        for part in self.column:
            if isinstance(part, tuple):
                names = arguments.require_name_list(part, "a combination of columns")
                if len(set(names)) < 2 or len(set(names)) < len(names):
                    raise arguments.invalid_value(
                        part, "column", "name two or more different columns in a tuple"
                    )
        if self.name is not None:
            arguments.require_text(self.name, "name")
            if len(self.column) > 1:
                raise InvalidArgument("several columns need their default names; do not give name")
        self.replace = arguments.require_bool(self.replace, "replace")
        self.global_filter = arguments.require_bool(self.global_filter, "global_filter")
        self.plaintext = arguments.require_bool(self.plaintext, "plaintext")
        self.train = arguments.require_bool(self.train, "train")
        self.lower = arguments.require_bool(self.lower, "lower")
        if self.tokens is not None:
            arguments.require_choice(self.tokens, "tokens", (WORDS, TRIGRAMS))
            if any(isinstance(part, tuple) for part in self.column):
                raise InvalidArgument("tokens are of one column; give no tuple")
        elif self.lower:
            raise InvalidArgument('lower=True is for tokens; also give tokens="words"')
        # A kind may lack a parameter, or have another default.
        chosen_parameters = {
            name: value for name in _PARAMETER_NAMES if (value := getattr(self, name)) is not None
        }
        self.kind = index_kind(self.index_type)
        self._parameters = self.kind.check_parameters(chosen_parameters)

    def make_specs(self, opened: OpenedDataset) -> list[IndexSpec]:
        if not self.plaintext:
            require_encrypted_index(opened)
        size = size_global_filter(opened) if self.global_filter else None
        specs: list[IndexSpec] = []
        entries = dict(opened.version.indices)
        for target in dict.fromkeys(self.column):
            rule, columns = self._rule_and_columns(target, opened)
            name = self.name
            if name is None:
                name = self._default_name(columns, rule, entries)
            specs.append(
                IndexSpec(
                    self._checked_name(name, opened),
                    columns[0],
                    self._parameters,
                    size,
                    opened.source.field_of(columns[0].path),
                    self.kind.name,
                    rule,
                    tuple(columns[1:]),
                )
            )
            entries[name] = specs[-1].make_entry([])
        return specs

    def _default_name(
        self, columns: Sequence[Column], rule: KeyRule, entries: Mapping[str, IndexEntry]
    ) -> str:
        """Return a name that is not that of an index which answers other questions."""
        stem = "_".join([*(column.name for column in columns), *rule.name_parts])
        names = f"{stem}_idx", f"{stem}_{self.kind.name.lower()}_idx"
        keys = tuple(column.path for column in columns), rule.name_parts
        for name in names:
            other = entries.get(name)
            if other is None or not is_known_kind(other.kind):
                return name
            other_keys = columns_of_entry(other), rule_of(other.rule).name_parts
            takes_values = index_kind(other.kind).takes_values
            if (other_keys, takes_values) == (keys, self.kind.takes_values):
                return name
        raise IndexExists(
            f"the indices {names[0]!r} and {names[1]!r} hold other keys; give name= for that of "
            f"{rule.text(keys[0])}"
        )

    def _rule_and_columns(
        self, target: str | tuple[str, ...], opened: OpenedDataset
    ) -> tuple[KeyRule, list[Column]]:
        """Return the rule of the keys of an index, and the columns that it reads."""
        if isinstance(target, tuple):
            columns = [opened.column(name, of_any_type=True) for name in target]
            later_paths = [column.path for column in columns[1:]]
            fields = list(map(opened.source.field_of, later_paths))
            rule: KeyRule = TupleRule(tuple(later_paths), tuple(fields))
        elif self.tokens is not None:
            columns = [opened.column(target, of_any_type=True)]
            rule = TokenRule(self.tokens, self.lower)
        elif "[]" in target and target not in opened.source.schema.names:
            name, _, field_name = target.partition("[]")
            columns = [opened.column(name, of_any_type=True)]
            rule = ElementRule(tuple(field_name.split(".")[1:]))
            if pt.is_map(columns[0].type) and not field_name:
                rule = EntryRule()
        else:
            columns = [opened.column(target, of_any_type=self.kind.takes_values)]
            rule = VALUES
        if self.global_filter and (self.kind.takes_values or rule != VALUES):
            what = f"a {self.kind.name} index" if rule == VALUES else f"an index of {rule.name}"
            raise InvalidArgument(f"{what} has no global filter; leave out global_filter")
        if self.kind.takes_values and rule != VALUES:
            raise InvalidArgument(
                f"a {self.kind.name} index compares the values of one column; give one of another "
                "kind"
            )
        types = [column.type for column in columns]
        name = rule.text([column.path for column in columns])
        reason = (
            self.kind.why_not_indexable(types[0], name)
            if rule == VALUES
            else rule.why_not_indexable(types, [column.name for column in columns])
        )
        if reason is not None:
            raise UnsupportedType(
                f"column {name!r} has type {', '.join(map(str, types))}, which a {self.kind.name} "
                f"index does not take: {reason}"
            )
        return rule, columns

    def _checked_name(self, name: str, opened: OpenedDataset) -> str:
        if not name or len(name) > 255 or not name.isprintable() or "/" in name:
            raise InvalidArgument(
                f"{arguments.short_repr(name)} cannot name an index; give up to 255 printable "
                "characters without '/'"
            )
        if name in opened.version.indices and not self.replace:
            raise IndexExists(
                f"there is an index {name!r} already; give another name, or replace=True"
            )
        return name


def _require_targets(columns: Any) -> list[str | tuple[str, ...]]:
    if isinstance(columns, str | tuple):
        return [columns]
    tuples = [part for part in columns if isinstance(part, tuple)] if _is_list(columns) else []
    if not tuples:
        return list(arguments.require_name_list(columns, "column"))
    arguments.require_name_list([part for part in columns if not isinstance(part, tuple)], "column")
    return list(columns)


def _is_list(columns: Any) -> bool:
    return isinstance(columns, Sequence) and not isinstance(columns, str)


def size_global_filter(
    opened: OpenedDataset, num_items: int | None = None, probability: float | None = None
) -> GlobalFilterSize:
    """Return the size of a global filter. By default, it holds as many keys as there are rows."""
    if num_items is None:
        num_items = max(sum(_row_counts(opened)), 1)
    if probability is None:
        size = GlobalFilterSize.default(num_items)
    else:
        size = GlobalFilterSize(num_items, probability)
    # Computing the bytes raises an error now if an argument is out of range.
    _ = size.num_bytes
    return size


def require_encrypted_index(opened: OpenedDataset) -> None:
    """Raise `InvalidArgument` if an unencrypted index of encrypted files would be built."""
    if opened.catalog.encryption is None and _holds_secrets(opened):
        raise InvalidArgument(
            f"the files in {opened.source.root} are encrypted, but an unencrypted index would "
            "reveal their keys; give encryption= to the dataset or manager, or build with "
            "create_scalar_index(plaintext=True)"
        )


def _holds_secrets(opened: OpenedDataset) -> bool:
    """Return whether the first file is encrypted, or False if its footer cannot be read."""
    if not opened.source.is_parquet or not opened.source.fragments:
        return False
    first, filesystem = opened.look().fragments[0], opened.source.filesystem
    with (
        contextlib.suppress(FragmentUnreadable),
        FragmentFile(filesystem, first.fragment.path, first.identity, ReadCounter()) as file,
    ):
        return is_encrypted(file.num_bytes, file.read)
    return False


def _row_counts(opened: OpenedDataset) -> list[int]:
    snapshot = opened.look()
    return [snapshot.count_rows(file) for file in snapshot.fragments]


# The arguments of `create_scalar_index` that are parameters of an index.
_PARAMETER_NAMES = ("number_of_items", "probability", "fold")
