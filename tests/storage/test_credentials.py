"""Test that messages do not show the credentials in a URI."""

from __future__ import annotations

import pickle
import traceback
import warnings
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
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
        ("hdfs://host:8020/user/bob@corp", "hdfs://host:8020/user/bob@corp"),
        ("hdfs://a:b@host:8020/user/bob@corp", "hdfs://***@host:8020/user/bob@corp"),
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


KEY = b"SECRETKEY-0123456789abcdefSECRET"
TEXT = KEY.decode()
WRONG_KEYS = [
    *(KEY, bytearray(KEY), TEXT, KEY.hex(), {"id": KEY}, {TEXT: "id"}, ("id", KEY), [KEY]),
    *({KEY}, {"id": {"key": TEXT}}, int.from_bytes(KEY), zb.Encryption, f"{TEXT}\ud800"),
]
# The calls violate its types on purpose.
package: Any = zb
CALLS = {
    "encryption": lambda wrong: package.dataset("d", encryption=wrong),
    "parquet_keys": lambda wrong: package.dataset("d", parquet_keys=wrong),
    "storage_options": lambda wrong: package.dataset("d", storage_options=wrong),
    "filesystem": lambda wrong: package.dataset("d", filesystem=wrong),
    "key_id": lambda wrong: package.Encryption(wrong, {"id": KEY}),
    "key_id of no key": lambda wrong: package.Encryption(str(wrong)[:50], {"id": KEY}),
    "key_id of a function": lambda wrong: package.Encryption(str(wrong)[:50], {}.__getitem__),
    "keys": lambda wrong: package.Encryption("2026", wrong),
    "a key": lambda wrong: package.Encryption("id", {"id": [wrong]}),
    "keys of Parquet": lambda wrong: package.ParquetKeys([wrong]),
    "connection": lambda wrong: package.ParquetKeys(bytes(16), wrong),
    "aad_prefix": lambda wrong: package.ParquetKeys(bytes(16), aad_prefix=[wrong]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("wrong", WRONG_KEYS, ids=lambda wrong: type(wrong).__name__)
def test_no_error_shows_a_key_of_a_wrong_form(call, wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"id": [1]}), "d")
    pieces = [form(KEY)[10:20] for form in (str, bytes.decode, bytes.hex)]
    pieces.append(str(int.from_bytes(KEY))[:10])
    try:
        call(wrong)
    except (errors.ZoneBloomError, TypeError) as error:
        chain = [error]
        for link in chain:
            text = f"{link!r} {link} {link.args!r} {vars(link)!r}"
            assert not any(piece in text for piece in pieces)
            chain += [cause for cause in (link.__cause__, link.__context__) if cause is not None]
    else:
        pytest.fail("the call accepts the value")
