"""Names of modules that the daemon imports before it forks Python workers, in addition to its own list.

On the driver, spark.tasks puts the names of the modules into an environment variable. The daemon
(spark.worker_daemon) reads this variable.
Spark starts one daemon for each different set of environment variables. This module must not import pyspark,
because the daemon first removes the archive of pyspark from sys.path.
"""

from __future__ import annotations

import os

VARIABLE = "NIGHTRANK_WORKER_IMPORTS"


def requested_imports() -> list[str]:
    """Returns the names of the modules in this process's environment variable."""
    return [name for name in os.environ.get(VARIABLE, "").split(",") if name]
