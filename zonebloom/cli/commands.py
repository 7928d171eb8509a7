"""All commands of ``zonebloom``: those of other modules, and ``demo``."""

from __future__ import annotations

import os

import click

from zonebloom.base.text import count_text
from zonebloom.cli import changing, describing, indices, locating, reading, text
from zonebloom.cli.options import (
    EngineRun,
    answer_command,
    spark_option,
    spark_session,
    zonebloom,
)
from zonebloom.cli.output import CommandAnswer, terminal_width

__all__ = ["changing", "describing", "indices", "locating", "reading", "zonebloom"]


@zonebloom.command("demo", epilog="Example: zonebloom demo --path data")
@click.option(
    "--path",
    default="zonebloom-demo",
    help="Folder to write and keep the data in; zonebloom-demo by default.",
)
@spark_option
@answer_command
def demo_command(path: str, uses_spark: bool) -> CommandAnswer:
    """Index real data, and check lookups by brute force.

    The command writes flights of 2013 and places of the world as Parquet files, about 26 MB. It
    builds five indices, and runs lookups with and without them. A lookup is a win if the index
    saves at least half of the bytes. Exits with 1 if rows are missing or wrong. As JSON: path,
    engine, build_seconds, datasets, lookups, all_same.
    """
    from zonebloom.cli import demo
    from zonebloom.facade.opening import dataset
    from zonebloom.sbbf.kernel_loader import KERNELS

    if uses_spark:
        # Do not write data first, if the indices cannot be built.
        spark_session()
    text.print_to_stderr("writing flights and places as Parquet")
    tables = demo.write_tables(path)
    run = EngineRun.measure(
        lambda session: demo.build_indices(path, session, progress=True), uses_spark=uses_spark
    )
    # The lookups show what a process reads that runs on, and not what its first moments cost.
    text.print_to_stderr("loading the compiled kernels; the first time takes about half a minute")
    KERNELS.load()
    datasets = {name: dataset(os.path.join(path, name)) for name in tables}
    indices = {name: ds.describe_indices() for name, ds in datasets.items()}
    results = [
        demo.run_lookup(datasets[lookup.dataset], lookup, tables[lookup.dataset])
        for lookup in demo.LOOKUPS
    ]
    width = terminal_width()
    num_correct = sum(result.same_rows for result in results)
    num_wins = sum(not result.why_no_win for result in results)
    lines = [f"indexed {run.location} in {run.seconds:.1f} s"]
    for name, ds in datasets.items():
        lookups = [result for result in results if result.dataset == name]
        lines += [
            f"\n{name}: {count_text(tables[name].num_rows, 'row')} in "
            f"{count_text(len(ds.files), 'file')}",
            f"{text.indices_text(indices[name], width=width)}\n",
            text.lookups_text(lookups, width),
        ]
    lines += [
        "",
        f"{num_correct} of {len(results)} lookups found the same rows as brute force, in the same "
        "order",
        f"{num_wins} of {len(results)} read less than half of what a scan without an index reads",
        "(the first lookup of a column also reads its index; later ones reuse it)",
        "",
        f"The data and its indices are in {path}. Try next:",
        *(f"  {command}" for command in demo.next_commands(path)),
    ]
    return CommandAnswer(
        {
            "path": path,
            "engine": run.engine,
            "build_seconds": run.seconds,
            "datasets": [
                {
                    "name": name,
                    "rows": tables[name].num_rows,
                    "files": len(ds.files),
                    "indices": list(indices[name]),
                }
                for name, ds in datasets.items()
            ],
            "lookups": results,
            "all_same": num_correct == len(results),
        },
        "\n".join(lines),
        exit_code=0 if num_correct == len(results) else text.FAILED,
    )
