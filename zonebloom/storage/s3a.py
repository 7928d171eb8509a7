"""Open S3 buckets by Hadoop's S3A settings.

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

# The settings that are used. They begin with ``fs.s3a.``, or with ``fs.s3a.bucket.NAME.``, which
# takes precedence for that bucket.
_USED_KEYS = (
    *("access.key", "secret.key", "session.token", "aws.credentials.provider"),
    *("endpoint", "endpoint.region", "path.style.access", "connection.ssl.enabled"),
)
# Unless one of these is given, or access is anonymous, the other settings are ignored. They have
# defaults, or only modify these.
_DECISIVE_KEYS = ("access.key", "endpoint", "endpoint.region")
# The whole name of a setting must match, because ``assumed.role.sts.endpoint`` is not the endpoint
# of a bucket. A bucket's name may contain dots.
_USED_SETTING = re.compile(rf"(?:bucket\..+\.)?({'|'.join(map(re.escape, _USED_KEYS))})")
_PROVIDERS = "TemporaryAWSCredentialsProvider,SimpleAWSCredentialsProvider"
# Endpoints of AWS, which pyarrow derives from the region.
_AWS_ENDPOINT = re.compile(r"(?:https?://)?s3(?:[.-]([a-z]{2}(?:-[a-z]+)+-\d))?\.amazonaws\.com/?")


def used_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that are used, or none if they leave everything to the environment."""
    used: dict[str, str] = {}
    is_decisive = False
    for name, value in settings.items():
        match = _USED_SETTING.fullmatch(name)
        if match is None:
            continue
        used[name] = value.strip()
        is_anonymous = match[1] == "aws.credentials.provider" and ".Anonymous" in value
        is_decisive |= is_anonymous or (match[1] in _DECISIVE_KEYS and used[name] != "")
    return used if is_decisive else {}


def s3_filesystem(settings: Mapping[str, str], bucket: str) -> pafs.S3FileSystem | None:
    """Open a bucket with the settings that `used_settings` returned.

    Return None if the settings say nothing about this bucket.

    Raises
    ------
    SourceError
        When the bucket cannot be opened with the settings.
    """
    bucket_settings = {
        key: settings.get(f"bucket.{bucket}.{key}", settings.get(key, "")) for key in _USED_KEYS
    }
    options = {**_credentials(bucket_settings), **_endpoint(bucket_settings)}
    if not options:
        return None
    try:
        if not options.keys() & {"region", "endpoint_override"}:
            options["region"] = pafs.resolve_s3_region(bucket)
        return _open_filesystem(tuple(sorted(options.items())))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SourceError(
            f"s3a://{bucket} cannot be opened with the session's fs.s3a settings: {error}; "
            "correct them, or set fs.s3a.endpoint.region"
        ) from None


@lru_cache(maxsize=64)
def _open_filesystem(options: tuple[tuple[str, Any], ...]) -> pafs.S3FileSystem:
    # All queries share one file system, because each file system opens its own connections.
    return pafs.S3FileSystem(**dict(options))


def _credentials(bucket_settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of the first provider with credentials, or none for unknown providers."""
    pair = {
        "access_key": bucket_settings["access.key"],
        "secret_key": bucket_settings["secret.key"],
    }
    for provider in (bucket_settings["aws.credentials.provider"] or _PROVIDERS).split(","):
        kind = provider.strip().rpartition(".")[2]
        if kind.startswith("Anonymous"):
            return {"anonymous": True}
        if kind == "TemporaryAWSCredentialsProvider" and all(
            [*pair.values(), bucket_settings["session.token"]]
        ):
            return {**pair, "session_token": bucket_settings["session.token"]}
        if kind == "SimpleAWSCredentialsProvider" and all(pair.values()):
            return pair
    return {}


def _endpoint(bucket_settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the options for region, endpoint, scheme and addressing."""
    options: dict[str, Any] = {}
    endpoint, aws_match = (
        bucket_settings["endpoint"],
        _AWS_ENDPOINT.fullmatch(bucket_settings["endpoint"]),
    )
    region = bucket_settings["endpoint.region"] or (aws_match[1] if aws_match else None)
    if region:
        options["region"] = region
    if endpoint and not aws_match:
        scheme, mark, host = endpoint.rpartition("://")
        is_unencrypted = bucket_settings["connection.ssl.enabled"].lower() == "false"
        options["scheme"] = scheme if mark else "http" if is_unencrypted else "https"
        options["endpoint_override"] = host.rstrip("/")
        options.setdefault("region", "us-east-1")
        # Like Hadoop's client, put the bucket into the host name, except for IP addresses and
        # where the settings ask for the path style.
        by_path = bucket_settings["path.style.access"].lower() == "true" or _is_address(host)
        options["force_virtual_addressing"] = not by_path
    return options


def _is_address(host: str) -> bool:
    name = host.partition("/")[0].rpartition(":")[0] or host
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name == "localhost"
    return True
