"""Compare changed tables after each step of random histories with their library and a model."""

from __future__ import annotations

import os
import random

import pytest
from changes.change_history import run_history
from support.changed_tables import KINDS
from support.helpers import THOROUGH

SEEDS = range(20) if os.environ.get(THOROUGH) else range(2)


@pytest.mark.many
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_right_after_each_step(tmp_path, kind, seed):
    run_history(kind, random.Random(f"{kind} {seed}"), tmp_path)
