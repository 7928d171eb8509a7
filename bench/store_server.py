"""Serve a folder as S3 serves a bucket, delay each response, and log the requests.

``python -m bench.store_server <folder> <milliseconds>`` prints its port. ``GET /_waits`` returns
and clears the log of requests. `Server.count_requests` returns the number of requests, the bytes
sent, and the number of waits: the length of the longest chain of requests in which each one starts
after the previous one has ended. Signatures are not checked.
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
_MAX_KEYS = 1000


class Request(NamedTuple):
    """A request in the log of the server, with its times in seconds."""

    start: float
    end: float
    num_bytes: int
    line: str


class Handler(BaseHTTPRequestHandler):
    """The requests of the S3 protocol that pyarrow, obstore and DuckDB use."""

    protocol_version = "HTTP/1.1"
    # Send headers and body in one packet, without delay.
    wbufsize = -1
    disable_nagle_algorithm = True
    log: ClassVar[list[Request]] = []
    parts: ClassVar[dict[str, dict[int, bytes]]] = {}

    def __init__(self, folder: Path, delay: float, *arguments):
        self._folder, self._delay = folder, delay
        super().__init__(*arguments)

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""

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
        start = time.perf_counter()
        time.sleep(self._delay)
        parameters = parse_qs(parts.query, keep_blank_values=True)
        query = {name: values[0] for name, values in parameters.items()}
        key = unquote(parts.path).removeprefix(f"/{BUCKET}").strip("/")
        body, self._sent = self._body(), 0
        connection, self.wfile = self.wfile, (response := io.BytesIO())
        if self.command in ("GET", "HEAD"):
            self._list(query) if not key else self._get(key)
        elif self.command == "PUT":
            self._put(key, query, body)
        elif self.command == "DELETE":
            (self._folder / key).unlink(missing_ok=True)
            self._answer(204)
        else:
            self._post(key, query, body)
        # Log the request before the response is sent, because its receiver may ask for the log.
        self.log.append(Request(start, time.perf_counter(), self._sent, self.requestline))
        self.wfile = connection
        connection.write(response.getvalue())
        connection.flush()

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
        # An open file keeps its content if another one replaces it.
        try:
            file = (self._folder / key).open("rb")
        except (FileNotFoundError, IsADirectoryError):
            self._answer(404)
            return
        with file:
            self._send(file)

    def _send(self, file: BinaryIO) -> None:
        file_status = os.fstat(file.fileno())
        size = file_status.st_size
        start, stop, status = 0, size, 200
        tag = _tag(file_status)
        if self.headers.get("If-Match", tag) != tag:
            self._answer(412)
            return
        if byte_range := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
            first, last = byte_range.groups()
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
            Last_Modified=formatdate(file_status.st_mtime, usegmt=True),
        )

    def _list(self, query: dict[str, str]) -> None:
        prefix, after = query.get("prefix", ""), query.get("start-after", "")
        after = max(after, query.get("continuation-token", ""))
        paths = (Path(root, name) for root, _, names in os.walk(self._folder) for name in names)
        keys = sorted(path.relative_to(self._folder).as_posix() for path in paths)
        keys = [key for key in keys if key.startswith(prefix) and key > after]
        folders: set[str] = set()
        if delimiter := query.get("delimiter"):
            parts = {key: key[len(prefix) :].partition(delimiter) for key in keys}
            folders = {
                prefix + name + delimiter for name, separator, _ in parts.values() if separator
            }
            keys = [key for key, (_, separator, _) in parts.items() if not separator]
        page = keys[: int(query.get("max-keys", _MAX_KEYS))]
        rows = []
        for key in page:
            try:
                status = (self._folder / key).stat()
            except FileNotFoundError:
                continue
            modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(status.st_mtime))
            rows.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified>"
                f"<ETag>{escape(_tag(status))}</ETag><Size>{status.st_size}</Size></Contents>"
            )
        rows += [
            f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
            for folder in folders
        ]
        is_truncated = len(page) < len(keys)
        if is_truncated:
            rows.append(f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>")
        self._xml(
            "ListBucketResult",
            f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"
            f"<IsTruncated>{str(is_truncated).lower()}</IsTruncated>{''.join(rows)}",
        )

    def _put(self, key: str, query: dict[str, str], body: bytes) -> None:
        if urlsplit(self.path).path.endswith("/"):
            # This object would mark a folder, which needs no file here.
            self._answer(200, ETag='"folder"')
            return
        if "uploadId" in query:
            self.parts[query["uploadId"]][int(query["partNumber"])] = body
            self._answer(200, ETag='"part"')
            return
        if source := self.headers.get("x-amz-copy-source"):
            body = (
                self._folder / unquote(source).strip("/").removeprefix(BUCKET + "/")
            ).read_bytes()
            tag = self._store(key, body)
            self._xml("CopyObjectResult", f"<ETag>{escape(tag or '')}</ETag>")
            return
        tag = self._store(key, body, is_new=self.headers.get("If-None-Match") == "*")
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

    def _store(self, key: str, body: bytes, *, is_new: bool = False) -> str | None:
        """Store an object atomically, and return its tag.

        Return None if it must be new and exists already.
        """
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
        namespace = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
        body = f'<?xml version="1.0" encoding="UTF-8"?><{name} {namespace}>{inner}</{name}>'
        self._answer(200, body.encode(), Content_Type="application/xml")


def _chunks(file: BinaryIO) -> bytes:
    """Decode chunks, each after a line with its size. Skip lines of checksums at the end."""
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
class RequestCounts:
    """Counts of the requests since the previous count."""

    requests: int
    waits: int
    num_bytes: int
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.requests} requests, {self.waits} waits, {self.num_bytes / 1000:,.0f} kB"


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, and the folder that it serves."""

    endpoint: str
    folder: Path

    def count_requests(self) -> RequestCounts:
        """Return the counts of the logged requests, and clear the log."""
        with urllib.request.urlopen(f"http://{self.endpoint}/_waits") as answer:
            log = [Request(*fields) for fields in json.load(answer)]
        waits, last_end = 0, 0.0
        # Count the largest set of requests that do not overlap: always take the one that ends
        # first.
        for request in sorted(log, key=lambda request: request.end):
            if request.start >= last_end:
                waits, last_end = waits + 1, request.end
        lines = tuple(request.line for request in sorted(log))
        return RequestCounts(len(log), waits, sum(request.num_bytes for request in log), lines)


@contextmanager
def serving(folder: Path, milliseconds: float) -> Iterator[Server]:
    """Run a server in a new process while the context is open."""
    command = [sys.executable, "-m", "bench.store_server", str(folder), str(milliseconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Server(f"127.0.0.1:{int(process.stdout.readline())}", folder)
    finally:
        process.terminate()
        process.wait()


class _ThreadingServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    handler = partial(Handler, Path(sys.argv[1]), float(sys.argv[2]) / 1000)
    server = _ThreadingServer(("127.0.0.1", 0), handler)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever).run()
