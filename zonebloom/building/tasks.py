"""Split a build into tasks for workers, and describe the results of the tasks."""

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
from zonebloom.index.kinds import index_kind
from zonebloom.sources.source import Source

# Bytes of data for each task: enough to justify a segment, and few enough to share out evenly.
_TASK_BYTES = 64 << 20
_MAX_TASKS = 256


@dataclass(frozen=True, slots=True)
class TrainTask:
    """The picklable description of a task: train some indices on some fragments."""

    # Prefix of the names of its segments.
    segment: str
    catalog: Catalog
    # A copy without fragments, to keep the pickled task small.
    source: Source
    specs: tuple[IndexSpec, ...]
    fragments: tuple[PresentFragment, ...]

    def segment_name(self, spec: int) -> str:
        return f"{self.segment}-{spec}"


@dataclass(frozen=True, slots=True)
class TrainedTask:
    """The result of a task: its segments, and the catalog entries of its fragments."""

    # One segment for each index of the task.
    segments: tuple[Segment, ...]
    global_filter_parts: tuple[GlobalFilterPart | None, ...]
    # The entries of the files as they were read.
    fragments: tuple[KnownFragment, ...]
    page_map: PageMapEntry | None
    # Columns that the schema of the dataset lacks, each with the path of a file that has it.
    hidden_columns: dict[str, str]


def split_into_tasks(
    prefix: str,
    catalog: Catalog,
    source: Source,
    specs: Sequence[IndexSpec],
    fragments: Sequence[PresentFragment],
) -> list[TrainTask]:
    """Split fragments into tasks of about equal bytes. The result does not depend on the engine."""
    total = sum(fragment.identity.size for fragment in fragments)
    factor = max(index_kind(spec.kind).task_size_factor for spec in specs)
    limit = max(_TASK_BYTES * factor, total // _MAX_TASKS)
    groups: list[list[PresentFragment]] = [[]]
    size = 0
    for fragment in fragments:
        if size and size + fragment.identity.size > limit:
            groups.append([])
            size = 0
        groups[-1].append(fragment)
        size += fragment.identity.size
    if not source.is_in_memory:
        description = source.schema, source.file_format, source.filesystem, source.root, ()
        source = Source(*description, parquet_keys=source.parquet_keys)
    return [
        TrainTask(f"{prefix}-{number:04d}", catalog, source, tuple(specs), tuple(group))
        for number, group in enumerate(groups)
    ]
