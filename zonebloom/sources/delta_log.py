"""Find the deletion vectors of a Delta table in its log, because deltalake does not name them.

The newest add action of a file names its vector. deltalake says which files the table has.

Source: PROTOCOL.md, "Delta Table Specification", "Add File and Remove File", "Checkpoints",
"Sidecar File Information" and "Deletion Vectors".
"""

from __future__ import annotations

import base64
import io
import json
import posixpath
import re
import string
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import index
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow.fs as pafs

from zonebloom.base.threads import REMOTE_THREADS, map_in_order, thread_pool
from zonebloom.errors import SourceError
from zonebloom.sources.deletion_vectors import FRAME_SIZE, DeletionVector
from zonebloom.storage.files import FILE_ERRORS

# | version | part | number of parts | or unique name | format |
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(parquet|json)"
)
# The digits of Z85, and those of Python's base85.
_Z85 = string.digits + string.ascii_letters + ".-:+=^!/*?&<>()[]{}@%$#"
_B85 = string.digits + string.ascii_uppercase + string.ascii_lowercase + "!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85 = str.maketrans(_Z85, _B85)
_UUID_DIGITS = 20
# The added files with their vectors, and the sidecars, in a file of the log.
_Actions: TypeAlias = tuple[list[tuple[str, Mapping[str, Any] | None]], list[str]]


def read_deletion_vectors(
    filesystem: pafs.FileSystem,
    root: str,
    version: int,
    paths: Sequence[str],
    path_of: Callable[[str], str],
    name: str,
) -> dict[str, DeletionVector | None]:
    """Return the deletion vector of each file of a version.

    ``path_of`` returns the path of a file that the log names.
    """
    try:
        added = {
            path_of(added_path): vector
            for added_path, vector in _added_files(filesystem, f"{root}/_delta_log", version)
        }
        vectors: dict[str, DeletionVector | None] = {}
        for path in paths:
            if path not in added:
                raise ValueError(f"it does not add {path}, which is one of the table's files")
            vector, vectors[path] = added[path], None
            if vector is not None:
                vectors[path] = _deletion_vector(filesystem, root, path, vector, path_of)
        return vectors
    except (*FILE_ERRORS, AttributeError, LookupError, RecursionError, TypeError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(
            f"cannot read the deletion vectors in the log of the {name}: {error}; load the table "
            "again"
        ) from None


def _added_files(
    filesystem: pafs.FileSystem, log: str, version: int
) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """Yield the files that are added up to a version, and their vectors. The last one counts."""
    names = {info.base_name for info in filesystem.get_file_info(pafs.FileSelector(log))}
    first, checkpoint = _newest_checkpoint(names, version)
    commits = [f"{number:020d}.json" for number in range(first, version + 1)]

    def read(name: str) -> _Actions:
        with filesystem.open_input_file(f"{log}/{name}") as file:
            content = file.read()
        return _actions_in_json(content) if name.endswith(".json") else _actions_in_parquet(content)

    with thread_pool(REMOTE_THREADS) as pool:
        for added, sidecars in map_in_order(pool, read, checkpoint, REMOTE_THREADS):
            yield from added
            for more, _ in map_in_order(pool, read, sidecars, REMOTE_THREADS):
                yield from more
        for added, _ in map_in_order(pool, read, commits, REMOTE_THREADS):
            yield from added


def _newest_checkpoint(names: set[str], version: int) -> tuple[int, list[str]]:
    """Return the version after the newest complete checkpoint, and the checkpoint's files."""
    checkpoints: dict[tuple[int, str], list[str]] = {}
    for match in filter(None, map(_CHECKPOINT.fullmatch, names)):
        if int(match[1]) <= version:
            # A checkpoint in one file is a checkpoint of its own.
            key = int(match[1]), match[3] or match[0]
            checkpoints.setdefault(key, []).append(match[0])
    complete = {
        key: files
        for key, files in checkpoints.items()
        if not key[1].isdigit() or len(files) == int(key[1])
    }
    if not complete:
        return 0, []
    newest = max(complete)
    return newest[0] + 1, complete[newest]


def _actions_in_json(content: bytes) -> _Actions:
    return _actions(json.loads(line) for line in content.splitlines() if line.strip())


def _actions_in_parquet(content: bytes) -> _Actions:
    import pyarrow.parquet as pq

    columns = ["add.path", "add.deletionVector", "sidecar.path"]
    return _actions(pq.ParquetFile(io.BytesIO(content)).read(columns=columns).to_pylist())


def _actions(rows: Iterable[Mapping[str, Any]]) -> _Actions:
    # The statistics of a file may be long, and are not kept.
    added: list[tuple[str, Mapping[str, Any] | None]] = []
    sidecars: list[str] = []
    for row in rows:
        if row.get("add"):
            added.append((row["add"]["path"], row["add"].get("deletionVector")))
        if row.get("sidecar"):
            # All sidecars lie in one folder, so only the name counts. It is encoded as in a URI.
            sidecars.append(f"_sidecars/{posixpath.basename(unquote(row['sidecar']['path']))}")
    return added, sidecars


def _deletion_vector(
    filesystem: pafs.FileSystem,
    root: str,
    data_path: str,
    vector: Mapping[str, Any],
    path_of: Callable[[str], str],
) -> DeletionVector:
    kind, place = vector["storageType"], vector["pathOrInlineDv"]
    # `index` refuses what is not an integer.
    num_bytes, cardinality = index(vector["sizeInBytes"]), index(vector["cardinality"])
    if kind == "i":
        inline = _decode_z85(place)[:num_bytes]
        return DeletionVector(filesystem, data_path, 0, num_bytes, cardinality, inline)
    if kind == "u":
        prefix, name = place[:-_UUID_DIGITS], uuid.UUID(bytes=_decode_z85(place[-_UUID_DIGITS:]))
        path = "/".join(filter(None, (prefix, f"deletion_vector_{name}.bin")))
        path = f"{root}/{path}"
    elif kind == "p":
        path = path_of(place)
    else:
        raise ValueError(f"{data_path} has a deletion vector of the unknown storage type {kind!r}")
    return DeletionVector(
        filesystem, path, index(vector["offset"]), num_bytes + FRAME_SIZE, cardinality
    )


def _decode_z85(text: str) -> bytes:
    return base64.b85decode(text.translate(_TO_B85))
