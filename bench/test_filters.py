"""Translate and search a filter in each language, compared with PyArrow binding the same filter."""

from __future__ import annotations

import itertools

import polars as pl
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest

LANGUAGES = {
    "pyarrow": lambda key: pc.field("id") == key,
    "tuples": lambda key: [("id", "=", key)],
    "Polars": lambda key: pl.col("id") == key,
    "SQL": lambda key: f"id = {key}",
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_translate_and_search(indexed, keys, versus, language):
    indexed.prewarm_index("id_idx")
    empty_dataset = pads.dataset(indexed.schema.empty_table())
    our_keys, their_keys = itertools.cycle(keys), itertools.cycle(keys)
    make_filter = LANGUAGES[language]
    versus(
        lambda: indexed.search(make_filter(next(our_keys))),
        {
            "PyArrow binding it": lambda: empty_dataset.scanner(
                filter=pc.field("id") == next(their_keys)
            )
        },
        rounds=2000,
    )
