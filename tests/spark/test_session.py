"""What a session refuses before it starts."""

from __future__ import annotations

import pytest
from py4j.java_gateway import JVMView
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from conf.errors import ConfigError
from spark.session import build_session


def test_profile_of_an_earlier_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this error, Spark reports only that its Python workers do not start."""
    monkeypatch.setattr("spark.session._configured", lambda settings: settings.get)
    with pytest.raises(ConfigError, match=r"etl\.worker_daemon, a module of an earlier release"):
        build_session("x", {"spark.python.daemon.module": "etl.worker_daemon"})


def test_frequent_classes_are_looked_up_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up, look_up = [], JVMView.__getattr__
    monkeypatch.setattr(
        JVMView, "__getattr__", lambda view, name: (looked_up.append(name), look_up(view, name))[1]
    )
    frame = spark.range(3).select((F.col("id") + F.lit(1)).alias("x"), F.coalesce("id", F.lit(0)).alias("y"))
    assert frame.agg(F.sum("x"), F.count("y")).collect() == [(6, 3)]
    assert not {"functions", "PythonUtils", "SparkSession"} & set(looked_up)
