"""The only place that builds a SparkSession. Profiles (conf/spark/*.conf) decide where and how large it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from py4j.java_gateway import java_import
from pyspark import SparkConf, SparkContext
from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession

from spark.accelerator import accelerator_settings
from spark.event_logs import event_log_settings

# What must hold for our results to be right, whatever the profile says.
_REQUIRED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",  # casts of malformed text must give null, which quarantine counts
    "spark.sql.caseSensitive": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


def build_session(
    app_name: str, settings: Mapping[str, str] | None = None, event_logs: str | None = None
) -> SparkSession:
    """The session of one job. Python workers run the interpreter of this environment.

    Args:
        settings: for callers that are not started by spark-submit, what its properties file would say.
        event_logs: where Spark's events are logged unless the profile says otherwise; None leaves all to the profile.

    Raises:
        ConfigError: the session is to run with the accelerator, whose jar is missing or does not fit this Spark.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    said = _said(settings or {})
    accelerated = accelerator_settings(said, spark_version)
    logged = {} if event_logs is None else event_log_settings(said, event_logs)
    for key, value in {**(settings or {}), **accelerated, **logged, **_REQUIRED}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    # By its own name: PySpark asks for it at every call of a function, and the JVM else looks for it in five packages before its own.
    java_import(session._jvm, "org.apache.spark.sql.functions")
    return session


def _said(settings: Mapping[str, str]) -> Callable[[str], str | None]:
    """What a setting was given as, by the caller or by spark-submit, whose properties the JVM knows."""
    if (
        "PYSPARK_GATEWAY_PORT" in os.environ
    ):  # a JVM that we start ourselves must not start before it has its settings
        SparkContext._ensure_initialized()
    if SparkContext._jvm is None:
        return settings.get
    submitted = SparkConf(_jvm=SparkContext._jvm)
    return lambda key: settings.get(key, submitted.get(key))


def read_profile(path: Path) -> dict[str, str]:
    """The settings of a properties file, as spark-submit reads it."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    pairs = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    return {key: value.strip() for key, value in pairs}
