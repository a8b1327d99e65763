"""Our job build_features as a contender of the ETL benchmarks.

The module calls the function of the job in a Spark session with the local profile, and writes to a new folder
of tables. The job does work that the peers do not do:

* It assigns a line number to every line, and checks that the line can be parsed. It would quarantine malformed
  lines.
* It computes exact means and standard deviations of the 13 integer columns, and uses them to normalise the
  columns.
* It stores the counts of rare values, from which a later run can extend the vocabularies.
* It distributes rows evenly over files.
* It verifies its files by their statistics, and publishes all tables by manifests.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from benchmarks.contender import START_UP, WORK, Outcome, Task, Timing, run
from conf.load import load_config
from etl.build import build
from spark.session import build_session, read_profile
from storage import file_io
from storage.manifest import data_files
from storage.paths import Lake

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "benchmarks/etl_criteo.yaml"
PROFILE = ROOT / "conf/spark/local.conf"


def build_features(task: Task, timing: Timing) -> Outcome:
    """Runs the job build_features.

    The task has two settings: `data` is the folder of the log, and `overrides` are values for the option
    --set of the job.
    """
    train = sum(day.train for day in task.days)
    overrides = [
        f"data={task.settings['data']}",
        f"lake={task.out}/lake",
        "split.by=day",
        f"split.train_days={train}",
        f"split.validation_days={len(task.days) - train - 1}",
        "split.test_days=1",
        *task.settings["overrides"],
    ]
    config = load_config(str(CONFIG), overrides)
    run_date = max(day.dt for day in task.days)
    with timing.part(START_UP):
        settings = read_profile(PROFILE) | {
            "spark.master": f"local[{task.threads}]",
            "spark.local.dir": task.scratch,
            "spark.sql.warehouse.dir": f"{task.scratch}/warehouse",
        }
        spark = build_session("benchmark etl", settings)
        spark.range(1000).count()
        # Also start the Python workers, because a peer's interpreter is already running.
        spark.range(task.threads).mapInArrow(lambda batches: batches, "id long").count()
    lake = Lake(config.lake)
    with timing.part(WORK):
        built = build(spark, config, lake, run_date, None, timing.part)
    spark.stop()
    version = built.workflow.version
    features = lake.features(version)
    return Outcome(
        files={dt: data_files(features.partition(dt), manifest) for dt, manifest in built.features.items()},
        normalised=_normalised(lake, version),
        facts={"workflow": version, "features": len(built.workflow.spec.features)},
    )


def _normalised(lake: Lake, version: str) -> dict[str, tuple[float, float]]:
    """Returns the mean and standard deviation of each normalised column, as the workflow has stored them.

    The comparison of tables uses these values to undo the normalisation.
    """
    stored = file_io.read_json(f"{lake.workflow(version)}/workflow.json")
    return {
        step["outputs"][0]: (step["state"]["mean"], step["state"]["std"])
        for chain in stored["chains"]
        for step in chain["steps"]
        if step["op"] == "normalize"
    }


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    run(build_features)
