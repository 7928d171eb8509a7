"""The options of a load, as ``spark.read`` and SQL give them: all of them text."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

import pyarrow as pa

from zonebloom.errors import InvalidArgument
from zonebloom.storage.paths import plain_path
from zonebloom.threads import cores

_OPTIONS = {
    "path": "a folder, a file, a glob or a URI",
    "paths": "several, as a JSON list",
    "columns": "names with commas between, or a JSON list",
    "filter": "a condition; rows it is not true for are left out",
    "prune": "a condition; zones it cannot be true in are left out",
    "keys": "keys of a join, as base64 of an Arrow IPC stream; rows without them are left out",
    "index_dir": "folder of the index",
    "old_calendar": "true where the session corrects old times of files of unknown writers",
    "timezone": "of the session, for timestamps in a condition without one",
    "parallelism": "tasks that run at one time",
}
# Spark adds it to tables of a catalog.
_SPARKS_OWN = {"serialization.format"}


class Options:
    """The options of a load, read and checked."""

    def __init__(self, options: Mapping[str, str]):
        given = {name.lower(): text for name, text in options.items()}
        unknown = sorted(set(given) - set(_OPTIONS) - _SPARKS_OWN)
        if unknown:
            known = "; ".join(f"{name}: {what}" for name, what in _OPTIONS.items())
            raise InvalidArgument(f"there is no option {', '.join(unknown)}; there is {known}")
        paths = _json_list("paths", given["paths"]) if "paths" in given else []
        if not given.get("path") and not paths:
            raise InvalidArgument("no path is given; write .load(path), or OPTIONS (path '...')")
        if "filter" in given and "prune" in given:
            raise InvalidArgument("give filter or prune, not both")
        parallelism = given.get("parallelism", "0")
        if not parallelism.isdecimal():
            raise InvalidArgument(f"parallelism is {parallelism!r}; give a whole number")
        old_calendar = given.get("old_calendar", "false").lower()
        if old_calendar not in ("true", "false"):
            raise InvalidArgument(f"old_calendar is {old_calendar!r}; give true or false")
        path = given.get("path")
        self.source = plain_path(path) if path else list(map(plain_path, paths))
        self.columns = _names(given["columns"]) if "columns" in given else None
        self.filter, self.prune = given.get("filter"), given.get("prune")
        # Columns by name; a row is wanted where each holds one of its values.
        self.keys = _keys(given["keys"]) if "keys" in given else None
        self.index_dir, self.timezone = given.get("index_dir"), given.get("timezone")
        # Whether files of unknown writers may hold times by the calendar of Spark 2.
        self.old_calendar = old_calendar == "true"
        self.parallelism = int(parallelism) or cores()


def keys_text(keys: pa.Table) -> str:
    """Keys as the text of an option."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as writer:
        writer.write_table(keys)
    return base64.b64encode(sink.getvalue().to_pybytes()).decode()


def _keys(text: str) -> pa.Table:
    try:
        keys = pa.ipc.open_stream(base64.b64decode(text, validate=True)).read_all()
        keys.validate(full=True)
    except (ValueError, pa.ArrowException) as error:
        raise InvalidArgument(
            "keys is no base64 of an Arrow IPC stream; zonebloom.spark.filter_join writes it"
        ) from error
    return keys


def _names(text: str) -> list[str]:
    if text.lstrip().startswith("["):
        names = _json_list("columns", text)
    else:
        names = [name.strip() for name in text.split(",")]
    if not names or "" in names:
        raise InvalidArgument(f"columns is {text!r}; name at least one, and none is empty")
    if len(set(names)) < len(names):
        raise InvalidArgument(f"columns is {text!r}; name each once")
    return names


def _json_list(name: str, text: str) -> list[str]:
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise InvalidArgument(f"{name} is {text!r}; write it as a JSON list of strings")
    return names
