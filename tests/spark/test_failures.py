"""Real failures of Spark and of its Python workers, and their error messages."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import separately
from helpers import index_folder
from seams import set_constant
from watched import Watched

import zonebloom as zb
from zonebloom.errors import EngineError
from zonebloom.spark import executors, failures
from zonebloom.spark.executors import REQUIREMENTS, check_executors
from zonebloom.spark.tagging import locate


@contextmanager
def workers_run(spark, command: str) -> Iterator[None]:
    """Run the jobs of a session in another Python for a while."""
    context, settings = spark.sparkContext, spark._jsc.sc().conf()
    before, daemon = context.pythonExec, settings.get("spark.python.daemon.module")
    context.pythonExec = command
    settings.remove("spark.python.daemon.module")
    try:
        yield
    finally:
        context.pythonExec = before
        settings.set("spark.python.daemon.module", daemon)


def script(path: Path, text: str) -> str:
    # Otherwise Python would find the package in the current folder.
    path.write_text(f"#!/bin/sh\ncd {path.parent}\n{text}\n")
    path.chmod(0o755)
    return str(path)


def other_python(folder: Path) -> tuple[str, str]:
    """Return a Python of another minor version, or a fake one, and its version."""
    pythons = (Path.home() / ".pyenv" / "versions").glob("3.*/bin/python")
    names = [shutil.which(f"python3.{minor}") for minor in range(10, 16)]
    for python in [*map(str, pythons), *filter(None, names)]:
        ask = "import sys; print('%d.%d' % sys.version_info[:2])"
        process = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
        version = process.stdout.strip()
        # Older Pythons fail before they compare versions.
        if version and (3, 10) <= tuple(map(int, version.split("."))) != sys.version_info[:2]:
            return python, version
    (folder / "sitecustomize.py").write_text("import sys; sys.version_info = (3, 99, 0)\n")
    command = f'PYTHONPATH={folder}:$PYTHONPATH exec {sys.executable} "$@"'
    return script(folder / "python", command), "3.99"


@pytest.fixture
def dataset(tmp_path):
    separately.write_lake(tmp_path / "lake", files=2, rows=1_000)
    return zb.dataset(tmp_path / "lake")


def message(spark, dataset, tmp_path) -> str:
    """Return the error of a build, which must be that of the check of executors."""
    with pytest.raises(EngineError) as raised:
        dataset.create_scalar_index("id", spark=spark)
    assert not index_folder(tmp_path / "lake").exists()
    with pytest.raises(EngineError) as second_error:
        check_executors(spark)
    assert str(second_error.value) == str(raised.value)
    return str(raised.value)


def test_the_error_names_workers_of_another_python_version(spark, dataset, tmp_path):
    command, version = other_python(tmp_path)
    ours = "{}.{}".format(*sys.version_info)
    with workers_run(spark, command):
        text = message(spark, dataset, tmp_path)
        with pytest.raises(EngineError, match=re.escape(f"workers run Python {version} and")):
            zb.spark.scan(spark.newSession(), tmp_path / "lake")
    assert f"workers run Python {version} and this process Python {ours}" in text
    assert f"a Python like this one ({sys.executable}" in text and "set PYSPARK_PYTHON" in text


def test_the_error_names_workers_without_packages(spark, dataset, tmp_path):
    with workers_run(spark, script(tmp_path / "python", f'exec {sys.executable} -S "$@"')):
        says = r"no module (zonebloom|pyarrow|numpy)\. Executors need .*set PYSPARK_PYTHON"
        with pytest.raises(EngineError, match=says):
            dataset.create_scalar_index("id", spark=spark)
        with pytest.raises(EngineError, match=says):
            check_executors(spark)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "there is no .*/python on Spark's executors.*set PYSPARK_PYTHON"),
        ("exit 3", "Python does not start on Spark's executors.*set PYSPARK_PYTHON"),
        ("echo welcome; exit 3", "Python does not start on Spark's executors.*set PYSPARK_PYTHON"),
        (
            f'PYTHONPATH= exec {sys.executable} -S "$@"',
            r"Python does not start on Spark's executors \(.*No module named '?pyspark",
        ),
    ],
    ids=["absent", "ends", "talks", "no pyspark"],
)
def test_the_error_names_a_python_that_does_not_start(spark, dataset, tmp_path, text, says):
    command = script(tmp_path / "python", text) if text else str(tmp_path / "python")
    with workers_run(spark, command):
        assert re.match(says, message(spark, dataset, tmp_path))


def test_the_error_names_a_worker_that_dies(spark, tmp_path):
    separately.write_lake(tmp_path / "lake", files=1, rows=1_000)
    files = Watched(log=str(tmp_path / "log"), kind="dies")
    dataset = zb.dataset(str(tmp_path / "lake"), filesystem=files)
    finds = f'PYTHONPATH={separately.ROOT / "tests"}:$PYTHONPATH exec {sys.executable} "$@"'
    says = r"worker of Spark died: .*memoryOverhead"
    with (
        workers_run(spark, script(tmp_path / "python", finds)),
        pytest.raises(EngineError, match=says),
    ):
        dataset.create_scalar_index("id", spark=spark)
    # Spark tries a task only once in local mode.
    assert len((tmp_path / "log").read_text().split()) == 1
    assert not list(index_folder(tmp_path / "lake").rglob("*.arrow"))


@pytest.fixture
def older(tmp_path) -> Path:
    """Write a copy of the package with another version number."""
    copy = tmp_path / "older"
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(separately.ROOT / "zonebloom", copy / "zonebloom", ignore=without)
    version = copy / "zonebloom" / "base" / "version.py"
    text = version.read_text().replace(f'__version__ = "{zb.__version__}"', '__version__ = "0.0.9"')
    version.write_text(text)
    return copy


@pytest.mark.parametrize("knows_of_versions", [True, False])
def test_the_error_names_executors_with_another_version(
    spark, dataset, tmp_path, older, knows_of_versions
):
    if not knows_of_versions:
        (older / "zonebloom" / "spark" / "jobs.py").unlink()
    command = f'PYTHONPATH={older}:$PYTHONPATH exec {sys.executable} "$@"'
    says = r"executors have zonebloom 0\.0\.9 and the driver " if knows_of_versions else "another"
    with workers_run(spark, script(tmp_path / "python", command)):
        with pytest.raises(EngineError, match=rf"{says}.*send_package\(spark\)"):
            dataset.create_scalar_index("id", spark=spark)
        assert not index_folder(tmp_path / "lake").exists()
        expected = rf"lacks zonebloom=={zb.__version__} \(it is 0\.0\.9\)"
        with pytest.raises(EngineError, match=expected):
            check_executors(spark)


@pytest.mark.parametrize("max_keys", [0, 1_000])
def test_tagging_with_another_worker_version_raises(
    spark, dataset, tmp_path, older, monkeypatch, max_keys
):
    """Workers with another version refuse to unpickle their functions."""
    dataset.create_scalar_index("id", spark=False)
    set_constant(monkeypatch, locate, "MAX_SEARCHED_KEYS", max_keys)
    set_constant(monkeypatch, locate, "_MAX_DRIVER_ROWS", -1)
    lake = str(tmp_path / "lake")
    stored = dataset.to_table(["id"])["id"][0].as_py()
    keys = spark.createDataFrame([(stored,)], "id bigint")
    python = script(
        tmp_path / "python", f'PYTHONPATH={older}:$PYTHONPATH exec {sys.executable} "$@"'
    )
    says = r"executors have zonebloom 0\.0\.9 and the driver "
    with workers_run(spark, python), pytest.raises(Exception, match=says):
        zb.spark.tag_location(keys, lake, "id")


def test_the_error_lists_what_executors_lack(spark, tmp_path):
    python = separately.python_without_zonebloom(tmp_path)
    for entry in (tmp_path / "packages").iterdir():
        if entry.name.startswith(("numba", "sqlglot")):
            entry.unlink()
    lacks = rf"lacks numba>={REQUIREMENTS['numba']}, sqlglot>={REQUIREMENTS['sqlglot']}, zonebloom"
    with workers_run(spark, python), pytest.raises(EngineError, match=lacks):
        check_executors(spark)


def test_complete_executors_are_shown(spark):
    report = check_executors(spark)
    (worker,) = report.workers
    assert worker.executable == sys.executable
    assert worker.versions["zonebloom"] == zb.__version__
    assert set(worker.versions) == {*REQUIREMENTS, "zonebloom"}
    assert f"Python {worker.python} ({sys.executable})" in str(report)


def test_requirements_are_those_of_the_package():
    project = tomllib.loads((separately.ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == [f"{name}>={v}" for name, v in REQUIREMENTS.items()]


def test_objects_other_than_sessions_are_refused():
    for function in (check_executors, zb.spark.send_package):
        with pytest.raises(EngineError, match="spark is a str; give a SparkSession"):
            function("local[2]")


def test_unknown_failures_keep_their_message():
    assert failures.find_cause(ValueError("something else")) is None
    with pytest.raises(ValueError, match="something else"), failures.explain_spark_errors():
        raise ValueError("something else")
    message = "the Spark job failed: something else; spark=False builds in this process"
    with pytest.raises(EngineError) as raised, failures.explain_spark_errors(always=True):
        raise ValueError("\n something else\nmore")
    assert str(raised.value) == message


def in_process(code, *flags, **environment) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(separately.ROOT), **environment}
    return subprocess.run(
        [sys.executable, *flags, "-c", code],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(sys.executable).parent,
    )


# The archive of the package


def test_archives_are_the_same_in_all_processes(tmp_path):
    code = (
        "import hashlib, json; from zonebloom.spark.executors import _write_archive; "
        f"path = _write_archive({str(tmp_path)!r}); "
        "print(json.dumps([path, hashlib.sha256(open(path, 'rb').read()).hexdigest()]))"
    )
    path, digest = json.loads(in_process(code, PYTHONHASHSEED="7").stdout)
    other = tmp_path / "other"
    other.mkdir()
    ours = Path(executors._write_archive(str(other)))
    assert ours.name == Path(path).name
    assert hashlib.sha256(ours.read_bytes()).hexdigest() == digest


def test_archive_is_the_package_with_its_kernels(tmp_path):
    folder = tmp_path / "zonebloom"
    shutil.unpack_archive(executors._write_archive(str(tmp_path)), folder)
    package = separately.ROOT / "zonebloom"
    sources = {path.relative_to(package): path.read_bytes() for path in package.rglob("*.py")}
    unpacked = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.py")}
    assert unpacked == sources
    code = (
        "import json, zonebloom; from zonebloom.sbbf import blocks; "
        "stats = blocks.insert.stats; "
        "print(json.dumps([zonebloom.__file__, stats.cache_path, *stats.cache_misses.values()]))"
    )
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    assert json.loads(in_process(code, PYTHONPATH=paths).stdout) == [
        str(folder / "__init__.py"),
        str(folder / "sbbf" / "__pycache__"),
    ]
