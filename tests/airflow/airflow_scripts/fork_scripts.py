"""Runs scripts, each in a fork of this process, which has imported Airflow once: imports take three seconds.

Each line of standard input is the JSON of a request: script, words, environment, folder, output. Standard
output and error of the script go to the file `output`. The answer is a line with the exit code.
"""

import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import airflow.dag_processing.dagbag
import airflow.providers.apache.spark.hooks.spark_submit
import airflow.sdk  # noqa: F401


def run_script(request):
    """Runs a script in this process as Python does, and ends the process."""
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = [request["script"], *request["words"]]
    paths = request["environment"]["PYTHONPATH"].split(os.pathsep)
    sys.path[:0] = [str(Path(request["script"]).parent), *paths]
    code = 0
    try:
        runpy.run_path(request["script"], run_name="__main__")
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what Airflow prints is no answer
for line in sys.stdin:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        run_script(json.loads(line))
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
