"""What is known of a dataset's files for some key columns, and what is to be read of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.sql import types as st

from zonebloom.catalog.model import IndexEntry
from zonebloom.dataset import Dataset
from zonebloom.errors import FragmentChanged, IndexNotFound, IndexNotUsedWarning
from zonebloom.predicates.ast import And, Constant, IsIn, Predicate
from zonebloom.scan.plan import FragmentPlan
from zonebloom.spark.names import require_same_case
from zonebloom.spark.read import RowFilter, without_fragments
from zonebloom.spark.rebase import Calendars, are_of_old, without_old_times
from zonebloom.spark.tagging.candidate_rows import Candidates
from zonebloom.spark.tagging.intervals import KeyRanges, can_order
from zonebloom.spark.tagging.key_filter import hash_rows
from zonebloom.spark.tagging.keys import FILE, FRAGMENT_ID, ROW_OFFSET, KeyColumns
from zonebloom.spark.tagging.summary import Fragments, Summary
from zonebloom.storage.files import is_local
from zonebloom.threads import cores, in_order
from zonebloom.values.types import hash_domain

# So few keys cost nothing to collect, whatever index there is.
_FEW = 1024
_MOST_COLLECTED = 1 << 14
# With more of a fragment's rows than this in zones that may hold a key, reading a column of
# numbers whole is quicker than page by page; decoding text costs more than finding its pages.
_MOST_FIXED = 0.4
# Nanoseconds a row, as measured: read whole and by zones, of numbers and of text.
_WHOLE_COST = (13, 210)
_ZONES_COST = (40, 180)


class Search:
    """What is known of the files as they are now, for some key columns."""

    def __init__(self, ds: Dataset, columns: KeyColumns):
        self.source = ds.opened.source
        self.columns = columns
        self._opened = ds
        self._planner = ds.opened.planner
        self._present = self._planner.to_read().present
        self.paths = tuple(each.fragment.path for each in self._present)
        self._num_rows = {each.fragment.path: each.num_rows for each in self._present}
        self.whole = [FragmentPlan(e.fragment, None, "", e.identity) for e in self._present]
        self._by_path = self.source.partition_columns()
        # The last index made on a column is the one asked.
        last = {entry.column: entry for entry in ds.opened.version.indices.values()}
        self._indexed = [
            last[name,] for name in columns.names if (name,) in last and self._is_asked(last[name,])
        ]

    def _is_asked(self, entry: IndexEntry) -> bool:
        """Whether an index is of the values as they are read: of INT96 none is."""
        name = entry.column[0]
        held = self.source.schema.field(name).type
        return name not in self._by_path and entry.domain == hash_domain(held)

    @property
    def indexed(self) -> list[str]:
        """Key columns with an index that can be asked."""
        return [entry.column[0] for entry in self._indexed]

    @property
    def zone_rows(self) -> int:
        """Rows of a zone of the first index asked."""
        return self._indexed[0].parameters.number_of_items

    @property
    def listed(self) -> list[tuple[str, int]]:
        """Path and fragment id of each file; ids of files not indexed are by their place."""
        return [(each.fragment.path, each.fragment_id) for each in self._present]

    def require_same_case(self) -> None:
        """Refuse files an index would leave out as they name a key column in another case."""
        wanted: dict[int, list[str]] = {}
        for entry in self._indexed:
            name = entry.column[0]
            if name not in self.columns.any_case:
                continue
            covered = entry.fragment_ids
            ranges = self._opened.key_ranges(name).select(["path", "null_count", "num_rows"])
            some = {
                row["path"]
                for row in ranges.to_pylist()
                if row["null_count"] is not None and row["null_count"] < row["num_rows"]
            }
            for number, each in enumerate(self._present):
                if each.fragment_id in covered and each.fragment.path not in some:
                    wanted.setdefault(number, []).append(name)

        def check(number: int) -> None:
            require_same_case(self.source, self._present[number].fragment, wanted[number])

        with ThreadPoolExecutor(cores()) as pool:
            for _ in in_order(pool, check, list(wanted), cores() + 1):
                pass

    def fragment(self, file: int) -> tuple[int, int]:
        """Id and rows of a file."""
        each = self._present[file]
        return each.fragment_id, self._planner.count_rows(each)

    @property
    def most_collected(self) -> int:
        """With more keys than this, about every zone holds one."""
        zones = [sum(s.num_zones for s in entry.segments) for entry in self._indexed]
        return min(max([_FEW, *zones]), _MOST_COLLECTED)

    def zones(self, keys: pa.Table, counts: np.ndarray) -> list[FragmentPlan]:
        """What to read for keys that are here, of fragments that may hold any by their counts."""
        if not counts.any():
            return []
        terms: list[Predicate] = []
        valid = np.logical_and.reduce(
            [each.is_valid().to_numpy() for each in keys.columns], initial=True
        )
        for name, values in zip(self.columns.names, keys.columns, strict=True):
            here = values.filter(pa.array(valid)).combine_chunks().unique()
            arrow = self.source.schema.field(name).type
            if name in self._by_path and not _is_alike(here.type, arrow):
                # The text of a path, of which Spark makes another type.
                continue
            if name in self.columns.instants:
                continue
            terms.append(IsIn((name,), here))
        if not self._indexed and self.columns.instants:
            warnings.warn(
                f"{', '.join(self.columns.instants)} is INT96, which no index is asked for, so the "
                "key columns are read whole; write the files anew with TIMESTAMP_MICROS",
                IndexNotUsedWarning,
                stacklevel=5,
            )
        elif not self._indexed:
            warnings.warn(
                f"there is no index on {', '.join(self.columns.names)}, so the key columns are "
                "read whole; make one with create_scalar_index",
                IndexNotUsedWarning,
                stacklevel=5,
            )
        predicate = without_old_times(And(tuple(terms))) if terms else Constant(True)
        nothing = RowFilter(None, frozenset(self.columns.names))
        plan = self._planner.plan(self.columns.names, nothing, predicate, described=False)
        identity = {each.fragment.path: each.identity for each in self._present}
        held = {path for path, count in zip(self.paths, counts, strict=True) if count}
        return [
            self._settled(each, identity.get(each.fragment.path))
            for each in plan.fragments
            if each.fragment.path in held
        ]

    def _settled(self, plan: FragmentPlan, identity: Any) -> FragmentPlan:
        """A plan tied to the file as it is now; one of many rows reads all."""
        if plan.identity not in (None, identity):
            raise FragmentChanged(
                f"{plan.fragment.path} changed while keys were to be located in it; call again"
            )
        plan = replace(plan, identity=identity)
        if plan.rows is None or plan.pages is None or not plan.pages.num_rows:
            return plan
        if self._has_text or len(plan.rows) <= _MOST_FIXED * plan.pages.num_rows:
            return plan
        return replace(plan, rows=None, pages=None)

    @property
    def _has_text(self) -> bool:
        return not all(map(_is_fixed, self.columns.schema.types))

    def cost(self, plan: FragmentPlan) -> float:
        """What reading a plan takes one core, about, ns."""
        if plan.rows is not None:
            return len(plan.rows) * _ZONES_COST[self._has_text]
        rows = self._num_rows.get(plan.fragment.path)
        if rows is None or not is_local(self.source.filesystem):
            return math.inf
        return rows * _WHOLE_COST[self._has_text]

    @property
    def fragments(self) -> Fragments:
        """What ranges and paths say of the fragments."""
        names = self.columns.names
        ranges = [self._ranges(number, name) for number, name in enumerate(names)]
        of_paths = tuple(number for number, name in enumerate(names) if name in self._by_path)
        count = len(self._present)
        if not of_paths:
            return Fragments(count, tuple(ranges))
        hashed = hash_rows(*self._path_columns(of_paths))
        partitions, groups = np.unique(hashed.hashes, return_inverse=True)
        if hashed.valid is not None:
            # A null equals no key.
            groups = np.where(hashed.valid, groups, -1)
        return Fragments(count, tuple(ranges), groups, partitions, of_paths)

    def _path_columns(self, numbers: Sequence[int]) -> tuple[list[pa.Array], list[pa.DataType]]:
        constants = [self.source.constants(each.fragment) for each in self._present]
        arrays, types = [], []
        for number in numbers:
            name = self.columns.names[number]
            held = self.source.schema.field(name).type
            plain = held.value_type if pt.is_dictionary(held) else held
            values = pa.array([each.get(name) for each in constants], plain)
            types.append(self.columns.schema.types[number])
            arrays.append(values.cast(types[-1]))
        return arrays, types

    def _ranges(self, number: int, name: str) -> KeyRanges | None:
        wanted = self.columns.schema.types[number]
        if name in self._by_path or name in self.columns.instants or not can_order(wanted):
            return None
        try:
            table: Any = self._opened.key_ranges(name)
            bounds = [table[each].combine_chunks().cast(wanted) for each in ("minimum", "maximum")]
        except (IndexNotFound, pa.ArrowException):
            return None
        if table["fragment_id"].to_pylist() != [each.fragment_id for each in self._present]:
            # Files came or changed between.
            return None
        known = table["is_known"].to_numpy()
        nothing = pa.scalar(None, wanted)
        # Not through Python, whose dates end with the year 9999.
        bounds = [pc.call_function("if_else", [pa.array(known), b, nothing]) for b in bounds]
        if name in self.columns.calendars.times:
            # Shown by Spark, they may be earlier.
            of_old = are_of_old(bounds[0]).fill_null(False)
            bounds = [pc.call_function("if_else", [of_old, nothing, b]) for b in bounds]
            known = known & ~of_old.to_numpy(zero_copy_only=False)
        nan = table["has_nan"].fill_null(True).to_numpy()
        empty = known & ~nan & ~bounds[0].is_valid().to_numpy(zero_copy_only=False)
        return KeyRanges(bounds[0], bounds[1], empty)

    def candidates(self, summary: Summary, calendars: Calendars | None) -> Candidates:
        """What reads the rows; calendars are given where a key is a day or time of old."""
        extra = [pa.field(name, pa.int64()) for name in (FRAGMENT_ID, ROW_OFFSET, FILE)]
        return Candidates(
            without_fragments(self.source),
            self.columns.names,
            pa.schema([*self.columns.schema, *extra]),
            summary.words,
            {
                each.fragment.path: (each.fragment_id, file)
                for file, each in enumerate(self._present)
            },
            self.columns.any_case,
            calendars,
        )

    def spark_schema(self) -> st.StructType:
        """The schema of the rows found, for Spark."""
        where = [st.StructField(x, st.LongType()) for x in (FRAGMENT_ID, ROW_OFFSET, FILE)]
        return st.StructType([*self.columns.fields, *where])


def _is_fixed(arrow: pa.DataType) -> bool:
    return pt.is_primitive(arrow) or pt.is_decimal(arrow)


def _is_alike(one: pa.DataType, other: pa.DataType) -> bool:
    other = other.value_type if pt.is_dictionary(other) else other
    texts = (pt.is_string, pt.is_large_string)
    if any(test(one) for test in texts):
        return any(test(other) for test in texts)
    return (pt.is_integer(one) and pt.is_integer(other)) or one == other
