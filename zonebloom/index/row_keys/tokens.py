"""Cut strings into words or trigrams, and find the tokens that a string with a text has.

A word is a longest run of ASCII letters, ASCII digits and other characters than ASCII. A trigram is
three successive bytes of UTF-8. The hash of a token is XXH64 of its bytes.

With ``lower``, strings are folded first, character by character: U+0307 is left out, U+0130 and
U+0131 become ``i``, and a letter of `_CASED` becomes the same as all letters that some engine takes
for it without regard to case. Other characters stay. Texts are not normalised, so ``é`` as one
character and as two are different. Later versions of Unicode may give a case to other characters,
so a text to be found is cut at characters outside of `_CASED` and of scripts without case.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import xxhash

from zonebloom.base.arrays import allocate_array, to_numpy
from zonebloom.sbbf.hashing import RowHashes
from zonebloom.values.normal_types import hashed_values

WORDS, TRIGRAMS = "words", "trigrams"
# Strings of about so many bytes are cut at a time.
_BATCH_BYTES = 1 << 20
_TRIGRAM_BYTES = 3
_DOT_ABOVE = 0x307
# Letters of Latin, Greek and Cyrillic that are folded.
_CASED = (
    *range(0x41, 0x5B),
    *range(0x61, 0x7B),
    *range(0xC0, 0x180),
    *range(0x386, 0x3D0),
    *range(0x400, 0x460),
    0xB5,
)
# Georgian and Cherokee got a second case after Unicode 3.2.
_CASED_LATER = (range(0x10A0, 0x1100), range(0x13A0, 0x1400))
# RE2 and Rust take these for U+1FD3 and U+1FE3, which are not folded.
_CASED_APART = (0x390, 0x3B0)
# Numbers and symbols such as Ⅻ and Ⓐ have a case, too, and Ⅎ became a letter after Unicode 3.2.
_CASED_CATEGORIES = ("Lu", "Ll", "Lt", "Nl", "So", "Cn", "Cs", "Co")
# No letter from here on has a case.
_CASED_STOP = 0x1F000


@cache
def fold_table() -> np.ndarray:
    """Return the folded code point of each code point, -1 if it is left out. int32."""
    parents: dict[int, int] = {}

    def root(code: int) -> int:
        while code in parents:
            code = parents[code]
        return code

    for code in range(0x80, _CASED_STOP):
        character = chr(code)
        for other in {character.lower(), character.upper(), character.casefold()}:
            if len(other) == 1 and other != character:
                one, two = sorted((root(code), root(ord(other))))
                if one != two:
                    parents[two] = one
    table = np.arange(max([*parents, 0x131, _DOT_ABOVE]) + 1, dtype=np.int32)
    table[0x41:0x5B] += 0x20
    cased = {root(code) for code in _CASED}
    for code in parents:
        if root(code) in cased:
            # The least code point of a class, as a small letter if it is ASCII.
            table[code] = table[root(code)]
    table[[0x130, 0x131]] = ord("i")
    table[_DOT_ABOVE] = -1
    return table


def fold(text: str) -> str:
    """Return a folded text.

    >>> fold("Straße İstanbul ΣΊΣΥΦΟΣ") == fold("STRAẞE i̇stanbul σίσυφος")
    True
    """
    table = fold_table()
    codes = [int(table[ord(char)]) if ord(char) < table.size else ord(char) for char in text]
    return "".join(chr(code) for code in codes if code >= 0)


@cache
def _has_known_case(character: str) -> bool:
    """Return whether every version of Unicode folds a character as this one does."""
    code = ord(character)
    if code in _CASED_APART or any(code in later for later in _CASED_LATER):
        return False
    if code < 0x80 or code in _CASED:
        return True
    return unicodedata.ucd_3_2_0.category(character) not in _CASED_CATEGORIES


@cache
def _byte_tables() -> tuple[np.ndarray, np.ndarray]:
    """Return which bytes belong to words, and the lower case of each byte."""
    is_word = np.array([byte >= 0x80 or chr(byte).isalnum() for byte in range(256)])
    lower = np.arange(256, dtype=np.uint8)
    lower[0x41:0x5B] += 0x20
    return is_word, lower


def hash_tokens(strings: pa.Array, unit: str, *, lower: bool) -> Iterator[RowHashes]:
    """Yield the hashes of the words or trigrams of strings, for some strings at a time."""
    strings = hashed_values(strings)
    if not (pt.is_string(strings.type) or pt.is_large_string(strings.type)):
        strings = strings.cast(pa.large_string())
    row = 0
    while row < len(strings):
        mean_bytes = strings.nbytes // len(strings) + 1
        part = strings.slice(row, max(_BATCH_BYTES // mean_bytes, 1))
        yield _hash_batch(part, unit, lower=lower)
        row += len(part)


def _hash_batch(strings: Any, unit: str, *, lower: bool) -> RowHashes:
    from zonebloom.index.row_keys import token_kernels

    _, offsets_buffer, data = strings.buffers()
    dtype = np.int64 if pt.is_large_string(strings.type) else np.int32
    num_offsets = strings.offset + len(strings) + 1
    offsets = np.frombuffer(offsets_buffer, dtype, num_offsets)[strings.offset :].astype(np.int64)
    is_null = to_numpy(strings.is_null())
    if strings.null_count:
        lengths = np.where(is_null, 0, np.diff(offsets))
        if (lengths != np.diff(offsets)).any():
            # Drop the bytes below nulls, which are no text. Other bytes need not be UTF-8.
            without_nulls = _hash_batch(strings.fill_null(""), unit, lower=lower)
            return replace(without_nulls, is_null=is_null)
    lengths = np.diff(offsets)
    hashes = allocate_array(int(lengths.sum()) + 1, np.uint64)
    scratch = np.empty(int(lengths.max(initial=0)) + 4, dtype=np.uint8)
    ends = np.empty(len(strings), dtype=np.int64)
    count = token_kernels.write_token_hashes(
        data.address if data is not None else 0,
        offsets,
        unit == TRIGRAMS,
        lower,
        *_byte_tables(),
        fold_table() if lower else np.empty(0, dtype=np.int32),
        scratch,
        hashes,
        ends,
    )
    return RowHashes(hashes[:count].copy(), ends, is_null)


def tokens_of_text(
    text: str, unit: str, *, lower: bool, starts_word: bool = False, ends_word: bool = False
) -> list[bytes]:
    """Return tokens that every string has that contains a text.

    ``starts_word`` and ``ends_word`` say whether words begin and end where the text does.
    """
    tokens: dict[bytes, None] = {}
    parts = _parts_with_known_case(text) if lower else [text]
    for number, part in enumerate(parts):
        data = (fold(part) if lower else part).encode()
        if unit == TRIGRAMS:
            trigrams = (data[i : i + _TRIGRAM_BYTES] for i in range(len(data) - 2))
            tokens |= dict.fromkeys(trigrams)
            continue
        words = _words(data)
        if words and words[0][0] == 0 and not (starts_word and number == 0):
            del words[0]
        if words and words[-1][1] == len(data) and not (ends_word and number == len(parts) - 1):
            del words[-1]
        tokens |= dict.fromkeys(data[start:stop] for start, stop in words)
    return list(tokens)


def _parts_with_known_case(text: str) -> list[str]:
    """Split a text at characters that are not looked up."""
    parts = [""]
    for character in text:
        if _has_known_case(character):
            parts[-1] += character
        else:
            parts.append("")
    return parts


def _words(data: bytes) -> list[tuple[int, int]]:
    """Return where each word begins and ends."""
    is_word = np.concatenate([[False], _byte_tables()[0][list(data)], [False]])
    changes = np.flatnonzero(is_word[1:] != is_word[:-1])
    return list(zip(changes[::2].tolist(), changes[1::2].tolist(), strict=True))


def hash_of_token(token: bytes) -> int:
    return xxhash.xxh64_intdigest(token)


def distinct_hashes(hashes: np.ndarray) -> np.ndarray:
    """Return the distinct hashes in the order of their first place, uint64."""
    from zonebloom.index.row_keys import token_kernels
    from zonebloom.sbbf.table_slots import TABLE_SEED

    out = np.empty(hashes.size, dtype=np.uint64)
    table = np.zeros(1 << int(2 * hashes.size).bit_length(), dtype=np.uint64)
    return out[: token_kernels.write_distinct(hashes, table, TABLE_SEED, out)].copy()
