"""Prints the command of a job and what PySpark reads from its environment, for each master in the arguments."""

import json
import os
import sys

from airflow_dags.commands import Call, application
from airflow_dags.settings import read_settings
from airflow_dags.submit_runner import hook_for

call = Call("report", "2026-01-04", ("score.k=3",))
commands = {}
for master in sys.argv[1:]:
    os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps({"conn_type": "spark", "host": master})
    settings = read_settings()
    hook = hook_for(call, settings)
    command = hook._build_spark_submit_command(application(call, settings))
    commands[master] = [command, (hook._env or {}).get("PYSPARK_SUBMIT_ARGS")]
print(json.dumps(commands))
