"""A plan in which relations read fewer files.

The index of kept files names the folders that were read, so that Spark refuses to overwrite
them and lists all files anew when it is told to refresh; their listing is given through a cache.
One more root, of a name made of the kept files, sets it apart, and shows in ``explain``: Spark
takes two relations of the same roots for the same, in caches and reused exchanges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import xxhash

from zonebloom.spark.pruning.scans import Listing
from zonebloom.spark.relation import Leaf, items

# No entry of the cache is to be thrown out before it is read.
_CACHE_BYTES = 1 << 40


def with_files(spark: Any, leaf: Leaf, listings: Sequence[Listing], kept: Sequence[str]) -> Any:
    """The LogicalRelation of a leaf over some of its files."""
    jvm, session, relation = spark._jvm, spark._jsparkSession, leaf.relation
    sources = jvm.org.apache.spark.sql.execution.datasources
    path_class = jvm.org.apache.hadoop.fs.Path
    new_array, status_class = spark.sparkContext._gateway.new_array, jvm.org.apache.hadoop.fs
    by_path = {path: listing for listing in reversed(listings) for path in listing.files}
    statuses = new_array(status_class.FileStatus, len(kept))
    for at, path in enumerate(kept):
        statuses[at] = by_path[path].status(path)
    nothing = new_array(status_class.FileStatus, 0)

    location = relation.location()
    roots = location.rootPaths()
    first = roots.head()
    folder = first.getParent() if first.toString() in by_path else first
    marker = path_class(folder, _marker(by_path, kept))
    cache = sources.SharedInMemoryCache(_CACHE_BYTES, -1).createForNewClient()
    for at, root in enumerate(items(roots)):
        cache.putLeafFiles(root, nothing if at else statuses)
    cache.putLeafFiles(marker, nothing)

    none = jvm.scala.Option.apply(None)
    index = sources.InMemoryFileIndex(
        session,
        roots.prepended(marker),
        relation.options(),
        none,
        cache,
        jvm.scala.Option.apply(_partition_spec(jvm, leaf, listings)),
        none,
    )
    changed = relation.copy(
        index,
        relation.partitionSchema(),
        relation.dataSchema(),
        relation.bucketSpec(),
        relation.fileFormat(),
        relation.options(),
        relation.sparkSession(),
    )
    node = leaf.node
    # Their number differs between versions.
    rest = [node.productElement(at) for at in range(1, node.productArity())]
    pruned = node.copy(changed, *rest)
    pruned.copyTagsFrom(node)
    return pruned


def _partition_spec(jvm: Any, leaf: Leaf, listings: Sequence[Listing]) -> Any:
    sources = jvm.org.apache.spark.sql.execution.datasources
    if not leaf.is_in_catalog:
        return leaf.relation.location().partitionSpec()
    paths = {
        folder.toString(): sources.PartitionPath(values, folder)
        for listing in listings
        for values, folder in listing.partitions()
    }
    return sources.PartitionSpec(leaf.relation.partitionSchema(), _seq(jvm, paths.values()))


def _marker(files: Mapping[str, Listing], kept: Sequence[str]) -> str:
    """A name that no other set of files has."""
    digest = xxhash.xxh3_128()
    for path in sorted(kept):
        file = files[path].files[path]
        digest.update(f"{path}\0{file.size}\0{file.mtime_ms}\0".encode())
    return f"_zonebloom/kept-{len(kept)}-of-{len(files)}-{digest.hexdigest()}"


def with_leaves(spark: Any, plan: Any, nodes: Iterator[Any | None]) -> Any:
    """A plan with other leaves, left to right; None leaves one as it is."""
    children = items(plan.children())
    if not children:
        return next(nodes) or plan
    changed = [with_leaves(spark, child, nodes) for child in children]
    if all(new is old for new, old in zip(changed, children, strict=True)):
        return plan
    return plan.withNewChildren(_seq(spark._jvm, changed))


def _seq(jvm: Any, values: Iterable[Any]) -> Any:
    return jvm.PythonUtils.toSeq(list(values))
