"""Where a file lies, as users, Spark and logs write it: only ``encoded`` paths have %-escapes."""

from __future__ import annotations

import os
import posixpath
import re
from urllib.parse import quote, unquote

import pyarrow.fs as pafs

# One letter is a drive.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)")
_ALIASES = {"s3a": "s3", "s3n": "s3"}


def is_uri(path: str) -> bool:
    return _SCHEME.match(path) is not None


def split_path(path: str, encoded: bool = False) -> tuple[str, str]:
    """The scheme, empty for local files, and the path as a file system of pyarrow takes it.

    >>> split_path("file:///lake/a%20b", encoded=True), split_path("s3a://bucket/a")
    (('', '/lake/a b'), ('s3', 'bucket/a'))
    """
    match = _SCHEME.match(path)
    scheme, rest = (match[1].lower(), path[match.end() :]) if match else ("", path)
    rest = unquote(rest) if encoded else rest
    if scheme == "file":
        return "", "/" + rest.lstrip("/")
    return _ALIASES.get(scheme, scheme), rest.removeprefix("//") if scheme else rest


def plain_path(path: str, encoded: bool = False) -> str:
    """A path as pyarrow names it: without scheme where it is local, else with pyarrow's.

    >>> plain_path("file:/lake/a"), plain_path("s3a://bucket/a")
    ('/lake/a', 's3://bucket/a')
    """
    scheme, rest = split_path(path, encoded)
    return f"{scheme}://{rest}" if scheme else rest


def spark_path(path: str, encoded: bool = False) -> str:
    """A path as Spark's plans have it.

    >>> spark_path("/lake/a b/"), spark_path("file:///lake/a%20b", encoded=True)
    ('file:/lake/a b', 'file:/lake/a b')
    """
    scheme, rest = split_path(path, encoded)
    path = unquote(path) if encoded else path
    return (path if scheme else "file:/" + rest.lstrip("/")).rstrip("/")


def absolute_path(path: str) -> str:
    """A path that means the same in another process; URIs do already."""
    return path if is_uri(path) else os.path.abspath(os.path.expanduser(path))


def filesystem_of(path: str) -> tuple[pafs.FileSystem, str]:
    """The file system a path lies in, and its path there."""
    path = plain_path(path)
    if not is_uri(path):
        return pafs.LocalFileSystem(), path
    return pafs.FileSystem.from_uri(quote(path, safe=":/@"))


def key_below(path: str, root: str) -> str:
    """The path below a folder, which can be moved; the whole path where it lies elsewhere."""
    root = root.rstrip("/")
    return posixpath.relpath(path, root or "/") if path.startswith(f"{root}/") else path
