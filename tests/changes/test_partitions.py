"""Test upserts that move rows between partitions of all types, in new partitions and old ones."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)

import zonebloom as zb
from zonebloom.errors import InvalidArgument

MOMENT = dt.datetime(2026, 3, 1, 12, 30, 0, 250_000)
UTC = MOMENT.replace(tzinfo=dt.UTC)
VALUES = {
    "bool": (pa.bool_(), [True, False, None]),
    "int": (pa.int32(), [-5, 0, 7, None]),
    "long": (pa.int64(), [2**40, -1, 3, None]),
    "date": (pa.date32(), [dt.date(1969, 1, 2), dt.date(2026, 3, 1), dt.date(2027, 1, 1), None]),
    "time": (pa.timestamp("us"), [MOMENT, MOMENT + dt.timedelta(days=40, microseconds=1), None]),
    "utc": (pa.timestamp("us", "UTC"), [UTC, UTC - dt.timedelta(days=30_000), None]),
    "decimal": (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("2.05"), Decimal("100.00"), None]),
    "string": (pa.string(), ["a", "a b", "ä/%=:", "__x", None]),
}
TRANSFORMS = {
    "identity": (IdentityTransform(), list(VALUES)),
    "bucket": (BucketTransform(3), ["int", "string"]),
    "truncate": (TruncateTransform(2), ["long", "string"]),
    "year": (YearTransform(), ["utc"]),
    "month": (MonthTransform(), ["date"]),
    "day": (DayTransform(), ["time"]),
}
CASES = [("delta", name) for name in VALUES] + [
    (transform, name) for transform, (_, names) in TRANSFORMS.items() for name in names
]


@pytest.mark.many
@pytest.mark.parametrize(("way", "name"), CASES)
def test_rows_move_to_their_partitions(tmp_path, way, name):
    kind, values = VALUES[name]
    schema = pa.schema({"id": pa.int64(), "p": kind, "x": pa.string()})

    def rows(first: int, parts: list, text: str) -> pa.Table:
        numbers = list(range(first, first + len(parts)))
        return pa.table([numbers, parts, [text] * len(parts)], schema=schema)

    table: Any
    if way == "delta":
        path = tmp_path / "table"
        deltalake.write_deltalake(path, rows(0, values[1:] * 2, "old"), partition_by=["p"])
        table = deltalake.DeltaTable(path)
    else:
        uri = f"sqlite:///{tmp_path}/c.db"
        catalog = SqlCatalog("c", uri=uri, warehouse=tmp_path.as_uri())
        catalog.create_namespace("n")
        table = catalog.create_table("n.t", schema)
        with table.update_spec() as update:
            update.add_field("p", TRANSFORMS[way][0], "p_part")
        table.append(rows(0, values[1:] * 2, "old"))
    ds = zb.dataset(table)
    # Half of the rows move, and as many come.
    batch = rows(len(values) - 1, values, "new")
    receipt = ds.upsert(batch, on="id")
    assert (receipt.num_updated, receipt.num_inserted) == (len(values) - 1, 1)
    assert receipt.verification is not None and receipt.verification.is_proven
    wanted = [*rows(0, values[1:], "old").to_pylist(), *batch.to_pylist()]
    if way == "delta":
        theirs = pa.table(deltalake.DeltaTable(path).scan().read_all())
        # The engine of deltalake chooses files by the partition values of the log.
        engine = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
        for row in wanted:
            if row["p"] is not None:
                query = f"SELECT id FROM t WHERE p = {literal(row['p'])} AND id = {row['id']}"
                assert pa.table(engine.execute(query).read_all()).num_rows == 1, query
    else:
        theirs = table.refresh().scan().to_arrow()
        for value in values:
            if value is not None:
                scan = table.scan(row_filter=f"p = {literal(value)}")
                assert scan.to_arrow().num_rows == [row["p"] for row in wanted].count(value)
    for found in (theirs, ds.to_table(), zb.dataset(table).to_table()):
        assert found.cast(schema).sort_by("id").to_pylist() == wanted
    keys = batch.select(["id", "p"])
    with pytest.raises(InvalidArgument, match="'p' is null"):
        ds.erase(["id", "p"], keys)
    receipt = ds.erase(["id", "p"], keys.drop_null())
    assert receipt.num_deleted == len([value for value in values if value is not None])


def literal(value) -> str:
    if isinstance(value, str | dt.date):
        text = value.isoformat() if isinstance(value, dt.date) else value
        return f"'{text}'"
    return str(value)
