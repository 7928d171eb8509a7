"""The result of a request for files that Spark can skip."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

import numpy as np

from zonebloom.errors import IndexNotUsedWarning, ZoneBloomWarning
from zonebloom.spark.pruning.explanation import Note, PrunedRelation, Reason
from zonebloom.spark.pruning.listed_files import ListedFiles

ItemType = TypeVar("ItemType")


@dataclass(frozen=True, slots=True, eq=False)
class PruningResult:
    """The numbers of files without matching rows, with the indices used, notes and warnings."""

    excluded_numbers: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    predicates: tuple[str, ...] = ()
    indices: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    warnings: tuple[ZoneBloomWarning, ...] = ()

    @classmethod
    def keep_all(cls, reason: Reason, text: str = "") -> PruningResult:
        """Return a result that excludes no files, with the reason."""
        return cls(notes=(Note(reason, text),))

    @classmethod
    def of_unusable_index(cls, text: str) -> PruningResult:
        """Return a result that excludes no files and warns, because an index cannot be used."""
        return cls(notes=(Note(Reason.INDEX_DAMAGED, text),), warnings=(IndexNotUsedWarning(text),))

    def kept_mask(self, files: ListedFiles) -> np.ndarray:
        """Return a mask of the listed files that may hold a matching row."""
        # Numbers are small, so a table of them is faster than a search.
        is_kept = np.ones(int(files.numbers.max(initial=0)) + 1, bool)
        is_kept[self.excluded_numbers] = False
        return is_kept[files.numbers]

    def describe(
        self, roots: Sequence[str] = (), num_files: int = 0, num_kept: int = 0
    ) -> PrunedRelation:
        """Return the description of a scan of these roots with this result."""
        notes = self.notes
        if not notes and not self.excluded_numbers.size:
            notes = (Note(Reason.ALL_FILES_KEPT),)
        return PrunedRelation(
            roots_text(roots),
            tuple(roots),
            " OR ".join(self.predicates) or None,
            num_files,
            kept_files=num_kept,
            indices=self.indices,
            notes=notes,
        )


def roots_text(roots: Sequence[str]) -> str:
    more = f" and {len(roots) - 1:,} more" if len(roots) > 1 else ""
    return roots[0] + more if roots else ""


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
