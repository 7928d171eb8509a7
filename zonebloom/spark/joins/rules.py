"""What the two rules of a join need: a filter over one side's keys, or the keys themselves.

Either may be out of reach, for a reason that a user wants to know: `StepAside` carries it, and
the join is made without.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as st

from zonebloom.dataset import Dataset
from zonebloom.errors import (
    ColumnNotFound,
    CorruptIndex,
    FragmentUnreadable,
    IndexNotFound,
    SchemaMismatch,
)
from zonebloom.sbbf.filter import Sbbf
from zonebloom.spark.joins.membership import INTEGERS, KeyFilter, is_plain_text
from zonebloom.spark.joins.origin import Elsewhere, origin
from zonebloom.spark.names import hidden_by_case, require_names
from zonebloom.spark.relation import items, opaque_reason
from zonebloom.storage.columns import Column, ColumnsReader
from zonebloom.storage.paths import split_path
from zonebloom.values.columns import alike, find_column, leaf_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A filter that lets more through than this costs more than it saves.
_MOST_PASS = 0.5
# Of a filter that is sent to executors; a larger one is folded, if it bears it.
_MOST_FILTER_BYTES = 64 << 20
# Rows of files that a filter does not hold yet, whose keys are read here.
_MOST_MISSING_ROWS = 5_000_000
# Folding makes room at the price of keys that pass in vain.
_FOLDED_PASS = (0.01, 0.02, 0.05, 0.1)
# The options of a load hold the keys, and go to several processes.
_MOST_KEY_BYTES = 4 << 20
_SMALL_BYTES = 64 << 20


class StepAside(Exception):
    """Why a rule is not used here."""


# The filter over all keys


def key_filter(dataset: Dataset, column: str) -> tuple[KeyFilter, str]:
    """The filter over all keys a column holds in the files now, and what was added, in words."""
    name = find_column(dataset.schema.names, column)
    if name is None:
        raise StepAside(f"the dataset has no column {column!r}")
    try:
        found = dataset.global_filter(name)
    except (IndexNotFound, CorruptIndex, ColumnNotFound) as error:
        raise StepAside(str(error)) from error
    if found is None:
        raise StepAside(
            f"the index on {name!r} has no filter over all keys; build it with "
            "create_scalar_index(..., global_filter=True)"
        )
    sbbf, added = found.sbbf, ""
    if found.missing:
        sbbf, num_rows = _with_missing(dataset, name, sbbf, found.missing)
        files = "1 file" if len(found.missing) == 1 else f"{len(found.missing):,} files"
        added = f", {num_rows:,} rows of {files} not indexed yet added now"
    return KeyFilter(sbbf, found.type), added


def _with_missing(dataset: Dataset, name: str, sbbf: Sbbf, missing: Any) -> tuple[Sbbf, int]:
    """The filter with the keys of files it does not hold, and their number of rows."""
    source = dataset.opened.source
    column_type = leaf_type(source.schema, (name,))
    assert column_type is not None
    try:
        num_rows = sum(map(dataset.opened.planner.count_rows, missing))
        if num_rows > _MOST_MISSING_ROWS:
            raise StepAside(
                f"{len(missing):,} files with {num_rows:,} rows came or changed since the filter "
                f"of {name!r} was built, more than {_MOST_MISSING_ROWS:,}; "
                "call optimize.optimize_indices()"
            )
        grown = Sbbf.from_bytes(sbbf.to_bytes())
        for each in missing:
            opened = source.open(each.fragment, source.filesystem)
            require_names(opened, [name])
            reader = ColumnsReader(
                source.format,
                source.filesystem,
                each.fragment.path,
                [Column((name,), column_type)],
                source.schema,
            )
            for run in reader.runs(False):
                for (values,) in reader.read(run):
                    grown.insert(values)
    except (FragmentUnreadable, SchemaMismatch) as error:
        raise StepAside(f"a file the filter does not hold yet cannot be added: {error}") from error
    return grown, num_rows


def fitted(held: KeyFilter) -> KeyFilter:
    """A filter that is worth sending, folded where it is too large."""
    sbbf = held.sbbf
    if sbbf.nbytes > _MOST_FILTER_BYTES:
        for passing in _FOLDED_PASS:
            sbbf = held.sbbf.fold(passing)
            if sbbf.nbytes <= _MOST_FILTER_BYTES:
                break
        else:
            raise StepAside(
                f"the filter has {held.sbbf.nbytes:,} bytes and folded {sbbf.nbytes:,}, more than "
                f"{_MOST_FILTER_BYTES:,}"
            )
    passing = sbbf.estimated_fpp
    if passing > _MOST_PASS:
        raise StepAside(
            f"the filter is so full that {passing:.0%} of all keys would pass; build it again "
            "with larger expected_num_items"
        )
    return KeyFilter(sbbf, held.type)


def require_own_column(frame: DataFrame, key: str, dataset: Dataset, is_said_stored: bool) -> None:
    """Refuse a filter for a key that is no column of the dataset's files, as it lies in them.

    Spark shows where a key comes from in classic sessions alone. Over Connect a caller has to say
    that it is the files' own.
    """
    why = hidden_by_case(dataset, find_column(dataset.schema.names, key) or key)
    if why is not None:
        raise StepAside(why)
    classic: Any = frame
    if not hasattr(classic, "_jdf"):
        if not is_said_stored:
            raise StepAside(
                f"Spark Connect does not show whether {key} is computed, or comes from elsewhere "
                "too, as of a union; give zonebloom.spark.Indexed(path) for the frame, or say "
                "stored_keys=True where it is the files' own column"
            )
        marks = set(frame.schema[key].metadata or {})
        if any(mark.startswith(("__", "parquet.")) or mark.isupper() for mark in marks):
            raise StepAside(f"{key} is not read as it lies in the files ({', '.join(marks)})")
        _require_known_files(frame.inputFiles(), dataset, elsewhere=True)
        return
    plan = classic._jdf.queryExecution().withCachedData()
    (named,) = [each for each in items(plan.output()) if each.name() == key]
    try:
        leaf, column = origin(plan, named)
    except Elsewhere as reason:
        raise StepAside(
            f"{key} is not a column of Parquet files as Spark reads them: {reason}"
        ) from None
    if not alike([column.name()], key):
        raise StepAside(f"{key} is column {column.name()} of the files")
    if alike(leaf.partition_columns(), key):
        raise StepAside(f"Spark takes {key} from the paths of the files")
    reason = opaque_reason(column)
    if reason is not None:
        raise StepAside(reason)
    _require_known_files(leaf.relation.location().inputFiles(), dataset, elsewhere=False)


def _require_known_files(read: Iterable[str], dataset: Dataset, elsewhere: bool) -> None:
    """Refuse a filter when a frame reads files that the dataset never saw.

    A dataset opened earlier holds the files there were; the frame may have listed more. Over
    Connect the files are those of the whole frame, so others may be elsewhere.
    """
    known = {path.lstrip("/") for path in dataset.files}
    root = dataset.opened.source.root.strip("/") + "/"
    for uri in read:
        path = split_path(uri, encoded=True)[1].lstrip("/")
        if path in known:
            continue
        name = posixpath.basename(path)
        if path.startswith(root):
            raise StepAside(
                f"the frame reads {name}, which was not there when the dataset was opened; open "
                "it again, or give its path"
            )
        if not elsewhere:
            raise StepAside(
                f"the frame reads {name}, which is none of the files of the dataset; give the "
                "path of all that the frame reads"
            )


# The keys of a small side


def collected(frame: DataFrame, names: list[str], max_keys: int) -> tuple[DataFrame, pa.Table]:
    """A small frame, computed once and held, and its keys.

    The same rows: a frame computed again need not give them, as limit() shows. Of the key
    columns; rows whose keys have no null.
    """
    if max_keys < 1:
        raise StepAside("max_keys is 0")
    if len(set(frame.columns)) < len(frame.columns):
        raise StepAside("several columns of the other side have one name")
    try:
        rows = frame.limit(max_keys + 1).toArrow()
    except Exception as error:
        # If it is more than a type Arrow has not, the join will say so too.
        told = str(error).splitlines() or [type(error).__name__]
        raise StepAside(f"the other side cannot be collected: {told[0]}") from error
    if rows.num_rows > max_keys:
        raise StepAside(f"the other side has more than max_keys={max_keys:,} rows")
    # Nulls alone: dropna() of a frame would drop NaN too.
    keys = rows.select(names).drop_null()
    if rows.nbytes > _SMALL_BYTES or keys.nbytes > _MOST_KEY_BYTES:
        raise StepAside(f"the other side has {rows.nbytes:,} bytes in few rows")
    session: Any = frame.sparkSession
    held = session.createDataFrame(rows, schema=frame.schema)
    return held, keys


def why_keys_differ(one: st.StructField, other: st.StructField) -> str | None:
    """Why equality of two key columns is more than equality of their values, None if it is not."""
    for each in (one, other):
        if isinstance(each.dataType, st.StringType) and not is_plain_text(each):
            return f"{each.name} is text that Spark compares by a collation or pads"
    both = isinstance(one.dataType, INTEGERS) and isinstance(other.dataType, INTEGERS)
    if one.dataType != other.dataType and not both:
        return (
            f"{one.name} is {one.dataType.simpleString()} on one side and "
            f"{other.dataType.simpleString()} on the other, compared after a cast"
        )
    return None
