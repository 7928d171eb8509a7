"""Wrap fsspec file systems so that every failure is an `OSError`.

fsspec's implementations raise errors of their own; s3fs raises botocore's, for example. Code that
reads files handles `OSError`: it names the file, or reads the data without the index.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

_Result = TypeVar("_Result")


def _with_os_errors(function: Callable[..., _Result]) -> Callable[..., _Result]:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> _Result:
        try:
            return function(*arguments, **options)
        except (OSError, pa.ArrowException, NotImplementedError):
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error

    return call


class _OpenFile:
    """An open fsspec file that raises OSError, for `pyarrow.PythonFile`."""

    def __init__(self, file: Any):
        self._file = file

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._file, name)
        return _with_os_errors(value) if callable(value) else value


class FsspecHandler(pafs.FSSpecHandler):
    """pyarrow's handler for an fsspec file system, except that every failure is an `OSError`."""

    get_file_info = _with_os_errors(pafs.FSSpecHandler.get_file_info)
    get_file_info_selector = _with_os_errors(pafs.FSSpecHandler.get_file_info_selector)
    create_dir = _with_os_errors(pafs.FSSpecHandler.create_dir)
    delete_dir = _with_os_errors(pafs.FSSpecHandler.delete_dir)
    delete_dir_contents = _with_os_errors(pafs.FSSpecHandler.delete_dir_contents)
    delete_root_dir_contents = _with_os_errors(pafs.FSSpecHandler.delete_root_dir_contents)
    delete_file = _with_os_errors(pafs.FSSpecHandler.delete_file)
    move = _with_os_errors(pafs.FSSpecHandler.move)
    copy_file = _with_os_errors(pafs.FSSpecHandler.copy_file)

    @_with_os_errors
    def open_input_file(self, path: str) -> pa.NativeFile:
        if not self.fs.isfile(path):
            raise FileNotFoundError(path)
        return pa.PythonFile(_OpenFile(self.fs.open(path, mode="rb")), mode="r")

    open_input_stream = open_input_file

    @_with_os_errors
    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return pa.PythonFile(_OpenFile(self.fs.open(path, mode="wb")), mode="w")

    @_with_os_errors
    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return pa.PythonFile(_OpenFile(self.fs.open(path, mode="ab")), mode="w")


def with_os_errors(filesystem: pafs.FileSystem) -> pafs.FileSystem:
    """Make a file system over fsspec raise OSError only. Return others as they are."""
    handler = getattr(filesystem, "handler", None)
    if type(handler) is pafs.FSSpecHandler:
        return pafs.PyFileSystem(FsspecHandler(handler.fs))
    return filesystem
