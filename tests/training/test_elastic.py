"""Killed ranks, killed drivers, and a standalone cluster of two workers; every driver is a process."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from conf.train_types import Elastic
from storage.paths import LakePaths
from tests.processes import wait_until_gone
from tests.standalone import GPUS, Cluster
from tests.training.drivers import running_driver
from tests.training.feature_rows import segment_rows
from tests.training.feature_tables import make_config, publish_all
from training.data.sharding import DataFile
from training.loop.run import train_in_process
from training.loop.training_plan import TrainPlan, make_plan

pytestmark = [pytest.mark.timeout(1200), pytest.mark.processes]

RUN_DATE = "2026-01-04"
MODEL = {"architecture": "dlrm", "embedding_dim": 8, "bottom_mlp": [8, 8], "top_mlp": [16]}
EVERY = 20
LOCAL = {"spark.master": "local[2,4]"}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> TrainPlan:
    lake = LakePaths(str(tmp_path_factory.mktemp("lake")))
    spec, train = segment_rows(30_000, 1)
    held_out = {
        split: {dt: segment_rows(8_000, seed)[1]}
        for split, dt, seed in [("validation", "2026-01-03", 2), ("test", RUN_DATE, 3)]
    }
    dataset = publish_all(lake, RUN_DATE, spec, {"train": {"2026-01-02": train}, **held_out}, file_rows=4_096)
    section = {
        "global_batch_size": 512,
        "log_every_steps": 1,
        "checkpoint_every_steps": EVERY,
        "device": "cpu",
        "epochs": 3,
        "start_timeout_s": 40,  # ranks that wait for one that has left wait as long as this
    }
    return make_plan(make_config(lake, model=MODEL, train=section), lake, dataset)


@pytest.fixture(scope="module")
def undisturbed(plan: TrainPlan, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same training on one rank, that nobody kills."""
    torch.set_num_threads(1)
    return train_in_process(variant(plan, tmp_path_factory.mktemp("undisturbed"), 1))


def variant(
    plan: TrainPlan, folder: Path, ranks: int, min_ranks: int | None = None, **other: Any
) -> TrainPlan:
    """The plan for so many ranks, elastic where `min_ranks` is given, with a model's folder of its own."""
    folder.mkdir(exist_ok=True)
    elastic = Elastic(min_ranks=min_ranks) if min_ranks else None
    train = plan.train.model_copy(update={"num_ranks": ranks, "elastic": elastic, **other})
    paths = {"model_path": str(folder / "model"), "checkpoint_path": str(folder / "checkpoints")}
    return replace(plan, train=train, **paths)


def assert_equal(ended: dict[str, Any], undisturbed: dict[str, Any]) -> None:
    assert "error" not in ended, ended
    for split in ("validation", "test"):
        expected = undisturbed["metrics"][split]["auc"]
        assert expected > 0.75
        assert ended["metrics"][split]["auc"] == pytest.approx(expected, abs=2e-3)
        assert ended["metrics"][split]["rows"] == 8_000
    assert ended["steps"] == undisturbed["steps"]
    assert [entry["step"] for entry in ended["history"]] == [
        entry["step"] for entry in undisturbed["history"]
    ]


def assert_lost_only_since_the_checkpoint(steps: list[int], last: int) -> None:
    """Every ring starts from a complete checkpoint; one more may have been in progress when a rank was lost.

    Where rank 0 was lost, with lines of its last steps, no step may be seen twice.
    """
    assert (steps[0], steps[-1]) == (1, last)
    for before, after in pairwise(steps):
        if after == before + 1:
            continue
        assert after % EVERY == 1
        assert after > EVERY
        # The lines of the steps around the kill may be lost with rank 0, so `before` is a lower bound.
        assert before - after < 2 * EVERY


def test_a_killed_rank_is_replaced(plan: TrainPlan, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    survives = variant(plan, tmp_path / "a", 2, min_ranks=1)
    with running_driver(tmp_path, {"survives": survives}, LOCAL) as driver:
        driver.kill_at_checkpoint(survives, rank=1)
        ended = driver.ended("survives")
    assert_equal(ended, undisturbed)
    assert "a new ring is formed" in driver.log
    assert_lost_only_since_the_checkpoint(driver.steps("survives"), undisturbed["steps"])
    assert set(driver.steps("survives")) == set(range(1, undisturbed["steps"] + 1))


def test_an_error_of_a_rank_keeps_its_type_where_ranks_may_come_and_go(
    plan: TrainPlan, tmp_path: Path
) -> None:
    *files, last = plan.train_files
    wrong = (*files, DataFile(last.path, last.rows + 1))
    fails = replace(variant(plan, tmp_path / "b", 2, min_ranks=1), train_files=wrong)
    with running_driver(tmp_path, {"fails": fails}, LOCAL) as driver:
        failed = driver.ended("fails")
    assert (failed["error"], failed["exit_code"]) == ("DataError", 3)
    assert f"{last.path} has" in failed["message"]


@dataclass
class OnCluster:
    """Three trainings by one driver: `four` undisturbed, `survives` loses rank 0, `long` loses its driver.

    Attributes:
        ended, steps: by name, how it ended and the steps it reported.
        rank_lines: (executor's folder, line) of what its ranks logged of themselves, in order.
        formed_anew: whether executors logged that the ring did.
    """

    ended: dict[str, dict[str, Any]]
    steps: dict[str, list[int]]
    rank_lines: list[tuple[str, str]]
    formed_anew: bool


@pytest.fixture(scope="module")
def on_cluster(plan: TrainPlan, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> OnCluster:
    """Also that SIGKILL to the driver ends its ranks, on executors of other processes."""
    folder = tmp_path_factory.mktemp("on-cluster")
    four = variant(plan, folder / "four", 4, epochs=1)
    survives = variant(plan, folder / "survives", 4, min_ranks=2)
    long = variant(plan, folder / "long", 2, epochs=60)
    plans = {"four": four, "survives": survives, "long": long}
    with running_driver(folder, plans, cluster.with_gpus, cluster.workers) as driver:
        ended = {"four": driver.ended("four")}
        rank_lines = cluster.log_lines(" of 4 on ")
        driver.kill_at_checkpoint(survives, rank=0)
        ended["survives"] = driver.ended("survives")
        formed_anew = bool(cluster.log_lines("a new ring is formed"))
        driver.wait_for_checkpoint(long)
        assert len(driver.ranks()) == 2
        left = driver.processes()
        driver.process.kill()
        wait_until_gone(left)
    assert not (folder / "long/model").exists()
    return OnCluster(ended, {name: driver.steps(name) for name in ended}, rank_lines, formed_anew)


def test_a_cluster_of_two_workers_is_one_ring(plan: TrainPlan, on_cluster: OnCluster, tmp_path: Path) -> None:
    """Four ranks, two on each worker; each sees the GPU that Spark gave its task, and no other."""
    alone = train_in_process(variant(plan, tmp_path / "alone", 1, epochs=1))
    ended = on_cluster.ended["four"]
    assert_equal(ended, alone)
    assert ended["num_ranks"] == 4
    assert on_cluster.steps["four"] == list(range(1, ended["steps"] + 1))
    by_executor: dict[str, list[str]] = {}
    for executor, line in on_cluster.rank_lines:
        by_executor.setdefault(executor, []).append(line)
    # The next training may have begun: the first of an executor's lines are of this one.
    rank_lines = {executor: lines[: len(GPUS)] for executor, lines in by_executor.items()}
    assert len(rank_lines) == 2
    ranks = [
        line.split("nightrank.rank: ")[1].split(" on ")[0] for lines in rank_lines.values() for line in lines
    ]
    assert sorted(ranks) == [f"rank {rank} of 4" for rank in range(4)]
    for lines in rank_lines.values():
        assert sorted(line.rpartition("visible GPUs: ")[2] for line in lines) == list(GPUS)


def test_a_cluster_replaces_rank_0(
    plan: TrainPlan, undisturbed: dict[str, Any], on_cluster: OnCluster
) -> None:
    """Progress continues from the next rank 0; three ranks train shards that they cannot share equally."""
    assert_equal(on_cluster.ended["survives"], undisturbed)
    assert_lost_only_since_the_checkpoint(on_cluster.steps["survives"], undisturbed["steps"])
    assert on_cluster.formed_anew


def test_a_lost_rank_and_a_signal_end_with_what_to_do(plan: TrainPlan, tmp_path: Path) -> None:
    """Not elastic: a killed rank and Ctrl-C end the training, both are worth a retry, and nothing is left."""
    lost, stopped = (variant(plan, tmp_path / name, 2, epochs=60) for name in ("lost", "stopped"))
    with running_driver(tmp_path, {"lost": lost, "stopped": stopped}, LOCAL) as driver:
        driver.wait_for_checkpoint(lost)
        ranks = driver.ranks()
        ranks[1].kill()
        first = driver.ended("lost")
        wait_until_gone([process.pid for process in ranks.values()])
        driver.wait_for_checkpoint(stopped)
        left = driver.processes()
        driver.process.send_signal(signal.SIGINT)
        second = driver.ended("stopped")
        wait_until_gone(left)
    assert (first["error"], first["exit_code"]) == ("InfrastructureError", 4)
    assert "training on 2 ranks broke off" in first["message"]
    assert "Rerun to resume" in first["message"]
    assert (second["error"], second["exit_code"]) == ("InfrastructureError", 4)
    assert "SIGINT ended the training" in second["message"]
