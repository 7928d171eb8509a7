"""What the commands share: their group, the dataset at PATH, options, the engine of a build."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from zonebloom.base.version import __version__
from zonebloom.cli import text
from zonebloom.cli.output import JSON, OF_ROWS, TEXT, Answer, checked_format, write_answer

if TYPE_CHECKING:
    from zonebloom.dataset import Dataset

_OUTPUT_HELP = (
    "text by default, or what the ending of FILE says. json is one document: dates and times as "
    "ISO 8601, binary values in base64, decimals as text, NaN and infinities as null. csv, arrow "
    "(an IPC file) and parquet hold the rows alone."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def zonebloom() -> None:
    """Bloom filters for the zones of a dataset's files, and lookups that read only those zones.

    PATH is a folder, file, pattern or URI, or the folder of a Delta or Iceberg table. Exit codes:
    0 done, 1 error, 2 wrong usage, 3 a lookup that found no row, 130 interrupted.
    """


def options(*given: Callable) -> Callable[[Callable], Callable]:
    def apply(command: Callable) -> Callable:
        for option in reversed(given):
            command = option(command)
        return command

    return apply


def answers(command: Callable[..., Answer], has_rows: bool = True) -> Callable[..., int]:
    formats = [TEXT, JSON, *(OF_ROWS if has_rows else ())]

    @click.option("--output", type=click.Choice(formats), help=_OUTPUT_HELP)
    @click.option(
        "-o",
        "path_out",
        metavar="FILE",
        type=click.Path(dir_okay=False),
        help="Write the answer to FILE, which is there when it is whole.",
    )
    @functools.wraps(command)
    def run(output: str | None, path_out: str | None, **given: Any) -> int:
        output = checked_format(output, path_out, has_rows)
        answer = command(**given)
        write_answer(answer, output, path_out)
        return answer.code

    return run


answers_as_text = functools.partial(answers, has_rows=False)


def on_dataset(command: Callable[..., Answer], has_rows: bool = True) -> Callable[..., int]:
    @functools.wraps(command)
    def run(path: str, embedded_filters: bool = False, **given: Any) -> Answer:
        return command(opened(path, embedded_filters=embedded_filters, **_source(given)), **given)

    return options(
        click.argument("path", type=click.Path()),
        click.option("--format", default="parquet", help="Of the files; parquet by default."),
        click.option(
            "--index-dir",
            type=click.Path(),
            help="Folder of the index; _zonebloom/NAME beside the folder NAME by default.",
        ),
    )(answers(run, has_rows))


on_dataset_as_text = functools.partial(on_dataset, has_rows=False)


def _source(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given.pop(name) for name in ("format", "index_dir")}


def opened(path: str, **given: Any) -> Dataset:
    """What there is at a path: a table whose metadata is there, or files."""
    from zonebloom.dataset import dataset
    from zonebloom.sources.table_folders import table_at

    table = table_at(path)
    return dataset(path if table is None else table, **given)


in_columns = click.option(
    "--columns", multiple=True, help="Names with commas between; all by default."
)
embedded = click.option(
    "--embedded-filters",
    is_flag=True,
    help="Trust the Bloom filters inside files that no index covers; they have no checksum.",
)
layouts = click.option(
    "--layout",
    type=click.Choice(["auto", "table", "sliced"]),
    default="auto",
    help="How the bits of the filters lie; auto slices from 4096 zones on.",
)
named = click.option(
    "--name", "names", multiple=True, help="May be repeated; all indices by default."
)
zones = options(
    click.option("--number-of-items", type=int, help="Rows a zone; 8192 by default."),
    click.option("--probability", type=float, help="Of a false positive in a zone; 0.00057."),
)
engine = options(
    click.option(
        "--engine",
        type=click.Choice(["spark", "local"]),
        help="Where to build; by default Spark, but this process for less than a gigabyte, and "
        "where no Java 17 is found.",
    ),
    click.option("--master", help="Of the Spark session to build on; local[*] by default."),
)


def given(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def split(columns: Sequence[str]) -> list[str] | None:
    """Return the names that --columns gives, however often; None if it is not given."""
    return [name.strip() for text in columns for name in text.split(",")] or None


def once(context: object, option: click.Parameter, values: tuple[Any, ...]) -> Any:
    """Return the only value of an option, or None. Click itself would drop all but the last."""
    if len(values) > 1:
        raise click.BadParameter("give it once", param=option)
    return values[0] if values else None


def how_to_build(ds: Dataset) -> str:
    return f"no index at {ds.title}; make one: zonebloom build {ds.title} --column NAME"


@dataclass(frozen=True)
class EngineRun:
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
    ) -> EngineRun:
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
