"""All commands of ``zonebloom``, over click: those of other modules, demo and completion."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import click
from click.shell_completion import get_completion_class

from zonebloom.cli import describing, indices, reading, text
from zonebloom.cli.options import EngineRun, answers_as_text, engine, zonebloom
from zonebloom.cli.output import Answer

__all__ = ["describing", "indices", "reading", "zonebloom"]


@zonebloom.command(epilog="Example: zonebloom demo --path data")
@click.option("--path", help="Folder to write the data to and keep it; else a temporary one.")
@engine
@answers_as_text
def demo(path: str | None, engine: Any, master: str | None) -> Answer:
    """Index real data, look up, check against brute force.

    Exits with 1 if a check fails. As JSON: engine, build_seconds, datasets, lookups, all_same.
    """
    import tempfile

    from zonebloom.cli import demo
    from zonebloom.dataset import dataset

    with ExitStack() as stack:
        folder = path or stack.enter_context(tempfile.TemporaryDirectory(prefix="zonebloom-"))
        text.say("writing flights and places as Parquet")
        tables = demo.write(folder)
        run = EngineRun.of(
            engine,
            master,
            lambda session: demo.build(folder, session, progress=True),
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
                    f"{text.indices_text(described[name])}\n\n"
                    f"{text.lookups_text([each for each in results if each.dataset == name])}"
                    for name, ds in datasets.items()
                ),
                f"\n{same} of {len(results)} lookups found the rows brute force finds, in its "
                "order",
            ]
        ),
        notes=[f"the data is kept in {path}"] if path else [],
        code=0 if same == len(results) else text.FAILED,
    )


@zonebloom.command(epilog='Example: eval "$(zonebloom completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@answers_as_text
def completion(shell: str) -> Answer:
    """Print what makes a shell complete commands, options and paths.

    As JSON: shell, script.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(zonebloom, {}, "zonebloom", "_ZONEBLOOM_COMPLETE").source()
    return Answer(lambda: {"shell": shell, "script": script}, lambda: script)
