"""Modules that one kind of Python worker imports before its fork, beside those of spark.worker_daemon.

spark.tasks writes the variable on the driver, and the daemon reads it. Spark starts one daemon for each
different environment of the functions that it runs. This module must not import pyspark: the daemon first
decides from where.
"""

from __future__ import annotations

import os

VARIABLE = "NIGHTRANK_WORKER_IMPORTS"


def requested_imports() -> list[str]:
    """The modules that the environment of this process names."""
    return [name for name in os.environ.get(VARIABLE, "").split(",") if name]
