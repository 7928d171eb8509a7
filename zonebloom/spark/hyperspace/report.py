"""explain() and why_not(): what indices do to a query, and why others do nothing, for people."""

from __future__ import annotations

import contextlib
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zonebloom.spark.hyperspace.log import Record
from zonebloom.spark.hyperspace.use import (
    IndexReason,
    ManagedPruning,
    is_over_relation,
)
from zonebloom.spark.pruning.pruned import PrunedRelation, PrunePlan, Reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MARKS = ("<----", "---->")
_RULE = "=" * 61
# Two plans of one query number their exchanges differently.
_PLAN_ID = re.compile(r"\[?plan_id=\d+\]?")
# Of these the notes say all, whichever column an index is on.
_OF_RELATION = (
    Reason.UNSUPPORTED_SESSION,
    Reason.UNSUPPORTED_RELATION,
    Reason.CACHED,
    Reason.NOT_SCANNED,
    Reason.NO_FILTER,
    Reason.INDEX_DAMAGED,
)
# Of an index that answered, these say why it left out no more.
_BESIDES = (
    Reason.NEW_FILES,
    Reason.STALE_FILES,
    Reason.SHARED_RELATION,
    Reason.INDEX_DAMAGED,
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The plan of a query with and without indices; `str` and HTML show it.

    Attributes
    ----------
    with_indices, without_indices : str
        Spark's physical plans; one text where no file is left out.
    prune_plan : PrunePlan or None
        None when indices are disabled.
    used : tuple of str
        A line for each index that leaves files out.
    verbose : bool
        Whether every relation is shown, with what was asked of its indices.
    """

    with_indices: str
    without_indices: str
    prune_plan: PrunePlan | None
    used: tuple[str, ...] = ()
    verbose: bool = False

    def _parts(self) -> list[tuple[str, list[tuple[str, bool]]]]:
        """Titles, and lines with whether they are highlighted."""
        plain = [_PLAN_ID.sub("", line) for line in self.without_indices.splitlines()]
        parts = [
            (
                "Plan with indices:",
                [
                    (line, _PLAN_ID.sub("", line) not in plain)
                    for line in self.with_indices.splitlines()
                ],
            ),
            (
                "Plan without indices:",
                [(line, False) for line in self.without_indices.splitlines()],
            ),
        ]
        if self.prune_plan is None:
            used = ["none: indices are disabled; IndexManager.enable() enables them"]
        else:
            used = list(self.used) or ["none; IndexManager.why_not(df) says why"]
        parts.append(("Indices used:", [(line, False) for line in used]))
        if self.verbose and self.prune_plan is not None:
            lines = str(self.prune_plan).splitlines()
            parts.append(("Relations:", [(line, False) for line in lines]))
        return parts

    def __str__(self) -> str:
        lines = []
        for title, body in self._parts():
            lines += [_RULE, title, _RULE]
            lines += [f"{_MARKS[0]}{line}{_MARKS[1]}" if mark else line for line, mark in body]
            lines.append("")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        made = []
        for title, body in self._parts():
            lines = [
                f'<b style="background:LightGreen">{html.escape(line)}</b>'
                if mark
                else html.escape(line)
                for line, mark in body
            ]
            made.append(f"<p><b>{html.escape(title)}</b></p><pre>{chr(10).join(lines)}</pre>")
        return f"<div>{''.join(made)}</div>"


def explain(df: DataFrame, pruning: ManagedPruning | None, verbose: bool) -> Explanation:
    """Put both plans of a query side by side."""
    without = _physical(df)
    if pruning is None:
        return Explanation(without, without, None, (), verbose)
    plan = pruning.plan
    pruned = _physical(pruning.frame()) if plan.is_pruned else without
    used = [_used(each) for each in plan.relations if each.is_pruned]
    return Explanation(pruned, without, plan, tuple(used), verbose)


def _physical(df: DataFrame) -> str:
    said = io.StringIO()
    # The one way to a plan's text that is public, in classic sessions and over Connect.
    with contextlib.redirect_stdout(said):
        df.explain(mode="simple")
    return said.getvalue().removeprefix("== Physical Plan ==\n").rstrip()


def _used(relation: PrunedRelation) -> str:
    from zonebloom.text import bytes_text

    return (
        f"{', '.join(relation.indices) or 'paths'}: {relation.kept_files:,} of "
        f"{relation.num_files:,} files of {relation.name} read, {bytes_text(relation.kept_bytes)} "
        f"of {bytes_text(relation.num_bytes)}"
    )


@dataclass(frozen=True, slots=True)
class WhyNotRow:
    """What became of one index for one relation.

    Attributes
    ----------
    index, column, relation : str
        Empty where it concerns all of them.
    reason : IndexReason, Reason or None
        None when the index leaves files out.
    message : str
    """

    index: str
    column: str
    relation: str
    reason: IndexReason | Reason | None
    message: str


@dataclass(frozen=True, slots=True)
class WhyNot:
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
    def reasons(self) -> frozenset[IndexReason | Reason]:
        """All reasons there are."""
        return frozenset(row.reason for row in self.rows if row.reason is not None)

    @property
    def is_used(self) -> bool:
        """Whether some index leaves files out."""
        return any(row.reason is None for row in self.rows)

    def _table(self) -> tuple[list[str], list[list[str]]]:
        headers = ["index", "column", "relation", "reason", "message"]
        rows = []
        for row in self.rows:
            code = "USED" if row.reason is None else row.reason.name
            short = row.message if self.extended or row.reason is None else str(row.reason.value)
            rows.append([row.index, row.column, row.relation, code, short])
        return headers, rows

    def __str__(self) -> str:
        from zonebloom.text import table_text

        if not self.rows:
            return "there is no index; make one with create_index"
        return table_text(*self._table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from zonebloom.text import lines_html, table_html

        return table_html(*self._table()) if self.rows else lines_html(str(self))


def why_not(
    records: Sequence[Record], pruning: ManagedPruning | None, extended: bool = False
) -> WhyNot:
    """Say of each index what became of it."""
    rows: list[WhyNotRow] = []
    for record in records:
        if pruning is None:
            reason = IndexReason.APPLY_DISABLED
            rows.append(WhyNotRow(record.name, "", "", reason, reason.value))
        elif pruning.plan.notes:
            rows += [
                WhyNotRow(record.name, "", "", note.reason, note.text)
                for note in pruning.plan.notes
            ]
        else:
            rows += _of_index(record, pruning)
    return WhyNot(tuple(rows), extended)


def _of_index(record: Record, pruning: ManagedPruning) -> list[WhyNotRow]:
    own = [each for each in pruning.plan.relations if is_over_relation(record, each.name)]
    if not own:
        read = ", ".join(each.name for each in pruning.plan.relations)
        reason = IndexReason.OTHER_SOURCE
        text = f"the index is over {record.path}, the query reads {read or 'nothing'}"
        return [WhyNotRow(record.name, "", "", reason, text)]
    return [row for relation in own for row in _of_relation(record, relation, pruning)]


def _of_relation(
    record: Record, relation: PrunedRelation, pruning: ManagedPruning
) -> list[WhyNotRow]:
    name = relation.name
    verdicts = pruning.lookup.of_relation(name)
    verdict = next((each for each in verdicts if each.record.name == record.name), None)
    if verdict is not None and verdict.reason is not None:
        return [WhyNotRow(record.name, "", name, verdict.reason, verdict.text)]
    of_all = [note for note in relation.notes if note.reason in _OF_RELATION]
    if of_all and not relation.indices:
        return [WhyNotRow(record.name, "", name, note.reason, note.text) for note in of_all]
    rows = []
    for column, index in record.indices.items():
        rows += [
            WhyNotRow(record.name, column, name, reason, text)
            for reason, text in _of_column(column, index, relation, verdicts)
        ]
    return rows


def _of_column(
    column: str, index: str, relation: PrunedRelation, verdicts: Sequence
) -> list[tuple[IndexReason | Reason | None, str]]:
    if index in relation.indices:
        found: list[tuple[IndexReason | Reason | None, str]] = []
        notes = [(note.reason, note.text) for note in relation.notes if note.reason in _BESIDES]
        if relation.is_pruned:
            found.append((None, _used(relation)))
        elif Reason.INDEX_DAMAGED not in relation.reasons:
            found.append((Reason.ALL_FILES_KEPT, Reason.ALL_FILES_KEPT.value))
        return found + notes
    for other in (each.record for each in verdicts if each.record.indices.get(column) != index):
        if other.indices.get(column) in relation.indices:
            text = f"index {other.name!r}, made later, answers for {column}"
            return [(IndexReason.OTHER_INDEX, text)]
    word = re.compile(rf"(?<!\w){re.escape(column)}(?!\w)", re.I)
    unanswered = [
        (note.reason, note.text)
        for note in relation.notes
        if note.reason == Reason.FILTER_NOT_ANSWERED and word.search(note.text)
    ]
    if unanswered:
        return list(unanswered)
    text = f"the filter that reaches the scan is {relation.filter or 'none'}"
    return [(IndexReason.COLUMN_NOT_IN_FILTER, text)]
