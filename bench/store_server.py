"""A folder served as S3 serves a bucket, each answer late, and what was asked for is counted.

``python -m bench.store_server <folder> <milliseconds>`` prints its port. ``GET /_waits`` says what
was asked since the last time: how often, how many bytes were sent, and how many requests at most
came one after another, each begun when the one before had ended. Nothing is signed or checked.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

BUCKET = "lake"
_LISTED = 1000


class Request(NamedTuple):
    began: float
    ended: float
    num_bytes: int
    line: str


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body in one packet, at once.
    wbufsize = -1
    disable_nagle_algorithm = True
    log: ClassVar[list[Request]] = []
    parts: ClassVar[dict[str, dict[int, bytes]]] = {}

    def __init__(self, folder: Path, delay: float, *arguments):
        self._folder, self._delay = folder, delay
        super().__init__(*arguments)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: requests are counted."""

    def handle_expect_100(self) -> bool:
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self._sent = len(body) if self.command == "GET" else 0

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/_waits":
            self._answer(200, json.dumps(self.log).encode())
            self.log.clear()
            return
        began = time.perf_counter()
        time.sleep(self._delay)
        query = {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
        key = unquote(parts.path).removeprefix(f"/{BUCKET}").strip("/")
        body, self._sent = self._body(), 0
        if self.command in ("GET", "HEAD"):
            self._list(query) if not key else self._get(key)
        elif self.command == "PUT":
            self._put(key, query, body)
        elif self.command == "DELETE":
            (self._folder / key).unlink(missing_ok=True)
            self._answer(204)
        else:
            self._post(key, query, body)
        # Before its answer is out: whoever has it may ask for the count.
        self.log.append(Request(began, time.perf_counter(), self._sent, self.requestline))
        self.wfile.flush()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = _chunks(self.rfile)
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            return _chunks(io.BytesIO(body))
        return body

    def _get(self, key: str) -> None:
        # What is open stays what it is when another takes its name.
        try:
            file = (self._folder / key).open("rb")
        except (FileNotFoundError, IsADirectoryError):
            self._answer(404)
            return
        with file:
            self._send(file)

    def _send(self, file: BinaryIO) -> None:
        found = os.fstat(file.fileno())
        size = found.st_size
        start, stop, status = 0, size, 200
        tag = _tag(found)
        if self.headers.get("If-Match", tag) != tag:
            self._answer(412)
            return
        if asked := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
            first, last = asked.groups()
            start = int(first) if first else size - int(last)
            stop, status = min(int(last) + 1, size) if first and last else size, 206
        file.seek(start)
        body = b"" if self.command == "HEAD" else file.read(stop - start)
        self._answer(
            status,
            body,
            Content_Length=str(stop - start),
            Content_Range=f"bytes {start}-{stop - 1}/{size}",
            ETag=tag,
            Last_Modified=formatdate(found.st_mtime, usegmt=True),
        )

    def _list(self, query: dict[str, str]) -> None:
        prefix, after = query.get("prefix", ""), query.get("start-after", "")
        after = max(after, query.get("continuation-token", ""))
        found = (Path(at, name) for at, _, names in os.walk(self._folder) for name in names)
        keys = sorted(path.relative_to(self._folder).as_posix() for path in found)
        keys = [key for key in keys if key.startswith(prefix) and key > after]
        folders: set[str] = set()
        if mark := query.get("delimiter"):
            split = {key: key[len(prefix) :].partition(mark) for key in keys}
            folders = {prefix + name + mark for name, has, _ in split.values() if has}
            keys = [key for key, (_, has, _) in split.items() if not has]
        page = keys[: int(query.get("max-keys", _LISTED))]
        rows = []
        for key in page:
            try:
                status = (self._folder / key).stat()
            except FileNotFoundError:
                continue
            at = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(status.st_mtime))
            rows.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{at}</LastModified>"
                f"<ETag>{escape(_tag(status))}</ETag><Size>{status.st_size}</Size></Contents>"
            )
        rows += [
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders
        ]
        is_cut = len(page) < len(keys)
        if is_cut:
            rows.append(f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>")
        self._xml(
            "ListBucketResult",
            f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"
            f"<IsTruncated>{str(is_cut).lower()}</IsTruncated>{''.join(rows)}",
        )

    def _put(self, key: str, query: dict[str, str], body: bytes) -> None:
        if urlsplit(self.path).path.endswith("/"):
            # What stands for a folder.
            self._answer(200, ETag='"folder"')
            return
        if "uploadId" in query:
            self.parts[query["uploadId"]][int(query["partNumber"])] = body
            self._answer(200, ETag='"part"')
            return
        tag = self._store(key, body, self.headers.get("If-None-Match") == "*")
        if tag is None:
            self._answer(412)
        else:
            self._answer(200, ETag=tag)

    def _post(self, key: str, query: dict[str, str], body: bytes) -> None:
        if "uploads" in query:
            name = uuid.uuid4().hex
            self.parts[name] = {}
            self._xml("InitiateMultipartUploadResult", f"<UploadId>{name}</UploadId>")
        elif "uploadId" in query:
            parts = self.parts.pop(query["uploadId"])
            tag = self._store(key, b"".join(parts[number] for number in sorted(parts)))
            self._xml("CompleteMultipartUploadResult", f"<ETag>{escape(tag or '')}</ETag>")
        else:
            names = [name.decode() for name in re.findall(rb"<Key>(.*?)</Key>", body)]
            for name in names:
                (self._folder / unescape(name)).unlink(missing_ok=True)
            deleted = (f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
            self._xml("DeleteResult", "".join(deleted))

    def _store(self, key: str, body: bytes, is_new: bool = False) -> str | None:
        """The tag of an object that is there whole or not at all; None where one was before."""
        path = self._folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._folder.with_name(f"{self._folder.name}-{uuid.uuid4().hex}")
        draft.write_bytes(body)
        tag = _tag(draft.stat())
        try:
            os.link(draft, path) if is_new else os.replace(draft, path)
        except FileExistsError:
            return None
        finally:
            draft.unlink(missing_ok=True)
        return tag

    def _xml(self, name: str, inner: str) -> None:
        space = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
        body = f'<?xml version="1.0" encoding="UTF-8"?><{name} {space}>{inner}</{name}>'
        self._answer(200, body.encode(), Content_Type="application/xml")


def _chunks(file: BinaryIO) -> bytes:
    """What is sent in chunks, each after a line with its size; lines of checksums may follow."""
    parts = []
    while size := int(file.readline().partition(b";")[0], 16):
        parts.append(file.read(size))
        file.readline()
    while file.readline().strip():
        pass
    return b"".join(parts)


def _tag(status: os.stat_result) -> str:
    return f'"{status.st_mtime_ns:x}-{status.st_size:x}"'


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests since the last time they were counted."""

    requests: int
    waits: int
    num_bytes: int
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.requests} requests, {self.waits} waits, {self.num_bytes / 1000:,.0f} kB"


@dataclass(frozen=True, slots=True)
class Server:
    endpoint: str
    folder: Path

    def asked(self) -> Asked:
        with urllib.request.urlopen(f"http://{self.endpoint}/_waits") as answer:
            log = [Request(*each) for each in json.load(answer)]
        waits, until = 0, 0.0
        # The most that no two of are under way at once: the first to end, and so on.
        for each in sorted(log, key=lambda each: each.ended):
            if each.began >= until:
                waits, until = waits + 1, each.ended
        in_order = tuple(each.line for each in sorted(log))
        return Asked(len(log), waits, sum(each.num_bytes for each in log), in_order)


@contextmanager
def serving(folder: Path, milliseconds: float) -> Iterator[Server]:
    command = [sys.executable, "-m", "bench.store_server", str(folder), str(milliseconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Server(f"127.0.0.1:{int(process.stdout.readline())}", folder)
    finally:
        process.terminate()
        process.wait()


class _Threads(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    handler = partial(Handler, Path(sys.argv[1]), float(sys.argv[2]) / 1000)
    server = _Threads(("127.0.0.1", 0), handler)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever).run()
