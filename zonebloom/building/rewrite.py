"""Write all files of a source again, in the layout that is recommended for lookups.

Several files are written at a time, each on one thread. `complete_files` collects them, and moves
them to their places when all are complete.
"""

from __future__ import annotations

import os
import posixpath
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import asdict, dataclass

from zonebloom.base.display import Displayed, styled_html, table_html, title_html
from zonebloom.base.progress import ProgressOption, Report, report_progress
from zonebloom.base.text import bytes_text, count_text, table_text
from zonebloom.base.threads import REMOTE_THREADS, map_in_order, num_cores
from zonebloom.building.complete_files import CompleteFiles
from zonebloom.errors import (
    FragmentChanged,
    FragmentUnreadable,
    InvalidArgument,
    NoFragments,
    SourceError,
    UnsupportedType,
)
from zonebloom.parquet.rewritten_file import FileOptions, FileSummary, rewrite_file, summarize_file
from zonebloom.sources.source import Source
from zonebloom.storage.files import FileIdentity, local_path
from zonebloom.storage.paths import is_below

_MAX_SHOWN_FILES = 20
_HEADERS = ["file", "rows", "before", "after"]


@dataclass(frozen=True, slots=True)
class RewrittenFile:
    """A file that a rewrite wrote.

    Attributes
    ----------
    path : str
        The path below the folder of the dataset. It is the same in both folders.
    num_rows, bytes_before, bytes_after : int
    was_complete : bool
        Whether an earlier, interrupted rewrite wrote the file.
    """

    path: str
    num_rows: int
    bytes_before: int
    bytes_after: int
    was_complete: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Rewritten(Displayed):
    """The files that `zonebloom.rewrite` wrote.

    Attributes
    ----------
    destination : str
        The folder of the new files.
    files : tuple of RewrittenFile
    """

    destination: str
    files: tuple[RewrittenFile, ...]

    @property
    def num_rows(self) -> int:
        """The rows of all files."""
        return sum(file.num_rows for file in self.files)

    @property
    def bytes_before(self) -> int:
        """The bytes of all files before the rewrite."""
        return sum(file.bytes_before for file in self.files)

    @property
    def bytes_after(self) -> int:
        """The bytes of all new files."""
        return sum(file.bytes_after for file in self.files)

    def __repr__(self) -> str:
        return f"<Rewritten: {self._title()}>"

    def __str__(self) -> str:
        parts = [table_text(_HEADERS, self._cells()) if self.files else "", self._title()]
        return "\n".join(filter(None, parts))

    def _title(self) -> str:
        return (
            f"{count_text(len(self.files), 'file')}, {self.num_rows:,} rows: "
            f"{bytes_text(self.bytes_before)} before, {bytes_text(self.bytes_after)} after, in "
            f"{self.destination}"
        )

    def _cells(self) -> list[list[object]]:
        cells: list[list[object]] = [
            [file.path, file.num_rows, bytes_text(file.bytes_before), bytes_text(file.bytes_after)]
            for file in self.files[:_MAX_SHOWN_FILES]
        ]
        hidden_files = self.files[_MAX_SHOWN_FILES:]
        if hidden_files:
            rest = Rewritten(self.destination, hidden_files)
            before, after = bytes_text(rest.bytes_before), bytes_text(rest.bytes_after)
            cells.append([f"{len(hidden_files):,} more", rest.num_rows, before, after])
        return cells

    def _repr_html_(self) -> str:
        return styled_html(title_html(self._title()), table_html(_HEADERS, self._cells()))


def rewrite_source(
    source: Source,
    destination: str,
    options: FileOptions,
    *,
    is_folder: bool,
    resume: bool,
    progress: ProgressOption,
) -> Rewritten:
    """Write all files of a source below a local folder; see `zonebloom.rewrite`.

    ``is_folder`` says that the source has all files of a folder.
    """
    _require_plain_parquet(source)
    # Keys in a shared index folder are whole paths, at which the new files would replace the old.
    source = source.with_keys_below_root()
    _require_keys(source)
    _require_apart(source, destination, is_folder=is_folder)
    identities = _require_files(source)
    with ThreadPoolExecutor(REMOTE_THREADS) as pool:
        summaries = list(
            pool.map(lambda file: summarize_file(source.filesystem, file.path), source.fragments)
        )
    keys = {fragment.key for fragment in source.fragments}
    complete_files = CompleteFiles.open(destination, asdict(options), keys, resume=resume)
    rewrite = _DatasetRewrite(source, options, identities, summaries, complete_files)
    num_rows = sum(summary.num_rows for summary in summaries)
    is_finished = False
    try:
        with report_progress(progress, num_rows, "rewriting") as report_rows:
            files = rewrite.run(report_rows)
        complete_files.move_all(keys)
        is_finished = True
    finally:
        complete_files.close(is_finished=is_finished)
    return Rewritten(destination, tuple(files))


class _DatasetRewrite:
    """A rewrite of all files of a source, on threads."""

    def __init__(
        self,
        source: Source,
        options: FileOptions,
        identities: Sequence[FileIdentity],
        summaries: Sequence[FileSummary],
        complete_files: CompleteFiles,
    ):
        self._source = source
        self._options = options
        self._identities = identities
        self._summaries = summaries
        self._complete_files = complete_files
        self._is_stopped = threading.Event()
        self._report_rows: Report | None = None

    def run(self, report_rows: Report | None) -> list[RewrittenFile]:
        self._report_rows = report_rows
        numbers = range(len(self._source.fragments))
        with ThreadPoolExecutor(min(num_cores(), len(numbers))) as pool:
            try:
                return list(map_in_order(pool, self._rewrite_file, numbers, len(numbers) + 1))
            except BaseException:
                # Other files stop at their next row group, so that an interrupt does not wait.
                self._is_stopped.set()
                raise

    def _report(self, rows: int) -> None:
        if self._is_stopped.is_set():
            raise CancelledError
        if self._report_rows is not None:
            self._report_rows(rows)

    def _rewrite_file(self, number: int) -> RewrittenFile:
        fragment, identity = self._source.fragments[number], self._identities[number]
        summary = self._summaries[number]

        def require_unchanged() -> None:
            if not identity.is_still(self._source.identities([fragment])[0]):
                raise FragmentChanged(
                    f"{fragment.path} changed while it was rewritten; continue with resume=True "
                    "(--resume) when writers are done"
                )

        if self._complete_files.has(fragment.key, identity):
            self._report(summary.num_rows)
            num_bytes = self._complete_files.num_bytes(fragment.key)
            return RewrittenFile(fragment.key, *summary, num_bytes, was_complete=True)
        target = self._complete_files.path_of(fragment.key)
        self._report(0)
        os.makedirs(posixpath.dirname(target), exist_ok=True)
        try:
            rewrite_file(
                self._source.filesystem,
                fragment.path,
                target,
                self._options,
                report=self._report,
                require_unchanged=require_unchanged,
            )
        except (FragmentUnreadable, UnsupportedType):
            # A file that is replaced while it is read looks damaged.
            require_unchanged()
            raise
        num_bytes = self._complete_files.add(fragment.key, identity)
        return RewrittenFile(fragment.key, *summary, num_bytes)


def _require_plain_parquet(source: Source) -> None:
    if source.is_in_memory:
        raise InvalidArgument(
            "a table in memory has no files to rewrite; write it with pyarrow.parquet.write_table"
            "(..., write_page_index=True, max_rows_per_page=2048)"
        )
    if source.is_table_snapshot:
        raise SourceError(
            f"{source.root} is a Delta or Iceberg table, whose log names its files, so a copy of "
            "the files is no table; let the table's own writer write small pages: for Delta "
            "DeltaTable.optimize with WriterProperties(data_page_row_count_limit=2048), for "
            "Iceberg rewrite_data_files with the property write.parquet.page-row-limit=2048"
        )
    if not source.is_parquet or source.parquet_keys is not None:
        kind = "encrypted files" if source.parquet_keys is not None else "files of other formats"
        raise InvalidArgument(
            f"{source.root} holds {kind}, and only plain Parquet files can be rewritten; read them "
            "with to_batches(), and write the batches with pyarrow.parquet.ParquetWriter(..., "
            "write_page_index=True, max_rows_per_page=2048)"
        )


def _require_apart(source: Source, destination: str, *, is_folder: bool) -> None:
    """Raise `InvalidArgument` if the destination would change what the source consists of."""
    root = local_path(source.filesystem, source.root)
    if root is None:
        return
    # Folders in the source may be links to folders elsewhere.
    folders = {root, *(_folders_between(root, source) if is_folder else ())}
    target = os.path.realpath(destination)
    resolved_folders = set(map(os.path.realpath, folders))
    is_inside = is_folder and any(is_below(target, folder) for folder in resolved_folders)
    if target in resolved_folders or is_inside:
        raise InvalidArgument(
            f"{destination} is the folder of the files that are rewritten, or inside it; give "
            "another folder, and replace the old one when the rewrite is done"
        )


def _folders_between(root: str, source: Source) -> set[str]:
    """Return the folders between the root and the files, without the root."""
    folders: set[str] = set()
    for fragment in source.fragments:
        key = posixpath.dirname(fragment.key)
        while key and (folder := posixpath.join(root, key)) not in folders:
            folders.add(folder)
            key = posixpath.dirname(key)
    return folders


def _require_keys(source: Source) -> None:
    """Raise `InvalidArgument` if a file cannot have the same name in the new folder."""
    keys: set[str] = set()
    for fragment in source.fragments:
        if fragment.key in keys:
            raise InvalidArgument(f"{fragment.path} is in the dataset twice; name each file once")
        keys.add(fragment.key)
        parts = fragment.key.split("/")
        if ".." in parts or posixpath.isabs(fragment.key):
            raise InvalidArgument(
                f"{fragment.path} lies outside of {source.root}; rewrite it by itself"
            )
        if any(part.startswith((".", "_")) for part in parts):
            raise InvalidArgument(
                f"readers of the new folder would skip {fragment.key}, because a part of the name "
                "begins with . or _; rename the file, or leave it out"
            )


def _require_files(source: Source) -> list[FileIdentity]:
    """Return the identities of all files. Raise `NoFragments` if one does not exist."""
    identities: list[FileIdentity] = []
    for fragment, identity in zip(source.fragments, source.identities(), strict=True):
        if identity is None:
            raise NoFragments(f"{fragment.path} was deleted; open the dataset again")
        identities.append(identity)
    return identities
