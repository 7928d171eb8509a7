"""Make one chosen call to the operating system fail, or kill the process at it.

Calls of Python are intercepted by wrapping the functions of ``os`` and ``open``, calls of PyArrow
by a Python file system. A native library, compiled on first use and loaded with ``LD_PRELOAD``,
intercepts all calls of the process.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import errno
import functools
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from support.e2e_helpers import CountingFileSystem

ERRORS = {name: getattr(errno, name) for name in ("EACCES", "EIO", "ENOSPC", "ESTALE", "EFBIG")}
SHORT, KILL = -1, -2
FAULTS = {**ERRORS, "short": SHORT}
_LIBRARY = "injection.so"
_BY_PATH = ("open", "stat", "link", "replace", "rename", "unlink", "rmdir", "mkdir", "listdir")
_BY_PATH += ("scandir", "chmod", "utime")
_BY_HANDLE = ("fsync", "pread", "preadv", "fstat", "write", "read", "fchmod", "fchown")


class PythonCalls:
    """An injector for the calls that Python makes below a folder."""

    def __init__(self, folder: Path):
        self._folder = os.fspath(folder)
        self._lock = threading.Lock()
        self._handles: set[int] = set()
        self.count = 0
        self._failing_call, self._fault, self._lasting = -1, 0, False
        self.last = ""

    @contextlib.contextmanager
    def armed(self, call: int = -1, fault: int = 0, *, lasting: bool = False) -> Iterator[None]:
        """Make call number ``call`` fail and, if ``lasting``, all calls after it."""
        self.count, self._failing_call, self._fault, self._lasting = 0, call, fault, lasting
        originals = {name: getattr(os, name) for name in _BY_PATH + _BY_HANDLE}
        for name, original in originals.items():
            setattr(os, name, functools.partial(self._called, name, original))
        opened, builtins.open = builtins.open, functools.partial(self._opened, builtins.open)
        try:
            yield
        finally:
            builtins.open = opened
            for name, original in originals.items():
                setattr(os, name, original)

    def step(self, name: str) -> bool:
        """Count a call. Raise if it is to fail. Return True if it is to be short."""
        with self._lock:
            call, self.count = self.count, self.count + 1
        if (
            self._failing_call < 0
            or call < self._failing_call
            or (call > self._failing_call and not self._lasting)
        ):
            return False
        self.last = name
        if self._fault == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault == SHORT:
            return True
        raise OSError(self._fault, f"injected into {name}")

    def _called(self, name: str, original: Callable, *arguments: Any, **options: Any) -> Any:
        first = arguments[0] if arguments else None
        if name in _BY_PATH and isinstance(first, str | os.PathLike):
            is_below = os.fspath(first).startswith(self._folder)
            is_below |= options.get("dir_fd") in self._handles
        else:
            is_below = first in self._handles
        if not is_below:
            return original(*arguments, **options)
        is_short = self.step(name)
        if is_short and name in ("pread", "read"):
            return original(*arguments, **options)[: arguments[1] // 2]
        if is_short and name == "preadv":
            (buffer,) = arguments[1]
            return original(first, [buffer[: max(1, len(buffer) // 2)]], *arguments[2:])
        result = original(*arguments, **options)
        if name == "open":
            self._handles.add(result)
        return result

    def _opened(self, original: Callable, file: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(file, int):
            is_below = file in self._handles
        else:
            is_below = os.fspath(file).startswith(self._folder)
        if not is_below:
            return original(file, *arguments, **options)
        self.step("open")
        return _File(original(file, *arguments, **options), self)

    def filesystem(self) -> pafs.FileSystem | None:
        """Return the file system to open datasets with. None stands for the local file system."""
        return None


class _File:
    """A file that counts its calls."""

    def __init__(self, file: Any, calls: PythonCalls):
        self._file, self._calls = file, calls

    def read(self, size: int = -1) -> bytes:
        is_short = self._calls.step("read")
        data = self._file.read(size if size is not None else -1)
        return data[: len(data) // 2] if is_short else data

    def write(self, data: Any) -> int:
        if self._calls.step("write"):
            # A full disk behaves like this: it takes a part of the data, then fails.
            self._file.write(memoryview(data)[: memoryview(data).nbytes // 2])
            raise OSError(errno.ENOSPC, "injected after a short write")
        return self._file.write(data)

    def flush(self) -> None:
        self._calls.step("flush")
        self._file.flush()

    def size(self) -> int:
        self._calls.step("size")
        return os.fstat(self._file.fileno()).st_size

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class FileSystemCalls(PythonCalls):
    """An injector for the methods of a PyArrow file system that is not local."""

    @contextlib.contextmanager
    def armed(self, call: int = -1, fault: int = 0, *, lasting: bool = False) -> Iterator[None]:
        self.count, self._failing_call, self._fault, self._lasting = 0, call, fault, lasting
        try:
            yield
        finally:
            self._failing_call = -1

    def filesystem(self) -> pafs.FileSystem:
        return pafs.PyFileSystem(_Failing(self))


class _Failing(CountingFileSystem):
    def __init__(self, calls: PythonCalls):
        super().__init__()
        self.calls = calls

    def get_type_name(self) -> str:
        return "failing"

    def open_input_file(self, path: str) -> pa.PythonFile:
        self.calls.step("open_input_file")
        file = open(path, "rb")  # noqa: SIM115
        return pa.PythonFile(_File(file, self.calls), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> pa.PythonFile:
        self.calls.step("open_output_stream")
        file = open(path, "wb")  # noqa: SIM115
        return pa.PythonFile(_File(file, self.calls), mode="w")


def _stepping(name: str) -> Callable:
    original = getattr(CountingFileSystem, name)

    def method(self: _Failing, *arguments: Any, **options: Any) -> Any:
        self.calls.step(name)
        return original(self, *arguments, **options)

    return method


for _name in ("get_file_info", "get_file_info_selector", "create_dir", "delete_dir"):
    setattr(_Failing, _name, _stepping(_name))
for _name in ("delete_dir_contents", "delete_file", "move", "copy_file"):
    setattr(_Failing, _name, _stepping(_name))


class NativeCalls(PythonCalls):
    """An injector for all calls of a process that was started with `native_environment`."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self._library.trust_count.restype = ctypes.c_long
        self._library.trust_last.restype = ctypes.c_char_p

    @contextlib.contextmanager
    def armed(self, call: int = -1, fault: int = 0, *, lasting: bool = False) -> Iterator[None]:
        folder = self._folder.encode()
        self._library.trust_arm(folder, ctypes.c_long(call), fault, int(lasting))
        try:
            yield
        finally:
            self._library.trust_disarm()
            self.count = self._library.trust_count()
            self.last = self._library.trust_last().decode()


def is_native() -> bool:
    """Return whether this process was started with the native library."""
    return os.environ.get("LD_PRELOAD", "").endswith(_LIBRARY)


def native_library(folder: Path) -> str | None:
    """Compile the library for ``LD_PRELOAD``. Return None without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    library = folder / _LIBRARY
    source = Path(__file__).with_name("injection.c")
    options = ["-O1", "-shared", "-fPIC", "-o", library, source, "-ldl", "-pthread"]
    subprocess.run([compiler, *options], check=True)
    return str(library)
