"""The commands that build, change, move, delete or validate indices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from zonebloom.base.text import bytes_text, count_text
from zonebloom.cli import text
from zonebloom.cli.options import (
    columns_options,
    dataset_command,
    drop_unset,
    index_names_option,
    no_index_message,
    spark_option,
    timed_build,
    zonebloom,
)
from zonebloom.cli.output import CommandAnswer, terminal_width
from zonebloom.errors import CorruptIndex, IndexNotFound, SchemaMismatch

if TYPE_CHECKING:
    from zonebloom.facade.dataset import Dataset


@zonebloom.command(
    "build", epilog="Example: zonebloom build data/flights --column tailnum --column flight"
)
@dataset_command
@columns_options(required=True, purpose="Columns to index.")
@spark_option
@click.option(
    "--name",
    help="Name of the index; COLUMN_idx by default, or COLUMN_KIND_idx beside an index of that "
    "name that answers other questions. An index of the same name is replaced.",
)
@click.option(
    "--type",
    "index_type",
    metavar="KIND",
    help="Kind of the index, in any case; BLOOMFILTER by default. A kind may lack some of the "
    "options below, and have other defaults.",
)
@click.option("--number-of-items", type=int, help="Rows in a zone; 8192 by default.")
@click.option(
    "--probability", type=float, help="False positive probability of a zone; 0.00057 by default."
)
@click.option(
    "--fold/--no-fold",
    default=None,
    help="Shrink filters with few distinct values (the default), or keep all as large as Lance's.",
)
@click.option(
    "--tokens",
    type=click.Choice(["words", "trigrams"]),
    help="Words of each string, or all of its pieces of three bytes.",
)
@click.option("--lower", is_flag=True, default=None, help="Take tokens without regard to case.")
@click.option("--together", is_flag=True, help="Make one index of the columns together.")
def build_command(
    ds: Dataset,
    columns: list[str],
    uses_spark: bool,
    name: str | None,
    together: bool,
    **parameters: Any,
) -> CommandAnswer:
    """Index columns of the dataset at PATH.

    "tags[]" are the elements of a list, "events[].id" a field of the structs in it, and "attrs[]"
    the entries of a map. As JSON: path, engine, seconds, indices (those that were built).
    """
    from zonebloom.index.describe import index_table

    before = dict(ds.opened.version.indices)
    _, seconds = timed_build(
        lambda session: ds.create_scalar_index(
            tuple(columns) if together else columns,
            name=name,
            spark=session,
            progress=True,
            **drop_unset(parameters),
        ),
        uses_spark=uses_spark,
    )
    after = ds.opened.version.indices
    indices = [
        index for index in ds.describe_indices() if after[index.name] != before.get(index.name)
    ]
    replaced = ", ".join(f"replaced {index.name}" for index in indices if index.name in before)
    location = "on Spark" if uses_spark else "in this process"
    return CommandAnswer(
        _build_document(ds, indices, seconds, uses_spark=uses_spark),
        text.fitted_table(*index_table(indices), terminal_width()),
        summary=f"built {location} in {seconds:.1f} s" + (replaced and f"; {replaced}"),
    )


def _build_document(
    ds: Dataset, indices: Sequence[Any], seconds: float, *, uses_spark: bool
) -> dict[str, Any]:
    engine = "spark" if uses_spark else "local"
    return {"path": ds.title, "engine": engine, "seconds": seconds, "indices": list(indices)}


@zonebloom.command("refresh", epilog="Example: zonebloom refresh data/flights")
@dataset_command
@index_names_option
@spark_option
@click.option(
    "--verify/--no-verify",
    default=True,
    help="Whether to read the whole indices first and look for damage; by default they are.",
)
def refresh_command(
    ds: Dataset,
    names: tuple[str, ...],
    uses_spark: bool,
    verify: bool,
) -> CommandAnswer:
    """Index new and changed files, and forget deleted files.

    The command first reads the whole indices, and builds damaged ones again with the same
    parameters. An index whose column was dropped or has another type stays as it is; a warning
    says what to do, and the command exits with 1. As JSON: path, engine, seconds, indices
    (with the files added and dropped, and the segments that each now has).
    """
    from zonebloom.building.builder import refreshed_table

    _require_indices(ds, accept_damage=True)
    refreshed, seconds = timed_build(
        lambda session: ds.optimize.optimize_indices(
            names or None, repair=verify, spark=session, progress=True
        ),
        uses_spark=uses_spark,
    )
    return CommandAnswer(
        _build_document(ds, refreshed, seconds, uses_spark=uses_spark),
        text.fitted_table(*refreshed_table(refreshed), terminal_width()),
        summary=f"refreshed in {seconds:.1f} s",
        notes=[
            f"index {index.name} was damaged and is built anew: {index.damage}"
            for index in refreshed
            if index.damage
        ],
        exit_code=text.FAILED if any(index.problem for index in refreshed) else 0,
    )


def _require_indices(ds: Dataset, *, accept_damage: bool = False) -> None:
    """Raise if a dataset has no index, or if the newest version of its index is damaged."""
    is_damaged = ds.version < ds.opened.catalog.newest_number()
    if ds.describe_indices():
        if is_damaged and not accept_damage:
            raise CorruptIndex(
                f"the newest version of the index in {ds.index_dir} cannot be read; repair it: "
                f"zonebloom refresh {ds.title}"
            )
        return
    ds.opened.require_unlocked()
    if is_damaged:
        raise CorruptIndex(
            f"no version of the index in {ds.index_dir} can be read, so the indexed columns are "
            f"unknown; build it again: zonebloom build {ds.title} --column NAME"
        )
    raise IndexNotFound(no_index_message(ds.title))


def _parse_sample(context: object, option: object, value: str) -> int | str:
    if value != "all" and not (value.isascii() and value.isdecimal()):
        raise click.BadParameter(f"{value!r} is neither all nor a number", param_hint="--sample")
    return value if value == "all" else int(value)


@zonebloom.command("validate", epilog="Example: zonebloom validate data/flights")
@dataset_command
@index_names_option
@click.option(
    "--sample",
    default="16",
    metavar="N|all",
    callback=_parse_sample,
    help="Zones whose values are read from the files; 16 by default, 0 for only checksums.",
)
def validate_command(ds: Dataset, names: tuple[str, ...], sample: Any) -> CommandAnswer:
    """Check the indices at PATH against checksums and rows.

    The command reads the whole indices, and some zones of the files. An index is sound, stale
    (files that it covers have changed or are gone; scans read those whole), damaged, or unusable
    (its column was dropped or has another type). Exits with 1 if an index is damaged or unusable,
    or if there is none. As JSON: path, indices (name, state, zones that it has, zones_read of
    them with the rows, changed and gone files, damage).
    """
    _require_indices(ds)
    names = names or tuple(index.name for index in ds.describe_indices())
    indices = [_validate_index(ds, name, sample) for name in names]
    headers = ["index", "state", "zones", "zones read", "files changed", "files gone"]
    fields = ("name", "state", "zones", "zones_read")
    rows = [
        [*(index[field] for field in fields), len(index["changed"]), len(index["gone"])]
        for index in indices
    ]
    advice = {"damaged": f"; repair it: zonebloom refresh {ds.title}"}
    damage = [
        index["damage"] + advice.get(index["state"], "") for index in indices if index["damage"]
    ]
    return CommandAnswer(
        {"path": ds.title, "indices": indices},
        text.fitted_table(headers, rows, terminal_width()),
        notes=damage,
        exit_code=text.FAILED if damage else 0,
    )


def _validate_index(ds: Dataset, name: str, sample: Any) -> dict[str, Any]:
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


@zonebloom.command("drop", epilog="Example: zonebloom drop data/flights --name flight_idx")
@dataset_command
@click.option("--name", "names", multiple=True, required=True, help="May be repeated.")
def drop_command(ds: Dataset, names: tuple[str, ...]) -> CommandAnswer:
    """Remove indices at PATH. The vacuum command deletes their files.

    As JSON: path, dropped, left.
    """
    for name in names:
        ds.opened.index_entry(name)
    for name in dict.fromkeys(names):
        ds.drop_index(name)
    remaining = [index.name for index in ds.describe_indices()]
    return CommandAnswer(
        {"path": ds.title, "dropped": names, "left": remaining},
        f"dropped {', '.join(names)}; left: {', '.join(remaining) or 'none'}",
    )


# The text of a vacuum lists at most this many foreign files.
_MAX_LISTED_PATHS = 10
_DURATION_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


def _parse_duration(context: object, option: object, value: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,9})([dhms])", value)
    if match is None:
        raise click.BadParameter(
            f"{value!r} is not a time; give one like 7d, 12h, 30m or 0s", param_hint="--older-than"
        )
    return timedelta(**{_DURATION_UNITS[match[2]]: int(match[1])})


@zonebloom.command("vacuum", epilog="Example: zonebloom vacuum data/flights --older-than 1d")
@dataset_command
@click.option(
    "--older-than",
    metavar="TIME",
    default="7d",
    callback=_parse_duration,
    help="Like 7d, 12h or 30m; 7d by default. It must be longer than any lookup or build runs.",
)
def vacuum_command(ds: Dataset, older_than: timedelta) -> CommandAnswer:
    """Delete replaced versions of the index, and their files.

    Files that are not part of the index are left alone, and listed.

    As JSON: path, num_versions, num_segments and num_bytes (that were deleted), foreign (paths).
    """
    vacuumed = ds.vacuum(older_than)
    versions = count_text(vacuumed.num_versions, "version")
    segments = count_text(vacuumed.num_segments, "segment")
    line = f"deleted {versions} and {segments}, {bytes_text(vacuumed.num_bytes)}"
    if vacuumed.foreign:
        num_unlisted = len(vacuumed.foreign) - _MAX_LISTED_PATHS
        more = f" and {num_unlisted:,} more" if num_unlisted > 0 else ""
        line += (
            f"\nleft alone {count_text(len(vacuumed.foreign), 'path')} that are not part of the "
            f"index: {', '.join(vacuumed.foreign[:_MAX_LISTED_PATHS])}{more}"
        )
    return CommandAnswer({"path": ds.title, **asdict(vacuumed)}, line)
