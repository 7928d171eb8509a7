"""Buckets of S3 as Hadoop's settings of S3A have them.

https://hadoop.apache.org/docs/stable/hadoop-aws/tools/hadoop-aws/index.html
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.errors import SourceError

# What is asked of them, below ``fs.s3a.`` and ``fs.s3a.bucket.NAME.``, which goes before.
_KEYS = (
    *("access.key", "secret.key", "session.token", "aws.credentials.provider"),
    *("endpoint", "endpoint.region", "path.style.access", "connection.ssl.enabled"),
)
# What says something of its own; others have defaults, or go with these.
_TELLING = ("access.key", "endpoint", "endpoint.region")
_PROVIDERS = "TemporaryAWSCredentialsProvider,SimpleAWSCredentialsProvider"
# Endpoints of AWS itself, which pyarrow knows by their region.
_OF_AWS = re.compile(r"(?:https?://)?s3(?:[.-]([a-z]{2}(?:-[a-z]+)+-\d))?\.amazonaws\.com/?")


def used_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Of all settings those that are asked, none when they leave all to the environment."""
    asked = {key: text.strip() for key, text in settings.items() if key.endswith(_KEYS)}
    is_told = any(
        (text and key.endswith(_TELLING)) or ".Anonymous" in text for key, text in asked.items()
    )
    return asked if is_told else {}


def s3_filesystem(settings: Mapping[str, str], bucket: str) -> pafs.S3FileSystem | None:
    """A bucket by settings as `told` gives them; None where they leave it to the environment.

    Raises
    ------
    SourceError
        When they cannot be used.
    """
    own = {key: settings.get(f"bucket.{bucket}.{key}", settings.get(key, "")) for key in _KEYS}
    options = {**_credentials(own), **_place(own)}
    if not options:
        return None
    try:
        if not options.keys() & {"region", "endpoint_override"}:
            options["region"] = pafs.resolve_s3_region(bucket)
        return _opened(tuple(sorted(options.items())))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SourceError(
            f"s3a://{bucket} cannot be opened as the session's fs.s3a settings say: {error}; "
            "correct them, or set fs.s3a.endpoint.region"
        ) from None


@lru_cache(maxsize=64)
def _opened(options: tuple[tuple[str, Any], ...]) -> pafs.S3FileSystem:
    """One for all queries: each has connections of its own."""
    return pafs.S3FileSystem(**dict(options))


def _credentials(own: Mapping[str, str]) -> dict[str, Any]:
    """What the first provider that has something gives; other kinds are left to pyarrow."""
    pair = {"access_key": own["access.key"], "secret_key": own["secret.key"]}
    for provider in (own["aws.credentials.provider"] or _PROVIDERS).split(","):
        kind = provider.strip().rpartition(".")[2]
        if kind.startswith("Anonymous"):
            return {"anonymous": True}
        if kind == "TemporaryAWSCredentialsProvider" and all(
            [*pair.values(), own["session.token"]]
        ):
            return {**pair, "session_token": own["session.token"]}
        if kind == "SimpleAWSCredentialsProvider" and all(pair.values()):
            return pair
    return {}


def _place(own: Mapping[str, str]) -> dict[str, Any]:
    """Region and endpoint, and how they are asked."""
    options: dict[str, Any] = {}
    endpoint, of_aws = own["endpoint"], _OF_AWS.fullmatch(own["endpoint"])
    region = own["endpoint.region"] or (of_aws[1] if of_aws else None)
    if region:
        options["region"] = region
    if endpoint and not of_aws:
        scheme, mark, host = endpoint.rpartition("://")
        is_plain = own["connection.ssl.enabled"].lower() == "false"
        options["scheme"] = scheme if mark else "http" if is_plain else "https"
        options["endpoint_override"] = host.rstrip("/")
        options.setdefault("region", "us-east-1")
        # As Hadoop's client does: the bucket is part of the host, but of an address or as told.
        by_path = own["path.style.access"].lower() == "true" or _is_address(host)
        options["force_virtual_addressing"] = not by_path
    return options


def _is_address(host: str) -> bool:
    name = host.partition("/")[0].rpartition(":")[0] or host
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name == "localhost"
    return True
