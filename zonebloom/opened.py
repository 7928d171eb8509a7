"""What an opened dataset is: the record that everything over it reads."""

from __future__ import annotations

from dataclasses import dataclass

from zonebloom import arguments
from zonebloom.catalog.model import Version
from zonebloom.catalog.store import Catalog
from zonebloom.errors import ColumnNotFound, InvalidArgument
from zonebloom.scan.binding import require_column
from zonebloom.scan.planner import Planner
from zonebloom.storage.columns import Column
from zonebloom.storage.source import Source
from zonebloom.values.columns import column_path, leaf_type
from zonebloom.values.probe import require_indexable


@dataclass(frozen=True, slots=True)
class Opened:
    """A dataset as it is open.

    Attributes
    ----------
    source : Source
        Its files, as they were listed.
    catalog : Catalog
        The folder of its indices.
    version : Version
        The indices in use.
    planner : Planner
        What answers over these files with these indices.
    """

    source: Source
    catalog: Catalog
    version: Version
    planner: Planner

    def column(self, name: str, ignore_case: bool = False) -> Column:
        """A column that can be indexed."""
        path = column_path(self.source.schema, name, ignore_case)
        if len(path) == 1:
            require_column(path[0], self.source.schema)
        found = leaf_type(self.source.schema, path)
        if found is None:
            known = ", ".join(self.source.schema.names[:20])
            raise ColumnNotFound(
                f"there is no column {arguments.shown(name)}, or more than one; the dataset has "
                f"{known}"
            )
        require_indexable(found, name)
        if path[0] in self.source.partition_columns():
            raise InvalidArgument(
                f"column {name!r} is read from the paths of the files, not from their rows, and a "
                "scan passes over files by it already; index another column"
            )
        return Column(path, found)
