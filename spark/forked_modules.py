"""The server process of spark.local_workers imports this module before it forks workers.

It imports the modules that the tasks of build_features run. The garbage collector then ignores their objects,
so it does not copy the memory that workers share with the server.

The tasks do not use pandas. pyarrow would import it when it first converts Python values, which takes a
quarter of a second, so the server hides it. pyarrow then works without it.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from importlib.abc import MetaPathFinder


class _WithoutPandas(MetaPathFinder):
    """An import finder that finds no pandas."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("the tasks of build_features do not use pandas", name=fullname)


sys.meta_path.insert(0, _WithoutPandas())
for _module in (
    "etl.latest.rows_in_files",
    "etl.text.encode_pass",
    "etl.text.scan_pass",
    "etl.value_counts.fit_statistics",
    "etl.value_counts.report_statistics",
):
    import_module(_module)
gc.collect()
gc.freeze()
