"""The only place that builds a SparkSession. Profiles (conf/spark/*.conf) decide where and how large it runs."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

# What must hold for our results to be right, whatever the profile says.
_REQUIRED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",  # casts of malformed text must give null, which quarantine counts
    "spark.sql.caseSensitive": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


def build_session(app_name: str) -> SparkSession:
    """The session of one job. Python workers run the interpreter of this environment."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    for key, value in _REQUIRED.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
