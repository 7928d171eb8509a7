"""Test reads and builds of encrypted files that Spark wrote with parquet-java."""

from __future__ import annotations

import base64
import zipfile

import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption

import zonebloom as zb

ROWS, PAGE = 8_000, 500
NAME = "zonebloom.tests.PlainKms"
# A KMS client that wraps keys without a master key, like `kms` unwraps them.
KMS = """
package zonebloom.tests;
import java.util.Base64;
import org.apache.hadoop.conf.Configuration;
public class PlainKms implements org.apache.parquet.crypto.keytools.KmsClient {
  public void initialize(Configuration conf, String id, String url, String token) {}
  public String wrapKey(byte[] key, String master) {
    return Base64.getEncoder().encodeToString(key);
  }
  public byte[] unwrapKey(String key, String master) { return Base64.getDecoder().decode(key); }
}
"""
COLUMNS = [
    "id",
    "if(id % 7 = 0, null, concat('text ', id % 50)) AS text",
    "id * 0.5D AS number",
    "named_struct('a', id, 'b', cast(id AS string)) AS pair",
    "array(id, id + 1) AS list",
]


def kms(connection):
    class Kms(encryption.KmsClient):
        def unwrap_key(self, wrapped_key, master_key_identifier):
            return base64.b64decode(wrapped_key)

    return Kms()


@pytest.fixture(scope="module")
def crypto(spark, tmp_path_factory):
    """Return the options with which Spark encrypts. Every classic session can compile Java."""
    compiler = spark._jvm.org.codehaus.janino.SimpleCompiler()
    loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    compiler.setParentClassLoader(loader)
    compiler.cook(KMS)
    path = tmp_path_factory.mktemp("kms") / "kms.jar"
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr(f"{NAME.replace('.', '/')}.class", bytes(compiler.getBytecodes()[NAME]))
    spark.sql(f"ADD JAR '{path}'")
    factory = "org.apache.parquet.crypto.keytools.PropertiesDrivenCryptoFactory"
    return {
        "parquet.crypto.factory.class": factory,
        "parquet.encryption.kms.client.class": NAME,
        "parquet.page.row.count.limit": PAGE,
    }


@pytest.mark.parametrize("is_uniform", [False, True])
@pytest.mark.parametrize("algorithm", ["AES_GCM_V1", "AES_GCM_CTR_V1"])
def test_encrypted_files_of_spark_are_read_and_indexed(
    spark, crypto, tmp_path, algorithm, is_uniform
):
    options = {"algorithm": algorithm, "plaintext.footer": is_uniform}
    options["double.wrapping"] = algorithm == "AES_GCM_V1"
    if is_uniform:
        options["uniform.key"] = "all"
    else:
        options |= {"footer.key": "footer", "column.keys": "a:id,pair.b;b:text,list.list.element"}
    written = {f"parquet.encryption.{name}": str(option) for name, option in options.items()}
    folder = str(tmp_path / "data")
    frame = spark.range(0, ROWS, 1, 1).selectExpr(*COLUMNS)
    frame.write.options(**crypto, **written).parquet(folder)
    connection = encryption.KmsConnectionConfig()
    theirs = encryption.CryptoFactory(kms).file_decryption_properties(connection)
    table = pq.read_table(folder, decryption_properties=theirs)
    ds = zb.dataset(folder, parquet_keys=zb.ParquetKeys(kms))
    ds.create_scalar_index("id", number_of_items=PAGE, plaintext=True, spark=spark)
    assert ds.to_table().equals(table)
    for key in (0, PAGE - 1, PAGE, 4242, ROWS - 1, ROWS):
        assert ds.to_table(filter=f"id = {key}").equals(table.slice(key, 1))
    stats = ds.scanner(filter="id = 4242").analyze_plan().stats
    assert not stats.whole_row_groups and not stats.whole_chunks and not stats.by_pyarrow
