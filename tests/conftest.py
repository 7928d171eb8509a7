"""Settings of all tests, and the Spark session that the tests of a run share."""

from __future__ import annotations

import gc
import os
import sys
import zlib
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import settings
from support.helpers import THOROUGH

import zonebloom
from bench.spark_session import spark_session

# Options of each JVM that a test starts.
JAVA_OPTIONS = (
    # Queries are short here, so the second compiler would take longer than it saves.
    "-XX:TieredStopAtLevel=1",
    # The default for one compiler is 48 MB. The shared session fills it, and would then drop
    # compiled methods and compile them again.
    "-XX:ReservedCodeCacheSize=256m",
    "-XX:+UseSerialGC",
    # Collect the whole heap for the memory of classes only from this size on.
    "-XX:MetaspaceSize=256m",
)
os.environ.setdefault("JAVA_TOOL_OPTIONS", " ".join(JAVA_OPTIONS))

# Let this process, and the many that the tests start, share compiled Python files.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Test files need not survive a power failure, and fsync would make every build wait for the disk.
os.fsync = lambda _: None

# No deadline: the first example of a kernel also loads or compiles it.
settings.register_profile("zonebloom", deadline=None, max_examples=60, print_blob=True)
settings.load_profile("zonebloom")

HIDDEN = "zonebloom.errors.HiddenColumnsWarning"
# The trust harness, the benchmarks and the JVM of the tests need functions that Windows lacks.
collect_ignore = ["trust", "spark", "documents/test_bench.py"] if os.name == "nt" else []
OWN_SESSION = ("test_connect.py", "test_cluster.py")
# The slowest files run first, so that the parallel run does not wait for one of them at the end.
LONGEST = (
    *OWN_SESSION,
    "test_bench.py",
    "test_demo.py",
    "test_catalog.py",
    "test_truncated.py",
    "test_trust.py",
    "test_polars.py",
    "test_dataset_types.py",
    "test_statistics.py",
    "test_values.py",
    "test_schemas.py",
    "test_notebooks.py",
    "test_docs.py",
)
# The tests of these files run with --everything, or if a file is named.
DOCUMENTS = ("test_docs.py", "test_notebooks.py", "test_demo.py", "test_bench.py")
# Files that take more than ten seconds.
SLOW = (
    "test_bloom.py",
    "test_credentials.py",
    "test_decrypted.py",
    "test_drifting_types.py",
    "test_forged.py",
    "test_kernel_loader.py",
    "test_many_keys.py",
    "test_other_systems.py",
    "test_requirements.py",
    "test_sql_duckdb.py",
    "test_statistics.py",
    "test_truncated.py",
    "test_writers.py",
)
# Marks of tests that a plain run leaves out.
LEFT_OUT = ("spark", "documents", "trust", "slow")
# A plain run takes one of so many cases of a test with the mark `many`.
CASES_PER_FAST_CASE = 5


def pytest_addoption(parser):
    parser.addoption("--thorough", action="store_true", help="all random cases, not a quarter")
    parser.addoption("--everything", action="store_true", help="the slow tests, too")


def pytest_configure(config):
    if config.getoption("--thorough", default=False):
        os.environ[THOROUGH] = "1"
    # Whoever names files wants all of their tests.
    if config.args_source == pytest.Config.ArgsSource.ARGS:
        config.option.everything = True
    # All tests use the kernels. The first process compiles them before it starts others.
    zonebloom.warmup()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Run each file in one process, and the files that use a Spark session in two processes."""
    from xdist.scheduler import LoadFileScheduling

    class SessionGroupScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            path = super()._split_scope(nodeid)
            return session_group(path) if uses_session(path) else path

    # Keep the order of `LONGEST` instead of sorting files by their number of tests.
    config.option.loadscopereorder = False
    return SessionGroupScheduling(config, log)


def pytest_collection_modifyitems(config, items):
    cases = defaultdict(list)
    for item in items:
        for mark in slow_marks(item.path):
            item.add_marker(mark)
        if item.get_closest_marker("many"):
            cases[item.path, item.originalname].append(item)
    for items_of_test in cases.values():
        # This order is always the same, and mixes the values of all parameters.
        items_of_test.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        for item in items_of_test[-(-len(items_of_test) // CASES_PER_FAST_CASE) :]:
            item.add_marker("slow")
    left_out = {item for item in items if any(map(item.get_closest_marker, LEFT_OUT))}
    if not config.option.everything:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]

    def rank(item):
        if uses_session(item.nodeid.partition("::")[0]):
            return -1
        return LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST)

    items.sort(key=rank)
    for item in items:
        if "spark" in item.path.parts:
            # Some of these tests have columns that differ only in case, which causes this warning.
            item.add_marker(pytest.mark.filterwarnings(f"ignore::{HIDDEN}"))


def pytest_collection_finish():
    # Imported modules live until the end, so the garbage collector need not look at them.
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item):
    """Stop an active Spark session before tests that do not use it, because builds would use it."""
    sql = sys.modules.get("pyspark.sql")
    if sql is not None and not uses_session(item.nodeid.partition("::")[0]):
        session = sql.SparkSession.getActiveSession()
        if session is not None:
            session.stop()


def slow_marks(path: Path) -> list[str]:
    """Return the marks that all tests of a file have because of its name or folder."""
    marks = [name for name in ("spark", "trust") if name in path.parts]
    by_name = {"documents": DOCUMENTS, "slow": SLOW}
    return marks + [mark for mark, names in by_name.items() if path.name in names]


def session_group(path: str) -> str:
    """Return the group of a file whose tests use the fixture `spark`.

    The two groups take about the same time. They run first, one in each of two processes, and
    the short files after them keep both processes busy until the end.
    """
    return "spark-1" if path.rpartition("/")[2] < "test_pl" else "spark-2"


def uses_session(path: str) -> bool:
    """Return whether tests of a file use the fixture `spark`, which is slow to start."""
    name = path.rpartition("/")[2]
    if "/spark/" in path:
        return name not in OWN_SESSION
    return name in ("test_bloom.py", "test_writers.py")


@pytest.fixture(scope="session")
def spark():
    """Return the Spark session of the process. Tests must not stop it, because all share it."""
    with pytest.MonkeyPatch.context() as patch:
        # Workers import `support.warm_daemon` from this folder.
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        session = spark_session("local[2]", "zonebloom-tests")
    session._jsc.sc().conf().set("spark.python.daemon.module", "support.warm_daemon")
    # Tables are small here, so most of the default number of partitions would be empty.
    session.conf.set("spark.sql.shuffle.partitions", 4)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cache_of_run(tmp_path_factory):
    """Return a cache folder for all processes of a run, so that kernels are compiled only once."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "cache"
