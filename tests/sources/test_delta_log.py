"""Find deletion vectors in the logs of Delta tables, and compare the rows with a model."""

from __future__ import annotations

import json
import random
import uuid

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from support.delta_by_hand import add, commit, deletion_vector, metadata, protocol, z85

import zonebloom as zb
from zonebloom.errors import FragmentUnreadable, SourceError

ID = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
CHECKPOINTS = ["none", "classic", "parts", "v2 parquet", "v2 json"]


class History:
    """A table with a random history. Its model is the list of the ids of each version."""

    def __init__(self, path, seed):
        path.mkdir()
        self.path, self.random = path, random.Random(seed)
        self.adds, self.deleted, self.versions = {}, {}, []
        self.commit(protocol("deletionVectors", "v2Checkpoint"), metadata([ID]))

    def commit(self, *actions):
        commit(self.path, *actions)
        ids = [
            100 * number + row
            for number, rows in self.deleted.items()
            for row in range(100)
            if row not in rows
        ]
        self.versions.append(ids)

    def append(self):
        number = len(list(self.path.glob("*.parquet")))
        name = f"a b{number}.parquet"
        pq.write_table(pa.table({"id": range(100 * number, 100 * number + 100)}), self.path / name)
        self.adds[number] = add(
            self.path / name, name.replace(" ", "%20"), stats=json.dumps({"numRecords": 100})
        )
        self.deleted[number] = set()
        self.commit(self.adds[number])

    def remove(self, number):
        before = self.adds.pop(number)["add"]
        vector = {key: before[key] for key in ("deletionVector",) if key in before}
        return {"remove": {"path": before["path"], "dataChange": True, **vector}}

    def drop(self):
        number = self.random.choice(list(self.adds))
        del self.deleted[number]
        self.commit(self.remove(number))

    def delete(self):
        """Delete or restore rows of some files."""
        actions = []
        for number in self.random.sample(list(self.adds), min(2, len(self.adds))):
            rows = set(self.random.sample(range(100), self.random.randrange(30)))
            after = dict(self.adds[number]["add"])
            actions.append(self.remove(number))
            after.pop("deletionVector", None)
            if rows:
                after["deletionVector"] = self.vector(rows)
            self.adds[number], self.deleted[number] = {"add": after}, rows
            actions.append(self.adds[number])
        self.random.shuffle(actions)
        self.commit(*actions)

    def vector(self, rows):
        kind = self.random.choice(["inline", "relative", "prefix", "absolute"])
        vector = deletion_vector(rows, None if kind == "inline" else self.path)
        if kind in ("inline", "relative"):
            return vector
        [file] = [path for path in self.path.glob("*.bin") if z85_name(path) in vector.values()]
        folder = self.path / "x%20y"
        folder.mkdir(exist_ok=True)
        moved = file.rename(folder / file.name)
        if kind == "prefix":
            return {**vector, "pathOrInlineDv": "x%20y" + vector["pathOrInlineDv"]}
        return {**vector, "storageType": "p", "pathOrInlineDv": moved.as_uri()}

    def checkpoint(self, kind):
        """Write a checkpoint of the newest version, and drop older commits."""
        log, version = self.path / "_delta_log", len(self.versions) - 1
        DeltaTable(self.path).create_checkpoint()
        (log / "_last_checkpoint").unlink(missing_ok=True)
        [file] = log.glob(f"{version:020d}.checkpoint*.parquet")
        table = pq.read_table(file)
        if kind == "classic":
            return
        file.unlink()
        stem, half = f"{version:020d}.checkpoint", len(table) // 2
        if kind == "parts":
            for part, rows in enumerate([table[:half], table[half:]], 1):
                pq.write_table(rows, log / f"{stem}.{part:010d}.{2:010d}.parquet")
            # An incomplete checkpoint does not count.
            pq.write_table(table[:half], log / f"{stem}.{1:010d}.{3:010d}.parquet")
            return
        (log / "_sidecars").mkdir(exist_ok=True)
        sidecar = log / "_sidecars" / f"{uuid.uuid4()} a.parquet"
        pq.write_table(table.filter(pc.field("add").is_valid()).select(["add", "remove"]), sidecar)
        size = sidecar.stat().st_size
        reference = {"path": sidecar.as_uri(), "sizeInBytes": size, "modificationTime": 1}
        name = f"{stem}.{uuid.uuid4()}.{kind[3:]}"
        if kind == "v2 json":
            actions = [
                protocol("deletionVectors", "v2Checkpoint"),
                metadata([ID]),
                {"checkpointMetadata": {"version": version}},
                {"sidecar": reference},
            ]
            (log / name).write_text("".join(json.dumps(action) + "\n" for action in actions))
        else:
            actions = table.filter(pc.field("add").is_null()).to_pylist()
            actions.append({"sidecar": reference})
            pq.write_table(pa.Table.from_pylist(actions, table.schema), log / name)


def z85_name(path):
    return z85(uuid.UUID(path.stem.removeprefix("deletion_vector_")).bytes)


def ids_of(table) -> list[int]:
    return sorted(zb.dataset(table).to_table()["id"].to_pylist())


@pytest.mark.many
@pytest.mark.parametrize("kind", CHECKPOINTS)
@pytest.mark.parametrize("seed", range(3))
def test_each_version_has_the_rows_of_its_own_vectors(tmp_path, kind, seed):
    history = History(tmp_path / "t", seed)
    history.append()
    for step in range(14):
        choices = [history.append, *[history.delete] * 3, *[history.drop] * (len(history.adds) > 1)]
        history.random.choice(choices)()
        if step == 8 and kind != "none":
            history.checkpoint(kind)
            first = len(history.versions) - 1
    for version, ids in enumerate(history.versions):
        assert ids_of(DeltaTable(history.path, version=version)) == ids
    if kind != "none":
        for version in range(first + 1):
            (history.path / "_delta_log" / f"{version:020d}.json").unlink()
        for version in range(first, len(history.versions)):
            assert ids_of(DeltaTable(history.path, version=version)) == history.versions[version]


def table_with_vector(path, changed):
    """Write a table of one file, of which row 41 is deleted, and change the deletion vector."""
    path.mkdir()
    pq.write_table(pa.table({"id": range(100)}), path / "a.parquet")
    file = add(path / "a.parquet", "a.parquet", stats='{"numRecords": 100}')
    commit(path, protocol("deletionVectors"), metadata([ID]), file)
    table = DeltaTable(path)
    file["add"]["deletionVector"] = deletion_vector([41], path) | changed
    # deltalake refuses some vectors when it loads a table, so change the version that is loaded.
    (path / "_delta_log" / f"{0:020d}.json").unlink()
    commit(path, protocol("deletionVectors"), metadata([ID]), file)
    return table


@pytest.mark.parametrize(
    "changed",
    [
        *[{"storageType": kind} for kind in ("x", None, 3)],
        *[{"offset": offset} for offset in (None, "8", 8.5)],
        *[{"pathOrInlineDv": place} for place in (None, 7, "", "short", "ä" * 20, '"' * 20)],
        *[{"sizeInBytes": size} for size in (None, "9")],
        {"cardinality": "1"},
    ],
)
def test_an_unknown_vector_is_refused(tmp_path, changed):
    with pytest.raises(SourceError, match="cannot read the deletion vectors"):
        zb.dataset(table_with_vector(tmp_path / "t", changed))


@pytest.mark.parametrize(
    "changed",
    [
        *[{"offset": offset} for offset in (-1, 0, 9, 2**40)],
        *[{"sizeInBytes": size} for size in (-9, 0, 3, 2**40)],
        *[{"cardinality": count} for count in (-1, 0, 2)],
        deletion_vector([41]) | {"sizeInBytes": 3},
        deletion_vector([41]) | {"cardinality": 2},
    ],
)
def test_a_damaged_vector_is_an_error_of_the_read(tmp_path, changed):
    ds = zb.dataset(table_with_vector(tmp_path / "t", changed))
    for read in (ds.to_table, ds.count_rows):
        with pytest.raises(FragmentUnreadable, match="restore the file"):
            read()


def test_a_vector_is_read_when_its_file_is(tmp_path):
    table_with_vector(tmp_path / "t", {})
    write_deltalake(tmp_path / "t", pa.table({"id": range(100, 200)}), mode="append")
    zb.dataset(DeltaTable(tmp_path / "t")).create_scalar_index("id", spark=False)
    [file] = tmp_path.rglob("*.bin")
    file.unlink()
    ds = zb.dataset(DeltaTable(tmp_path / "t"))
    assert ds.to_table(filter="id = 141")["id"].to_pylist() == [141]
    assert ds.lookup("id", [141])["id"].to_pylist() == [141]
    for key in (40, 41):
        with pytest.raises(FragmentUnreadable, match="restore the file"):
            ds.to_table(filter=f"id = {key}")
