"""The keys that indices hold of each row, against plain Python."""

from __future__ import annotations

import itertools
import re
import struct
import tracemalloc
from decimal import Decimal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import xxh64

import zonebloom as zb
from zonebloom import errors
from zonebloom.index.row_keys.elements import hash_elements, hash_entries
from zonebloom.index.row_keys.rules import (
    ElementRule,
    EntryRule,
    KeyQuestion,
    TupleRule,
    UnknownRule,
    rule_of,
)
from zonebloom.index.row_keys.tokens import (
    fold,
    fold_table,
    hash_tokens,
    tokens_of_text,
)
from zonebloom.index.row_keys.zone_hashes import ZoneHashCollector
from zonebloom.predicates.ast import HasElement, HasTuple, IsIn
from zonebloom.sbbf.hashing import RowHashes, hash_array

ALPHABET = "abXY09 -_.éÉßẞſKİıi\u0307ΣσςµμÅå日本ЖжﬀǅᲀΩ\U0001f600"
TEXTS = st.text(st.sampled_from(ALPHABET), max_size=12)
UNITS = ["words", "trigrams"]
BOTH = {"starts_word": True, "ends_word": True}


def fold_plainly(text: str) -> str:
    """Return a text in which letters that some engine takes for one another are the same."""
    return "".join(chr(REPRESENTATIVES.get(ord(c), ord(c))) for c in text if c != "\u0307")


def representatives() -> dict[int, int]:
    table = fold_table()
    return {code: int(table[code]) for code in range(table.size) if table[code] != code}


REPRESENTATIVES = representatives()


def plain_tokens(text: str, unit: str, *, lower: bool) -> list[bytes]:
    data = (fold_plainly(text) if lower else text).encode()
    if unit == "trigrams":
        return [data[i : i + 3] for i in range(len(data) - 2)]
    return re.findall(rb"[0-9A-Za-z\x80-\xff]+", data)


# No character from 0x1F000 on has a case to any engine that zonebloom reads, or is folded.
CHARACTERS = [chr(code) for code in range(0x20000) if not 0xD800 <= code < 0xE000]


@pytest.mark.slow
def test_letters_that_differ_in_case_only_are_folded_to_one():
    """All letters that an engine may take for a letter of Latin, Greek or Cyrillic."""
    cased = [*range(0x41, 0x5B), *range(0xC0, 0x180), *range(0x386, 0x3D0), *range(0x400, 0x460)]
    letters = set(map(chr, cased))
    for character in CHARACTERS:
        folded = fold(character)
        assert len(folded.encode()) <= len(character.encode())
        assert fold(folded) == folded
        for other in {character.lower(), character.upper(), character.casefold()}:
            if len(other) == 1 and (character in letters or other in letters):
                assert fold(other) == folded, (character, other)
        # No separator appears or disappears.
        is_word = ord(character) >= 0x80 or character.isalnum()
        assert not folded or is_word == (ord(folded[0]) >= 0x80 or folded[0].isalnum())
    rest = "".join(map(chr, range(0x20000, 0x110000)))
    assert fold(rest) == rest
    # Engines fold these to i and a dot above, or to i.
    assert fold("İ") == fold("i\u0307") == fold("ı") == fold("I") == "i"
    assert fold("STRAẞE ΣΊΣΥΦΟΣ \u212a") == fold("straße σίσυφος k")


CASE_MAPPINGS = {
    "str.lower": lambda: map(str.lower, CHARACTERS),
    "str.upper": lambda: map(str.upper, CHARACTERS),
    "str.title": lambda: map(str.title, CHARACTERS),
    "str.casefold": lambda: map(str.casefold, CHARACTERS),
    "utf8_lower": lambda: pc.call_function("utf8_lower", [pa.array(CHARACTERS)]).to_pylist(),
    "utf8_upper": lambda: pc.call_function("utf8_upper", [pa.array(CHARACTERS)]).to_pylist(),
}


def is_looked_up(character: str) -> bool:
    return tokens_of_text(character, "words", lower=True, **BOTH) != []


@pytest.mark.parametrize("mapping", CASE_MAPPINGS)
def test_characters_that_are_looked_up_have_the_fold_of_their_other_case(mapping):
    """The characters of all scripts, and numbers and symbols with a case such as Ⅻ and Ⓐ."""
    for character, other in zip(CHARACTERS, CASE_MAPPINGS[mapping](), strict=True):
        if other == character or len(other) > 1 or fold(character) == fold(other):
            continue
        assert not is_looked_up(character), (character, other)
        assert not is_looked_up(other), (character, other)


@pytest.mark.slow
def test_no_other_character_matches_those_that_are_looked_up_without_regard_to_case():
    """RE2 takes U+0390 for U+1FD3, although no mapping to one character relates them."""
    codes = [ord(character) for character in CHARACTERS if is_looked_up(character)]
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    members = "".join(rf"\x{{{first:X}}}-\x{{{last:X}}}" for first, last in ranges)
    strings = pa.array(CHARACTERS)
    matches = strings.filter(pc.match_substring_regex(strings, f"^(?i:[{members}])$")).to_pylist()
    assert len(matches) >= len(codes)
    folds = {fold(chr(code)) for code in codes}
    assert [hex(ord(match)) for match in matches if fold(match) not in folds] == []


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("text", ["ⓐbc ⅻi", "Ⓐbc ⅫI", "\u0390z abc", "\u1fd3z abc", "ⅎ abc"])
def test_no_row_is_lost_for_characters_whose_case_is_not_folded(tmp_path, unit, text):
    rows = ["x"] * 10
    for other in ("Ⓐbc ⅫI", "ⓐbc ⅻi", "\u0390z abc", "\u1fd3Z abc", "Ⅎ abc"):
        rows += [other] * 10
    pq.write_table(pa.table({"id": range(60), "m": rows}), tmp_path / "a.parquet")
    ds = zb.dataset(tmp_path)
    ds.create_scalar_index("m", "HASH", tokens=unit, lower=True, number_of_items=10, spark=False)
    for filter in (
        f"m ILIKE '{text}'",
        f"m ILIKE '%{text}%'",
        f"lower(m) = lower('{text}')",
        f"regexp_matches(m, '{text}', 'i')",
    ):
        expected = ds.to_table(columns=["id"], filter=filter, use_scalar_index=False)
        assert expected.num_rows
        assert ds.to_table(columns=["id"], filter=filter).equals(expected), filter


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("lower", [False, True])
@given(texts=st.lists(st.one_of(st.none(), TEXTS), max_size=8))
@settings(max_examples=100)
def test_tokens_are_those_of_plain_python(unit, lower, texts):
    expected = [[] if t is None else plain_tokens(t, unit, lower=lower) for t in texts]
    plain = pa.array(texts, pa.string())
    arrays = [
        plain,
        plain.cast(pa.large_string()),
        plain.cast(pa.string_view()),
        plain.dictionary_encode(),
        pa.concat_arrays([pa.array(["x", None, "yz1"]), plain]).slice(3),
    ]
    for array in arrays:
        found = []
        for part in hash_tokens(array, unit, lower=lower):
            ends = [0, *part.ends.tolist()]
            found += [part.values[a:b].tolist() for a, b in itertools.pairwise(ends)]
            assert part.is_null.size == part.ends.size
        assert found == [[xxh64(token) for token in tokens] for tokens in expected]


def test_bytes_that_are_not_utf8_are_tokens_too():
    raw = pa.array([b"ab\xff cd", b"\xc3", b"\xe2\x82", b"x\xf0\x9f", b"\xed\xa0\x80"], pa.binary())
    strings = pa.Array.from_buffers(pa.string(), 5, raw.buffers())
    for lower in (False, True):
        (part,) = hash_tokens(strings, "words", lower=lower)
        expected = [b"ab\xff", b"cd", b"\xc3", b"\xe2\x82", b"x\xf0\x9f", b"\xed\xa0\x80"]
        assert part.values.tolist() == list(map(xxh64, expected))


def test_bytes_below_nulls_are_dropped_beside_bytes_that_are_not_utf8():
    _, offsets, data = pa.array([b"below", b"ab\xff cd", b"\xc3"], pa.binary()).buffers()
    strings = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(b"\6"), offsets, data])
    (part,) = hash_tokens(strings, "words", lower=True)
    assert hashes_by_row(part) == [[], [xxh64(b"ab\xff"), xxh64(b"cd")], [xxh64(b"\xc3")]]
    assert part.is_null.tolist() == [True, False, False]


@given(st.data())
@settings(max_examples=400)
def test_a_string_with_a_text_has_the_tokens_of_the_text(data):
    """Words at the ends of a text count only if words begin and end there."""
    before, text, after = (data.draw(TEXTS) for _ in range(3))
    unit, lower = data.draw(st.sampled_from(UNITS)), data.draw(st.booleans())
    whole = before + text + after
    if lower:
        # Engines compare without regard to case, so the string may have other letters.
        whole = data.draw(st.sampled_from([whole, whole.upper(), whole.lower(), whole.casefold()]))
        if fold_plainly(text) not in fold_plainly(whole):
            return

    def at_edge(outside: str) -> bool:
        return not outside or (outside.isascii() and not outside.isalnum())

    starts, ends = at_edge(before[-1:]), at_edge(after[:1])
    tokens = tokens_of_text(text, unit, lower=lower, starts_word=starts, ends_word=ends)
    assert set(tokens) <= set(plain_tokens(whole, unit, lower=lower))


@pytest.mark.parametrize(
    ("text", "edges", "unit", "lower", "expected"),
    [
        ("error", {}, "words", False, []),
        ("error", {"starts_word": True}, "words", False, []),
        ("error", BOTH, "words", False, [b"error"]),
        ("a disk full b", {}, "words", False, [b"disk", b"full"]),
        ("Disk Full", BOTH, "words", True, [b"disk", b"full"]),
        ("ab", {}, "trigrams", False, []),
        ("abcd", {}, "trigrams", False, [b"abc", b"bcd"]),
        ("日", {}, "trigrams", False, ["日".encode()]),
        # Georgian got a second case in Unicode 11, so engines may differ.
        ("a bა cd ef", BOTH, "words", True, [b"a", b"cd", b"ef"]),
        # A text is cut at the character itself, whatever is beside it.
        ("x\0Აb c", BOTH, "words", True, [b"x", b"c"]),
        ("x Ა\0b c", BOTH, "words", True, [b"x", b"b", b"c"]),
        ("x\0\0b c", BOTH, "words", True, [b"x", b"b", b"c"]),
    ],
)
def test_tokens_of_a_text(text, edges, unit, lower, expected):
    assert tokens_of_text(text, unit, lower=lower, **edges) == expected


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=20), st.integers(1, 7), st.data())
def test_zones_collect_the_hashes_of_their_rows(rows, items, data):
    collector, zones, start = ZoneHashCollector(items), [], 0
    while start < len(rows):
        stop = data.draw(st.integers(start + 1, len(rows)))
        part = rows[start:stop]
        values = np.array([n for row in part for n in row], np.uint64)
        ends = np.cumsum([len(row) for row in part])
        zones += collector.add(RowHashes(values, ends, np.array([not row for row in part])))
        start = stop
    zones += collector.finish()
    expected = [rows[i : i + items] for i in range(0, len(rows), items)]
    assert [zone.num_rows for zone in zones] == list(map(len, expected))
    for zone, part in zip(zones, expected, strict=True):
        assert set(zone.hashes.tolist()) == {n for row in part for n in row}
        assert zone.has_null == any(not row for row in part)


ELEMENTS = {
    pa.int32(): [0, 5, -1],
    pa.float64(): [0.0, -0.0, 1.5, float("nan")],
    pa.string(): ["", "a", "é"],
    pa.large_string(): ["", "a"],
    pa.binary(3): [b"abc", b"\0\0\0"],
    pa.date32(): [0, 19000],
    pa.timestamp("us", "UTC"): [0, 10**15],
}


def hashes_by_row(part: RowHashes) -> list[list[int]]:
    ends = [0, *part.ends.tolist()]
    return [part.values[a:b].tolist() for a, b in itertools.pairwise(ends)]


@pytest.mark.slow
@given(st.sampled_from(list(ELEMENTS)), st.data())
@settings(max_examples=200)
def test_elements_have_the_hashes_of_a_column(kind, data):
    items = st.one_of(st.none(), st.sampled_from(ELEMENTS[kind]))
    rows = data.draw(st.lists(st.one_of(st.none(), st.lists(items, max_size=3)), max_size=6))
    expected = [
        [hash_array(pa.array([item], kind)).values[0] for item in row or () if item is not None]
        for row in rows
    ]
    plain = pa.array(rows, pa.list_(kind))
    structs = pa.array(
        [row and [None if i == 1 else {"x": v} for i, v in enumerate(row)] for row in rows],
        pa.list_(pa.struct([("x", kind)])),
    )
    # A field of a null struct is null.
    of_structs = [
        [
            hash_array(pa.array([v], kind)).values[0]
            for i, v in enumerate(row or ())
            if v is not None and i != 1
        ]
        for row in rows
    ]
    padded = pa.concat_arrays([pa.array([[ELEMENTS[kind][0]], None], plain.type), plain]).slice(2)
    for array, field, wanted in (
        (plain, (), expected),
        (plain.cast(pa.large_list(kind)), (), expected),
        (padded, (), expected),
        (structs, ("x",), of_structs),
    ):
        part = hash_elements(array, field)
        assert hashes_by_row(part) == wanted
        assert part.is_null.tolist() == [row is None for row in rows]
    fixed = pa.array(
        [None if row is None else [*row, None, None, None][:3] for row in rows], pa.list_(kind, 3)
    )
    assert hashes_by_row(hash_elements(fixed, ())) == expected


@pytest.mark.parametrize("view", [pa.list_view, pa.large_list_view])
@given(
    rows=st.lists(st.none() | st.lists(st.none() | st.integers(-3, 3), max_size=3), max_size=6),
    start=st.integers(0, 3),
)
def test_elements_of_list_views_are_those_of_lists(view, rows, start):
    lists = pa.array(rows, view(pa.int32())).slice(start)
    expected = pa.array(rows[start:], pa.list_(pa.int32()))
    part, expected_part = hash_elements(lists, ()), hash_elements(expected, ())
    assert hashes_by_row(part) == hashes_by_row(expected_part)
    assert part.is_null.tolist() == [row is None for row in rows[start:]]


def test_list_views_may_overlap_in_any_order():
    numbers = pa.array([1, 2, 3, 4, 5], pa.int32())
    offsets, sizes = pa.array([3, 0, 1], pa.int32()), pa.array([2, 2, 3], pa.int32())
    views = pa.ListViewArray.from_arrays(offsets, sizes, numbers)
    expected = pa.array([[4, 5], [1, 2], [2, 3, 4]], pa.list_(pa.int32()))
    for start in range(4):
        part = hash_elements(views.slice(start), ())
        assert hashes_by_row(part) == hashes_by_row(hash_elements(expected.slice(start), ()))


@pytest.mark.parametrize("buffer", [None, pa.py_buffer(b"")])
def test_empty_lists_and_maps_may_have_no_offsets(buffer):
    numbers = pa.array([], pa.int32())
    lists = pa.Array.from_buffers(pa.list_(pa.int32()), 0, [None, buffer], children=[numbers])
    entry_type = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.int32())])
    entries = pa.array([], entry_type)
    map_type = pa.map_(pa.string(), pa.int32())
    maps = pa.Array.from_buffers(map_type, 0, [None, buffer], children=[entries])
    for part in (hash_elements(lists, ()), hash_entries(maps)):
        assert (part.values.size, part.num_rows, part.is_null.size) == (0, 0, 0)


def test_elements_below_null_lists_do_not_count_for_other_rows():
    values = pa.array([1, 2, 3, 4], pa.int64())
    offsets = pa.array([0, 2, 4], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, values, mask=pa.array([True, False]))
    one = [hash_array(pa.array([n], pa.int64())).values[0] for n in (3, 4)]
    assert hashes_by_row(hash_elements(lists, ()))[1] == one


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.lists(st.tuples(TEXTS, st.one_of(st.none(), st.integers(-5, 5))), max_size=3),
        ),
        max_size=6,
    )
)
def test_entries_have_the_hash_of_key_and_value(rows):
    maps = pa.array(rows, pa.map_(pa.string(), pa.int64()))
    expected = [
        [
            xxh64(struct.pack("<QQ", xxh64(key.encode()), xxh64(struct.pack("<q", value))))
            for key, value in row or ()
            if value is not None
        ]
        for row in rows
    ]
    assert hashes_by_row(hash_entries(maps)) == expected


def answers(question: KeyQuestion | str, part: RowHashes) -> list[bool]:
    """Return whether each row may match."""
    if isinstance(question, str):
        return [True] * part.num_rows
    rows = [set(row) for row in hashes_by_row(part)]
    return [
        all(row.intersection(probe.hashes.tolist()) for probe in question.probes)
        or (question.nulls_match and bool(is_null))
        for row, is_null in zip(rows, part.is_null, strict=True)
    ]


WRAPPED_ELEMENTS = {
    **ELEMENTS,
    pa.uint8(): [0, 255],
    pa.float32(): [0.0, -0.0, 0.1, float("nan")],
    pa.string_view(): ["", "a", "longer than twelve bytes"],
    pa.binary_view(): [b"", b"longer than twelve bytes"],
    pa.decimal128(9, 2): [Decimal("0.00"), Decimal("-1.25")],
    pa.uuid(): [UUID(int=0), UUID(int=7)],
    pa.dictionary(pa.int8(), pa.string()): ["", "a", "é"],
}


@pytest.mark.slow
@given(st.sampled_from(list(WRAPPED_ELEMENTS)), st.booleans(), st.data())
@settings(max_examples=300)
def test_no_row_that_holds_an_element_or_entry_is_lost(kind, is_map, data):
    """Equality is that of Python, to which NaN differs from itself and both zeros are equal."""
    values = WRAPPED_ELEMENTS[kind]
    items = st.none() | st.sampled_from(values)
    if is_map:
        items = st.tuples(st.sampled_from("ab"), items)
    rows = data.draw(st.lists(st.none() | st.lists(items, max_size=3), min_size=1, max_size=6))
    wanted = data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=2))
    flat = [item for row in rows for item in row or ()]
    numbers = [item[1] for item in flat] if is_map else flat
    children = pa.array(numbers, kind)
    # A null at an offset makes the row that begins there null.
    ends = list(itertools.accumulate(len(row or ()) for row in rows))
    starts = [None if row is None else end - len(row) for row, end in zip(rows, ends, strict=True)]
    offsets = pa.array([*starts, ends[-1]], pa.int32())
    start = data.draw(st.integers(0, len(rows) - 1))
    if is_map:
        keys = pa.array([key for key, _ in flat], pa.string())
        column = pa.MapArray.from_arrays(offsets, keys, children).slice(start)
        rule, key = EntryRule(), pa.scalar("a")
        held = [[v for k, v in row or () if k == "a"] for row in rows]
    else:
        column = pa.ListArray.from_arrays(offsets, children).slice(start)
        rule, key, held = ElementRule(), None, [row or [] for row in rows]
    leaf = HasElement(("c",), pa.array(wanted, kind), key=key)
    (part,) = rule.parts([column])
    found = answers(rule.question(leaf, [column.type]), part)
    matches = [any(v is not None and v == w for v in row for w in wanted) for row in held[start:]]
    assert [m for m, is_found in zip(matches, found, strict=True) if m and not is_found] == []
    assert part.is_null.tolist() == [row is None for row in rows[start:]]


def test_tuples_have_the_hash_of_their_hashes():
    columns = [
        pa.array(["a", "b", None, "a"]),
        pa.array([1, 2, 3, None], pa.int32()),
        pa.array([-0.0, 0.5, 1.0, 1.0]),
    ]
    rule = TupleRule((("n",), ("z",)), (("n",), ("z",)))
    (part,) = rule.parts(columns)
    forms = (b"a", struct.pack("<i", 1), struct.pack("<d", -0.0))
    assert int(part.values[0]) == xxh64(struct.pack("<QQQ", *map(xxh64, forms)))
    assert part.is_valid().tolist() == [True, True, False, False]
    # Both zeros are equal, so keys of one find rows with the other.
    types = [array.type for array in columns]
    for zero, other in ((0.0, 0.5), (-0.0, 0.25)):
        keys = pa.array(["a", "x"]), pa.array([1, 9]), pa.array([zero, other])
        question = rule.question(HasTuple((("t",), ("n",), ("z",)), keys), types)
        assert isinstance(question, KeyQuestion)
        hashes = question.probes[0].hashes.tolist()
        assert int(part.values[0]) in hashes and int(part.values[1]) not in hashes
    question = rule.question(HasTuple((("t",), ("q",)), columns[:2]), [pa.string(), pa.int32()])
    assert "another index" in str(question)


@pytest.mark.parametrize(
    "stored",
    [
        {"keys": "secret"},
        {"keys": "tokens"},
        {"keys": "tokens", "unit": "letters"},
        {"keys": "tokens", "unit": "words", "lower": 1},
        {"keys": "tuples", "columns": [], "fields": []},
        {"keys": "tuples", "columns": [["a"]], "fields": []},
        {"keys": "elements", "depth": 2},
        {"unit": "words"},
    ],
)
def test_a_rule_that_is_not_known_is_not_used(stored, tmp_path):
    assert isinstance(rule_of(stored), UnknownRule)
    pq.write_table(pa.table({"x": ["a", "b"], "t": [["a"], ["b"]]}), tmp_path / "a.parquet")
    ds = zb.dataset(tmp_path)
    ds.create_scalar_index("x", spark=False)
    version = ds.opened.version
    (entry,) = version.indices.values()
    from dataclasses import replace

    ds.opened.catalog.commit(
        lambda latest: latest.with_indices({"x_idx": replace(entry, rule=stored)})
    )
    changed = zb.dataset(tmp_path)
    with pytest.warns(errors.IndexNotUsedWarning, match="cannot be used"):
        assert changed.count_rows("x = 'a'") == 1
    assert changed.describe_indices()[0].column == "unknown keys of x"
    with pytest.raises(errors.SchemaMismatch, match="cannot be used, because it holds keys of"):
        changed.validate_index("x_idx")


@pytest.fixture
def folder(tmp_path):
    table = pa.table(
        {
            "id": range(100),
            "tags": pa.array([[f"t{i // 10}", None] for i in range(100)]),
            "events": pa.array([[{"id": i // 10, "at": {"ms": i}}, None] for i in range(100)]),
            "attrs": pa.array(
                [[("host", f"h{i // 10}")] for i in range(100)], pa.map_(pa.string(), pa.string())
            ),
            "flags": pa.array([[True]] * 100),
            "message": [f"Job {i // 10} done" for i in range(100)],
            "region": ["eu", "us"] * 50,
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    return tmp_path


@pytest.mark.parametrize("kind", ["BLOOMFILTER", "HASH"])
def test_indices_are_named_described_refreshed_and_validated(folder, kind):
    ds = zb.dataset(folder)
    targets = ["tags[]", "attrs[]", "events[].id", "events[].at.ms", ("region", "id")]
    ds.create_scalar_index(targets, kind, number_of_items=10, spark=False)
    for unit, lower in (("words", True), ("trigrams", False)):
        ds.create_scalar_index(
            "message", kind, tokens=unit, lower=lower, number_of_items=10, spark=False
        )
    described = {index.name: index.column for index in ds.describe_indices()}
    assert described == {
        "tags_idx": "tags[]",
        "attrs_idx": "attrs[]",
        "events_id_idx": "events[].id",
        "events_at_ms_idx": "events[].at.ms",
        "region_id_idx": "(region, id)",
        "message_words_idx": "words of lower(message)",
        "message_trigrams_idx": "trigrams of message",
    }
    pq.write_table(pq.read_table(folder / "a.parquet").slice(90), folder / "b.parquet")
    ds = zb.dataset(folder)
    ds.optimize.optimize_indices(spark=False)
    for name, column in described.items():
        assert ds.validate_index(name, sample="all").zones_read == 11
        assert ds.index_statistics(name)["column"] == column
    for filter, zones in (
        ("list_contains(tags, 't9')", 2),
        ("attrs['host'] = 'h3'", 1),
        ("contains_token(message, '4')", 1),
        ("message ILIKE '% 4 DONE'", 1),
        ("message LIKE '%4 done'", 1),
        ("(region, id) IN (('eu', 4), ('us', 95), ('us', 4))", 3),
        ("message = 'Job 9 done'", 2),
    ):
        expected = ds.to_table(columns=["id"], filter=filter, use_scalar_index=False)
        assert ds.to_table(columns=["id"], filter=filter).equals(expected)
        assert len(ds.search(filter).at_most) == 10 * zones, filter


def test_keys_of_several_columns_are_looked_up(folder):
    ds = zb.dataset(folder)
    ds.create_scalar_index(("region", "id"), "HASH", number_of_items=10, spark=False)
    keys = [("eu", 4), ("us", 4), ("us", 7), ("eu", 4)]
    found = ds.lookup(("region", "id"), keys, ["id", "region"])
    assert found.to_pylist() == [
        {"key_index": 0, "id": 4, "region": "eu"},
        {"key_index": 3, "id": 4, "region": "eu"},
        {"key_index": 2, "id": 7, "region": "us"},
    ]
    table = {"region": [key[0] for key in keys], "id": [key[1] for key in keys]}
    assert ds.locate(["region", "id"], table)["row"].to_pylist() == [4, None, 7, 4]
    many = {"region": ["eu", "us"] * 10_000, "id": list(range(20_000))}
    located = ds.locate(["region", "id"], many)
    assert located["row"].to_pylist() == [*range(100), *[None] * 19_900]
    assert ds.lookup(("region", "id"), [], ["id"]).num_rows == 0


@pytest.mark.parametrize(
    ("column", "options", "error", "message"),
    [
        ("flags[]", {}, errors.UnsupportedType, "two values cannot tell zones apart"),
        ("id[]", {}, errors.UnsupportedType, "it has no such elements"),
        ("tags[].x", {}, errors.UnsupportedType, "it has no such elements"),
        ("events[]", {}, errors.UnsupportedType, "index one of its leaves instead"),
        ("nope[]", {}, errors.ColumnNotFound, "no column 'nope'"),
        ("id", {"tokens": "words"}, errors.UnsupportedType, "only strings have tokens"),
        ("message", {"tokens": "letters"}, errors.InvalidArgument, "tokens is 'letters'"),
        ("message", {"lower": True}, errors.InvalidArgument, "also give tokens"),
        (("region",), {}, errors.InvalidArgument, "two or more different columns"),
        (("region", "region"), {}, errors.InvalidArgument, "two or more different columns"),
        (("region", "tags"), {}, errors.UnsupportedType, r"index its elements instead: tags\[\]"),
        (("region", "id"), {"tokens": "words"}, errors.InvalidArgument, "give no tuple"),
        ("tags[]", {"global_filter": True}, errors.InvalidArgument, "has no global filter"),
    ],
)
def test_keys_that_columns_lack_are_refused(folder, column, options, error, message):
    with pytest.raises(error, match=message):
        zb.dataset(folder).create_scalar_index(column, spark=False, **options)


def test_an_index_of_other_keys_is_not_for_lance(folder):
    ds = zb.dataset(folder)
    ds.create_scalar_index("tags[]", spark=False)
    with pytest.raises(errors.InvalidArgument, match=r"holds tags\[\], which no index of Lance"):
        ds.index_to_lance("tags_idx", "x.lance")


@pytest.mark.parametrize("kind", ["HASH", "BLOOMFILTER"])
@pytest.mark.parametrize(
    "type_",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_tuples_of_sets_of_all_types_are_looked_up(tmp_path, type_, kind):
    texts = pa.array(["x", "y", "z"] * 10)
    table = pa.table({"f": [1.0, 2.0, 3.0] * 10, "s": texts.cast(type_)})
    pq.write_table(table, tmp_path / "0.parquet")
    ds = zb.dataset(tmp_path, index_dir=tmp_path / "_index")
    ds.create_scalar_index(("f", "s"), kind, spark=False)
    values_types = [pa.string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
    for values_type, number in itertools.product(values_types, [pa.scalar(1), pa.scalar(1.0)]):
        is_number = pc.field("f") == number
        for keys in [[], ["x"], ["x", "y"]]:
            values = pa.array(keys, pa.string()).cast(values_type)
            filters = [pc.field("s").isin(values) & is_number]
            if keys:
                filters.append([IsIn(("s",), values), is_number])
                filters.append((pc.field("s") == values[0]) & is_number)
            for filter in filters:
                assert ds.count_rows(filter) == (10 if keys else 0), (values_type, keys)


@pytest.mark.slow
@pytest.mark.parametrize(("num_rows", "num_words"), [(60_000, 60), (100, 36_000)])
def test_a_build_holds_the_hashes_of_few_tokens(tmp_path, num_rows, num_words):
    """25 MB of text have 200 MB of hashes, be they in many rows or in few."""
    rng = np.random.default_rng(0)
    words = np.array([f"w{number:05d}" for number in range(1000)])
    texts = [" ".join(row) for row in words[rng.integers(0, 1000, (num_rows, num_words))]]
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"t": texts}), tmp_path / "data" / "0.parquet")
    ds = zb.dataset(tmp_path / "data")
    tracemalloc.start()
    try:
        ds.create_scalar_index("t", tokens="trigrams", spark=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 150 << 20
    found = ds.to_table(filter="contains(t, ' w00042 w00')")
    assert found["t"].to_pylist() == [text for text in texts if " w00042 w00" in text]
