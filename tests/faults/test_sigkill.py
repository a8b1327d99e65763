"""SIGKILL at ten seeded instants of build_features, train_model and score_daily in one lake; then reruns.

Two lakes over one raw log: one is left in peace, the other collects the debris of every kill. At any time
readers see in it the old partition or the new; at the end it is the same as the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from conf.load import load_config
from etl.ops.tables import RARE, VOCABULARY, workflow_table
from jobs.build_candidates import run as build_candidates
from jobs.build_features import run as build_features
from jobs.evaluate_model import run as evaluate_model
from jobs.score_daily import run as score_daily
from jobs.score_rows import run as score_rows
from jobs.train_model import run as train_model
from storage.dataset import Dataset, publish_dataset, read_dataset
from storage.job_summary import JobSummary
from storage.paths import LakePaths
from storage.publish import publish, read_published
from storage.run_context import RunContext
from tests.cluster.equal import require_equal_lists
from tests.etl.cases import read_rows
from tests.faults.job_processes import (
    DAYS,
    RUN_DATE,
    Ended,
    profile_with_retries,
    published,
    run_job,
    write_config,
    write_log,
)
from training.registry.model_json import read_description
from training.registry.versions import challenger_of, model_path

pytestmark = pytest.mark.timeout(900)

# Shares of the undisturbed duration, each moved by up to 0.05 either way. They fall, as a rerun finds ever
# more done and is over sooner; the first quarter is Spark's start.
INSTANTS = {
    "build_features": (0.7, 0.55, 0.45, 0.35),
    "train_model": (0.8, 0.6, 0.45),
    "score_daily": (0.85, 0.65, 0.5),
}


# A job that was killed, at last left in peace, and the stages up to the next one; these need no process of
# their own.
RERUN: dict[str, tuple[Callable[[RunContext], JobSummary], ...]] = {
    "build_features": (build_features,),
    "train_model": (train_model, evaluate_model, build_candidates),
    "score_daily": (score_daily,),
}


@dataclass
class Lakes:
    """`peace` was never disturbed; `kills` was. `old` is the former content of `kills`, by partition."""

    peace: Path
    kills: Path
    old: dict[str, str]
    ended: list[Ended]


def _in_process(spark: SparkSession, body: Callable[[RunContext], JobSummary], config: Path) -> None:
    job = body.__module__.rpartition(".")[2]
    body(RunContext(job, load_config(str(config)), RUN_DATE, _spark=spark))


def _publish_old(spark: SparkSession, lake: LakePaths) -> None:
    """What readers had before: partitions that the killed jobs are about to replace."""
    rows = spark.range(30).select(F.col("id").alias("row_id"))
    for partition in (lake.quarantine.partition(DAYS[1]), lake.recommendations.partition(RUN_DATE)):
        publish(rows, partition, inputs={"made": "before"}, row_group_rows=100, expected_rows=30)
    publish_dataset(lake, Dataset(RUN_DATE, "an older workflow", {"train": ()}, "fit"), "before")


@pytest.fixture(scope="module")
def lakes(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakes:
    folder = tmp_path_factory.mktemp("kills")
    write_log(folder / "raw")
    peace, kills = (write_config(folder, name) for name in ("peace", "kills"))
    seconds = {}
    for job in INSTANTS:
        ended = run_job(job, peace)
        assert ended.exit_code == 0, ended.log.read_text()[-3000:]
        seconds[job] = ended.seconds
        for body in RERUN[job][1:]:
            _in_process(spark, body, peace)
    new = published(folder / "peace")

    _publish_old(spark, LakePaths(str(folder / "kills")))
    old = published(folder / "kills")
    draw, runs = random.Random(2026), []
    for job, shares in INSTANTS.items():
        for share in shares:
            instant = seconds[job] * (share + draw.uniform(-0.05, 0.05))
            while True:
                runs.append(run_job(job, kills, instant))
                for name, digest in published(folder / "kills").items():
                    assert digest in (old.get(name), new.get(name)), (
                        f"{name} after {job} was killed at {instant:.1f} s"
                    )
                if runs[-1].killed:
                    break
                instant = 0.6 * runs[-1].seconds  # it found more done than foreseen and was over sooner
        for body in RERUN[job]:
            _in_process(spark, body, kills)
    return Lakes(folder / "peace", folder / "kills", old, runs)


def test_the_jobs_really_were_killed(lakes: Lakes) -> None:
    """A run that was over before its instant ended well, and was run again to be killed sooner."""
    assert sum(job.killed for job in lakes.ended) == 10
    assert all(job.killed or job.exit_code == 0 for job in lakes.ended)


def test_what_lay_there_before_was_seen_until_it_was_replaced(lakes: Lakes) -> None:
    now = published(lakes.kills)
    assert len(lakes.old) == 3
    assert all(now[name] != digest for name, digest in lakes.old.items())


def test_both_lakes_publish_the_same(lakes: Lakes) -> None:
    assert published(lakes.kills) == published(lakes.peace)
    datasets = [read_dataset(LakePaths(str(path)), RUN_DATE) for path in (lakes.peace, lakes.kills)]
    assert datasets[0] == datasets[1]
    assert datasets[0].digest == datasets[1].digest


def test_tables_hold_the_same_rows(lakes: Lakes) -> None:
    peace, kills = LakePaths(str(lakes.peace)), LakePaths(str(lakes.kills))
    version = read_dataset(peace, RUN_DATE).workflow_version
    partitions = [
        *((lake.features(version).partition(day) for lake in (peace, kills)) for day in DAYS),
        *((lake.quarantine.partition(day) for lake in (peace, kills)) for day in DAYS),
        *((workflow_table(lake, version, name) for lake in (peace, kills)) for name in (VOCABULARY, RARE)),
        (lake.users(version).partition(RUN_DATE) for lake in (peace, kills)),
        (lake.items(version).partition(RUN_DATE) for lake in (peace, kills)),
    ]
    for pair in partitions:
        first, second = (read_rows(partition) for partition in pair)
        order = [name for name in ("row_id", "column", "value", "user_key", "item_key") if name in first]
        first, second = (rows.sort_values(order, ignore_index=True) for rows in (first, second))
        pd.testing.assert_frame_equal(first, second, check_exact=True)


def test_models_measure_the_same(lakes: Lakes) -> None:
    metrics = []
    for path in (lakes.peace, lakes.kills):
        lake = LakePaths(str(path))
        version = challenger_of(lake, "tiny", RUN_DATE)
        metrics.append((version, read_description(model_path(lake, "tiny", version))["metrics"]))
    assert metrics[0][0] == metrics[1][0]
    for split in ("validation", "test"):
        for name in ("auc", "log_loss", "normalized_entropy"):
            assert metrics[0][1][split][name] == pytest.approx(metrics[1][1][split][name], abs=2e-3)


def test_lists_are_the_same_but_for_scores_that_are_close(spark: SparkSession, lakes: Lakes) -> None:
    require_equal_lists(*(_lists(spark, path) for path in (lakes.peace, lakes.kills)))


@pytest.mark.parametrize("job", ["score_daily", "score_rows"])
def test_a_worker_killed_in_the_middle_changes_nothing(spark: SparkSession, lakes: Lakes, job: str) -> None:
    config, lake = lakes.kills.parent / "kills.yaml", LakePaths(str(lakes.kills))
    table = lake.recommendations if job == "score_daily" else lake.scores
    if job == "score_rows":
        _in_process(spark, score_rows, config)
    before = read_rows(table.partition(RUN_DATE))
    _run_until_a_worker_is_killed_at_work(job, config)
    after = read_rows(table.partition(RUN_DATE))
    if job == "score_daily":
        order = ["user_id", "position"]
        require_equal_lists(*(rows.sort_values(order, ignore_index=True) for rows in (before, after)))
    else:
        first, second = (
            rows.sort_values(["features_dt", "row_id"], ignore_index=True) for rows in (before, after)
        )
        pd.testing.assert_frame_equal(first, second, check_exact=False, rtol=0, atol=1e-5)


def _run_until_a_worker_is_killed_at_work(job: str, config: Path) -> None:
    """Runs the job with a worker killed, again while the kill came before or after the worker's task.

    The words of a task that lost its worker depend on what it was doing with it, so they are not looked at.
    """
    profile = profile_with_retries(config.parent)
    for _ in range(5):
        ended = run_job(job, config, profile=profile, kill_worker=True)
        log = ended.log.read_text()
        assert ended.exit_code == 0, log[-3000:]
        if "Lost task" in log:
            return
    pytest.fail(f"no worker of {job} was killed while it had a task: {log[-3000:]}")


def _lists(spark: SparkSession, lake: Path) -> pd.DataFrame:
    rows = read_published(spark, LakePaths(str(lake)).recommendations.partition(RUN_DATE)).toPandas()
    return rows.sort_values(["user_id", "position"], ignore_index=True)
