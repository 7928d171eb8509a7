"""explain() and why_not(): what indices do to a query, and why others do nothing, for people."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import DataFrame

from zonebloom.spark.hyperspace.managed_lookup import ManagedLookup, is_over
from zonebloom.spark.hyperspace.records import Record
from zonebloom.spark.pruning.listing import with_index
from zonebloom.spark.pruning.pruned import Note, PrunedRelation, PrunePlan, Reason
from zonebloom.text import Lines, bytes_text, table_html, table_text

_RULE = "=" * 61
# Two plans of one query number their exchanges differently.
_PLAN_ID = re.compile(r"\[?plan_id=\d+\]?")
# Of these the notes say all, whichever column an index is on.
_OF_RELATION = (
    Reason.UNSUPPORTED_SESSION,
    Reason.UNSUPPORTED_RELATION,
    Reason.CACHED,
    Reason.APPLY_DISABLED,
    Reason.NO_FILTER,
    Reason.INDEX_DAMAGED,
)
# Of an index that answered, these say why it left out no more.
_BESIDES = (
    Reason.NEW_FILES,
    Reason.STALE_FILES,
    Reason.INDEX_DAMAGED,
)


def explain_text(
    df: DataFrame, plan: PrunePlan, lookup: Callable[[], ManagedLookup], verbose: bool
) -> str:
    """Spark's plan of a query with indices, what differs marked, and without."""
    without = marked = _physical(df)
    pruned = [relation for relation in plan.relations if relation.is_pruned]
    used = "\n".join(map(_used, pruned)) or "none; IndexManager.why_not(df) says why"
    if Reason.APPLY_DISABLED in plan.reasons:
        used = "none: indices are disabled; IndexManager.enable() enables them"
    if pruned:
        plain = {_PLAN_ID.sub("", line) for line in without.splitlines()}
        marked = "\n".join(
            line if _PLAN_ID.sub("", line) in plain else f"<----{line}---->"
            for line in _physical(with_index(df, lookup)).splitlines()
        )
    parts = {
        "Plan with indices:": marked,
        "Plan without indices:": without,
        "Indices used:": used,
    }
    if verbose:
        parts["Relations:"] = str(plan)
    return "\n".join(f"{_RULE}\n{title}\n{_RULE}\n{body}\n" for title, body in parts.items())


def _physical(df: DataFrame) -> str:
    text = io.StringIO()
    # The one way to a plan's text that is public, in classic sessions and over Connect.
    with contextlib.redirect_stdout(text):
        df.explain(mode="simple")
    return text.getvalue().removeprefix("== Physical Plan ==\n").rstrip()


def _used(relation: PrunedRelation) -> str:
    return (
        f"{', '.join(relation.indices) or 'paths'}: {relation.kept_files:,} of "
        f"{relation.num_files:,} files of {relation.name} read, {bytes_text(relation.kept_bytes)} "
        f"of {bytes_text(relation.num_bytes)}"
    )


class WhyNotRow(NamedTuple):
    """What became of one index for one relation.

    Attributes
    ----------
    index, column, relation : str
        Empty where it concerns all of them.
    reason : Reason or None
        None when the index leaves files out.
    message : str
    """

    index: str
    column: str
    relation: str
    reason: Reason | None
    message: str


@dataclass(frozen=True, slots=True, repr=False)
class WhyNot(Lines):
    """Why indices are not used for a query; `str` and HTML show it.

    Attributes
    ----------
    rows : tuple of WhyNotRow
    extended : bool
        Whether messages in full are shown.
    """

    rows: tuple[WhyNotRow, ...]
    extended: bool = False

    @property
    def reasons(self) -> frozenset[Reason]:
        """All reasons there are."""
        return frozenset(row.reason for row in self.rows if row.reason is not None)

    @property
    def is_used(self) -> bool:
        """Whether some index leaves files out."""
        return any(row.reason is None for row in self.rows)

    def _table(self) -> tuple[list[str], list[list[str]]]:
        rows = []
        for *where, reason, message in self.rows:
            code = "USED" if reason is None else reason.name
            rows.append([*where, code, message if self.extended or not reason else reason.value])
        return ["index", "column", "relation", "reason", "message"], rows

    def __str__(self) -> str:
        if not self.rows:
            return "there is no index; make one with create_index"
        return table_text(*self._table())

    def _repr_html_(self) -> str:
        return table_html(*self._table()) if self.rows else Lines._repr_html_(self)


def why_not(
    records: Sequence[Record], plan: PrunePlan, lookup: ManagedLookup
) -> Iterator[WhyNotRow]:
    """Say of each index what became of it."""
    for record in records:
        own = [relation for relation in plan.relations if is_over(record, relation.roots)]
        for note in plan.notes:
            yield WhyNotRow(record.name, "", "", note.reason, note.text)
        for relation in own:
            for column, note in _of_relation(record, relation, lookup):
                reason, text = (note.reason, note.text) if note else (None, _used(relation))
                yield WhyNotRow(record.name, column, relation.name, reason, text)
        if not own and not plan.notes:
            read = ", ".join(relation.name for relation in plan.relations)
            text = f"the index is over {record.path}, the query reads {read or 'nothing'}"
            yield WhyNotRow(record.name, "", "", Reason.OTHER_SOURCE, text)


def _of_relation(
    record: Record, relation: PrunedRelation, lookup: ManagedLookup
) -> Iterator[tuple[str, Note | None]]:
    """What became of the index on each column, or on all where that is empty; None if used."""
    of_all = [note for note in relation.notes if note.reason in _OF_RELATION]
    of_all = [] if relation.indices else of_all
    if record.name in lookup.refused:
        of_all = [lookup.refused[record.name]]
    yield from (("", note) for note in of_all)
    for column, index in () if of_all else record.indices.items():
        others = [r.name for r in lookup.records if r.indices.get(column) in relation.indices]
        if index in relation.indices:
            notes = [note for note in relation.notes if note.reason in _BESIDES]
            if relation.is_pruned:
                yield column, None
            elif Reason.INDEX_DAMAGED not in relation.reasons:
                yield column, Note(Reason.ALL_FILES_KEPT)
        elif others:
            text = f"index {others[0]!r}, made later, answers for {column}"
            notes = [Note(Reason.OTHER_INDEX, text)]
        else:
            text = f"the filter that reaches the scan is {relation.filter or 'none'}"
            notes = _notes_on(column, relation) or [Note(Reason.COLUMN_NOT_IN_FILTER, text)]
        yield from ((column, note) for note in notes)


def _notes_on(column: str, relation: PrunedRelation) -> list[Note]:
    """Parts of a filter that name a column and that no index answers."""
    names = {column.lower(), column.partition(".")[0].lower()}
    return [
        note
        for note in relation.notes
        if note.reason == Reason.FILTER_NOT_ANSWERED
        and not names.isdisjoint(map(str.lower, note.columns))
    ]
