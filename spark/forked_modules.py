"""The server process of spark.workers imports this module before it forks workers.

This module imports the modules that the tasks of build_features run. Then it makes the garbage collector
ignore their objects, so that a worker does not copy the memory that it shares with the server.

Other code of the same process may use the server too, so this module must not change global settings of
Python.
"""

from __future__ import annotations

import gc
from importlib import import_module

from conf.process import collect_rarely
from spark.worker_daemon import import_plugins

_before = gc.get_threshold()
collect_rarely()
for _module in (
    "etl.latest.latest_rows",
    "etl.text.encode_pass",
    "etl.text.scan_pass",
    "etl.statistics.count_statistics",
):
    import_module(_module)
import_plugins()
gc.collect()
gc.freeze()
gc.set_threshold(*_before)
