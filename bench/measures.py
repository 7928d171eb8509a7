"""Measure all competitors on one data set, always in this order.

build -> check answers against brute force -> first lookups in new processes -> warm lookups

Competitors take turns in warm lookups, so that other load on the machine affects all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import NamedTuple

import pyarrow as pa

from bench.cold import FirstLookup, first_lookup
from bench.competitors import Competitor
from bench.data import DataSet, sorted_ids

# A build of fewer seconds runs twice, and the faster one counts.
_SHORT_BUILD = 1.0
ABSENT, BATCH = "absent key", "batch"
# Numbers of keys in an IN, all of them present.
IN_SIZES = (1, 10, 100, 1_000, 10_000, 100_000)


@dataclass(frozen=True, slots=True)
class Effort:
    """The number of keys, turns and runs that `measure` uses.

    Attributes
    ----------
    keys : int
        Number of present keys, and of absent keys, in single lookups.
    turn : int
        Number of lookups in one turn of a competitor.
    seconds : float
        Time for one question and one competitor, after which no more turns start.
    rounds : tuple of int
        Minimum and maximum number of turns.
    in_sizes : tuple of int
        Members of `IN_SIZES`.
    batch : int
        Keys of a batch, of which one in 1,000 is present.
    cold_runs : int
        Number of new processes.
    """

    keys: int = 200
    turn: int = 4
    seconds: float = 0.25
    rounds: tuple[int, int] = (3, 40)
    in_sizes: tuple[int, ...] = IN_SIZES
    batch: int = 100_000
    cold_runs: int = 2


class LookupTime(NamedTuple):
    """The shortest time of a lookup in seconds: on the clock, and as CPU time of all cores."""

    wall: float
    cpu: float


@dataclass(slots=True)
class Result:
    """The measurements of one competitor on one data set, in seconds and bytes.

    Attributes
    ----------
    build_rows_per_second : float or None
        None if nothing is built.
    index_bytes_per_row : float
    first : FirstLookup or None
        The median run, or the faster one of two.
    warm : dict of str to LookupTime
        Times by question: `ABSENT`, those of `in_name`, `BATCH`.
    batch_keys : int
    false_zones : float or None
        The mean number of kept zones that do not contain the key, over absent and present keys;
        None if the plan does not show it.
    """

    data: DataSet
    competitor: str
    build_rows_per_second: float | None = None
    index_bytes_per_row: float = 0.0
    first: FirstLookup | None = None
    warm: dict[str, LookupTime] = field(default_factory=dict)
    batch_keys: int = 0
    false_zones: float | None = None


class WrongAnswer(AssertionError):
    """The rows of a competitor are not those that brute force finds."""


def in_name(count: int) -> str:
    """Return the name of the question for a number of keys, all of them present."""
    return "one key" if count == 1 else f"IN of {count:,}"


@dataclass(slots=True)
class Questions:
    """The keys that all competitors look up, and the answers of brute force to some of them.

    Attributes
    ----------
    lookups : dict of str to list of list
        Lists of keys by question. Each list is one lookup.
    cold_keys : list
        Keys of the first lookups in new processes.
    checks : list of (list, pyarrow.Table)
        Lists of keys, with the row ids that brute force finds.
    zone_counts : list of (key, int)
        Keys, with the number of zones that contain them.
    """

    lookups: dict[str, list[list]]
    cold_keys: list
    checks: list[tuple[list, pa.Table]]
    zone_counts: list[tuple[object, int]]

    @classmethod
    def of(cls, data: DataSet, effort: Effort) -> Questions:
        """Draw the keys of a data set. They are the same each time."""
        present, absent = data.present_keys(effort.keys), data.absent_keys(effort.keys)
        lookups = {ABSENT: [[key] for key in absent], in_name(1): [[key] for key in present]}
        for size in effort.in_sizes:
            keys = data.present_keys(size, seed=3) if size > 1 else []
            # Leave out sizes that the data set does not have enough distinct keys for.
            if 2 * len(keys) > size:
                lookups[in_name(size)] = [keys]
        batch_hits = data.present_keys(max(1, effort.batch // 1000), seed=5)
        lookups[BATCH] = [(batch_hits + data.absent_keys(effort.batch))[: effort.batch]]
        zone_counts = [(key, 0) for key in absent[:20]]
        zone_counts += [(key, data.zones_of(key)) for key in present[:5]]
        mixed_keys = list(dict.fromkeys(present[:5] + absent[:5]))
        checked_keys = [mixed_keys, *(question[0] for question in lookups.values())]
        checks = [(keys, data.expected_ids(keys)) for keys in checked_keys]
        return cls(lookups, present[: effort.cold_runs], checks, zone_counts)


def measure(
    competitors: Sequence[Competitor], data: DataSet, questions: Questions, effort: Effort
) -> list[Result]:
    """Measure all competitors on a data set.

    Raises
    ------
    WrongAnswer
    """
    # The copy has no cached keys, which would stay in memory with the results.
    data = replace(data)
    results = [_measure_alone(competitor, data, questions) for competitor in competitors]
    for competitor in competitors:
        competitor.open()
        competitor.warm()
    for name, lookups in questions.lookups.items():
        times = _measure_in_turns(competitors, lookups, effort)
        for result, timed in zip(results, times, strict=True):
            result.warm[name] = timed
    for competitor, result in zip(competitors, results, strict=True):
        result.batch_keys = len(questions.lookups[BATCH][0])
        result.false_zones = _false_zones(competitor, questions)
        competitor.close()
    return results


def _measure_alone(competitor: Competitor, data: DataSet, questions: Questions) -> Result:
    """Build, check answers, and measure first lookups of one competitor."""
    result = Result(data, competitor.name)
    build = competitor.build()
    if build.seconds is not None:
        if build.seconds < _SHORT_BUILD:
            build = min(build, competitor.build(), key=lambda run: run.seconds or 0.0)
        result.build_rows_per_second = data.num_rows / build.seconds
    result.index_bytes_per_row = build.index_bytes / data.num_rows
    competitor.open()
    for keys, expected in questions.checks:
        _check(competitor, data, keys, expected)
    # Close the competitor, because pages that this process maps cannot be dropped.
    competitor.close()
    runs = [first_lookup(data.folder, competitor.name, key) for key in questions.cold_keys]
    runs.sort(key=lambda run: run.seconds)
    result.first = runs[(len(runs) - 1) // 2] if runs else None
    return result


def _check(competitor: Competitor, data: DataSet, keys: list, expected: pa.Table) -> None:
    ids = sorted_ids(competitor.lookup(keys), data.row_id)
    if not ids.equals(expected):
        raise WrongAnswer(
            f"{competitor.name} on {data.name}: {ids.num_rows:,} rows of {len(keys):,} keys, "
            f"brute force finds {expected.num_rows:,}"
        )


def _measure_in_turns(
    competitors: Sequence[Competitor], lookups: list[list], effort: Effort
) -> list[LookupTime]:
    """Return the shortest time of each competitor. All look up the same keys in a turn."""
    turns = _endless_turns(lookups, effort.turn)
    first_turn = next(turns)
    for competitor in competitors:
        _time_turn(competitor, first_turn)
    times: list[list[LookupTime]] = [[] for _ in competitors]
    deadline = time.perf_counter() + effort.seconds * len(competitors)
    min_turns, max_turns = effort.rounds
    for number, turn in zip(range(max_turns), turns, strict=False):
        if number >= min_turns and time.perf_counter() > deadline:
            break
        order = list(range(len(competitors)))
        # Reverse the order in every other turn, because threads of the competitor before may still
        # be running.
        for index in order if number % 2 else reversed(order):
            times[index].append(_time_turn(competitors[index], turn))
    return [LookupTime(*map(min, zip(*turn_times, strict=True))) for turn_times in times]


def _endless_turns(lookups: list[list], count: int) -> Iterator[list[list]]:
    """Yield lists of at most ``count`` lookups, and start again after the last one."""
    endless = cycle(lookups)
    while True:
        yield list(islice(endless, min(count, len(lookups))))


def _time_turn(competitor: Competitor, lookups: list[list]) -> LookupTime:
    """Return the mean time of the lookups of one turn."""
    start, cpu_start = time.perf_counter(), time.process_time()
    for keys in lookups:
        competitor.lookup(keys)
    cpu_seconds = time.process_time() - cpu_start
    return LookupTime((time.perf_counter() - start) / len(lookups), cpu_seconds / len(lookups))


def _false_zones(competitor: Competitor, questions: Questions) -> float | None:
    counts = []
    for key, num_zones in questions.zone_counts:
        kept_zones = competitor.zones_kept(key)
        if kept_zones is None:
            return None
        # A B-tree keeps rows, which may be fewer than the zones they are in.
        counts.append(max(0, kept_zones - num_zones))
    return statistics.mean(counts)
