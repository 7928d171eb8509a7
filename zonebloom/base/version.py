"""The version of the package and the version of its file format.

A Spark driver and its workers must run the same version of the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

# CHANGELOG.md lists the changes of each release.
__version__ = "0.2.0"

# The format of all files of an index. From the first published release on, increase it with each
# change that earlier releases would misread.
FORMAT_VERSION = 1
_KEY = b"zonebloom_format"


class NewerFormat(ValueError):
    """A file was written by a newer zonebloom, so its content cannot be understood."""

    def __init__(self, format_version: int):
        super().__init__(
            f"it was written by a newer zonebloom (in format {format_version}; this version reads "
            f"up to {FORMAT_VERSION}); install that one: pip install --upgrade zonebloom"
        )


def with_format_version(schema: pa.Schema) -> pa.Schema:
    """Return a schema with metadata that names the format of the Arrow file."""
    return schema.with_metadata({**(schema.metadata or {}), _KEY: str(FORMAT_VERSION).encode()})


def require_known_format(schema: pa.Schema) -> None:
    """Raise `NewerFormat` for an Arrow file of a newer format."""
    format_version = int((schema.metadata or {}).get(_KEY, FORMAT_VERSION))
    if format_version > FORMAT_VERSION:
        raise NewerFormat(format_version)
