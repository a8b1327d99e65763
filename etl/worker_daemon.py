"""The process that Spark forks its Python workers from (spark.python.daemon.module), with what they need imported before.

Spark's own daemon leaves each worker to import numpy, pyarrow and our packages after its fork, and pyspark itself from an archive of
sources, which Python compiles anew each time: one and a half seconds of a core for every worker. After every task a
worker collects garbage through all those modules: 50 ms. Here they are imported once, from compiled files, and frozen,
so that no collection looks at them again.

Executors must have our packages on their path before a job starts: true of one machine and of packed environments, not of
`--py-files`; a profile names this module where that holds.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from pathlib import Path

# What Python workers of ours run; they bring numpy, pyarrow and pyspark with them. torch is left to the workers that score.
IMPORTED = (
    "pyspark.sql.pandas.serializers",
    "etl.files.encode",
    "etl.files.merge",
    "etl.files.profiles",
    "etl.files.survey",
)


def prefer_compiled(path: list[str]) -> list[str]:
    """sys.path without the archive of pyspark's sources that lies within an installed pyspark: they are the same."""

    def is_own_archive(entry: str) -> bool:
        home = Path(entry).parent.parent.parent  # <site-packages>/pyspark/python/lib/pyspark.zip
        return entry.endswith("pyspark.zip") and home.name == "pyspark" and str(home.parent) in path

    return [entry for entry in path if not is_own_archive(entry)]


def main() -> None:
    sys.path[:] = prefer_compiled(sys.path)
    for module in IMPORTED:
        import_module(module)
    import pyspark.daemon

    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()


if __name__ == "__main__":
    main()
