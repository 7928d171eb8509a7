"""The three kinds of indices that can be built and searched.

The kind is the second argument of `Dataset.create_scalar_index`, and `IndexEntry.kind` in the
catalog. All kinds divide the rows of a fragment into zones. BLOOMFILTER and HASH look up the hashes
of keys (`zonebloom.sbbf.hashing`), so a literal is converted in one place for both. ZONEMAP
compares values. All share key ranges and the rules for which rows an index covers.
"""

from __future__ import annotations

import shlex

from zonebloom.base import arguments
from zonebloom.catalog.model import IndexEntry
from zonebloom.errors import UnknownIndexKind
from zonebloom.index.base_kind import IndexKind
from zonebloom.index.hash.kind import HASH
from zonebloom.index.zone_bloom.kind import ZONE_BLOOM
from zonebloom.index.zone_map.kind import ZONE_MAP
from zonebloom.predicates.ast import LeafPredicate

_KINDS: dict[str, IndexKind] = {kind.name: kind for kind in (ZONE_BLOOM, HASH, ZONE_MAP)}


def why_no_kind_answers(leaf: LeafPredicate) -> str | None:
    """Return why an index of any kind cannot answer a part of a filter, or None."""
    reasons = [kind.why_not_answered(leaf) for kind in _KINDS.values()]
    return None if None in reasons else reasons[0]


def is_known_kind(name: str) -> bool:
    return name in _KINDS


def index_kind(name: object) -> IndexKind:
    """Return the kind with a name in any case. Raise `InvalidArgument` if there is none."""
    kind = _KINDS.get(name.upper()) if isinstance(name, str) else None
    if kind is None:
        *first_names, last_name = map(repr, _KINDS)
        names = f"{', '.join(first_names)} and {last_name}"
        raise arguments.invalid_value(name, "index_type", f"zonebloom builds {names}")
    return kind


def kind_of(entry: IndexEntry) -> IndexKind:
    """Return the kind of an index. Raise `UnknownIndexKind` if it is not one of the three."""
    kind = _KINDS.get(entry.kind)
    if kind is None:
        drop = f"call drop_index({entry.name!r})"
        raise UnknownIndexKind(
            f"index {entry.name!r} is of kind {entry.kind!r}, which this version does not know; "
            f"install a newer zonebloom, or {drop}",
            commands={drop: f"run zonebloom drop PATH --name {shlex.quote(entry.name)}"},
        )
    return kind
