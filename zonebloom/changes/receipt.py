"""`Receipt`, the record of an upsert or an erasure: what was done, and the proof of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from zonebloom.base.arguments import invalid_value
from zonebloom.base.display import DisplayedSections
from zonebloom.base.text import TextTable, bytes_text, count_text, table_text, time_text
from zonebloom.base.version import __version__
from zonebloom.catalog.version_log import from_json
from zonebloom.errors import InvalidArgument

RECEIPT_FORMAT = 1
_TRACE_HEADERS = ["kind", "path", "versions", "why"]
_CALLS_TITLE = "These calls remove them, and older versions with them:"
_NOT_SEARCHED = "Other files were not searched: give the keys or the filter to search all."


class _Checked(Protocol):
    """The method of `zonebloom.Dataset` that a receipt needs, and users do not."""

    def _check_receipt(
        self, receipt: Receipt, keys: Any, filter: Any, *, purge: bool
    ) -> Traces: ...


@dataclass(frozen=True)
class KeyDigest:
    """A salted SHA-256 digest of keys, by which they can be recognised but not read.

    Attributes
    ----------
    count : int
        The number of distinct keys, or 1 for a filter.
    salt, sha256 : str
        In hexadecimal digits.
    """

    count: int
    salt: str
    sha256: str

    def is_of(self, lines: Sequence[str]) -> bool:
        """Return whether these are the keys, as sorted texts.

        >>> ds.erase("id", [42], plan=True).keys.is_of(["42"])
        True
        """
        return digest_of(lines, self.salt) == self


def digest_of(lines: Sequence[str], salt: str) -> KeyDigest:
    """Return the digest of keys, given as sorted texts."""
    digest = hashlib.sha256(bytes.fromhex(salt))
    for line in lines:
        encoded = line.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return KeyDigest(len(lines), salt, digest.hexdigest())


@dataclass(frozen=True)
class ChangedFile:
    """A data file that a change removed or added.

    Attributes
    ----------
    path : str
    num_rows, num_bytes : int
    """

    path: str
    num_rows: int
    num_bytes: int


@dataclass(frozen=True)
class Verification:
    """The result of testing all rows of the new files without an index.

    Attributes
    ----------
    is_proven : bool
        Whether the new files hold as many rows as they should. After an erasure none has a key;
        after an upsert those with a key are the updated and inserted ones, with the values of the
        batch.
    num_rows : int
        The rows of the new files, all of which were tested.
    num_rows_with_keys : int
        Those that hold one of the keys.
    problem : str
        Empty if the change is proven.
    """

    is_proven: bool
    num_rows: int
    num_rows_with_keys: int
    problem: str = ""


@dataclass(frozen=True)
class Trace:
    """Something that still holds erased keys, or may hold them.

    Attributes
    ----------
    kind : {"file", "log", "index"}
        A data file, any other file of the table, or a part of the index.
    path : str
    versions : tuple of str
        The versions of the table that still name it.
    reason : str
    """

    kind: str
    path: str
    versions: tuple[str, ...]
    reason: str


@dataclass(frozen=True, repr=False)
class Traces(DisplayedSections):
    """The places that still hold the keys of a receipt, or may hold them.

    Attributes
    ----------
    found : tuple of Trace
    calls : tuple of str
        The calls that remove what was found. ``Receipt.check(ds, keys, purge=True)`` makes them.
    is_searched : bool
        Whether the files of the table were searched for the keys. Otherwise only the files and
        segments that the receipt names were looked for.
    not_searched : tuple of str
        The keys that were compared with the rows of data files, but whose bytes were not searched
        in other files: they are so few that they occur by chance.
    """

    found: tuple[Trace, ...]
    calls: tuple[str, ...] = ()
    is_searched: bool = False
    not_searched: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.found)

    @property
    def verdict(self) -> str:
        """The result of the search in a sentence."""
        if self.found:
            return f"{count_text(len(self.found), 'place')} may still hold these keys:"
        if self.is_searched:
            return "Nothing holds these keys."
        return f"Nothing that the receipt names is left. {_NOT_SEARCHED}"

    def _sections(self) -> list[str | TextTable]:
        return trace_sections(self)


def trace_sections(traces: Traces) -> list[str | TextTable]:
    """Return traces as lines and tables, from top to bottom."""
    sections: list[str | TextTable] = [traces.verdict]
    if traces.found:
        cells = [[t.kind, t.path, ", ".join(t.versions), t.reason] for t in traces.found]
        sections.append((_TRACE_HEADERS, cells))
        if not traces.is_searched:
            sections.append(_NOT_SEARCHED)
    if traces.not_searched:
        sections.append(
            "Only rows of data files were compared with "
            f"{', '.join(traces.not_searched)}: in other files, so few bytes occur by chance."
        )
    if traces.calls:
        sections.append("\n".join([_CALLS_TITLE, *traces.calls]))
    return sections


@dataclass(frozen=True, repr=False)
class Receipt(DisplayedSections):
    """The record of an upsert or an erasure, or of a plan of one.

    Attributes
    ----------
    operation : {"erase", "upsert"}
    table : {"delta", "iceberg", "folder"}
    location : str
    columns : tuple of str
        The columns of the keys; empty for an erasure by a filter.
    keys : KeyDigest
        The keys themselves are never kept.
    is_committed : bool
        False for a plan, and if there was nothing to do.
    version_before, version_after : str
        The version of a Delta table, the snapshot of an Iceberg table, or empty for a folder.
    started_at, finished_at : str
        Times in UTC, as ISO 8601 writes them.
    tries : int
        How often the rows were located. More than 1 if other writers came first.
    num_deleted, num_updated, num_inserted : int
        Rows.
    files_removed, files_added : tuple of ChangedFile
    verification : Verification or None
    traces : Traces or None
        What still holds the rows of an erasure. Other files may hold its keys: see `check`.

    Examples
    --------
    >>> plan = ds.erase("id", [42], plan=True)
    >>> plan.num_deleted, plan.is_committed
    (1, False)
    """

    operation: str
    table: str
    location: str
    columns: tuple[str, ...]
    keys: KeyDigest
    is_committed: bool
    version_before: str
    version_after: str
    started_at: str
    finished_at: str
    tries: int
    num_deleted: int
    num_updated: int
    num_inserted: int
    files_removed: tuple[ChangedFile, ...]
    files_added: tuple[ChangedFile, ...] = ()
    verification: Verification | None = None
    traces: Traces | None = None

    def to_json(self) -> str:
        """Return the receipt as JSON; the documentation has its schema.

        >>> import json
        >>> json.loads(ds.erase("id", [42], plan=True).to_json())["num_deleted"]
        1
        """
        return json.dumps(
            {"format": RECEIPT_FORMAT, "zonebloom": __version__, **asdict(self)}, indent=2
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the receipt to a new file.

        Raises
        ------
        InvalidArgument
            If the file exists, or cannot be written.

        Examples
        --------
        >>> ds.erase("id", [42]).save("erasure.json")
        >>> zb.Receipt.load("erasure.json").num_deleted
        1
        """
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(self.to_json() + "\n")
        except OSError as error:
            raise InvalidArgument(
                f"cannot write the receipt to {path}: {error}; give the path of a new file"
            ) from None

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Receipt:
        """Read a receipt that `save` wrote.

        Raises
        ------
        InvalidArgument
            If the file is missing, damaged, or of a newer format.

        Examples
        --------
        >>> ds.erase("id", [42], plan=True).save("plan.json")
        >>> zb.Receipt.load("plan.json").is_committed
        False
        """
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
            if content.pop("format") != RECEIPT_FORMAT:
                raise ValueError("it has another format")
            content.pop("zonebloom")
            return from_json(Receipt, content)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument(
                f"{path} is no receipt that this version reads: {error}; give a file of "
                "Receipt.save"
            ) from None

    def check(
        self, dataset: _Checked, keys: Any = None, *, filter: Any = None, purge: bool = False
    ) -> Traces:
        """Look what still holds the erased keys: older versions, files, and filters.

        Parameters
        ----------
        dataset : Dataset
            The dataset of the table.
        keys : as for `Dataset.erase`, optional
            The erased keys once more. With them, all files are read and searched. Without them,
            only what the receipt names is looked for.
        filter : as for `Dataset.erase`, optional
            The same for an erasure by a filter: the filter once more, in the same words.
        purge : bool
            Whether to make the calls that remove what still holds the keys: the retention of the
            table is ended, and its indices are built anew. Older versions are then gone for good.

        Raises
        ------
        InvalidArgument
            If the keys or the filter are not those of the receipt, or the dataset is of another
            table.

        Examples
        --------
        >>> receipt = ds.erase("id", [42])
        >>> {trace.kind for trace in receipt.check(ds).found}
        {'index'}
        >>> print(receipt.check(ds, [42], purge=True))
        Nothing holds these keys.
        Only rows of data files were compared with id: in other files, so few bytes occur by chance.
        """
        if not hasattr(dataset, "_check_receipt"):
            raise invalid_value(dataset, "dataset", "give a zonebloom.Dataset")
        return dataset._check_receipt(self, keys, filter, purge=purge)  # noqa: SLF001 - users call this

    def _sections(self) -> list[str | TextTable]:
        what = {"erase": "Erasure", "upsert": "Upsert"}[self.operation]
        state = "" if self.is_committed else " (nothing was changed)"
        figures = table_text(["", ""], self._figures()).splitlines()[1:]
        lines = [f"{what} in {self.location}{state}", *figures, self._proof()]
        traces = [] if self.traces is None else trace_sections(self.traces)
        return ["\n  ".join(lines), *traces]

    def _figures(self) -> list[list[object]]:
        keys = f"{self.keys.count:,} of {', '.join(self.columns)}" if self.columns else "a filter"
        version = self.version_before
        if self.version_after != self.version_before:
            version = f"{version} -> {self.version_after}"
        start, end = map(datetime.fromisoformat, (self.started_at, self.finished_at))
        figures: list[list[object]] = [
            ["keys", keys],
            ["table", f"{self.table}{f', version {version}' if version else ''}"],
            ["time", f"{self.started_at}, {time_text((end - start).total_seconds())}"],
        ]
        for name, count in (
            ("rows deleted", self.num_deleted),
            ("rows updated", self.num_updated),
            ("rows inserted", self.num_inserted),
        ):
            if count:
                figures.append([name, f"{count:,}"])
        if self.is_committed:
            files_by_name = {"files removed": self.files_removed, "files added": self.files_added}
        else:
            # Nobody knows yet how many files are added.
            files_by_name = {"files to replace": self.files_removed}
        for name, files in files_by_name.items():
            rows, size = sum(f.num_rows for f in files), sum(f.num_bytes for f in files)
            figures.append([name, f"{len(files):,} ({rows:,} rows, {bytes_text(size)})"])
        return figures

    def _proof(self) -> str:
        check = self.verification
        if check is None:
            return "nothing was changed, so there is nothing to verify"
        if not check.is_proven:
            return f"NOT PROVEN: {check.problem}"
        values = ", with the values of the batch" if self.operation == "upsert" else ""
        return (
            f"proven: all {check.num_rows:,} rows of the new files were tested without an index; "
            f"rows with a key: {check.num_rows_with_keys:,}{values}"
        )


def utc_text(seconds: float) -> str:
    """Return a time as ISO 8601 writes it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
