"""What is measured of all competitors on one data set, always in this order.

build -> answers checked against brute force -> first lookups in fresh processes -> warm lookups,
all competitors taking turns, so that what else the machine does falls on each alike
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

# A build that takes less is done twice, and the quicker one counts, seconds.
_SHORT_BUILD = 1.0
ABSENT, BATCH = "absent key", "batch"
# Keys of an IN, all present.
IN_SIZES = (1, 10, 100, 1_000, 10_000, 100_000)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to ask.

    Attributes
    ----------
    keys : int
        Different keys of single lookups, present and absent each.
    turn : int
        Of them a competitor is asked for in one turn.
    seconds : float
        After which a question is asked no more, for each competitor.
    rounds : tuple of int
        Turns of each, at least and at most.
    in_sizes : tuple of int
        Of `IN_SIZES`.
    batch : int
        Keys of a batch, one in 1,000 of them present.
    cold_runs : int
        Fresh processes.
    """

    keys: int = 200
    turn: int = 4
    seconds: float = 0.25
    rounds: tuple[int, int] = (3, 40)
    in_sizes: tuple[int, ...] = IN_SIZES
    batch: int = 100_000
    cold_runs: int = 2


class Timed(NamedTuple):
    """Seconds of a lookup, the least of all turns: on the clock, and of all cores."""

    wall: float
    cpu: float


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
    warm : dict of str to Timed
        By question: `ABSENT`, those of `in_name`, `BATCH`.
    batch_keys : int
    false_zones : float or None
        Zones kept that do not hold the key, mean over absent and present keys; None where the
        plan does not tell.
    """

    data: DataSet
    competitor: str
    build_rows_per_second: float | None = None
    index_bytes_per_row: float = 0.0
    first: FirstLookup | None = None
    warm: dict[str, Timed] = field(default_factory=dict)
    batch_keys: int = 0
    false_zones: float | None = None


class WrongAnswer(AssertionError):
    """A competitor's rows are not those brute force finds."""


def in_name(count: int) -> str:
    """The question for so many keys, all present."""
    return "one key" if count == 1 else f"IN of {count:,}"


@dataclass(slots=True)
class Questions:
    """The keys all competitors are asked for, and brute force's answers to some.

    Attributes
    ----------
    asked : dict of str to list of list
        By question, lists of keys that take turns.
    """

    asked: dict[str, list[list]]
    cold: list
    checked: list[tuple[list, pa.Table]]
    zones: list[tuple[object, int]]

    @classmethod
    def of(cls, data: DataSet, effort: Effort) -> Questions:
        """Draw the keys of a data set; the same each time."""
        present, absent = data.present(effort.keys), data.absent(effort.keys)
        many = {in_name(n): data.present(n, seed=3) for n in effort.in_sizes if n > 1}
        sizes = {in_name(n): n for n in effort.in_sizes}
        # Of few distinct keys no more can be asked for.
        many = {name: keys for name, keys in many.items() if 2 * len(keys) > sizes[name]}
        hits = data.present(max(1, effort.batch // 1000), seed=5)
        batch = (hits + data.absent(effort.batch))[: effort.batch]
        asked = {ABSENT: [[key] for key in absent], in_name(1): [[key] for key in present]}
        asked |= {name: [keys] for name, keys in (many | {BATCH: batch}).items()}
        some = list(dict.fromkeys(present[:5] + absent[:5]))
        zones = [(key, 0) for key in absent[:20]]
        zones += [(key, data.zones_of(key)) for key in present[:5]]
        checks = [some, *(keys[0] for keys in asked.values())]
        checked = [(keys, data.expected(keys)) for keys in checks]
        return cls(asked, present[: effort.cold_runs], checked, zones)


def measure(
    competitors: Sequence[Competitor], data: DataSet, questions: Questions, effort: Effort
) -> list[Measured]:
    """Measure all there is to measure.

    Raises
    ------
    WrongAnswer
    """
    # Without the keys it holds once it was asked for them.
    described = replace(data)
    found = [_prepared(each, described, questions) for each in competitors]
    for each in competitors:
        each.open()
        each.warm()
    for name, asked in questions.asked.items():
        times = _taking_turns(competitors, asked, effort)
        for measured, timed in zip(found, times, strict=True):
            measured.warm[name] = timed
    for each, measured in zip(competitors, found, strict=True):
        measured.batch_keys = len(questions.asked[BATCH][0])
        measured.false_zones = _false_zones(each, questions)
        each.close()
    return found


def _prepared(competitor: Competitor, data: DataSet, questions: Questions) -> Measured:
    """What is measured of a competitor by itself."""
    measured = Measured(data, competitor.name)
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
    runs = [first_lookup(data.folder, competitor.name, key) for key in questions.cold]
    runs.sort(key=lambda run: run.seconds)
    measured.first = runs[(len(runs) - 1) // 2] if runs else None
    return measured


def _check(competitor: Competitor, data: DataSet, keys: list, expected: pa.Table) -> None:
    found = sorted_ids(competitor.lookup(keys), data.row_id)
    if not found.equals(expected):
        raise WrongAnswer(
            f"{competitor.name} on {data.name}: {found.num_rows:,} rows of {len(keys):,} keys, "
            f"brute force finds {expected.num_rows:,}"
        )


def _taking_turns(
    competitors: Sequence[Competitor], asked: list[list], effort: Effort
) -> list[Timed]:
    """The least time of each, all asked for the same keys in a turn."""
    keys = _turns(asked, effort.turn)
    first = next(keys)
    for each in competitors:
        _ask(each, first)
    taken: list[list[Timed]] = [[] for _ in competitors]
    until = time.perf_counter() + effort.seconds * len(competitors)
    least, most = effort.rounds
    for turn, wanted in zip(range(most), keys, strict=False):
        if turn >= least and time.perf_counter() > until:
            break
        numbers = list(range(len(competitors)))
        # Threads of the one before may still be at work: let it not always be the same.
        for number in numbers if turn % 2 else reversed(numbers):
            taken[number].append(_ask(competitors[number], wanted))
    return [Timed(*map(min, zip(*each, strict=True))) for each in taken]


def _turns(asked: list[list], count: int) -> Iterator[list[list]]:
    """So many questions a turn, without end."""
    endless = cycle(asked)
    while True:
        yield list(islice(endless, min(count, len(asked))))


def _ask(competitor: Competitor, wanted: list[list]) -> Timed:
    """Mean of one turn."""
    began, cpu = time.perf_counter(), time.process_time()
    for keys in wanted:
        competitor.lookup(keys)
    spent = time.process_time() - cpu
    return Timed((time.perf_counter() - began) / len(wanted), spent / len(wanted))


def _false_zones(competitor: Competitor, questions: Questions) -> float | None:
    beyond = []
    for key, holding in questions.zones:
        kept = competitor.zones_kept(key)
        if kept is None:
            return None
        # A B-tree keeps rows, less than the zones they are in.
        beyond.append(max(0, kept - holding))
    return statistics.mean(beyond)
