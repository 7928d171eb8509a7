"""send_package(): zonebloom in an archive, sent to executors that lack it."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import xxhash
from pyspark.sql import SparkSession

import pyspark_zonebloom
import zonebloom
from zonebloom.spark.archive_launcher import INSIDE
from zonebloom.spark.data_source import register
from zonebloom.spark.failures import explained
from zonebloom.spark.jobs import compile_kernels
from zonebloom.spark.session import spark_context

# By SparkContext or Connect session: the archive it has.
_sent: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def send_package(spark: SparkSession) -> str:
    """Send this zonebloom to the executors of a session, which may lack it.

    Once a session is enough, before the first build or scan in it. Executors keep it unpacked
    in ``~/.cache/zonebloom``, with the kernels compiled here, which fit where CPU and Numba are
    the same. What zonebloom needs must be installed there: `check_executors` says what is not.

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
    owner = spark if context is None else context
    archive = _archive()
    name = os.path.basename(archive)
    if _sent.get(owner) == name:
        return name
    path = list(sys.path)
    try:
        with explained(always=True):
            if context is None:
                spark.addArtifacts(archive, pyfile=True)
            else:
                context.addPyFile(archive)
                # Workers that have loaded another zonebloom are not used again.
                context.environment["ZONEBLOOM_ARCHIVE"] = name
    finally:
        # Both also put it before this process's own packages.
        sys.path[:] = path
    _sent[owner] = name
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
    """Files of the archive by path: the launcher, and the package it unpacks."""
    package = {**_sources(zonebloom), **_compiled()}
    contents = {f"{INSIDE}/{name}": data for name, data in package.items()}
    contents["zonebloom/__init__.py"] = package["zonebloom/spark/archive_launcher.py"]
    contents |= _sources(pyspark_zonebloom)
    return dict(sorted(contents.items()))


def _sources(package: ModuleType) -> dict[str, bytes]:
    folder = Path(package.__path__[0])
    return {
        path.relative_to(folder.parent).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.suffix in (".py", ".typed")
    }


def _compiled() -> dict[str, bytes]:
    """Numba's files of each kernel, as Numba looks for them beside the source."""
    compiled: dict[str, bytes] = {}
    for module in compile_kernels():
        *folders, stem = module.__name__.split(".")
        for kernel in vars(module).values():
            cache = getattr(getattr(kernel, "stats", None), "cache_path", None)
            if cache is None:
                continue
            line = kernel.py_func.__code__.co_firstlineno
            for path in Path(cache).glob(f"{stem}.{kernel.py_func.__qualname__}-{line}.*.nb[ic]"):
                compiled["/".join([*folders, "__pycache__", path.name])] = path.read_bytes()
    return compiled
