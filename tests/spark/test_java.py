"""javac compiles the Java text that Janino gets, against the jars of this version of Spark.

Janino finds a wrong name only in a session of a user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pyspark
import pytest

from zonebloom.spark.pruning.optimizer_rule import java_texts
from zonebloom.spark.versions import java_source

JARS = Path(pyspark.__file__).parent / "jars"


def javac(source: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("javac") is None:
        pytest.skip("there is no javac: install a JDK, such as openjdk-17-jdk-headless")
    text = tmp_path / "source.txt"
    text.write_text(source)
    jars = os.pathsep.join(map(str, JARS.glob("*.jar")))
    compiler = Path(__file__).with_name("CompileText.java")
    command = ["java", compiler, text, jars, tmp_path]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def source() -> str:
    [scala] = JARS.glob("scala-library-*.jar")
    return java_source(java_texts(), scala.stem.removeprefix("scala-library-"))


def test_javac_compiles_the_java_text(tmp_path):
    result = javac(source(), tmp_path)
    assert result.returncode == 0, result.stderr


def test_javac_finds_a_wrong_name(tmp_path):
    text = source()
    assert "analyzed().output()" in text
    result = javac(text.replace("analyzed().output()", "analyzed().outputs()"), tmp_path)
    assert "cannot find symbol" in result.stderr
