"""Wrap fsspec file systems so that failures are `OSError`, and only missing files count as missing.

fsspec's implementations raise errors of their own; s3fs raises botocore's, for example. Code that
reads files handles `OSError`: it names the file, or reads the data without the index. Errors of
Arrow and NotImplementedError stay as they are, because callers handle these too.

Some methods of fsspec, such as ``isfile`` and ``find``, take every failure for a missing file. A
scan would then leave out the rows of files whose server did not answer in time. So only a
FileNotFoundError of ``info`` or ``ls`` counts as a missing file here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

_Result = TypeVar("_Result")


def _raising_os_errors(function: Callable[..., _Result]) -> Callable[..., _Result]:
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
        return _raising_os_errors(value) if callable(value) else value


def _lists_trees(filesystem: Any) -> bool:
    """Return whether a file system lists a tree by requests of its own, as object stores do.

    The ``find`` that others inherit walks the tree, and leaves out folders that it cannot list.
    """
    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem
    from fsspec.implementations.dirfs import DirFileSystem

    while isinstance(filesystem, DirFileSystem):
        filesystem = filesystem.fs
    if isinstance(filesystem, AsyncFileSystem):
        # Asynchronous implementations override `_find`, from which fsspec makes `find`.
        return type(filesystem)._find is not AsyncFileSystem._find  # noqa: SLF001
    return getattr(filesystem.find, "__func__", None) is not AbstractFileSystem.find


class FsspecHandler(pafs.FSSpecHandler):
    """pyarrow's handler for an fsspec file system, except that every failure is an `OSError`."""

    get_file_info = _raising_os_errors(pafs.FSSpecHandler.get_file_info)
    create_dir = _raising_os_errors(pafs.FSSpecHandler.create_dir)
    delete_dir = _raising_os_errors(pafs.FSSpecHandler.delete_dir)
    delete_dir_contents = _raising_os_errors(pafs.FSSpecHandler.delete_dir_contents)
    delete_root_dir_contents = _raising_os_errors(pafs.FSSpecHandler.delete_root_dir_contents)
    move = _raising_os_errors(pafs.FSSpecHandler.move)
    copy_file = _raising_os_errors(pafs.FSSpecHandler.copy_file)

    @_raising_os_errors
    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        folder = selector.base_dir
        # `isdir` is also false if the server does not answer, but then `info` raises.
        if not self.fs.isdir(folder):
            try:
                is_folder = self.fs.info(folder)["type"] == "directory"
            except FileNotFoundError:
                if selector.allow_not_found:
                    return []
                raise
            if not is_folder:
                raise NotADirectoryError(folder)
        return [
            self._create_file_info(path, info)
            for path, info in self._entries_below(folder, is_recursive=selector.recursive)
            # The listing of an object store may contain the folder itself.
            if path.strip("/") != folder.strip("/")
        ]

    def _entries_below(self, folder: str, *, is_recursive: bool) -> Iterator[tuple[str, Any]]:
        """Yield the path and the information of all files and folders below a folder."""
        if _lists_trees(self.fs):
            depth = None if is_recursive else 1
            entries = self.fs.find(folder, maxdepth=depth, withdirs=True, detail=True)
            yield from entries.items()
            return
        pending = [folder]
        while pending:
            # `walk` passes on_error to the first level only.
            levels = self.fs.walk(pending.pop(), maxdepth=1, detail=True, on_error="raise")
            for _, folders, files in levels:
                for info in (*folders.values(), *files.values()):
                    yield info["name"], info
                if is_recursive:
                    pending += [info["name"] for info in folders.values()]

    @_raising_os_errors
    def delete_file(self, path: str) -> None:
        self.fs.info(path)
        self.fs.rm(path)

    @_raising_os_errors
    def open_input_file(self, path: str) -> pa.NativeFile:
        if self.fs.info(path)["type"] == "directory":
            raise FileNotFoundError(path)
        return pa.PythonFile(_OpenFile(self.fs.open(path, mode="rb")), mode="r")

    open_input_stream = open_input_file

    @_raising_os_errors
    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return pa.PythonFile(_OpenFile(self.fs.open(path, mode="wb")), mode="w")

    @_raising_os_errors
    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return pa.PythonFile(_OpenFile(self.fs.open(path, mode="ab")), mode="w")


def with_os_errors(filesystem: pafs.FileSystem) -> pafs.FileSystem:
    """Make a file system over fsspec raise OSError only. Others stay as they are."""
    if isinstance(filesystem, pafs.SubTreeFileSystem):
        base = with_os_errors(filesystem.base_fs)
        return pafs.SubTreeFileSystem(filesystem.base_path, base)
    handler = getattr(filesystem, "handler", None)
    if type(handler) is pafs.FSSpecHandler:
        return pafs.PyFileSystem(FsspecHandler(handler.fs))
    return filesystem
