"""Test that messages do not show the credentials in a URI."""

from __future__ import annotations

import pickle
import traceback
import warnings

import pytest

import zonebloom as zb
from zonebloom import errors
from zonebloom.errors import without_secrets

URIS = [
    "s3://KEY:PASSWORD@bucket/path?scheme=none",
    "s3://KEY:PASS/WORD@bucket/path?scheme=none",
    "s3://KEY:PASS%2FWORD@bucket/*.parquet?scheme=none",
    "s3://bucket/path?access_key=KEY&secret_key=PASSWORD",
    "gs://KEY:PASSWORD@bucket/path",
    "hdfs://user:PASSWORD@host:1/path",
    "https://user:PASSWORD@host/x.parquet",
    "https://PASSWORD@host/x.parquet",
    "other://account.host/path?sv=2024&sig=PASSWORD%3D",
]


@pytest.mark.parametrize("uri", URIS)
@pytest.mark.parametrize("make_source", [str, lambda uri: [uri]], ids=["path", "list"])
def test_no_error_shows_credentials(uri, make_source):
    with pytest.raises(errors.ZoneBloomError) as caught:
        zb.dataset(make_source(uri))
    error = caught.value
    # Check all that Python prints for the error, including its causes.
    text = "".join(traceback.format_exception_only(error)) + repr(error) + str(error.args)
    assert "PASS" not in text and "WORD" not in text
    assert "bucket" in text or "host" in text
    assert "PASS" not in str(pickle.loads(pickle.dumps(error)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("'s3://a:b@c/d' and gs://e@f/g: why", "'s3://***@c/d' and gs://***@f/g: why"),
        ("s3://bucket/user@host/x", "s3://bucket/user@host/x"),
        ("hdfs://host:8020/a b?c=d", "hdfs://host:8020/a b?c=d"),
        ("s3://bucket/part-?.parquet", "s3://bucket/part-?.parquet"),
        ("abfs://***@c/x?sig=***", "abfs://***@c/x?sig=***"),
        ("a = b? c@d:e", "a = b? c@d:e"),
    ],
)
def test_only_credentials_are_left_out(text, expected):
    assert without_secrets(text) == expected
    assert str(errors.FragmentUnreadable(text)) == expected
    with pytest.warns(errors.StaleIndexWarning) as caught:
        warnings.warn(text, errors.StaleIndexWarning, stacklevel=1)
    assert str(caught[0].message) == expected
