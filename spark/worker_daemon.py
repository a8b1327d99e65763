"""A daemon (spark.python.daemon.module) that imports the modules of Python workers before it forks them.

With Spark's own daemon, each worker imports numpy, pyarrow and this project's packages after its fork. It
imports pyspark from an archive of source files, which Python compiles again each time. pyarrow imports pandas
when it first converts Python values to an array. pyspark imports distutils (or setuptools in its place) when
it first creates a type. After every task, the garbage collector examines the objects of all these modules.
Before every task, the worker again reads the tables of contents of this archive and of a jar in the same
folder.

This daemon imports the modules once, from compiled files, before the fork. It freezes their objects, so that
the garbage collector no longer examines them, and removes the archives from sys.path.

If a task fails, Spark closes the connections to the workers of the stage's other tasks. Spark's own daemon
then prints a stack trace for each of these workers. These traces hide the error of the task that failed. This
daemon prints nothing.

Executors must have this project's packages on their path before a job starts. This is the case on one machine
and in packed environments, but not if `--py-files` ships the packages. So a profile for jobs with
`--py-files` must not use this module.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from socket import socket

from conf.plugins import OPERATOR, READER
from conf.process import collect_rarely

# Modules that the Python workers use. These modules import numpy, pyarrow and pyspark. Workers that score
# also import torch (`requested_imports`).
IMPORTED = (
    "pyspark.sql.pandas.serializers",
    "pandas",
    "distutils.version",
    "etl.text.encode_pass",
    "etl.statistics.count_statistics",
    "etl.text.scan_pass",
)

# The environment variable with the names of modules that a daemon imports in addition to IMPORTED, before it
# forks Python workers. On the driver, spark.tasks sets the variable, and the daemon reads it. Spark starts
# one daemon for each different set of environment variables. The functions below must not import pyspark,
# because the daemon first removes the archive of pyspark from sys.path.

VARIABLE = "NIGHTRANK_WORKER_IMPORTS"


def requested_imports() -> list[str]:
    """Returns the modules that this daemon must import, which the driver names in an environment variable."""
    return [name for name in os.environ.get(VARIABLE, "").split(",") if name]


def import_plugins() -> None:
    """Imports the operators and readers of the checkout, which are plug-ins that no other module imports."""
    for plugin in (*OPERATOR.plugins(), *READER.plugins()):
        getattr(plugin.load(), "reader", object)()  # the module of a format imports the module of its reader


def without_archives(path: list[str]) -> list[str]:
    """Returns sys.path without the archives of an installed pyspark.

    These archives are the sources of pyspark, the sources of py4j, and a jar. The installed packages contain
    the same modules, unpacked and compiled. Symbolic links are resolved before paths are compared, because
    Spark puts the real paths of its archives on sys.path.
    """
    folders = {Path(entry).resolve() for entry in path}

    def is_left_out(entry: str) -> bool:
        archive = Path(entry)
        homes = {"zip": archive.parent.parent.parent, "jar": archive.parent.parent}  # <packages>/pyspark
        home = homes.get(archive.suffix[1:], archive)
        packages = home.parent
        installed = home.name == "pyspark" and packages.resolve() in folders and (packages / "py4j").is_dir()
        return installed and archive.parent in (home / "python/lib", home / "jars")

    return [entry for entry in path if not is_left_out(entry)]


def forget_archives() -> None:
    """Removes archives from sys.path, because Python reads their tables of contents before every task."""
    remaining = without_archives(sys.path)
    for entry in set(sys.path) - set(remaining):
        sys.path_importer_cache.pop(entry, None)
    sys.path[:] = remaining


def ending_quietly(worker: Callable[[socket, bool], int]) -> Callable[[socket, bool], int]:
    """Wraps Spark's function that runs a task in a worker. A closed connection then ends the worker silently.

    If Spark has closed the connection, no process reads the result of the task. `worker` itself sends the
    errors of the task to Spark.
    """

    def run_task(connection: socket, authenticated: bool) -> int:
        try:
            return worker(connection, authenticated)
        except (ConnectionError, EOFError):
            return 1

    return run_task


def main() -> None:
    """Imports the modules that workers run, then runs Spark's daemon."""
    forget_archives()
    collect_rarely()
    for module in (*IMPORTED, *requested_imports()):
        import_module(module)
    import_plugins()
    import pyspark.daemon

    pyspark.daemon.worker = ending_quietly(pyspark.daemon.worker)
    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()


if __name__ == "__main__":
    main()
