"""A process in which functions of mlflow_mirror run, so that a job does not wait for MLflow's imports.

The program of the process is mlflow_calls.py.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

DONE = b"done\n"
URI = "MLFLOW_TRACKING_URI"
_PROGRAM = (sys.executable, "-m", "training.registry.mlflow_calls")

_process: subprocess.Popen[bytes] | None = None
_lock = threading.Lock()


def start() -> None:
    """Starts the process that calls MLflow, if it is not running.

    The process imports MLflow at once, and ends when the job's process ends.
    """
    global _process
    with _lock:
        if _process is None or _process.poll() is not None:
            _process = subprocess.Popen(_PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def call(function: str, lake: str, arguments: Mapping[str, Any] | None = None) -> bool:
    """Calls a function of mlflow_mirror in the process, and waits until it returns.

    Returns whether the function was called. The function was not called if the process was not running, or if
    it ended during the call.

    Args:
        function: name of the function.
        lake: the path of the lake, the function's first argument.
        arguments: its other arguments by name.
    """
    with _lock:
        if _process is None or _process.stdin is None or _process.stdout is None:
            return False
        try:
            pickle.dump((function, lake, dict(arguments or {}), os.environ.get(URI)), _process.stdin)
            _process.stdin.flush()
        except (BrokenPipeError, ValueError):  # the process has ended
            return False
        return _process.stdout.readline() == DONE
