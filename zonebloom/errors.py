"""Every exception and warning zonebloom raises, as one tree.

    ZoneBloomError
      InvalidArgument, FilterError, ColumnNotFound, UnsupportedType
      SourceError
        NoFragments, SchemaMismatch
        FragmentUnreadable
          FragmentChanged
      CatalogError
        IndexNotFound, IndexExists, CommitConflict, InvalidState
        CorruptIndex, EncryptedIndex, StaleIndex
      EngineError, MissingDependency, NotPicklable
    ZoneBloomWarning
      StaleIndexWarning, MissingFilesWarning, HiddenColumnsWarning, IndexNotUsedWarning

Each message says what was given and what to do next. What Python itself refuses (a missing
argument, an unknown keyword) stays its TypeError, and what a function of yours raises stays yours.
"""

from __future__ import annotations

import pickle
import re

_URI = re.compile(r"""[A-Za-z][\w+.-]*://[^\s'"<>]+""")
# A user with a password, which may hold a slash unescaped; or what stands before a host.
_USER = re.compile(r"(?<=://)(?:[^:@]*:.*|[^/@]*)@")
_VALUE = re.compile(r"(?<==)[^&;,]+")


def without_secrets(text: str) -> str:
    """A text whose URIs show no user, password or token.

    >>> without_secrets("cannot open s3://key:secret@bucket/a?token=abc&sig=d")
    'cannot open s3://***@bucket/a?token=***&sig=***'
    """

    def masked(uri: re.Match[str]) -> str:
        path, mark, query = _USER.sub("***@", uri[0]).partition("?")
        return path + mark + _VALUE.sub("***", query)

    return _URI.sub(masked, text) if "://" in text else text


class ZoneBloomError(Exception):
    """Base of every exception zonebloom raises on purpose."""

    def __init__(self, *arguments: object):
        # Messages of libraries below quote the URIs they were given.
        super().__init__(*(without_secrets(a) if isinstance(a, str) else a for a in arguments))

    # KeyError quotes its message; ours are sentences.
    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class InvalidArgument(ZoneBloomError, ValueError):
    """A parameter has a value that cannot be used."""


class FilterError(ZoneBloomError, ValueError):
    """A filter is not one of the accepted kinds, or cannot be read."""


class ColumnNotFound(ZoneBloomError, KeyError):
    """The dataset has no column of that name."""


class UnsupportedType(ZoneBloomError, TypeError):
    """The column's type cannot be indexed."""


class SourceError(ZoneBloomError, OSError):
    """The source cannot be used as a dataset."""


class NoFragments(SourceError):
    """The source names no file that could be read."""


class SchemaMismatch(SourceError):
    """A fragment's schema disagrees with the dataset's."""


class FragmentUnreadable(SourceError):
    """A fragment cannot be opened or decoded."""


class FragmentChanged(FragmentUnreadable):
    """A fragment is not the file it was when the read was planned."""


class CatalogError(ZoneBloomError):
    """The index folder cannot be read or written."""


class IndexNotFound(CatalogError, KeyError):
    """The catalog holds no index of that name."""


class IndexExists(CatalogError):
    """An index of that name exists and was not to be replaced."""


class CommitConflict(CatalogError):
    """Another writer committed a change this one cannot be put on top of."""


class InvalidState(CatalogError):
    """An index is deleted, or an action on it is under way or was never ended."""


class CorruptIndex(CatalogError):
    """Bytes of the catalog or of a segment are not what was written."""


class EncryptedIndex(CatalogError):
    """An index is encrypted, and its key is not given or is another."""


class StaleIndex(CatalogError):
    """An index is behind its files, and the dataset was opened to refuse such."""


class EngineError(ZoneBloomError, RuntimeError):
    """The engine asked for cannot run the build."""


class MissingDependency(ZoneBloomError, ImportError):
    """An optional package is needed for what was asked."""


class NotPicklable(ZoneBloomError, pickle.PicklingError):
    """An object holds keys in clear, or is bound to the process that made it."""


class ZoneBloomWarning(UserWarning):
    """Base of every warning zonebloom gives."""

    def __init__(self, *arguments: object):
        super().__init__(*(without_secrets(a) if isinstance(a, str) else a for a in arguments))


class StaleIndexWarning(ZoneBloomWarning):
    """Fragments changed or appeared since the index was built; they are read whole."""


class MissingFilesWarning(ZoneBloomWarning):
    """Files are gone since the dataset was opened, and were to be left out."""


class HiddenColumnsWarning(ZoneBloomWarning):
    """The schema is the first file's, and later files hold columns it does not have."""


class IndexNotUsedWarning(ZoneBloomWarning):
    """An index exists that could not be used; the data is read instead."""
