"""The process that Spark forks its Python workers from (spark.python.daemon.module), with what they need imported before.

Spark's own daemon leaves each worker to import numpy, pyarrow and our packages after its fork, and pyspark itself from an archive of
sources, which Python compiles anew each time: one and a half seconds of a core for every worker. pyarrow imports pandas at its first
array of Python's values, and pyspark distutils (setuptools in its place) at its first type. After every task a
worker collects garbage through all those modules, and before every task it reads the contents of that archive again, and of
the jar beside it (benchmarks/python_tasks.py). Here modules are imported once, from compiled files, and frozen, so that no collection looks at
them again, and archives are off the path.

Executors must have our packages on their path before a job starts: true of one machine and of packed environments, not of
`--py-files`; a profile names this module where that holds.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from pathlib import Path

from spark.worker_imports import requested_imports

# What Python workers of ours run; they bring numpy, pyarrow and pyspark with them. torch is left to those that score
# (worker_imports.py).
IMPORTED = (
    "pyspark.sql.pandas.serializers",
    "pandas",
    "distutils.version",
    "etl.text.encode_pass",
    "etl.value_counts.merge",
    "etl.value_counts.profiles",
    "etl.text.scan_pass",
)


def without_archives(path: list[str]) -> list[str]:
    """sys.path without the archives of an installed pyspark: its sources, py4j's, and the jar that Spark puts beside them.

    What they hold for Python lies unpacked and compiled in the packages that pyspark is installed with. Spark names its own home
    by its real path, which the path to an environment behind a link is not.
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
    """Before every task a worker lets each importer look at its place again; one of an archive reads its whole table of contents."""
    kept = without_archives(sys.path)
    for entry in set(sys.path) - set(kept):
        sys.path_importer_cache.pop(entry, None)
    sys.path[:] = kept


def main() -> None:
    forget_archives()
    for module in (*IMPORTED, *requested_imports()):
        import_module(module)
    import pyspark.daemon

    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()


if __name__ == "__main__":
    main()
