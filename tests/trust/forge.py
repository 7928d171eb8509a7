"""Test an index in which one value is forged, with right checksums: right rows, or a clear error.

Nobody can check forged statements about values themselves, so the bits of filters and the bounds of
key ranges are not forged. For a forged schema in a page map, only unexpected errors are problems.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import resource
import shutil
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import xxhash
from support.e2e_helpers import merge_segments
from support.helpers import index_folder
from trust.report import Report
from trust.small import (
    FILTERS,
    NUMBERS,
    ROWS,
    WrongRows,
    build,
    check_answers,
    quiet,
    rows_of,
    validate_all,
    wanted,
    write,
)

import zonebloom as zb
from zonebloom.storage.encryption import FileCipher

KEYS = zb.Encryption("key", {"key": bytes(32)})
CASES = [("BLOOMFILTER", None), ("BLOOMFILTER", KEYS), ("HASH", None)]
# The number of forgeries of a case in the long run.
FORGERIES = 300
# The share of forgeries for which writers are tested too, which doubles the time.
CHANGES = 0.1

VALUES = [0, 1, -1, 2**31, 2**32, 2**62, 2**63, 10**30, 1e300, float("nan"), 1.5, "x", "", "../x"]
VALUES += [None, True, [], {}, [None], [0], ["x"], "9" * 5000]
INTEGERS = [0, 1, -1, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
# The limits for files of a few kilobytes.
MOST_BYTES = 128 << 20
MOST_SECONDS = 60

# The name of a forgery, and a function that makes it. The function raises OverflowError or
# ArrowInvalid if a value is impossible there.
Forgery: TypeAlias = tuple[str, Callable[[], Any]]


# Forgeries


def of_json(content: Any) -> Iterator[Forgery]:
    """Yield documents with one part changed, left out, or doubled."""
    for value in VALUES:
        if type(value) is not type(content) or value != content:
            yield f" = {str(value)[:20]!r}", lambda value=value: value
    if isinstance(content, int) and not isinstance(content, bool):
        yield " + 1", lambda: content + 1
        yield " - 1", lambda: content - 1
    if isinstance(content, dict | list):
        for key in content if isinstance(content, dict) else range(len(content)):
            for description, forged in of_json(content[key]):
                yield f".{key}{description}", lambda k=key, f=forged: _with(content, k, f())
            yield f".{key} left out", lambda k=key: _without(content, k)
    if isinstance(content, dict):
        yield " with more", lambda: {**content, "more": 1}
    if isinstance(content, list):
        yield " doubled", lambda: content * 2


def _with(content: Any, key: Any, value: Any) -> Any:
    changed = copy.copy(content)
    changed[key] = value
    return changed


def _without(content: Any, key: Any) -> Any:
    changed = copy.copy(content)
    del changed[key]
    return changed


def of_arrow_file(data: bytes) -> Iterator[Forgery]:
    """Yield Arrow files with one change: in the metadata, or in the first or last row."""
    table = pa.ipc.open_file(data).read_all()
    metadata = table.schema.metadata or {}
    for key in metadata:
        for value in VALUES:
            changed = {**metadata, key: str(value).encode()}
            yield (
                f".{key.decode()} = {str(value)[:20]!r}",
                lambda changed=changed: _file(table.replace_schema_metadata(changed)),
            )
        rest = _without(metadata, key)
        yield (
            f".{key.decode()} left out",
            lambda rest=rest: _file(table.replace_schema_metadata(rest)),
        )
    yield " doubled", lambda: _file(pa.concat_tables([table, table]).combine_chunks())
    yield " of no rows", lambda: _file(table.slice(0, 0))
    for number, field in enumerate(table.schema):
        column = table[number].to_pylist()
        for row in {0, len(column) - 1}:
            for description, value in _of_value(field.type, column[row]):
                values = _with(column, row, value)
                yield (
                    f".{field.name}[{row}]{description}",
                    lambda n=number, f=field, v=values: _file(
                        table.set_column(n, f, pa.array(v, f.type))
                    ),
                )


def _of_value(kind: pa.DataType, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        for i in range(len(value)):
            for description, other in _of_value(kind.value_type, value[i]):
                yield f"[{i}]{description}", _with(value, i, other)
        yield " of none", []
        yield " doubled", value * 2
        yield " cut", value[:-1]
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from ((f" = {number}", number) for number in INTEGERS if number != value)
    elif isinstance(value, str):
        yield from ((f" = {text!r}", text) for text in ("", "x", "../x", "/etc/passwd", "\0"))
    elif isinstance(value, bytes):
        for other in (b"", b"x", value[:-1], value + b"x"):
            yield f" of {len(other)} bytes", other
        if pa.types.is_dictionary(kind):
            for i in range(len(value)):
                yield from (
                    (f" byte {i} = {byte}", value[:i] + bytes([byte]) + value[i + 1 :])
                    for byte in (0, 0x7F, 0xFF)
                )


def _file(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def of_filter(data: bytes) -> Iterator[Forgery]:
    """Yield filters with a changed header, and truncated ones."""
    for i in range(16):
        for byte in {0, 1, 0x7F, 0x80, 0xFF} - {data[i]}:
            changed = data[:i] + bytes([byte]) + data[i + 1 :]
            yield f" byte {i} = {byte}", lambda changed=changed: changed
    for size in (0, 1, 16, 32, len(data) - 1):
        yield f" of {size} bytes", lambda size=size: data[:size]


KINDS = {".arrow": of_arrow_file, ".sbbf": of_filter}


class Forger:
    """An attacker who changes parts of an index and knows its checksums and its key."""

    def __init__(self, folder: Path, encryption: zb.Encryption | None):
        self.folder = folder
        self.seal = None if encryption is None else FileCipher(str(folder), encryption)
        self.version = max(folder.glob("versions/*.json"))
        self.document = json.loads(self.version.read_bytes())
        self.content = self.document["content"]
        if self.seal is not None:
            stored = base64.b64decode(self.content["content"])
            self.content = json.loads(self.seal.decrypt(str(self.version), stored))

    def forgeries(self) -> dict[str, list[Forgery]]:
        """Return all forgeries, by the part of the index that they change."""
        by_part = defaultdict(list)
        for description, forged in of_json(self.content):
            by_part["version"].append((description, lambda f=forged: self._commit(f())))
        outer = {"format_version": self.document["format_version"]}
        outer |= self.document["content"] if self.seal is not None else {}
        for description, forged in of_json(outer):
            by_part["document"].append((description, lambda f=forged: self._commit_outer(f())))
        for path in sorted(self.folder.rglob("*")):
            if path.suffix in KINDS:
                kind = "listing" if path.parent == self.version.parent else path.name
                for description, forged in KINDS[path.suffix](self._read(path)):
                    by_part[kind].append(
                        (description, lambda p=path, f=forged: self._replace(p, f()))
                    )
        return by_part

    def _read(self, path: Path) -> bytes:
        stored = path.read_bytes()
        return stored if self.seal is None else self.seal.decrypt(str(path), stored)

    def _commit(self, content: Any) -> None:
        """Write the version with this content."""
        if self.seal is not None:
            stored = self.seal.encrypt(str(self.version), json.dumps(content).encode())
            content = {**self.document["content"], "content": base64.b64encode(stored).decode()}
        self._write_document(self.document["format_version"], content)

    def _commit_outer(self, outer: Any) -> None:
        """Write the version with these fields for its format and its encryption."""
        if not isinstance(outer, dict):
            outer = {"format_version": outer}
        encrypted = {name: value for name, value in outer.items() if name != "format_version"}
        content = self.content if self.seal is None else encrypted
        self._write_document(outer.get("format_version", 5), content)

    def _write_document(self, format_version: Any, content: Any) -> None:
        head = f'{{"format_version": {json.dumps(format_version)}, "checksum": "'
        tail = f'",\n"content": {json.dumps(content)}, "writer": "forger"}}\n'
        checksum = xxhash.xxh3_128_hexdigest((head + tail).encode())
        self.version.write_text(head + checksum + tail)

    def _replace(self, path: Path, data: bytes) -> None:
        """Replace a file, and its checksum and size in the version."""
        old, new = _checksum(path, self._read(path)), _checksum(path, data)
        path.write_bytes(data if self.seal is None else self.seal.encrypt(str(path), data))
        text = json.dumps(self.content).replace(old, new)
        self._commit(json.loads(text, object_hook=partial(_resized, checksum=new, size=len(data))))


def _checksum(path: Path, data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)


def _resized(record: dict[str, Any], checksum: str, size: int) -> dict[str, Any]:
    """Return a record with the size of the file that has this checksum."""
    for of_checksum, of_size in (("checksum", "num_bytes"), ("ranges_checksum", "ranges_bytes")):
        if record.get(of_checksum) == checksum and of_size in record:
            record[of_size] = size
    return record


# Uses of the index


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Limit memory and time to what a small dataset needs."""

    def too_long(*_: object) -> None:
        raise TimeoutError(f"it took {MOST_SECONDS} s")

    limits, pool = resource.getrlimit(resource.RLIMIT_DATA), pa.default_memory_pool()
    status = Path("/proc/self/status").read_text()
    used = int(status.split("VmData:")[1].split()[0]) << 10
    # Other memory pools reuse freed memory, which the limit would not count.
    pa.set_memory_pool(pa.system_memory_pool())
    resource.setrlimit(resource.RLIMIT_DATA, (used + MOST_BYTES, limits[1]))
    handler = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(MOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_DATA, limits)
        pa.set_memory_pool(pool)


IDS = [10, 1370, 30, 1990, 2770, 5, None]


def uses(ds: zb.Dataset) -> Iterator[tuple[str, Callable[[], Any], Any]]:
    """Yield calls of a dataset and their right results. None allows any result."""
    rows = [row for number in NUMBERS for row in rows_of(number)]
    row_by_id = {row["id"]: row["row"] % ROWS for row in rows}

    def rows_in(table: Any) -> list[int]:
        return [row for row in table["row"].to_pylist() if row is not None]

    yield "count_rows", ds.count_rows, len(rows)
    for filter in FILTERS:
        yield filter, partial(ds.count_rows, filter), len(wanted(NUMBERS, filter))
    yield "head", lambda: rows_in(ds.head(len(rows))), [*range(len(rows))]
    located = [row_by_id[key] for key in IDS if key in row_by_id]
    yield "locate", lambda: rows_in(ds.locate("id", IDS)), located
    of_ids = [row["row"] for row in rows if row["id"] in IDS]
    yield "lookup", lambda: sorted(rows_in(ds.lookup("id", IDS))), of_ids
    yield "files", lambda: sum(ds.files_with_keys("id", IDS)["num_rows"].to_pylist()), len(of_ids)
    yield "arrow", lambda: ds.to_table(["row"]).num_rows, len(rows)
    yield "polars", lambda: len(ds.to_polars().collect()), len(rows)
    yield "search", lambda: str(ds.search("name = 'n7'")), None
    yield "analyze_plan", lambda: str(ds.scanner(filter="id = 10").analyze_plan()), None
    yield "search_many", lambda: ds.search_many("id", IDS).read_all(), None
    yield "key_ranges", lambda: ds.key_ranges("name"), None
    yield "global_filter", lambda: ds.global_filter("id"), None
    yield "describe_indices", lambda: str(ds.describe_indices()), None
    yield "index_statistics", lambda: ds.index_statistics("name_idx"), None
    yield "prewarm_index", lambda: ds.prewarm_index("id_idx"), None
    yield "take", lambda: ds.take_rows([0, ROWS - 1]), None
    yield "validate_index", lambda: validate_all(ds), None


def changes(ds: zb.Dataset) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield calls that write to the index. The results are checked again after each of them."""
    optimize = partial(ds.optimize.optimize_indices, spark=False)
    yield "optimize_indices", optimize
    names = [index.name for index in ds.describe_indices()]
    yield "merge", partial(merge_segments, ds, names)
    yield "repair", partial(optimize, repair=True)
    yield "drop_index", partial(ds.drop_index, "twin_idx")
    yield "vacuum", partial(ds.vacuum, timedelta(0))
    yield "create_scalar_index", partial(ds.create_scalar_index, "row", spark=False)


def problem(ask: Callable[[], Any], right: Any = None) -> str | None:
    """Return what is wrong with the result of a call, or None."""
    try:
        result = ask()
    except zb.errors.ZoneBloomError:
        return None
    except WrongRows as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - not one of ours
        return f"raised {error!r:.300}"
    if right is None or result == right:
        return None
    return f"gave {result!r:.200}, not {right!r:.200}"


def problems(open_dataset: Callable[[], zb.Dataset], *, changed: bool) -> Iterator[str]:
    """Yield what is wrong with a dataset whose index is forged."""
    if (reason := problem(open_dataset)) is not None:
        yield f"opening {reason}"
        return
    try:
        ds = open_dataset()
    except zb.errors.ZoneBloomError:
        return
    for name, ask, right in uses(ds):
        if (reason := problem(ask, right)) is not None:
            yield f"{name} {reason}"
    for name, change in changes(ds) if changed else ():
        if (reason := problem(change)) is not None:
            yield f"{name} {reason}"
        for get_dataset in (lambda: ds, open_dataset):
            reason = problem(lambda get=get_dataset: check_answers(get(), NUMBERS))
            if reason is not None:
                yield f"after {name} {reason}"


def run_case(report: Report, number: int, folder: Path, num_forgeries: int = FORGERIES) -> None:
    """Forge one value of an index after another, and use the index each time."""
    rng = report.begin(number)
    index_type, encryption = CASES[number % len(CASES)]
    data, index, sound = folder / "data", index_folder(folder / "data"), folder / "sound"

    def open_dataset() -> zb.Dataset:
        return zb.dataset(data, encryption=encryption)

    with quiet():
        write(data, 0)
        write(data, 1)
        build(open_dataset(), index_type, global_filter=True)
        write(data, 2)
        open_dataset().optimize.optimize_indices(spark=False)
        shutil.copytree(index, sound)
        # The sound index must have no problems. This also allocates the memory that is needed only
        # once, so that it does not count later.
        if reasons := list(problems(open_dataset, changed=False)):
            raise AssertionError(reasons)
        forgeries = Forger(index, encryption).forgeries()
        for _ in range(num_forgeries):
            kind = rng.choice(sorted(forgeries))
            description, forge = rng.choice(forgeries[kind])
            try:
                forge()
            except (OverflowError, pa.ArrowInvalid):
                # The type has no such value.
                continue
            report.tried[kind] += 1
            try:
                with bounded():
                    reasons = list(problems(open_dataset, changed=rng.random() < CHANGES))
            except Exception as error:  # noqa: BLE001 - raised outside of `problem`
                reasons = [f"raised {error!r:.300}"]
            if kind == "pages.arrow" and description.startswith(".head"):
                reasons = [reason for reason in reasons if "raised" in reason]
            for reason in reasons:
                sealed = ", encrypted" if encryption else ""
                report.fail(f"{index_type}{sealed}: {kind}{description}: {reason}")
            shutil.rmtree(index)
            shutil.copytree(sound, index)
