"""All exceptions and warnings of zonebloom.

    ZoneBloomError
      InvalidArgument, FilterError, ColumnNotFound, UnsupportedType
      SourceError
        NoFragments, SchemaMismatch
        FragmentUnreadable
          FragmentChanged
      CatalogError
        IndexNotFound, IndexExists, CommitConflict, InvalidState
        CorruptIndex, EncryptedIndex, StaleIndex, UnknownIndexKind
      EngineError, MissingDependency, NotPicklable
    ZoneBloomWarning
      StaleIndexWarning, MissingFilesWarning, HiddenColumnsWarning, IndexNotUsedWarning

Each message says what is wrong and what to do next. A missing argument or an unknown keyword is
still a TypeError of Python, and exceptions of your own functions are passed on unchanged.
"""

from __future__ import annotations

import pickle
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Patterns, which are compiled when a message first needs them.
_URI = r"""[A-Za-z][\w+.-]*://[^\s'"<>]+"""
# The part before the host: a user and a password, which may hold an unescaped slash, or a token.
_USER = r"(?<=://)(?:[^:@]*:.*|[^/@]*)@"
# HDFS has no passwords, but paths such as hdfs://host:8020/user/bob@corp.
_HDFS = r"(?:hdfs|viewfs)://"
_HDFS_USER = r"(?<=://)[^/@]*@"
_VALUE = r"(?<==)[^&;,]+"


def without_secrets(text: str) -> str:
    """Return a text with users, passwords and tokens in its URIs replaced by asterisks.

    >>> without_secrets("cannot open s3://key:secret@bucket/a?token=abc&sig=d")
    'cannot open s3://***@bucket/a?token=***&sig=***'
    """

    def mask(uri: re.Match[str]) -> str:
        user = _HDFS_USER if re.match(_HDFS, uri[0]) else _USER
        path, question_mark, query = re.sub(user, "***@", uri[0]).partition("?")
        return path + question_mark + re.sub(_VALUE, "***", query)

    return re.sub(_URI, mask, text) if "://" in text else text


class _Message:
    """The base of exceptions and warnings. Their messages hold no secrets.

    ``commands`` has calls of Python that the message names, and what users of the command
    ``zonebloom`` do instead.
    """

    def __init__(self, *arguments: object, commands: Mapping[str, str] | None = None):
        # Messages of other libraries, which ours include, may quote URIs with secrets.
        super().__init__(*(without_secrets(a) if isinstance(a, str) else a for a in arguments))
        self.commands = dict(commands or {})

    def text_with_commands(self) -> str:
        """Return the message with commands in place of calls.

        Examples
        --------
        >>> from zonebloom.errors import StaleIndex
        >>> error = StaleIndex("call refresh()", commands={"call refresh()": "run refresh"})
        >>> error.text_with_commands()
        'run refresh'
        """
        text = str(self)
        for call, command in self.commands.items():
            text = text.replace(call, command)
        return text


class ZoneBloomError(_Message, Exception):
    """Base class of all exceptions that zonebloom raises on purpose."""

    def __str__(self) -> str:
        # KeyError puts its message in quotes, but our messages are sentences.
        return str(self.args[0]) if self.args else ""


class InvalidArgument(ZoneBloomError, ValueError):
    """A parameter has a value that cannot be used."""


class FilterError(ZoneBloomError, ValueError):
    """A filter is of no supported kind, or cannot be parsed."""


class ColumnNotFound(ZoneBloomError, KeyError):
    """The dataset has no column with that name."""


class UnsupportedType(ZoneBloomError, TypeError):
    """The column's type cannot be indexed."""


class SourceError(ZoneBloomError, OSError):
    """The source cannot be used as a dataset."""


class NoFragments(SourceError):
    """The source has no file that can be read."""


class SchemaMismatch(SourceError):
    """The schema of a fragment contradicts the schema of the dataset."""


class FragmentUnreadable(SourceError):
    """A fragment cannot be opened or decoded."""


class FragmentChanged(FragmentUnreadable):
    """A fragment was changed after a read was planned."""


class CatalogError(ZoneBloomError):
    """The index folder cannot be read or written."""


class IndexNotFound(CatalogError, KeyError):
    """The catalog has no index with that name."""


class IndexExists(CatalogError):
    """An index with that name exists, and the call did not ask to replace it."""


class CommitConflict(CatalogError):
    """Another writer committed a change that contradicts this one."""


class InvalidState(CatalogError):
    """An index is deleted, or another action on it is running or was never finished."""


class CorruptIndex(CatalogError):
    """Bytes of the catalog or of a segment differ from those that were written."""


class EncryptedIndex(CatalogError):
    """An index is encrypted, and the key is missing or wrong."""


class StaleIndex(CatalogError):
    """An index does not match its files, and the dataset was opened to refuse stale indices."""


class UnknownIndexKind(CatalogError):
    """An index is of a kind that is not registered in this process."""


class ChangeRefused(ZoneBloomError):
    """A table, or the rows of an upsert, do not allow a change. Nothing was written."""


class ChangeConflict(ZoneBloomError):
    """Other writers changed the files of an upsert or an erasure each time it was tried."""


class EngineError(ZoneBloomError, RuntimeError):
    """The requested engine cannot run the build."""


class MissingDependency(ZoneBloomError, ImportError):
    """The call needs an optional package that is not installed."""


class NotPicklable(ZoneBloomError, pickle.PicklingError):
    """An object holds plaintext keys, or cannot leave the process that made it."""


class ZoneBloomWarning(_Message, UserWarning):
    """Base class of all warnings of zonebloom."""


class StaleIndexWarning(ZoneBloomWarning):
    """Fragments were changed or added after the index was built, so they are read completely."""


class MissingFilesWarning(ZoneBloomWarning):
    """Files were deleted after the dataset was opened, and are skipped as requested."""


class HiddenColumnsWarning(ZoneBloomWarning):
    """The schema is that of the first file, and later files have further columns."""


class IndexNotUsedWarning(ZoneBloomWarning):
    """An index exists but cannot be used, so the data is read instead."""
