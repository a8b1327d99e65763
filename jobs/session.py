"""The only place that builds a SparkSession. Profiles (conf/spark/*.conf) decide where and how large it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

# What must hold for our results to be right, whatever the profile says.
_REQUIRED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",  # casts of malformed text must give null, which quarantine counts
    "spark.sql.caseSensitive": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


def build_session(app_name: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """The session of one job. Python workers run the interpreter of this environment.

    Args:
        settings: for callers that are not started by spark-submit, what its properties file would say.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    for key, value in {**(settings or {}), **_REQUIRED}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def read_profile(path: Path) -> dict[str, str]:
    """The settings of a properties file, as spark-submit reads it."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    pairs = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    return {key: value.strip() for key, value in pairs}
