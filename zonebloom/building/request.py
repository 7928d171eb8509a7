"""What ``create_scalar_index`` is asked for, from the call to the indices that are built."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from zonebloom.base import arguments
from zonebloom.building.segments import require_layout
from zonebloom.catalog.model import (
    DEFAULT_ZONE_PROBABILITY,
    GlobalFilterEntry,
    IndexEntry,
    Segment,
    ZoneParameters,
)
from zonebloom.catalog.version_log import utc_now
from zonebloom.errors import FragmentUnreadable, IndexExists, InvalidArgument
from zonebloom.index.describe import INDEX_TYPE
from zonebloom.index.global_filter import GlobalFilterSize
from zonebloom.opened import OpenedDataset
from zonebloom.parquet.footer import is_encrypted
from zonebloom.sources.column_batches import Column
from zonebloom.storage.files import ReadCounter
from zonebloom.storage.random_access import FragmentFile
from zonebloom.values.types import hash_domain


@dataclass(frozen=True, slots=True)
class IndexConfig:
    """Type and parameters of an index, as Lance takes them.

    Parameters
    ----------
    index_type : str
        "bloomfilter", in any case.
    parameters : dict
        Of `ZoneParameters`: number_of_items, probability, sizing.

    Examples
    --------
    >>> ds.create_scalar_index("id", zb.IndexConfig(parameters={"probability": 0.01}))
    >>> ds.index_statistics("id_idx")["probability"]
    0.01
    """

    index_type: str = INDEX_TYPE
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IndexSpec:
    name: str
    column: Column
    parameters: ZoneParameters
    # Of its global filter, if it is to have one.
    global_size: GlobalFilterSize | None = None
    # As the table tells the column, whatever its name.
    field: tuple[str, ...] = ()

    @property
    def global_bytes(self) -> int:
        return 0 if self.global_size is None else self.global_size.num_bytes

    def make_entry(
        self, segments: Sequence[Segment], global_filter: GlobalFilterEntry | None = None
    ) -> IndexEntry:
        return IndexEntry(
            self.name,
            self.column.path,
            hash_domain(self.column.type),
            self.parameters,
            tuple(segments),
            utc_now(),
            global_filter,
            () if self.field == self.column.path else self.field,
        )


@dataclass(slots=True, kw_only=True)
class IndexRequest:
    """What `Dataset.create_scalar_index` is asked to build, refused before any file is listed."""

    column: str | Sequence[str]
    index_type: str | IndexConfig
    name: str | None
    replace: bool
    layout: str
    number_of_items: int
    probability: float
    sizing: str
    fold: bool
    max_false_zones: float | None
    global_filter: bool
    expected_num_items: int | None
    global_probability: float | None
    plaintext: bool
    parameters: ZoneParameters = field(init=False)

    def __post_init__(self) -> None:
        column = self.column
        self.column = (
            [column] if isinstance(column, str) else arguments.require_name_list(column, "column")
        )
        if not self.column:
            raise InvalidArgument("column is an empty list; name at least one")
        if self.name is not None:
            arguments.require_text(self.name, "name")
            if len(self.column) > 1:
                raise InvalidArgument("several columns take their default names; leave name out")
        require_layout(self.layout)
        self.replace = arguments.require_bool(self.replace, "replace")
        self.global_filter = arguments.require_bool(self.global_filter, "global_filter")
        self.plaintext = arguments.require_bool(self.plaintext, "plaintext")
        zones = {each.name: getattr(self, each.name) for each in fields(ZoneParameters)}
        self.parameters = _parameters(self.index_type, zones)

    def make_specs(self, opened: OpenedDataset) -> list[IndexSpec]:
        if not self.plaintext:
            require_encrypted_index(opened)
        parameters = self._for_false_zones(opened)
        size = self._global_size(opened)
        return [
            IndexSpec(
                self._checked_name(f"{name}_idx" if self.name is None else self.name, opened),
                column := opened.column(name),
                parameters,
                size,
                opened.source.field_of(column.path),
            )
            for name in dict.fromkeys(self.column)
        ]

    def _for_false_zones(self, opened: OpenedDataset) -> ZoneParameters:
        """Parameters whose probability is that of so many zones read in vain, if that is given."""
        most, parameters = self.max_false_zones, self.parameters
        if most is None:
            return parameters
        if parameters.probability != DEFAULT_ZONE_PROBABILITY:
            raise InvalidArgument("give probability or max_false_zones, not both")
        if isinstance(most, bool) or not isinstance(most, int | float) or not most > 0:
            raise arguments.invalid_value(most, "max_false_zones", "give a number above 0")
        zones = sum(-(-rows // parameters.number_of_items) for rows in _row_counts(opened)) or 1
        # A filter that lets half through is hardly one.
        return replace(parameters, probability=min(min(most, zones) / zones, 0.5))

    def _global_size(self, opened: OpenedDataset) -> GlobalFilterSize | None:
        num_items, probability = self.expected_num_items, self.global_probability
        if not self.global_filter:
            if num_items is not None or probability is not None:
                raise InvalidArgument(
                    "expected_num_items and global_probability are of a global filter; give "
                    "global_filter=True with them"
                )
            return None
        return size_global_filter(opened, num_items, probability)

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


def size_global_filter(
    opened: OpenedDataset, num_items: int | None = None, probability: float | None = None
) -> GlobalFilterSize:
    """What a global filter is sized for: the rows there are, if no more is said of its keys."""
    if num_items is None:
        num_items = max(sum(_row_counts(opened)), 1)
    if probability is None:
        size = GlobalFilterSize.default(num_items)
    else:
        size = GlobalFilterSize(num_items, probability)
    # Refused now when it is out of range.
    _ = size.num_bytes
    return size


def require_encrypted_index(opened: OpenedDataset) -> None:
    """Refuse to index encrypted files in clear."""
    if opened.catalog.encryption is None and _holds_secrets(opened):
        raise InvalidArgument(
            f"the files in {opened.source.root} are encrypted, and an index of them would tell in "
            "clear what keys they hold; give encryption= to the dataset or manager, or build with "
            "create_scalar_index(plaintext=True)"
        )


def _holds_secrets(opened: OpenedDataset) -> bool:
    """Whether the first file is encrypted, as far as that can be told."""
    if not opened.source.is_parquet:
        return False
    first, filesystem = opened.planner.coverage().fragments[0], opened.source.filesystem
    with (
        contextlib.suppress(FragmentUnreadable),
        FragmentFile(filesystem, first.fragment.path, first.identity, ReadCounter()) as file,
    ):
        return is_encrypted(file.num_bytes, file.read)
    return False


def _row_counts(opened: OpenedDataset) -> list[int]:
    return [opened.planner.count_rows(each) for each in opened.planner.coverage().fragments]


def _parameters(index_type: str | IndexConfig, given: dict[str, Any]) -> ZoneParameters:
    if isinstance(index_type, IndexConfig):
        more = arguments.require_instance(
            index_type.parameters, Mapping, "parameters of an IndexConfig"
        )
        given = {**given, **more}
        index_type = index_type.index_type
    if not isinstance(index_type, str) or index_type.upper() != INDEX_TYPE:
        raise arguments.invalid_value(index_type, "index_type", f"zonebloom builds {INDEX_TYPE!r}")
    known = [each.name for each in fields(ZoneParameters)]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise InvalidArgument(
            f"unknown parameter {', '.join(map(arguments.short_repr, unknown))}; there is "
            f"{', '.join(known)}"
        )
    return ZoneParameters(**given)
