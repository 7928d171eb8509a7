"""A file system that fails or waits once. It is sent to executors like modules of users."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem


class Watched(LocalFileSystem):
    """A local file system that logs when a page map is opened for writing.

    At the first one, its process dies or waits for the end of the build. A page map is written
    after the filters of a segment.
    """

    cachable = False

    def __init__(self, log: str, kind: str, **options):
        super().__init__(**options)
        self.log, self.kind = log, kind

    def _open(self, path, mode="rb", **options):
        if "w" in mode and path.endswith("pages.arrow"):
            self._happens(Path(path).parent.name)
        return super()._open(path, mode, **options)

    def _happens(self, segment):
        with open(self.log, "a") as log:
            log.write(f"{segment}\n")
        try:
            os.close(os.open(f"{self.log}.first", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if self.kind == "dies":
            os.kill(os.getpid(), 9)
        # The other attempt may run in a new executor, which first compiles the kernels.
        until = time.monotonic() + 400
        while not os.path.exists(f"{self.log}.done") and time.monotonic() < until:
            time.sleep(0.05)
