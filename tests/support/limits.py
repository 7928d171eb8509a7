"""What tests change in the package, by names: limits that are too large for tests, and functions.

This is the only place that knows these constants and functions, besides the tests of kernels.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from support.seams import replace_function, set_constant

_CONSTANTS = {
    "bytes of a task of a build": "building.train:_TASK_BYTES",
    "bytes of a file that a build reads at once": "building.train:WHOLE_BYTES",
    "bytes of a file whose digest covers all": "catalog.freshness:WHOLE_BYTES",
    "rows of a batch of a build": "sources.column_batches:_RUN_ROWS",
    "segments that are merged": "building.segments:_MANY_SEGMENTS",
    "rows of a table for HASH": "advise.judge:_MIN_HASH_ROWS",
    "rows of a large table": "facade.indices:_MANY_ROWS",
    "rows that are sorted in batches": "scan.ordering:_MIN_COLLECTED_ROWS",
    "keys that are searched": "scan.locate:MAX_SEARCHED_KEYS",
    "keys that are compared one by one": "parquet.key_tests:_MAX_SINGLE_KEYS",
    "keys that are compared as a set": "parquet.key_tests:_MAX_IN_SET",
    "keys of a sample": "index.key_search:_SAMPLE_KEYS",
    "values that one thread numbers": "scan.key_numbers:_MIN_THREADED_VALUES",
    "rows that one thread reads": "scan.execute:_MIN_THREADED_ROWS",
    "rows that are decoded together": "parquet.leaf_reader:_BATCH_ROWS",
    "objects of a listing": "storage.object_store:_OBJECTS_PER_PAGE",
}


def set_limit(monkeypatch: pytest.MonkeyPatch, name: str, value: int) -> None:
    """Set a limit until the end of the test."""
    module, _, constant = _CONSTANTS[name].partition(":")
    set_constant(monkeypatch, import_module(f"zonebloom.{module}"), constant, value)


def compare_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few keys be compared with all rows, as very many are."""
    for name in ("searched", "compared one by one", "compared as a set"):
        set_limit(monkeypatch, f"keys that are {name}", 1)


def number_keys_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a lookup number its keys as in a process that has not loaded kernels."""
    from zonebloom.scan.lookup import ColumnKeys

    replace_function(monkeypatch, ColumnKeys, "_number_keys", lambda self: None)


def record_polars_reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Record the request and the statistics of each run of our reader for Polars."""
    from zonebloom import lazy_frame

    executions = []

    class Counting(lazy_frame.Execution):
        def __init__(self, source, request):
            super().__init__(source, request)
            executions.append((request, self.stats))

    replace_function(monkeypatch, lazy_frame, "Execution", Counting)
    return executions
