"""Pass values of wrong kinds to every public function. The error must name the argument.

Each function gets each value, so it gets every kind of value that it does not expect. A value that
is wrong for one function is right for another, so a call may succeed. It must not fail with an
error of pyarrow, NumPy, or an internal error of zonebloom.
"""

from __future__ import annotations

import inspect
import io
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.helpers import run_command

import zonebloom as zb
from zonebloom import errors
from zonebloom.results import DatasetOptimizer, Scanner

ROWS = 400
PACKAGE = str(Path(zb.__file__).parent)


class Opaque:
    """A value of an unknown type."""


WRONG: dict[str, Any] = {
    "None": None,
    "True": True,
    "5": 5,
    "-1": -1,
    "2**70": 2**70,
    "an integer of 5000 digits": 10**5000,
    "1.5": 1.5,
    "nan": float("nan"),
    "text": "abc",
    "no text": "",
    "half a character": "a\ud800b",
    "a zero byte": "a\0b",
    "long text": "x" * 1000,
    "bytes": b"abc",
    "no list": [],
    "a list of None": [None],
    "a list of text": ["abc"],
    "a list of numbers": [5],
    "a list of lists": [[1]],
    "mixed": ["a", 5],
    "no dict": {},
    "a dict": {"a": 1},
    "a dict of numbers": {5: 5},
    "a tuple": ("id", "=", 5),
    "a set": {"id"},
    "an object": Opaque(),
    "a class": Opaque,
    "floats of NumPy": np.array([1.5]),
    "texts of NumPy": np.array(["a"]),
    "a matrix": np.zeros((2, 2)),
    "an array": pa.array([1]),
    "a table": pa.table({"a": [1]}),
    "an unknown column": pc.field("nope") == 1,
    "other types": pc.field("id") == "x",
    "no such sum": pc.field("name") + 1,
    "no condition": pc.field("id"),
    "a Polars condition": pl.col("id") == 1,
    "an unknown column of Polars": pl.col("nope") == 1,
    "no condition of Polars": pl.col("id") + 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("errors") / "data"
    folder.mkdir()
    numbers = range(ROWS)
    table = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": [f"k{number}" for number in numbers],
            "value": [number / 2 for number in numbers],
            "raw": pa.array([number.to_bytes(16, "big") for number in numbers], pa.binary(16)),
            "st": [{"x": number} for number in numbers],
            "tags": [[number] for number in numbers],
        }
    )
    pq.write_table(table, folder / "0.parquet", row_group_size=100)
    ds = zb.dataset(folder)
    columns = ["id", "name", "value", "raw"]
    ds.create_scalar_index(columns, spark=False, number_of_items=50)
    return folder


@pytest.fixture(scope="module")
def ds(folder: Path) -> zb.Dataset:
    return zb.dataset(folder)


def drained(result: Any) -> Any:
    """Read what is lazy."""
    if hasattr(result, "read_all"):
        return result.read_all()
    return list(result) if hasattr(result, "__next__") else result


def refused(call: Callable[[], Any], parameter: str | None = None) -> BaseException | None:
    """Return the error of a call, which must be a single ZoneBloomError that names the argument."""
    try:
        drained(call())
    except errors.ZoneBloomError as error:
        text = str(error)
        assert text.strip() and text.encode()
        assert len(text) < 5000
        assert parameter is None or parameter in text, text
        printed = io.StringIO()
        traceback.print_exception(error, file=printed)
        assert printed.getvalue().count("Traceback (most recent call last)") == 1, (
            printed.getvalue()
        )
        return error
    return None


# Calls that change an index use an index of their own for the same file.


def built(ds: zb.Dataset, **changes: Any) -> None:
    ds.create_scalar_index(**{"column": "id", "spark": False, "replace": True, **changes})


BUILDS = [
    "column",
    "index_type",
    "name",
    "replace",
    "number_of_items",
    "probability",
    "fold",
    "global_filter",
    "plaintext",
    "train",
    "tokens",
    "lower",
    "spark",
    "progress",
]
SCANS = [
    *("columns", "filter", "limit", "offset", "order_by", "fragments", "with_row_address"),
    *("batch_size", "use_scalar_index", "scan_stats_callback"),
]
RUNS: dict[str, Callable[[zb.Dataset, dict[str, Any]], Any]] = {
    "to_table": lambda ds, arguments: ds.to_table(**arguments),
    "to_batches": lambda ds, arguments: ds.to_batches(**arguments),
    "to_pandas": lambda ds, arguments: ds.to_pandas(**arguments),
    "count_rows": lambda ds, arguments: ds.count_rows(**arguments),
    "head": lambda ds, arguments: ds.head(3, **arguments),
    "to_reader": lambda ds, arguments: ds.scanner(**arguments).to_reader(),
    "explain_plan": lambda ds, arguments: ds.scanner(**arguments).explain_plan(),
    "analyze_plan": lambda ds, arguments: ds.scanner(**arguments).analyze_plan(),
    "schema": lambda ds, arguments: ds.scanner(**arguments).schema,
    "without an index": lambda ds, arguments: ds.to_table(
        **{"use_scalar_index": False, **arguments}
    ),
}
RANGES = zb.RowRanges([(0, 10), (20, 30)])


def one_filter() -> zb.Sbbf:
    return zb.Sbbf(100)


CALLS: dict[str, Callable[[zb.Dataset, Any], Any]] = {
    **{
        f"create_scalar_index({name})": lambda ds, v, name=name: built(ds, **{name: v})
        for name in BUILDS
    },
    **{
        f"optimize_indices({name})": lambda ds, v, name=name: ds.optimize.optimize_indices(
            **{"spark": False, name: v}
        )
        for name in ("index_names", "retention", "spark", "progress")
    },
    **{
        name: lambda ds, v, name=name: getattr(ds, name)(v)
        for name in (
            "drop_index",
            "index_statistics",
            "prewarm_index",
            "validate_index",
            "key_ranges",
            "global_filter",
            "vacuum",
            "search",
            "head",
            "take",
            "take_rows",
            "filter",
            "get_fragments",
        )
    },
    "validate_index(sample)": lambda ds, v: ds.validate_index("name_idx", sample=v),
    "index_to_lance(name)": lambda ds, v: ds.index_to_lance(v, "x.lance"),
    "index_to_lance(path)": lambda ds, v: ds.index_to_lance("name_idx", v),
    **{
        f"advise({name})": lambda ds, v, name=name: ds.advise(**{"columns": ["id"], name: v})
        for name in ("columns", "number_of_items")
    },
    "search_many(column)": lambda ds, v: ds.search_many(v, [1]),
    "lookup(column)": lambda ds, v: ds.lookup(v, [1]),
    "locate(columns)": lambda ds, v: ds.locate(v, [1]),
    "locate(keys)": lambda ds, v: ds.locate("id", v),
    "locate(table)": lambda ds, v: ds.locate(["id"], v),
    "files_with_keys(columns)": lambda ds, v: ds.files_with_keys(v, [1]),
    "files_with_keys(keys)": lambda ds, v: ds.files_with_keys("id", v),
    "erase(columns)": lambda ds, v: ds.erase(v, [1], plan=True),
    "erase(keys)": lambda ds, v: ds.erase("id", v, plan=True),
    "erase(filter)": lambda ds, v: ds.erase(filter=v, plan=True),
    "erase(plan)": lambda ds, v: ds.erase("id", [1], plan=v),
    "upsert(rows)": lambda ds, v: ds.upsert(v, "id", plan=True),
    "upsert(on)": lambda ds, v: ds.upsert(pa.table({"id": [1]}), v, plan=True),
    "upsert(columns)": lambda ds, v: ds.upsert(pa.table({"id": [1]}), "id", columns=v, plan=True),
    "upsert(when_matched)": lambda ds, v: ds.upsert(
        pa.table({"id": [1]}), "id", when_matched=v, plan=True
    ),
    "Receipt.check(dataset)": lambda ds, v: ds.erase("id", [-1]).check(v),
    "lookup(keys)": lambda ds, v: ds.lookup("id", v),
    "lookup(columns)": lambda ds, v: ds.lookup("id", [1], v),
    "lookup(nulls)": lambda ds, v: ds.lookup("id", [1], nulls=v),
    **{
        f"search_many({name})": lambda ds, v, name=name: ds.search_many(name, v)
        for name in ("id", "name", "value", "raw")
    },
    **{
        f"{name}({parameter})": lambda ds, v, run=run, parameter=parameter: run(ds, {parameter: v})
        for name, run in RUNS.items()
        for parameter in SCANS
        if (name, parameter) not in (("count_rows", "columns"), ("head", "limit"))
    },
    "computed columns": lambda ds, v: ds.to_table({"x": v}),
    "computed columns, all in one": lambda ds, v: ds.to_table({"id": pc.field("id"), "x": v}),
    "take(columns)": lambda ds, v: ds.take_rows([1], v),
    "Scanner.head": lambda ds, v: ds.scanner().head(v),
    "Scanner.planned": lambda ds, v: ds.scanner().planned(v),
    "RowRanges": lambda ds, v: zb.RowRanges(v),
    "RowRanges of one": lambda ds, v: zb.RowRanges([v]),
    "RowRanges(start)": lambda ds, v: zb.RowRanges([(v, 5)]),
    "from_arrays(starts)": lambda ds, v: zb.RowRanges.from_arrays(v, np.array([1])),
    "from_arrays(stops)": lambda ds, v: zb.RowRanges.from_arrays(np.array([1]), v),
    "issubset": lambda ds, v: RANGES.issubset(v),
    "rows_at": lambda ds, v: RANGES.rows_at(v),
    "shift": lambda ds, v: RANGES.shift(v),
    "window(start)": lambda ds, v: RANGES.window(v, 5),
    "window(stop)": lambda ds, v: RANGES.window(0, v),
    "in": lambda ds, v: v in RANGES,
    "SearchResult(universe)": lambda ds, v: zb.SearchResult(v),
    "SearchResult(at_most)": lambda ds, v: zb.SearchResult(RANGES, at_most=v),
    "SearchResult(at_least)": lambda ds, v: zb.SearchResult(RANGES, at_least=v),
    "SearchResult(paths)": lambda ds, v: zb.SearchResult(RANGES, paths=v),
    "Sbbf(ndv)": lambda ds, v: zb.Sbbf(v),
    "Sbbf(probability)": lambda ds, v: zb.Sbbf(10, v),
    "Sbbf(sizing)": lambda ds, v: zb.Sbbf(10, sizing=v),
    **{
        f"Sbbf.{name}": lambda ds, v, name=name: getattr(one_filter(), name)(v)
        for name in ("insert", "insert_hashes", "check", "check_hashes", "merge", "fold")
    },
    "Sbbf.from_bytes": lambda ds, v: zb.Sbbf.from_bytes(v),
    "Sbbf.from_parquet_bytes": lambda ds, v: zb.Sbbf.from_parquet_bytes(v),
    "dataset": lambda ds, v: zb.dataset(v).to_table(),
    "dataset(list)": lambda ds, v: zb.dataset([v]).to_table(),
    "dataset(URI)": lambda ds, v: zb.dataset(v + "://abc" if isinstance(v, str) else v),
    "dataset(format)": lambda ds, v: zb.dataset(ds.files[0], v),
    "dataset(filesystem)": lambda ds, v: zb.dataset(ds.files[0], filesystem=v),
    "dataset(partitioning)": lambda ds, v: zb.dataset(ds.files, partitioning=v),
    "dataset(embedded_filters)": lambda ds, v: zb.dataset(ds.files[0], embedded_filters=v),
    "dataset(schema)": lambda ds, v: zb.dataset(ds.files[0], schema=v).to_table(),
    "dataset(encryption)": lambda ds, v: zb.dataset(ds.files[0], encryption=v),
    "dataset(parquet_keys)": lambda ds, v: zb.dataset(ds.files[0], parquet_keys=v),
    "dataset(stale)": lambda ds, v: zb.dataset(ds.files[0], stale=v),
    "dataset(index_dir)": lambda ds, v: zb.dataset(ds.files[0], index_dir=v),
}

# An error inside a function of the user is passed on unchanged.
_CALLBACKS = ("progress", "scan_stats_callback")


# An index folder that cannot be listed is a warning: the data is read instead.
@pytest.mark.many
@pytest.mark.filterwarnings("ignore::zonebloom.errors.IndexNotUsedWarning")
@pytest.mark.parametrize("name", CALLS)
def test_wrong_values_are_refused_by_name(
    ds: zb.Dataset, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, value in WRONG.items():
        if kind == "a class" and any(callback in name for callback in _CALLBACKS):
            continue
        try:
            refused(lambda value=value: CALLS[name](ds, value))
        except BaseException as error:
            raise AssertionError(f"{name}, given {kind}: {error!r}") from error


def test_every_public_function_is_tested() -> None:
    """Every public function with parameters has a call above."""
    # The parameters of `scanner` are tested with every way to run it. PyArrow checks those of the
    # others.
    called_names = {name.partition("(")[0].rpartition(".")[2] for name in CALLS}
    called_names |= {"scanner", "sort_by", "join", "join_asof", "replace_schema"}
    kinds = (zb.Dataset, Scanner, DatasetOptimizer, zb.RowRanges, zb.SearchResult, zb.Sbbf)
    for kind in kinds:
        for name, method in inspect.getmembers(kind, callable):
            takes = [] if name.startswith("_") else list(inspect.signature(method).parameters)[1:]
            assert not takes or name in called_names, f"{kind.__name__}.{name}"
    assert set(inspect.signature(zb.dataset).parameters) - {"source"} <= {
        name.partition("(")[2].rstrip(")") for name in CALLS if name.startswith("dataset(")
    }
    built = inspect.signature(zb.Dataset.create_scalar_index).parameters
    assert set(built) - {"self"} == set(BUILDS)
    assert set(inspect.signature(zb.Dataset.scanner).parameters) - {"self", "options"} == set(SCANS)


def test_valid_values_are_accepted(ds: zb.Dataset) -> None:
    """Valid values include NumPy types, and numbers that are too large for pyarrow."""
    table = ds.to_table(limit=np.int64(3), batch_size=np.int32(2))
    assert table["id"].to_pylist() == [0, 1, 2]
    assert ds.to_table(limit=2**70, batch_size=2**70).num_rows == ROWS
    assert ds.to_table(np.array(["id"]), use_scalar_index=np.bool_(False)).num_columns == 1
    assert ds.to_table(("id", "name")).column_names == ["id", "name"]
    assert ds.head(np.uint8(2))["id"].to_pylist() == [0, 1]
    assert ds.head(2**70).num_rows == ROWS
    assert len(zb.RowRanges(np.array([[0, 5], [7, 9]]))) == 7


def test_invalid_calls_raise_pythons_type_error(ds: zb.Dataset) -> None:
    """The calls have wrong parameters, and the operators have operands of unrelated types."""
    calls: list[Callable[[], Any]] = [
        lambda: ds.scanner(None, None, None, 1, True, None, 5),
        lambda: ds.scanner(nope=1),
        lambda: zb.dataset(ds.files, where="id = 5"),
        lambda: RANGES & 5,
        lambda: RANGES | None,
        lambda: RANGES - [(0, 1)],
        lambda: ds.search("id = 5") & 5,
        lambda: ds.search("id = 5") | 5,
    ]
    for call in calls:
        with pytest.raises(TypeError) as caught:
            call()
        assert not isinstance(caught.value, errors.ZoneBloomError)


COMMANDS = [
    ["build", "{path}", "--column", "{}"],
    ["build", "{path}", "--column", "id", "--name", "{}"],
    ["build", "{path}", "--column", "id", "--probability", "{}"],
    ["build", "{path}", "--column", "id", "--number-of-items", "{}"],
    ["refresh", "{path}", "--name", "{}"],
    ["validate", "{path}", "--name", "{}"],
    ["lookup", "{path}", "{}"],
    ["lookup", "{path}", "id = 5", "--columns", "{}"],
    ["lookup", "{path}", "id = 5", "--limit", "{}"],
    ["lookup", "{}", "id = 5"],
    ["lookup", "{path}", "id = 5", "--format", "{}"],
    ["lookup", "{path}", "id = 5", "--index-dir", "{}"],
    ["explain", "{path}", "{}", "--analyze"],
    ["stats", "{path}", "--column", "{}"],
    ["advise", "{path}", "--column", "{}"],
    ["advise", "{path}", "--number-of-items", "{}"],
    ["{}"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words)[:60])
def test_commands_print_errors_in_one_line(
    folder: Path,
    command: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in ("", "abc", "-1", "nan", "5", "1e400", "id =", "x" * 1000, "a/b", "'", "nope = 1"):
        line = [part.replace("{path}", str(folder)).replace("{}", value) for part in command]
        code = run_command(*line)
        printed = capsys.readouterr()
        assert code in (0, 1, 2, 3), line
        assert "Traceback" not in printed.err, line
        if code in (1, 2):
            assert "Error: " in printed.err, line


@pytest.fixture(scope="module")
def shell(ds: zb.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from IPython.core.interactiveshell import InteractiveShell

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        shell = InteractiveShell(colors="nocolor", history_length=0)
    shell.push({"ds": ds, "zb": zb, "pc": pc})
    return shell


def test_type_errors_name_the_public_class(ds: zb.Dataset) -> None:
    calls: dict[str, Callable[..., Any]] = {
        "Dataset.lookup": ds.lookup,
        "Dataset.scanner": lambda: ds.to_table(**{"nope": 1}),
        "Dataset.advise": lambda: ds.advise(*range(3)),
        "Dataset.drop_index": ds.drop_index,
    }
    for name, call in calls.items():
        with pytest.raises(TypeError, match=rf"^{name}\(\) "):
            call()
    method = zb.Dataset.lookup
    assert pickle.loads(pickle.dumps(method)) is method
