"""What is refused before an index is built: columns that cannot carry one, and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zonebloom.catalog.coverage import PresentFragment
from zonebloom.catalog.model import DEFAULT_ITEMS, ZoneParameters
from zonebloom.dataset import Dataset
from zonebloom.errors import InvalidArgument
from zonebloom.sbbf.sizing import size_for
from zonebloom.spark.hyperspace.config import MAX_BYTES, BFIndexConfig

# Footers read for a count of rows; of more files, this many stand for all.
_SAMPLED_FILES = 64


@dataclass(frozen=True, slots=True)
class Estimate:
    """How large an index will be.

    Attributes
    ----------
    num_rows, num_zones : int
    num_columns : int
    num_items : int
        That each global filter is sized for.
    zone_bytes, global_bytes : int
        Of the filters of zones and of the global filters, of all columns.
    is_sampled : bool
        Whether rows were counted in some of the files only.
    """

    num_rows: int
    num_zones: int
    num_columns: int
    num_items: int
    zone_bytes: int
    global_bytes: int
    is_sampled: bool

    @property
    def num_bytes(self) -> int:
        """Of the whole index."""
        return self.zone_bytes + self.global_bytes

    def __str__(self) -> str:
        from zonebloom.text import bytes_text

        about = "about " if self.is_sampled else ""
        columns = "1 column" if self.num_columns == 1 else f"{self.num_columns} columns"
        return (
            f"{bytes_text(self.num_bytes)}: {columns} of {about}{self.num_zones:,} zones "
            f"({about}{self.num_rows:,} rows), {bytes_text(self.zone_bytes)}, and global filters "
            f"for {self.num_items:,} items, {bytes_text(self.global_bytes)}"
        )


def resolve_columns(
    ds: Dataset, asked: Sequence[str], case_sensitive: bool = False
) -> tuple[str, ...]:
    """Names of columns as the files have them."""
    found: list[str] = []
    for name in asked:
        column = ds.opened.column(name, not case_sensitive)
        if column.name in found:
            raise InvalidArgument(f"column {column.name!r} is given twice; name each once")
        found.append(column.name)
    return tuple(found)


def estimate(ds: Dataset, num_columns: int, items: int | None, fpp: float) -> Estimate:
    """Say how large an index will be, from the footers of files."""
    present = ds.opened.planner.coverage().present
    sample = present
    if len(present) > _SAMPLED_FILES:
        step = len(present) / _SAMPLED_FILES
        sample = tuple(present[int(i * step)] for i in range(_SAMPLED_FILES))
    counts = [ds.opened.planner.count_rows(each) for each in sample]
    rows, zones = sum(counts), sum(-(-count // DEFAULT_ITEMS) for count in counts)
    if len(sample) < len(present):
        factor = _num_bytes(present) / max(_num_bytes(sample), 1)
        rows, zones = round(rows * factor), round(zones * factor)
    num_items = max(rows, 1) if items is None else items
    return Estimate(
        rows,
        zones,
        num_columns,
        num_items,
        num_columns * zones * ZoneParameters().filter_bytes,
        num_columns * _global_bytes(num_items, fpp),
        len(sample) < len(present),
    )


def _num_bytes(fragments: Sequence[PresentFragment]) -> int:
    return sum(each.identity.size for each in fragments)


def _global_bytes(items: int, fpp: float) -> int:
    try:
        return size_for(items, fpp, "exact")
    except InvalidArgument as error:
        raise InvalidArgument(
            f"a global filter of {items:,} items at fpp {fpp} would be over 128 MiB; give a larger "
            "fpp, or the number of distinct values as expected_num_items if that is less"
        ) from error


def require_size(found: Estimate, config: BFIndexConfig, most: int) -> None:
    """Refuse an index that would be larger than allowed."""
    from zonebloom.text import bytes_text

    if found.num_bytes > most:
        raise InvalidArgument(
            f"index {config.name!r} would take {found}; {MAX_BYTES} allows {bytes_text(most)}. "
            "Name fewer columns, give a larger fpp or fewer expected_num_items, or raise the limit"
        )
