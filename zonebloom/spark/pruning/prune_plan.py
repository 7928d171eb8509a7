"""What pruning a frame did, relation by relation, and why it did no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from textwrap import shorten

from zonebloom.base.display import (
    Displayed,
    Strip,
    bounds_up_to,
    list_html,
    pictures_html,
    styled_html,
    title_html,
)
from zonebloom.base.text import bytes_text


class Reason(Enum):
    """Why a relation, or a part of its filter, is not pruned; the value is for people.

    The last ones are of indices of an `IndexManager`, which are not asked at all.
    """

    UNSUPPORTED_SESSION = "the session gives no access to plans"
    UNSUPPORTED_RELATION = "the relation is none of Parquet files that Spark lists"
    CACHED = "a cached frame answers for it"
    NOT_ASKED = "no index was asked when it was planned"
    NO_FILTER = "no filter reaches the scan"
    NO_INDEX = "there is no index"
    NO_INDEX_ON_COLUMN = "no index on the column"
    INDEX_DAMAGED = "an index is there and cannot be used"
    NEW_FILES = "files the index does not know"
    STALE_FILES = "files changed since they were indexed, or since Spark listed them"
    FILTER_NOT_ANSWERED = "a part of the filter no index answers"
    ALL_FILES_KEPT = "every file may hold rows"
    APPLY_DISABLED = "indices are disabled in the session"
    NOT_ACTIVE = "the index is not ACTIVE"
    DATA_UNREADABLE = "the files of the index cannot be looked at"
    MISSING = "its filters are not in the catalog any more"
    HYBRID_SCAN_DISABLED = "its files changed, and hybrid scan is disabled"
    TOO_MUCH_APPENDED = "more was appended than hybrid scan allows"
    TOO_MUCH_DELETED = "more was deleted than hybrid scan allows"


@dataclass(frozen=True, slots=True)
class Note:
    """One reason, with what it is about.

    Attributes
    ----------
    reason : Reason
    text : str
        A sentence for people, perhaps with names and counts; that of the reason by default.
    """

    reason: Reason
    text: str = ""

    def __post_init__(self) -> None:
        if not self.text:
            object.__setattr__(self, "text", self.reason.value)

    def __str__(self) -> str:
        return self.text


_SUMMARY_CHARACTERS = 200
# Spark's figures of a scan in words.
_COUNTED: Mapping[str, Callable[[int], str]] = {
    "numFiles": lambda count: f"{count:,} file{'' if count == 1 else 's'}",
    "filesSize": bytes_text,
    "numOutputRows": lambda count: f"{count:,} rows",
    "scanTime": lambda count: f"in {count:,} ms of its tasks",
}


@dataclass(frozen=True, slots=True)
class PrunedRelation:
    """One scan of a plan.

    Attributes
    ----------
    name : str
        Root paths, or the kind of relation.
    roots : tuple of str
        Root paths as Spark names them; empty of what is none of Parquet files.
    filter : str or None
        What the index was asked, None when it was not.
    num_files, num_bytes : int
        That Spark would read, after its own pruning of partitions; 0 when they were not listed.
    kept_files, kept_bytes : int
        That may hold rows.
    kept_paths : tuple of str
        In Spark's order and words: ``file:/lake/a.parquet``.
    indices : tuple of str
        Names of the indices that answered.
    notes : tuple of Note
        Why no more was left out.
    metrics : dict
        What Spark counted as it ran: ``numFiles``, ``numOutputRows``, ``filesSize`` in bytes and
        ``scanTime`` in ms; of `zonebloom.spark.last_scans`.
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
        """Whether files are left out."""
        return self.kept_files < self.num_files

    @property
    def reasons(self) -> frozenset[Reason]:
        """The reasons among the notes."""
        return frozenset(note.reason for note in self.notes)

    @property
    def summary(self) -> str:
        """What is left out and why no more, as the name of a scan in ``explain`` has it."""
        of_all = f"{self.kept_files:,} of {self.num_files:,}" if self.num_files else "all"
        by = f" by {', '.join(self.indices)}" if self.indices else ""
        text = "; ".join([f"zonebloom: {of_all} files{by}", *map(str, self.notes)])
        # Index names and paths of files may have any character.
        return shorten(text, _SUMMARY_CHARACTERS, placeholder=" ...")

    def __str__(self) -> str:
        return "\n".join([f"Relation {self.name}", *(f"  {fact}" for fact in self._facts())])

    def _facts(self) -> list[str]:
        lines = []
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
            counted = (_COUNTED[name](count) for name, count in self.metrics.items())
            lines.append(f"Spark read {', '.join(counted)}")
        return lines

    def html(self) -> str:
        """What `str` says, with the shares of files and bytes that are kept as bars."""
        files = f"{self.kept_files:,} of {self.num_files:,}"
        num_bytes = f"{bytes_text(self.kept_bytes)} of {bytes_text(self.num_bytes)}"
        bars = [
            Strip("files kept", files, self.num_files, bounds_up_to(self.kept_files)),
            Strip("bytes kept", num_bytes, self.num_bytes, bounds_up_to(self.kept_bytes)),
        ]
        pictures = pictures_html((), [bar for bar in bars if bar.length])
        return title_html(f"Relation {self.name}") + list_html(self._facts()) + pictures


@dataclass(frozen=True, slots=True, repr=False)
class PrunePlan(Displayed):
    """What `zonebloom.spark.prune` does to a frame; `str` and HTML show it.

    Attributes
    ----------
    relations : tuple of PrunedRelation
        A scan each, in the plan's order.
    notes : tuple of Note
        About the frame as a whole.
    """

    relations: tuple[PrunedRelation, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def is_pruned(self) -> bool:
        """Whether any relation leaves files out."""
        return any(each.is_pruned for each in self.relations)

    @property
    def reasons(self) -> frozenset[Reason]:
        """All reasons of the plan and its relations."""
        own = frozenset(note.reason for note in self.notes)
        return own.union(*(each.reasons for each in self.relations))

    def __str__(self) -> str:
        kept = sum(each.kept_files for each in self.relations)
        count = sum(each.num_files for each in self.relations)
        files = f"{kept:,} of {count:,} files kept" if count else "no files left out"
        lines = [f"ZoneBloomPrune: {files}"]
        lines += [f"  {note}" for note in self.notes]
        for each in self.relations:
            lines += [f"  {line}" for line in str(each).splitlines()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        parts = [list_html(map(str, self.notes)), *(each.html() for each in self.relations)]
        return styled_html(title_html(str(self).splitlines()[0]), *parts)
