"""Check that expressions keep their rows, even long and deep ones."""

from __future__ import annotations

import functools
import operator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from zonebloom.errors import FilterError

F = pc.field
TABLE = pa.table(
    {
        "i64": pa.array([1, None, -1, 5, 2**53 + 1, -(2**63)]),
        "u64": pa.array([1, None, 2**63, 5, 2**64 - 1, 0], pa.uint64()),
        "s": ["a", None, "", "É", "b", "5"],
        "row": range(6),
    },
)
COMPARED = [operator.eq, operator.ne, operator.lt, operator.ge]


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
}


@pytest.mark.many
@pytest.mark.parametrize("language", CHAINS)
def test_long_chains_are_answered(ds, language):
    assert numbers_of(ds, CHAINS[language]()) == WANTED


def test_the_index_answers_a_long_chain(ds):
    chain = functools.reduce(
        operator.or_, [key == 3 * ROWS - 3] + [key == -n for n in range(1, 900)]
    )
    assert len(ds.search(chain).ranges) <= 64
    assert numbers_of(ds, chain) == [3 * ROWS - 3]


@pytest.mark.slow
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
    "SQL": lambda deep: "(" * deep + "id = 3" + ")" * deep,
    "SQL, nested": lambda deep: "(id = -1 OR " * deep + "id = 3" + ")" * deep,
}  # fmt: skip


@pytest.mark.slow
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


def rows_of(filter):
    return zb.dataset(TABLE).to_table(["row"], filter)["row"].to_pylist()


@pytest.mark.many
@pytest.mark.parametrize("value", [0, 5, 2**53 + 1])
@pytest.mark.parametrize("name", ["u64", "i64"])
def test_int64_and_uint64_compare_as_in_python(name, value):
    values = TABLE[name].to_pylist()
    literal = pa.scalar(value, pa.int64() if name == "u64" else pa.uint64())
    for compare in COMPARED:
        expression = compare(F(name), literal)
        answers = [None if v is None else compare(v, value) for v in values]
        other = pc.if_else(F("s") == "a", ~expression, expression) | ~F("s").is_valid()
        for filter, expected in (
            (expression, answers),
            (~expression, [answer is False for answer in answers]),
            (expression.is_null(), [answer is None for answer in answers]),
            (other, [not answers[0], *[v is None or v for v in answers[1:]]]),
            (functools.reduce(operator.or_, [expression] * 1000), answers),
        ):
            assert rows_of(filter) == [row for row, is_true in enumerate(expected) if is_true]


@pytest.mark.parametrize(("name", "other"), [("u64", -1), ("i64", 2**63)])
@pytest.mark.parametrize("skip_nulls", [False, True])
def test_sets_of_int64_and_uint64_match_as_in_python(name, other, skip_nulls):
    values = TABLE[name].to_pylist()
    members = pa.array([5, other, None], pa.int64() if name == "u64" else pa.uint64())
    options = pc.SetLookupOptions(members, skip_nulls=skip_nulls)
    is_in = pc.Expression._call("is_in", [F(name)], options)
    expected = [row for row, v in enumerate(values) if v == 5 or (v is None and not skip_nulls)]
    assert rows_of(is_in) == expected
    assert rows_of(~is_in) == [row for row in range(6) if row not in expected]
