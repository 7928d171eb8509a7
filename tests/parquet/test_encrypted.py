"""Test encrypted Parquet files that pyarrow reads with the keys of its file format."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from pyarrow.parquet import encryption

import zonebloom as zb
from zonebloom.errors import InvalidArgument

ROWS = 40_000


class Keys(encryption.KmsClient):
    def __init__(self, config):
        super().__init__()

    def wrap_key(self, key_bytes, master_key_identifier):
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key, master_key_identifier):
        return base64.b64decode(wrapped_key)


@pytest.fixture(params=[False, True], ids=["encrypted footer", "plaintext footer"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> pads.Dataset:
    factory = encryption.CryptoFactory(Keys)
    connection = encryption.KmsConnectionConfig()
    write = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"ids": ["id"]}, plaintext_footer=request.param
    )
    table = pa.table(
        {"id": np.random.default_rng(0).permutation(ROWS), "text": [f"{i}" for i in range(ROWS)]}
    )
    options = pads.ParquetFileFormat().make_write_options(
        encryption_config=pads.ParquetEncryptionConfig(factory, connection, write)
    )
    pads.write_dataset(
        table,
        tmp_path,
        format="parquet",
        file_options=options,
        max_rows_per_file=ROWS // 2,
        max_rows_per_group=ROWS // 4,
    )
    decryption = pads.ParquetDecryptionConfig(
        factory, connection, encryption.DecryptionConfiguration()
    )
    scan = pads.ParquetFragmentScanOptions(decryption_config=decryption)
    return pads.dataset(tmp_path, format=pads.ParquetFileFormat(default_fragment_scan_options=scan))


def plain_footers(source: pads.Dataset) -> bool:
    return Path(source.files[0]).read_bytes().endswith(b"PAR1")


def test_lookups_equal_pyarrow_and_the_plan_shows_read_row_groups(source):
    dataset = zb.dataset(source)
    with pytest.raises(InvalidArgument, match="an unencrypted index would reveal their keys"):
        dataset.create_scalar_index("id", spark=False)
    assert not Path(dataset.opened.catalog.folder).exists()
    dataset.create_scalar_index("id", number_of_items=1000, plaintext=True, spark=False)
    for key in (0, 77, ROWS - 1, ROWS):
        expression = pads.field("id") == key
        assert dataset.to_table(filter=expression).equals(source.to_table(filter=expression))
    plan = dataset.scanner(filter="id = 77").analyze_plan()
    assert "1 row group read whole: " in plan
    assert "encrypted, and parquet_keys is not given" in plan


@pytest.mark.parametrize("kind", ["BLOOMFILTER", "HASH"])
def test_an_encrypted_index_of_encrypted_files_needs_no_confirmation(source, kind):
    keys = zb.Encryption("key", {"key": bytes(16)})
    options = {"number_of_items": 1000, "spark": False}
    zb.dataset(source, encryption=keys).create_scalar_index("id", kind, **options)
    dataset = zb.dataset(source, encryption=keys)
    expression = pads.field("id") == 77
    assert dataset.to_table(filter=expression).equals(source.to_table(filter=expression))
    assert len(dataset.search(expression).at_most) == 1000


@pytest.mark.many
@pytest.mark.parametrize(
    "call",
    [
        'ds.count_rows("id = 5")',
        'ds.to_table(["text"], "id > 5")',
        "ds.count_rows(pads.field('id').is_null())",
        'list(ds.scanner(filter="id IN (1, 2)").to_batches())',
    ],
)
def test_filters_on_locked_columns_raise_and_do_not_crash_the_process(source, call):
    """Run this in a process of its own, because pyarrow would end it."""
    if not plain_footers(source):
        pytest.skip("a file whose footer is encrypted is not opened without keys")
    lines = [
        "import pyarrow.dataset as pads, zonebloom as zb",
        f"ds = zb.dataset({source.files!r})",
        "assert ds.count_rows(\"text = '5'\") == 1",
        f"try: {call}",
        "except zb.errors.FragmentUnreadable: print('refused')",
    ]
    command = [sys.executable, "-c", "\n".join(lines)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert process.stdout == "refused\n", process.stderr
