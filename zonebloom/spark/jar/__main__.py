"""Write the jar: ``python -m zonebloom.spark.jar zonebloom-spark.jar``.

The compiler is the one that Spark ships, so that neither a JDK nor Maven is needed. Spark's plans
have other Java types in each version, so a jar is for the version of PySpark that wrote it.
"""

from __future__ import annotations

import argparse
import os
import zipfile
from importlib.resources import files

import pyspark
from pyspark.sql import SparkSession

from zonebloom.spark.pruning.optimizer_rule import java_texts
from zonebloom.spark.versions import access_to_plans, compile_java

_OLDEST_TIME = 1980, 1, 1, 0, 0, 0


def write_jar(spark: SparkSession, path: str) -> None:
    """Compile the Java texts of the package in the JVM of a session, and write the jar.

    A jar that exists is replaced. Equal texts give equal bytes.

    Raises
    ------
    EngineError
        If the session gives no access to its JVM.
    OSError
        If the jar cannot be written.
    """
    extensions = (files("zonebloom.spark.jar") / "Extensions.java").read_text()
    with access_to_plans(spark) as jvm:
        bytecodes = compile_java(jvm, *java_texts(), extensions).getBytecodes()
        classes = {name: bytes(bytecodes[name]) for name in sorted(bytecodes)}
    temporary_path = f"{path}.{os.getpid()}.tmp"
    try:
        with zipfile.ZipFile(temporary_path, "w", zipfile.ZIP_DEFLATED) as jar:
            for name, code in classes.items():
                jar.writestr(zipfile.ZipInfo(f"{name.replace('.', '/')}.class", _OLDEST_TIME), code)
        os.replace(temporary_path, path)
    finally:
        if os.path.exists(temporary_path):
            os.remove(temporary_path)


def main() -> None:
    """Write the jar that the command line names."""
    parser = argparse.ArgumentParser("python -m zonebloom.spark.jar", description=__doc__)
    parser.add_argument("path", help="the jar to write")
    path = parser.parse_args().path
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    write_jar(spark.getOrCreate(), path)
    print(f"{path} is for Spark {pyspark.__version__}")


if __name__ == "__main__":
    main()
