"""Files of fsspec, whose implementations raise errors of their own, as files that raise OSError.

s3fs raises botocore's errors, for example. Whoever reads a file here handles `OSError`: it names
the file, or reads the data in place of an index.
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
    """An open file of fsspec, as `pyarrow.PythonFile` takes it."""

    def __init__(self, file: Any):
        self._file = file

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._file, name)
        return _with_os_errors(value) if callable(value) else value


class FsspecHandler(pafs.FSSpecHandler):
    """pyarrow's handler of an fsspec file system, with every failure an `OSError`."""

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
    """Return a file system that raises OSError where pyarrow's of fsspec raises any error."""
    handler = getattr(filesystem, "handler", None)
    if type(handler) is pafs.FSSpecHandler:
        return pafs.PyFileSystem(FsspecHandler(handler.fs))
    return filesystem
