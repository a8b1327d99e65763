"""Python workers that have more imported before their fork than spark.worker_daemon imports for all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the daemon chooses where pyspark is imported from
    from pyspark.sql import SparkSession

VARIABLE = "NIGHTRANK_WORKER_IMPORTS"


@contextmanager
def importing(spark: SparkSession, *modules: str) -> Iterator[None]:
    """Python functions of frames defined in this block run in workers with these modules imported.

    Spark has one process to fork from for each set of variables of the functions that it runs. Another
    daemon than ours ignores the variable; its workers then import the modules themselves.
    """
    environment = spark.sparkContext.environment
    before = environment.get(VARIABLE)
    environment[VARIABLE] = ",".join(modules)
    try:
        yield
    finally:
        if before is None:
            del environment[VARIABLE]
        else:
            environment[VARIABLE] = before


def asked_for() -> list[str]:
    """The modules that the functions of this process asked for."""
    return [name for name in os.environ.get(VARIABLE, "").split(",") if name]
