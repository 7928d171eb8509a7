"""send_package(): zonebloom in an archive, sent to executors that lack it."""

from __future__ import annotations

import functools
import importlib
import os
import tempfile
import zipfile
from pathlib import Path

import xxhash
from pyspark.sql import SparkSession

import zonebloom
from zonebloom.spark.data_source import register
from zonebloom.spark.failures import explained
from zonebloom.spark.session import spark_context


def send_package(spark: SparkSession) -> str:
    """Send this zonebloom to the executors of a session, which may lack it.

    Once a session is enough, before the first build or scan in it. Spark unpacks it on executors
    for as long as the application runs, with the kernels compiled here, which fit where CPU and
    Numba are the same. What zonebloom needs must be installed there: `check_executors` says what
    is not.

    Parameters
    ----------
    spark : SparkSession
        Classic, where every session of its context gets it, or Connect, where this one does.

    Returns
    -------
    str
        Name of the archive that was sent. The same code makes the same archive.

    Raises
    ------
    EngineError
        When it is no session, or Spark does not take the archive.

    Examples
    --------
    >>> zs.send_package(spark)    # doctest: +SKIP
    'zonebloom-0.2.0-701c66043e3662ff.zip'
    """
    context = spark_context(spark)
    archive = _archive()
    name = os.path.basename(archive)
    # Spark unpacks it into a folder of that name, in which Python looks for modules first.
    unpacked = f"{archive}#zonebloom"
    with explained(always=True):
        if context is None:
            spark.addArtifacts(unpacked, archive=True)
        else:
            context.addArchive(unpacked)
            # Workers that have loaded another zonebloom are not used again.
            context.environment["ZONEBLOOM_ARCHIVE"] = name
    # The format as registered before knows nothing of the archive.
    register(spark, anew=True)
    return name


def _archive() -> str:
    """Path of the archive, written when this process has not written the same before."""
    contents = _contents()
    digest = xxhash.xxh3_128()
    for name, data in contents.items():
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    name = f"zonebloom-{zonebloom.__version__}-{digest.hexdigest()[:16]}.zip"
    path = os.path.join(_folder().name, name)
    if not os.path.exists(path):
        with zipfile.ZipFile(f"{path}.part", "w") as file:
            for name, data in contents.items():
                file.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        os.replace(f"{path}.part", path)
    return path


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Deleted when this process ends: executors that start late still ask for the archive."""
    return tempfile.TemporaryDirectory(prefix="zonebloom-archive-")


def _contents() -> dict[str, bytes]:
    """The sources of the package, and what Numba made of its kernels, by path in it."""
    package = Path(zonebloom.__path__[0])
    paths = [path for path in package.rglob("*") if path.suffix in (".py", ".typed")]
    contents = {path.relative_to(package).as_posix(): path.read_bytes() for path in paths}
    for name in [name for name, source in contents.items() if b"@kernel(" in source]:
        folder, stem = os.path.split(name.removesuffix(".py"))
        module = importlib.import_module(f"zonebloom.{folder.replace('/', '.')}.{stem}")
        for kernel in vars(module).values():
            cache = getattr(getattr(kernel, "stats", None), "cache_path", None)
            if cache is None:
                continue
            line = kernel.py_func.__code__.co_firstlineno
            for path in Path(cache).glob(f"{stem}.{kernel.py_func.__qualname__}-{line}.*.nb[ic]"):
                contents[f"{folder}/__pycache__/{path.name}"] = path.read_bytes()
    return dict(sorted(contents.items()))
