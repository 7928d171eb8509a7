"""The parameters of the zones of an index and of their filters."""

from __future__ import annotations

from dataclasses import dataclass

from zonebloom.base import arguments
from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT
from zonebloom.catalog.model import DEFAULT_NUMBER_OF_ITEMS
from zonebloom.sbbf.sizing import DEFAULT_ZONE_PROBABILITY, size_for


@dataclass(frozen=True, slots=True)
class ZoneParameters:
    """The parameters of the zones of an index and of their filters."""

    # Rows in a zone. Its filter is sized for as many distinct values.
    number_of_items: int = DEFAULT_NUMBER_OF_ITEMS
    probability: float = DEFAULT_ZONE_PROBABILITY
    # If True, the filter of a zone with few distinct values is halved while `probability` allows.
    # The filters of Lance all have one size.
    fold: bool = True

    def __post_init__(self) -> None:
        limit = MAX_ROWS_PER_FRAGMENT
        if isinstance(self.number_of_items, int) and self.number_of_items > limit:
            advice = f"a fragment has at most {limit:,} rows"
            raise arguments.invalid_value(self.number_of_items, "number_of_items", advice)
        arguments.require_bool(self.fold, "fold")
        size_for(self.number_of_items, self.probability)

    @property
    def filter_bytes(self) -> int:
        return size_for(self.number_of_items, self.probability)
