"""The filter over all keys of an indexed column, as it must be to filter a join's other side."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from zonebloom.dataset import Dataset
from zonebloom.errors import (
    ColumnNotFound,
    CorruptIndex,
    FragmentUnreadable,
    IndexNotFound,
    SchemaMismatch,
)
from zonebloom.sbbf.filter import Sbbf
from zonebloom.spark.column_case import require_names
from zonebloom.spark.joins.key_origin import StepAside
from zonebloom.storage.columns import columns_reader
from zonebloom.values.columns import find_column

# A filter that lets more through than this costs more than it saves.
_MOST_PASS = 0.5
# Of a filter that is sent to executors; a larger one is folded, if it bears it.
_MOST_FILTER_BYTES = 64 << 20
# Rows of files that a filter does not hold yet, whose keys are read here.
_MOST_MISSING_ROWS = 5_000_000
# Folding makes room at the price of keys that pass in vain.
_FOLDED_PASS = (0.01, 0.02, 0.05, 0.1)


def whole_filter(dataset: Dataset, column: str) -> tuple[Sbbf, pa.DataType, str]:
    """The filter over all keys a column holds in the files now, their type, and what was added."""
    name = find_column(dataset.schema.names, column)
    if name is None:
        raise StepAside(f"the dataset has no column {column!r}")
    try:
        stored = dataset.global_filter(name)
    except (IndexNotFound, CorruptIndex, ColumnNotFound) as error:
        raise StepAside(str(error)) from error
    if stored is None:
        raise StepAside(
            f"the index on {name!r} has no filter over all keys; build it with "
            "create_scalar_index(..., global_filter=True)"
        )
    if not stored.missing:
        return stored.sbbf, stored.type, ""
    sbbf, num_rows = _with_missing(dataset, name, stored.sbbf, stored.missing)
    files = "1 file" if len(stored.missing) == 1 else f"{len(stored.missing):,} files"
    return sbbf, stored.type, f", {num_rows:,} rows of {files} not indexed yet added now"


def _with_missing(dataset: Dataset, name: str, sbbf: Sbbf, missing: Any) -> tuple[Sbbf, int]:
    """The filter with the keys of files it does not hold, and their number of rows."""
    source = dataset.opened.source
    try:
        num_rows = sum(map(dataset.opened.planner.count_rows, missing))
        if num_rows > _MOST_MISSING_ROWS:
            raise StepAside(
                f"{len(missing):,} files with {num_rows:,} rows came or changed since the filter "
                f"of {name!r} was built, more than {_MOST_MISSING_ROWS:,}; "
                "call optimize.optimize_indices()"
            )
        grown = Sbbf.from_bytes(sbbf.to_bytes())
        for file in missing:
            require_names(source.open(file.fragment, source.filesystem), [name])
            reader = columns_reader(source, file.fragment.path, [dataset.opened.column(name)])
            for run in reader.runs(False):
                for (values,) in reader.read(run):
                    grown.insert(values)
    except (FragmentUnreadable, SchemaMismatch) as error:
        raise StepAside(f"a file the filter does not hold yet cannot be added: {error}") from error
    return grown, num_rows


def fitted(sbbf: Sbbf) -> Sbbf:
    """A filter that is worth sending, folded where it is too large."""
    fits = sbbf
    for passing in _FOLDED_PASS if sbbf.nbytes > _MOST_FILTER_BYTES else ():
        fits = sbbf.fold(passing)
        if fits.nbytes <= _MOST_FILTER_BYTES:
            break
    if fits.nbytes > _MOST_FILTER_BYTES:
        raise StepAside(
            f"the filter has {sbbf.nbytes:,} bytes and folded {fits.nbytes:,}, more than "
            f"{_MOST_FILTER_BYTES:,}"
        )
    if fits.estimated_fpp > _MOST_PASS:
        raise StepAside(
            f"the filter is so full that {fits.estimated_fpp:.0%} of all keys would pass; build "
            "it again with larger expected_num_items"
        )
    return fits
