"""Refuse to pickle keys in clear."""

from __future__ import annotations

import base64
import inspect
import io
import pickle
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any, Never
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
_REFERENCE_NAME = re.compile(r"(id|file|filename|path|name|ur[il])$", re.IGNORECASE)
# These values are flags, or name a way to find credentials, so they are no secrets.
_FLAGS = {"true", "false"}
_METHODS = {"anon", "anonymous", "browser", "cache", "cloud", "default", "google_default"}
# The user part of these URIs is the container's name.
_AZURE_URI = re.compile(r"(?:abfss?|wasbs?)://[^/@:]+@")


def require_no_keys(state: object) -> None:
    """Raise `NotPicklable` if an object does not pickle, or its pickle would hold a key in clear.

    The object is pickled, and the bytes are searched for the keys of encryption. Cloudpickle
    pickles the contents of functions, classes and modules that cannot be imported. So those that
    the object refers to are pickled by each cloudpickle of the process.
    """
    finder = _KeyFinder()
    pickles = [finder.pickled(state)]
    code = list(finder.code.values())
    for pickler in _loaded_cloudpicklers():
        code_finder = type("_CodeKeyFinder", (_CodeKeyFinder, pickler), {})()
        pickles.append(code_finder.pickled(code))
        finder.key_spellings |= code_finder.key_spellings
    if any(spelling in data for data in pickles for spelling in finder.key_spellings):
        _raise_not_picklable("a key of encryption")


def _loaded_cloudpicklers() -> set[type[pickle.Pickler]]:
    """Return the pickler of each cloudpickle that is loaded, or pickle's own if none is.

    Numba, Spark, Ray and joblib have a copy each. Each copy has its own list of modules whose
    contents it pickles although they can be imported.
    """
    modules = [module for name, module in list(sys.modules.items()) if name.endswith("cloudpickle")]
    picklers = {getattr(module, "Pickler", None) for module in modules}
    return {
        pickler
        for pickler in picklers
        if isinstance(pickler, type) and issubclass(pickler, pickle.Pickler)
    } or {pickle.Pickler}


class _KeyFinder(pickle.Pickler):
    """A pickler that checks each object, collects the keys, and leaves code to other picklers."""

    def __init__(self) -> None:
        self._stream = io.BytesIO()
        super().__init__(self._stream, protocol=5)
        self.key_spellings: set[bytes] = set()
        # Functions, classes and modules by their ids.
        self.code: dict[int, FunctionType | type | ModuleType] = {}

    def pickled(self, obj: object) -> bytes:
        """Return the pickle of an object without what `persistent_id` leaves out."""
        try:
            self.dump(obj)
        except NotPicklable:
            raise
        except Exception as error:  # noqa: BLE001 - objects raise errors of their own
            raise NotPicklable(
                f"the dataset does not pickle: {error}; open it with zb.dataset(...) in the "
                "process that uses it"
            ) from None
        return self._stream.getvalue()

    def persistent_id(self, obj: object) -> str | None:
        """Return an identifier for objects that are left out of the pickle."""
        if isinstance(obj, str):
            # Most objects are file paths, so test for a URI before parsing.
            if "://" in obj and _is_secret_uri(obj):
                _raise_not_picklable("a URI with credentials")
        elif isinstance(obj, FunctionType | type | ModuleType):
            self.code[id(obj)] = obj
            return "code"
        elif isinstance(obj, TableSource):
            return "no key"
        elif isinstance(obj, dict):
            _check_options(obj)
        elif isinstance(obj, Encryption):
            if obj.holds_keys:
                _raise_not_picklable("encryption")
            self.key_spellings |= _key_spellings(obj.key(obj.key_id))
        elif isinstance(obj, ParquetKeys):
            if obj.holds_keys:
                _raise_not_picklable("parquet_keys")
        elif isinstance(obj, pafs.FSSpecHandler):
            _check_options(_positional_options(obj.fs))
        return None


class _CodeKeyFinder(_KeyFinder):
    """Mixin for a cloudpickle that checks each object, also those in functions and classes."""

    def __init__(self) -> None:
        super().__init__()
        self._annotation_ids: set[int] = set()

    def persistent_id(self, obj: object) -> str | None:
        if isinstance(obj, FunctionType):
            # From Python 3.14 on, annotations are evaluated here and may name what is not imported.
            with suppress(NameError):
                self._annotation_ids.add(id(obj.__annotations__))
            return None
        if isinstance(obj, type):
            # The attribute of this name would add annotations to a class that has none.
            self._annotation_ids.add(id(vars(obj).get("__annotations__")))
            return None
        if isinstance(obj, ModuleType):
            return None
        # Annotations map names of parameters, such as "key", to types, which may be text.
        return None if id(obj) in self._annotation_ids else super().persistent_id(obj)


def _key_spellings(key: bytes) -> set[bytes]:
    """Return a key as it may stand in a pickle: as bytes, or as text in a usual encoding."""
    return {
        key,
        key.decode("latin-1").encode(),
        key.hex().encode(),
        key.hex().upper().encode(),
        base64.b64encode(key).rstrip(b"="),
        base64.urlsafe_b64encode(key).rstrip(b"="),
    }


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
            and not _REFERENCE_NAME.search(name)
            and _may_hold_secret(value)
        ):
            _raise_not_picklable(f"the value of {name!r}")


def _may_hold_secret(value: object) -> bool:
    """Return whether a value may be a secret: text or bytes, also inside of a collection."""
    if isinstance(value, str | bytes):
        return len(value) > 0 and value.lower() not in _METHODS | _FLAGS
    if isinstance(value, Mapping):
        return any(map(_may_hold_secret, value.values()))
    return isinstance(value, list | tuple) and any(map(_may_hold_secret, value))


def _is_secret_uri(text: str) -> bool:
    place, _, query = text.partition("?")
    has_user = without_secrets(place) != place and not _AZURE_URI.match(place)
    names = [name for name, _ in parse_qsl(query)]
    return has_user or any(
        _SECRET_NAME.search(name) and not _REFERENCE_NAME.search(name) for name in names
    )


def _raise_not_picklable(what: str) -> Never:
    raise NotPicklable(
        f"the dataset does not pickle: {what} would travel as a key in clear. Open it with "
        "zb.dataset(...) in the process that uses it, or give functions that find keys: "
        "zb.Encryption(key_id, function), zb.ParquetKeys(function), and a file system that takes "
        "its credentials from the environment"
    )
