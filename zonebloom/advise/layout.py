"""Judge the layout of a dataset's Parquet files, from the footers of a sample of files.

Where no index and no offset index has the places of pages, the first page of a column chunk tells
how many rows its pages have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from zonebloom.catalog.coverage import PresentFragment
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.field_names import pages_with_names
from zonebloom.parquet.file_layout import ColumnChunk, FilePages, RowGroup
from zonebloom.parquet.footer import parse_offset_index, read_footer
from zonebloom.parquet.layout_advice import (
    TABLE_REMEDY,
    LayoutAdvice,
    LayoutSums,
    PageCut,
    codec_problem,
    group_problems,
    join_cuts,
    join_layouts,
    page_cut,
    whole_chunk_cut,
)
from zonebloom.parquet.leaf_type import CODECS
from zonebloom.parquet.page_headers import parse_page_header
from zonebloom.parquet.thrift import MalformedThrift
from zonebloom.snapshot import Snapshot
from zonebloom.sources.column_batches import Column
from zonebloom.storage.files import FILE_ERRORS, ReadCounter
from zonebloom.storage.random_access import FragmentFile

_MAX_FILES = 8
# The sample has about this many row groups, but at least two of each file.
_NUM_GROUPS = 8
_MIN_GROUPS_PER_FILE = 2
# At most this many columns of a row are looked at.
_MAX_COLUMNS = 32
# The sizes of successive attempts to read a page header. Statistics of long strings need the last.
_HEADER_BYTES = (512, 64 << 10)
# The other codecs of parquet.thrift, which no kernel and no `pyarrow.Codec` decompresses.
_OTHER_CODECS = {3: "LZO", 4: "Brotli", 5: "LZ4 with Hadoop's frames"}

Item = TypeVar("Item")


class KeyColumn(NamedTuple):
    """A column that is worth an index, and whether most of its values are distinct."""

    column: Column
    hardly_repeats: bool


def advise_layout(
    snapshot: Snapshot, keys: Sequence[KeyColumn], zone_rows: int, counter: ReadCounter
) -> LayoutAdvice | None:
    """Return the judgement on the layout, or None if no sampled file is a readable Parquet file."""
    if not (keys and snapshot.source.is_parquet) or snapshot.source.is_in_memory:
        return None
    present = [file for file in snapshot.fragments if file.identity.size]
    sample = _LayoutSample(snapshot, keys, zone_rows)
    files = _spread(present, _MAX_FILES)
    max_groups = max(_MIN_GROUPS_PER_FILE, _NUM_GROUPS // max(len(files), 1))
    for file in files:
        try:
            sample.add(file, counter, max_groups)
        except (FragmentUnreadable, *FILE_ERRORS):
            # Encrypted and damaged files are not judged. Reading them raises an error.
            continue
    if not sample.num_files:
        return None
    advice = sample.advice(len(present))
    if snapshot.source.is_table_snapshot:
        advice = replace(advice, remedy=TABLE_REMEDY)
    return advice


def _spread(items: Sequence[Item], count: int) -> list[Item]:
    """Return at most ``count`` of the items, at equal distances from each other and the ends."""
    count = min(count, len(items))
    positions = (np.arange(count) + 0.5) * len(items) / max(count, 1)
    return [items[position] for position in positions.astype(int).tolist()]


class _LayoutSample:
    """Sums over the sampled row groups of some files."""

    def __init__(self, snapshot: Snapshot, keys: Sequence[KeyColumn], zone_rows: int):
        self._snapshot = snapshot
        self._keys = keys
        self._zone_rows = zone_rows
        paths = snapshot.source.partition_columns()
        self._names = [name for name in snapshot.source.schema.names if name not in paths]
        self._key_sums = [LayoutSums() for _ in keys]
        self._row_sums = {name: LayoutSums() for name in _spread(self._names, _MAX_COLUMNS)}
        self._codecs: set[int] = set()
        self.num_files = self._num_groups = self._num_rows = self._num_bytes = 0

    def add(self, present: PresentFragment, counter: ReadCounter, max_groups: int) -> None:
        pages = self._snapshot.pages(present)
        fragment = present.fragment
        source = self._snapshot.source
        with FragmentFile(source.filesystem, fragment.path, present.identity, counter) as file:
            is_mapped = pages is not None
            if pages is None:
                pages = pages_with_names(read_footer(file.num_bytes, file.read), fragment.names)
            # The last row group of a file is often short, so it does not tell much.
            least = max(pages.group_rows, default=0) / 2
            groups = [number for number, rows in enumerate(pages.group_rows) if rows > least]
            for number in _spread(groups, max_groups):
                self._add_group(pages, number, None if is_mapped else file)
        self.num_files += 1
        self._num_groups += len(pages.row_groups)
        self._num_rows += pages.num_rows
        self._num_bytes += present.identity.size

    def _add_group(self, pages: FilePages, number: int, file: FragmentFile | None) -> None:
        """Add a row group. Without a file, the places of its pages are known."""
        schema, group = pages.schema, pages.row_groups[number]
        leaves_of_keys = [schema.leaves_by_path.get(key.column.path) for key in self._keys]
        leaves_of_row = {
            name: schema.field_leaves[schema.fields_by_name[name]]
            for name in self._row_sums
            if name in schema.fields_by_name
        }
        wanted = {leaf for leaves in leaves_of_row.values() for leaf in leaves}
        wanted |= {leaf for leaf in leaves_of_keys if leaf is not None}
        if file is None:
            cuts = {leaf: page_cut(pages, number, [leaf]) for leaf in wanted}
        else:
            cuts = _estimate_cuts(file, group, sorted(wanted))
        self._codecs |= {group.chunks[leaf].codec for leaf in wanted}
        read_zones = partial(
            PageCut.read_zones,
            first_row=group.first_row,
            zone_rows=self._zone_rows,
            file_rows=pages.num_rows,
        )
        for sums, leaf in zip(self._key_sums, leaves_of_keys, strict=True):
            if leaf is not None:
                sums.add(cuts[leaf], read_zones)
        for name, leaves in leaves_of_row.items():
            if leaves:
                cut = join_cuts([cuts[leaf] for leaf in leaves])
                self._row_sums[name].add(cut, PageCut.read_one_row)

    def advice(self, num_files: int) -> LayoutAdvice:
        keys = [
            sums.layout(
                key.column.name, is_key=True, is_mean=True, hardly_repeats=key.hardly_repeats
            )
            for key, sums in zip(self._keys, self._key_sums, strict=True)
            if sums.num_groups
        ]
        values = [
            sums.layout(name, is_key=False, is_mean=True)
            for name, sums in self._row_sums.items()
            if sums.num_groups
        ]
        layouts = keys
        problems = [text for key in keys for text in (key.problem, key.dictionary_problem)]
        if values:
            causes = [sums.cause for sums in self._row_sums.values() if sums.num_groups]
            factor = len(self._names) / len(self._row_sums)
            row = join_layouts(values, causes, factor=factor)
            layouts = [*keys, row]
            names_of_keys = {key.columns for key in keys}
            problems.append(row.problem)
            problems += [
                value.dictionary_problem for value in values if value.columns not in names_of_keys
            ]
        problems += group_problems(
            self._num_rows, self._num_bytes, self._num_groups, self.num_files
        )
        problems += codec_problem(
            _OTHER_CODECS.get(codec, f"codec {codec}") for codec in self._codecs - CODECS.keys()
        )
        return LayoutAdvice(
            num_files,
            self.num_files,
            round(self._num_rows / max(self._num_groups, 1)),
            tuple(layouts),
            tuple(filter(None, problems)),
        )


def _estimate_cuts(
    file: FragmentFile, group: RowGroup, leaves: Sequence[int]
) -> dict[int, PageCut]:
    """Return how leaves of a row group are cut, by offset indices or by their first page."""
    chunks = {leaf: group.chunks[leaf] for leaf in leaves}
    indexed = [leaf for leaf, chunk in chunks.items() if chunk.index_bytes]
    spans = [
        (chunks[leaf].index_start, chunks[leaf].index_start + chunks[leaf].index_bytes)
        for leaf in indexed
    ]
    cuts: dict[int, PageCut] = {}
    for leaf, data in zip(indexed, file.read(spans) if spans else (), strict=True):
        locations = parse_offset_index(data, chunks[leaf], group.num_rows)
        dictionary_bytes = int(locations.starts[0]) - chunks[leaf].start
        cuts[leaf] = PageCut(
            locations.first_rows, locations.sizes, dictionary_bytes=dictionary_bytes
        )
    unlocated_leaves = [leaf for leaf in leaves if leaf not in cuts]
    starts = {leaf: chunks[leaf].data_start for leaf in unlocated_leaves}
    for size in _HEADER_BYTES:
        spans = [
            (starts[leaf], min(starts[leaf] + size, chunks[leaf].stop)) for leaf in unlocated_leaves
        ]
        for leaf, data in zip(unlocated_leaves, file.read(spans) if spans else (), strict=True):
            cut = _cut_by_first_page(data, chunks[leaf], group.num_rows)
            if cut is not None:
                cuts[leaf] = cut
        unlocated_leaves = [leaf for leaf in unlocated_leaves if leaf not in cuts]
    return cuts | {
        leaf: whole_chunk_cut(group.num_rows, chunks[leaf].stop - chunks[leaf].start)
        for leaf in unlocated_leaves
    }


def _cut_by_first_page(data: bytes, chunk: ColumnChunk, num_rows: int) -> PageCut | None:
    """Return how a chunk is cut if all its pages have as many rows as the first one.

    Return None if the header of the page is longer than the data, or if the page says nothing
    about rows. Some writers let ``data_start`` point to the dictionary, which says nothing either.
    """
    try:
        header = parse_page_header(data)
    except MalformedThrift:
        return None
    page_rows = header.num_values if chunk.num_values == num_rows else header.num_rows
    if not header.is_data or not page_rows:
        return None
    # A header with too few rows would make more pages than the chunk has bytes.
    if num_rows // page_rows > chunk.stop - chunk.data_start:
        return None
    first_rows = np.append(np.arange(0, num_rows, page_rows), num_rows)
    sizes = (chunk.stop - chunk.data_start) * np.diff(first_rows) / num_rows
    return PageCut(first_rows, sizes, dictionary_bytes=chunk.data_start - chunk.start)
