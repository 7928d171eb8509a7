"""Test encrypted indices: keys read them, changes are detected, and no row is lost without keys."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import re
import shutil
import warnings
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from support.format_decryption import decrypt
from support.helpers import THOROUGH, index_folder

import zonebloom as zb
from zonebloom.errors import (
    CorruptIndex,
    EncryptedIndex,
    IndexNotUsedWarning,
    InvalidArgument,
    StaleIndexWarning,
)
from zonebloom.storage.encryption import (
    DecryptingStore,
    EncryptingStream,
    FileCipher,
    open_random_access,
)
from zonebloom.storage.files import ReadCounter
from zonebloom.storage.store import store_of

KEY = bytes(range(32))
KEYS = zb.Encryption("key one", {"key one": KEY})
MODULE = 4096
ROWS = 2000
PARTS = 4


def part(number: int) -> pa.Table:
    ids = [(number * ROWS + row) * 2_654_435_761 % 2**40 for row in range(ROWS)]
    return pa.table({"id": ids, "text": [f"secret {i}" for i in ids]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for number in range(PARTS):
        pq.write_table(part(number), tmp_path / "data" / f"part-{number}.parquet")
    return tmp_path / "data"


def build(folder: Path, encryption: zb.Encryption | None = KEYS, **options) -> zb.Dataset:
    ds = zb.dataset(folder, encryption=encryption)
    options = {"number_of_items": 100, "spark": False, "global_filter": True, **options}
    ds.create_scalar_index(["id", "text"], **options)
    return ds


def assert_right(ds: zb.Dataset) -> None:
    for number in range(PARTS):
        for row in part(number).slice(number, ROWS).to_pylist()[::501]:
            assert ds.to_table(filter=f"id = {row['id']}").to_pylist() == [row]
            assert ds.to_table(filter=f"text = '{row['text']}'").to_pylist() == [row]
    assert ds.count_rows("id = -1") == 0


# The format


SIZES = st.one_of(
    st.integers(0, 3 * MODULE), st.sampled_from([0, 1, MODULE - 1, MODULE, MODULE + 1, 2 * MODULE])
)


@given(SIZES, st.text(min_size=1, max_size=14), st.sampled_from([16, 24, 32]), st.data())
def test_an_encrypted_file_follows_the_format_and_reads_as_its_data(size, key_id, key_size, data):
    content, key = random.Random(size).randbytes(size), os.urandom(key_size)
    key_id = key_id.replace("\0", "0")
    cipher = FileCipher("/index", zb.Encryption(key_id, {key_id: key}))
    stored = cipher.encrypt("/index/segments/a%/file", content)
    assert decrypt(stored, "segments/a%/file", {key_id: key}) == content
    assert cipher.decrypt("/index/segments/a%/file", stored) == content
    filesystem = pafs._MockFileSystem()
    filesystem.create_dir("/index/segments/a%")
    with filesystem.open_output_stream("/index/segments/a%/file") as sink:
        sink.write(stored)
    view = DecryptingStore(store_of(filesystem), cipher)
    path = "/index/segments/a%/file"
    assert view.read_whole(path, size) == content
    file = open_random_access(view, path, ReadCounter(), None)
    assert file.num_bytes == size
    edges = data.draw(st.lists(st.tuples(st.integers(0, size), st.integers(0, size)), max_size=5))
    ranges = [(min(pair), max(pair)) for pair in edges if pair[0] != pair[1]]
    # An empty range at the beginning is read, too.
    ranges.append((0, 0))
    if size:
        assert file.read(ranges) == [content[start:stop] for start, stop in ranges]


@pytest.mark.parametrize("size", [0, 5, MODULE, 3 * MODULE, 10 * MODULE + 7])
def test_a_file_written_in_pieces_is_read_from_a_local_disk(tmp_path, size):
    content = random.Random(size).randbytes(size)
    cipher = FileCipher(str(tmp_path), KEYS)
    view = DecryptingStore(store_of(pafs.LocalFileSystem()), cipher)
    path = str(tmp_path / "file")
    with closing(EncryptingStream(open(path, "wb"), cipher, path)) as sink:
        for start in range(0, size, 1000):
            sink.write(content[start : start + 1000])
    assert decrypt(Path(path).read_bytes(), "file", {"key one": KEY}) == content
    assert view.read_whole(path, size) == content
    at_random = open_random_access(view, path, ReadCounter(), None)
    rng = np.random.default_rng(size)
    offsets = rng.integers(0, size + 1, 20)
    sizes = rng.integers(1, 2 * MODULE, 20)
    out = np.full(int(sizes.sum()), 7, dtype=np.uint8)
    at_random.read_pieces(offsets, sizes, out)
    wanted = b"".join(
        content[offset : offset + count].ljust(count, b"\0")
        for offset, count in zip(offsets.tolist(), sizes.tolist(), strict=True)
    )
    assert out.tobytes() == wanted


def changes(rng: random.Random, stored: bytes, other_files: list[bytes]) -> bytes:
    """Return a file that was changed, cut, lengthened, or assembled from parts of other files."""
    modules = [stored[start : start + 28 + MODULE] for start in range(64, len(stored), 28 + MODULE)]
    head = stored[:64]
    kind = rng.randrange(7)
    if kind == 0:
        position = rng.randrange(len(stored))
        return (
            stored[:position]
            + bytes([stored[position] ^ 1 << rng.randrange(8)])
            + stored[position + 1 :]
        )
    if kind == 1:
        return stored[: rng.randrange(len(stored))]
    if kind == 2:
        return stored + rng.randbytes(rng.randrange(1, 60))
    if kind == 3:
        return rng.choice(other_files)
    if kind == 4:
        del modules[rng.randrange(len(modules))]
    elif kind == 5:
        modules.insert(rng.randrange(len(modules) + 1), rng.choice(modules))
    else:
        other = rng.choice(other_files)
        position = rng.randrange(len(modules))
        modules[position] = other[64 + position * (28 + MODULE) :][: 28 + MODULE]
    return head + b"".join(modules)


def test_a_changed_file_always_raises():
    rng = random.Random(1)
    cipher = FileCipher("/index", KEYS)
    other_cipher = FileCipher("/index", zb.Encryption("other", {"other": bytes(32)}))
    num_trials = num_refused = 0
    while num_trials < 5000:
        content = rng.randbytes(rng.choice([0, 100, MODULE, 2 * MODULE, 3 * MODULE + 9]))
        path = "/index/segments/a/file"
        stored = cipher.encrypt(path, content)
        # These are encrypted as two other files and by another key, or not encrypted at all.
        foreign = [
            cipher.encrypt("/index/segments/b/file", content),
            cipher.encrypt("/index/segments/a/other", content),
            other_cipher.encrypt(path, content),
            content,
        ]
        for _ in range(50):
            changed = changes(rng, stored, foreign)
            if changed == stored:
                continue
            num_trials += 1
            try:
                assert cipher.decrypt(path, changed) == content
            except (ValueError, EncryptedIndex):
                num_refused += 1
    assert num_refused == num_trials


# An index


@pytest.mark.parametrize("kind", ["BLOOMFILTER", "HASH"])
def test_an_encrypted_index_answers_like_an_unencrypted_one(folder, kind):
    build(folder, index_type=kind)
    ds = zb.dataset(folder, encryption=KEYS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_right(ds)
        keys = part(1)["id"].to_pylist()[:5]
        assert len(ds.search(f"id = {keys[0]}").at_most) < PARTS * ROWS / 4
        assert ds.lookup("id", keys)["key_index"].to_pylist() == list(range(5))
        assert ds.files_with_keys("id", keys)["num_keys"].to_pylist() == [5]
        assert ds.validate_index("id_idx", sample="all").zones_read == PARTS * ROWS // 100
        over_all = ds.global_filter("id")
        assert over_all is not None and over_all.is_current
    plain = zb.dataset(folder, index_dir=str(folder.parent / "plain"))
    plain.create_scalar_index("id", kind, number_of_items=100, spark=False)
    for key in (*keys, -1):
        assert ds.search(f"id = {key}").at_most == plain.search(f"id = {key}").at_most


@pytest.mark.parametrize("kind", ["BLOOMFILTER", "HASH"])
def test_an_encrypted_index_is_refreshed_compacted_and_vacuumed(folder, kind):
    build(folder, index_type=kind)
    for number in range(PARTS, PARTS + 3):
        pq.write_table(part(number), folder / f"part-{number}.parquet")
        ds = zb.dataset(folder, encryption=KEYS)
        ds.optimize.optimize_indices(spark=False)
    ds.vacuum(timedelta(0))
    reopened = zb.dataset(folder, encryption=KEYS)
    assert_right(reopened)
    for index in reopened.describe_indices():
        assert index.num_fragments_indexed == PARTS + 3
        reopened.validate_index(index.name, sample="all")
    moved = folder.parent / "moved"
    shutil.copytree(folder, moved)
    assert_right(zb.dataset(moved, encryption=KEYS))


def test_no_key_name_or_value_is_in_clear(folder):
    build(folder)
    greatest = max(
        number for part_number in range(PARTS) for number in part(part_number)["id"].to_pylist()
    )
    secrets = [b"secret ", b"part-", b"text_idx", b"bloomfilter_item", np.int64(greatest).tobytes()]
    # An index without encryption contains all of them somewhere.
    plain = folder.parent / "plain"
    ds = zb.dataset(folder, index_dir=str(plain))
    ds.create_scalar_index(["id", "text"], number_of_items=100, spark=False)
    for root, is_there in [(plain, True), (index_folder(folder), False)]:
        stored = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
        for document in root.rglob("*.json"):
            content = json.loads(document.read_bytes())["content"]
            if not is_there:
                stored += base64.b64decode(content["content"])
        for secret in secrets:
            assert (secret in stored) == is_there, secret


def test_file_names_and_clear_parts_reveal_nothing_of_the_content(folder):
    twins = [folder, Path(shutil.copytree(folder, folder.parent / "twin"))]
    names, clear = [], []
    for twin in twins:
        ds = build(twin)
        pq.write_table(part(PARTS), twin / f"part-{PARTS}.parquet")
        ds.optimize.optimize_indices(spark=False)
        ds.vacuum(timedelta(0))
        index = index_folder(twin)
        paths = [path for path in index.rglob("*") if path.is_file()]
        names.append({name for path in paths for name in path.relative_to(index).parts})
        # A digest of the content would confirm a correct guess of the content.
        stored = b"".join(str(path).encode() + path.read_bytes() for path in paths)
        documents = [json.loads(path.read_bytes()) for path in index.glob("versions/*.json")]
        for document in documents:
            assert document.keys() == {"format_version", "checksum", "content", "writer"}
            assert document["content"].keys() == {"sealed_by", "key_check", "content"}
        cipher = FileCipher(str(index), KEYS)
        opened = [
            cipher.decrypt(str(path), path.read_bytes()) for path in paths if path.suffix != ".json"
        ]
        opened += [
            cipher.decrypt(str(path), base64.b64decode(document["content"]["content"]))
            for path, document in zip(index.glob("versions/*.json"), documents, strict=True)
        ]
        for data in opened:
            for digest in (xxhash.xxh3_64, xxhash.xxh3_128, hashlib.md5, hashlib.sha256):
                digests = digest(data)
                assert digests.hexdigest()[:16].encode() not in stored
                assert digests.digest()[:8] not in stored
        clear.append({document["content"]["key_check"] for document in documents})
    assert clear[0] == clear[1]
    # Two indices of the same data under one key share only fixed names and version numbers.
    shared = {name for name in names[0] & names[1] if not re.fullmatch(r"0+[1-9]\.json", name)}
    assert shared == {"segments", "versions", "bloomfilter.arrow", "ranges.arrow"} | {
        "pages.arrow",
        "global.sbbf",
    }


# Keys


@pytest.mark.parametrize(
    ("encryption", "message"),
    [
        (None, r"encrypted by key 'key one'; open the dataset with encryption="),
        (
            zb.Encryption("key one", {"key one": bytes(32)}),
            "the given key of that name is not this key",
        ),
        (zb.Encryption("two", {"two": KEY}), "keys has none for 'key one'"),
    ],
    ids=["none", "another", "another id"],
)
def test_without_the_key_the_data_is_read_without_the_index(folder, encryption, message):
    build(folder)
    with pytest.warns(IndexNotUsedWarning, match=message):
        ds = zb.dataset(folder, encryption=encryption)
    assert_right(ds)
    index = index_folder(folder)
    before = {path: path.read_bytes() for path in index.rglob("*") if path.is_file()}
    assert before
    asks = [
        lambda: ds.index_statistics("id_idx"),
        lambda: ds.validate_index("id_idx"),
        lambda: ds.search_many("id", [1]),
        lambda: ds.key_ranges("id"),
        lambda: ds.drop_index("id_idx"),
        ds.vacuum,
    ]
    for ask in asks:
        with pytest.raises(EncryptedIndex, match=message):
            ask()
    for change in (
        lambda: ds.create_scalar_index("id", spark=False),
        ds.optimize.optimize_indices,
    ):
        with pytest.warns(IndexNotUsedWarning), pytest.raises(EncryptedIndex, match=message):
            change()
    assert {path: path.read_bytes() for path in index.rglob("*") if path.is_file()} == before
    with pytest.warns(IndexNotUsedWarning), pytest.raises(EncryptedIndex, match=message):
        zb.dataset(folder, encryption=encryption, stale="raise")


def test_a_new_key_encrypts_new_files_only(folder):
    build(folder)
    key_ids: list[str] = []

    def key_of(key_id: str) -> bytes:
        key_ids.append(key_id)
        return {"key one": KEY, "key two": KEY[::-1]}[key_id]

    encryption = zb.Encryption("key two", key_of)
    pq.write_table(part(PARTS), folder / "part-9.parquet")
    zb.dataset(folder, encryption=encryption).optimize.optimize_indices(spark=False)
    assert {"key one", "key two"} == set(key_ids)
    assert_right(zb.dataset(folder, encryption=encryption))
    new_alone = zb.Encryption("key two", {"key two": KEY[::-1]})
    with pytest.warns((IndexNotUsedWarning, StaleIndexWarning)):
        ds = zb.dataset(folder, encryption=new_alone)
        assert_right(ds)
        assert ds.count_rows(f"id = {part(0)['id'][7]}") == 1


def test_keys_are_checked_and_never_shown(folder):
    assert "key one" in repr(KEYS)
    assert str(KEY) not in repr(KEYS)
    assert str(KEY) not in repr(zb.dataset(folder, encryption=KEYS).opened.catalog)
    for key_id, keys in [
        ("", {"": KEY}),
        ("k" * 57, {"k" * 57: KEY}),
        ("a", {}),
        ("a", {"a": b""}),
    ]:
        with pytest.raises(InvalidArgument):
            zb.Encryption(key_id, keys)
    with pytest.raises(InvalidArgument, match="encryption"):
        zb.dataset(folder, encryption=KEY)


def test_an_index_that_is_not_encrypted_is_not_used(folder):
    build(folder, None)
    with pytest.warns(IndexNotUsedWarning, match="it is not encrypted"):
        ds = zb.dataset(folder, encryption=KEYS)
    assert_right(ds)
    assert ds.describe_indices() == []
    with pytest.warns(IndexNotUsedWarning):
        build(folder)
    assert_right(zb.dataset(folder, encryption=KEYS))


# Damage


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["BLOOMFILTER", "HASH"])
def test_changed_or_exchanged_parts_lose_no_row(folder, kind):
    build(folder, index_type=kind)
    index = index_folder(folder)
    rng = random.Random(4)
    whole = {path: path.read_bytes() for path in index.rglob("*") if path.is_file()}
    # These files belong to an older version of the same index.
    build(folder, index_type=kind)
    newer = {path: path.read_bytes() for path in index.rglob("*") if path.is_file()}
    paths = sorted(newer.keys() - whole.keys())
    noticed = 0
    trials = 200 if os.environ.get(THOROUGH) else 30
    for _ in range(trials):
        path = rng.choice(paths)
        alike = [data for other, data in {**whole, **newer}.items() if other.name == path.name]
        if path.suffix == ".json":
            alike = [data for other, data in whole.items() if other.suffix == ".json"]
            changed = rng.choice(alike)
        else:
            changed = changes(rng, newer[path], alike)
        if changed == newer[path]:
            continue
        path.write_bytes(changed)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ds = zb.dataset(folder, encryption=KEYS)
            assert_right(ds)
            try:
                for statistics in ds.describe_indices():
                    ds.validate_index(statistics.name, sample="all")
                    assert ds.global_filter(statistics.column) is not None
            except CorruptIndex:
                noticed += 1
            else:
                noticed += any(issubclass(w.category, IndexNotUsedWarning) for w in caught)
        path.write_bytes(newer[path])
    assert noticed >= trials * 0.9
