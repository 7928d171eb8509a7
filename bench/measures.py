"""What is measured of one competitor on one data set, always in this order.

build -> answers checked against brute force -> first lookups in fresh processes -> warm
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.cold import FirstLookup, first_lookup
from bench.competitors import Competitor
from bench.data import DataSet, sorted_ids

# A build that takes less is done twice, and the quicker one counts, seconds.
_SHORT_BUILD = 1.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to ask.

    Attributes
    ----------
    keys : int
        Different keys of single lookups, present and absent each.
    seconds : float
        After which a repeated measurement ends; it runs at least once.
    in_sizes : tuple of int
        Keys of an IN, all present.
    batch : int
        Keys of a batch, one in 1,000 of them present.
    cold_runs : int
        Fresh processes.
    """

    keys: int = 200
    seconds: float = 0.2
    in_sizes: tuple[int, ...] = (1, 10, 1_000, 100_000)
    batch: int = 100_000
    cold_runs: int = 2


@dataclass(slots=True)
class Measured:
    """One competitor on one data set; seconds and bytes.

    Attributes
    ----------
    build_rows_per_second : float or None
        None where nothing is built.
    index_bytes_per_row : float
    first : FirstLookup or None
        The median run, of two the quicker one.
    present, absent : float
        Median of warm lookups of one key.
    in_seconds : dict of int to float
        By number of keys, all of them present.
    batch_keys_per_second : float
    false_zones : float or None
        Zones kept that do not hold the key, mean over absent and present keys; None where the
        plan does not tell.
    """

    data: str
    competitor: str
    num_rows: int
    num_zones: int
    build_rows_per_second: float | None = None
    index_bytes_per_row: float = 0.0
    first: FirstLookup | None = None
    present: float = 0.0
    absent: float = 0.0
    in_seconds: dict[int, float] = field(default_factory=dict)
    batch_keys_per_second: float = 0.0
    false_zones: float | None = None


class WrongAnswer(AssertionError):
    """A competitor's rows are not those brute force finds."""


@dataclass(slots=True)
class Questions:
    """The keys all competitors are asked for, and brute force's answers to some."""

    present: list
    absent: list
    many: dict[int, list]
    batch: list
    checked: list[tuple[list, list[tuple]]]
    zones: list[tuple[object, int]]

    @classmethod
    def of(cls, data: DataSet, effort: Effort) -> Questions:
        """Draw the keys of a data set; the same each time."""
        present, absent = data.present(effort.keys), data.absent(effort.keys)
        many = {count: _drawn(data, count) for count in effort.in_sizes if count > 1}
        hits = max(1, effort.batch // 1000)
        batch = data.present(hits, seed=5) + _repeated(data.absent(effort.batch), effort.batch)
        asked = [[present[0]], [absent[0]], present[:5] + absent[:5], *many.values(), batch]
        zones = [(key, 0) for key in absent[:20]]
        zones += [(key, data.zones_of(key)) for key in present[:5]]
        checked = [(keys, data.expected(keys)) for keys in asked]
        return cls(present, absent, many, batch[: effort.batch], checked, zones)


def _drawn(data: DataSet, count: int) -> list:
    return list(dict.fromkeys(data.present(count, seed=3)))


def _repeated(keys: list, count: int) -> list:
    """A column may have fewer absent keys than asked for."""
    return (keys * (count // len(keys) + 1))[:count]


def measure(
    competitor: Competitor, data: DataSet, questions: Questions, effort: Effort
) -> Measured:
    """Measure all there is to measure.

    Raises
    ------
    WrongAnswer
    """
    measured = Measured(data.name, competitor.name, data.num_rows, data.num_zones)
    built = competitor.build()
    if built.seconds is not None:
        if built.seconds < _SHORT_BUILD:
            built = min(built, competitor.build(), key=lambda each: each.seconds or 0.0)
        measured.build_rows_per_second = data.num_rows / built.seconds
    measured.index_bytes_per_row = built.index_bytes / data.num_rows

    competitor.open()
    for keys, expected in questions.checked:
        _check(competitor, data, keys, expected)
    # Pages that this process maps could not be dropped.
    competitor.close()
    keys = questions.present[: effort.cold_runs]
    runs = [first_lookup(data.folder, competitor.name, key) for key in keys]
    runs.sort(key=lambda run: run.seconds)
    measured.first = runs[(len(runs) - 1) // 2] if runs else None

    competitor.open()
    competitor.warm()
    measured.present = _each(competitor, questions.present, effort)
    measured.absent = _each(competitor, questions.absent, effort)
    measured.in_seconds[1] = measured.present
    for count, keys in questions.many.items():
        measured.in_seconds[count] = _repeat(lambda keys=keys: competitor.lookup(keys), effort)
    taken = _repeat(lambda: competitor.batch(questions.batch), effort)
    measured.batch_keys_per_second = len(questions.batch) / taken
    measured.false_zones = _false_zones(competitor, questions)
    competitor.close()
    return measured


def _check(competitor: Competitor, data: DataSet, keys: list, expected: list[tuple]) -> None:
    found = sorted_ids(competitor.lookup(keys), data.row_id)
    if found != expected:
        raise WrongAnswer(
            f"{competitor.name} on {data.name}: {len(found):,} rows of {len(keys):,} keys, "
            f"brute force finds {len(expected):,}"
        )


def _each(competitor: Competitor, keys: list, effort: Effort) -> float:
    """Median seconds of one key, over different keys."""
    competitor.lookup(keys[:1])
    taken: list[float] = []
    until = time.perf_counter() + effort.seconds
    for key in keys:
        started = time.perf_counter()
        competitor.lookup([key])
        taken.append(time.perf_counter() - started)
        if time.perf_counter() > until:
            break
    return statistics.median(taken)


def _repeat(work: Callable[[], object], effort: Effort) -> float:
    """Median seconds of the same work."""
    taken: list[float] = []
    until = time.perf_counter() + effort.seconds
    while not taken or (len(taken) < 20 and time.perf_counter() < until):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def _false_zones(competitor: Competitor, questions: Questions) -> float | None:
    beyond = []
    for key, holding in questions.zones:
        kept = competitor.zones_kept(key)
        if kept is None:
            return None
        # A B-tree keeps rows, less than the zones they are in.
        beyond.append(max(0, kept - holding))
    return statistics.mean(beyond)
