"""Plan scans: turn the result of a search into what to read of each file.

Plans are functions of a snapshot and of a request. They open no data file, except for the Bloom
filters embedded in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from zonebloom.base.row_ranges import OFFSET_BITS, RowRanges, SearchResult, by_fragment
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.catalog.model import DEFAULT_NUMBER_OF_ITEMS
from zonebloom.errors import InvalidArgument
from zonebloom.index.matching import IndexView
from zonebloom.index.row_keys.rules import indexed_text
from zonebloom.parquet.file_layout import FilePages
from zonebloom.parquet.key_tests import is_key_search
from zonebloom.predicates import Predicate, RowFilter
from zonebloom.predicates.ast import shown_text
from zonebloom.sbbf.kernel_loader import KERNELS
from zonebloom.scan.explain import IndexUse, ScanPlan
from zonebloom.scan.plan import FileZones, FragmentPlan
from zonebloom.scan.search import Search
from zonebloom.snapshot import Snapshot
from zonebloom.sources.source import Fragment
from zonebloom.storage.files import FileIdentity, ReadCounter

# If more than this share of a fragment's rows may match, reading it whole is faster than by pages.
_MAX_SHARE_TO_READ_BY_PAGES = 0.6
# All pages of an object of up to this size are read in one round trip.
_MAX_REMOTE_BYTES_BY_PAGES = 1 << 20
# PyArrow scans this many rows of a few columns in the time of one test of a Bloom filter.
_ROWS_PER_CHECK = 64


def plan_whole_files(
    snapshot: Snapshot,
    columns: tuple[str, ...],
    row_filter: RowFilter | None,
    *,
    is_described: bool = True,
) -> ScanPlan:
    """Return a plan that reads all rows of all files, without an index."""
    present = snapshot.fragments
    snapshot.load_deletes(present)
    plans = tuple(_plan_whole(snapshot, file, "no index used") for file in present)
    num_bytes = _all_bytes(present) if is_described else 0
    return ScanPlan(
        row_filter,
        None,
        columns,
        plans,
        len(plans),
        all_bytes=num_bytes,
        source=snapshot.source,
    )


def plan_search(
    snapshot: Snapshot,
    search: Search,
    columns: tuple[str, ...],
    row_filter: RowFilter,
    bytes_before: dict[str, int],
    map_bytes_before: int,
    *,
    is_described: bool = True,
) -> ScanPlan:
    """Return a plan that reads the rows that a search has found.

    ``bytes_before`` are the bytes of each index that were loaded before the search, and
    ``map_bytes_before`` those of the page maps.
    """
    counter = ReadCounter()
    plans = plan_fragments(snapshot, search, counter)
    plan = ScanPlan(
        filter=row_filter,
        predicate=search.predicate,
        columns=columns,
        fragments=tuple(plans),
        num_fragments=len(snapshot.fragments),
        data_bytes=counter.num_bytes,
        data_reads=counter.num_requests,
        narrow_lists=search.narrow_lists,
        source=snapshot.source,
    )
    if not is_described:
        return plan
    present = snapshot.fragments
    read_bytes = {
        name: view.index.loaded_bytes - bytes_before[name]
        for name, view in search.used_views.items()
    }
    return replace(
        plan,
        unanswered=tuple(
            (shown_text(part, snapshot.source.schema), reason) for part, reason in search.unanswered
        ),
        index_bytes=sum(read_bytes.values())
        + snapshot.page_maps.counter.num_bytes
        - map_bytes_before,
        indices=tuple(
            _index_use(view, search, read_bytes[name], snapshot.source.schema)
            for name, view in search.used_views.items()
        ),
        partition_pruning=tuple(
            (text, len(by_fragment(kept_rows))) for text, kept_rows in search.partition_pruning
        ),
        files=tuple(_file_zones(present, search)),
        all_bytes=_all_bytes(present),
    )


def plan_fragments(
    snapshot: Snapshot, search: Search, counter: ReadCounter | None = None
) -> list[FragmentPlan]:
    """Return a plan for each fragment that has a candidate row."""
    rows = by_fragment(search.result.at_most)
    if not rows:
        return []
    find_row_groups = None
    if snapshot.embedded_filters is not None:
        find_row_groups = snapshot.embedded_filters.row_group_finder(
            search.predicate, ReadCounter() if counter is None else counter
        )
    candidates = [present for present in snapshot.fragments if present.fragment_id in rows]
    snapshot.load_deletes(candidates)
    plans: list[FragmentPlan] = []
    for present in candidates:
        found = rows[present.fragment_id]
        plan = _fragment_plan(snapshot, present, found, search, find_row_groups)
        if plan.row_groups != () and (plan.rows is None or plan.rows):
            plans.append(plan)
    return plans


def search_result(snapshot: Snapshot, search: Search) -> SearchResult:
    """Return the rows that a search has found, without rows that do not exist."""
    deleted_rows = snapshot.deleted_rows()
    result = search.result
    rows, bounds = result.universe, (result.at_most, result.at_least)
    if deleted_rows or any(present.num_rows is None for present in snapshot.fragments):
        rows = snapshot.coverage.all_rows(snapshot.count_rows) - deleted_rows
        bounds = (rows & bounds[0], rows & bounds[1])
    return SearchResult(
        rows,
        at_most=bounds[0],
        at_least=bounds[1],
        paths={present.fragment_id: present.fragment.key for present in snapshot.fragments},
        null_free=result.null_free,
        covered=tuple(view.fragment_ids for view in search.used_views.values()),
    )


def plan_addresses(
    snapshot: Snapshot, addresses: np.ndarray, *, include_deleted: bool = False
) -> tuple[ScanPlan, np.ndarray]:
    """Return a plan that reads rows by address, and the addresses in the order of reading.

    Each row is read once, in scan order.
    """
    requested_rows = by_fragment(RowRanges.from_arrays(addresses, addresses + 1))
    plans: list[FragmentPlan] = []
    order = [np.empty(0, dtype=np.int64)]
    for present in snapshot.fragments:
        rows = requested_rows.pop(present.fragment_id, None)
        if rows is None:
            continue
        if rows.stops[-1] > snapshot.count_rows(present):
            raise InvalidArgument(
                f"row {rows.stops[-1] - 1:,} of fragment {present.fragment_id} was requested, "
                f"but {present.fragment.key} has {snapshot.count_rows(present):,}"
            )
        deleted_rows = RowRanges() if include_deleted else rows & present.fragment.deleted_rows
        if deleted_rows:
            raise InvalidArgument(
                f"row {deleted_rows.starts[0]:,} of fragment {present.fragment_id} was "
                "requested, but the table has deleted it; search again"
            )
        plans.append(
            FragmentPlan(present.fragment, rows, "", present.identity, snapshot.pages(present))
        )
        first_address = present.fragment_id << OFFSET_BITS
        order.append(first_address + rows.rows_at(np.arange(len(rows))))
    if requested_rows:
        raise InvalidArgument(
            f"there is no fragment {next(iter(requested_rows))}: its file was deleted or "
            "rewritten; search again"
        )
    plan = ScanPlan(None, None, (), tuple(plans), len(snapshot.fragments))
    return plan, np.concatenate(order)


def _fragment_plan(
    snapshot: Snapshot,
    present: PresentFragment,
    rows: RowRanges,
    search: Search,
    find_row_groups: Callable[[Fragment, FileIdentity], list[int] | None] | None,
) -> FragmentPlan:
    """Choose how to read a fragment with a candidate row: by pages, by row groups, or whole."""
    is_covered = False
    for view in search.used_views.values():
        is_covered |= present.fragment_id in view.fragment_ids
    reason = present.reason or _reason_to_read_whole(present, rows, search, is_covered)
    if present.fragment.view is not None:
        return _plan_part_of_view(snapshot, present, rows, reason)
    fragment, identity, fragment_id = present.fragment, present.identity, present.fragment_id
    if not is_covered and find_row_groups is not None:
        row_groups = find_row_groups(fragment, identity)
        if row_groups is not None:
            return replace(_plan_whole(snapshot, present, reason), row_groups=tuple(row_groups))
    source, num_rows = snapshot.source, present.num_rows
    if reason and not (is_covered and num_rows is not None and source.is_parquet):
        return _plan_whole(snapshot, present, reason)
    pages = None
    has_round_trips = source.store.has_round_trips
    if not reason or not has_round_trips or identity.size <= _MAX_REMOTE_BYTES_BY_PAGES:
        pages = snapshot.pages(present)
    if not reason:
        is_read_by_pages = True
    elif has_round_trips:
        # All pages of a small object take one request. PyArrow's scan takes one for its size, one
        # for its footer, and one for its data.
        is_read_by_pages = pages is not None
    else:
        is_read_by_pages = _is_faster_by_pages(snapshot, num_rows or 0, pages, search.predicate)
    if not is_read_by_pages:
        return _plan_whole(snapshot, present, reason)
    return FragmentPlan(fragment, rows, reason, identity, pages, fragment_id=fragment_id)


def _plan_whole(snapshot: Snapshot, present: PresentFragment, reason: str) -> FragmentPlan:
    """Return a plan for all rows of a fragment that the table has not deleted."""
    if present.fragment.view is not None:
        rows = RowRanges([(0, snapshot.count_rows(present))])
        return _plan_part_of_view(snapshot, present, rows, reason)
    identity, fragment_id = present.identity, present.fragment_id
    return FragmentPlan(present.fragment, None, reason, identity, fragment_id=fragment_id)


def _plan_part_of_view(
    snapshot: Snapshot, present: PresentFragment, rows: RowRanges, reason: str
) -> FragmentPlan:
    """Return a plan for rows of a fragment with a view, without the deleted ones."""
    num_rows = snapshot.count_rows(present)
    kept_rows = rows.window(0, num_rows) - present.fragment.deleted_rows
    return FragmentPlan(
        present.fragment,
        kept_rows,
        reason,
        present.identity,
        snapshot.pages(present),
        num_deleted=min(len(rows), num_rows) - len(kept_rows),
        fragment_id=present.fragment_id,
    )


def _is_faster_by_pages(
    snapshot: Snapshot, num_rows: int, pages: FilePages | None, predicate: Predicate
) -> bool:
    """Return whether reading a local Parquet file by pages is faster than PyArrow's scan.

    It is faster if matches are found in the encoded values without decoding the others. It is
    also faster for a file of at most one zone, because a scan takes long to start.
    """
    if num_rows <= DEFAULT_NUMBER_OF_ITEMS:
        return True
    if pages is None or not is_key_search(predicate, pages.schema, snapshot.source.schema):
        return False
    # PyArrow's scan is faster until the kernels are loaded.
    return KERNELS.are_loaded or KERNELS.are_worth(pages.num_rows // _ROWS_PER_CHECK)


def _index_use(view: IndexView, search: Search, read_bytes: int, schema: pa.Schema) -> IndexUse:
    entry = view.index.entry
    return IndexUse(
        entry.name,
        indexed_text(entry),
        view.num_zones,
        view.count_kept_zones(search.result.at_most),
        entry.num_bytes,
        read_bytes,
        len(view.fragment_ids),
        tuple(
            (shown_text(leaf, schema), view.count_kept_zones(rows))
            for name, leaf, rows in search.uses
            if name == entry.name
        ),
    )


def _file_zones(present: Sequence[PresentFragment], search: Search) -> Iterator[FileZones]:
    """Yield the zones of each file that may match, in the smallest zones of the indices used."""
    rows, views = by_fragment(search.result.at_most), search.used_views.values()
    for fragment in present:
        candidate_rows = rows.get(fragment.fragment_id, RowRanges())
        zone_sizes = [
            view.index.entry.number_of_items
            for view in views
            if fragment.fragment_id in view.fragment_ids
        ]
        yield FileZones(
            fragment.fragment.key,
            fragment.num_rows or 0,
            min(zone_sizes, default=0),
            candidate_rows,
        )


def _all_bytes(present: Sequence[PresentFragment]) -> int:
    return sum(fragment.identity.size for fragment in present)


def _reason_to_read_whole(
    fragment: PresentFragment, rows: RowRanges, search: Search, is_covered: bool
) -> str:
    """Return the reason to read a fragment whole, or an empty text if there is none."""
    if not is_covered:
        names = ", ".join(search.used_views)
        return f"not covered by {names}" if names else "no index used"
    num_found = len(rows)
    if num_found == fragment.num_rows:
        return "every zone may match"
    if num_found > _MAX_SHARE_TO_READ_BY_PAGES * (fragment.num_rows or 0):
        return "most zones may match"
    return ""
