"""Compare tables after each step of random histories with their library and rows in memory."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from support.changed_tables import KINDS, ChangedIceberg, ChangedTable
from support.e2e_helpers import sql_literal
from support.helpers import THOROUGH
from support.snapshot_rows import READS, check_reads, in_order

import zonebloom as zb
from zonebloom.errors import IndexNotUsedWarning, SchemaMismatch, StaleIndexWarning

# Histories for each of the four kinds. The thorough run has 1,000 in total.
SEEDS = range(250) if os.environ.get(THOROUGH) else range(3)
STEPS = 7


class ReadHistory:
    """A table, and the steps of its writers."""

    def __init__(self, table: ChangedTable):
        self.table, self.rng = table, table.rng
        self.gone: list[int] = []

    def step(self) -> str:
        table = self.table
        steps: list[Callable[[], object]] = [self.append, self.delete, self.delete, self.update]
        steps += [table.compact, table.add_column]
        if table.renames:
            steps += [table.rename_column, table.swap_columns, table.rename_inner]
            steps.append(table.drop_column)
        if isinstance(table, ChangedIceberg):
            steps.append(table.change_spec)
        step = self.append if len(table.rows) < 20 else self.rng.choice(steps)
        step()
        return step.__name__

    def append(self) -> None:
        self.table.append(self.table.new_rows(self.rng.randint(10, 60)))

    def some(self) -> list[int]:
        """Return some ids of present rows, but never all."""
        ids = [row["id"] for row in self.table.rows]
        return self.rng.sample(ids, self.rng.randint(1, min(len(ids) - 5, 12)))

    def delete(self) -> list[int]:
        ids = self.some()
        self.table.delete(ids)
        self.gone += ids
        return ids

    def update(self) -> None:
        ids = self.delete()
        self.gone = [row_id for row_id in self.gone if row_id not in ids]
        self.table.append([self.table.row(row_id) for row_id in ids])

    def sought(self) -> list[int]:
        """Return ids of present rows, ids of deleted rows, and one that never existed."""
        present = self.rng.sample([row["id"] for row in self.table.rows], 3)
        return [*present, *dict.fromkeys(self.gone[-3:]), 10**9]


@pytest.mark.many
@pytest.mark.filterwarnings(f"ignore::{StaleIndexWarning.__module__}.StaleIndexWarning")
@pytest.mark.filterwarnings(f"ignore::{IndexNotUsedWarning.__module__}.IndexNotUsedWarning")
@pytest.mark.filterwarnings("ignore:Delete operation did not match any records:UserWarning")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_reads_are_right_after_each_step_of_a_table(tmp_path, kind, seed):
    rng = random.Random(f"{kind} {seed}")
    is_partitioned = rng.random() < 0.3
    table = KINDS[kind](rng, tmp_path, is_partitioned=is_partitioned, has_vectors=True)
    history = ReadHistory(table)
    history.append()
    steps = []
    indexed_at, refreshed_at = rng.randrange(3), rng.randrange(2, STEPS)
    for number in range(STEPS):
        steps.append(history.step())
        want = table.table(table.rows)
        theirs = table.read()
        if theirs is not None:
            assert in_order(theirs.select(want.schema.names).cast(want.schema)) == in_order(want)
        ds = zb.dataset(table.load(), **table.options)
        if number == indexed_at:
            columns = ["id", rng.choice(table.changeable()), f"n.{table.inner}"]
            ds.create_scalar_index(columns, number_of_items=8, spark=False)
        if number == refreshed_at:
            for index in ds.describe_indices():
                try:
                    ds.optimize.optimize_indices([index.name], spark=False)
                except SchemaMismatch:
                    # The index fails to refresh if its column was dropped.
                    ds.drop_index(index.name)
        try:
            check_reads(ds, want, history.sought(), [READS[0], *rng.sample(READS, 3)])
            check_filters(ds, want, rng)
        except AssertionError as error:
            raise AssertionError(f"partitioned: {is_partitioned}, after {steps}") from error


def check_filters(ds: zb.Dataset, want, rng: random.Random) -> None:
    """Compare a filter of each column with rows in memory."""
    want = want.select(ds.schema.names).cast(ds.schema)
    rows = want.to_pylist()
    for name, kind in zip(want.schema.names, want.schema.types, strict=True):
        value = rng.choice(rows)[name]
        literal = sql_literal(kind, value) if isinstance(value, int | float | str) else None
        if value is None or literal is not None:
            text = f"{name} IS NULL" if value is None else f"{name} = {literal}"
            same = [row for row in rows if row[name] == value]
            assert in_order(ds.to_table(filter=text)) == in_order(same), text
