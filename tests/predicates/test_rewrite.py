"""Check that expressions keep their rows, even long and deep ones."""

from __future__ import annotations

import datetime as dt
import functools
import math
import operator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import acero
from support.helpers import cases

import zonebloom as zb
from zonebloom.errors import FilterError
from zonebloom.predicates import (
    And,
    Constant,
    Equals,
    IsIn,
    IsNull,
    Not,
    Or,
    translate_filter,
)

F = pc.field
MOMENTS = [dt.datetime(2020, 1, 1), None, dt.datetime(1970, 1, 1)]
TABLE = pa.table(
    {
        "i8": pa.array([1, None, -1, 5, 127, 0], pa.int8()),
        "i64": pa.array([1, None, -1, 5, 2**53 + 1, -(2**63)]),
        "u64": pa.array([1, None, 2**63, 5, 2**64 - 1, 0], pa.uint64()),
        "f32": pa.array([0.1, None, -0.0, math.nan, 1.5, 0.0], pa.float32()),
        "f64": pa.array([0.1, None, -0.0, math.nan, 1.5, 5.0]),
        "s": ["a", None, "", "É", "b", "5"],
        "cat": pa.array(["a", None, "", "É", "b", "5"]).dictionary_encode(),
        "bin": [b"a", None, b"", b"\xff", b"b", b"5"],
        "ts": pa.array(MOMENTS * 2, pa.timestamp("ms")),
        "d": pa.array([dt.date(2020, 1, 1), None, dt.date(1970, 1, 1)] * 2),
        "b": [True, None, False, True, False, None],
        "st": [{"u": 1}, None, {"u": None}, {"u": 5}, {"u": 5}, {"u": 0}],
    },
)
COLUMNS = [F(name) for name in TABLE.column_names if name not in ("b", "st")] + [F("st", "u")]
VALUES = [
    1, -1, 5, 300, 2**53 + 1, pa.scalar(2**63, pa.uint64()), pa.scalar(5, pa.uint64()), 0.1, 1.5,
    -0.0, 0.0, math.nan, 2.0**53, pa.scalar(0.1, pa.float32()), "a", "", "É", b"a", b"\xff", True,
    dt.datetime(2020, 1, 1), dt.date(2020, 1, 1), None, pa.scalar(None, pa.int64()),
    pa.scalar("a", pa.large_string()), pa.scalar(5, pa.int8()),
]  # fmt: skip
SETS = [
    [1, None], [5, 300], [-1, 5], [], ["a", None], ["É"], [0.0, 1.5], [b"a"],
    pa.array([2**63, 5, None], pa.uint64()),
]  # fmt: skip


def one_of(choices):
    return st.integers(0, len(choices) - 1).map(choices.__getitem__)


NULL = pc.scalar(pa.scalar(None, pa.bool_()))
COMPARED = [operator.eq, operator.ne, operator.lt, operator.ge]
leaves = st.one_of(
    st.builds(lambda c, v, f: f(c, v), one_of(COLUMNS), one_of(VALUES), one_of(COMPARED)),
    st.builds(lambda c, v: pc.scalar(v) == c, one_of(COLUMNS), one_of(VALUES)),
    st.builds(lambda c, v: c.isin(v), one_of(COLUMNS), one_of(SETS)),
    # DuckDB writes IN this way.
    st.builds(
        lambda c, v: pc.if_else(c.is_valid(), c.isin(v), NULL), one_of(COLUMNS), one_of(SETS)
    ),
    one_of([F("b"), ~F("b"), F("s").is_null(), pc.match_like(F("s"), "a%"), pc.scalar(True)]),
    one_of([F("i64") + 1 == 6, F("i8").cast("int64") == 5, F("i64") == F("i8")]),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=5).map(lambda t: functools.reduce(operator.or_, t)),
        st.lists(inner, min_size=2, max_size=5).map(lambda t: functools.reduce(operator.and_, t)),
        st.builds(pc.or_, inner, inner),
        inner.map(operator.invert),
    ),
    max_leaves=12,
)


def truth(expression, table=TABLE):
    """Return True, False or None (null) for each row, or None if PyArrow refuses the expression."""
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["it"]))
    try:
        return acero.Declaration.from_sequence([source, project]).to_table()["it"].to_pylist()
    except pa.ArrowException:
        return None


@settings(max_examples=cases(1500))
@given(trees)
def test_rewritten_expressions_have_the_same_results(expression):
    expected = truth(expression)
    try:
        rewritten, _ = translate_filter(expression, TABLE.schema)
    except FilterError as error:
        assert "without a zone" in str(error)
        return
    if expected is not None:
        assert truth(rewritten) == expected


ROWS = 500


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rewrite")
    numbers = pa.array([None if row % 50 == 7 else row * 3 for row in range(ROWS)])
    table = pa.table(
        {
            "id": numbers,
            "u": pa.array([None if n.as_py() is None else 2**64 - 1 - n.as_py() for n in numbers],
                          pa.uint64()),
            "s": [str(n) for n in numbers],
        }
    )  # fmt: skip
    pq.write_table(table, folder / "part.parquet")
    opened = zb.dataset(folder)
    for name in ("id", "u"):
        opened.create_scalar_index(name, "BLOOMFILTER", number_of_items=64, spark=False)
    return opened


def numbers_of(ds, filter):
    return ds.to_table(columns=["id"], filter=filter)["id"].to_pylist()


MANY = 10_000
KEYS = [row * 3 for row in range(ROWS) if row % 50 != 7]
key = F("id")
TERMS = range(0, 3 * MANY, 6)
WANTED = [number for number in KEYS if number % 6 == 0]
CHAINS = {
    "SQL": lambda: " OR ".join(f"id = {n}" for n in TERMS),
    "SQL, negated": lambda: "NOT (" + " AND ".join(f"{n} <> id" for n in TERMS) + ")",
    "PyArrow": lambda: functools.reduce(operator.or_, [key == n for n in TERMS[:1000]]),
    "PyArrow, right": lambda: functools.reduce(
        lambda a, b: b | a, [key == n for n in TERMS[:1000]]
    ),
    "PyArrow, negated": lambda: ~functools.reduce(operator.and_, [key != n for n in TERMS[:1000]]),
    "tuples": lambda: [[("id", "=", n)] for n in TERMS],
    "tuples, of several": lambda: [[("id", "=", n), ("id", ">=", 0)] for n in TERMS[:2000]],
    "Predicate": lambda: Or(tuple(Equals(("id",), pa.scalar(n)) for n in TERMS)),
    "Predicate, left": lambda: functools.reduce(
        lambda a, b: Or((a, b)), [Equals(("id",), pa.scalar(n)) for n in TERMS]
    ),
    "Predicate, right": lambda: functools.reduce(
        lambda a, b: Or((b, a)), [Equals(("id",), pa.scalar(n)) for n in TERMS]
    ),
}


@pytest.mark.parametrize("language", CHAINS)
def test_long_chains_are_answered(ds, language):
    assert numbers_of(ds, CHAINS[language]()) == WANTED


def test_the_index_answers_a_long_chain(ds):
    chain = functools.reduce(
        operator.or_, [key == 3 * ROWS - 3] + [key == -n for n in range(1, 900)]
    )
    _, predicate = translate_filter(chain, ds.schema)
    assert isinstance(predicate, IsIn)
    assert len(ds.search(chain).ranges) <= 64
    assert numbers_of(ds, chain) == [3 * ROWS - 3]


def test_long_chains_of_other_conditions_are_answered_or_raise(ds):
    texts = [str(number) for number in KEYS]
    # LIKE without a wildcard is an equality.
    equalities = [f"s LIKE '{number}'" for number in range(4500)]
    assert len(numbers_of(ds, " OR ".join(equalities))) == len(texts)
    patterns = [f"s LIKE '{number}_%'" for number in range(700)]
    expected = sum(any(int(text[:length]) < 700 for length in range(1, len(text)))
                   for text in texts)  # fmt: skip
    assert len([n for n in numbers_of(ds, " OR ".join(patterns)) if n is not None]) == expected
    negated = [f"NOT {pattern}" for pattern in patterns * 6]
    for text in (" OR ".join(patterns * 6), " AND ".join(negated)):
        with pytest.raises(FilterError, match="joins more than 4,000 conditions") as e:
            ds.to_table(filter=text)
        assert e.value.__cause__ is None


DEEP = {
    "sum": lambda deep: functools.reduce(lambda a, _: a + 0, range(deep), key) == 3,
    "AND in OR": lambda deep: functools.reduce(
        lambda a, n: ((a & (key >= 0)) | (key == -1 - n)), range(deep // 2), key == 3
    ),
    "NOT": lambda deep: functools.reduce(lambda a, _: ~a, range(deep // 2 * 2), key == 3),
    "Predicate": lambda deep: functools.reduce(
        lambda a, n: Or((And((a, Not(IsNull(("id",))))), Equals(("id",), pa.scalar(-n)))),
        range(1, deep // 2),
        Equals(("id",), pa.scalar(3)),
    ),
    "Predicate of NOT": lambda deep: functools.reduce(
        lambda a, _: Not(And((a, Constant(True)))),
        range(deep // 2 * 2),
        Equals(("id",), pa.scalar(3)),
    ),
    "SQL": lambda deep: "(" * deep + "id = 3" + ")" * deep,
    "SQL, nested": lambda deep: "(id = -1 OR " * deep + "id = 3" + ")" * deep,
}  # fmt: skip


@pytest.mark.parametrize("kind", DEEP)
def test_deep_filters_are_answered_or_raise(ds, kind):
    for deep in (10, 60, 148, 300, 900, 1900, 3000):
        filter = DEEP[kind](deep)
        try:
            numbers = numbers_of(ds, filter)
        except FilterError as error:
            assert deep > 60 or kind.startswith("SQL")
            assert "nested" in str(error)
            assert error.__cause__ is None
            continue
        assert numbers == [3]
        # These calls must not exceed the recursion limit either.
        assert ds.count_rows(filter=filter) == 1
        assert ds.search(filter).to_table().num_rows == 1
        assert ds.scanner(filter=filter).explain_plan()


@pytest.mark.parametrize("value", [0, 5, 2**53 + 1])
@pytest.mark.parametrize("name", ["u64", "i64"])
def test_int64_and_uint64_compare_as_in_python(name, value):
    column, values = F(name), TABLE[name].to_pylist()
    literal = pa.scalar(value, pa.int64() if name == "u64" else pa.uint64())
    for compare in COMPARED:
        expression = compare(column, literal)
        expected = [None if v is None else compare(v, value) for v in values]
        for filter, wanted in (
            (expression, expected),
            (~expression, [None if v is None else not v for v in expected]),
            (pc.if_else(F("s") == "a", ~expression, expression) | ~F("s").is_valid(), None),
            (functools.reduce(operator.or_, [expression] * 1000), expected),
        ):
            row_filter, _ = translate_filter(filter, TABLE.schema)
            assert truth(row_filter) == (
                wanted or [not expected[0], *[v is None or v for v in expected[1:]]]
            )


@pytest.mark.parametrize(("name", "other"), [("u64", -1), ("i64", 2**63)])
@pytest.mark.parametrize("skip_nulls", [False, True])
def test_sets_of_int64_and_uint64_match_as_in_python(name, other, skip_nulls):
    values = TABLE[name].to_pylist()
    members = pa.array([5, other, None], pa.int64() if name == "u64" else pa.uint64())
    options = pc.SetLookupOptions(members, skip_nulls=skip_nulls)
    is_in = pc.Expression._call("is_in", [F(name)], options)
    expected = [v == 5 or (v is None and not skip_nulls) for v in values]
    for filter, wanted in ((is_in, expected), (~is_in, [not v for v in expected])):
        row_filter, _ = translate_filter(filter, TABLE.schema)
        assert truth(row_filter) == wanted
