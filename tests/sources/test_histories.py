"""Compare tables after each step of random histories with their library and rows in memory."""

from __future__ import annotations

import os

import numpy as np
import pytest
from support.helpers import THOROUGH
from support.snapshot_rows import READS, check_reads, in_order
from support.table_histories import FORMATS

import zonebloom as zb
from zonebloom.errors import IndexNotUsedWarning, SchemaMismatch, StaleIndexWarning

# Histories for each of the three formats. The thorough run has 1,002 in total.
SEEDS = range(334) if os.environ.get(THOROUGH) else range(4)
STEPS = 7


@pytest.mark.many
@pytest.mark.filterwarnings(f"ignore::{StaleIndexWarning.__module__}.StaleIndexWarning")
@pytest.mark.filterwarnings(f"ignore::{IndexNotUsedWarning.__module__}.IndexNotUsedWarning")
@pytest.mark.filterwarnings("ignore:Delete operation did not match any records:UserWarning")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("history_class", FORMATS, ids=lambda history: history.__name__)
def test_reads_are_right_after_each_step_of_a_table(tmp_path, history_class, seed):
    random = np.random.default_rng([FORMATS.index(history_class), seed])
    history = history_class(random, tmp_path)
    history.append()
    steps = []
    indexed_at, refreshed_at = random.integers(3), random.integers(2, STEPS)
    for number in range(STEPS):
        steps.append(history.step())
        want = history.table()
        theirs = history.theirs()
        if theirs is not None:
            assert in_order(theirs.select(want.schema.names).cast(want.schema)) == in_order(want)
        ds = zb.dataset(history.load())
        if number == indexed_at:
            columns = ["id", history.one_of(), f"s.{history.inner}"]
            ds.create_scalar_index(columns, number_of_items=8, spark=False)
        if number == refreshed_at:
            for index in ds.describe_indices():
                try:
                    ds.optimize.optimize_indices([index.name], spark=False)
                except SchemaMismatch:
                    # The index fails to refresh if its column was dropped.
                    ds.drop_index(index.name)
        reads = random.permutation(len(READS))[:3]
        try:
            check_reads(
                ds, want, history.sought(), [READS[0], *(READS[position] for position in reads)]
            )
            for name, kind in history.columns.items():
                if kind != "s":
                    value = history.rows[history.some()[0]][name]
                    text = f"{name} IS NULL" if value is None else f"{name} = {value!r}"
                    same = [row for row in want.to_pylist() if row[name] == value]
                    assert in_order(ds.to_table(filter=text)) == sorted(same, key=repr), text
        except AssertionError as error:
            raise AssertionError(f"after {steps}") from error
