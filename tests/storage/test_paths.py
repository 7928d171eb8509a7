"""Test that a file is found under all names that users, Spark and table formats give it."""

import os
import pathlib

import pyarrow.fs as pafs
import pytest

from zonebloom.storage.paths import (
    absolute_path,
    filesystem_of,
    is_below,
    key_below,
    plain_path,
    split_path,
)

ODD = "/lake/100%/a b#1?é/=x.parquet"


@pytest.mark.parametrize("text", [ODD, f"file:{ODD}", f"file://{ODD}", pathlib.Path(ODD).as_uri()])
def test_a_local_file_has_one_name(text):
    encoded = text == pathlib.Path(ODD).as_uri()
    assert plain_path(text, encoded) == ODD
    assert split_path(text, encoded) == ("", ODD)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "S3"])
def test_an_object_has_one_name(scheme):
    assert plain_path(f"{scheme}://bucket/a%20b", encoded=True) == "s3://bucket/a b"
    assert split_path(f"{scheme}://bucket/a%20b") == ("s3", "bucket/a%20b")


def test_uris_open_the_file_system_that_pyarrow_opens():
    assert filesystem_of(pathlib.Path(ODD).as_uri()) != filesystem_of(f"file:{ODD}")
    assert filesystem_of(f"file:{ODD}") == pafs.FileSystem.from_uri(pathlib.Path(ODD).as_uri())


def test_only_paths_without_a_scheme_are_completed():
    assert absolute_path("a:b/c") == os.path.abspath("a:b/c")
    assert absolute_path("~") == os.path.expanduser("~")
    assert absolute_path("dbfs:/lake") == "dbfs:/lake"


@pytest.mark.parametrize("root", ["/lake", "/lake/"])
def test_keys_are_relative_only_below_the_root(root):
    assert key_below("/lake/year=1/a", root) == "year=1/a"
    assert key_below("/lakeside/a", root) == "/lakeside/a"


def test_keys_below_the_file_system_root_are_relative():
    assert key_below("/a/b", "/") == "a/b"


@pytest.mark.parametrize("root", ["/lake", "/lake/"])
def test_a_folder_with_the_same_prefix_is_not_below_the_root(root):
    assert is_below("/lake/year=1/a", root)
    assert not is_below("/lakeside/a", root)
    assert not is_below("/lake", root)


@pytest.mark.parametrize(("path", "root"), [("/a/b", "/"), ("bucket/a", ""), ("bucket/a", "/")])
def test_all_paths_are_below_the_root_of_all(path, root):
    assert is_below(path, root)
