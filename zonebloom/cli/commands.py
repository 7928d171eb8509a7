"""The commands of ``zonebloom``, over click; `zonebloom.cli.main` runs them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from zonebloom.cli import text
from zonebloom.text import table_text
from zonebloom.version import __version__

if TYPE_CHECKING:
    from zonebloom.dataset import Dataset
    from zonebloom.scan.plan import ScanStats

_JSON_HELP = (
    "json is one document: dates and times as ISO 8601, binary values in base64, decimals as "
    "text, NaN and infinities as null."
)


def _options(*options: Callable) -> Callable[[Callable], Callable]:
    def apply(command: Callable) -> Callable:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


_output = click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", help=_JSON_HELP
)
_source = _options(
    click.argument("path"),
    click.option("--format", default="parquet", help="Of the files; parquet by default."),
    click.option("--index-dir", help="Folder of the index; _zonebloom beside the data by default."),
    _output,
)
_engine = _options(
    click.option(
        "--engine",
        type=click.Choice(["spark", "local"]),
        help="Where to build: Spark by default, this process where no Java 17 is found.",
    ),
    click.option("--master", default="local[*]", help="Of the Spark session; local[*] by default."),
)


_embedded_filters = click.option(
    "--embedded-filters",
    is_flag=True,
    help="Trust the Bloom filters inside files that no index covers; they have no checksum.",
)
_layout = click.option(
    "--layout",
    type=click.Choice(["auto", "table", "sliced"]),
    help="How the bits of the filters lie; auto slices from 4096 zones on.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def zonebloom() -> None:
    """Bloom filters for the zones of a dataset's files, and lookups that read only those zones.

    Exit codes: 0 done, 1 error, 2 wrong usage, 3 a lookup that found no row, 130 interrupted.
    """


@zonebloom.command(epilog="Example: zonebloom build data/flights --column tailnum --column flight")
@_source
@click.option("--column", "columns", multiple=True, required=True, help="May be repeated.")
@_engine
@click.option("--name", help="Of the index; COLUMN_idx by default.")
@click.option("--number-of-items", type=int, help="Rows a zone; 8192 by default.")
@click.option("--probability", type=float, help="Of a false positive in a zone; 0.00057.")
@click.option("--sizing", type=click.Choice(["log2", "exact"]), help="log2, as Lance, by default.")
@click.option("--fold", is_flag=True, default=None, help="Shrink filters of few distinct values.")
@click.option("--max-false-zones", type=float, help="A lookup may read in vain; not --probability.")
@_layout
def build(
    path: str,
    format: str,
    index_dir: str | None,
    output: str,
    columns: tuple[str, ...],
    engine: Any,
    master: str,
    name: str | None,
    **parameters: Any,
) -> None:
    """Index columns of the dataset at PATH.

    As JSON: path, engine, seconds, indices.
    """
    from zonebloom.cli import engines

    opened = _open(path, format, index_dir)
    session = engines.choose(engine, master, text.say)
    started = time.perf_counter()
    opened.create_scalar_index(
        columns[0] if len(columns) == 1 else list(columns),
        name=name,
        spark=session,
        progress=sys.stderr.isatty(),
        **{key: value for key, value in parameters.items() if value is not None},
    )
    seconds = time.perf_counter() - started
    made = {name} if name else {f"{column}_idx" for column in columns}
    described = [each for each in opened.describe_indices() if each.name in made]
    if output == "json":
        text.write_json(
            {
                "path": path,
                "engine": "spark" if session else "local",
                "seconds": seconds,
                "indices": [asdict(each) for each in described],
            }
        )
        return
    text.write(text.indices_text(described))
    text.say(f"built {f'on Spark {master}' if session else 'in this process'} in {seconds:.1f} s")


@zonebloom.command(epilog="Example: zonebloom refresh data/flights")
@_source
@click.option("--name", "names", multiple=True, help="May be repeated; all indices by default.")
@_engine
@_layout
def refresh(
    path: str,
    format: str,
    index_dir: str | None,
    output: str,
    names: tuple[str, ...],
    engine: Any,
    master: str,
    layout: str | None,
) -> None:
    """Index files at PATH that came or changed, forget those that are gone.

    As JSON: path, engine, seconds, indices.
    """
    from zonebloom.cli import engines

    opened = _open(path, format, index_dir)
    session = engines.choose(engine, master, text.say)
    started = time.perf_counter()
    done = opened.optimize.optimize_indices(
        names or None,
        layout=layout or "auto",  # pyright: ignore[reportArgumentType]
        spark=session,
        progress=sys.stderr.isatty(),
    )
    seconds = time.perf_counter() - started
    if output == "json":
        text.write_json(
            {
                "path": path,
                "engine": "spark" if session else "local",
                "seconds": seconds,
                "indices": [asdict(each) for each in done],
            }
        )
        return
    rows = [
        (each.name, each.fragments_added, each.fragments_dropped, each.layout, each.num_segments)
        for each in done
    ]
    headers = ["index", "files added", "files dropped", "layout", "tables"]
    text.write(table_text(headers, rows))
    text.say(f"refreshed in {seconds:.1f} s")


@zonebloom.command(epilog="Example: zonebloom validate data/flights")
@_source
@click.option("--name", "names", multiple=True, help="May be repeated; all indices by default.")
@click.option(
    "--sample",
    default="16",
    metavar="N|all",
    help="Zones whose values are read from the files; 16 by default, 0 for checksums alone.",
)
def validate(
    path: str,
    format: str,
    index_dir: str | None,
    output: str,
    names: tuple[str, ...],
    sample: str,
) -> int:
    """Read the indices at PATH whole and hold them against checksums and rows of the files.

    An index is sound, stale (files it covers have changed or are gone; those are scanned), or
    damaged. Exits with 1 when one is damaged. As JSON: path, indices (name, state, zones,
    zones_read, changed, gone, damage).
    """
    if sample != "all" and not (sample.isascii() and sample.isdecimal()):
        raise click.BadParameter(f"{sample!r} is neither all nor a number", param_hint="--sample")
    opened = _open(path, format, index_dir)
    chosen = names or [each.name for each in opened.describe_indices()]
    found = [_validated(opened, name, sample) for name in chosen]
    if output == "json":
        text.write_json({"path": path, "indices": found})
    else:
        shown = [
            (
                *(each[key] for key in ("name", "state", "zones", "zones_read")),
                *(len(each[key]) for key in ("changed", "gone")),
            )
            for each in found
        ]
        headers = ["index", "state", "zones", "zones read", "files changed", "files gone"]
        text.write(table_text(headers, shown))
    for each in found:
        if each["damage"]:
            text.say(each["damage"])
    return text.FAILED if any(each["damage"] for each in found) else 0


def _validated(opened: Dataset, name: str, sample: str) -> dict[str, Any]:
    """What is said of one index."""
    from zonebloom.errors import CorruptIndex

    try:
        done = opened.validate_index(name, sample="all" if sample == "all" else int(sample))
    except CorruptIndex as error:
        return {
            "name": name,
            "state": "damaged",
            "zones": 0,
            "zones_read": 0,
            "changed": (),
            "gone": (),
            "damage": str(error),
        }
    return {
        "name": name,
        "state": done.state,
        "zones": int(done),
        "zones_read": done.zones_read,
        "changed": done.changed,
        "gone": done.gone,
        "damage": None,
    }


@zonebloom.command(epilog="""Example: zonebloom lookup data/flights "tailnum = 'N14228'" """)
@_source
@click.argument("filter")
@click.option("--columns", help="Names with commas between; all by default.")
@click.option("--limit", type=click.IntRange(min=0), help="Rows at most.")
@_embedded_filters
def lookup(
    path: str,
    filter: str,
    format: str,
    index_dir: str | None,
    output: str,
    columns: str | None,
    limit: int | None,
    embedded_filters: bool,
) -> int:
    """Print the rows of the dataset at PATH that match the SQL condition FILTER.

    What was read is said on stderr. Exits with 3 when no row matches. As JSON: filter,
    num_rows, rows (one object each), indices (zones kept of all), read (bytes, seconds).
    """
    seen: list[ScanStats] = []
    scanner = _open(path, format, index_dir, embedded_filters).scanner(
        _names(columns), filter, limit, scan_stats_callback=seen.append
    )
    found = scanner.to_table()
    plan, stats = scanner.plan(), seen[0]
    if output == "json":
        text.write_json(
            {
                "filter": filter,
                "num_rows": found.num_rows,
                "rows": text.rows(found),
                "indices": [asdict(use) for use in plan.indices],
                "read": asdict(stats),
            }
        )
    else:
        if found.num_rows:
            text.write(text.rows_text(found))
        text.say(text.read_text(plan, stats))
    return 0 if found.num_rows else text.FOUND_NOTHING


@zonebloom.command(epilog="""Example: zonebloom explain data/flights "flight = 1545" --analyze""")
@_source
@click.argument("filter")
@click.option("--columns", help="Names with commas between; all by default.")
@click.option("--analyze", is_flag=True, help="Run the lookup too, and count what it reads.")
@_embedded_filters
def explain(
    path: str,
    filter: str,
    format: str,
    index_dir: str | None,
    output: str,
    columns: str | None,
    analyze: bool,
    embedded_filters: bool,
) -> None:
    """Say what a lookup would read of the dataset at PATH, and why.

    As JSON: filter, columns, num_fragments, skipped, fragments (path, ranges or null for all
    of it, why), indices, unanswered; with --analyze also read.
    """
    seen: list[ScanStats] = []
    scanner = _open(path, format, index_dir, embedded_filters).scanner(
        _names(columns), filter, scan_stats_callback=seen.append
    )
    if output == "text":
        text.write(scanner.analyze_plan() if analyze else scanner.explain_plan())
        return
    if analyze:
        for _ in scanner.to_batches():
            pass
    document = text.plan_json(scanner.plan())
    if analyze:
        document["read"] = asdict(seen[0])
    text.write_json(document)


@zonebloom.command(epilog="Example: zonebloom stats data/flights --column tailnum")
@_source
@click.option("--column", help="Only the index on this column, in full.")
@click.option("--name", help="Only the index of this name, in full.")
def stats(
    path: str,
    format: str,
    index_dir: str | None,
    output: str,
    column: str | None,
    name: str | None,
) -> None:
    """Print coverage, size, fill and false positives of the indices at PATH.

    Columns with Bloom filters inside the Parquet files are listed too. As JSON: path, files,
    indices, embedded.
    """
    from zonebloom.errors import IndexNotFound

    opened = _open(path, format, index_dir)
    described = opened.describe_indices()
    chosen = [
        each
        for each in described
        if (name is None or each.name == name) and (column is None or each.column == column)
    ]
    if not chosen and (name or column):
        known = ", ".join(f"{each.name} on {each.column}" for each in described) or "none"
        raise IndexNotFound(f"there is no index like that at {path}; there is: {known}")
    figures = [opened.index_statistics(each.name) for each in chosen]
    embedded = (
        []
        if name
        else [each for each in opened.embedded_filters() if column in (None, each.column)]
    )
    if output == "json":
        text.write_json(
            {
                "path": path,
                "files": len(opened.files),
                "indices": figures,
                "embedded": [asdict(each) for each in embedded],
            }
        )
        return
    if embedded:
        text.write(text.embedded_text(embedded))
    if not chosen:
        text.say(f"no index at {path}; make one: zonebloom build {path} --column NAME")
    elif name or column:
        width = max(map(len, figures[0]))
        for each in figures:
            text.write("\n".join(f"{key:<{width}}  {value}" for key, value in each.items()))
    else:
        text.write(text.indices_text(chosen, figures))


@zonebloom.command(epilog="Example: zonebloom advise data/flights --column tailnum")
@_source
@click.option("--column", "columns", multiple=True, help="May be repeated; all by default.")
@click.option("--number-of-items", type=int, help="Rows a zone; 8192 by default.")
@click.option("--probability", type=float, help="Of a false positive in a zone; 0.00057.")
def advise(
    path: str,
    format: str,
    index_dir: str | None,
    output: str,
    columns: tuple[str, ...],
    **parameters: Any,
) -> None:
    """Say which columns of the dataset at PATH are worth an index, from a sample.

    As JSON: path, num_rows, num_zones, sampled_zones, columns (estimates, verdict and why of
    each), read (bytes, seconds).
    """
    found = _open(path, format, index_dir).advise(
        list(columns) or None,
        **{key: value for key, value in parameters.items() if value is not None},
    )
    if output == "json":
        text.write_json(
            {
                "path": path,
                "num_rows": found.num_rows,
                "num_zones": found.num_zones,
                "sampled_zones": found.sampled_zones,
                "columns": [asdict(each) for each in found],
                "read": {"bytes": found.read_bytes, "seconds": found.seconds},
            }
        )
        return
    title, _, answer = repr(found).partition("\n")
    text.write(answer)
    text.say(title)


@zonebloom.command(epilog="Example: zonebloom demo --path data")
@click.option("--path", help="Folder to write the data to and keep it; else a temporary one.")
@_engine
@_output
def demo(path: str | None, engine: Any, master: str, output: str) -> int:
    """Index real flights and places, look up, check against brute force.

    Exits with 1 if a check fails. As JSON: engine, build_seconds, datasets, lookups, all_same.
    """
    import tempfile

    if path is not None:
        code = _demo(path, engine, master, output)
        text.say(f"the data is kept in {path}")
        return code
    with tempfile.TemporaryDirectory(prefix="zonebloom-") as folder:
        return _demo(folder, engine, master, output)


def _demo(folder: str, engine: Any, master: str, output: str) -> int:
    from zonebloom.cli import demo, engines
    from zonebloom.text import bytes_text, table_text

    text.say("writing flights and places as Parquet")
    tables = {
        "flights": demo.write_flights(f"{folder}/flights"),
        "places": demo.write_places(f"{folder}/places"),
    }
    session = engines.choose(engine, master, text.say)
    started = time.perf_counter()
    demo.build(folder, session, progress=sys.stderr.isatty())
    seconds = time.perf_counter() - started
    opened = {name: _open(f"{folder}/{name}", "parquet", None) for name in tables}
    results = [demo.run(folder, each, tables[each.dataset]) for each in demo.LOOKUPS]
    same = sum(each.same_rows for each in results)
    if output == "json":
        text.write_json(
            {
                "engine": "spark" if session else "local",
                "build_seconds": seconds,
                "datasets": [
                    {
                        "name": name,
                        "rows": tables[name].num_rows,
                        "files": len(each.files),
                        "indices": [asdict(index) for index in each.describe_indices()],
                    }
                    for name, each in opened.items()
                ],
                "lookups": [asdict(each) for each in results],
                "all_same": same == len(results),
            }
        )
        return 0 if same == len(results) else text.FAILED
    text.write(f"indexed {f'on Spark {master}' if session else 'in this process'}, {seconds:.1f} s")
    for name, each in opened.items():
        text.write(f"\n{name}: {tables[name].num_rows:,} rows in {len(each.files)} files")
        text.write(text.indices_text(each.describe_indices()))
    headers = ["", "filter", "rows", "zones kept", "index read", "data read", "no index", "check"]
    lines = [
        (
            each.dataset,
            each.filter,
            each.rows,
            f"{each.kept_zones} of {each.num_zones}",
            bytes_text(each.index_bytes),
            bytes_text(each.data_bytes),
            bytes_text(each.scan_bytes),
            "same rows" if each.same_rows else "ROWS DIFFER",
        )
        for each in results
    ]
    text.write("\n" + table_text(headers, lines))
    text.write(f"\n{same} of {len(results)} lookups found the rows brute force finds, in its order")
    return 0 if same == len(results) else text.FAILED


def _open(path: str, format: str, index_dir: str | None, embedded_filters: bool = False) -> Dataset:
    from zonebloom.dataset import dataset

    return dataset(path, format, index_dir=index_dir, embedded_filters=embedded_filters)


def _names(columns: str | None) -> list[str] | None:
    return None if columns is None else [name.strip() for name in columns.split(",")]
