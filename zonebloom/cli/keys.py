"""Read keys from options, files and stdin, in the types of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import click
import pyarrow as pa

from zonebloom.base.arrays import array_of, uuids_of
from zonebloom.cli.options import combine_options, single_value, split_names
from zonebloom.errors import InvalidArgument
from zonebloom.sources.given_files import is_parquet, read_columns
from zonebloom.values.normal_types import decoded_type
from zonebloom.values.types import family

if TYPE_CHECKING:
    from zonebloom.scan.opened import OpenedDataset


def key_option(purpose: str) -> Callable[[Callable], Callable]:
    """Return a decorator that adds --key, whose values come as ``key_texts``."""
    return click.option(
        "--key",
        "key_texts",
        metavar="COLUMN=VALUE",
        multiple=True,
        help=f"{purpose} Repeat it with the same column for several keys, or with other columns "
        "for one composite key.",
    )


def keys_file_option(help: str) -> Callable[[Callable], Callable]:
    """Return a decorator that adds --keys, a file that comes as ``keys_file``."""
    return click.option(
        "--keys",
        "keys_file",
        metavar="FILE|-",
        type=click.File("rb"),
        multiple=True,
        callback=single_value,
        help=help,
    )


def on_option(*, required: bool = False) -> Callable[[Callable], Callable]:
    """Return a decorator that adds --on, the columns of the keys in a file."""
    return click.option(
        "--on",
        metavar="A,B",
        multiple=True,
        required=required,
        help="The column that is the key, or several, separated by commas.",
    )


def keys_options(purpose: str) -> Callable[[Callable], Callable]:
    """Return a decorator that adds --key, --keys, --on and --column; `given_keys` reads them."""
    return combine_options(
        key_option(purpose),
        keys_file_option(
            "A CSV or Parquet file, or stdin, with the keys in columns of the names of --on."
        ),
        on_option(),
        lines_option(),
    )


def lines_option() -> Callable[[Callable], Callable]:
    """Return a decorator that adds --column, the column of keys that stand one to a line."""
    return click.option(
        "--column",
        metavar="NAME",
        help="The column of --keys, of which each line of a text file is a key.",
    )


def given_keys(
    opened: OpenedDataset,
    key_texts: Sequence[str],
    keys_file: IO[bytes] | None,
    on: Sequence[str],
    column: str | None,
) -> dict[str, Any]:
    """Return the keys of --key or --keys by column. Without them, return none."""
    names = split_names(on)
    if keys_file is not None and key_texts:
        raise click.UsageError("give one of --key and --keys")
    if keys_file is None and (names or column):
        raise click.UsageError("--on and --column need --keys; --key names its own column")
    if keys_file is None:
        return cast_keys(opened, parse_keys(key_texts))
    if bool(names) == bool(column):
        raise click.UsageError(
            "--keys needs --on, the columns of the file that are the key; or --column, if each "
            "line of the file is a key"
        )
    return cast_keys(opened, read_keys(keys_file, names, column))


def as_arguments(keys: dict[str, Any]) -> tuple[Any, Any]:
    """Return the columns and the keys of `given_keys` as methods of a dataset take them."""
    return next(iter(keys.items())) if len(keys) == 1 else (list(keys), pa.table(keys))


def parse_keys(key_texts: Sequence[str]) -> dict[str, pa.Array]:
    """Return the keys of --key options by column: several of one column, or one of each column."""
    keys: dict[str, list[str]] = {}
    for key_text in key_texts:
        name, sign, value = key_text.partition("=")
        if not sign:
            raise click.BadParameter("give COLUMN=VALUE", param_hint="--key")
        keys.setdefault(name, []).append(value)
    if len(keys) > 1 and len(key_texts) > len(keys):
        repeated = next(name for name, values in keys.items() if len(values) > 1)
        raise click.BadParameter(
            f"it gives several keys of column {repeated!r} and a key of another column, so it is "
            "not clear which belong together; repeat a single column, or give each column once, "
            "or give a FILTER such as 'a IN (1, 2) AND b = 3'",
            param_hint="--key",
        )
    return {name: array_of(values, pa.string()) for name, values in keys.items()}


def read_keys(file: IO[bytes], names: Sequence[str], column: str | None) -> dict[str, Any]:
    """Return the keys in some columns of a file, by default the first. Those of CSV are text.

    With ``column``, a file that is not Parquet has a key of this column on each line.
    """
    data = pa.py_buffer(file.read())
    if column is None or is_parquet(data):
        return read_columns(file, data, [column] if column else names or None)
    lines = [line for line in data.to_pybytes().splitlines() if line]
    return {column: array_of(lines, pa.string())}


def cast_keys(
    opened: OpenedDataset, keys: Mapping[str, pa.Array | pa.ChunkedArray]
) -> dict[str, pa.Array | pa.ChunkedArray]:
    """Return keys by column as they are compared with it. Those that are text become its type."""
    return {name: _cast_column(opened, name, values) for name, values in keys.items()}


def _cast_column(
    opened: OpenedDataset, name: str, keys: pa.Array | pa.ChunkedArray
) -> pa.Array | pa.ChunkedArray:
    column_type = opened.key_column(name).type
    if not pa.types.is_string(keys.type):
        return keys
    try:
        keys.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidArgument(f"keys of {name!r} are not UTF-8: {error}; convert them") from None
    value_type = decoded_type(column_type)
    # The lookup itself reads UUIDs from text.
    if isinstance(value_type, pa.BaseExtensionType):
        return keys
    if family(value_type) == "bytes" and keys.null_count < len(keys):
        uuids = uuids_of(keys) if value_type == pa.binary(16) else None
        if uuids is None:
            raise InvalidArgument(
                f"column {name!r} holds bytes, which text gives only as UUIDs; give bytes in a "
                "Parquet file, or a filter such as \"NAME = '\\xAB\\xCD'::BLOB\""
            )
        return uuids
    try:
        return keys.cast(value_type)
    except pa.ArrowException as error:
        raise InvalidArgument(
            f"keys of {name!r} cannot be read as {value_type}: {error}; correct them"
        ) from None
