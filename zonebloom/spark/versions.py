"""Use what differs between versions of Spark, and between classic and Connect sessions.

Other modules ask this one. They test no version, no attribute of a session and no Java class path
that changed between versions. One more such place is ``IndexedFiles.java``, which copies plan
nodes without naming their fields.

    Connect          has no SparkContext, no query plans and no JVM
    3.5              has no Python data sources, so `scan` is refused
    3.5              converts no frame to an Arrow table and no Arrow table to a frame
    3.5              has other Java packages, Scala 2.12 and perhaps Java 8
    3.5              has no collations
    3.5 and before   are refused over Connect
    4.0              has no type for times of day
    4.0 and 4.1      convert schemas to Arrow without a time zone; they always use UTC
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from inspect import signature
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from zonebloom.errors import EngineError

_HAS_CLASSIC_PACKAGE = find_spec("pyspark.sql.classic") is not None
# True if this Spark has what `scan` needs: Python data sources.
HAS_PYTHON_SOURCES = find_spec("pyspark.sql.datasource") is not None
if TYPE_CHECKING or HAS_PYTHON_SOURCES:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
else:
    # Bases of classes that `register_source` refuses.
    DataSource = DataSourceReader = InputPartition = object

__all__ = ["DataSource", "DataSourceReader", "InputPartition"]

# True if this Spark converts frames to Arrow tables and back.
_HAS_ARROW_FRAMES = hasattr(DataFrame, "toArrow")
# Spark's type of times of day, or None if this Spark has none.
TIME_TYPE: type[st.DataType] | None = getattr(st, "TimeType", None)
_ARROW_ZONE: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
)


def is_classic(spark: Any) -> bool:
    """Return whether a session is classic, so that its query plans are accessible."""
    return isinstance(spark, SparkSession)


def spark_context(spark: Any) -> Any:
    """Return the SparkContext of a classic session, or None over Connect.

    Raise `EngineError` if it is no classic session of Spark 3.5 or newer, nor one of Connect of
    Spark 4.
    """
    if not hasattr(spark, "addArtifacts") or not (is_classic(spark) or HAS_PYTHON_SOURCES):
        kind = f"{type(spark).__module__}.{type(spark).__qualname__}".removeprefix("builtins.")
        raise EngineError(
            f"spark is a {kind}; give a SparkSession, a classic one of Spark 3.5 or newer, or one "
            "of Spark Connect 4"
        )
    return spark.sparkContext if is_classic(spark) else None


def heap_bytes(spark: Any) -> int:
    """Return the memory of the driver or of an executor of a classic session, the smaller one."""
    conf = spark.sparkContext._jsc.sc().conf()
    processes = "driver", "executor"
    return min(conf.getSizeAsMb(f"spark.{name}.memory", "1g") for name in processes) << 20


def session_id(spark: Any) -> str:
    return str(java_session(spark).sessionUUID() if is_classic(spark) else spark.session_id)


def is_stopped(owner: Any) -> bool:
    """Return whether a SparkContext, or a Connect session, was stopped."""
    return owner.is_stopped if hasattr(owner, "is_stopped") else owner._jsc is None


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """Return the Arrow schema in which the JVM accepts batches of a Spark schema."""
    return to_arrow_schema(schema, **_ARROW_ZONE)


def arrow_table(frame: Any) -> pa.Table:
    """Return the rows of a frame as an Arrow table."""
    if _HAS_ARROW_FRAMES:
        return frame.toArrow()
    schema = arrow_schema(frame.schema)
    # Spark 3.5 returns instants in the time zone of the session, and no batches without rows.
    tables = [pa.Table.from_batches([batch]) for batch in frame._collect_as_arrow()]  # noqa: SLF001
    return pa.concat_tables([schema.empty_table(), *(table.cast(schema) for table in tables)])


def frame_of_arrow(spark: Any, table: pa.Table, schema: st.StructType | None = None) -> DataFrame:
    """Return the rows of an Arrow table as a frame. Each chunk of a large table is a partition."""
    if _HAS_ARROW_FRAMES:
        return spark.createDataFrame(table, schema)
    # Spark 3.5 creates a frame of Pandas in this way, and Spark 4 one of an Arrow table.
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer

    schema = schema or from_arrow_schema(table.schema)
    table = table.cast(arrow_schema(schema))
    max_rows = int(spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch"))
    batches = table.to_batches(max_rows if max_rows > 0 else None)
    utils = spark._jvm.PythonSQLUtils
    java_batches = spark.sparkContext._serialize_to_jvm(  # noqa: SLF001
        batches or [pa.RecordBatch.from_pylist([], table.schema)],
        ArrowStreamSerializer(),
        utils.readArrowStreamFromFile,
        spark._jvm.ArrowIteratorServer,
    )
    java_dataset = utils.toDataFrame(java_batches, schema.json(), java_session(spark))
    return frame_from_jvm(java_dataset, spark)


def register_source(spark: SparkSession, source: Any) -> None:
    """Register a data source class in a session, in place of another with the same name.

    Raise `EngineError` if this Spark has no Python data sources.
    """
    if not HAS_PYTHON_SOURCES:
        raise EngineError(
            "scan needs the Python data sources of Spark 4, but this is "
            f"PySpark {pyspark.__version__}; use zonebloom.spark.enable(spark), or "
            "zonebloom.spark.prune(spark.read.parquet(path)).where(...)"
        )
    spark.dataSource.register(source)


@contextmanager
def active_session(spark: Any) -> Iterator[None]:
    """Make a classic session the active one of this thread for a while.

    Spark registers a data source in the session that is asked, but looks up its name in the active
    one.
    """
    if not is_classic(spark):
        yield
        return
    package = "org.apache.spark.sql." + ("classic." if _HAS_CLASSIC_PACKAGE else "")
    sessions = getattr(spark._jvm, f"{package}SparkSession")
    active = sessions.getActiveSession()
    sessions.setActiveSession(java_session(spark))
    try:
        yield
    finally:
        if active.isDefined():
            sessions.setActiveSession(active.get())
        else:
            sessions.clearActiveSession()


@contextmanager
def access_to_plans(spark: Any) -> Iterator[Any]:
    """Yield the JVM of a session, ready to call Python.

    Raise `EngineError` if the session has no JVM, or if the JVM refuses what the block does.
    """
    advice = "use zonebloom.spark.scan(spark, path, filter=...), which applies the filter itself"
    if not is_classic(spark):
        raise EngineError(f"Spark Connect gives no access to plans; {advice}")
    from py4j.protocol import Py4JError
    from pyspark.java_gateway import ensure_callback_server_started

    try:
        ensure_callback_server_started(spark.sparkContext._gateway)
        yield spark._jvm
    except (Py4JError, OSError) as error:
        raise EngineError(f"this Spark accepts no file index: {error}; {advice}") from error


def java_session(spark: Any) -> Any:
    """Return the Java session of a classic session."""
    return spark._jsparkSession


def java_frame(df: Any) -> Any:
    """Return the Java Dataset of a frame of a classic session."""
    return df._jdf


def query_execution(df: Any) -> Any:
    """Return the Java object that holds the query plans of a frame of a classic session."""
    return java_frame(df).queryExecution()


def connect_plan(df: Any) -> Any:
    """Return the message in which a frame of Spark Connect is sent to the server."""
    return df._plan.to_proto(df.sparkSession.client)  # noqa: SLF001


def java_source(texts: Sequence[str], scala_version: str) -> str:
    """Return one Java text for this version of Spark, as the compiler that Spark ships takes it.

    The texts are written for Spark 4 and Scala 2.13. Names that Spark 3 and Scala 2.12 lack are
    replaced.
    """
    # The package and the imports come first.
    lines = list(chain.from_iterable(text.splitlines() for text in texts))
    header = [line for line in lines if line.startswith(("package ", "import "))]
    body = [line for line in lines if not line.startswith(("package ", "import "))]
    source = "\n".join([*dict.fromkeys(header), *body])
    if not _HAS_CLASSIC_PACKAGE:
        source = source.replace("org.apache.spark.sql.classic.", "org.apache.spark.sql.")
    if scala_version.startswith("2.12."):
        source = source.replace("scala.collection.immutable.Seq", "scala.collection.Seq")
    return source


def new_java_object(jvm: Any, name: str, *texts: str) -> Any:
    """Compile Java texts by Janino, which Spark ships. Return a new object of a class."""
    source = java_source(texts, jvm.scala.util.Properties.versionNumberString())
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
    compiler.cook(source)
    return compiler.getClassLoader().loadClass(name).newInstance()


def frame_from_jvm(java_dataset: Any, spark: SparkSession) -> DataFrame:
    """Return the Python frame of a Java Dataset of a classic session."""
    classic: Any = DataFrame
    if _HAS_CLASSIC_PACKAGE:
        from pyspark.sql.classic.dataframe import DataFrame as classic  # noqa: N813

    return classic(java_dataset, spark)


def from_jvm(spark: Any, java_object: Any) -> Any:
    """Return a Java map or array of texts as Python objects.

    Transfer it as one text, because each element would be a call to the JVM.
    """
    mapper = spark._jvm.com.fasterxml.jackson.databind.ObjectMapper()
    return json.loads(mapper.writeValueAsString(java_object))
