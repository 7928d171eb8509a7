"""Kill some changes of each kind of table; ``python -m tests.trust --only changes`` kills many."""

from __future__ import annotations

import os
import random

import pytest
from changes.killed_changes import run_killed_change
from support.changed_tables import KINDS
from support.helpers import THOROUGH


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS if os.environ.get(THOROUGH) else ["folder"])
def test_a_killed_change_is_completed_by_the_same_call(tmp_path, kind):
    outcomes = list(run_killed_change(kind, random.Random(kind), tmp_path, num_kills=2))
    assert len(outcomes) == 2
