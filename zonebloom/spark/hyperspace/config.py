"""The settings of an `IndexManager` in a session's conf, and the configuration of an index.

Settings are read from ``spark.conf`` each time they are used. ``spark-submit --conf`` and
``spark-defaults.conf`` accept only keys that begin with ``spark.``, so each key may also have this
prefix. If both are set, the key without it counts.

    key                                                default   meaning
    zonebloom.apply.enabled                            true      whether indices are used; set by
                                                                 enable() and disable()
    zonebloom.system.path                              (1)       folder of the records of indices
    zonebloom.index.hybridscan.enabled                 true      whether an index is used although
                                                                 files were added or changed after
                                                                 its build
    zonebloom.index.hybridscan.maxAppendedRatio        0.3       accepted, without effect (2)
    zonebloom.index.hybridscan.maxDeletedRatio         0.2       accepted, without effect (2)
    zonebloom.index.cache.expiryDurationInSeconds      300       seconds for which queries use
                                                                 cached records

(1) ``zonebloom_indexes`` in ``spark.sql.warehouse.dir``.
(2) An index is used however many files were added, changed or deleted: it still excludes as many of
    the others.

The names and defaults are Hyperspace's, with one exception. Hyperspace's hybrid scan is off by
default, because it adds a union and a shuffle to the plan. Here it is on, because Spark simply
reads the files that the index does not know, which costs nothing else and loses no rows. Keys that
begin with ``spark.hyperspace`` belong to Hyperspace and are not read, so that a session can use
both.
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

_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class BFIndexConfig:
    """The configuration of an index that `IndexManager.create_index` builds.

    Parameters
    ----------
    name : str
        Name of the index, unique in the system folder and without a dot.
    columns : list of str
        Each column gets its own filters; combinations of columns are not indexed. Leaves of
        structs are written as "a.b".
    expected_num_items : int, optional
        Number of distinct values of a column in the whole dataset, which determines the size of
        its global filter. The default is the number of rows.
    fpp : float
        Target false positive probability of the global filters, between 0 and 1. The filters of
        zones use Lance's defaults.

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
    """Return an index name, or raise `InvalidArgument` if it is not valid."""
    fits = isinstance(name, str) and 0 < len(name.encode(errors="replace")) <= 80
    # In the catalog, a dot separates the name from the column, which may itself contain dots.
    if not fits or not name.isprintable() or "/" in name or "." in name:
        raise InvalidArgument(
            f"{name!r} cannot name an index; give up to 80 bytes of printable characters without "
            "'/' and '.'"
        )
    return name


# The default, the maximum of a number (None for true or false), and a description of each setting.
SETTINGS: dict[str, tuple[str, float | None, str]] = {
    APPLY_ENABLED: ("true", None, "true or false"),
    HYBRID_ENABLED: ("true", None, "true or false"),
    MAX_APPENDED_RATIO: ("0.3", 1.0, "a number from 0 to 1"),
    MAX_DELETED_RATIO: ("0.2", 1.0, "a number from 0 to 1"),
    CACHE_SECONDS: ("300", sys.float_info.max, "a number of seconds, 0 or more"),
}


def read_settings(spark: SparkSession) -> dict[str, Any]:
    settings: dict[str, Any] = {SYSTEM_PATH: _system_path(spark)}
    for key, (default, most, expected) in SETTINGS.items():
        text = _read_setting(spark, key)
        try:
            settings[key] = _parse_setting(default if text is None else text, most)
        except (ValueError, KeyError):
            raise InvalidArgument(f"{key} is {text!r}; set it to {expected}") from None
    return settings


def _parse_setting(text: str, most: float | None) -> bool | float:
    if most is None:
        return _BOOLEANS[text.strip().lower()]
    value = float(text)
    if not 0.0 <= value <= most:
        raise ValueError(text)
    return value


def _read_setting(spark: SparkSession, key: str) -> str | None:
    value = spark.conf.get(key, None)
    return spark.conf.get(f"spark.{key}", None) if value is None else value


def _system_path(spark: SparkSession) -> str:
    default = f"{spark.conf.get('spark.sql.warehouse.dir')}/zonebloom_indexes"
    path = _read_setting(spark, SYSTEM_PATH) or default
    return absolute_path(plain_path(path, encoded=is_uri(path)))
