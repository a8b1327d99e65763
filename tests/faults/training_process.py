"""A training as a process that can be killed: on Horovod ranks in Spark, or on one rank that kills itself.

python -m tests.faults.training_process <lake> <spark's scratch folder> ranks
python -m tests.faults.training_process <lake> - <step before whose index it dies>
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from conf.errors import NightrankError
from spark.profile import read_properties
from spark.session import build_session
from storage import file_io
from storage.dataset import read_dataset
from storage.paths import LakePaths
from tests.training.feature_rows import segment_rows
from tests.training.feature_tables import make_config, publish_all
from training.launch import train_on_ranks
from training.loop.run import train_in_process
from training.loop.training_plan import TrainPlan, make_plan

RUN_DATE = "2026-01-04"
MODEL = {"architecture": "dlrm", "embedding_dim": 4, "bottom_mlp": [8, 4], "top_mlp": [8]}
EVERY = 40
TRAIN = {
    "global_batch_size": 128,
    "num_shards": 4,
    "epochs": 8,
    "keep": "last",  # so that checkpoints have only the steps that the tests expect
    "num_ranks": 2,
    "checkpoint_every_steps": EVERY,
    "log_every_steps": 1,
    "device": "cpu",
}


def publish(folder: Path) -> LakePaths:
    """A lake with days to train and to measure on: 800 steps."""
    lake = LakePaths(str(folder))
    spec, rows = segment_rows(12_800, 1)
    held_out = {
        "validation": {"2026-01-03": segment_rows(4_000, 2)[1]},
        "test": {RUN_DATE: segment_rows(4_000, 3)[1]},
    }
    publish_all(lake, RUN_DATE, spec, {"train": {"2026-01-02": rows}, **held_out}, file_rows=3_000)
    return lake


def plan_of(lake: LakePaths) -> TrainPlan:
    return make_plan(make_config(lake, model=MODEL, train=TRAIN), lake, read_dataset(lake, RUN_DATE))


def die_before_index(step: int) -> None:
    """Makes this process SIGKILL itself before it writes the index of a step's checkpoint."""
    original = file_io.create_json

    def create_json(path: str, value: Any) -> bool:
        if path.endswith(f"/step-{step:012d}.json"):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(path, value)

    file_io.create_json = create_json


def main(lake: LakePaths, scratch: str, how: str) -> None:
    plan = plan_of(lake)
    if how != "ranks":
        logging.basicConfig(level=logging.INFO)  # ranks do so themselves
        die_before_index(int(how))
        train_in_process(plan)
        return
    settings = read_properties(Path(__file__).parents[2] / "conf/spark/local.conf")
    settings |= {"spark.local.dir": scratch, "spark.sql.warehouse.dir": f"{scratch}/warehouse"}
    spark = build_session("dies", settings)
    try:
        train_on_ranks(spark, plan)
    finally:
        spark.stop()


if __name__ == "__main__":
    try:
        main(LakePaths(sys.argv[1]), sys.argv[2], sys.argv[3])
    except NightrankError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
