"""Build and use zonebloom indices from Spark.

    build      Dataset.create_scalar_index(..., spark=)
    files      enable(spark), disable(spark), prune(frame), filter_join
    zones      scan(spark, path, filter)
    keys       tag_location, files_with_keys
    manage     IndexManager, BFIndexConfig
    explain    explain(frame)

There are two ways to read. `enable` (for a session) and `prune` (for one frame) make Spark's own
reader skip files; they need a classic session. `scan` skips zones of large files, and also works
over Spark Connect; it needs Spark 4. An `IndexManager` manages indices by name, as Hyperspace does.

Executors need Python, this package and its requirements, and must see the files at the same paths
as the driver.

`scan` and `tag_location` raise an error for date and time columns of files that may hold them in
the calendar of Spark 2. If a column of instants is compared with a time without a zone, that time
is in the session's time zone.

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

from zonebloom.spark.explaining import explain
from zonebloom.spark.frames import scan
from zonebloom.spark.hyperspace.index_manager import BFIndexConfig, IndexManager
from zonebloom.spark.joins.filter_join import filter_join
from zonebloom.spark.pruning.prune import disable, enable, prune
from zonebloom.spark.tagging.tag import files_with_keys, tag_location

__all__ = [
    "BFIndexConfig",
    "IndexManager",
    "disable",
    "enable",
    "explain",
    "files_with_keys",
    "filter_join",
    "prune",
    "scan",
    "tag_location",
]


def __dir__() -> list[str]:
    return __all__
