"""What conditions require of a row, and scans that skip zones because of it.

Generated filters of SQL, PyArrow and Polars give the same rows as DuckDB, PyArrow, Polars and
plain Python, with and without indices of all kinds.
"""

from __future__ import annotations

import datetime
import random
import re
from contextlib import suppress
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.helpers import cases

import zonebloom as zb
from zonebloom import errors
from zonebloom.index.row_keys.tokens import fold
from zonebloom.predicates import And, Or
from zonebloom.predicates.ast import HasText
from zonebloom.predicates.text_requirements import require_regex

WORDS = ["error", "GET", "Error", "timeout", "Größe", "GRÖẞE", "disk", "full", "user_1"]
WORDS += [
    "İstanbul",
    "istanbul",
    "ΣΊΣΥΦΟΣ",
    "σίσυφος",
    "日本語",
    "журнал",
    "Kelvin\u212a",
    "50%",
    "a.b",
]
TAGS = ["a", "b", "é", "long-tag", ""]
HOSTS = ["h1", "h2", "İ", ""]
START = datetime.datetime(2024, 1, 31)
ROWS = 1500
ZONE = 32
SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("tags", pa.list_(pa.string())),
        ("numbers", pa.list_(pa.int32())),
        ("attrs", pa.map_(pa.string(), pa.string())),
        ("message", pa.string()),
        ("ts", pa.timestamp("us")),
        ("region", pa.string()),
        ("key", pa.int32()),
        (
            "events",
            pa.list_(pa.struct([("id", pa.int64()), ("at", pa.struct([("ms", pa.int32())]))])),
        ),
    ]
)


def rows(first: int, count: int, rng: random.Random) -> pa.Table:
    def text(number: int) -> str | None:
        if rng.random() < 0.05:
            return None
        words = rng.choices(WORDS, k=rng.randint(0, 4))
        return rng.choice([" ", "-", "", ", "]).join([*words, f"id={number // 40}"])

    numbers = range(first, first + count)
    return pa.table(
        {
            "row": numbers,
            "tags": [
                rng.choice([None, [], [rng.choice(TAGS), None], [f"t{n // 50}", rng.choice(TAGS)]])
                for n in numbers
            ],
            "numbers": [rng.choice([None, [], [n // 50, None, n // 100]]) for n in numbers],
            "attrs": [
                rng.choice([None, [], [("host", f"n{n // 60}")], [("host", rng.choice(HOSTS))]])
                for n in numbers
            ],
            "message": list(map(text, numbers)),
            "ts": [START + datetime.timedelta(minutes=n) for n in numbers],
            "region": [rng.choice(["eu", "us", None]) for _ in numbers],
            "key": [n // 30 for n in numbers],
            "events": [
                rng.choice([None, [], [None, {"id": n // 40, "at": {"ms": n // 50}}, {"id": None}]])
                for n in numbers
            ],
        },
        SCHEMA,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("events") / "data"
    folder.mkdir()
    rng = random.Random(5)
    for number in range(3):
        part = rows(number * ROWS // 3, ROWS // 3, rng)
        pq.write_table(part, folder / f"{number}.parquet", row_group_size=200)
    return folder


@pytest.fixture(scope="module")
def plain(folder, tmp_path_factory) -> zb.Dataset:
    return zb.dataset(folder, index_dir=tmp_path_factory.mktemp("none"))


@pytest.fixture(scope="module", params=["BLOOMFILTER", "HASH"])
def indexed(folder, tmp_path_factory, request) -> zb.Dataset:
    """A dataset with all kinds of indices of all columns."""
    ds = zb.dataset(folder, index_dir=tmp_path_factory.mktemp("index"))
    kind, options = request.param, {"number_of_items": ZONE, "spark": False}
    targets = ["tags[]", "numbers[]", "attrs[]", "key", ("region", "key")]
    targets += ["events[].id", "events[].at.ms"]
    ds.create_scalar_index(targets, kind, **options)
    ds.create_scalar_index("message", kind, tokens="words", lower=True, **options)
    ds.create_scalar_index("message", kind, tokens="trigrams", **options)
    ds.create_scalar_index("ts", "ZONEMAP", **options)
    ds.create_scalar_index("message", "ZONEMAP", name="message_zones", **options)
    return ds


# Generated filters


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def some_text(rng: random.Random) -> str:
    word = rng.choice([*WORDS, "id=", "nothing", f"id={rng.randrange(ROWS // 40)}"])
    text = rng.choice([word, word.lower(), word.upper(), f"{word} {rng.choice(WORDS)}"])
    start = rng.randrange(3)
    return text[start:] if rng.random() < 0.4 and len(text) > start else text


def some_tag(rng: random.Random) -> str:
    return rng.choice([*TAGS, "nothing", f"t{rng.randrange(ROWS // 50)}"])


def some_time(rng: random.Random) -> datetime.datetime:
    return START + datetime.timedelta(minutes=rng.randrange(ROWS), seconds=rng.choice([0, 1]))


def like_pattern(rng: random.Random) -> str:
    parts = [re.sub(r"([%_\\])", r"\\\1", some_text(rng)) for _ in range(rng.randint(1, 2))]
    middle = rng.choice(["%", "_", "%_%"])
    return rng.choice(["%", "", "_"]) + middle.join(parts) + rng.choice(["%", "", "_"])


def regex(rng: random.Random) -> str:
    part = re.escape(some_text(rng)).replace("\\-", "-").replace("\\ ", " ")
    other = rng.choice(["[0-9]+", ".*", "(a|b)?", "x?", "(?:id=)", r"\d", "e+", ""])
    return rng.choice(["^", "", "", "(?i)"]) + part + other + rng.choice(["", "$", "1"])


def sql_term(rng: random.Random) -> str:
    number = rng.randrange(ROWS // 50)
    time = f"TIMESTAMP '{some_time(rng)}'"
    terms = [
        lambda: f"list_contains(tags, {quoted(some_tag(rng))})",
        lambda: f"list_has_any(tags, [{quoted(some_tag(rng))}, {quoted(some_tag(rng))}])",
        lambda: f"list_has_all(tags, [{quoted(some_tag(rng))}, {quoted(some_tag(rng))}])",
        lambda: f"list_contains(numbers, {number})",
        lambda: f"attrs['host'] = {quoted(rng.choice([*HOSTS, f'n{rng.randrange(25)}']))}",
        lambda: f"attrs['host'] IN ('n{rng.randrange(25)}', 'h1')",
        lambda: f"message LIKE {quoted(like_pattern(rng))} ESCAPE '\\'",
        lambda: f"message ILIKE {quoted(like_pattern(rng))} ESCAPE '\\'",
        lambda: f"contains(message, {quoted(some_text(rng))})",
        lambda: f"starts_with(message, {quoted(some_text(rng))})",
        lambda: f"ends_with(message, {quoted(some_text(rng))})",
        lambda: f"regexp_matches(message, {quoted(regex(rng))})",
        lambda: f"lower(message) LIKE {quoted(like_pattern(rng))} ESCAPE '\\'",
        lambda: f"lower(message) = {quoted(some_text(rng))}",
        lambda: f"ts BETWEEN {time} AND TIMESTAMP '{some_time(rng)}'",
        lambda: f"ts {rng.choice(['<', '<=', '>', '>=', '=', '<>'])} {time}",
        lambda: f"region = '{rng.choice(['eu', 'us'])}' AND key = {number}",
        lambda: f"(region, key) IN (('eu', {number}), ('us', {rng.randrange(50)}))",
        lambda: f"key IN ({number}, 7)",
        lambda: f"message IS {rng.choice(['', 'NOT '])}NULL",
        lambda: f"message >= {quoted(some_text(rng))}",
    ]
    return rng.choice(terms)()


def sql_filter(rng: random.Random) -> str:
    text = sql_term(rng)
    for _ in range(rng.choice([0, 0, 1, 2])):
        text = f"({text}) {rng.choice(['AND', 'AND', 'OR'])} ({sql_term(rng)})"
    return f"NOT ({text})" if rng.random() < 0.15 else text


def test_a_field_of_the_structs_in_a_list_is_searched(folder, indexed):
    """``events.id`` is the list of the ids, as it is in Spark."""
    connection = duckdb.connect()
    connection.sql(f"CREATE VIEW events AS FROM read_parquet('{folder}/*.parquet')")
    for field, number in (("id", 7), ("id", 99), ("at.ms", 3), ("ID", 7)):
        filter = f"list_contains(events.{field}, {number})"
        theirs = connection.sql(
            "SELECT row FROM events WHERE "
            f"list_contains(list_transform(events, lambda e: e.{field}), {number})"
        ).fetchall()
        expected = sorted(row for (row,) in theirs)
        assert numbers_of(indexed.to_table(columns=["row"], filter=filter)) == expected
        assert len(indexed.search(filter).at_most) <= 4 * ZONE
    for filter in ("list_contains(events.nope, 1)", "list_contains(events.id.x, 1)"):
        with pytest.raises(errors.FilterError, match="has no field"):
            indexed.to_table(filter=filter)


def numbers_of(table: pa.Table) -> list[int]:
    return sorted(table["row"].to_pylist())


@pytest.mark.parametrize("seed", range(cases(4, 2)))
def test_sql_gives_the_rows_of_duckdb(folder, plain, indexed, seed):
    rng = random.Random(seed)
    connection = duckdb.connect()
    connection.sql(f"CREATE VIEW events AS FROM read_parquet('{folder}/*.parquet')")
    num_found = 0
    for _ in range(100):
        filter = sql_filter(rng)
        expected = numbers_of(plain.to_table(columns=["row"], filter=filter))
        assert numbers_of(indexed.to_table(columns=["row"], filter=filter)) == expected, filter
        num_found += len(expected) > 0
        # DuckDB changes the case of some letters in another way than PyArrow, on which our filters
        # rest, and has another dialect of regular expressions for case.
        if "ILIKE" in filter or "lower(" in filter or "(?i)" in filter:
            continue
        theirs = connection.sql(f"SELECT row FROM events WHERE {filter}").fetchall()
        assert sorted(row for (row,) in theirs) == expected, filter
    assert num_found > 30


def arrow_term(rng: random.Random) -> pc.Expression:
    message, ts = pc.field("message"), pc.field("ts")
    functions = [pc.match_substring, pc.starts_with, pc.ends_with]
    terms = [
        lambda: rng.choice(functions)(message, some_text(rng), ignore_case=rng.random() < 0.4),
        lambda: pc.match_like(message, like_pattern(rng).replace("\\", ""), ignore_case=False),
        lambda: pc.match_substring_regex(message, regex(rng), ignore_case=rng.random() < 0.3),
        lambda: ts >= pa.scalar(some_time(rng), pa.timestamp("us")),
        lambda: ts < pa.scalar(some_time(rng), pa.timestamp("us")),
        lambda: pc.field("key").isin([rng.randrange(50), 7]),
        lambda: (pc.field("key") == rng.randrange(50)) & (pc.field("region") == "eu"),
        message.is_valid,
    ]
    return rng.choice(terms)()


@pytest.mark.parametrize("seed", range(cases(4, 2)))
def test_expressions_give_the_rows_of_pyarrow(folder, indexed, seed):
    rng = random.Random(seed)
    peer = pads.dataset(folder)
    for _ in range(100):
        filter = arrow_term(rng)
        for _ in range(rng.choice([0, 0, 1, 2])):
            filter = filter & arrow_term(rng) if rng.random() < 0.7 else filter | arrow_term(rng)
        if rng.random() < 0.15:
            filter = ~filter
        expected = numbers_of(peer.to_table(columns=["row"], filter=filter))
        assert numbers_of(indexed.to_table(columns=["row"], filter=filter)) == expected, filter


def polars_term(rng: random.Random) -> pl.Expr:
    message = pl.col("message").str
    pair = [some_text(rng) or "x", some_text(rng) or "y"]
    terms = [
        lambda: message.contains(regex(rng)),
        lambda: message.contains(some_text(rng), literal=True),
        lambda: message.starts_with(some_text(rng)),
        lambda: message.ends_with(some_text(rng)),
        lambda: message.contains_any(pair, ascii_case_insensitive=rng.random() < 0.5),
        lambda: pl.col("tags").list.contains(some_tag(rng)),
        lambda: pl.col("numbers").list.contains(rng.randrange(30)),
        lambda: pl.col("ts").is_between(some_time(rng), some_time(rng)),
        lambda: pl.col("key") == rng.randrange(50),
        lambda: pl.col("message").is_null(),
    ]
    return rng.choice(terms)()


@pytest.mark.parametrize("seed", range(cases(4, 2)))
def test_expressions_give_the_rows_of_polars(folder, indexed, seed):
    rng = random.Random(seed)
    peer = pl.read_parquet(f"{folder}/*.parquet")
    frame = indexed.to_polars()
    for _ in range(100):
        filter = polars_term(rng)
        for _ in range(rng.choice([0, 0, 1, 2])):
            filter = filter & polars_term(rng) if rng.random() < 0.7 else filter | polars_term(rng)
        if rng.random() < 0.15:
            filter = ~filter
        expected = sorted(peer.filter(filter)["row"].to_list())
        assert numbers_of(indexed.to_table(columns=["row"], filter=filter)) == expected, filter
        found = frame.filter(filter).select("row").collect()["row"].to_list()
        assert sorted(found) == expected, filter


def test_a_condition_around_a_search_keeps_rows_without_a_match(folder, indexed):
    """A row of ``contains(message, 'x') = false`` does not contain 'x'."""
    message = pc.field("message")
    for search in (
        pc.match_substring(message, "id=17"),
        pc.match_like(message, "%id=17"),
        pc.match_substring_regex(message, "id=17$"),
        pc.starts_with(message, "nothing"),
    ):
        for filter in (
            search.is_null(),
            search == False,  # noqa: E712 - an expression
            search < True,
            search.isin([False]),
            search.cast(pa.int32()) == 0,
            pc.coalesce(search, True),
            pc.if_else(search, False, True),
        ):
            expected = numbers_of(pads.dataset(folder).to_table(columns=["row"], filter=filter))
            assert expected
            assert numbers_of(indexed.to_table(columns=["row"], filter=filter)) == expected, filter
    peer = pl.read_parquet(f"{folder}/*.parquet")
    for search in (
        pl.col("message").str.contains("id=17$"),
        pl.col("message").str.contains("id=17", literal=True),
        pl.col("message").str.starts_with("nothing"),
        pl.col("message").str.contains_any(["id=17", "nothing"]),
        pl.col("tags").list.contains("t7"),
    ):
        for filter in (
            search.is_null(),
            search == False,  # noqa: E712 - an expression
            search != True,  # noqa: E712 - an expression
            search.eq_missing(pl.lit(None)),
            search.is_in([False]),
            search.is_between(False, False),
            search.cast(pl.Int32) == 0,
            search.cast(pl.String).str.contains("false", literal=True),
            search.fill_null(True),
        ):
            expected = sorted(peer.filter(filter)["row"].to_list())
            assert expected
            assert numbers_of(indexed.to_table(columns=["row"], filter=filter)) == expected, filter


# Each condition by itself


def holds(predicate, row: dict) -> bool:
    """Evaluate a requirement on a row in plain Python."""
    match predicate:
        case And(terms):
            return all(holds(term, row) for term in terms)
        case Or(terms):
            return any(holds(term, row) for term in terms)
        case HasText(column, text, starts_word, ends_word, ignores_case):
            whole = row[column[0]]
            whole, text = (fold(whole), fold(text)) if ignores_case else (whole, text)
            return any(
                (not starts_word or is_edge(whole[: match.start()][-1:], text[:1]))
                and (not ends_word or is_edge(whole[match.start() + len(text) :][:1], text[-1:]))
                for match in re.finditer(f"(?={re.escape(text)})", whole)
            )
    raise AssertionError(predicate)


def is_edge(outside: str, inside: str) -> bool:
    """Return whether a word begins or ends between two characters, one of which may be missing."""
    return any(not c or (c.isascii() and not c.isalnum()) for c in (outside, inside))


PATTERN_PARTS = [
    "a",
    "b",
    "ab",
    ".",
    "[ab]",
    "[^a]",
    "(a|b)",
    "(?:ab)",
    r"\.",
    r"\d",
    r"\b",
    "é",
    " ",
]
PATTERN_PARTS += ["a*", "b?", "(ab)+", "a{2}", "b{0,2}", "a+?", "[]a]", r"\n", "^", "$", "-"]


# Parts that Python's regular expressions do not have, or with another meaning.
ENGINE_PARTS = [*PATTERN_PARTS, "^*", "$*", "^?", "$+", "a?*", "a+*", "a{2}{0}", "b*?", "a**"]
ENGINE_PARTS += [r"\<", r"\>", r"\v", r"[\]]", "[^]]", "(?i:A)", "(?P<n>a)", r"\b{0}", "}", "]"]


@given(
    st.sampled_from(["", "(?i)", "(?m)", "(?s)", "(?im)"]),
    st.lists(st.sampled_from(ENGINE_PARTS), min_size=1, max_size=4),
    st.lists(st.text(st.sampled_from("abAB .-]}<*\n\v\x85\u2028é"), max_size=6), max_size=20),
)
@example("", ["b", "a+?", "b"], ["baab"])
@example("", ["b", "a{2}", "b"], ["baab"])
@settings(max_examples=600)
def test_a_pattern_of_an_engine_requires_what_its_matches_hold(flags, parts, texts):
    pattern = flags + "".join(parts)
    requirement = require_regex(("message",), pattern)
    if requirement is None:
        return
    matches: set[str] = set()
    with suppress(pa.ArrowInvalid):
        found = pc.match_substring_regex(pa.array(texts, pa.string()), pattern).to_pylist()
        matches |= {text for text, does_match in zip(texts, found, strict=True) if does_match}
    with suppress(pl.exceptions.ComputeError):
        found = pl.Series(texts, dtype=pl.String).str.contains(pattern).to_list()
        matches |= {text for text, does_match in zip(texts, found, strict=True) if does_match}
    for text in matches:
        assert holds(requirement, {"message": text}), (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    [
        "a|b",
        "(?x)a b",
        r"\Qab\E",
        "a{,3}b",
        "[[:alpha:]]ab",
        r"\x41b",
        "ab(?i)cd",
        "(?<=a)b",
        "(?!a)b",
        "a)b",
        "ab$?",
        r"[\c]]ab",
    ],
)
def test_a_pattern_that_is_not_plain_requires_nothing(pattern):
    assert require_regex(("message",), pattern) is None


def test_the_end_of_a_line_ends_no_word():
    """In Java, ``ab$`` matches before U+0085 at the end of a text, which belongs to the word."""
    for pattern, text in (("ab$", "ab\x85"), ("(?m)^ab", "c\u2028ab"), (r"ab\v", "ab\n")):
        requirement = require_regex(("message",), pattern)
        assert requirement is not None
        assert holds(requirement, {"message": text})


def test_a_word_is_a_run_of_letters_digits_and_other_characters(folder, plain):
    messages = plain.to_table(columns=["row", "message"])
    for word in ("error", "id", "7", "Größe", "日本語", "user", "1", "nothing"):
        expected = [
            row
            for row, message in zip(*messages.to_pydict().values(), strict=True)
            if message is not None
            and word.encode() in re.findall(rb"[0-9A-Za-z\x80-\xff]+", message.encode())
        ]
        filter = f"contains_token(message, '{word}')"
        assert numbers_of(plain.to_table(filter=filter)) == expected


MESSAGE = pc.field("message")
# Conditions of rare elements, words and texts, which are in few zones.
RARE = [
    "list_contains(tags, 't7')",
    "'t7' = ANY(tags)",
    "list_has_any(tags, ['t7', 't9'])",
    "list_has_all(tags, ['t7', 'a'])",
    "list_contains(tags, 't7') AND len(tags) < 3",
    "list_contains(numbers, 29)",
    "attrs['host'] = 'n7'",
    "map_extract_value(attrs, 'host') = 'n7'",
    "contains_token(message, '7')",
    "message LIKE '%id=17'",
    "message LIKE '%id%=17'",
    "message ILIKE '%, ID=17'",
    "lower(message) LIKE '%, id=17'",
    "contains(message, ' id=17')",
    "ends_with(message, 'id=17')",
    "regexp_matches(message, 'id=17[a-z]?')",
    "regexp_matches(message, '(?i)=17 ')",
    "starts_with(message, '日本語-id=3')",
    "region = 'eu' AND key = 17",
    f"ts < TIMESTAMP '{START + datetime.timedelta(minutes=50)}'",
    pc.match_substring(MESSAGE, "id=17"),
    pc.match_substring(MESSAGE, "=17 ", ignore_case=True),
    pc.match_substring_regex(MESSAGE, "id=17x*"),
    pc.match_like(MESSAGE, "%id=17"),
    pc.ends_with(MESSAGE, "id=17"),
    pc.starts_with(MESSAGE, "日本語-id=3"),
    pl.col("message").str.contains("id=17x*"),
    pl.col("message").str.contains("(?i)=17 "),
    pl.col("message").str.contains("id=17", literal=True),
    pl.col("message").str.ends_with("id=17"),
    pl.col("message").str.starts_with("日本語-id=3").alias("x"),
    pl.col("message").str.contains_any(["id=17", "id=18"]),
    pl.col("tags").list.contains("t7"),
    pl.col("numbers").list.contains(29),
]


@pytest.mark.parametrize("filter", RARE, ids=str)
def test_indices_keep_few_zones(indexed, filter):
    assert len(indexed.search(filter).at_most) <= 6 * ZONE
