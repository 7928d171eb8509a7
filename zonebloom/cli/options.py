"""The command group, and what its commands share: options, opening a dataset, running a build."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from zonebloom.base.arguments import suggest_names
from zonebloom.base.version import __version__
from zonebloom.cli.output import FORMATS, ROW_FORMATS, CommandAnswer, resolve_format, write_answer
from zonebloom.errors import EngineError, MissingDependency

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from zonebloom.facade.opening import OpenedSource

_JSON_HELP = (
    "json is one document: dates and times as ISO 8601, binary values in base64, decimals as text, "
    "NaN and infinities as null."
)
_OUTPUT_HELP = f"The format; text by default. {_JSON_HELP}"
_ROW_OUTPUT_HELP = (
    f"The format; by default that of FILE's extension, or text. {_JSON_HELP} jsonl (one JSON "
    "object on each line), csv, arrow (an IPC file) and parquet contain only the rows."
)


class _CommandGroup(click.Group):
    """The group of commands. An unknown command is an error that suggests the nearest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, names = args[0], self.list_commands(ctx)
        # Older versions of click do not suggest commands.
        if name not in names and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"there is no command {name!r}; {suggest_names(name, names, 'there are:')}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__)
def zonebloom() -> None:
    """Index the zones of files by Bloom filters, and look up rows in only the zones that may match.

    PATH is a folder, file, pattern or URI, or the folder of a Delta or Iceberg table. Exit codes:
    0 done, 1 error, 2 wrong usage, 3 a lookup that found no row, 130 interrupted.
    """


def combine_options(*options: Callable) -> Callable[[Callable], Callable]:
    """Return a decorator that stacks several option decorators above a function, in this order."""

    def apply(command: Callable) -> Callable:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


def answer_command(
    command: Callable[..., CommandAnswer], *, has_rows: bool = False
) -> Callable[..., int]:
    """Add output options to a command, and write its answer.

    The new command returns an exit code. If its answer has rows of a dataset, there are more
    formats and ``-o FILE``.
    """

    @functools.wraps(command)
    def run(output: str | None, path_out: str | None = None, **parameters: Any) -> int:
        output = resolve_format(output, path_out)
        answer = command(**parameters)
        write_answer(answer, output, path_out)
        return answer.exit_code

    if not has_rows:
        return click.option("--output", type=click.Choice(FORMATS), help=_OUTPUT_HELP)(run)
    return combine_options(
        click.option("--output", type=click.Choice(ROW_FORMATS), help=_ROW_OUTPUT_HELP),
        click.option(
            "-o",
            "path_out",
            metavar="FILE",
            type=click.Path(dir_okay=False),
            help="Write the rows to FILE, which is created when they are complete.",
        ),
    )(run)


source_options = combine_options(
    click.option("--format", default="parquet", help="Format of the files; parquet by default."),
    click.option(
        "--index-dir",
        type=click.Path(),
        help="Folder of the index; _zonebloom/NAME beside the folder NAME by default.",
    ),
    click.option(
        "--schema",
        type=click.Choice(["union"]),
        help="union: the columns of all files, in types that hold their values. By default the "
        "columns and types of the first file.",
    ),
    click.option(
        "--partitioning",
        type=click.Choice(["infer"]),
        help="infer: folders such as day=2026-03-30 give dates and integers. By default they give "
        "integers and text.",
    ),
)
# The options of a source that commands may have.
_SOURCE_NAMES = ("format", "index_dir", "schema", "partitioning", "embedded_filters", "catalog")
catalog_option = click.option(
    "--catalog",
    metavar="NAME",
    help="The catalog of an Iceberg table, as pyiceberg's configuration names it. PATH is then the "
    "name of the table, such as shop.orders.",
)


def open_at(
    path: str, *, catalog: str | None = None, partitioning: Any = None, **options: Any
) -> OpenedSource:
    """Open the Delta or Iceberg table at a path, or in a catalog, or else the files there."""
    from zonebloom.facade.opening import OpenOptions, open_source
    from zonebloom.sources.table_folders import table_at, table_in_catalog

    table = table_at(path) if catalog is None else table_in_catalog(catalog, path)
    source = path if table is None else table
    return open_source(source, OpenOptions(partitioning=partitioning or "auto", **options))


def source_command(
    command: Callable[..., CommandAnswer], *, has_rows: bool = False
) -> Callable[..., int]:
    """Add the PATH argument to a command, and call it with the `OpenedSource` at PATH.

    Such a command starts faster than a `dataset_command`, because it does not import
    ``pyarrow.dataset``.
    """

    @functools.wraps(command)
    def run(path: str, **parameters: Any) -> CommandAnswer:
        options = {name: parameters.pop(name) for name in _SOURCE_NAMES if name in parameters}
        return command(open_at(path, **options), **parameters)

    return combine_options(click.argument("path", type=click.Path()), source_options)(
        answer_command(run, has_rows=has_rows)
    )


# A command that prints rows of the dataset at PATH.
rows_command = functools.partial(source_command, has_rows=True)


def dataset_command(command: Callable[..., CommandAnswer]) -> Callable[..., int]:
    """Add the PATH argument to a command, and call it with the `Dataset` at PATH."""

    @functools.wraps(command)
    def run(source: OpenedSource, **parameters: Any) -> CommandAnswer:
        from zonebloom.facade.dataset import Dataset

        return command(Dataset(*source), **parameters)

    return source_command(run)


def columns_options(
    *, required: bool = False, purpose: str = "Columns to print; all by default."
) -> Callable[[Callable], Callable]:
    """Return a decorator that adds --columns and --column, whose names come as ``columns``.

    The names are a list in the order of the command line, or None if there is none.
    """

    def apply(command: Callable) -> Callable:
        @functools.wraps(command)
        def run(*arguments: Any, **parameters: Any) -> Any:
            names = split_names(parameters.pop("columns")) + list(parameters.pop("column"))
            if required and not names:
                raise click.UsageError("name the columns: --column NAME, or --columns A,B")
            return command(*arguments, columns=names or None, **parameters)

        return combine_options(
            click.option(
                "--columns",
                metavar="A,B",
                multiple=True,
                help=f"{purpose} Separate them by commas.",
            ),
            click.option(
                "--column", metavar="NAME", multiple=True, help="One of them; may be repeated."
            ),
        )(run)

    return apply


embedded_filters_option = click.option(
    "--embedded-filters",
    is_flag=True,
    help="Trust the Bloom filters inside files that no index covers; they have no checksum.",
)
index_names_option = click.option(
    "--name", "names", multiple=True, help="May be repeated; all indices by default."
)
spark_option = click.option(
    "--spark",
    "uses_spark",
    is_flag=True,
    help="Build on Spark, as SparkSession.builder.getOrCreate() starts it, and not in this "
    "process.",
)


def drop_unset(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that are not None."""
    return {name: value for name, value in parameters.items() if value is not None}


def split_names(columns: Sequence[str]) -> list[str]:
    """Return all names in the values of --columns."""
    return [name.strip() for names in columns for name in names.split(",")]


def single_value(context: object, option: click.Parameter, values: tuple[Any, ...]) -> Any:
    """Return the only value of an option, or None. Click itself would use the last of several."""
    if len(values) > 1:
        raise click.BadParameter("give it once", param=option)
    return values[0] if values else None


def no_index_message(title: str) -> str:
    return f"no index at {title}; make one: zonebloom build {title} --column NAME"


def spark_session() -> SparkSession:
    """Return the Spark session of the process, which Spark's own configuration describes."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingDependency("--spark needs pyspark: pip install 'zonebloom[spark]'") from None
    try:
        return SparkSession.builder.getOrCreate()
    except Exception as error:
        raise EngineError(
            f"Spark did not start: {error}; check its Java (Spark 4 needs Java 17) and its "
            "configuration, or leave out --spark to build in this process"
        ) from error


def timed_build(work: Callable[[Any], Any], *, uses_spark: bool) -> tuple[Any, float]:
    """Call ``work`` with a Spark session or False. Return its result, and the seconds it took."""
    session = spark_session() if uses_spark else False
    start = time.perf_counter()
    return work(session), time.perf_counter() - start
