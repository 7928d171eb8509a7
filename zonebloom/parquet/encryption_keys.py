"""Keys of encrypted Parquet files: one that is given, or those that a key management service (KMS)
unwraps from what the files say of them.

Sources: Encryption.md of the Parquet format; the key material, in JSON, of the key tools that
parquet-java and PyArrow share.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from zonebloom.base import arguments
from zonebloom.errors import FragmentUnreadable, InvalidArgument
from zonebloom.storage.encryption import KEY_SIZES, NONCE_BYTES, aes_gcm

if TYPE_CHECKING:
    import pyarrow.dataset as pads
    from pyarrow.parquet.encryption import KmsClient, KmsConnectionConfig

_MATERIAL = "PKMT1"
# Of keys, and of footers, so many are kept; then they are asked for again.
MAX_CACHED = 1024


class ParquetKeys:
    """Keys of encrypted Parquet files, by which PyArrow and zonebloom read them.

    Parameters
    ----------
    keys : bytes, or callable
        The one key, of 16, 24 or 32 bytes, that all of a file is encrypted by, as
        ``pyarrow.parquet.encryption.create_encryption_properties`` takes it; a file that is not
        encrypted is then refused. Or what makes a ``KmsClient`` of a ``KmsConnectionConfig``, as
        ``CryptoFactory`` takes it, for files written with PyArrow's or parquet-java's key tools.
    connection : pyarrow.parquet.encryption.KmsConnectionConfig, optional
        What that callable is given.
    aad_prefix : bytes, optional
        With one key, of files that were encrypted with a prefix and do not store it.

    Raises
    ------
    InvalidArgument
    MissingDependency
        Without the package ``cryptography``.

    Notes
    -----
    A dataset pickles with a callable that finds its secrets by itself. It does not pickle with a
    key, nor with a ``key_access_token`` or ``custom_kms_conf`` in the connection.

    Keys are unwrapped when the first page of their column is read, and kept with footers as long
    as this object is. Where a key is missing, or anything is not what was encrypted, the file is
    left to PyArrow, which says what is wrong. ``AES_GCM_CTR_V1`` does not authenticate values.

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
            # It may be a key, which no message shows.
            raise InvalidArgument("keys is neither 16, 24 or 32 bytes nor makes a KmsClient")
        if connection is not None:
            arguments.require_instance(connection, KmsConnectionConfig, "connection")
        self.aad_prefix = arguments.require_instance(aad_prefix, bytes, "aad_prefix")
        if aad_prefix and not isinstance(keys, bytes):
            raise InvalidArgument("aad_prefix is of files of one key; leave it out with a KMS")
        aes_gcm(bytes(16))
        self._keys = keys
        self._connection = connection or KmsConnectionConfig()
        self._client: KmsClient | None = None
        self._format: pads.ParquetFileFormat | None = None
        self._unwrapped: dict[tuple[str, str], bytes] = {}
        # Of files, by what identifies one.
        self.cached_footers: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"<zonebloom.ParquetKeys, {'one key' if self.is_single_key else 'by a KMS'}>"

    def __reduce__(self) -> tuple[Any, ...]:
        given = self._connection
        names = "kms_instance_id", "kms_instance_url", "key_access_token", "custom_kms_conf"
        return _unpickled, (self._keys, {e: getattr(given, e) for e in names}, self.aad_prefix)

    @property
    def is_single_key(self) -> bool:
        """Whether one key is all."""
        return isinstance(self._keys, bytes)

    @property
    def holds_keys(self) -> bool:
        """Return whether a pickle of this object holds keys or an access token in clear."""
        tokens = ("", type(self._connection)().key_access_token)
        has_token = self._connection.key_access_token not in tokens
        return self.is_single_key or has_token or bool(self._connection.custom_kms_conf)

    @property
    def format(self) -> pads.ParquetFileFormat:
        """What PyArrow reads the files by."""
        if self._format is None:
            import pyarrow.dataset as pads
            from pyarrow.parquet import encryption

            if isinstance(self._keys, bytes):
                properties = encryption.create_decryption_properties(
                    self._keys, aad_prefix=self.aad_prefix or None
                )
                options = pads.ParquetFragmentScanOptions(decryption_properties=properties)
            else:
                config = pads.ParquetDecryptionConfig(
                    encryption.CryptoFactory(self._keys),
                    self._connection,
                    encryption.DecryptionConfiguration(),
                )
                options = pads.ParquetFragmentScanOptions(decryption_config=config)
            self._format = pads.ParquetFileFormat(default_fragment_scan_options=options)
        return self._format

    def find_key(self, metadata: bytes | None, of_column: bool) -> bytes:
        """The key that a file tells of by some metadata; FragmentUnreadable without it."""
        if isinstance(self._keys, bytes):
            if of_column:
                raise FragmentUnreadable("its columns have keys of their own")
            return self._keys
        try:
            material = json.loads(metadata or b"")
            if material["keyMaterialType"] != _MATERIAL or not material["internalStorage"]:
                raise ValueError("its key material lies elsewhere")
            wrapped, master = material["wrappedDEK"], material["masterKeyID"]
            if not material["doubleWrapping"]:
                key = self._unwrap(wrapped, master)
            else:
                outer = self._unwrap(material["wrappedKEK"], master)
                data, bound = map(base64.b64decode, (wrapped, material["keyEncryptionKeyID"]))
                key = aes_gcm(outer).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], bound)
        except Exception as error:  # noqa: BLE001 - clients raise errors of their own
            raise FragmentUnreadable(f"a key of it cannot be had ({error!r:.200})") from None
        if len(key) not in KEY_SIZES:
            raise FragmentUnreadable(f"a key of it has {len(key)} bytes")
        return key

    def _unwrap(self, wrapped: str, master: str) -> bytes:
        assert callable(self._keys)
        asked = wrapped, master
        key = self._unwrapped.get(asked)
        if key is None:
            self._client = client = self._client or self._keys(self._connection)
            key = bytes(client.unwrap_key(wrapped, master))
            if len(self._unwrapped) >= MAX_CACHED:
                self._unwrapped.clear()
            self._unwrapped[asked] = key
        return key


def _unpickled(keys: Any, connection: dict[str, Any], aad_prefix: bytes) -> ParquetKeys:
    from pyarrow.parquet.encryption import KmsConnectionConfig

    return ParquetKeys(keys, KmsConnectionConfig(**connection), aad_prefix)
