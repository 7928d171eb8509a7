"""All commands of ``zonebloom``: those of other modules, ``demo`` and ``completion``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import click
from click.shell_completion import get_completion_class

from zonebloom.cli import describing, indices, reading, rewriting, text
from zonebloom.cli.options import EngineRun, answer_command, engine_options, zonebloom
from zonebloom.cli.output import CommandAnswer

__all__ = ["describing", "indices", "reading", "rewriting", "zonebloom"]


@zonebloom.command("demo", epilog="Example: zonebloom demo --path data")
@click.option("--path", help="Folder to write and keep the data in; by default a temporary one.")
@engine_options
@answer_command
def demo_command(path: str | None, engine: Any, master: str | None) -> CommandAnswer:
    """Index real data, and check lookups by brute force.

    Exits with 1 if a check fails. As JSON: engine, build_seconds, datasets, lookups, all_same.
    """
    import tempfile

    from zonebloom.cli import demo
    from zonebloom.facade.opening import dataset

    with ExitStack() as stack:
        folder = path or stack.enter_context(tempfile.TemporaryDirectory(prefix="zonebloom-"))
        text.print_to_stderr("writing flights and places as Parquet")
        tables = demo.write_tables(folder)
        run = EngineRun.measure(
            engine,
            master,
            lambda session: demo.build_indices(folder, session, progress=True),
        )
        datasets = {name: dataset(f"{folder}/{name}") for name in tables}
        indices = {name: ds.describe_indices() for name, ds in datasets.items()}
        results = [
            demo.run_lookup(folder, lookup, tables[lookup.dataset]) for lookup in demo.LOOKUPS
        ]
    num_correct = sum(result.same_rows for result in results)
    lines = [f"indexed {run.location}, {run.seconds:.1f} s"]
    for name, ds in datasets.items():
        lookups = [result for result in results if result.dataset == name]
        lines += [
            f"\n{name}: {tables[name].num_rows:,} rows in {len(ds.files)} files",
            f"{text.indices_text(indices[name])}\n\n{text.lookups_text(lookups)}",
        ]
    lines.append(
        f"\n{num_correct} of {len(results)} lookups found the same rows as brute force, in the "
        "same order"
    )
    return CommandAnswer(
        {
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
        results,
        "\n".join(lines),
        notes=[f"the data is kept in {path}"] if path else [],
        exit_code=0 if num_correct == len(results) else text.FAILED,
    )


@zonebloom.command("completion", epilog='Example: eval "$(zonebloom completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@answer_command
def completion_command(shell: str) -> CommandAnswer:
    """Print the completion script of a shell.

    As JSON: shell, script.
    """
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    script = completion_class(zonebloom, {}, "zonebloom", "_ZONEBLOOM_COMPLETE").source()
    document = {"shell": shell, "script": script}
    return CommandAnswer(document, [document], script)
