"""Hadoop's settings of S3A become those of PyArrow's file system."""

from __future__ import annotations

import pytest

from zonebloom.storage.object_store import s3_options
from zonebloom.storage.s3a import s3_filesystem, used_settings


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, None),
        ({"aws.credentials.provider": "a.TemporaryAWSCredentialsProvider, b.Other"}, None),
        ({"assumed.role.sts.endpoint": "https://sts.x.y", "secret.key": "s"}, None),
        ({"assumed.role.sts.endpoint.region": "eu-west-1"}, None),
        ({"my.access.key": "k", "access.key": " "}, None),
        (
            {"access.key": "k", "secret.key": "s", "endpoint.region": "eu-west-1"},
            {"access_key": "k", "secret_key": "s", "region": "eu-west-1"},
        ),
        (
            {"access.key": "k", "secret.key": "s", "session.token": "t", "endpoint": "https://x.y"},
            {"session_token": "t", "endpoint_override": "x.y", "scheme": "https"},
        ),
        (
            {
                **{"access.key": "k", "secret.key": "s", "bucket.b.secret.key": "own"},
                **{"endpoint": "s3.eu-west-1.amazonaws.com", "path.style.access": "false"},
            },
            {"secret_key": "own", "region": "eu-west-1", "endpoint_override": ""},
        ),
        (
            {
                "aws.credentials.provider": "org.example.s3a.AnonymousAWSCredentialsProvider",
                "endpoint": "store:9000",
                "connection.ssl.enabled": "false",
            },
            {"anonymous": True, "scheme": "http", "force_virtual_addressing": True},
        ),
        (
            {"endpoint": "http://127.0.0.1:9000"},
            {"endpoint_override": "127.0.0.1:9000", "force_virtual_addressing": False},
        ),
    ],
)
def test_settings_of_a_bucket_are_used(settings, options):
    defaults = {"connection.ssl.enabled": "true", "path.style.access": "false", "endpoint": ""}
    filesystem = s3_filesystem(used_settings({**defaults, **settings}), "b")
    if options is None:
        assert filesystem is None and used_settings({**defaults, **settings}) == {}
        return
    result = s3_options(filesystem)
    assert {key: result[key] for key in options} == options
