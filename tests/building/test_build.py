"""Splitting a build into tasks: the filters do not depend on how the work is divided."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pytest
from support.e2e_helpers import array_of, numbered, raw_values, touch_later, write_files
from support.limits import set_limit
from support.seams import replace_function

import zonebloom as zb
from zonebloom import errors
from zonebloom.building import train
from zonebloom.building import train as building
from zonebloom.building.request import IndexSpec
from zonebloom.building.train import TrainTask, split_into_tasks, train_locally, train_task
from zonebloom.catalog import freshness
from zonebloom.catalog.coverage import PresentFragment, compute_coverage
from zonebloom.catalog.model import Version
from zonebloom.catalog.store import Catalog, read_file
from zonebloom.index.kinds import index_kind
from zonebloom.index.zone_bloom.rows import RowTable
from zonebloom.sources import text_columns
from zonebloom.sources.column_batches import Column
from zonebloom.sources.source import Fragment, Source
from zonebloom.storage.files import FileIdentity, content_digest
from zonebloom.storage.store import identities, store_of

LOCAL = pafs.LocalFileSystem()


def all_parameters(**parameters: Any) -> dict[str, Any]:
    return index_kind("BLOOMFILTER").check_parameters(parameters)


def task_of(folder: Path, column: str, prefix: str = "t", **parameters: Any) -> TrainTask:
    schema = pads.dataset(folder).schema
    paths = sorted(str(path) for path in folder.glob("*.parquet"))
    spec = IndexSpec(
        "i", Column((column,), schema.field(column).type), all_parameters(**parameters)
    )
    source = source_of(folder, schema)
    (task,) = split_into_tasks(
        prefix, Catalog(LOCAL, str(folder / "_zonebloom")), source, [spec], fragments_of(paths)
    )
    return task


def source_of(folder: Path, schema: pa.Schema) -> Source:
    return Source(schema, pads.ParquetFileFormat(), LOCAL, str(folder), ())


def fragments_of(
    paths: list[str], file_identities: list[Any] | None = None
) -> list[PresentFragment]:
    file_identities = file_identities or identities(LOCAL, paths)
    return [
        PresentFragment(Fragment(path, path, pads.scalar(True)), identity, number)
        for number, (path, identity) in enumerate(zip(paths, file_identities, strict=True))
    ]


def segment_path(task: TrainTask) -> Path:
    return Path(task.catalog.path(task.segment_name(0), "bloomfilter.arrow"))


def table_of(task: TrainTask, trained: Any) -> RowTable:
    (segment,) = trained.segments
    path, store = str(segment_path(task)), store_of(LOCAL)
    return RowTable(read_file(store, path, segment.num_bytes, segment.checksum), path)


@pytest.mark.parametrize("arrow_type", [pa.int64(), pa.string()], ids=str)
@pytest.mark.parametrize("items", [8192, 1000])
def test_threads_write_the_same_bytes_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrow_type: pa.DataType, items: int
):
    rows = 60_000
    distinct = raw_values(arrow_type, 500)
    indices = np.random.default_rng(0).integers(0, 500, rows)
    raws = [None if i % 9001 == 5 else distinct[k] for i, k in enumerate(indices)]
    table = numbered(0, rows, key=array_of(arrow_type, raws))
    write_files(tmp_path, [table, table.slice(7, 12_345)], row_group_size=2500)
    # Read no file as a whole, so that files have runs.
    set_limit(monkeypatch, "bytes of a file that a build reads at once", 0)
    # Runs of three row groups: a file has several runs, and none ends at a zone boundary.
    set_limit(monkeypatch, "rows of a batch of a build", 7500)
    outputs = {}
    for threads in (1, 2, 5):
        task = task_of(tmp_path, "key", f"threads{threads}", number_of_items=items)
        trained = train_task(task, threads=threads)
        assert [fragment.num_rows for fragment in trained.fragments] == [rows, 12_345]
        assert trained.segments[0].num_bytes == segment_path(task).stat().st_size
        outputs[threads] = table_of(task, trained).to_table(), segment_path(task).read_bytes()
    assert outputs[2][0].equals(outputs[1][0])
    assert outputs[5][0].equals(outputs[1][0])
    assert outputs[2][1] == outputs[1][1]
    assert outputs[5][1] == outputs[1][1]


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}, {"data_page_version": "2.0"}])
def test_strings_that_kernels_hash_give_the_bytes_that_arrays_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
):
    # Kernels hash so few strings only if they are loaded.
    zb.warmup()
    values = [None if i % 999 == 5 else f"{i % 7000} text" for i in range(30_000)]
    table = numbered(0, len(values), key=pa.array(values))
    write_files(tmp_path, [table, table.slice(7, 3)], row_group_size=9000, **options)

    def files_of(name: str) -> list[bytes]:
        task = task_of(tmp_path, "key", name)
        row_counts: list[int] = []
        train_task(task, threads=2, progress=row_counts.append)
        assert sum(row_counts) == len(values) + 3
        folder = segment_path(task).parent
        return [path.read_bytes() for path in sorted(folder.iterdir())]

    whole = files_of("whole")
    set_limit(monkeypatch, "bytes of a file that a build reads at once", 0)
    assert files_of("kernels") == whole
    replace_function(monkeypatch, text_columns.TextColumn, "open", lambda *arguments: None)
    assert files_of("arrays") == whole


@pytest.mark.parametrize("is_read_whole", [True, False])
def test_a_small_file_that_is_rewritten_within_a_clock_tick_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_read_whole: bool
):
    """The identity stays the same, so only the content tells.

    A file that is read once gets the digest of what was read, which the next reader compares.
    """
    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False}
    (path,) = write_files(tmp_path, [numbered(0, 1000, id=pa.array(range(1000)))], **plain)
    task = task_of(tmp_path, "id")
    (rewritten_file,) = write_files(
        tmp_path / "later", [numbered(0, 1000, id=pa.array([7] * 1000))], **plain
    )
    digest = content_digest(str(path))
    replace_function(monkeypatch, FileIdentity, "is_still", lambda self, other_time: True)
    replace_function(monkeypatch, train, "is_at_rest", lambda identity, time: False)

    def rewrite(rows: int) -> None:
        path.write_bytes(rewritten_file.read_bytes())

    if is_read_whole:
        (fragment,) = train_task(task, progress=rewrite).fragments
        assert fragment.digest == digest != content_digest(str(path))
        (identity,) = identities(LOCAL, [str(path)])
        assert identity is not None
        replace_function(monkeypatch, freshness, "is_at_rest", lambda identity, time: False)
        (present,) = compute_coverage(
            [Fragment(str(path), fragment.key)], [identity], Version(1, 1, {fragment.key: fragment})
        ).fragments
        assert not present.is_known
        return
    set_limit(monkeypatch, "bytes of a file that a build reads at once", 0)
    with pytest.raises(errors.FragmentUnreadable, match="changed while it was indexed"):
        train_task(task, progress=rewrite)


def test_a_pickled_task_trains_the_same_segment(tmp_path: Path):
    write_files(tmp_path, [numbered(0, 1000, id=pa.array(range(1000)))])
    task = task_of(tmp_path, "id", "here")
    trained = train_task(task)
    before = segment_path(task).read_bytes()
    # A build creates each file anew, and never writes over one.
    shutil.rmtree(segment_path(task).parents[1])
    retrained = train_task(pickle.loads(pickle.dumps(task)))
    (retrained_fragment,), (fragment,) = retrained.fragments, trained.fragments
    # Another machine may see the same file under another inode.
    identity = fragment.identity._replace(inode=0)
    assert retrained_fragment == fragment._replace(
        identity=identity, seen_at=retrained_fragment.seen_at
    )
    assert replace(retrained, fragments=()) == replace(trained, fragments=())
    assert segment_path(task).read_bytes() == before


def test_workers_in_parallel_return_segments_in_order_of_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tables = [numbered(0, 20 + i, id=pa.array(range(20 + i))) for i in range(8)]
    paths = write_files(tmp_path, tables)
    set_limit(monkeypatch, "bytes of a task of a build", 1)
    catalog = Catalog(LOCAL, str(tmp_path / "_zonebloom"))
    spec = IndexSpec("i", Column(("id",), pa.int64()), all_parameters())
    source = source_of(tmp_path, tables[0].schema)
    tasks = split_into_tasks(
        "p", catalog, source, [spec], fragments_of([str(path) for path in paths])
    )
    replace_function(monkeypatch, building, "num_cores", lambda: 4)
    trained = train_locally(tasks)
    fragments = [fragment for task in trained for fragment in task.fragments]
    assert [(fragment.fragment_id, fragment.num_rows) for fragment in fragments] == [
        (i, 20 + i) for i in range(8)
    ]


def test_a_file_that_changes_during_the_build_raises(tmp_path: Path):
    (path,) = write_files(tmp_path, [numbered(0, 10, id=pa.array(range(10)))])
    task = task_of(tmp_path, "id")
    touch_later(path)
    with pytest.raises(errors.FragmentUnreadable, match=r"part-000\.parquet changed while it was"):
        train_task(task)
