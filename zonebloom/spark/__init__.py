"""Build and use zonebloom indices from Spark.

    build      Dataset.create_scalar_index(..., spark=), send_package, check_executors
    read       scan, plan, register (format("zonebloom"))
               prune, prune_plan, enable, disable, last_scans, wait_for_refreshes
    join       filter_join, explain_join
    keys       tag_location, files_with_keys
    manage     IndexManager, BFIndexConfig

There are two ways to read. `enable` (for a session) and `prune` (for one frame) make Spark's own
reader skip files; they need a classic session. `scan` skips zones of large files, and also works
over Spark Connect; it needs Spark 4. An `IndexManager` manages indices by name, as Hyperspace does.

Executors need Python, this package and its requirements, and must see the files at the same paths
as the driver. `check_executors` reports what is missing, and `send_package` sends the package.

Files of Spark 2 may store days before 1582 and times before 1900 in the Julian calendar, which
Spark corrects when it reads them. `scan` and `tag_location` do not correct them: if a query needs a
date or time column of such a file, they raise an error. `prune` works, because Spark reads the
file. Files of other writers count as modern ones unless the setting
``spark.sql.parquet.datetimeRebaseModeInRead`` says otherwise. If a column of instants is compared
with a time without a zone, that time is in the session's time zone.

Spark's write mode ``overwrite`` keeps an index beside the data folder, and deletes one inside it.

Examples
--------
The examples continue those of `zonebloom`, with a session `spark`:

>>> import zonebloom.spark as zs
"""

from zonebloom.errors import MissingDependency

try:
    import pyspark  # noqa: F401
except ModuleNotFoundError:
    raise MissingDependency(
        "zonebloom.spark needs PySpark; run pip install 'zonebloom[spark]'"
    ) from None

from zonebloom.spark.data_source import register
from zonebloom.spark.executors import ExecutorReport, check_executors, send_package
from zonebloom.spark.frames import Indexed, plan, scan
from zonebloom.spark.hyperspace.index_manager import BFIndexConfig, IndexManager
from zonebloom.spark.joins.filter_join import JoinPlan, explain_join, filter_join
from zonebloom.spark.pruning.prune import (
    disable,
    enable,
    last_scans,
    prune,
    prune_plan,
    wait_for_refreshes,
)
from zonebloom.spark.pruning.prune_plan import PrunePlan, Reason
from zonebloom.spark.tagging.tag import files_with_keys, tag_location

__all__ = [
    "BFIndexConfig",
    "ExecutorReport",
    "IndexManager",
    "Indexed",
    "JoinPlan",
    "PrunePlan",
    "Reason",
    "check_executors",
    "disable",
    "enable",
    "explain_join",
    "files_with_keys",
    "filter_join",
    "last_scans",
    "plan",
    "prune",
    "prune_plan",
    "register",
    "scan",
    "send_package",
    "tag_location",
    "wait_for_refreshes",
]


def __dir__() -> list[str]:
    return __all__
