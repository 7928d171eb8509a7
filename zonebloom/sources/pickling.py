"""Refuse to pickle keys in clear and objects that are bound to the process that made them."""

from __future__ import annotations

import inspect
import io
import pickle
import re
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import Any, Never, Self
from urllib.parse import parse_qsl

import pyarrow.fs as pafs

from zonebloom.errors import NotPicklable, without_secrets
from zonebloom.parquet.encryption_keys import ParquetKeys
from zonebloom.sources.memory import TableSource
from zonebloom.storage.encryption import Encryption

# Names of options with secrets in pyarrow, fsspec's file systems and obstore.
_SECRET_NAME = re.compile(
    r"secret|token|passw|passphrase|credential|authorization|signature|cookie|kms_conf"
    r"|connection_string|apikey|key$|(^|[_.-])(keys?|auth|sas|sig|pwd|pat)($|[_.-])",
    re.IGNORECASE,
)
# These options hold only the name or the location of a secret.
_POINTER_NAME = re.compile(r"(id|file|filename|path|name|ur[il])$", re.IGNORECASE)
# These values are no secrets: they are flags, or name a way to find credentials.
_FLAGS = {"true", "false"}
_METHODS = {"anon", "anonymous", "browser", "cache", "cloud", "default", "google_default"}
# The user part of these URIs is the container's name.
_AZURE_URI = re.compile(r"(?:abfss?|wasbs?)://[^/@:]+@")


class ProcessBound:
    """Mixin for objects that are bound to open files of this process, such as plans.

    A copy is the object itself, because these objects are immutable.
    """

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> Never:
        raise NotPicklable(
            f"{type(self).__name__} objects belong to the process that made them and do not "
            "pickle; pickle the dataset, and call its methods in the other process"
        )


def require_no_keys(state: object) -> None:
    """Raise `NotPicklable` if an object does not pickle, or its pickle would hold a key in clear.

    Functions and classes pickle by their name. So the objects that they refer to are searched
    only where cloudpickle would pickle them by value.
    """
    _KeyFinder(set()).dump(state)


class _NullStream(io.RawIOBase):
    """A stream that discards what is written."""

    def write(self, data: Any) -> int:
        return len(data)


class _KeyFinder(pickle.Pickler):
    """A pickler that checks every object it meets and writes nothing."""

    def __init__(self, known_keys: set[bytes]):
        super().__init__(_NullStream(), protocol=5, buffer_callback=lambda buffer: None)
        self._known_keys = known_keys

    def dump(self, obj: object) -> None:
        try:
            super().dump(obj)
        except NotPicklable:
            raise
        except Exception as error:  # noqa: BLE001 - objects raise errors of their own
            raise NotPicklable(
                f"the dataset does not pickle: {error}; open it with zb.dataset(...) in the "
                "process that uses it"
            ) from None

    def persistent_id(self, obj: object) -> str | None:
        """Return an identifier for objects whose contents need no check."""
        if isinstance(obj, str):
            # Most objects are file paths, so test for a URI before parsing.
            if "://" in obj and _is_secret_uri(obj):
                _raise_not_picklable("a URI with credentials")
        elif isinstance(obj, type | ModuleType | TableSource):
            return "no key"
        elif isinstance(obj, FunctionType):
            self._check_function(obj)
            return "no key"
        elif isinstance(obj, bytes):
            if obj in self._known_keys:
                _raise_not_picklable("a key of encryption")
        elif isinstance(obj, dict):
            _check_options(obj)
        elif isinstance(obj, Encryption):
            if obj.holds_keys:
                _raise_not_picklable("encryption")
            # Remember the key, because the function that finds keys must not contain it.
            self._known_keys.add(obj.key(obj.key_id))
        elif isinstance(obj, ParquetKeys):
            if obj.holds_keys:
                _raise_not_picklable("parquet_keys")
        elif isinstance(obj, pafs.FSSpecHandler):
            _check_options(_positional_options(obj.fs))
        return None

    def _check_function(self, function: FunctionType) -> None:
        is_by_name = function.__module__ != "__main__" and "<" not in function.__qualname__
        if is_by_name:
            return
        names = inspect.getclosurevars(function)
        finder = _KeyFinder(self._known_keys)
        for value in (*names.nonlocals.values(), *names.globals.values(), function.__defaults__):
            if isinstance(value, bytes | Mapping | list | tuple | set):
                finder.dump(value)


def _positional_options(filesystem: Any) -> Mapping[str, Any]:
    """Return the positional arguments of an fsspec file system by their names."""
    try:
        # Take the signature of __init__, because the class has that of fsspec's instance cache.
        parameters = inspect.signature(type(filesystem).__init__)
        bound = parameters.bind_partial(filesystem, *filesystem.storage_args)
    except (AttributeError, TypeError, ValueError):
        return {}
    return bound.arguments


def _check_options(options: Mapping[Any, Any]) -> None:
    for name, value in options.items():
        if (
            isinstance(name, str)
            and _SECRET_NAME.search(name)
            and not _POINTER_NAME.search(name)
            and _contains_text(value)
        ):
            _raise_not_picklable(f"the option {name!r}")


def _contains_text(value: object) -> bool:
    """Return whether a value is text or bytes, or a collection with some, that may be a secret."""
    if isinstance(value, str | bytes):
        return len(value) > 0 and value.lower() not in _METHODS | _FLAGS
    if isinstance(value, Mapping):
        return any(map(_contains_text, value.values()))
    return isinstance(value, list | tuple) and any(map(_contains_text, value))


def _is_secret_uri(text: str) -> bool:
    place, _, query = text.partition("?")
    has_user = without_secrets(place) != place and not _AZURE_URI.match(place)
    names = [name for name, _ in parse_qsl(query)]
    return has_user or any(
        _SECRET_NAME.search(name) and not _POINTER_NAME.search(name) for name in names
    )


def _raise_not_picklable(what: str) -> Never:
    raise NotPicklable(
        f"the dataset does not pickle: {what} would travel as a key in clear. Open it with "
        "zb.dataset(...) in the process that uses it, or give functions that find keys: "
        "zb.Encryption(key_id, function), zb.ParquetKeys(function), and a file system that takes "
        "its credentials from the environment"
    )
