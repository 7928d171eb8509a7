"""Find the deletion vectors of a Delta table in its log, because deltalake does not name them.

The newest action that adds a file says its vector. Which files the table has, deltalake says.

Source: PROTOCOL.md, "Delta Table Specification", "Add File and Remove File", "Checkpoints",
"Sidecar File Information" and "Deletion Vectors".
"""

from __future__ import annotations

import base64
import io
import json
import re
import string
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import index
from typing import Any

import pyarrow.fs as pafs

from zonebloom.base.threads import REMOTE_THREADS, thread_pool
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
            path_of(add["path"]): add.get("deletionVector")
            for add in _added_files(filesystem, f"{root}/_delta_log", version)
        }
        vectors: dict[str, DeletionVector | None] = {}
        for path in paths:
            if path not in added:
                raise ValueError(f"it does not add {path}, which is one of the table's files")
            vector, vectors[path] = added[path], None
            if vector is not None:
                vectors[path] = _deletion_vector(filesystem, root, path, vector, path_of)
        return vectors
    except (*FILE_ERRORS, AttributeError, LookupError, TypeError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(
            f"cannot read the deletion vectors in the log of the {name}: {error}; load the table "
            "again"
        ) from None


def _added_files(
    filesystem: pafs.FileSystem, log: str, version: int
) -> Iterator[Mapping[str, Any]]:
    """Yield the actions that add files, from the newest checkpoint up to a version."""
    names = {info.base_name for info in filesystem.get_file_info(pafs.FileSelector(log))}
    first, checkpoint = _newest_checkpoint(names, version)
    commits = [f"{number:020d}.json" for number in range(first, version + 1)]

    def read(name: str) -> list[dict[str, Any]]:
        with filesystem.open_input_file(f"{log}/{name}") as file:
            content = file.read()
        return _actions_in_json(content) if name.endswith(".json") else _actions_in_parquet(content)

    def added(actions: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return (action["add"] for action in actions if action.get("add"))

    with thread_pool(REMOTE_THREADS) as pool:
        for actions in pool.map(read, checkpoint):
            yield from added(actions)
            sidecars = [action["sidecar"]["path"] for action in actions if action.get("sidecar")]
            for more in pool.map(read, [f"_sidecars/{sidecar}" for sidecar in sidecars]):
                yield from added(more)
        for actions in pool.map(read, commits):
            yield from added(actions)


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


def _actions_in_json(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines() if line.strip()]


def _actions_in_parquet(content: bytes) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    columns = ["add.path", "add.deletionVector", "sidecar.path"]
    return pq.ParquetFile(io.BytesIO(content)).read(columns=columns).to_pylist()


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
