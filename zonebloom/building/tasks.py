"""The tasks that the work of a build is cut into, and what comes back of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zonebloom.building.request import IndexSpec
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.catalog.model import (
    KnownFragment,
    PageMapEntry,
    Segment,
)
from zonebloom.catalog.store import Catalog
from zonebloom.index.global_filter import GlobalFilterPart
from zonebloom.sources.memory import TableSource
from zonebloom.sources.source import Source

# Data bytes a task: enough to be worth a segment, little enough to share out.
_TASK_BYTES = 64 << 20
_MAX_TASKS = 256


@dataclass(frozen=True, slots=True)
class TrainTask:
    """All a worker needs to train indices on some fragments; it pickles."""

    # Begins the names of its segments.
    segment: str
    catalog: Catalog
    # Without its fragments.
    source: Source
    specs: tuple[IndexSpec, ...]
    fragments: tuple[PresentFragment, ...]

    def segment_name(self, spec: int) -> str:
        return f"{self.segment}-{spec}"


@dataclass(frozen=True, slots=True)
class TrainedTask:
    segments: tuple[Segment, ...]
    global_filter_parts: tuple[GlobalFilterPart | None, ...]
    # As they were while they were read.
    fragments: tuple[KnownFragment, ...]
    page_map: PageMapEntry | None
    # Columns of its files that the dataset's schema does not have, with a file that does.
    hidden_columns: dict[str, str]


def split_into_tasks(
    prefix: str,
    catalog: Catalog,
    source: Source,
    specs: Sequence[IndexSpec],
    fragments: Sequence[PresentFragment],
) -> list[TrainTask]:
    """Share fragments out over tasks of about equal bytes, the same for every engine."""
    total = sum(fragment.identity.size for fragment in fragments)
    limit = max(_TASK_BYTES, total // _MAX_TASKS)
    groups: list[list[PresentFragment]] = [[]]
    size = 0
    for fragment in fragments:
        if size and size + fragment.identity.size > limit:
            groups.append([])
            size = 0
        groups[-1].append(fragment)
        size += fragment.identity.size
    if not isinstance(source, TableSource):
        given = source.schema, source.file_format, source.filesystem, source.root, ()
        source = Source(*given, parquet_keys=source.parquet_keys)
    return [
        TrainTask(f"{prefix}-{number:04d}", catalog, source, tuple(specs), tuple(group))
        for number, group in enumerate(groups)
    ]
