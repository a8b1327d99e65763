"""The lake, the Airflow and the cluster that the tests of this folder share."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from airflow_dags.overrides import DEFAULT_KEYS
from conf.load import load_config
from jobs.generate_clicks import run as generate_clicks
from local_airflow.home import Home, free_port, local_variable
from storage.run_context import RunContext
from tests.cluster.chain import write_profile
from tests.standalone import Cluster

ROOT = Path(__file__).parents[2]
CONFIG = "conf/datasets/generated.yaml"
SPARK = "spark_default"  # the Airflow connection with the master
LOCAL_MASTER = "local[2]"
PROFILE = "cluster.conf"  # the Spark profile, in the folder of the Airflow
FIRST = "2026-01-01"
TRAINED, BACKFILLED, BAD = (
    "2026-01-04",
    ("2026-01-05", "2026-01-06", "2026-01-07"),
    "2026-01-08",
)
SMALL_LOG = [
    "generate.days=8",
    "generate.rows_per_day=3000",
    "generate.users=200",
    "generate.items=60",
    "generate.files_per_day=1",
    "split.train_days=2",
    "split.min_train_days=2",
    "output.row_group_rows=1024",
    "train.global_batch_size=512",
    "train.epochs=1",
    "train.baselines=[]",
    "train.refit=false",
    "gate.margin=0.1",
    "gate.lists_margin=0.1",
]

# Takes the place of spark-submit, and of the interpreter beside it, which starts jobs with a local master. While <folder>/<job> has lines, a start of that job takes the first line as
# its end: an exit code, or `kill`. Otherwise the real program runs.
_PROGRAM = """#!/bin/bash
for word in "$@"; do case "$word" in */jobs/*.py) job=$(basename "$word" .py);; esac; done
ends={folder}/$job
if [ -n "$job" ] && [ -s "$ends" ]; then
    end=$(head -1 "$ends"); sed -i 1d "$ends"
    echo "planned end: $end"
    [ "$end" = kill ] && kill -9 $$
    exit "$end"
fi
exec {real} "$@"
"""


@dataclass
class Alerts:
    """What was posted to the address of nightrank_alerts, in order."""

    url: str = ""
    received: list[dict[str, Any]] = field(default_factory=list)

    def of(self, **wanted: Any) -> list[dict[str, Any]]:
        """The alerts that have these values."""
        return [alert for alert in self.received if wanted.items() <= alert.items()]


@dataclass
class AirflowSetup:
    """The folder of an Airflow and its lake. Jobs run after `use_cluster` and `generate_log`."""

    folder: Path
    home: Home
    _cluster: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        """The cluster on which the jobs run."""
        assert self._cluster is not None
        return self._cluster

    @property
    def lake(self) -> Path:
        """The folder of the lake."""
        return self.folder / "lake"

    @property
    def delivered(self) -> Path:
        """The folder to which lists are delivered."""
        return self.folder / "delivered"

    @property
    def planned_ends(self) -> Path:
        """The folder of files that say how the next starts of a job end."""
        return self.folder / "planned_ends"

    def without_spark(self) -> Home:
        """The Airflow without the connection to Spark, which a test then makes in Airflow's database."""
        others = {name: value for name, value in self.home.connections.items() if name != SPARK}
        return replace(self.home, connections=others)

    def use_cluster(self, cluster: Cluster) -> None:
        """Makes jobs run on this cluster: changes the Spark profile and the Airflow connection."""
        # One executor with all cores, because each takes seconds to start. tests/cluster has jobs with several.
        write_profile(self.folder / PROFILE, cluster, sys.executable, {"spark.executor.cores": "2"})
        master = {"conn_type": "spark", "host": cluster.master}
        self.home = replace(self.home, connections={**self.home.connections, SPARK: master})
        self._cluster = cluster

    def plan_ends(self, job: str, *ends: str) -> None:
        """Makes the next starts of a job end with these exit codes, or `kill`."""
        (self.planned_ends / job).write_text("".join(f"{end}\n" for end in ends))


def prepare_airflow(folder: Path, alerts: str) -> AirflowSetup:
    """Prepares the folder of an Airflow. Starts nothing."""
    (folder / "planned_ends").mkdir()
    variable = local_variable(CONFIG, [*SMALL_LOG, f"lake={folder}/lake"])
    (folder / PROFILE).write_text("spark.sql.shuffle.partitions 4\n")
    variable["profiles"] = {"default": str(folder / PROFILE)}
    variable["param_keys"] = [*DEFAULT_KEYS, "candidates.sources", "deliver.sinks"]  # those of one day only
    variable["environment"]["SPARK_LOCAL_IP"] = "127.0.0.1"
    for name in ("spark-submit", "python"):
        real = Path(variable["spark_submit"]).with_name(name)
        (folder / name).write_text(_PROGRAM.format(folder=folder / "planned_ends", real=real))
        (folder / name).chmod(0o755)
    connections = {
        SPARK: {"conn_type": "spark", "host": "spark://127.0.0.1:7077"},  # nobody listens there
        "nightrank_alerts": {"conn_type": "http", "host": alerts},
    }
    options = {
        "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",  # nobody edits these DAGs
        "AIRFLOW_VAR_LATE_RUN": str(folder / "late_run_may_end"),
        "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",  # no scheduled run starts during the tests
    }
    home = Home(
        folder / "airflow",
        free_port(),
        {**variable, "spark_submit": str(folder / "spark-submit")},
        connections,
        options=options,
    )
    home.prepare()
    return AirflowSetup(folder, home)


def generate_log(spark: SparkSession, setup: AirflowSetup) -> None:
    """Generates the raw log of the lake."""
    generate = load_config(str(ROOT / CONFIG), setup.home.variable["set"])
    generate_clicks(RunContext("generate_clicks", generate, FIRST, _spark=spark))


@contextmanager
def alert_server() -> Iterator[Alerts]:
    """A web server on loopback that keeps what is posted to it."""
    alerts = Alerts()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            alerts.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        alerts.url = f"http://127.0.0.1:{server.server_address[1]}/alerts"
        yield alerts
        server.shutdown()
