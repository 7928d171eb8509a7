"""filter_join(): a join that moves only rows whose keys the indexed side may hold.

    other side        what is done
    small             its keys choose the zones that are read of the indexed side      zones rule
    any               the filter over all keys of the indexed side drops its rows      filter rule
                      before they are shuffled

Both leave out rows that find no match, so both are used only where such rows are not in the
result: of an inner join on either side, of a semi join on either side, of a left join on the
right, of a right join on the left.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zonebloom.errors import IndexNotUsedWarning, InvalidArgument
from zonebloom.spark.joins.membership import KeyFilter
from zonebloom.spark.joins.plan import (
    Index,
    Indexed,
    Join,
    JoinPlan,
    Side,
    join_kind,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Indexed", "JoinPlan", "KeyFilter", "explain_join", "filter_join"]


def filter_join(
    left: DataFrame | Indexed,
    right: DataFrame | Indexed,
    on: str | Sequence[str],
    how: str = "inner",
    *,
    left_index: Index = None,
    right_index: Index = None,
    max_keys: int = 10_000,
    stored_keys: bool = False,
) -> DataFrame:
    """Join two frames, leaving out early what the index of one side says has no match.

    Parameters
    ----------
    left, right : DataFrame or Indexed
        At least one a DataFrame. An `Indexed` side is read here: where the other one is small,
        only the zones that may hold its keys.
    on : str or list of str
        Columns that both have. Any of them may be indexed.
    how : {"inner", "left_semi", "left", "right"}
        Full and anti joins give the rows without a match, which a filter would drop.
    left_index, right_index : path, Dataset or KeyFilter, optional
        The files that side was read from, with an index on a column of `on` that was built with
        ``global_filter=True``; or a filter over all its keys. Of an `Indexed` side it is known.
        The frame may be any part of those files, joined with others or not, as long as its key
        is their column: of one that is computed, or comes from elsewhere too as a union has it,
        the index is not used. A path is opened anew, so it knows the newest files; a Dataset is for
        an index that lies elsewhere, and for Delta and Iceberg tables.
    max_keys : int
        Rows a side has at most to be small. It is then computed here, once, and its rows are
        kept in the join. 0 never tries.
    stored_keys : bool
        Says that the keys of a frame with an index are the files' own column in every row. Spark
        Connect does not show it, and loses rows where it is not so; without the word the index is
        not used there. A classic session shows it, so there it is looked up all the same; and of
        an `Indexed` side it is certain.

    Returns
    -------
    pyspark.sql.DataFrame
        With the rows of ``left.join(right, on, how)`` over the files as they are now: run it
        soon, as what the condition holds is not looked up again.

    Raises
    ------
    InvalidArgument
        When the join would lose rows by the index that is given, or no index is given.
    ColumnNotFound
    NoFragments, FragmentUnreadable, SourceError, UnsupportedType
        Of files named by a path.

    Warns
    -----
    IndexNotUsedWarning
        When no rule could be used, with each reason; the join is then Spark's own.
    """
    plan = explain_join(
        left,
        right,
        on,
        how,
        left_index=left_index,
        right_index=right_index,
        max_keys=max_keys,
        stored_keys=stored_keys,
    )
    if not plan.used:
        warnings.warn(
            f"the join is made without an index: {'; '.join(plan.not_used)}",
            IndexNotUsedWarning,
            stacklevel=2,
        )
    return plan.frame


def explain_join(
    left: DataFrame | Indexed,
    right: DataFrame | Indexed,
    on: str | Sequence[str],
    how: str = "inner",
    *,
    left_index: Index = None,
    right_index: Index = None,
    max_keys: int = 10_000,
    stored_keys: bool = False,
) -> JoinPlan:
    """Say what `filter_join` does with the same parameters, and why not more; it warns of nothing.

    Keys of a small side are computed for it. The join itself is in ``frame``.
    """
    names = (on,) if isinstance(on, str) else tuple(on)
    if not names or not all(isinstance(each, str) for each in names):
        raise InvalidArgument(f"on is {on!r}; name the columns that both sides have")
    if isinstance(left, Indexed) and isinstance(right, Indexed):
        raise InvalidArgument(
            "both sides are Indexed; read one of them: zonebloom.spark.scan(spark, path)"
        )
    kind = join_kind(how)
    sides = Side("left", left, left_index), Side("right", right, right_index)
    frame: Any = right if isinstance(left, Indexed) else left
    return Join(frame.sparkSession, names, kind, max_keys, stored_keys, *sides).plan()
