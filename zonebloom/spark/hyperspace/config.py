"""The settings of an `IndexManager` in a session's conf, and the configuration of an index.

Settings are read from ``spark.conf`` each time they are used. ``spark-submit --conf`` and
``spark-defaults.conf`` accept only keys that begin with ``spark.``, so each key may also have this
prefix. If both are set, the key without it counts.

    key                                  default   meaning
    zonebloom.system.path                (1)       folder of the documents of indices
    zonebloom.index.hybridscan.enabled   true      whether queries of the session use an index of
                                                   files to which others were added, or of which
                                                   some changed

(1) ``zonebloom_indexes`` in ``spark.sql.warehouse.dir``.

The names are Hyperspace's. Its hybrid scan is off by default, because it adds a union and a shuffle
to the plan. Here it is on, because Spark simply reads the files that the index does not know, which
costs nothing else and loses no rows. Keys that begin with ``spark.hyperspace`` belong to Hyperspace
and are not read, so that a session can use both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zonebloom.base import arguments
from zonebloom.errors import InvalidArgument
from zonebloom.sbbf.sizing import validate_target
from zonebloom.spark.managed_indices import require_name


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
