"""Where a file lies, as users, Spark and logs write it, and the file system it lies in: only
``encoded`` paths have %-escapes."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.errors import SourceError
from zonebloom.storage.s3a import s3_filesystem

# One letter is a drive.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)")
# Where Databricks mounts dbfs:/ for all that is no Spark.
DBFS_MOUNT = "/dbfs"
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class _Scheme(NamedTuple):
    """A scheme as pyarrow spells it, empty where it has none, and what to do then."""

    arrow: str
    advice: str


def _by_fsspec(package: str) -> str:
    return (
        f"zb.dataset(path, filesystem=...) takes one of fsspec ({package}), and a store of obstore"
    )


_KEYS = "check the name, the region and the credentials, or give zb.dataset a filesystem"
_HADOOP = (
    "pyarrow opens it by Hadoop's libhdfs: set JAVA_HOME, HADOOP_HOME, and CLASSPATH to what "
    "'hadoop classpath --glob' prints, for Spark's executors too; or "
) + _by_fsspec("webhdfs")
_AZURE = "give it as abfss://container@account.dfs.core.windows.net/path, or "
_SCHEMES = {
    "s3": _Scheme("s3", _KEYS),
    "s3a": _Scheme("s3", _KEYS),
    "s3n": _Scheme("s3", _KEYS),
    "gs": _Scheme("gs", _KEYS),
    "gcs": _Scheme("gs", _KEYS),
    "abfs": _Scheme("abfs", _KEYS),
    "abfss": _Scheme("abfss", _KEYS),
    "wasb": _Scheme("", _AZURE + _by_fsspec("adlfs")),
    "wasbs": _Scheme("", _AZURE + _by_fsspec("adlfs")),
    "hdfs": _Scheme("hdfs", _HADOOP),
    "viewfs": _Scheme("viewfs", _HADOOP),
    "dbfs": _Scheme(
        "", f"it is read where it is mounted as {DBFS_MOUNT}, and here it is not; a path of a "
        "volume (/Volumes/...) is read anywhere; or " + _by_fsspec("databricks-sdk"),
    ),
    "oss": _Scheme("", _by_fsspec("ossfs")),
    "http": _Scheme("", _by_fsspec("aiohttp")),
    "https": _Scheme("", _by_fsspec("aiohttp")),
}  # fmt: skip
_OTHER = _Scheme("", _by_fsspec("one for that scheme"))


def is_uri(path: str) -> bool:
    return _SCHEME.match(path) is not None


def _has_escapes(path: str) -> bool:
    """Whether it is a URI of a local file, in which users and pyarrow write ``%20``."""
    match = _SCHEME.match(path)
    return match is not None and match[1].lower() == "file"


def _divided(path: str, encoded: bool) -> tuple[str, str, str]:
    """The scheme as pyarrow spells it, the host or bucket, and the path below; of a local path the
    path alone."""
    match = _SCHEME.match(path)
    rest = path[match.end() :] if match else path
    rest = unquote(rest) if encoded else rest
    scheme = match[1].lower() if match else ""
    if scheme == "file":
        return "", "", "/" + rest.lstrip("/")
    if scheme == "dbfs" and os.path.isdir(DBFS_MOUNT):
        return "", "", f"{DBFS_MOUNT}/{rest.lstrip('/')}"
    if not scheme:
        return "", "", rest
    scheme = _SCHEMES.get(scheme, _OTHER).arrow or scheme
    if not rest.startswith("//"):
        return scheme, "", rest
    host, mark, below = rest[2:].partition("/")
    return scheme, host, mark + below


def split_path(path: str, encoded: bool = False) -> tuple[str, str]:
    """The scheme, empty for local files, and the path as a file system of pyarrow takes it.

    >>> split_path("file:///lake/a%20b", encoded=True), split_path("s3a://bucket/a")
    (('', '/lake/a b'), ('s3', 'bucket/a'))
    >>> split_path("hdfs://host:8020/a"), split_path("abfss://c@x.dfs.core.windows.net/a")
    (('hdfs', '/a'), ('abfss', 'c/a'))
    """
    scheme, host, below = _divided(path, encoded)
    if scheme in ("hdfs", "viewfs"):
        return scheme, below
    user, _, place = host.rpartition("@")
    # Hadoop's way to write it: container@account.
    is_container_first = scheme in ("abfs", "abfss") and "." in place
    return scheme, (user.partition(":")[0] if is_container_first else place) + below


def plain_path(path: str, encoded: bool = False) -> str:
    """A path as pyarrow names it: without scheme where it is local, else with pyarrow's.

    >>> plain_path("file:/lake/a"), plain_path("s3a://bucket/a")
    ('/lake/a', 's3://bucket/a')
    """
    scheme, host, below = _divided(path, encoded)
    return f"{scheme}://{host}{below}" if scheme else below


def absolute_path(path: str) -> str:
    """A path that means the same in another process; URIs do already."""
    return path if is_uri(path) else os.path.abspath(os.path.expanduser(path))


def filesystem_of(path: str, s3a: Mapping[str, str] = NO_SETTINGS) -> tuple[pafs.FileSystem, str]:
    """The file system a path lies in, and its path there.

    Buckets of S3 are opened by Hadoop's settings of S3A, where those say how.

    Raises
    ------
    SourceError
        When pyarrow has none for the path's scheme, or cannot open it.
    """
    scheme, host, _ = _divided(path, False)
    filesystem = s3_filesystem(s3a, host) if scheme == "s3" and s3a else None
    if not scheme:
        filesystem = pafs.LocalFileSystem()
    elif filesystem is None:
        filesystem, _ = filesystem_of_uri(f"{scheme}://{quote(host, safe=':@')}/")
    return filesystem, split_path(path)[1]


def filesystem_of_uri(uri: str) -> tuple[pafs.FileSystem, str]:
    """The file system that a URI says, with what stands in it of options, and its path there.

    Raises
    ------
    SourceError
        As `filesystem_of`.
    """
    scheme, _, below = _divided(uri, _has_escapes(uri))
    if not scheme:
        return pafs.LocalFileSystem(), below
    found = _SCHEMES.get(scheme, _OTHER)
    match = _SCHEME.match(uri)
    if not found.arrow or match is None:
        raise SourceError(f"{uri} cannot be opened: pyarrow has no {scheme}://; {found.advice}")
    try:
        return pafs.FileSystem.from_uri(f"{found.arrow}{uri[match.end(1) :]}")
    except (OSError, ValueError, NotImplementedError, pa.ArrowException) as error:
        raise SourceError(f"{uri} cannot be opened: {error}; {found.advice}") from None


def filesystem_of_paths(
    paths: Sequence[str], s3a: Mapping[str, str] | None = None
) -> tuple[pafs.FileSystem, list[str]]:
    """The one file system that several paths lie in, and their paths there.

    They are URIs, with options like those of `open_uri`, unless settings are given: then they are
    as `filesystem_of` takes them.

    Raises
    ------
    SourceError
        When they lie in several, or as `filesystem_of`.
    """
    places = sorted({_divided(path, False)[:2] for path in paths})
    if len(places) > 1:
        shown = ", ".join(f"{scheme or 'file'}://{host}/" for scheme, host in places[:4])
        raise SourceError(f"the files lie in several places ({shown}); open a dataset for each")
    if s3a is not None:
        return filesystem_of(paths[0], s3a)[0], [split_path(path)[1] for path in paths]
    plain = [path.partition("?")[0] if is_uri(path) else path for path in paths]
    return filesystem_of_uri(paths[0])[0], [
        split_path(path, _has_escapes(path))[1] for path in plain
    ]


def key_below(path: str, root: str) -> str:
    """The path below a folder, which can be moved; the whole path where it lies elsewhere."""
    root = root.rstrip("/")
    return posixpath.relpath(path, root or "/") if path.startswith(f"{root}/") else path
