"""The commands that write indices or move them, and validate."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from zonebloom.base.text import bytes_text, table_text
from zonebloom.cli import text
from zonebloom.cli.options import (
    EngineRun,
    engine,
    given,
    how_to_build,
    layouts,
    named,
    on_dataset,
    zonebloom,
    zones,
)
from zonebloom.cli.output import Answer, table_of
from zonebloom.errors import CorruptIndex, IndexNotFound, SchemaMismatch

if TYPE_CHECKING:
    from zonebloom.catalog.vacuum import Vacuumed
    from zonebloom.dataset import Dataset


@zonebloom.command(epilog="Example: zonebloom build data/flights --column tailnum --column flight")
@on_dataset
@click.option("--column", "columns", multiple=True, required=True, help="May be repeated.")
@engine
@click.option("--name", help="Of the index; COLUMN_idx by default.")
@zones
@click.option("--sizing", type=click.Choice(["log2", "exact"]), help="log2, as Lance, by default.")
@click.option(
    "--fold/--no-fold",
    default=None,
    help="Shrink filters of few distinct values, the default; or keep all as large as Lance's.",
)
@click.option("--max-false-zones", type=float, help="A lookup may read in vain; not --probability.")
@layouts
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
    run = EngineRun.of(
        engine,
        master,
        lambda session: ds.create_scalar_index(
            columns, name=name, spark=session, progress=True, **given(parameters)
        ),
        lambda: sum(file.identity.size for file in ds.opened.planner.coverage_for_scan().fragments),
    )
    names = {name} if name else {f"{column}_idx" for column in columns}
    built = [each for each in ds.describe_indices() if each.name in names]
    return Answer(
        lambda: run.document(ds, built),
        lambda: text.indices_text(built),
        lambda: table_of(built),
        aside=f"built {run.where} in {run.seconds:.1f} s",
    )


@zonebloom.command(epilog="Example: zonebloom refresh data/flights")
@on_dataset
@named
@engine
@layouts
@click.option(
    "--verify/--no-verify",
    default=True,
    help="Whether to look for damage, for which the indices are read whole; by default it is.",
)
def refresh(
    ds: Dataset,
    names: tuple[str, ...],
    engine: Any,
    master: str | None,
    layout: Any,
    verify: bool,
) -> Answer:
    """Index files that came or changed, forget those that are gone.

    The indices are read whole first, and those that are damaged are built anew with the same
    parameters. An index whose column was dropped or has another type is left as it is, with a
    warning that says what to do, and the command exits with 1. As JSON: path, engine, seconds,
    indices.
    """
    _require_indices(ds, may_mend=True)
    run = EngineRun.of(
        engine,
        master,
        lambda session: ds.optimize.optimize_indices(
            names or None, layout=layout, repair=verify, spark=session, progress=True
        ),
        lambda: sum(
            f.identity.size
            for f in ds.opened.planner.coverage_for_scan().fragments
            if not f.is_known
        ),
    )
    headers = ["index", "files added", "files dropped", "layout", "tables"]
    fields = ("name", "fragments_added", "fragments_dropped", "layout", "num_segments")
    rows = [[getattr(each, field) for field in fields] for each in run.result]
    return Answer(
        lambda: run.document(ds, run.result),
        lambda: table_text(headers, rows),
        lambda: table_of(run.result),
        aside=f"refreshed in {run.seconds:.1f} s",
        notes=[
            f"index {each.name} was damaged and is built anew: {each.damage}"
            for each in run.result
            if each.damage
        ],
        code=text.FAILED if any(each.problem for each in run.result) else 0,
    )


def _require_indices(ds: Dataset, may_mend: bool = False) -> None:
    """Refuse a dataset without any index, or whose newest version of the index is damaged."""
    is_damaged = ds.version < ds.opened.catalog.newest_number()
    if ds.describe_indices():
        if is_damaged and not may_mend:
            raise CorruptIndex(
                f"the newest version of the index in {ds.index_dir} cannot be read; mend it: "
                f"zonebloom refresh {ds.title}"
            )
        return
    ds.opened.require_unlocked()
    if is_damaged:
        raise CorruptIndex(
            f"no version of the index in {ds.index_dir} can be read, so what was indexed is not "
            f"known; build it again: zonebloom build {ds.title} --column NAME"
        )
    raise IndexNotFound(how_to_build(ds))


@zonebloom.command(epilog="Example: zonebloom adopt copy/of/flights")
@on_dataset
def adopt(ds: Dataset) -> Answer:
    """Use the index copied or moved to PATH with its files.

    Files are recognised by size and footer. Of those over 1 MiB, or in a store, the indexed
    columns are read to prove that the index holds. As JSON: path, num_files, left.
    """
    adopted = ds.adopt_index()
    left = [f"not known: {path}" for path in adopted.left]
    return Answer(
        lambda: {"path": ds.title, "num_files": adopted.num_files, "left": adopted.left},
        lambda: f"the index covers {adopted.num_files:,} more files",
        lambda: table_of([{"num_files": adopted.num_files, "left": list(adopted.left)}]),
        notes=left,
    )


@zonebloom.command("move-index", epilog="Example: zonebloom move-index data/flights")
@on_dataset
@click.option(
    "--to",
    metavar="DIR",
    type=click.Path(),
    help="A folder for the index, which later commands need as --index-dir.",
)
def move_index(ds: Dataset, to: str | None) -> Answer:
    """Move the index beside the data folder.

    The default place of the index of lake/orders is lake/_zonebloom/orders. Earlier releases put it
    inside the data folder, where it disturbs other readers. A move that died is finished by the
    next one. As JSON: path, index_dir, num_files, foreign_files.
    """
    moved = ds.move_index(to)
    line = f"moved {text.count(moved.num_files, 'file')} of the index to {moved.index_dir}"
    return Answer(
        lambda: {"path": ds.title, **asdict(moved)},
        lambda: line if moved.num_files else f"the index is in {moved.index_dir}",
        lambda: table_of([asdict(moved) | {"foreign_files": list(moved.foreign_files)}]),
        notes=[f"not of the index, and not deleted: {path}" for path in moved.foreign_files],
    )


def _sample(context: object, option: object, value: str) -> int | str:
    if value != "all" and not (value.isascii() and value.isdecimal()):
        raise click.BadParameter(f"{value!r} is neither all nor a number", param_hint="--sample")
    return value if value == "all" else int(value)


@zonebloom.command(epilog="Example: zonebloom validate data/flights")
@on_dataset
@named
@click.option(
    "--sample",
    default="16",
    metavar="N|all",
    callback=_sample,
    help="Zones whose values are read from the files; 16 by default, 0 for checksums alone.",
)
def validate(ds: Dataset, names: tuple[str, ...], sample: Any) -> Answer:
    """Hold the indices at PATH against checksums and rows.

    They are read whole, and some zones of the files. An index is sound, stale (files it covers
    have changed or are gone; those are scanned), damaged, or unusable (its column was dropped or
    has another type). Exits with 1 when one is damaged or unusable, or there is none. As JSON:
    path, indices (name, state, zones, zones_read, changed, gone, damage).
    """
    _require_indices(ds)
    chosen = names or [each.name for each in ds.describe_indices()]
    indices = [_validated(ds, name, sample) for name in chosen]
    headers = ["index", "state", "zones", "zones read", "files changed", "files gone"]
    rows = [[*list(each.values())[:4], len(each["changed"]), len(each["gone"])] for each in indices]
    mend = {"damaged": f"; mend it: zonebloom refresh {ds.title}"}
    damage = [each["damage"] + mend.get(each["state"], "") for each in indices if each["damage"]]
    return Answer(
        lambda: {"path": ds.title, "indices": indices},
        lambda: table_text(headers, rows),
        lambda: table_of(indices),
        notes=damage,
        code=text.FAILED if damage else 0,
    )


def _validated(ds: Dataset, name: str, sample: Any) -> dict[str, Any]:
    row = {"name": name, "state": "damaged", "zones": 0, "zones_read": 0}
    row |= {"changed": (), "gone": (), "damage": None}
    try:
        index = ds.validate_index(name, sample=sample)
    except CorruptIndex as error:
        return row | {"damage": str(error)}
    except SchemaMismatch as error:
        return row | {"state": "unusable", "damage": str(error)}
    row |= {"state": index.state, "zones": int(index), "zones_read": index.zones_read}
    return row | {"changed": index.changed, "gone": index.gone}


@zonebloom.command(epilog="Example: zonebloom drop data/flights --name flight_idx")
@on_dataset
@click.option("--name", "names", multiple=True, required=True, help="May be repeated.")
def drop(ds: Dataset, names: tuple[str, ...]) -> Answer:
    """Forget indices at PATH; vacuum deletes their files.

    As JSON: path, dropped, left.
    """
    for name in names:
        ds.opened.index_entry(name)
    for name in dict.fromkeys(names):
        ds.drop_index(name)
    left = [each.name for each in ds.describe_indices()]
    return Answer(
        lambda: {"path": ds.title, "dropped": names, "left": left},
        lambda: f"dropped {', '.join(names)}; left: {', '.join(left) or 'none'}",
        lambda: table_of([{"name": name} for name in names]),
    )


# Paths of others that the text of a vacuum lists.
_LISTED = 10
_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


def _duration(context: object, option: object, value: str) -> timedelta:
    match = re.fullmatch(r"(\d+)([dhms])", value)
    if match is None:
        raise click.BadParameter(
            f"{value!r} is no time; give one like 7d, 12h, 30m or 0s", param_hint="--older-than"
        )
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


@zonebloom.command(epilog="Example: zonebloom vacuum data/flights --older-than 1d")
@on_dataset
@click.option(
    "--older-than",
    metavar="TIME",
    default="7d",
    callback=_duration,
    help="Like 7d, 12h or 30m; 7d by default. More than a lookup or a build takes.",
)
def vacuum(ds: Dataset, older_than: timedelta) -> Answer:
    """Delete replaced versions of the index, and their files.

    What is not of the index is left alone, and listed.

    As JSON: path, num_versions, num_segments, num_bytes, foreign.
    """
    done = ds.vacuum(older_than)
    return Answer(
        lambda: {"path": ds.title, **asdict(done)},
        lambda: _vacuumed_text(done),
        lambda: table_of([done]),
    )


def _vacuumed_text(done: Vacuumed) -> str:
    versions = text.count(done.num_versions, "version")
    segments = text.count(done.num_segments, "segment")
    line = f"deleted {versions} and {segments}, {bytes_text(done.num_bytes)}"
    if not done.foreign:
        return line
    names, rest = ", ".join(done.foreign[:_LISTED]), len(done.foreign) - _LISTED
    more = f" and {rest:,} more" if rest > 0 else ""
    return f"{line}\nleft {len(done.foreign):,} alone that are not of the index: {names}{more}"
