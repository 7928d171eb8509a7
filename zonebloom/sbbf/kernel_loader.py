"""Load the compiled kernels of lookups in a background thread.

Importing Numba and loading the kernels from its cache takes about half a second. The first process
after an installation compiles them, which takes much longer; if somebody waits for them, a second
process compiles, too. Until the kernels are loaded, lookups
use NumPy and PyArrow. A piece of work that takes them longer than the kernels need to load imports
its kernels at once. An import waits if the thread is importing the same module.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import stat
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module

import xxhash

from zonebloom.base.threads import num_cores

# The modules of the kernels that lookups use. They belong to higher layers, so this module knows
# only their names.
LOOKUP_MODULES = (
    "zonebloom.sbbf.blocks",
    "zonebloom.parquet.leaf_reader",
    "zonebloom.parquet.nested_reader",
    "zonebloom.storage.pread_kernel",
    # It calls a function that only the C libraries of Linux have.
    *(["zonebloom.storage.stat_kernel"] if sys.platform == "linux" else []),
    "zonebloom.index.hash.search_kernels",
    "zonebloom.parquet.plain_encoding",
    "zonebloom.scan.number_kernels",
    # The modules above import these. A second process begins with them.
    "zonebloom.parquet.value_kernels",
    "zonebloom.parquet.key_kernels",
)
# Work is measured in checks of one block of a Bloom filter by NumPy. NumPy does this many in about
# the time that loading takes, and PyArrow does the equivalent in half of the time of compiling.
_CHECKS_PER_LOAD = 1 << 20
_CHECKS_PER_COMPILATION = 1 << 23
# The thread waits this long before it starts to load, because the first lookup usually follows at
# once, and would have to share Python's lock (the GIL) with it.
_IDLE_SECONDS = 0.1
# A fork or an exit does not wait longer than this for the thread to stop.
_MAX_STOP_SECONDS = 10.0


class LoadingStopped(Exception):
    """The process exits or forks, so the thread stops loading kernels."""


class KernelLoader:
    """Loads modules of kernels, once for a process.

    Parameters
    ----------
    modules : sequence of str
    max_checks : int, optional
        The most work that is left to NumPy and PyArrow, in block checks. While the thread loads the
        kernels, this limits each piece of work. Without a thread, it limits all pieces together. By
        default, this work takes about as long as loading or compiling the kernels.

    Attributes
    ----------
    are_loaded : bool
        Whether all kernels are loaded, so that lookups use only kernels.
    in_background : bool
        Whether a thread may load them. Otherwise they are loaded when much work was done without
        them. A process that looks up only once sets this to False.
    """

    def __init__(self, modules: Sequence[str], max_checks: int | None = None):
        self.are_loaded = False
        self.in_background = True
        self._modules = modules
        self._max_checks = max_checks
        self._spent_checks = 0
        self._has_hooks = False
        self._forget_thread()

    def are_worth(self, checks: int) -> bool:
        """Return whether to import kernels at once for a piece of work.

        Call this only if `are_loaded` is False. It starts the thread, and counts the work.

        Parameters
        ----------
        checks : int
            The size of the work: NumPy makes so many block checks in the time that the work takes
            without kernels.
        """
        if self._max_checks is None:
            self._max_checks = _CHECKS_PER_LOAD if _are_compiled() else _CHECKS_PER_COMPILATION
        if self.load_in_background():
            return checks > self._max_checks
        self._spent_checks += checks
        return self._spent_checks > self._max_checks

    def load_in_background(self) -> bool:
        """Start the thread if there is none. Return whether a thread is loading the kernels now.

        That is False if the kernels are loaded, if no thread may load them, and if loading failed.
        """
        if not self.in_background or self.are_loaded:
            return False
        thread = self._thread
        if thread is None:
            with self._lock:
                thread = self._thread
                if thread is None:
                    self._register_hooks()
                    thread = threading.Thread(
                        target=self._run, name="zonebloom-kernels", daemon=True
                    )
                    try:
                        thread.start()
                    except RuntimeError:
                        # The system has no more threads, or the interpreter is shutting down.
                        self.in_background = False
                        return False
                    self._thread = thread
        return thread.is_alive()

    def load(self) -> None:
        """Load all kernels in the calling thread, and compile them in two processes if needed."""
        with contextlib.nullcontext() if _are_compiled() else _second_compiler(self._modules):
            self._load()

    def _load(self) -> None:
        for module in self._modules:
            import_module(module)
            self.stop_if_asked()
        self.are_loaded = True
        _mark_as_compiled()

    def _run(self) -> None:
        # If loading fails, lookups import the kernels when they are worth it, and raise the error.
        with contextlib.suppress(Exception):
            if not self._is_stopping.wait(_IDLE_SECONDS):
                self._load()

    def stop_if_asked(self) -> None:
        """Raise `LoadingStopped` in the thread if it should stop. Do nothing in other threads."""
        if self._is_stopping.is_set() and threading.current_thread() is self._thread:
            raise LoadingStopped

    def _register_hooks(self) -> None:
        """Let the thread stop before the process exits or forks."""
        if self._has_hooks:
            return
        self._has_hooks = True
        atexit.register(self._end)
        if hasattr(os, "register_at_fork"):
            # The hook that was registered last is called first before a fork. The one of logging
            # takes a lock that the thread may need before it can stop.
            import logging  # noqa: F401

            os.register_at_fork(
                before=self._pause,
                after_in_parent=self._resume,
                after_in_child=self._forget_thread,
            )

    def _end(self) -> None:
        """Stop the thread for good, because the compiler would crash while the process exits."""
        self.in_background = False
        self._stop()

    def _pause(self) -> None:
        """Stop the thread before a fork.

        In the child, the locks that the thread holds would never be released, such as those of
        imports and of the compiler.
        """
        # Another thread may have stopped it, to fork at the same time.
        self._is_paused |= self._stop()

    def _resume(self) -> None:
        """Start the thread again after `_pause`."""
        thread = self._thread
        # A thread that has not stopped in time stops later, and is not started again.
        if self._is_paused and thread is not None and not thread.is_alive():
            self._forget_thread()
            self.load_in_background()

    def _forget_thread(self) -> None:
        """Forget the thread, which was stopped or does not exist in this process."""
        self._lock = threading.Lock()
        self._is_stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_paused = False

    def _stop(self) -> bool:
        """Let the thread stop, and wait for it. Return whether it was loading."""
        thread = self._thread
        if thread is None or thread is threading.current_thread() or not thread.is_alive():
            return False
        self._is_stopping.set()
        thread.join(_MAX_STOP_SECONDS)
        return True


@contextlib.contextmanager
def _second_compiler(modules: Sequence[str]) -> Iterator[None]:
    """Let a second process compile modules, the last ones first, until the body ends.

    The body loads all of them, so nothing that the process still compiles then is missed.
    """
    import subprocess
    from multiprocessing import spawn

    code = f"import sys; sys.path[:] = {sys.path}\nfor name in {modules[::-1]}: __import__(name)"
    process, executable = None, os.fsdecode(spawn.get_executable() or "")
    # Another program with an interpreter inside would take the code for something else.
    is_python = os.path.basename(executable).lower().startswith("python")
    if is_python and num_cores() > 1:
        # Without this process, it only takes longer.
        with contextlib.suppress(OSError):
            process = subprocess.Popen(
                [executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def _are_compiled() -> bool:
    """Return whether a process has compiled the kernels. Return True if nobody can know."""
    marker = _marker_path()
    return marker is None or os.path.exists(marker)


def _mark_as_compiled() -> None:
    marker = _marker_path()
    if marker is not None:
        # Most commands load no kernels, so they need not import this.
        from pathlib import Path

        with contextlib.suppress(OSError):
            Path(marker).touch()


def _marker_path() -> str | None:
    """Return the path of the marker that the kernels in Numba's cache are compiled.

    Each installation and each cache has its own. Return None if no marker can be kept.
    """
    path = os.path.abspath(__file__)
    try:
        status = os.stat(path)
    except OSError:
        # The package is in an archive, so Numba has no cache.
        return None
    parts = (path, status.st_mtime_ns, status.st_ino, os.environ.get("NUMBA_CACHE_DIR"))
    return path_in_cache(f"compiled-{xxhash.xxh64_hexdigest(repr(parts).encode())}")


KERNELS = KernelLoader(LOOKUP_MODULES)


def path_in_cache(name: str) -> str | None:
    """Return the path of a file in the cache folder of the user, or None if there is no folder.

    The folder is made if it is missing. No other user can write into it.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = f"{cache}/zonebloom"
    if not _is_private(folder):
        folder = _temporary_folder()
    return os.path.join(folder, name) if _is_private(folder) else None


def _temporary_folder() -> str:
    # Most processes have a cache folder, and this takes long to import.
    import tempfile

    user = str(os.geteuid()) if os.name == "posix" else "user"
    return f"{tempfile.gettempdir()}/zonebloom-{user}"


def _is_private(folder: str) -> bool:
    """Make a folder if it is missing. Return whether no other user can write into it."""
    try:
        os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        # Do not follow a symbolic link: another user may have put it there.
        status = os.lstat(folder)
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode) or not os.access(folder, os.W_OK | os.X_OK):
        return False
    return os.name != "posix" or (status.st_uid == os.geteuid() and not status.st_mode & 0o022)
