"""What an index is made over: from a DataFrame to a folder, and how that folder changed since.

Of a DataFrame only the plain read of Parquet files is taken: a filter or a projection in it
would mean that rows or names in the index are others than those of the files.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs
import xxhash

from zonebloom.catalog.freshness import last_seen
from zonebloom.catalog.store import Catalog
from zonebloom.dataset import Dataset, dataset
from zonebloom.errors import InvalidArgument
from zonebloom.spark.hyperspace.config import local_path
from zonebloom.spark.hyperspace.log import Record
from zonebloom.storage.paths import absolute_path, is_uri, plain_path, split_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARQUET = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"
_HOW = "give spark.read.parquet(path) as it is, or the path itself"


def open_source(
    source: DataFrame | str | os.PathLike[str], index_dir: str | None
) -> tuple[Dataset, str]:
    """Open the files of a DataFrame, or of a path, as one dataset.

    The path that opens it again.
    """
    if isinstance(source, str | os.PathLike):
        path = absolute_path(plain_path(os.fspath(source)))
        return dataset(path, index_dir=index_dir), path
    roots = _root_paths(source)
    files = {plain_path(file, encoded=True) for file in source.inputFiles()}
    if not files:
        raise InvalidArgument("the DataFrame reads no file; write some first")
    found: Dataset | None = None
    root = roots[0] if len(roots) == 1 else _common_folder(files)
    if root is not None:
        found = dataset(root, index_dir=index_dir)
        if set(found.files) == {split_path(file)[1] for file in files}:
            return found, root
    there = "" if found is None else f" of the {len(found.files):,} in {root}"
    raise InvalidArgument(
        f"the DataFrame reads {len(files):,} files{there}; an index is over all files of one "
        "folder, or over one file: read the folder, or make an index for each"
    )


def catalog_of(record: Record) -> Catalog:
    """The catalog an index lies in, whether its data is still there or not."""
    filesystem: pafs.FileSystem = pafs.LocalFileSystem()
    if is_uri(record.path):
        filesystem, _ = pafs.FileSystem.from_uri(record.path)
    return Catalog(filesystem, record.index_dir)


def open_recorded(record: Record) -> Dataset:
    """Open what an index was made over, as it is now."""
    return dataset(record.path, index_dir=record.index_dir)


def _common_folder(files: set[str]) -> str | None:
    folders = {posixpath.dirname(file) for file in files}
    return folders.pop() if len(folders) == 1 else None


def _root_paths(frame: Any) -> list[str]:
    """Paths the read of a frame was given."""
    if hasattr(frame, "_jdf"):
        return _classic_root_paths(frame._jdf.queryExecution().analyzed())
    # Connect: the client's own record of what it asked for.
    plan = getattr(frame, "_plan", None)
    if type(plan).__name__ != "DataSource" or getattr(plan, "_format", None) != "parquet":
        given = type(frame).__name__ if plan is None else type(plan).__name__
        raise InvalidArgument(f"a {given} is no plain read of Parquet files; {_HOW}")
    paths: list[str] = getattr(plan, "_paths", None) or []
    # Of relative ones and patterns the server knows what they mean; its files say.
    if not all(re.match(r"/|\w+:/", path) and not re.search(r"[*?\[{]", path) for path in paths):
        return []
    return [path if local_path(path) is None else plain_path(path) for path in paths]


def _classic_root_paths(plan: Any) -> list[str]:
    while plan.nodeName() in ("SubqueryAlias", "View"):
        plan = plan.child()
    simple = plan.getClass().getSimpleName()
    if simple != "LogicalRelation":
        raise InvalidArgument(f"a DataFrame of {simple} is no plain read of Parquet files; {_HOW}")
    relation = plan.relation()
    if relation.getClass().getSimpleName() != "HadoopFsRelation":
        raise InvalidArgument(f"a {relation.toString()} relation is no read of files; {_HOW}")
    kind = relation.fileFormat().getClass().getName()
    if kind != _PARQUET:
        raise InvalidArgument(f"the DataFrame reads files of {kind}, not of Parquet; {_HOW}")
    roots = relation.location().rootPaths()
    return [plain_path(roots.apply(i).toString()) for i in range(roots.size())]


@dataclass(frozen=True, slots=True)
class Drift:
    """The files of an index as they are now, against those it was built of.

    A file written anew is one that was appended and one that was deleted, as in Hyperspace.

    Attributes
    ----------
    num_files, num_bytes : int
        That are there now.
    num_appended, appended_bytes : int
        Of these, that the index does not hold and nobody took note of.
    num_deleted, deleted_bytes : int
        That the index holds and are not there any more, and nobody took note of.
    indexed_bytes : int
        Of the files the index was built of.
    fingerprint : str
        XXH3-64 over the paths, sizes and times of the files that are there.
    changes : tuple of str
        One a file that was appended or deleted, noted or not: "+" and the XXH3-64 of its path,
        size and time, or "-" and the id it has in the catalog.
    """

    num_files: int
    num_bytes: int
    num_appended: int
    appended_bytes: int
    num_deleted: int
    deleted_bytes: int
    indexed_bytes: int
    fingerprint: str
    changes: tuple[str, ...]

    @property
    def appended_ratio(self) -> float:
        """Share of the bytes now there that were appended."""
        return self.appended_bytes / self.num_bytes if self.num_bytes else 0.0

    @property
    def deleted_ratio(self) -> float:
        """Share of the bytes indexed that were deleted."""
        return self.deleted_bytes / self.indexed_bytes if self.indexed_bytes else 0.0

    @property
    def is_none(self) -> bool:
        """Whether the files are those that were indexed or noted."""
        return self.num_appended == 0 and self.num_deleted == 0


def measure_drift(
    ds: Dataset,
    names: Sequence[str],
    source_bytes: int = 0,
    accepted: Collection[str] = (),
) -> Drift:
    """Compare a dataset with what some of its indices hold."""
    version = ds.opened.version
    entries = [version.indices.get(name) for name in names]
    held = [
        frozenset(i for part in entry.tables for i in part.fragment_ids) if entry else frozenset()
        for entry in entries
    ]
    covered = frozenset.intersection(*held) if held else frozenset()
    files = list(zip(ds.opened.source.fragments, ds.opened.source.identities(), strict=True))
    present = [(fragment.key, identity) for fragment, identity in files if identity is not None]
    paths = {fragment.key: fragment.path for fragment, _ in files}
    noted = frozenset(accepted)
    same: set[int] = set()
    came: dict[str, int] = {}
    total = common = 0
    for key, identity in present:
        total += identity.size
        known = version.fragments.get(key)
        is_same = known is not None and last_seen(paths[key], known, identity) is not None
        if known is not None and is_same and known.fragment_id in covered:
            same.add(known.fragment_id)
            common += identity.size
        else:
            came["+" + _hash(_line(key, identity))] = identity.size
    sizes = {f.fragment_id: f.identity.size for f in version.fragments.values()}
    gone = covered - same
    indexed = max(source_bytes, common)
    if covered <= sizes.keys():
        indexed = sum(sizes[i] for i in covered)
    appended = [size for mark, size in came.items() if mark not in noted]
    deleted = [i for i in gone if f"-{i}" not in noted]
    # Of some that went the catalog may have forgotten how large they were.
    forgotten = any(i not in sizes for i in deleted)
    return Drift(
        len(present),
        total,
        len(appended),
        sum(appended),
        len(deleted),
        indexed - common if forgotten else sum(sizes[i] for i in deleted),
        indexed,
        _hash("\n".join(_line(key, identity) for key, identity in sorted(present, key=_key))),
        (*came, *(f"-{i}" for i in sorted(gone))),
    )


def _line(key: str, identity: Any) -> str:
    return f"{key}\0{identity.size}\0{identity.mtime_ns}{identity.tag}"


def _hash(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())


def _key(file: tuple[str, Any]) -> str:
    return file[0]
