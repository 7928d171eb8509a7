"""The report's tables in Markdown: every figure beside what it is of zonebloom's, or of others'."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.competitors import SCANS, LanceBloom, ZoneBloom, ZoneBloomFilter
from bench.data import DataSet
from bench.measures import BATCH, IN_SIZES, Measured, Timed, in_name
from bench.scale import Scaled

OURS = ZoneBloom.name
Column = tuple[str, Callable[[Measured], float | None], Callable[[float], str]]


def time_text(seconds: float) -> str:
    """A time with three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def size_text(num_bytes: float) -> str:
    """A size with three digits."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{_digits(num_bytes / size)} {unit}"
    return f"{num_bytes:.0f} B"


def count_text(count: float) -> str:
    """A count with three digits."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{_digits(count / size)} {unit}"
    return _digits(count)


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _per_row(num_bytes: float) -> str:
    return f"{num_bytes:.3g} B" if num_bytes else "0"


COLUMNS: tuple[Column, ...] = (
    ("build, rows/s", lambda each: each.build_rows_per_second, count_text),
    ("index a row", lambda each: each.index_bytes_per_row, _per_row),
    ("first lookup", lambda each: each.first and each.first.seconds, time_text),
    ("read from disk", lambda each: each.first and each.first.storage_bytes, size_text),
    ("false zones", lambda each: each.false_zones, lambda value: f"{value:.3g}"),
)


def full_table(measured: Sequence[Measured]) -> list[str]:
    """All figures of one data set, a row a competitor."""
    ours = next((each for each in measured if each.competitor == OURS), None)
    asked = [_warm(name) for name in measured[0].warm if name != BATCH]
    rate: Column = (
        "batch, keys/s",
        lambda each: each.batch_keys / each.warm[BATCH].wall,
        count_text,
    )
    columns = (*COLUMNS, *asked, rate)
    lines = _header([name for name, *_ in columns])
    for each in measured:
        cells = []
        for _, of, text in columns:
            value, against = of(each), of(ours) if ours else None
            cells.append(_cell(value, against, text, alone=each is ours))
        lines.append(f"| {each.competitor} | {' | '.join(cells)} |")
    return lines


def _warm(name: str) -> Column:
    return (name, lambda each: each.warm[name].wall, time_text)


def ratio_table(measured: Sequence[Measured]) -> list[str]:
    """What our lookups take of others' time, data sets of one layout one below another."""
    names = list(dict.fromkeys(name for each in measured for name in each.warm))
    lines = _header(["", *names], "data")
    for data in dict.fromkeys(each.data.name for each in measured):
        by_name = {each.competitor: each.warm for each in measured if each.data.name == data}
        ours = by_name.get(OURS)
        if ours is None:
            continue
        times = {name: time_text(ours[name].wall) for name in ours}
        rows = {f"{data} | {OURS}": times}
        for label, peers in _AGAINST.items():
            warm = [by_name[peer] for peer in peers if peer in by_name]
            if warm:
                rows[f" | of {label}"] = {name: _share(name, ours, warm) for name in ours}
        for label, cells in rows.items():
            lines.append(f"| {label} | {' | '.join(cells.get(name, '') for name in names)} |")
    return lines


# The least of each group's times is what ours is divided by.
_AGAINST = {
    LanceBloom.name: (LanceBloom.name,),
    "the best scan": tuple(each.name for each in SCANS),
    "`to_table(filter=)`": (ZoneBloomFilter.name,),
}


# Rare keys, one and many, and a key that is in every zone.
LOOKUPS = (
    ("random int64", 1),
    ("uuid, 36 bytes", 1),
    ("uuid, 36 bytes", 100),
    ("uuid, 36 bytes", 10_000),
    ("text, 1,000 distinct", 1),
)


def lookup_table(
    measured: Sequence[Measured], lookups: Sequence[tuple[str, int]] = LOOKUPS
) -> list[str]:
    """What lookups take in files of each layout; in brackets, of the best scan's time and of
    Lance's."""
    lines = _header([f"{data}: {in_name(count)}" for data, count in lookups], "layout")
    names = {data for data, _ in lookups}
    for layout in dict.fromkeys(each.data.layout for each in measured if each.data.name in names):
        cells = []
        for data, count in lookups:
            warm = {
                each.competitor: each.warm[in_name(count)].wall
                for each in measured
                if (each.data.name, each.data.layout) == (data, layout)
            }
            ours = warm[OURS]
            scan, lance = min(warm[each.name] for each in SCANS), warm[LanceBloom.name]
            cells.append(f"{time_text(ours)}<br>({ours / scan:.2g}, {ours / lance:.2g})")
        lines.append(f"| {layout} | {' | '.join(cells)} |")
    return lines


def shares_of_scans(measured: Sequence[Measured]) -> dict[DataSet, dict[int, float]]:
    """What our lookups take of the best scan's time, by keys of IN; of each data set and layout."""
    found: dict[DataSet, dict[int, float]] = {}
    for data in dict.fromkeys(each.data for each in measured):
        warm = {each.competitor: each.warm for each in measured if each.data == data}
        found[data] = {
            count: warm[OURS][name].wall / min(warm[each.name][name].wall for each in SCANS)
            for count in IN_SIZES
            if (name := in_name(count)) in warm[OURS]
        }
    return found


def _share(name: str, ours: dict[str, Timed], others: Sequence[dict[str, Timed]]) -> str:
    wall, cpu = (min(times) for times in zip(*(each[name] for each in others), strict=True))
    return f"{_digits(ours[name].wall / wall)} ({_digits(ours[name].cpu / cpu)})"


def import_table(measured: Sequence[Measured]) -> list[str]:
    """What importing takes, and the most memory of a process with one lookup: least of all."""
    lines = _header(["imports", "memory"])
    for name in dict.fromkeys(each.competitor for each in measured):
        runs = [each.first for each in measured if each.competitor == name and each.first]
        if runs:
            seconds = min(run.import_seconds for run in runs)
            peak = min(run.peak_bytes for run in runs)
            lines.append(f"| {name} | {time_text(seconds)} | {size_text(peak)} |")
    return lines


def scale_table(scaled: Sequence[Scaled]) -> list[str]:
    """Lookups in the index alone, by rows and layout."""
    lines = _header(
        [
            "index",
            "build",
            "first lookup",
            "read from disk",
            "memory",
            "one key",
            "batch, keys/s",
            "memory, all",
            "false zones",
        ],
        "rows, zones, layout",
    )
    for each in scaled:
        disk = each.cold_storage_bytes
        cells = [
            size_text(each.index_bytes),
            time_text(each.build_seconds),
            time_text(each.cold_seconds),
            "" if disk is None else size_text(disk),
            size_text(each.cold_peak_bytes),
            time_text(each.warm_seconds),
            count_text(each.batch_keys_per_second),
            size_text(each.peak_bytes),
            f"{each.false_zones:.3g}",
        ]
        what = f"{each.rows:,}, {each.num_zones:,}, {each.layout}"
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return lines


def _header(names: Sequence[str], first: str = "") -> list[str]:
    return [
        f"| {first} | {' | '.join(names)} |",
        f"| --- |{' ---: |' * len(names)}",
    ]


def _cell(
    value: float | None, against: float | None, text: Callable[[float], str], *, alone: bool
) -> str:
    if value is None:
        return ""
    if alone or not against or not value:
        return text(value)
    return f"{text(value)} ({_digits(value / against)}×)"
