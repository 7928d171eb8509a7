"""What is asked of an index of files that Spark listed, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from zonebloom.errors import IndexNotUsedWarning, ZoneBloomWarning
from zonebloom.predicates import ast
from zonebloom.spark.pruning.listed_files import ListedFiles
from zonebloom.spark.pruning.prune_plan import Note, Reason

ItemType = TypeVar("ItemType")


class PruningRequest(NamedTuple):
    """Which files below roots, listed when they are needed, hold no row of a condition."""

    roots: Sequence[str]
    list_files: Callable[[], ListedFiles]
    # First names, in small letters, of what the condition speaks of.
    columns: frozenset[str]
    # By the schema of the files.
    bind_predicate: Callable[[pa.Schema], ast.Predicate]
    ignores_case: bool


@dataclass(frozen=True, slots=True, eq=False)
class PruningResult:
    """The numbers of files without a row of a condition, and what there is to say of it."""

    excluded_numbers: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    predicates: tuple[str, ...] = ()
    indices: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    warnings: tuple[ZoneBloomWarning, ...] = ()

    def kept_mask(self, files: ListedFiles) -> np.ndarray:
        """Of each file of a listing, whether it may hold a row."""
        return np.isin(files.numbers, self.excluded_numbers, invert=True)


def result_without_index(text: str) -> PruningResult:
    """What is said where there is nobody to ask."""
    return PruningResult(notes=(Note(Reason.NO_INDEX, text),))


def result_of_unusable_index(text: str) -> PruningResult:
    """What is said, and warned of, where an index cannot answer."""
    return PruningResult(
        notes=(Note(Reason.INDEX_DAMAGED, text),), warnings=(IndexNotUsedWarning(text),)
    )


def merge_results(answers: Sequence[PruningResult]) -> PruningResult:
    """What several indices say: a file one of them excludes holds no row."""

    def once(several: Iterable[Iterable[ItemType]]) -> tuple[ItemType, ...]:
        return tuple(dict.fromkeys(chain.from_iterable(several)))

    return PruningResult(
        np.concatenate([answer.excluded_numbers for answer in answers]),
        once(answer.predicates for answer in answers),
        once(answer.indices for answer in answers),
        once(answer.notes for answer in answers),
        once(answer.warnings for answer in answers),
    )
