"""The result of a request for files to skip, and the explanation of what each scan reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from textwrap import shorten
from typing import TypeVar

import numpy as np

from zonebloom.base.display import Displayed
from zonebloom.base.text import bytes_text
from zonebloom.errors import IndexNotUsedWarning, ZoneBloomWarning
from zonebloom.scan.explain import ScanPlan
from zonebloom.spark.pruning.jvm_scan import ListedFiles

ItemType = TypeVar("ItemType")


class Reason(Enum):
    """The reason why a relation, or a part of its filter, is not pruned. The value is a text."""

    UNSUPPORTED_SESSION = "the session gives no access to plans"
    UNSUPPORTED_RELATION = "the relation does not read Parquet files that Spark lists"
    CACHED = "a cached frame is read instead"
    NOT_ASKED = "the scan asks no index; call zonebloom.spark.enable or prune"
    NO_FILTER = "no filter reaches the scan"
    NO_INDEX = "there is no index"
    NO_INDEX_ON_COLUMN = "no index on the column"
    INDEX_DAMAGED = "an index exists but cannot be used"
    NEW_FILES = "the index does not know some files"
    STALE_FILES = "files changed since they were indexed, or since Spark listed them"
    FILTER_NOT_ANSWERED = "no index answers a part of the filter"
    ALL_FILES_KEPT = "every file may hold rows"
    JOIN_FILTERED = "a join drops rows by a filter"
    NOT_ACTIVE = "the index is not ACTIVE"
    DATA_UNREADABLE = "the files of the index cannot be read"
    MISSING = "the catalog no longer has the index"
    HYBRID_SCAN_DISABLED = "files were added or changed, and hybrid scan is disabled"


@dataclass(frozen=True, slots=True)
class Note:
    """A reason with a sentence about it.

    Attributes
    ----------
    reason : Reason
    text : str
        A sentence, perhaps with names and counts. The default is the text of the reason.
    """

    reason: Reason
    text: str = ""

    def __post_init__(self) -> None:
        if not self.text:
            object.__setattr__(self, "text", self.reason.value)

    def __str__(self) -> str:
        return self.text


_SUMMARY_CHARACTERS = 200
# The metrics of Spark's scans that are shown, with their formatters.
METRIC_TEXTS: Mapping[str, Callable[[int], str]] = {
    "numFiles": lambda count: f"{count:,} file{'' if count == 1 else 's'}",
    "filesSize": bytes_text,
    "numOutputRows": lambda count: f"{count:,} rows",
    "scanTime": lambda count: f"in {count:,} ms of its tasks",
}


@dataclass(frozen=True, slots=True)
class PrunedRelation:
    """A scan of a plan.

    Attributes
    ----------
    name : str
        Root paths, or the kind of relation.
    roots : tuple of str
        Root paths as Spark writes them. Empty if the relation does not read Parquet files.
    filter : str or None
        The condition that the index was asked, or None if it was not asked.
    num_files, num_bytes : int
        Files that Spark would read after its own partition pruning, and their bytes. 0 if they were
        not listed.
    kept_files, kept_bytes : int
        Files that may hold matching rows, and their bytes.
    kept_paths : tuple of str
        Paths of these files in Spark's order and spelling: ``file:/lake/a.parquet``.
    indices : tuple of str
        Names of the indices that were used.
    notes : tuple of Note
        Why no more files were skipped.
    metrics : dict
        Spark's counts of the scan: ``numFiles``, ``numOutputRows``, ``filesSize`` in bytes and
        ``scanTime`` in ms. Empty unless the frame ran.
    """

    name: str
    roots: tuple[str, ...] = ()
    filter: str | None = None
    num_files: int = 0
    num_bytes: int = 0
    kept_files: int = 0
    kept_bytes: int = 0
    kept_paths: tuple[str, ...] = field(default=(), repr=False)
    indices: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    metrics: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def is_pruned(self) -> bool:
        """Return whether files are skipped."""
        return self.kept_files < self.num_files

    @property
    def reasons(self) -> frozenset[Reason]:
        """Return the reasons of the notes."""
        return frozenset(note.reason for note in self.notes)

    def __str__(self) -> str:
        lines = [f"Relation {self.name}"]
        if self.filter is not None:
            lines.append(f"filter: {self.filter}")
        if self.indices:
            lines.append(f"indices: {', '.join(self.indices)}")
        if self.num_files:
            line = f"files: {self.kept_files:,} of {self.num_files:,} kept"
            if self.num_bytes:
                line += f", {bytes_text(self.kept_bytes)} of {bytes_text(self.num_bytes)}"
            lines.append(line)
        lines += map(str, self.notes)
        if self.metrics:
            counts = (METRIC_TEXTS[name](count) for name, count in self.metrics.items())
            lines.append(f"Spark read {', '.join(counts)}")
        return "\n  ".join(lines)


@dataclass(frozen=True, slots=True, eq=False)
class PruningResult:
    """The numbers of files without matching rows, with the indices used, notes and warnings."""

    excluded_numbers: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    predicates: tuple[str, ...] = ()
    indices: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    warnings: tuple[ZoneBloomWarning, ...] = ()
    # If given, all scans of these roots that filter these columns have this result, until one of
    # these folders changes. Times are in ms, and 0 for a folder that does not exist.
    folder_times: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def keep_all(
        cls, reason: Reason, text: str = "", folder_times: Mapping[str, int] | None = None
    ) -> PruningResult:
        """Return a result that excludes no files, with the reason."""
        return cls(notes=(Note(reason, text),), folder_times=folder_times or {})

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

    def answer(self, files: ListedFiles | None = None) -> str:
        """Return this result as the JSON that `IndexedFiles.java` takes: marks, and a description.

        Give the files if an index was asked about them.
        """
        marks, counts, notes = "", "all", self.notes
        if files is not None:
            is_kept = self.kept_mask(files)
            counts = f"{int(is_kept.sum()):,} of {len(files):,}"
            if not is_kept.all():
                marks = np.where(is_kept, b"1", b"0").tobytes().decode()
        if not notes and not self.excluded_numbers.size:
            notes = (Note(Reason.ALL_FILES_KEPT),)
        by = f" by {', '.join(self.indices)}" if self.indices else ""
        summary = "; ".join([f"zonebloom: {counts} files{by}", *map(str, notes)])
        return json.dumps(
            {
                "kept": marks,
                "folder_times": self.folder_times,
                # Index names and paths may contain line breaks, which `shorten` removes.
                "summary": shorten(summary, _SUMMARY_CHARACTERS, placeholder=" ..."),
                "filter": " OR ".join(self.predicates) or None,
                "indices": self.indices,
                "notes": [(note.reason.name, note.text) for note in notes],
            }
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


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Displayed):
    """What a frame reads and why, as `zonebloom.spark.explain` returns it.

    `str` and HTML show a text.

    Attributes
    ----------
    relations : tuple of PrunedRelation
        The scans by Spark's own readers, in the order of the plan.
    scans : tuple of ScanPlan
        The scans of `zonebloom.spark.scan`, as they would read the files now.
    notes : tuple of Note
        Notes about the frame as a whole.
    """

    relations: tuple[PrunedRelation, ...] = ()
    notes: tuple[Note, ...] = ()
    scans: tuple[ScanPlan, ...] = ()

    @property
    def is_pruned(self) -> bool:
        """Return whether any relation skips files."""
        return any(relation.is_pruned for relation in self.relations)

    @property
    def reasons(self) -> frozenset[Reason]:
        """Return all reasons of the plan and its relations."""
        plan_reasons = frozenset(note.reason for note in self.notes)
        return plan_reasons.union(*(relation.reasons for relation in self.relations))

    def __str__(self) -> str:
        num_kept = sum(relation.kept_files for relation in self.relations)
        count = sum(relation.num_files for relation in self.relations)
        nothing = "zones are chosen by scan()" if self.scans else "no files left out"
        files = f"{num_kept:,} of {count:,} files kept" if count else nothing
        lines = [f"ZoneBloomExplanation: {files}"]
        lines += [f"  {note}" for note in self.notes]
        for relation in self.relations:
            lines += [f"  {line}" for line in str(relation).splitlines()]
        for scan in self.scans:
            lines += [f"  {line}" for line in str(scan).splitlines()]
        return "\n".join(lines)
