"""Join two frames by `filter_join`, and tell what it did."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import zonebloom.spark as zs
from zonebloom.errors import IndexNotUsedWarning
from zonebloom.spark.pruning.explanation import Reason


class Joined(NamedTuple):
    """A join with the filters that it uses, and the reasons why it does no more."""

    frame: Any
    used: list[str]
    not_used: list[str]


def explain_join(*arguments: Any, **options: Any) -> Joined:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", IndexNotUsedWarning)
        frame = zs.filter_join(*arguments, **options)
    notes = zs.explain(frame).notes
    used = [note.text for note in notes if note.reason == Reason.JOIN_FILTERED]
    not_used = [str(warning.message) for warning in caught]
    return Joined(frame, used, not_used)
