"""Recognise files that were copied, moved or uploaded with their index.

A file is a copy of an indexed file if size, footer and indexed content agree. For a small local
file, the digest of all bytes proves that. For other files, the indexed columns are read, and every
value is looked up in the index.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from zonebloom.base.threads import REMOTE_THREADS, thread_pool
from zonebloom.building.other_datasets import OtherDatasets
from zonebloom.building.train import FooterCollector
from zonebloom.catalog.coverage import PresentFragment, compute_coverage
from zonebloom.catalog.freshness import digest_covers_file, wait_for_rest
from zonebloom.catalog.model import KnownFragment, PageMapEntry, Version
from zonebloom.catalog.store import wrapping_write_errors
from zonebloom.errors import (
    CommitConflict,
    CorruptIndex,
    FragmentUnreadable,
    SourceError,
    UnknownIndexKind,
)
from zonebloom.index.matching import LoadedIndex
from zonebloom.index.row_keys.rules import VALUES
from zonebloom.index.validate import RowValidation
from zonebloom.parquet.footer import footer_digest
from zonebloom.scan.opened import OpenedDataset
from zonebloom.sources.column_batches import Column
from zonebloom.sources.source import Source
from zonebloom.storage.files import ReadCounter
from zonebloom.storage.random_access import FragmentFile

# Catalog entries of files that are missing or changed, by size and digest of the footer.
MissingFiles: TypeAlias = dict[tuple[int, str], list[KnownFragment]]


@dataclass(frozen=True, slots=True)
class Adopted:
    """Result of `Dataset.adopt_index`.

    Attributes
    ----------
    num_files : int
        Number of files that the index covers again.
    left : tuple of str
        Paths of the files that it still does not cover. Scans read them whole until they are
        indexed.
    """

    num_files: int
    left: tuple[str, ...]


class _Candidate(NamedTuple):
    """A file that may be a copy of an indexed file, and the catalog entry it would get."""

    present: PresentFragment
    original: KnownFragment
    entry: KnownFragment

    @property
    def adopted(self) -> PresentFragment:
        entry = self.entry
        return PresentFragment(
            self.present.fragment, entry.identity, entry.fragment_id, entry.num_rows
        )


def adopt_files(opened: OpenedDataset) -> tuple[Version, Adopted]:
    """Find files that are copies of indexed files, and commit their new paths and times."""
    opened.require_unlocked()
    source, base = opened.source, opened.version
    present = compute_coverage(source.fragments, source.identities(), base).fragments
    unknown = [file for file in present if not file.is_known]
    other_datasets = OtherDatasets(source, opened.catalog)
    known_ids = {fragment.fragment_id for fragment in base.fragments.values()}
    in_place = {file.fragment_id for file in present if file.is_known}
    missing_files = _missing_files(base, in_place | other_datasets.unchanged_ids(base, known_ids))
    with thread_pool(REMOTE_THREADS) as pool:
        entries = list(pool.map(lambda file: _entry_of_file(source, file, missing_files), unknown))
    by_digest: list[_Candidate] = []
    by_rows: list[_Candidate] = []
    for file, entry in zip(unknown, entries, strict=True):
        original = None if entry is None else _take_original(entry, missing_files)
        if entry is None or original is None:
            continue
        entry = entry._replace(fragment_id=original.fragment_id, num_rows=original.num_rows)
        is_proven = original.digest and entry.digest and digest_covers_file(entry.identity)
        (by_digest if is_proven else by_rows).append(_Candidate(file, original, entry))
    by_rows = _validate_candidates(opened, by_rows)
    adopted = {file.original.key: file.entry for file in (*by_digest, *by_rows)}
    keys = {entry.key for entry in adopted.values()}
    uncovered_paths = tuple(file.fragment.path for file in unknown if file.fragment.key not in keys)
    if not adopted:
        return base, Adopted(0, uncovered_paths)
    prefix = opened.catalog.new_segment_prefix()
    try:
        with wrapping_write_errors(opened.catalog.folder):
            # Files with the same rows may have different pages, so write new page maps.
            footers = FooterCollector(source)
            for file in by_rows:
                footers.add(file.adopted)
            page_map = footers.write_page_map(opened.catalog, f"{prefix}-pages").page_map
            version = _commit_adopted(opened, adopted, page_map)
    finally:
        opened.catalog.delete_orphan_segments([prefix])
    return version, Adopted(len(adopted), uncovered_paths)


def _commit_adopted(
    opened: OpenedDataset, adopted: dict[str, KnownFragment], page_map: PageMapEntry | None
) -> Version:
    base = opened.version

    def change(latest: Version) -> Version:
        if any(latest.fragments.get(key) != base.fragments[key] for key in adopted):
            raise CommitConflict("another writer has indexed some of the files; try again")
        fragments = {key: file for key, file in latest.fragments.items() if key not in adopted}
        fragments |= {file.key: file for file in adopted.values()}
        changed = replace(latest, fragments=fragments)
        return changed.with_indices(latest.indices, [] if page_map is None else [page_map])

    return opened.catalog.commit(change)


def _validate_candidates(opened: OpenedDataset, files: Sequence[_Candidate]) -> list[_Candidate]:
    """Return the candidates whose values are all found in every index that covers them."""
    if not files:
        return []
    indices: list[tuple[LoadedIndex, Sequence[Column]]] = []
    unusable_ids: set[int] = set()
    ids = {file.entry.fragment_id for file in files}
    for entry in opened.version.indices.values():
        if ids.isdisjoint(entry.fragment_ids):
            continue
        try:
            columns = opened.indexed_columns(entry)
            index = LoadedIndex(opened.catalog, entry, strict=True)
            index.tables()
            if index.rule == VALUES:
                index.key_ranges(columns[0].type)
        except (CorruptIndex, SourceError, UnknownIndexKind):
            # Lookups may be able to read this index later and would trust it, so do not adopt its
            # files unchecked.
            unusable_ids |= entry.fragment_ids
            continue
        indices.append((index, columns))
    files = [file for file in files if file.entry.fragment_id not in unusable_ids]
    seen_at = wait_for_rest(file.entry.identity for file in files)
    workers = opened.source.store.num_threads
    groups = [files[number::workers] for number in range(workers)]
    with thread_pool(workers) as pool:
        proven_files = [
            file
            for group in pool.map(
                lambda group: _validate_rows(opened.source, indices, group), groups
            )
            for file in group
        ]
    identities = opened.source.identities([file.present.fragment for file in proven_files])
    return [
        file._replace(entry=file.entry._replace(seen_at=seen_at))
        for file, now in zip(proven_files, identities, strict=True)
        if file.entry.identity.is_still(now)
    ]


def _validate_rows(
    source: Source,
    indices: Sequence[tuple[LoadedIndex, Sequence[Column]]],
    files: Sequence[_Candidate],
) -> list[_Candidate]:
    """Return the files whose values are all in the indices. If some fail, check each half alone."""
    if not files:
        return []
    try:
        for index, columns in indices:
            covered = [
                file.adopted for file in files if file.entry.fragment_id in index.entry.fragment_ids
            ]
            RowValidation(index, {}, source, columns, covered).check(None)
    except (CorruptIndex, SourceError):
        half = len(files) // 2
        parts = (files[:half], files[half:]) if half else ()
        return [file for part in parts for file in _validate_rows(source, indices, part)]
    return list(files)


def _missing_files(base: Version, in_place: Set[int]) -> MissingFiles:
    missing_files: MissingFiles = {}
    for fragment in base.fragments.values():
        if fragment.fragment_id not in in_place and fragment.footer:
            missing_files.setdefault((fragment.identity.size, fragment.footer), []).append(fragment)
    return missing_files


def _entry_of_file(
    source: Source, file: PresentFragment, missing_files: MissingFiles
) -> KnownFragment | None:
    """Return a catalog entry for a file, without id and rows.

    Return None if no missing file has its size.
    """
    path, identity = file.fragment.path, file.identity
    if not source.is_parquet or all(size != identity.size for size, _ in missing_files):
        return None
    seen_at = time.time_ns()
    try:
        with FragmentFile(source.filesystem, path, identity, ReadCounter()) as opened:
            footer = footer_digest(opened.num_bytes, opened.read)
        digest = source.store.content_digest(path)
    except (FragmentUnreadable, OSError):
        # The next scan reports why the file cannot be read.
        return None
    return KnownFragment(-1, file.fragment.key, identity, 0, digest, seen_at, footer)


def _take_original(entry: KnownFragment, missing_files: MissingFiles) -> KnownFragment | None:
    """Remove and return the missing file that a file may be a copy of, or return None."""
    candidates = missing_files.get((entry.identity.size, entry.footer), [])
    # Digests may cover samples only, but different digests prove that files differ.
    originals = [
        fragment
        for fragment in candidates
        if not (fragment.digest and entry.digest) or fragment.digest == entry.digest
    ]
    if not originals:
        return None
    # Among several copies of one file, prefer the same path, then the same file name.
    original = min(
        originals,
        key=lambda fragment: (fragment.key != entry.key, _file_name(fragment) != _file_name(entry)),
    )
    candidates.remove(original)
    return original


def _file_name(fragment: KnownFragment) -> str:
    return posixpath.basename(fragment.key)
