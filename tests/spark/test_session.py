"""What a session refuses before it starts."""

from __future__ import annotations

import gc
import weakref

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


def test_unused_java_objects_are_soon_released(spark: SparkSession) -> None:
    """A Python object for a Java object is garbage that only a search frees, because it refers to itself."""
    released: list[None] = []
    for _ in range(300):
        frame = spark.range(3)._jdf
        frame.schema()  # py4j keeps the method in the object, and the object in the method
        weakref.finalize(frame, released.append, None)
    del frame
    assert gc.get_threshold()[0] < 1000
    assert len(released) > 200


def test_frequent_classes_are_looked_up_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up, look_up = [], JVMView.__getattr__
    monkeypatch.setattr(
        JVMView, "__getattr__", lambda view, name: (looked_up.append(name), look_up(view, name))[1]
    )
    frame = spark.range(3).select((F.col("id") + F.lit(1)).alias("x"), F.coalesce("id", F.lit(0)).alias("y"))
    assert frame.agg(F.sum("x"), F.count("y")).collect() == [(6, 3)]
    assert not {"functions", "PythonUtils", "SparkSession"} & set(looked_up)
