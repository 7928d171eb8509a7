"""Parse paths and URIs as users, Spark and table logs write them, and open their file systems.

Only paths given as ``encoded`` contain %-escapes.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.errors import SourceError

# A scheme has two letters at least; a single letter is a Windows drive.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)")
# A URI such as file:///C:/lake has a slash before the drive.
_DRIVE = re.compile(r"/[A-Za-z]:(?=/)")
# Databricks mounts dbfs:/ here for programs other than Spark.
DBFS_MOUNT = "/dbfs"
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class _Scheme(NamedTuple):
    """A scheme as pyarrow spells it, or empty if pyarrow has none, and advice for errors."""

    arrow: str
    advice: str


def _fsspec_advice(package: str) -> str:
    return (
        f"zb.dataset(path, filesystem=...) takes a file system of fsspec ({package}) or a store of "
        "obstore"
    )


_STORE_ADVICE = "check the name, the region and the credentials, or give zb.dataset a filesystem"
_HADOOP = (
    "pyarrow opens it by Hadoop's libhdfs: set JAVA_HOME, HADOOP_HOME, and CLASSPATH to what "
    "'hadoop classpath --glob' prints, for Spark's executors too; or "
) + _fsspec_advice("webhdfs")
_AZURE = "give it as abfss://container@account.dfs.core.windows.net/path, or "
_SCHEMES = {
    "s3": _Scheme("s3", _STORE_ADVICE),
    "s3a": _Scheme("s3", _STORE_ADVICE),
    "s3n": _Scheme("s3", _STORE_ADVICE),
    "gs": _Scheme("gs", _STORE_ADVICE),
    "gcs": _Scheme("gs", _STORE_ADVICE),
    "abfs": _Scheme("abfs", _STORE_ADVICE),
    "abfss": _Scheme("abfss", _STORE_ADVICE),
    "wasb": _Scheme("", _AZURE + _fsspec_advice("adlfs")),
    "wasbs": _Scheme("", _AZURE + _fsspec_advice("adlfs")),
    "hdfs": _Scheme("hdfs", _HADOOP),
    "viewfs": _Scheme("viewfs", _HADOOP),
    "dbfs": _Scheme(
        "", f"it can only be read where it is mounted as {DBFS_MOUNT}, and it is not mounted here; "
        "give a path of a volume (/Volumes/...); or " + _fsspec_advice("databricks-sdk"),
    ),
    "oss": _Scheme("", _fsspec_advice("ossfs")),
    "http": _Scheme("", _fsspec_advice("aiohttp")),
    "https": _Scheme("", _fsspec_advice("aiohttp")),
}  # fmt: skip
_OTHER_SCHEME = _Scheme("", _fsspec_advice("one for that scheme"))


def is_uri(path: str) -> bool:
    return _SCHEME.match(path) is not None


def _has_escapes(path: str) -> bool:
    """Return whether a path is a URI of a local file, in which users and pyarrow write ``%20``."""
    match = _SCHEME.match(path)
    return match is not None and match[1].lower() == "file"


def _split_uri(path: str, encoded: bool) -> tuple[str, str, str]:
    """Return pyarrow's scheme, the host or bucket, and the path below it.

    For a local path, the scheme and the host are empty.
    """
    match = _SCHEME.match(path)
    rest = path[match.end() :] if match else path
    rest = unquote(rest) if encoded else rest
    scheme = match[1].lower() if match else ""
    if scheme == "file":
        local = "/" + rest.lstrip("/")
        return "", "", local[1:] if os.name == "nt" and _DRIVE.match(local) else local
    if scheme == "dbfs" and os.path.isdir(DBFS_MOUNT):
        return "", "", f"{DBFS_MOUNT}/{rest.lstrip('/')}"
    if not scheme:
        return "", "", rest
    scheme = _SCHEMES.get(scheme, _OTHER_SCHEME).arrow or scheme
    if not rest.startswith("//"):
        return scheme, "", rest
    host, mark, below = rest[2:].partition("/")
    return scheme, host, mark + below


def split_path(path: str, encoded: bool = False) -> tuple[str, str]:
    """Return the scheme and the path for pyarrow's file systems. Local files have an empty scheme.

    >>> split_path("file:///lake/a%20b", encoded=True), split_path("s3a://bucket/a")
    (('', '/lake/a b'), ('s3', 'bucket/a'))
    >>> split_path("hdfs://host:8020/a"), split_path("abfss://c@x.dfs.core.windows.net/a")
    (('hdfs', '/a'), ('abfss', 'c/a'))
    """
    scheme, host, below = _split_uri(path, encoded)
    if scheme in ("hdfs", "viewfs"):
        return scheme, below
    user, _, server = host.rpartition("@")
    # Hadoop writes container@account.
    is_container_first = scheme in ("abfs", "abfss") and "." in server
    return scheme, (user.partition(":")[0] if is_container_first else server) + below


def plain_path(path: str, encoded: bool = False) -> str:
    """Return a local path without a scheme, and other paths with pyarrow's scheme.

    >>> plain_path("file:/lake/a"), plain_path("s3a://bucket/a")
    ('/lake/a', 's3://bucket/a')
    """
    scheme, host, below = _split_uri(path, encoded)
    return f"{scheme}://{host}{below}" if scheme else below


def absolute_path(path: str) -> str:
    """Return a path that means the same in another process. Return URIs as they are."""
    return path if is_uri(path) else full_path(os.path.expanduser(path))


def full_path(path: str) -> str:
    """Return the absolute path of a local file, with slashes on Windows, too."""
    return os.path.abspath(path).replace(os.sep, "/")


def filesystem_of(path: str, s3a: Mapping[str, str] = NO_SETTINGS) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a path, and the path in that file system.

    Hadoop's S3A settings, if given, determine how S3 buckets are opened.

    Raises
    ------
    SourceError
        When pyarrow has no file system for the path's scheme, or cannot open it.
    """
    scheme, host, _ = _split_uri(path, encoded=False)
    filesystem = None
    if scheme == "s3" and s3a:
        from zonebloom.storage.s3a import s3_filesystem

        filesystem = s3_filesystem(s3a, host)
    if not scheme:
        filesystem = pafs.LocalFileSystem()
    elif filesystem is None:
        filesystem, _ = filesystem_of_uri(f"{scheme}://{quote(host, safe=':@')}/")
    return filesystem, split_path(path)[1]


def filesystem_of_uri(uri: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a URI, with the options in the URI, and the path in it.

    Raises
    ------
    SourceError
        As `filesystem_of`.
    """
    scheme, host, below = _split_uri(uri, _has_escapes(uri))
    if not scheme:
        return pafs.LocalFileSystem(), below
    scheme_info = _SCHEMES.get(scheme, _OTHER_SCHEME)
    match = _SCHEME.match(uri)
    if not scheme_info.arrow or match is None:
        raise SourceError(
            f"{uri} cannot be opened: pyarrow has no {scheme}://; {scheme_info.advice}"
        )
    # PyArrow takes no brackets in a path, which patterns have. The host may have them.
    end_of_host = match.end() + 2 + len(host)
    path = uri[end_of_host:].replace("[", "%5B").replace("]", "%5D")
    try:
        host_uri = f"{scheme_info.arrow}{uri[match.end(1) : end_of_host]}"
        return pafs.FileSystem.from_uri(f"{host_uri}{path}")
    except (OSError, ValueError, NotImplementedError, pa.ArrowException) as error:
        raise SourceError(f"{uri} cannot be opened: {error}; {scheme_info.advice}") from None


def filesystem_of_paths(
    paths: Sequence[str], s3a: Mapping[str, str] | None = None
) -> tuple[pafs.FileSystem, list[str]]:
    """Return the one file system that contains all paths, and their paths in it.

    With S3A settings, paths are parsed as in `filesystem_of`. Without, they are parsed as in
    `filesystem_of_uri`, and URIs may contain options.

    Raises
    ------
    SourceError
        When the paths lie in several file systems, or as `filesystem_of`.
    """
    hosts = sorted({_split_uri(path, encoded=False)[:2] for path in paths})
    if len(hosts) > 1:
        listing = ", ".join(f"{scheme or 'file'}://{host}/" for scheme, host in hosts[:4])
        raise SourceError(f"the files lie in several places ({listing}); open a dataset for each")
    if s3a is not None:
        return filesystem_of(paths[0], s3a)[0], [split_path(path)[1] for path in paths]
    plain = [path.partition("?")[0] if is_uri(path) else path for path in paths]
    return filesystem_of_uri(paths[0])[0], [
        split_path(path, _has_escapes(path))[1] for path in plain
    ]


def folders_above(path: str) -> Iterator[str]:
    """Yield a path and all folders above it except the root, the nearest first."""
    while path.strip("/"):
        yield path
        path = posixpath.dirname(path)


def is_below(path: str, root: str) -> bool:
    """Return whether a path lies below a root folder. All paths lie below "/" and ""."""
    root = root.rstrip("/")
    return not root or path.startswith(f"{root}/")


def key_below(path: str, root: str) -> str:
    """Return the path relative to a root folder, or the whole path if it lies elsewhere.

    The relative path stays valid when the folder moves.
    """
    root = root.rstrip("/")
    if not path.startswith(f"{root}/"):
        return path
    key = path[len(root) + 1 :]
    # Few paths need the slow function.
    return posixpath.normpath(key) if "//" in path or "/." in path else key
