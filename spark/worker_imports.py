"""Modules that a process imports before it forks Python workers, in addition to its own list.

On the driver, spark.tasks writes the names of the modules to an environment variable. The daemon
(spark.worker_daemon) reads this variable. Spark starts one daemon for each different set of environment
variables.

This module must not import pyspark, because the daemon first removes the archive of pyspark from sys.path.
"""

from __future__ import annotations

import os

from conf.plugins import OPERATOR, READER

VARIABLE = "NIGHTRANK_WORKER_IMPORTS"


def requested_imports() -> list[str]:
    """Returns the names of the modules in this process's environment variable."""
    return [name for name in os.environ.get(VARIABLE, "").split(",") if name]


def import_plugins() -> None:
    """Imports the operators and readers of the checkout, which are plug-ins that no other module imports."""
    for plugin in (*OPERATOR.plugins(), *READER.plugins()):
        getattr(plugin.load(), "reader", object)()  # the module of a format imports the module of its reader
