"""zonebloom with Spark: the whole data pipeline.

    build      Dataset.create_scalar_index(..., spark=), send_package, check_executors
    read       scan, plan, register (format("zonebloom"))
               table, prune, prune_plan, enable, disable, last_scans
    join       filter_join, explain_join
    keys       tag_location, files_with_keys
    manage     IndexManager, BFIndexConfig

Which way to read: `enable`, or `prune` for one frame, has Spark's own reader leave files out, in
classic sessions; `scan` leaves out zones of large files, and is the way of Spark Connect. An
`IndexManager` is for indices kept by name, as Hyperspace's are.

Executors need Python, this package and what it needs, and see the files at the same paths:
`check_executors` says what is missing, `send_package` sends the package.

Files of Spark 2 may hold days before 1582 and times before 1900 by the calendar of then, which
Spark corrects as it reads. `scan` and `tag_location` do not: asked for a column with dates or
times of such a file they fail and say so, and `prune` has Spark read it. Files of other writers
count as modern ones unless ``spark.sql.parquet.datetimeRebaseModeInRead`` says otherwise. A time
without a zone beside a column of instants is one of the session's time zone. Spark's mode
``overwrite`` leaves an index beside the data folder, and deletes one that earlier releases put
inside: ``zonebloom move-index`` moves it.

The examples go on from those of `zonebloom`, with a session `spark`:

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
from zonebloom.spark.pruning.prune import disable, enable, last_scans, prune, prune_plan, table
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
    "table",
    "tag_location",
]


def __dir__() -> list[str]:
    return __all__
