"""The keys of encrypted Parquet files: a single key, or keys from a key management service (KMS).

Sources: Encryption.md of the Parquet format; the key material, in JSON, of the key tools that
parquet-java and PyArrow share.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from zonebloom.base import arguments
from zonebloom.base.memory_cache import MEMORY_CACHE, CacheOwner
from zonebloom.base.pickling import KeyHolder, is_importable
from zonebloom.errors import FragmentUnreadable, InvalidArgument
from zonebloom.storage.encryption import KEY_SIZES, NONCE_BYTES, aes_gcm

if TYPE_CHECKING:
    import pyarrow.dataset as pads
    from pyarrow.parquet.encryption import KmsClient, KmsConnectionConfig

_MATERIAL = "PKMT1"
# About the bytes that an unwrapped key takes in memory, with its wrapped form.
_UNWRAPPED_BYTES = 1000


class ParquetKeys(KeyHolder):
    """The keys with which PyArrow and zonebloom read encrypted Parquet files.

    Parameters
    ----------
    keys : bytes, or callable
        A single key of 16, 24 or 32 bytes for the footer and all columns, as for
        ``pyarrow.parquet.encryption.create_encryption_properties``. Files that are not encrypted
        are then refused. Or a function that returns a ``KmsClient`` for a ``KmsConnectionConfig``,
        as for ``CryptoFactory``, for files written with the key tools of PyArrow or parquet-java.
    connection : pyarrow.parquet.encryption.KmsConnectionConfig, optional
        The argument of that function.
    aad_prefix : bytes, optional
        The prefix of files that were encrypted with one and do not store it. Only with a single
        key.

    Raises
    ------
    InvalidArgument
    MissingDependency
        If the package ``cryptography`` is not installed.

    Notes
    -----
    A dataset can be pickled if ``keys`` is a function or class that can be imported and finds its
    secrets by itself. It cannot be pickled with a single key, or with a ``key_access_token`` or
    ``custom_kms_conf`` in the connection. The tasks of builds on Spark get the keys in any case.

    A key is unwrapped when the first page of its column is read. Keys and footers are cached at
    most as long as this object exists. If a key is missing or data cannot be authenticated, PyArrow
    reads the file and raises the error. ``AES_GCM_CTR_V1`` does not authenticate values.

    Examples
    --------
    >>> from pyarrow.parquet.encryption import create_encryption_properties
    >>> secret = create_encryption_properties(b"0123456789abcdef")
    >>> pq.write_table(table, "secret.parquet", encryption_properties=secret)
    >>> keys = zb.ParquetKeys(b"0123456789abcdef")
    >>> zb.dataset("secret.parquet", parquet_keys=keys).count_rows("id = 42")
    1
    """

    def __init__(
        self,
        keys: bytes | Callable[[KmsConnectionConfig], KmsClient],
        connection: KmsConnectionConfig | None = None,
        aad_prefix: bytes = b"",
    ):
        from pyarrow.parquet.encryption import KmsConnectionConfig

        if not callable(keys) and not (isinstance(keys, bytes) and len(keys) in KEY_SIZES):
            # The value may be a key, so the message does not show it.
            raise InvalidArgument("keys must be 16, 24 or 32 bytes, or return a KmsClient")
        if connection is not None:
            advice = "give a pyarrow.parquet.encryption.KmsConnectionConfig"
            if not isinstance(connection, KmsConnectionConfig):
                raise arguments.invalid_secret(connection, "connection", advice)
        if not isinstance(aad_prefix, bytes):
            raise arguments.invalid_secret(aad_prefix, "aad_prefix", "give bytes")
        self.aad_prefix = aad_prefix
        if aad_prefix and not isinstance(keys, bytes):
            raise InvalidArgument("aad_prefix needs a single key; omit it with a KMS")
        # Raise an error now, and not at the first file, if the package cryptography is missing.
        aes_gcm(bytes(16))
        self._keys = keys
        self._connection = connection or KmsConnectionConfig()
        self._client: KmsClient | None = None
        self._format: pads.ParquetFileFormat | None = None
        # The owner of unwrapped keys, and of what these keys decrypted.
        self.cache_owner = CacheOwner()

    def __repr__(self) -> str:
        return f"<zonebloom.ParquetKeys, {'one key' if self.is_single_key else 'by a KMS'}>"

    def reduce_with_keys(self) -> tuple[Any, ...]:
        """Return what `__reduce__` returns, with all keys."""
        names = "kms_instance_id", "kms_instance_url", "key_access_token", "custom_kms_conf"
        connection = {name: getattr(self._connection, name) for name in names}
        return _restore_parquet_keys, (self._keys, connection, self.aad_prefix)

    @property
    def is_single_key(self) -> bool:
        """Return whether a single key decrypts everything."""
        return isinstance(self._keys, bytes)

    @property
    def holds_keys(self) -> bool:
        """Return whether a pickle of this object could contain keys or a token in clear."""
        tokens = ("", type(self._connection)().key_access_token)
        has_token = self._connection.key_access_token not in tokens
        has_secrets = has_token or bool(self._connection.custom_kms_conf)
        return has_secrets or not is_importable(self._keys)

    @property
    def format(self) -> pads.ParquetFileFormat:
        """The format with which PyArrow decrypts the files."""
        if self._format is None:
            import pyarrow.dataset as pads
            from pyarrow.parquet import encryption

            if isinstance(self._keys, bytes):
                options = pads.ParquetFragmentScanOptions(decryption_properties=self.properties())
            else:
                config = pads.ParquetDecryptionConfig(
                    encryption.CryptoFactory(self._keys),
                    self._connection,
                    encryption.DecryptionConfiguration(),
                )
                options = pads.ParquetFragmentScanOptions(decryption_config=config)
            self._format = pads.ParquetFileFormat(default_fragment_scan_options=options)
        return self._format

    def properties(self) -> Any:
        """Return the decryption properties with which PyArrow opens one file."""
        from pyarrow.parquet import encryption

        if isinstance(self._keys, bytes):
            return encryption.create_decryption_properties(
                self._keys, aad_prefix=self.aad_prefix or None
            )
        return encryption.CryptoFactory(self._keys).file_decryption_properties(
            self._connection, encryption.DecryptionConfiguration()
        )

    def find_key(self, metadata: bytes | None, is_column_key: bool) -> bytes:
        """Return the key that the key metadata of a file identifies.

        Raises
        ------
        FragmentUnreadable
            If there is no such key.
        """
        if isinstance(self._keys, bytes):
            if is_column_key:
                raise FragmentUnreadable("its columns have their own keys; parquet_keys has one")
            return self._keys
        key, error_type = None, ""
        try:
            material = json.loads(metadata or b"")
            if material["keyMaterialType"] != _MATERIAL or not material["internalStorage"]:
                raise ValueError("its key material is not stored in the file")
            wrapped_key, master_key_id = material["wrappedDEK"], material["masterKeyID"]
            if not material["doubleWrapping"]:
                key = self._unwrap(wrapped_key, master_key_id)
            else:
                outer_key = self._unwrap(material["wrappedKEK"], master_key_id)
                data, aad = map(base64.b64decode, (wrapped_key, material["keyEncryptionKeyID"]))
                key = aes_gcm(outer_key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], aad)
        except Exception as error:  # noqa: BLE001 - clients raise errors of their own
            error_type = type(error).__name__
        if key is None:
            # Raise outside of the handler, because the error of a client may hold its token. This
            # error neither repeats it nor keeps it as its context.
            raise FragmentUnreadable(f"its key cannot be unwrapped: {error_type}")
        if len(key) not in KEY_SIZES:
            raise FragmentUnreadable(f"its unwrapped key has {len(key)} bytes")
        return key

    def _unwrap(self, wrapped_key: str, master_key_id: str) -> bytes:
        assert callable(self._keys)
        cache_key = self.cache_owner.token, wrapped_key, master_key_id
        unwrapped = MEMORY_CACHE.get(cache_key, _UnwrappedKey)
        if unwrapped is None:
            self._client = client = self._client or self._keys(self._connection)
            unwrapped = _UnwrappedKey(bytes(client.unwrap_key(wrapped_key, master_key_id)))
            MEMORY_CACHE.put(cache_key, unwrapped)
        return unwrapped.key


class _UnwrappedKey(NamedTuple):
    """A key that a KMS has unwrapped."""

    key: bytes

    @property
    def num_bytes(self) -> int:
        return _UNWRAPPED_BYTES

    def __repr__(self) -> str:
        return "<_UnwrappedKey>"


def _restore_parquet_keys(keys: Any, connection: dict[str, Any], aad_prefix: bytes) -> ParquetKeys:
    from pyarrow.parquet.encryption import KmsConnectionConfig

    return ParquetKeys(keys, KmsConnectionConfig(**connection), aad_prefix)
