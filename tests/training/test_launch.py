"""What is decided before ranks start, and the one rank that needs no Spark."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import horovod.spark
import pytest
import torch
import yaml
from pyspark.sql import SparkSession

from conf.errors import ConfigError, InfrastructureError
from conf.load import load_config
from conf.train_types import Elastic, Train
from storage.dataset import read_dataset
from storage.paths import LakePaths
from tests.training.feature_rows import segment_rows
from tests.training.feature_tables import make_config, publish_all
from training.launch import __main__ as alone
from training.launch import rank_main, ranks
from training.loop.training_plan import TrainPlan, make_plan
from training.progress import RankOutcome
from training.registry.model_json import read_description

pytestmark = pytest.mark.processes

RUN_DATE = "2026-01-04"
MODEL = {"architecture": "dlrm", "embedding_dim": 8, "bottom_mlp": [8, 8], "top_mlp": [16]}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a configuration whose lake holds a small dataset."""
    folder = tmp_path_factory.mktemp("launch")
    lake = LakePaths(str(folder / "lake"))
    spec, train = segment_rows(2_000, 1)
    days = {
        "validation": {"2026-01-03": segment_rows(500, 2)[1]},
        "test": {RUN_DATE: segment_rows(500, 3)[1]},
    }
    publish_all(lake, RUN_DATE, spec, {"train": {"2026-01-02": train}, **days})
    section = {"global_batch_size": 64, "device": "cpu", "num_ranks": 2}
    values = make_config(lake, model=MODEL, train=section).model_dump(mode="json", exclude_unset=True)
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """The command replaces the handlers of the root logger."""
    before = logging.root.handlers[:]
    yield
    logging.root.handlers[:] = before


def run_alone(config: Path, *overrides: str, run_date: str = RUN_DATE) -> int:
    sets = [word for override in overrides for word in ("--set", override)]
    return alone.main(["--config", str(config), "--run-date", run_date, *sets])


@pytest.fixture(scope="module")
def process(config: Path) -> subprocess.CompletedProcess[str]:
    """A training on the CPU in a process of its own, which prints the modules it imported last.

    OMP_DISPLAY_ENV=VERBOSE makes libgomp itself print the limits that it uses.
    """
    words = ["--config", str(config), "--run-date", RUN_DATE, "--set", "train.precision=bf16"]
    code = (
        "import sys; from training.launch.__main__ import main; "
        f"ended = main({words}); print(*sys.modules); sys.exit(ended)"
    )
    hidden = {"GOMP_SPINCOUNT", "TRITON_INTERPRET"}
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env["OMP_DISPLAY_ENV"] = "VERBOSE"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.mark.parametrize("module", ["torch._dynamo", "triton", "horovod", "pyspark"])
def test_a_training_on_one_cpu_does_not_import_what_others_need(
    process: subprocess.CompletedProcess[str], module: str
) -> None:
    """Torch's compiler and Triton take seconds of a core, Horovod and pyspark half a second."""
    imported = process.stdout.splitlines()[-1].split()
    assert "torch" in imported
    assert module not in imported


def test_threads_of_torch_that_wait_do_not_keep_a_core_busy(
    process: subprocess.CompletedProcess[str],
) -> None:
    """Our packages set the limit before OpenMP starts."""
    [line] = {line for line in process.stderr.splitlines() if "GOMP_SPINCOUNT" in line}
    assert line.split("'")[1] == "1000"


def test_one_rank_trains_without_spark(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_alone(config) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    description = read_description(summary["output"])
    assert summary["metrics"] == description["metrics"]
    assert (summary["num_ranks"], summary["version"]) == (1, description["version"])
    assert (
        run_alone(config, "train.num_ranks=4", "train.elastic.min_ranks=1") == 0
    )  # the same version: it is there
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again == summary


def test_one_rank_ends_with_the_exit_codes_of_the_jobs(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_alone(config, "train.epochs=0") == 2
    assert run_alone(config, run_date="tomorrow") == 2
    assert run_alone(config, run_date="2026-02-01") == 3

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(alone, "train_in_process", full)
    assert run_alone(config, "train.seed=1") == 4
    with pytest.raises(SystemExit) as ended:
        alone.main([])
    assert ended.value.code == 2


@dataclass
class FakeContext:
    master: str


class FakeSpark:
    """As much of a session as the questions about slots ask for."""

    def __init__(self, master: str, **settings: str) -> None:
        self.sparkContext = FakeContext(master)
        self.conf = settings


@pytest.mark.parametrize(
    "master, failures, message",
    [
        (
            "local[2]",
            "4",
            r"train.elastic: Spark \(local\[2\]\) ends the job when a task fails once",
        ),
        ("local[2,1]", "4", r"local\[2,4\]"),
        ("local", "4", r"local\[2,4\]"),
        ("spark://head:7077", "1", "spark.task.maxFailures"),
    ],
)
def test_elastic_wants_a_spark_that_runs_tasks_again(
    monkeypatch: pytest.MonkeyPatch, master: str, failures: str, message: str
) -> None:
    monkeypatch.setattr(ranks, "_slots", lambda _: 8)
    spark: Any = FakeSpark(master, **{"spark.task.maxFailures": failures})
    assert ranks.ranks_to_start(spark, Train(num_ranks=2)) == 2
    with pytest.raises(ConfigError, match=message):
        ranks.ranks_to_start(spark, Train(num_ranks=2, elastic=Elastic()))


@pytest.mark.parametrize(
    "master, device, gpus, slots_of_spark, num_shards, expected",
    [
        ("local[2]", "auto", 0, 2, 16, 1),
        ("local[8]", "auto", 4, 8, 16, 4),
        ("local[8]", "cpu", 4, 8, 16, 1),
        ("local[8]", "auto", 3, 8, 16, 2),  # 3 does not divide 16
        ("spark://head:7077", "auto", 0, 8, 16, 8),
        ("spark://head:7077", "auto", 0, 40, 16, 16),
        ("yarn", "auto", 0, 6, 15, 5),
    ],
)
def test_auto_is_one_rank_here_and_one_for_each_task_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
    master: str,
    device: Any,
    gpus: int,
    slots_of_spark: int,
    num_shards: int,
    expected: int,
) -> None:
    monkeypatch.setattr(ranks, "_slots", lambda _: slots_of_spark)
    monkeypatch.setattr(ranks, "_wait_for_executors", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    spark: Any = FakeSpark(master)
    train = Train(num_shards=num_shards, global_batch_size=num_shards * 8, device=device)
    assert ranks.ranks_to_start(spark, train) == expected


def test_auto_of_an_elastic_training_uses_all_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_slots", lambda _: 4)
    spark: Any = FakeSpark("local[4,4]")
    assert ranks.ranks_to_start(spark, Train(elastic=Elastic())) == 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_training_in_the_driver_and_a_rerun_resumes(
    spark: SparkSession, config: Path, tmp_path: Path, number: signal.Signals
) -> None:
    plan = plan_of(config)
    settings = {"num_ranks": "auto", "checkpoint_every_steps": 5, "epochs": 4, "log_every_steps": 1}
    plan = replace(
        plan,
        train=plan.train.model_copy(update=settings),
        model_path=str(tmp_path / "model"),
        checkpoint_path=str(tmp_path / "checkpoints"),
    )
    steps: list[int] = []

    def show(entry: Any) -> None:
        steps.append(entry["step"])
        if len(steps) == 12:
            signal.raise_signal(number)

    handler, threads = signal.getsignal(number), torch.get_num_threads()
    with pytest.raises(InfrastructureError, match=f"{number.name} ended the training"):
        ranks.train_on_ranks(spark, plan, show)
    assert (signal.getsignal(number), torch.get_num_threads()) == (handler, threads)
    ended = len(steps)
    description = ranks.train_on_ranks(spark, plan, show)
    assert description["num_ranks"] == 1
    assert steps[ended] in (6, 11)  # the step after a checkpoint


@pytest.mark.parametrize("master", ["local[2,4]", "local[*, 3]", "spark://head:7077"])
def test_elastic_starts_with_the_ranks_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    spark: Any = FakeSpark(master)
    train = Train(num_ranks=4, elastic=Elastic(min_ranks=2), start_timeout_s=1)
    for room, expected in [(9, 4), (4, 4), (3, 3), (2, 2)]:
        monkeypatch.setattr(ranks, "_slots", lambda _, room=room: room)
        assert ranks.ranks_to_start(spark, train) == expected
    monkeypatch.setattr(ranks, "_slots", lambda _: 1)
    with pytest.raises(InfrastructureError, match=r"train.elastic.min_ranks=2 is more than the 1 tasks"):
        ranks.ranks_to_start(spark, train)


def test_a_local_master_is_known(spark: SparkSession) -> None:
    assert ranks.is_local(spark)
    cluster: Any = FakeSpark("local-cluster[2,1,1024]")
    assert not ranks.is_local(cluster)


def test_trainings_of_an_application_do_not_interleave(
    spark: SparkSession, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads, one session: while the first trains, the second has not begun."""
    plan = plan_of(config)
    events: list[str] = []
    begun, may_end = threading.Event(), threading.Event()

    def run(*_: object) -> list[RankOutcome]:
        events.append("begins")
        begun.set()
        assert may_end.wait(timeout=60)
        events.append("ends")
        return [RankOutcome(description={})]

    monkeypatch.setattr(ranks, "_run", run)
    threads = [threading.Thread(target=ranks.train_on_ranks, args=(spark, plan)) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert begun.wait(timeout=60)
    assert ranks._ONE_AT_A_TIME.locked()
    may_end.set()
    for thread in threads:
        thread.join(timeout=60)
    assert events == ["begins", "ends", "begins", "ends"]


def test_an_elastic_rank_takes_no_gpu_that_spark_did_not_give(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Horovod sees each elastic rank as a host, so by local rank all would take the first GPU."""
    monkeypatch.setattr(rank_main, "get_available_devices", list)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("training.launch.rank_main.hvd.local_rank", lambda: 0)
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    plan = plan_of(config)
    free = replace(plan, train=plan.train.model_copy(update={"device": "auto"}))
    elastic = replace(free, train=free.train.model_copy(update={"elastic": Elastic()}))
    assert rank_main.device_of_rank(free.train) == torch.device("cuda", 0)
    with pytest.raises(ConfigError, match="Spark assigned no GPU to this rank's task"):
        rank_main.device_of_rank(elastic.train)
    monkeypatch.setattr(rank_main, "get_available_devices", lambda: ["1"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert rank_main.device_of_rank(elastic.train) == torch.device("cuda", 0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert chosen == [torch.device("cuda", 0)] * 2


def test_the_model_of_a_broken_ring_is_freed_before_the_next_one_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python frees objects that refer to each other, such as a model and its hooks, only when it looks for them."""
    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    for with_gpu in (False, True):
        monkeypatch.setattr(torch.cuda, "is_initialized", partial(bool, with_gpu))
        model = torch.nn.Linear(1, 1)
        model.register_forward_hook(partial(print, model))
        freed = weakref.ref(model)
        gc.disable()
        try:
            del model
            assert freed() is not None
            rank_main._Ring().reset()
            assert freed() is None
        finally:
            gc.enable()
        assert emptied == [True] * with_gpu, "torch keeps freed memory of a GPU until it is told"


def plan_of(config: Path) -> TrainPlan:
    loaded = load_config(str(config))
    lake = LakePaths(loaded.lake)
    return make_plan(loaded, lake, read_dataset(lake, RUN_DATE))


def test_ranks_run_the_interpreter_of_sparks_workers(
    spark: SparkSession, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elastic or not; the driver's own may be at a path that executors do not have."""
    plan = plan_of(config)
    elastic = replace(plan, train=plan.train.model_copy(update={"elastic": Elastic(min_ranks=1)}))
    here = "./environment/bin/python"
    monkeypatch.setattr(spark.sparkContext, "pythonExec", here)
    commands = []
    outcome = RankOutcome(description={"version": "v"})

    def run(*_: Any, executable: str | None = None, **__: Any) -> list[RankOutcome]:
        commands.append((executable or "").split()[0])
        return [outcome]

    def run_elastic(*_: Any, **__: Any) -> list[RankOutcome]:
        settings = SimpleNamespace(key=b"", nics=None, verbose=0, prefix_output_with_timestamp=False)
        driver = SimpleNamespace(addresses=dict, get_common_interfaces=list)
        horovod.spark.gloo_run.gloo_run_elastic(settings, driver, {})
        return [outcome]

    monkeypatch.setattr(horovod.spark, "run", run)
    monkeypatch.setattr(horovod.spark, "run_elastic", run_elastic)
    monkeypatch.setattr(ranks, "ranks_to_start", lambda *_: 2)
    monkeypatch.setattr(
        horovod.spark.gloo_run, "launch_gloo_elastic", lambda command, *_: commands.append(command[0])
    )
    for training in (plan, elastic):
        ranks.train_on_ranks(spark, training)
    assert commands == [here, here]
    assert horovod.spark.gloo_run.sys is sys
