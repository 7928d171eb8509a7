"""The catalog of Iceberg tables."""

import pytest


@pytest.fixture
def catalog(tmp_path):
    from pyiceberg.catalog.sql import SqlCatalog

    (tmp_path / "house").mkdir()
    new_catalog = SqlCatalog(
        "c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=(tmp_path / "house").as_uri()
    )
    new_catalog.create_namespace("n")
    yield new_catalog
    new_catalog.close()
