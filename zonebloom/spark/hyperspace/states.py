"""Which action begins at which state of an index, and what is said where it may not.

create    DOESNOTEXIST -> CREATING   -> ACTIVE
refresh   ACTIVE       -> REFRESHING -> ACTIVE
optimize  ACTIVE       -> OPTIMIZING -> ACTIVE
delete    ACTIVE       -> DELETING   -> DELETED
restore   DELETED      -> RESTORING  -> ACTIVE
vacuum    DELETED      -> VACUUMING  -> DOESNOTEXIST
cancel    CREATING, VACUUMING, or CANCELLING of these -> CANCELLING -> DOESNOTEXIST
          others       -> CANCELLING -> the stable state before
"""

from __future__ import annotations

from zonebloom.errors import IndexExists, IndexNotFound, InvalidState
from zonebloom.spark.hyperspace.log import Record, State

# Where an action begins, while it is under way, and where it ends.
TRANSITIONS = {
    "create": (State.DOESNOTEXIST, State.CREATING, State.ACTIVE),
    "refresh": (State.ACTIVE, State.REFRESHING, State.ACTIVE),
    "optimize": (State.ACTIVE, State.OPTIMIZING, State.ACTIVE),
    "delete": (State.ACTIVE, State.DELETING, State.DELETED),
    "restore": (State.DELETED, State.RESTORING, State.ACTIVE),
    "vacuum": (State.DELETED, State.VACUUMING, State.DOESNOTEXIST),
}
_WHY_NOT = {
    "refresh": "it cannot be refreshed; call restore_index first",
    "optimize": "it cannot be optimized; call restore_index first",
    "delete": "it is deleted already",
    "restore": "there is nothing to restore",
    "vacuum": "it cannot be vacuumed; call delete_index first",
}


def require_state(record: Record, action: str) -> None:
    """Refuse an action on an index in another state than the one it begins at."""
    allowed = TRANSITIONS[action][0]
    if record.state == allowed:
        return
    name = record.name
    if not record.state.is_stable:
        raise InvalidState(
            f"index {name!r} is {record.state} since {record.time} and nobody is at work on it: "
            f"its process died. Call cancel({name!r}) first"
        )
    if action == "create":
        hint = ", deleted: restore it or vacuum it first" * (record.state == State.DELETED)
        raise IndexExists(f"there is an index {name!r} already{hint}; or give another name")
    if record.state == State.DOESNOTEXIST:
        raise no_index(name)
    raise InvalidState(f"index {name!r} is {record.state}, so {_WHY_NOT[action]}")


def no_index(name: str) -> IndexNotFound:
    """What is raised of a name nobody gave."""
    return IndexNotFound(f"there is no index {name!r}; indexes() lists those there are")


def require_unstable(record: Record) -> None:
    """Refuse to cancel where no action began."""
    if record.state == State.DOESNOTEXIST:
        raise no_index(record.name)
    if record.state.is_stable:
        raise InvalidState(
            f"index {record.name!r} is {record.state}: no action is under way, so there is none "
            "to cancel"
        )
