"""The request for files that Spark can skip, and its result."""

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
    """A request for the files below root paths that hold no row for which a condition is true."""

    roots: Sequence[str]
    list_files: Callable[[], ListedFiles]
    # Lower-case names of the top-level columns in the condition.
    columns: frozenset[str]
    # A function that translates the condition for files with a given schema.
    bind_predicate: Callable[[pa.Schema], ast.Predicate]
    ignores_case: bool


@dataclass(frozen=True, slots=True, eq=False)
class PruningResult:
    """The numbers of files without matching rows, with the indices used, notes and warnings."""

    excluded_numbers: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    predicates: tuple[str, ...] = ()
    indices: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    warnings: tuple[ZoneBloomWarning, ...] = ()

    def kept_mask(self, files: ListedFiles) -> np.ndarray:
        """Return a mask of the listed files that may hold a matching row."""
        return np.isin(files.numbers, self.excluded_numbers, invert=True)


def result_without_index(text: str) -> PruningResult:
    """Return a result that excludes no files because there is no index."""
    return PruningResult(notes=(Note(Reason.NO_INDEX, text),))


def result_of_unusable_index(text: str) -> PruningResult:
    """Return a result that excludes no files and warns, because an index cannot be used."""
    return PruningResult(
        notes=(Note(Reason.INDEX_DAMAGED, text),), warnings=(IndexNotUsedWarning(text),)
    )


def merge_results(results: Sequence[PruningResult]) -> PruningResult:
    """Combine the results of several indices. A file is excluded if one of them excludes it."""

    def distinct(sequences: Iterable[Iterable[ItemType]]) -> tuple[ItemType, ...]:
        return tuple(dict.fromkeys(chain.from_iterable(sequences)))

    return PruningResult(
        excluded_numbers=np.concatenate([result.excluded_numbers for result in results]),
        predicates=distinct(result.predicates for result in results),
        indices=distinct(result.indices for result in results),
        notes=distinct(result.notes for result in results),
        warnings=distinct(result.warnings for result in results),
    )
