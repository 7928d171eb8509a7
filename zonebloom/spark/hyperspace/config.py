"""What an `IndexManager` can be told: of the session by its conf, of an index by its config.

Keys are read from ``spark.conf`` each time they are used. ``spark-submit --conf`` and
``spark-defaults.conf`` take only keys that begin with ``spark.``, so each may be written with
that in front as well; without it wins.

    key                                                default   meaning
    zonebloom.apply.enabled                            true      whether indices are used; what
                                                                 enable() and disable() set
    zonebloom.system.path                              (1)       folder of the records of indices
    zonebloom.index.hybridscan.enabled                 true      whether an index is used while
                                                                 files were added, changed or
                                                                 deleted since
    zonebloom.index.hybridscan.maxAppendedRatio        0.3       share of the bytes now there, that
                                                                 may have been added or changed
    zonebloom.index.hybridscan.maxDeletedRatio         0.2       share of the bytes indexed, that
                                                                 may be gone or changed
    zonebloom.index.cache.expiryDurationInSeconds      300       how long records read are believed
                                                                 when a query is planned

(1) ``zonebloom_indexes`` in ``spark.sql.warehouse.dir``.

The names and defaults are Hyperspace's, but one: its hybrid scan is off by default, for it puts
a union and a shuffle into the plan. Here files the index does not know stay in the read as they
are, at no other cost and never at that of a row, so it is on. Keys that begin with
``spark.hyperspace`` are Hyperspace's own and are not read: a session that uses both must be able
to tell each what it means.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from zonebloom.base import arguments
from zonebloom.errors import InvalidArgument
from zonebloom.sbbf.sizing import validate_target
from zonebloom.storage.paths import absolute_path, is_uri, plain_path

APPLY_ENABLED = "zonebloom.apply.enabled"
SYSTEM_PATH = "zonebloom.system.path"
HYBRID_ENABLED = "zonebloom.index.hybridscan.enabled"
MAX_APPENDED_RATIO = "zonebloom.index.hybridscan.maxAppendedRatio"
MAX_DELETED_RATIO = "zonebloom.index.hybridscan.maxDeletedRatio"
CACHE_SECONDS = "zonebloom.index.cache.expiryDurationInSeconds"

_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class BFIndexConfig:
    """What `IndexManager.create_index` is to build.

    Parameters
    ----------
    name : str
        Of the index, one of its own in the system folder; without a dot.
    columns : list of str
        Each with filters of its own: an index of several columns is not one of their
        combinations. Leaves of structs as "a.b".
    expected_num_items : int, optional
        Distinct values of a column in the whole dataset, that its global filter is sized for;
        the number of rows by default.
    fpp : float
        Target false positive probability of the global filters, between 0 and 1. Filters of
        zones keep Lance's own defaults.

    Raises
    ------
    InvalidArgument

    Examples
    --------
    >>> zs.BFIndexConfig("by_id", ["id", "customer"], expected_num_items=3000).fpp
    0.01
    """

    name: str
    columns: Sequence[str]
    expected_num_items: int | None = None
    fpp: float = 0.01

    def __post_init__(self) -> None:
        require_name(self.name)
        object.__setattr__(
            self, "columns", tuple(arguments.require_name_list(self.columns, "columns"))
        )
        if not self.columns:
            raise InvalidArgument("columns is empty; name at least one")
        num_items = 1 if self.expected_num_items is None else self.expected_num_items
        validate_target(num_items, self.fpp, ("expected_num_items", "fpp"))


def require_name(name: Any) -> str:
    """A name that an index can have, or none."""
    fits = isinstance(name, str) and 0 < len(name.encode(errors="replace")) <= 80
    # In the catalog a dot parts it from the column, which may have dots.
    if not fits or not name.isprintable() or "/" in name or "." in name:
        raise InvalidArgument(
            f"{name!r} cannot name an index; give up to 80 bytes of printable characters without "
            "'/' and '.'"
        )
    return name


# Default, largest value of a number, and what is expected, by key.
SETTINGS: dict[str, tuple[str, float | None, str]] = {
    APPLY_ENABLED: ("true", None, "true or false"),
    HYBRID_ENABLED: ("true", None, "true or false"),
    MAX_APPENDED_RATIO: ("0.3", 1.0, "a number from 0 to 1"),
    MAX_DELETED_RATIO: ("0.2", 1.0, "a number from 0 to 1"),
    CACHE_SECONDS: ("300", sys.float_info.max, "a number of seconds, 0 or more"),
}


def read_settings(spark: SparkSession) -> dict[str, Any]:
    """The values of a session at one moment, by key."""
    settings: dict[str, Any] = {SYSTEM_PATH: _system_path(spark)}
    for key, (default, most, expected) in SETTINGS.items():
        text = _get(spark, key)
        try:
            settings[key] = _read(default if text is None else text, most)
        except (ValueError, KeyError):
            raise InvalidArgument(f"{key} is {text!r}; set it to {expected}") from None
    return settings


def _read(text: str, most: float | None) -> bool | float:
    if most is None:
        return _TRUTH[text.strip().lower()]
    value = float(text)
    if not 0.0 <= value <= most:
        raise ValueError(text)
    return value


def _get(spark: SparkSession, key: str) -> str | None:
    value = spark.conf.get(key, None)
    return spark.conf.get(f"spark.{key}", None) if value is None else value


def _system_path(spark: SparkSession) -> str:
    default = f"{spark.conf.get('spark.sql.warehouse.dir')}/zonebloom_indexes"
    path = _get(spark, SYSTEM_PATH) or default
    return absolute_path(plain_path(path, encoded=is_uri(path)))
