"""How what the commands found looks as text, and as the values that JSON has."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from zonebloom.base.text import align_cells, bytes_text, table_text, text_width

if TYPE_CHECKING:
    from zonebloom.advise.judge import Advice
    from zonebloom.cli.demo import LookupResult
    from zonebloom.scan.explain import ScanPlan
    from zonebloom.scan.plan import ScanStats

FAILED = 1
FOUND_NOTHING = 3

_CELL_WIDTH = 40
# Of rows, in a terminal that is not told how many.
SHOWN_ROWS = 40


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def json_safe(value: Any) -> Any:
    """A value as JSON has it: times ISO 8601, binary base64, decimals text, NaN null."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case bytes():
            return base64.b64encode(value).decode()
        case decimal.Decimal():
            return str(value)
        case datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return value.total_seconds()
        case dict():
            return {str(key): json_safe(each) for key, each in value.items()}
        case list() | tuple():
            return [json_safe(each) for each in value]
    return value


def rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table, with no column whose values Python's types would round."""
    for at, field in enumerate(table.schema):
        if pa.types.is_temporal(field.type) and getattr(field.type, "unit", None) == "ns":
            column = table.column(at)
            if pa.types.is_duration(field.type):
                column = column.cast(pa.int64())
            else:
                texts = column.cast(pa.string()).to_pylist()
                texts = [each if each is None else each.replace(" ", "T") for each in texts]
                column = pa.array(texts, pa.string())
            table = table.set_column(at, field.name, column)
    return table.to_pylist()


def rows_text(table: pa.Table, width: int | None = None) -> str:
    """A table's rows aligned, long cells cut, numbers to the right as they are; with a width, as
    many columns as fit, and the names of the others."""
    names = table.schema.names
    lines = [[_cut(name) for name in names]]
    lines += [[_cell(row[name]) for name in names] for row in rows(table)]
    right = [_is_number(field.type) for field in table.schema]
    fitting = _fitting(lines, width) if width is not None else len(names)
    shown = align_cells([line[:fitting] for line in lines], right[:fitting])
    if fitting == len(names):
        return shown
    others = textwrap.fill(", ".join(lines[0][fitting:]), width or 0, subsequent_indent="  ")
    left = count(len(names) - fitting, "more column")
    return f"{shown}\n{left}, which --columns can name:\n  {others}"


def _fitting(lines: list[list[str]], width: int) -> int:
    """How many columns fit, the first in any case."""
    ends = accumulate(max(map(text_width, column)) + 2 for column in zip(*lines, strict=True))
    return max(sum(end - 2 <= width for end in ends), 1)


def _is_number(arrow_type: pa.DataType) -> bool:
    t = pa.types
    return t.is_integer(arrow_type) or t.is_floating(arrow_type) or t.is_decimal(arrow_type)


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bytes():
            return _cut(value.hex())
        case datetime.datetime():
            return value.isoformat(" ")
        case list() | dict():
            return _cut(json.dumps(json_safe(value), ensure_ascii=False))
    return _cut(str(value))


def _cut(text: str) -> str:
    """At most so wide, with nothing in it that a terminal would obey."""
    clean = "".join(
        character if character.isprintable() else repr(character)[1:-1]
        for character in text[: _CELL_WIDTH + 1]
    )
    if len(text) <= _CELL_WIDTH and text_width(clean) <= _CELL_WIDTH:
        return clean
    while text_width(clean) >= _CELL_WIDTH:
        clean = clean[:-1]
    return clean + "…"


def indices_text(described: list[Any], figures: Sequence[dict[str, Any]] | None = None) -> str:
    from zonebloom.index.describe import INDEX_HEADERS, index_cells

    headers, lines = list(INDEX_HEADERS), list(map(index_cells, described))
    if figures is not None:
        headers += ["fill", "fpp"]
        for line, each in zip(lines, figures, strict=True):
            line += [each["fill_mean"], each["estimated_fpp_mean"]]
    return table_text(headers, lines)


def advices_text(advices: Iterable[Advice]) -> str:
    """What decides, for a terminal that is too narrow for all figures."""
    lines = [
        [
            each.column,
            "-" if each.distinct is None else bytes_text(each.index_bytes or 0),
            each.zones_with_index,
            each.num_zones,
            each.verdict.partition(":")[0],
        ]
        for each in advices
    ]
    table = table_text(["column", "size", "zones read", "without", "verdict"], lines)
    return f"{table}\nall figures and reasons: in a wider terminal, or with --output json"


def lookups_text(results: list[LookupResult]) -> str:
    headers = ["filter", "rows", "zones kept", "read", "no index"]
    lines = [
        [
            each.filter if each.same_rows else f"ROWS DIFFER: {each.filter}",
            each.rows,
            f"{each.kept_zones} of {each.num_zones}",
            bytes_text(each.index_bytes + each.data_bytes),
            bytes_text(each.scan_bytes),
        ]
        for each in results
    ]
    return table_text(headers, lines)


def count(number: int, noun: str) -> str:
    """A number of things.

    >>> count(1, "row"), count(2000, "key")
    ('1 row', '2,000 keys')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def more_text(number: int, noun: str) -> str:
    """What a terminal leaves out, and how to see it."""
    return f"{count(number, f'more {noun}')}: --limit N shows N, -o FILE writes all"


def read_text(plan: ScanPlan, stats: ScanStats) -> str:
    zones = " and ".join(map(str, plan.indices))
    return (
        f"{count(stats.rows_found, 'row')}; {zones or 'no index used'}; read "
        f"{bytes_text(stats.data_bytes)} of data and {bytes_text(stats.index_bytes)} of index in "
        f"{stats.seconds * 1000:,.1f} ms"
    )


def plan_json(plan: ScanPlan) -> dict[str, Any]:
    return {
        "filter": None if plan.filter is None else str(plan.filter),
        "columns": plan.columns,
        "num_fragments": plan.num_fragments,
        "skipped": plan.skipped,
        "fragments": [
            {
                "path": each.fragment.path,
                # null reads all of it, and why is told.
                "ranges": None if each.rows is None else list(each.rows),
                "why": each.reason,
            }
            for each in plan.fragments
        ],
        "indices": [asdict(use) for use in plan.indices],
        "unanswered": [{"part": part, "why": why} for part, why in plan.unanswered],
    }
