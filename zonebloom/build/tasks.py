"""Building the segments of indices: the work cut into tasks, and what they wrote committed.

Every engine runs the same tasks (`zonebloom.build.train`): threads of this process
(`train_locally`), or Spark (`zonebloom.spark.build`). The caller commits what all of them
wrote, or deletes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.build.train import (
    Progress,
    TrainColumn,
    TrainedTask,
    TrainFragment,
    TrainTask,
    train_task,
)
from zonebloom.catalog.log import now
from zonebloom.catalog.model import (
    GlobalFilterEntry,
    IndexEntry,
    KnownFragment,
    Segment,
    Version,
    ZoneParameters,
)
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CommitConflict
from zonebloom.storage.columns import Column
from zonebloom.threads import cores, in_order
from zonebloom.values.types import hash_domain

if TYPE_CHECKING:
    import pyarrow.dataset as pads

# Data bytes a task: enough to be worth a segment, little enough to share out.
_TASK_BYTES = 64 << 20
_MAX_TASKS = 256


def cut_tasks(
    prefix: str,
    catalog: Catalog,
    format: pads.FileFormat,
    filesystem: pafs.FileSystem,
    schema: pa.Schema,
    columns: Sequence[TrainColumn],
    fragments: Sequence[TrainFragment],
    table: pa.Table | None = None,
) -> list[TrainTask]:
    """Share the fragments out over tasks of about equal bytes, the same for every engine."""
    total = sum(fragment.identity.size for fragment in fragments)
    limit = max(_TASK_BYTES, total // _MAX_TASKS)
    groups: list[list[TrainFragment]] = [[]]
    held = 0
    for fragment in fragments:
        if held and held + fragment.identity.size > limit:
            groups.append([])
            held = 0
        groups[-1].append(fragment)
        held += fragment.identity.size
    return [
        TrainTask(
            f"{prefix}-{number:04d}",
            catalog,
            format,
            filesystem,
            schema,
            tuple(columns),
            tuple(group),
            table,
        )
        for number, group in enumerate(groups)
    ]


def train_locally(
    tasks: Sequence[TrainTask], *, workers: int | None = None, progress: Progress | None = None
) -> list[TrainedTask]:
    """Run tasks on threads of this process.

    In the order of the tasks.
    """
    workers = workers or cores()
    threads = max(1, workers // len(tasks))
    with ThreadPoolExecutor(min(workers, len(tasks))) as pool:
        return list(
            in_order(
                pool,
                lambda task: train_task(task, threads=threads, progress=progress),
                tasks,
                len(tasks) + 1,
            )
        )


@dataclass(frozen=True, slots=True)
class NewIndex:
    """An index as it is to be committed.

    Attributes
    ----------
    name : str
    column : Column
    parameters : ZoneParameters
    segments : tuple of Segment
        All of them.
    global_filter : GlobalFilterEntry or None
    expected : IndexEntry or None
        What it must still be: it was made from that. None for one made anew.
    """

    name: str
    column: Column
    parameters: ZoneParameters
    segments: tuple[Segment, ...]
    global_filter: GlobalFilterEntry | None = None
    expected: IndexEntry | None = None

    def entry(self) -> IndexEntry:
        """Its place in the catalog."""
        return IndexEntry(
            self.name,
            self.column.path,
            hash_domain(self.column.type),
            self.parameters,
            self.segments,
            now(),
            self.global_filter,
        )


def commit_indices(
    catalog: Catalog,
    base: Version,
    indices: Sequence[NewIndex],
    fragments: Sequence[tuple[str, TrainFragment]],
    trained: Sequence[TrainedTask],
    *,
    replace_existing: bool,
    seen_again: Sequence[KnownFragment] = (),
    check: Callable[[Version], None] | None = None,
) -> Version:
    """Commit what the tasks wrote as indices, all of them in one version."""
    of_id = {i: task for task in trained for i in task.num_rows}
    built = {key: _known(key, fragment, of_id[fragment.fragment_id]) for key, fragment in fragments}
    made = {each.name: each.entry() for each in indices}
    kept_places = {each.name for each in indices if each.expected is not None}

    def change(latest: Version) -> Version:
        _require_same_ids(latest, base, built, catalog)
        if check is not None:
            check(latest)
        for each in indices:
            if (
                each.name in latest.indices
                and not replace_existing
                and (each.name not in base.indices)
            ):
                raise CommitConflict(
                    f"another writer made an index {each.name!r} meanwhile; give another name"
                )
            if each.expected is not None and latest.indices.get(each.name) != each.expected:
                raise CommitConflict(
                    f"another writer changed index {each.name!r} meanwhile; try again"
                )
        next_id = max([latest.next_fragment_id, *(f.fragment_id + 1 for f in built.values())])
        return replace(
            latest,
            next_fragment_id=next_id,
            fragments={
                **latest.fragments,
                **{
                    each.key: each
                    for each in seen_again
                    if latest.fragments.get(each.key) == base.fragments[each.key]
                },
                **built,
            },
            # Last, also when it replaces one: of several on a column the last made is used. One
            # brought up to date keeps its place.
            indices={
                **{k: v for k, v in latest.indices.items() if k not in made or k in kept_places},
                **made,
            },
        )

    return catalog.commit(change)


def _known(key: str, fragment: TrainFragment, task: TrainedTask) -> KnownFragment:
    number = fragment.fragment_id
    digest = task.digests.get(number, "")
    rows = task.num_rows[number]
    return KnownFragment(number, key, fragment.identity, rows, digest, task.seen_at)


def _require_same_ids(
    latest: Version, base: Version, built: dict[str, KnownFragment], catalog: Catalog
) -> None:
    """Refuse when an id in the new segments means another file by now."""
    for key, known in built.items():
        theirs = latest.fragments.get(key)
        if theirs is not None and theirs.fragment_id == known.fragment_id:
            # A copy has other times and another inode than the catalog says: that it is the same
            # was settled against `base`, and holds where nobody indexed it since.
            unchanged = theirs == base.fragments.get(key)
            agreed = unchanged or theirs.identity.is_still(known.identity)
        else:
            # The id is ours to give if it was free when we took it and nobody gave any since.
            agreed = (
                known.fragment_id >= base.next_fragment_id
                and latest.next_fragment_id == base.next_fragment_id
            )
        if not agreed:
            raise CommitConflict(
                f"{catalog.folder}: another writer indexed {key} meanwhile; build again"
            )
