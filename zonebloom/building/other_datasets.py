"""Find the files of other datasets in a catalog, and protect the indices of those datasets.

Several datasets may share one catalog, such as one of all files and one of some of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from zonebloom.catalog.freshness import are_unchanged
from zonebloom.catalog.model import KnownFragment, Version
from zonebloom.catalog.store import Catalog
from zonebloom.errors import IndexExists
from zonebloom.sources.source import Source
from zonebloom.storage.paths import is_below


class OtherDatasets:
    """The catalog entries that do not belong to the files of a dataset."""

    def __init__(self, source: Source, catalog: Catalog):
        self._source = source
        self._catalog = catalog
        self._own_keys = {fragment.key for fragment in source.fragments}

    def fragments(self, version: Version) -> list[KnownFragment]:
        """Return the entries of files outside the root of this dataset."""
        return [
            fragment
            for fragment in self._unlisted(version)
            if not is_below(self._source.path_of(fragment.key), self._source.root)
        ]

    def unchanged_ids(self, version: Version, covered: set[int]) -> set[int]:
        """Return the ids of covered, unchanged fragments that do not belong to this dataset."""
        return self._unchanged(self._unlisted(version), covered)

    def refuse_names(self, names: Iterable[str], version: Version) -> None:
        existing_entries = [version.indices[name] for name in names if name in version.indices]
        other_fragments = self.fragments(version) if existing_entries else []
        for entry in existing_entries:
            if self._unchanged(other_fragments, entry.fragment_ids):
                raise IndexExists(
                    f"the index {entry.name!r} in {self._catalog.folder} belongs to another "
                    "dataset that shares the folder; give this one another name, or another "
                    "index_dir"
                )

    def _unlisted(self, version: Version) -> list[KnownFragment]:
        return [
            fragment
            for fragment in version.fragments.values()
            if fragment.key not in self._own_keys
        ]

    def _unchanged(self, fragments: Iterable[KnownFragment], covered: set[int]) -> set[int]:
        files = [fragment for fragment in fragments if fragment.fragment_id in covered]
        paths = [self._source.path_of(fragment.key) for fragment in files]
        results = are_unchanged(self._source.store, paths, files)
        return {file.fragment_id for file, result in zip(files, results, strict=True) if result}
