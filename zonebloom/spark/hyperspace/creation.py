"""What a creation builds, known again by the names of its segments.

Indices in a catalog are named by people, and by managers with other system folders. The segments
of a creation have a prefix that its record holds before the first is written: what is taken back
of one that failed or died is what has them, and nothing else of the same name.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

import pyarrow.fs as pafs

from zonebloom.build.builder import Builder
from zonebloom.build.compact import drop_for_good
from zonebloom.catalog.store import Catalog
from zonebloom.dataset import Dataset
from zonebloom.spark.hyperspace.log import Record
from zonebloom.spark.hyperspace.source import catalog_of


class _UnderPrefix(Catalog):
    """A catalog whose next build has a prefix known beforehand."""

    def __init__(self, filesystem: pafs.FileSystem, folder: str, prefix: str):
        super().__init__(filesystem, folder)
        self._prefix = prefix

    def new_segment_prefix(self) -> str:
        return self._prefix


def new_build() -> str:
    """A prefix no other build uses."""
    return uuid.uuid4().hex[:16]


def builder_under(ds: Dataset, build: str) -> Builder:
    """A builder of a dataset, for one build, whose segments have a prefix."""
    catalog = _UnderPrefix(ds.opened.catalog.filesystem, ds.opened.catalog.folder, build)
    return Builder(replace(ds.opened, catalog=catalog))


def take_back(record: Record) -> None:
    """Remove what a creation left: its indices, if they came to be, and its segments."""
    # Of a record that does not say there is nothing known to be its.
    if record.path and record.build:
        drop_for_good(catalog_of(record), record.indices.values(), build=record.build)
