"""Ends a process without freeing its objects one by one, which takes 0.15 s, and half a second with torch."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from pathlib import Path
from typing import NoReturn

from pyspark import SparkContext

_JOBS = Path(__file__).parent


def end_process(exit_code: int) -> NoReturn:
    """Ends this process at once, after the functions of `atexit`, which delete temporary files.

    As at the end of the interpreter, other threads end first. Otherwise a thread of a pool of processes and
    `atexit` could wait for the same process, and one of them would wait forever.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def end_job(exit_code: int) -> NoReturn:
    """Ends the process of a job.

    Raises:
        SystemExit: this process was not started for a job of this project, or the job has used a JVM,
            whose connections the interpreter must close.
    """
    is_job = Path(sys.argv[0]).resolve().parent == _JOBS
    if is_job and SparkContext._gateway is None:
        end_process(exit_code)
    sys.exit(exit_code)
