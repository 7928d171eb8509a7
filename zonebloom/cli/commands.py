"""The commands of ``zonebloom``, over click; `zonebloom.cli.main` runs them."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from zonebloom.cli import text
from zonebloom.errors import InvalidArgument
from zonebloom.text import table_text
from zonebloom.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa

    from zonebloom.dataset import Dataset
    from zonebloom.scan.plan import ScanStats

_JSON_HELP = (
    "json is one document: dates and times as ISO 8601, binary values in base64, decimals as "
    "text, NaN and infinities as null."
)


@dataclass(frozen=True)
class Answer:
    """One JSON document, or text; notes go to stderr with either."""

    document: Callable[[], dict[str, Any]]
    text: Callable[[], str]
    aside: str = ""
    notes: Sequence[str] = ()
    code: int = 0


def _options(*options: Callable) -> Callable[[Callable], Callable]:
    def apply(command: Callable) -> Callable:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


def _answers(command: Callable[..., Answer]) -> Callable[..., int]:
    @click.option("--output", type=click.Choice(["text", "json"]), default="text", help=_JSON_HELP)
    @functools.wraps(command)
    def run(output: str, **given: Any) -> int:
        answer = command(**given)
        if output == "json":
            text.write_json(answer.document())
        else:
            written = answer.text()
            if written:
                text.write(written)
            if answer.aside:
                text.say(answer.aside)
        for note in answer.notes:
            text.say(note)
        return answer.code

    return run


def _on_dataset(command: Callable[..., Answer]) -> Callable[..., int]:
    @functools.wraps(command)
    def run(
        path: str,
        format: str,
        index_dir: str | None,
        embedded_filters: bool = False,
        **given: Any,
    ) -> Answer:
        from zonebloom.dataset import dataset

        opened = dataset(path, format, index_dir=index_dir, embedded_filters=embedded_filters)
        return command(opened, **given)

    return _options(
        click.argument("path"),
        click.option("--format", default="parquet", help="Of the files; parquet by default."),
        click.option(
            "--index-dir", help="Folder of the index; _zonebloom beside the data by default."
        ),
    )(_answers(run))


_engine = _options(
    click.option(
        "--engine",
        type=click.Choice(["spark", "local"]),
        help="Where to build; by default Spark, but this process for less than a gigabyte, and "
        "where no Java 17 is found.",
    ),
    click.option("--master", help="Of the Spark session to build on; local[*] by default."),
)
_columns = click.option("--columns", help="Names with commas between; all by default.")
_embedded = click.option(
    "--embedded-filters",
    is_flag=True,
    help="Trust the Bloom filters inside files that no index covers; they have no checksum.",
)
_layout = click.option(
    "--layout",
    type=click.Choice(["auto", "table", "sliced"]),
    default="auto",
    help="How the bits of the filters lie; auto slices from 4096 zones on.",
)
_names = click.option(
    "--name", "names", multiple=True, help="May be repeated; all indices by default."
)
_zones = _options(
    click.option("--number-of-items", type=int, help="Rows a zone; 8192 by default."),
    click.option("--probability", type=float, help="Of a false positive in a zone; 0.00057."),
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def zonebloom() -> None:
    """Bloom filters for the zones of a dataset's files, and lookups that read only those zones.

    Exit codes: 0 done, 1 error, 2 wrong usage, 3 a lookup that found no row, 130 interrupted.
    """


@zonebloom.command(epilog="Example: zonebloom build data/flights --column tailnum --column flight")
@_on_dataset
@click.option("--column", "columns", multiple=True, required=True, help="May be repeated.")
@_engine
@click.option("--name", help="Of the index; COLUMN_idx by default.")
@_zones
@click.option("--sizing", type=click.Choice(["log2", "exact"]), help="log2, as Lance, by default.")
@click.option(
    "--fold/--no-fold",
    default=None,
    help="Shrink filters of few distinct values, the default; or keep all as large as Lance's.",
)
@click.option("--max-false-zones", type=float, help="A lookup may read in vain; not --probability.")
@_layout
def build(
    ds: Dataset,
    columns: tuple[str, ...],
    engine: Any,
    master: str | None,
    name: str | None,
    **parameters: Any,
) -> Answer:
    """Index columns of the dataset at PATH.

    As JSON: path, engine, seconds, indices.
    """
    run = _Run.of(
        engine,
        master,
        lambda session: ds.create_scalar_index(
            columns, name=name, spark=session, progress=sys.stderr.isatty(), **_given(parameters)
        ),
        lambda: sum(file.identity.size for file in ds.opened.planner.to_read().present),
    )
    names = {name} if name else {f"{column}_idx" for column in columns}
    built = [each for each in ds.describe_indices() if each.name in names]
    return Answer(
        lambda: run.document(ds, built),
        lambda: text.indices_text(built),
        f"built {run.where} in {run.seconds:.1f} s",
    )


@zonebloom.command(epilog="Example: zonebloom refresh data/flights")
@_on_dataset
@_names
@_engine
@_layout
def refresh(
    ds: Dataset, names: tuple[str, ...], engine: Any, master: str | None, layout: Any
) -> Answer:
    """Index files at PATH that came or changed, forget those that are gone.

    As JSON: path, engine, seconds, indices.
    """
    run = _Run.of(
        engine,
        master,
        lambda session: ds.optimize.optimize_indices(
            names or None, layout=layout, spark=session, progress=sys.stderr.isatty()
        ),
        lambda: sum(f.identity.size for f in ds.opened.planner.to_read().present if not f.is_known),
    )
    headers = ["index", "files added", "files dropped", "layout", "tables"]
    fields = ("name", "fragments_added", "fragments_dropped", "layout", "num_segments")
    rows = [[getattr(each, field) for field in fields] for each in run.result]
    return Answer(
        lambda: run.document(ds, run.result),
        lambda: table_text(headers, rows),
        f"refreshed in {run.seconds:.1f} s",
    )


@zonebloom.command(epilog="Example: zonebloom adopt copy/of/flights")
@_on_dataset
def adopt(ds: Dataset) -> Answer:
    """Use the index of files that were copied, moved or uploaded to PATH with it.

    They are known again by size and footer; the data is not read. As JSON: path, num_files, left.
    """
    adopted = ds.adopt_index()
    left = [f"not known: {path}" for path in adopted.left]
    return Answer(
        lambda: {"path": ds.title, "num_files": adopted.num_files, "left": adopted.left},
        lambda: f"the index covers {adopted.num_files:,} more files",
        notes=left,
    )


def _sample(context: object, option: object, value: str) -> int | str:
    if value != "all" and not (value.isascii() and value.isdecimal()):
        raise click.BadParameter(f"{value!r} is neither all nor a number", param_hint="--sample")
    return value if value == "all" else int(value)


@zonebloom.command(epilog="Example: zonebloom validate data/flights")
@_on_dataset
@_names
@click.option(
    "--sample",
    default="16",
    metavar="N|all",
    callback=_sample,
    help="Zones whose values are read from the files; 16 by default, 0 for checksums alone.",
)
def validate(ds: Dataset, names: tuple[str, ...], sample: Any) -> Answer:
    """Read the indices at PATH whole and hold them against checksums and rows of the files.

    An index is sound, stale (files it covers have changed or are gone; those are scanned), or
    damaged. Exits with 1 when one is damaged. As JSON: path, indices (name, state, zones,
    zones_read, changed, gone, damage).
    """
    chosen = names or [each.name for each in ds.describe_indices()]
    indices = [_validated(ds, name, sample) for name in chosen]
    headers = ["index", "state", "zones", "zones read", "files changed", "files gone"]
    rows = [[*list(each.values())[:4], len(each["changed"]), len(each["gone"])] for each in indices]
    damage = [each["damage"] for each in indices if each["damage"]]
    return Answer(
        lambda: {"path": ds.title, "indices": indices},
        lambda: table_text(headers, rows),
        notes=damage,
        code=text.FAILED if damage else 0,
    )


def _validated(ds: Dataset, name: str, sample: Any) -> dict[str, Any]:
    from zonebloom.errors import CorruptIndex

    row = {"name": name, "state": "damaged", "zones": 0, "zones_read": 0}
    row |= {"changed": (), "gone": (), "damage": None}
    try:
        index = ds.validate_index(name, sample=sample)
    except CorruptIndex as error:
        return row | {"damage": str(error)}
    row |= {"state": index.state, "zones": int(index), "zones_read": index.zones_read}
    return row | {"changed": index.changed, "gone": index.gone}


@zonebloom.command(epilog="""Example: zonebloom lookup data/flights "tailnum = 'N14228'" """)
@_on_dataset
@click.argument("filter", required=False)
@_columns
@_embedded
@click.option("--limit", type=click.IntRange(min=0), help="Rows at most.")
@click.option("--key", metavar="COLUMN=VALUE", help="Rows of a key, instead of FILTER.")
@click.option(
    "--keys-from",
    type=click.Path(exists=True, dir_okay=False),
    help="Rows of the keys in a CSV file: its first column, whose name is that of the keys'.",
)
def lookup(
    ds: Dataset,
    filter: str | None,
    columns: str | None,
    limit: int | None,
    key: str | None,
    keys_from: str | None,
) -> Answer:
    """Print the rows of the dataset at PATH that match the SQL condition FILTER, or hold a key.

    What was read is said on stderr. Exits with 3 when no row matches. As JSON: filter,
    num_rows, rows (one object each), indices (zones kept of all), read (bytes, seconds); of
    keys column, num_keys, num_rows, rows, seconds.
    """
    if sum(each is not None for each in (filter, key, keys_from)) != 1:
        raise click.UsageError("give one of FILTER, --key and --keys-from")
    if filter is None:
        return _lookup_of_keys(ds, _split(columns), limit, *_keys(ds, key, keys_from))
    seen: list[ScanStats] = []
    scanner = ds.scanner(_split(columns), filter, limit, scan_stats_callback=seen.append)
    table = scanner.to_table()
    plan, stats = scanner.plan(), seen[0]
    return Answer(
        lambda: {
            "filter": filter,
            "num_rows": table.num_rows,
            "rows": text.rows(table),
            "indices": list(map(asdict, plan.indices)),
            "read": asdict(stats),
        },
        lambda: text.rows_text(table) if table.num_rows else "",
        text.read_text(plan, stats),
        code=0 if table.num_rows else text.FOUND_NOTHING,
    )


def _keys(ds: Dataset, key: str | None, path: str | None) -> tuple[str, pa.Array | pa.ChunkedArray]:
    """The column and the keys that are to be looked up, of the column's type."""
    import pyarrow as pa

    from zonebloom.arrays import array_of

    if path is not None:
        from pyarrow import csv

        try:
            name = csv.open_csv(path).schema.names[0]
            as_text = csv.ConvertOptions(include_columns=[name], column_types={name: pa.string()})
            keys = csv.read_csv(path, convert_options=as_text).column(0)
        except pa.ArrowException as error:
            raise InvalidArgument(
                f"cannot read {path}: {error}; give a CSV file whose first line names its columns"
            ) from None
    else:
        name, sign, value = (key or "").partition("=")
        if not sign:
            raise click.BadParameter("give COLUMN=VALUE", param_hint="--key")
        keys = array_of([value], pa.string())
    leaf = ds.opened.column(name).type
    stored = leaf.value_type if isinstance(leaf, pa.DictionaryType) else leaf
    # Text of a UUID is read as such by the lookup.
    if isinstance(stored, pa.BaseExtensionType):
        return name, keys
    try:
        return name, keys.cast(stored)
    except pa.ArrowException as error:
        raise InvalidArgument(
            f"keys of {name!r} cannot be read as {stored}: {error}; correct them"
        ) from None


def _lookup_of_keys(
    ds: Dataset,
    columns: list[str] | None,
    limit: int | None,
    column: str,
    keys: pa.Array | pa.ChunkedArray,
) -> Answer:
    """The rows of some keys."""
    begun = time.perf_counter()
    found = ds.lookup(column, keys, columns)
    seconds = time.perf_counter() - begun
    matched = len(found.column(0).unique())
    table = found.remove_column(0).slice(0, limit)
    return Answer(
        lambda: {
            "column": column,
            "num_keys": len(keys),
            "num_rows": table.num_rows,
            "rows": text.rows(table),
            "seconds": seconds,
        },
        lambda: text.rows_text(table) if table.num_rows else "",
        f"{text.count(table.num_rows, 'row')} of {matched:,} of {text.count(len(keys), 'key')} "
        f"in {seconds * 1000:,.1f} ms",
        code=0 if table.num_rows else text.FOUND_NOTHING,
    )


@zonebloom.command(epilog="""Example: zonebloom explain data/flights "flight = 1545" --analyze""")
@_on_dataset
@click.argument("filter")
@_columns
@_embedded
@click.option("--analyze", is_flag=True, help="Run the lookup too, and count what it reads.")
def explain(ds: Dataset, filter: str, columns: str | None, analyze: bool) -> Answer:
    """Say what a lookup would read of the dataset at PATH, and why.

    As JSON: filter, columns, num_fragments, skipped, fragments (path, ranges or null for all
    of it, why), indices, unanswered; with --analyze also read.
    """
    seen: list[ScanStats] = []
    scanner = ds.scanner(_split(columns), filter, scan_stats_callback=seen.append)

    def document() -> dict[str, Any]:
        if not analyze:
            return text.plan_json(scanner.plan())
        for _ in scanner.to_batches():
            pass
        return {**text.plan_json(scanner.plan()), "read": asdict(seen[0])}

    return Answer(document, scanner.analyze_plan if analyze else scanner.explain_plan)


@zonebloom.command(epilog="Example: zonebloom stats data/flights --column tailnum")
@_on_dataset
@click.option("--column", help="Only the index on this column, in full.")
@click.option("--name", help="Only the index of this name, in full.")
def stats(ds: Dataset, column: str | None, name: str | None) -> Answer:
    """Print coverage, size, fill and false positives of the indices at PATH.

    Columns with Bloom filters inside the Parquet files are listed too. As JSON: path, files,
    indices, embedded.
    """
    from zonebloom.errors import IndexNotFound

    described = ds.describe_indices()
    chosen = [
        each for each in described if name in (None, each.name) and column in (None, each.column)
    ]
    if not chosen and (name or column):
        known = ", ".join(f"{each.name} on {each.column}" for each in described) or "none"
        raise IndexNotFound(f"there is no index like that at {ds.title}; there is: {known}")
    figures = [ds.index_statistics(each.name) for each in chosen]
    of_files = [] if name else ds.embedded_filters()
    embedded = [each for each in of_files if column in (None, each.column)]

    def shown() -> str:
        parts = [text.embedded_text(embedded)] if embedded else []
        if name or column:
            width = max(map(len, figures[0]))
            parts += [
                "\n".join(f"{key:<{width}}  {value}" for key, value in each.items())
                for each in figures
            ]
        elif chosen:
            parts.append(text.indices_text(chosen, figures))
        return "\n".join(parts)

    advice = f"no index at {ds.title}; make one: zonebloom build {ds.title} --column NAME"
    return Answer(
        lambda: {
            "path": ds.title,
            "files": len(ds.files),
            "indices": figures,
            "embedded": list(map(asdict, embedded)),
        },
        shown,
        "" if chosen else advice,
    )


@zonebloom.command(epilog="Example: zonebloom advise data/flights --column tailnum")
@_on_dataset
@click.option("--column", "columns", multiple=True, help="May be repeated; all by default.")
@_zones
def advise(ds: Dataset, columns: tuple[str, ...], **parameters: Any) -> Answer:
    """Say which columns of the dataset at PATH are worth an index, from a sample.

    As JSON: path, num_rows, num_zones, sampled_zones, columns (estimates, verdict and why of
    each), read (bytes, seconds).
    """
    advices = ds.advise(list(columns) or None, **_given(parameters))
    title, _, table = repr(advices).partition("\n")
    return Answer(
        lambda: {
            "path": ds.title,
            "num_rows": advices.num_rows,
            "num_zones": advices.num_zones,
            "sampled_zones": advices.sampled_zones,
            "columns": list(map(asdict, advices)),
            "read": {"bytes": advices.read_bytes, "seconds": advices.seconds},
        },
        lambda: table,
        title,
    )


@zonebloom.command(epilog="Example: zonebloom demo --path data")
@click.option("--path", help="Folder to write the data to and keep it; else a temporary one.")
@_engine
@_answers
def demo(path: str | None, engine: Any, master: str | None) -> Answer:
    """Index real flights and places, look up, check against brute force.

    Exits with 1 if a check fails. As JSON: engine, build_seconds, datasets, lookups, all_same.
    """
    import tempfile

    from zonebloom.cli import demo
    from zonebloom.dataset import dataset

    with ExitStack() as stack:
        folder = path or stack.enter_context(tempfile.TemporaryDirectory(prefix="zonebloom-"))
        text.say("writing flights and places as Parquet")
        tables = demo.write(folder)
        run = _Run.of(
            engine,
            master,
            lambda session: demo.build(folder, session, progress=sys.stderr.isatty()),
        )
        datasets = {name: dataset(f"{folder}/{name}") for name in tables}
        described = {name: ds.describe_indices() for name, ds in datasets.items()}
        results = [demo.run(folder, each, tables[each.dataset]) for each in demo.LOOKUPS]
    same = sum(each.same_rows for each in results)
    return Answer(
        lambda: {
            "engine": run.engine,
            "build_seconds": run.seconds,
            "datasets": [
                {
                    "name": name,
                    "rows": tables[name].num_rows,
                    "files": len(ds.files),
                    "indices": list(map(asdict, described[name])),
                }
                for name, ds in datasets.items()
            ],
            "lookups": list(map(asdict, results)),
            "all_same": same == len(results),
        },
        lambda: "\n".join(
            [
                f"indexed {run.where}, {run.seconds:.1f} s",
                *(
                    f"\n{name}: {tables[name].num_rows:,} rows in {len(ds.files)} files\n"
                    f"{text.indices_text(described[name])}"
                    for name, ds in datasets.items()
                ),
                f"\n{text.lookups_text(results)}",
                f"\n{same} of {len(results)} lookups found the rows brute force finds, in its "
                "order",
            ]
        ),
        notes=[f"the data is kept in {path}"] if path else [],
        code=0 if same == len(results) else text.FAILED,
    )


@dataclass(frozen=True)
class _Run:
    """A build on the engine that was asked for: where it ran, for how long, what it gave."""

    engine: str
    where: str
    seconds: float
    result: Any

    @classmethod
    def of(
        cls,
        engine: Any,
        master: str | None,
        work: Callable[[Any], Any],
        num_bytes: Callable[[], int] | None = None,
    ) -> _Run:
        from zonebloom.cli import engines

        session = engines.choose(engine, master, text.say, num_bytes)
        started = time.perf_counter()
        result = work(session)
        seconds = time.perf_counter() - started
        if session:
            return cls("spark", f"on Spark {master or engines.LOCAL}", seconds, result)
        return cls("local", "in this process", seconds, result)

    def document(self, ds: Dataset, indices: Iterable[Any]) -> dict[str, Any]:
        return {
            "path": ds.title,
            "engine": self.engine,
            "seconds": self.seconds,
            "indices": list(map(asdict, indices)),
        }


def _given(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def _split(columns: str | None) -> list[str] | None:
    return None if columns is None else [name.strip() for name in columns.split(",")]
