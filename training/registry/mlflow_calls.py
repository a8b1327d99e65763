"""The program of mlflow_process.py: runs functions of mlflow_mirror that another process requests.

    python -m training.registry.mlflow_calls

Calls are read from standard input as pickles: (name of the function, path of the lake, other arguments by
name, MLFLOW_TRACKING_URI or None). After each call, a line is written to standard output. The program ends
when its standard input ends. This also happens if the job is killed. Warnings go to the job's standard error.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys

from conf.lazy_imports import refuse_pandas
from conf.messages import PrintableFormatter
from conf.process import collect_rarely
from storage.paths import LakePaths
from training.registry import mlflow_mirror
from training.registry.mlflow_process import DONE, URI

_LOG_FORMAT = "%(asctime)s %(name)s: %(message)s"


def main() -> int:
    """Runs the calls that arrive on standard input until it ends, and returns the exit code."""
    collect_rarely()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what MLflow prints goes to the log
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(PrintableFormatter(_LOG_FORMAT, "%H:%M:%S"))
    logging.getLogger("alembic").setLevel(logging.WARNING)
    refuse_pandas()  # MLflow needs pandas only for functions that we do not call
    mlflow_mirror.import_mlflow()
    while True:
        try:
            function, lake, arguments, uri = pickle.load(sys.stdin.buffer)
        except EOFError:
            return 0
        os.environ.pop(URI, None)
        if uri is not None:
            os.environ[URI] = uri
        getattr(mlflow_mirror, function)(LakePaths(lake), **arguments)
        answers.write(DONE)
        answers.flush()


if __name__ == "__main__":
    sys.exit(main())
