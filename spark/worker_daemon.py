"""The process that Spark forks Python workers from (spark.python.daemon.module), with their modules imported.

With Spark's daemon each worker imports numpy, pyarrow and our packages after its fork. It imports pyspark
from an archive of sources, which Python compiles anew each time. pyarrow imports pandas at its first array
of Python values, and pyspark imports distutils (setuptools in its place) at its first type. After every
task a worker collects garbage through all those modules. Before every task it reads the contents of the
archive again, and of the jar next to it (benchmarks/python_tasks.py).

Here modules are imported once, from compiled files. They are frozen, so that no garbage collection visits
them again, and archives are removed from the path.

Executors must have our packages on their path before a job starts. This is true of one machine and of packed
environments, but not of `--py-files`. A profile names this module only where it is true.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from pathlib import Path

from spark.worker_imports import requested_imports

# Modules that our Python workers run; they import numpy, pyarrow and pyspark. Workers that score also import
# torch (worker_imports.py).
IMPORTED = (
    "pyspark.sql.pandas.serializers",
    "pandas",
    "distutils.version",
    "etl.text.encode_pass",
    "etl.value_counts.fit_statistics",
    "etl.value_counts.profiles",
    "etl.text.scan_pass",
)


def without_archives(path: list[str]) -> list[str]:
    """sys.path without the archives of an installed pyspark: its sources, those of py4j, and a jar.

    The packages that pyspark is installed with have the same modules, unpacked and compiled. Spark names
    its home by the real path, which differs from the path of an environment behind a symbolic link.
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
    """Removes archives from sys.path, because their importers read all contents before every task."""
    remaining = without_archives(sys.path)
    for entry in set(sys.path) - set(remaining):
        sys.path_importer_cache.pop(entry, None)
    sys.path[:] = remaining


def main() -> None:
    """Imports the modules, then runs Spark's daemon."""
    forget_archives()
    for module in (*IMPORTED, *requested_imports()):
        import_module(module)
    import pyspark.daemon

    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()


if __name__ == "__main__":
    main()
