"""The kernel that looks at many files sees what Python sees."""

from __future__ import annotations

import random
import sys

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from support.seams import replace_function, set_constant

from zonebloom.errors import FragmentUnreadable
from zonebloom.sbbf.kernel_loader import KERNELS
from zonebloom.storage import file_states
from zonebloom.storage.file_states import FileStates
from zonebloom.storage.store import identities


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no statx")
@pytest.mark.parametrize("num_threads", [1, 3])
def test_the_kernel_looks_at_files_as_python_does(tmp_path, monkeypatch, num_threads):
    set_constant(monkeypatch, file_states, "_FILES_PER_THREAD", 2)
    replace_function(monkeypatch, file_states, "num_cores", lambda: num_threads)
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b", "b/c", "\u00fc \u20ac"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.parquet").write_bytes(bytes(len(folder)))
    (tmp_path / "link").symlink_to(tmp_path / "b")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    names = [
        "a/x.parquet",
        "b/x.parquet",
        "b/c/x.parquet",
        "link/x.parquet",
        "\u00fc \u20ac/x.parquet",
    ]
    missing_names = ["lost", "a/x.parquet/y", "nowhere/x.parquet", "a/nothing"]
    relative = ["a/x.parquet", "./b/x.parquet"]
    paths = [str(tmp_path / name) for name in names + missing_names] + relative
    random.Random(num_threads).shuffle(paths)
    filesystem = pafs.LocalFileSystem()
    KERNELS.load()
    found = file_states.look_at_files(filesystem, pa.array(paths))
    wanted = FileStates.of_identities(identities(filesystem, paths))
    assert found.equals(wanted)
    assert found.is_present.sum() == len(names + relative)
    # A slice of an array does not begin at the first byte.
    assert file_states.look_at_files(filesystem, pa.array(paths)[3:]).equals(
        wanted.take(np.arange(3, len(paths)))
    )
    with pytest.raises(FragmentUnreadable, match="File name too long"):
        file_states.look_at_files(filesystem, pa.array([paths[0], "/" + "x" * 5000]))
