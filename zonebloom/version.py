"""The version of the package, on which drivers and workers must agree, and of what it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

# What a release changes is told at the end of README.
__version__ = "0.2.0"

# Of all files of an index; raised by a change that an earlier release would misread.
FORMAT_VERSION = 5
_KEY = b"zonebloom_format"


class NewerFormat(ValueError):
    """A file of a newer zonebloom, whose content means nothing here."""

    def __init__(self, written_as: int):
        super().__init__(
            f"it was written by a newer zonebloom (format {written_as}, {FORMAT_VERSION} is "
            "known); install that one: pip install --upgrade zonebloom"
        )


def stamped(schema: pa.Schema) -> pa.Schema:
    """A schema whose Arrow file says the format it is in."""
    return schema.with_metadata({**(schema.metadata or {}), _KEY: str(FORMAT_VERSION).encode()})


def require_known(schema: pa.Schema) -> None:
    """Raise NewerFormat for an Arrow file of a newer format; files before format 4 do not say."""
    written_as = int((schema.metadata or {}).get(_KEY, b"1"))
    if written_as > FORMAT_VERSION:
        raise NewerFormat(written_as)
