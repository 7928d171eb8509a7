"""Choose the files of scans for a JVM without Python, as the process that `Extensions.java` starts.

The JVM writes lines to the standard input of the process: first its settings, a JSON object with
``index_dirs`` (a list of folders) and ``s3a`` (the settings of S3A without ``fs.s3a.``), and then
the requests of scans, as `Scan.request` makes them. After a request, this process writes some of
these lines, and the JVM answers each but the last with a line:

    digest        the answer is the digest of the listed files
    files         the answer is the listed files
    keep <marks>  the answer is "true" if the JVM left out the files that are marked by 0
    done <json>   the description of the result, which ends the request

The process ends with its input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from typing import IO

from zonebloom.base.notices import warn
from zonebloom.spark.pruning.index_lookup import IndexLookup
from zonebloom.spark.pruning.optimizer_rule import FileChooser
from zonebloom.spark.session_state import SessionState
from zonebloom.storage.s3a import used_settings


class _PipedScan:
    """The scan of the current request, with the methods of `Scan` in `IndexedFiles.java`."""

    def __init__(self, requests: IO[str], replies: IO[str]):
        self._requests = requests
        self._replies = replies

    def _ask(self, message: str) -> str:
        print(message, file=self._replies, flush=True)
        answer = self._requests.readline()
        if not answer:
            raise EOFError("the JVM ended")
        return answer.rstrip("\r\n")

    def digest(self) -> str:
        return self._ask("digest")

    def files(self) -> str:
        return self._ask("files")

    def keep(self, marks: str) -> bool:
        return self._ask(f"keep {marks}") == "true"


def serve(requests: IO[str], replies: IO[str]) -> None:
    """Answer requests until the input ends."""
    settings = json.loads(requests.readline())
    index_dirs = [folder for folder in map(str.strip, settings["index_dirs"]) if folder]
    lookup = IndexLookup(used_settings(settings["s3a"]), index_dirs)
    for warning in lookup.missing_dirs():
        warn(warning)
    chooser = FileChooser(lookup.ask, SessionState())
    scan = _PipedScan(requests, replies)
    while request := requests.readline():
        print("done", chooser.apply(request, scan), file=replies, flush=True)


if __name__ == "__main__":
    # Whatever else writes to the standard output must not get into the messages.
    messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdin.reconfigure(encoding="utf-8")  # pyright: ignore[reportAttributeAccessIssue]
    # An interrupt at the terminal is for the JVM, which ends this process with its own.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(BrokenPipeError):
        serve(sys.stdin, messages)
