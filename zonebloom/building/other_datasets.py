"""Files of other datasets in one catalog: a dataset of some files may share it with one of all."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from zonebloom.catalog.freshness import unchanged_ids
from zonebloom.catalog.model import KnownFragment, Version
from zonebloom.catalog.store import Catalog
from zonebloom.errors import IndexExists
from zonebloom.sources.source import Source


class OtherDatasets:
    """What the catalog of a dataset knows beside the files of that dataset."""

    def __init__(self, source: Source, catalog: Catalog):
        self._source = source
        self._catalog = catalog
        self._listed = {fragment.key for fragment in source.fragments}

    def fragments(self, version: Version) -> list[KnownFragment]:
        root = posixpath.join(self._source.root, "")
        return [
            known
            for known in self._unlisted(version)
            if not self._source.path_of(known.key).startswith(root)
        ]

    def unchanged_ids(self, version: Version, covered: set[int]) -> set[int]:
        """Ids of covered fragments that are none of this dataset's, and are as they were."""
        return self._unchanged(self._unlisted(version), covered)

    def refuse_names(self, names: Iterable[str], version: Version) -> None:
        taken = [version.indices[name] for name in names if name in version.indices]
        others = self.fragments(version) if taken else []
        for entry in taken:
            if self._unchanged(others, entry.fragment_ids):
                raise IndexExists(
                    f"the index {entry.name!r} in {self._catalog.folder} is of another dataset, "
                    "which shares the folder; give this one another name, or another index_dir"
                )

    def _unlisted(self, version: Version) -> list[KnownFragment]:
        return [known for known in version.fragments.values() if known.key not in self._listed]

    def _unchanged(self, fragments: Iterable[KnownFragment], covered: set[int]) -> set[int]:
        files = [
            (self._source.path_of(known.key), known)
            for known in fragments
            if known.fragment_id in covered
        ]
        return unchanged_ids(self._source.filesystem, files)
