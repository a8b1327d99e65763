"""Fixtures every test may use. One Spark session serves the whole suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.session import build_session

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2] with the settings of conf/spark/local.conf, warehouse and scratch in a temporary folder."""
    scratch = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder
    for line in (ROOT / "conf/spark/local.conf").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            key, value = line.split(None, 1)
            builder = builder.config(key, value.strip())
    builder.config("spark.local.dir", str(scratch)).config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    session = build_session("tests")
    yield session
    session.stop()
