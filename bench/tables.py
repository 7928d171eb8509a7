"""The Markdown tables of the report, which compare figures with those of zonebloom or of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple

from bench.cold import FreshTimes
from bench.competitors import (
    SCANS,
    LanceBloom,
    LanceBTree,
    ZoneBloom,
    ZoneBloomFilter,
    ZoneBloomHash,
)
from bench.data import DataSet
from bench.measures import BATCH, IN_SIZES, LookupTime, Result, in_name
from bench.scale import ScaleResult

OURS = ZoneBloom.name
Column = tuple[str, Callable[[Result], float | None], Callable[[float], str]]


def time_text(seconds: float) -> str:
    """Return a time with three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def size_text(num_bytes: float) -> str:
    """Return a size with three digits."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{_digits(num_bytes / size)} {unit}"
    return f"{num_bytes:.0f} B"


def count_text(count: float) -> str:
    """Return a count with three digits."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{_digits(count / size)} {unit}"
    return _digits(count)


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _per_row(num_bytes: float) -> str:
    return f"{num_bytes:.3g} B" if num_bytes else "0"


COLUMNS: tuple[Column, ...] = (
    ("build, rows/s", lambda result: result.build_rows_per_second, count_text),
    ("index per row", lambda result: result.index_bytes_per_row, _per_row),
    ("first lookup", lambda result: result.first and result.first.seconds, time_text),
    ("read from disk", lambda result: result.first and result.first.storage_bytes, size_text),
    ("false zones", lambda result: result.false_zones, lambda value: f"{value:.3g}"),
)


def full_table(results: Sequence[Result]) -> list[str]:
    """Return all figures of one data set, with a row for each competitor."""
    ours = next((result for result in results if result.competitor == OURS), None)
    warm_columns = [_warm_column(name) for name in results[0].warm if name != BATCH]
    rate: Column = (
        "batch, keys/s",
        lambda result: result.batch_keys / result.warm[BATCH].wall,
        count_text,
    )
    columns = (*COLUMNS, *warm_columns, rate)
    lines = header([name for name, *_ in columns])
    for result in results:
        cells = []
        for _, value_of, text in columns:
            reference = value_of(ours) if ours and result is not ours else None
            cells.append(_cell(value_of(result), reference, text))
        lines.append(f"| {result.competitor} | {' | '.join(cells)} |")
    return lines


def _warm_column(name: str) -> Column:
    return (name, lambda result: result.warm[name].wall, time_text)


def ratio_table(results: Sequence[Result]) -> list[str]:
    """Return the times of zonebloom divided by those of others, for data sets of one layout."""
    names = list(dict.fromkeys(name for result in results for name in result.warm))
    lines = header(["", *names], "data")
    for data in dict.fromkeys(result.data.name for result in results):
        by_name = {result.competitor: result.warm for result in results if result.data.name == data}
        ours = by_name.get(OURS)
        if ours is None:
            continue
        times = {name: time_text(ours[name].wall) for name in ours}
        rows = {f"{data} | {OURS}": times, **_share_rows("of", ours, by_name, _AGAINST)}
        hashed = by_name.get(ZoneBloomHash.name)
        if hashed is not None:
            rows[f" | {ZoneBloomHash.name}"] = {
                name: time_text(hashed[name].wall) for name in hashed
            }
            rows |= _share_rows("HASH of", hashed, by_name, _HASH_AGAINST)
        for label, cells in rows.items():
            lines.append(f"| {label} | {' | '.join(cells.get(name, '') for name in names)} |")
    return lines


def _share_rows(
    prefix: str,
    ours: dict[str, LookupTime],
    by_name: dict[str, dict[str, LookupTime]],
    groups: dict[str, tuple[str, ...]],
) -> dict[str, dict[str, str]]:
    """Return times divided by the shortest time of each group, by label and question."""
    rows = {}
    for label, peers in groups.items():
        warm = [by_name[peer] for peer in peers if peer in by_name]
        if warm:
            rows[f" | {prefix} {label}"] = {name: _share(name, ours, warm) for name in ours}
    return rows


_AGAINST = {
    LanceBloom.name: (LanceBloom.name,),
    "the best scan": tuple(scan.name for scan in SCANS),
    "`to_table(filter=)`": (ZoneBloomFilter.name,),
}
_HASH_AGAINST = {
    LanceBTree.name: (LanceBTree.name,),
    LanceBloom.name: (LanceBloom.name,),
    OURS: (OURS,),
}


def shares_of_scans(results: Sequence[Result]) -> dict[DataSet, dict[int, float]]:
    """Return the time of zonebloom divided by that of the best scan, by number of keys.

    The ratios are given for each data set in each layout.
    """
    shares: dict[DataSet, dict[int, float]] = {}
    for data in dict.fromkeys(result.data for result in results):
        warm = {result.competitor: result.warm for result in results if result.data == data}
        shares[data] = {
            count: warm[OURS][name].wall / min(warm[scan.name][name].wall for scan in SCANS)
            for count in IN_SIZES
            if (name := in_name(count)) in warm[OURS]
        }
    return shares


def _share(name: str, ours: dict[str, LookupTime], peers: Sequence[dict[str, LookupTime]]) -> str:
    wall, cpu = (min(times) for times in zip(*(peer[name] for peer in peers), strict=True))
    return f"{_digits(ours[name].wall / wall)} ({_digits(ours[name].cpu / cpu)})"


def import_table(results: Sequence[Result]) -> list[str]:
    """Return the shortest import time and smallest peak memory of a process with one lookup."""
    lines = header(["imports", "memory"])
    for name in dict.fromkeys(result.competitor for result in results):
        runs = [result.first for result in results if result.competitor == name and result.first]
        if runs:
            seconds = min(run.import_seconds for run in runs)
            peak = min(run.peak_bytes for run in runs)
            lines.append(f"| {name} | {time_text(seconds)} | {size_text(peak)} |")
    return lines


def fresh_table(times_by_layout: Mapping[str, FreshTimes]) -> list[str]:
    """Return the times of new processes that look up one key, by layout."""
    lines = header(["the command", "DuckDB's scan", "first lookup in Python"], "layout")
    for layout, times in times_by_layout.items():
        command, command_cpu, duckdb, duckdb_cpu, _, lookup = map(time_text, astuple(times))
        lines.append(
            f"| {layout} | {command} ({command_cpu}) | {duckdb} ({duckdb_cpu}) | {lookup} |"
        )
    return lines


_SCALE_COLUMNS: tuple[tuple[str, Callable[[ScaleResult], str]], ...] = (
    ("index", lambda result: size_text(result.index_bytes)),
    ("bits per row", lambda result: f"{8 * result.index_bytes / result.rows:.1f}"),
    ("build, per row", lambda result: f"{1e9 * result.build_seconds / result.rows:.0f} ns"),
    ("memory of the build", lambda result: size_text(result.build_peak_bytes)),
    ("first lookup", lambda result: time_text(result.cold_seconds)),
    ("bytes it needs", lambda result: size_text(result.cold_index_bytes)),
    ("read from disk", lambda result: _size_or_nothing(result.cold_storage_bytes)),
    ("its memory", lambda result: size_text(result.cold_peak_bytes)),
    ("one key", lambda result: time_text(result.warm_seconds)),
    ("again", lambda result: time_text(result.again_seconds)),
    ("batch, keys/s", lambda result: count_text(result.batch_keys_per_second)),
    ("per core", lambda result: count_text(result.batch_keys_per_core_second)),
    ("memory, all", lambda result: size_text(result.peak_bytes)),
    ("false zones", lambda result: f"{result.false_zones:.3g}"),
)


def _size_or_nothing(num_bytes: int | None) -> str:
    return "" if num_bytes is None else size_text(num_bytes)


def scale_table(results: Sequence[ScaleResult]) -> list[str]:
    """Return the measurements of the index alone, by rows and layout."""
    lines = header([name for name, _ in _SCALE_COLUMNS], "rows, zones, layout")
    for result in results:
        cells = [text_of(result) for _, text_of in _SCALE_COLUMNS]
        label = f"{result.rows:,}, {result.num_zones:,}, {result.layout}"
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return lines


def header(names: Sequence[str], first: str = "") -> list[str]:
    """Return the first two lines of a table."""
    return [
        f"| {first} | {' | '.join(names)} |",
        f"| --- |{' ---: |' * len(names)}",
    ]


def _cell(value: float | None, reference: float | None, text: Callable[[float], str]) -> str:
    """Return a figure, with its ratio to a reference if there is one."""
    if value is None:
        return ""
    if not reference or not value:
        return text(value)
    return f"{text(value)} ({_digits(value / reference)}×)"
