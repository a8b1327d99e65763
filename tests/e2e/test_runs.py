"""Two whole runs on real Horovod ranks, without stubs.

The first run is that of the job nightly, in spark-submit processes. The second has the same stages in the
session of the tests.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conf.load import load_config
from etl.synthetic.impressions import world_of_day
from etl.synthetic.truth import DayTruth
from jobs.build_features import run as build_features
from jobs.chain.steps import RunPlan
from jobs.generate_clicks import run as generate_clicks
from jobs.train_model import run as train_model
from reporting.monitoring.run_record import read_records
from storage.dataset import read_dataset, read_spec, split_partitions
from storage.feature_spec import NUM_RESERVED_IDS
from storage.id_counts import find_id_counts
from storage.job_summary import JobSummary
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths, Partition
from storage.run_context import RunContext
from tests.contract.test_dashboard import facts as facts_of_dashboard
from tests.etl.synthetic.decoded import LABEL, criteo_rows
from training.launch import train_on_ranks
from training.loop.training_plan import make_plan
from training.registry.model_json import read_description
from training.registry.versions import challenger_of, champion_as_of, model_path

ROOT = Path(__file__).parents[2]
CONFIG = "conf/datasets/generated.yaml"
FIRST, SECOND = "2026-01-04", "2026-01-05"
SMALL_LOG = [
    "generate.days=5",
    "generate.rows_per_day=4000",
    "generate.users=300",
    "generate.items=80",
    "generate.files_per_day=1",
    "split.train_days=2",
    "split.min_train_days=2",
    "output.row_group_rows=1024",
    "train.global_batch_size=512",
    "train.epochs=1",
    "train.baselines=[]",
    "train.refit=false",  # tests/training/test_refit.py and tests/faults/test_refit_kills.py cover it
    "gate.margin=0.1",  # of 4,000 test rows no interval is narrower
    "gate.lists_margin=0.1",
]
# The model of the second run is worse than that of the first, by more than the gate accepts.
DESTRUCTIVE = ["train.learning_rate=0.3", "gate.margin=0.003"]


def run_process(*words: str, timeout_s: int = 500) -> dict[str, Any]:
    """Runs a job in a process and returns its job summary; fails with its output if the job fails."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    ended = subprocess.run(
        words,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    closing: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return closing


def run_nightly(run_date: str, overrides: list[str]) -> dict[str, Any]:
    """Runs nightly in a process, with retraining."""
    command = [sys.executable, "jobs/nightly.py", "--config", CONFIG, "--run-date", run_date, "--retrain"]
    return run_process(*command, *settings(overrides))


def run_stage(
    spark: SparkSession, body: Callable[[RunContext], JobSummary], run_date: str, overrides: list[str]
) -> None:
    """Runs one stage in the session of this process."""
    job = body.__module__.rpartition(".")[2]
    body(RunContext(job, load_config(str(ROOT / CONFIG), overrides), run_date, open_session=lambda _: spark))


def run_stages(spark: SparkSession, run_date: str, overrides: list[str], config: str = CONFIG) -> None:
    """Runs the stages of a run with retraining in the session of this process, in the order of nightly."""
    planned = RunPlan(load_config(str(ROOT / config), overrides), run_date, retrain=True)
    for steps in (planned.steps_before_gate, planned.steps_after_gate):
        for step in steps():
            of_step = load_config(str(ROOT / config), [*overrides, *step.overrides])
            stage = import_module(f"jobs.{step.job}")
            stage.run(RunContext(step.job, of_step, step.run_date, open_session=lambda _: spark))


def settings(overrides: list[str]) -> list[str]:
    """Overrides as arguments of a job."""
    return [word for override in overrides for word in ("--set", override)]


def rows(partition: Partition) -> pd.DataFrame:
    """A published partition's rows, in file order."""
    files = data_files(partition, read_manifest(partition))
    return pd.concat([pq.ParquetFile(path).read().to_pandas() for path in files], ignore_index=True)


def vocabulary(lake: LakePaths, version: str) -> dict[tuple[str, str], int]:
    """(column, value) → id of a workflow version."""
    table = rows(Partition("workflow", "", f"{lake.workflow(version)}/vocabulary", 3))
    return dict(zip(zip(table["column"], table["value"], strict=True), table["id"], strict=True))


@pytest.fixture(scope="module")
def two_runs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[LakePaths, list[str]]:
    """A lake after two runs with retraining on a small generated log; the second training is destructive."""
    folder = tmp_path_factory.mktemp("runs")
    lake = LakePaths(str(folder / "lake"))
    sink = f"{{kind: json_lines, name: files, path: {folder}/files, users_per_file: 100}}"
    overrides = [*SMALL_LOG, f"lake={lake.root}", f"deliver.sinks=[{sink}]"]
    run_stage(spark, generate_clicks, "2026-01-01", overrides)
    run_nightly(FIRST, overrides)
    overrides = [*overrides, *DESTRUCTIVE]
    run_stages(spark, SECOND, overrides)
    return lake, overrides


@pytest.mark.timeout(600)
def test_every_user_gets_a_full_sorted_list(two_runs: tuple[LakePaths, list[str]]) -> None:
    lake, _ = two_runs
    champion = champion_as_of(lake, "generated", SECOND)
    lists = rows(lake.recommendations.partition(SECOND))
    dataset = read_dataset(lake, SECOND)
    users = rows(lake.users(dataset.workflow_version).partition(SECOND))
    items = rows(lake.items(dataset.workflow_version).partition(SECOND))
    assert lists.groupby("user_id")["position"].apply(list).tolist() == [list(range(1, 11))] * len(users)
    assert set(lists["user_id"]) == set(users["user_key"])
    assert set(lists["item_id"]) <= set(items["item_key"])
    assert not lists.duplicated(["user_id", "item_id"]).any()
    assert lists.sort_values(["user_id", "position"], kind="stable").index.tolist() == list(range(len(lists)))
    assert (lists.groupby("user_id")["score"].diff().dropna() <= 0).all()
    assert set(lists["model_version"]) == {champion}


@pytest.mark.timeout(600)
def test_the_numbers_of_the_dashboard_are_in_the_summaries(two_runs: tuple[LakePaths, list[str]]) -> None:
    """A panel of conf/grafana.json shows a number of a job summary by its name."""
    lake, _ = two_runs
    records = read_records(lake, [FIRST])
    known = {(record.job, name) for record in records for name in record.facts}
    # The first night has no lists of the day before. The summary of this job is what it publishes.
    measured = read_manifest(lake.measures.partition(FIRST)).facts
    known |= {("measure_recommendations", name) for name in measured}
    assert len(facts_of_dashboard()) >= 5
    assert facts_of_dashboard() <= known


@pytest.mark.timeout(600)
def test_lists_are_compared_delivered_and_shown(two_runs: tuple[LakePaths, list[str]]) -> None:
    lake, overrides = two_runs
    before, lists = (rows(lake.recommendations.partition(run_date)) for run_date in (FIRST, SECOND))
    sets = [run_lists.groupby("user_id")["item_id"].agg(set) for run_lists in (before, lists)]
    changes = read_manifest(lake.list_changes.partition(SECOND)).facts
    both = sets[1].index.intersection(sets[0].index)
    churn = sum(len(sets[1][user] - sets[0][user]) / len(sets[1][user]) for user in both) / len(both)
    assert (changes["before"], changes["users_in_both"]) == (FIRST, len(both))
    assert changes["churn"] == pytest.approx(churn)

    files = Partition("files", SECOND, f"{lake.root}/../files/dt={SECOND}")
    texts = [gzip.decompress(Path(path).read_bytes()) for path in data_files(files, read_manifest(files))]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    delivered = {line["user_id"]: [item["item_id"] for item in line["items"]] for line in lines}
    assert delivered == lists.groupby("user_id")["item_id"].apply(list).to_dict()

    user = str(lists["user_id"].iloc[0])
    command = [sys.executable, "jobs/show.py", "--config", CONFIG, "--date", SECOND, "--user", user]
    shown = subprocess.run(
        [*command, *settings(overrides)], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert [entry["item_id"] for entry in json.loads(shown.splitlines()[-1])["list"]] == delivered[user]
    version = read_dataset(lake, SECOND).workflow_version
    items = rows(lake.items(version).partition(SECOND)).set_index("item_key")
    names = {(column, place): value for (column, value), place in vocabulary(lake, version).items()}
    spec = read_spec(lake, version)
    known = [feature.name for feature in spec.scoped("item") if feature.kind == "categorical"]
    checked = 0
    for item in delivered[user]:
        for feature in known:
            value = names.get((feature, items.loc[item, feature]))
            if value is not None:
                assert f"{feature}={value}" in shown
                checked += 1
    assert checked > 0


@pytest.mark.timeout(600)
def test_lists_are_compared_with_the_best_possible_ones(two_runs: tuple[LakePaths, list[str]]) -> None:
    lake, overrides = two_runs
    facts = read_manifest(lake.measures.partition(FIRST)).facts
    generate = load_config(str(ROOT / CONFIG), overrides).generate
    assert generate is not None
    raw = lake.raw.partition(SECOND)
    log = criteo_rows(Path(path) for path in data_files(raw, read_manifest(raw)))
    clicks = log[log[LABEL] == 1].groupby("user_id")["item_id"].agg(set).to_dict()
    truth, world = DayTruth(generate, SECOND), world_of_day(generate, date.fromisoformat(SECOND))
    dataset = read_dataset(lake, FIRST)
    train = [
        rows(lake.features(dataset.workflow_version).partition(day.dt)) for day in dataset.splits["train"]
    ]
    warm = set(pd.concat(train)["user_key"])
    candidates = rows(lake.candidate_items(dataset.workflow_version).partition(FIRST)).sort_values(
        "item_index"
    )
    items = [key for key in candidates["item_key"] if key in truth.items]
    places = [truth.items[key] for key in items]
    hits: dict[str, list[bool]] = {"click_probability": [], "best": []}
    for user in sorted(warm & set(truth.users)):
        wanted = clicks.get(int(world.users["user_id"][truth.users[user]]), set())
        if not wanted:
            continue
        true = truth.of_user(truth.users[user])
        for ranking, scores in (("click_probability", true.clicked), ("best", true.clicked * true.shown)):
            best = np.argsort(-scores[places], kind="stable")[:10]
            listed = world.items["item_id"][np.array(places)[best]]
            hits[ranking].append(bool(wanted & set(listed.tolist())))
    assert len(hits["best"]) == facts["users"] > 100
    for ranking, hit in hits.items():
        assert facts["truth"][ranking]["hit_rate"] == pytest.approx(np.mean(hit))
    share = facts["hit_rate"] / facts["truth"]["best"]["hit_rate"]
    assert facts["truth"]["share_of_best"] == pytest.approx(share)


def test_the_second_run_extends_the_first(two_runs: tuple[LakePaths, list[str]]) -> None:
    lake, _ = two_runs
    first = read_dataset(lake, FIRST)
    assert first.mode == "fit"
    # The lists have the champion's features; the training extended the workflow of the challenger.
    challenger = read_description(model_path(lake, "generated", challenger_of(lake, "generated", SECOND)))
    extended = challenger["workflow_version"]
    assert read_dataset(lake, SECOND).workflow_version == first.workflow_version != extended
    old, new = vocabulary(lake, first.workflow_version), vocabulary(lake, extended)
    assert old.items() <= new.items()
    assert len(new) > len(old)
    old_sizes = read_spec(lake, first.workflow_version).cardinalities
    new_sizes = read_spec(lake, extended).cardinalities
    assert all(a <= b for a, b in zip(old_sizes, new_sizes, strict=True))


def test_every_raw_row_is_a_feature_row_or_quarantined(two_runs: tuple[LakePaths, list[str]]) -> None:
    lake, _ = two_runs
    version = read_dataset(lake, SECOND).workflow_version
    for day in read_dataset(lake, SECOND).days:
        good, bad = rows(lake.features(version).partition(day)), rows(lake.quarantine.partition(day))
        assert sorted([*good["row_id"], *bad["row_id"]]) == list(range(4000))
        assert len(bad) == read_manifest(lake.raw.partition(day)).facts["malformed_rows"]


def test_counts_of_ids_are_those_of_the_train_days(two_runs: tuple[LakePaths, list[str]]) -> None:
    """They decide which table rows are on a device. Reserved ids have no count."""
    lake, _ = two_runs
    dataset = read_dataset(lake, FIRST)
    counts = find_id_counts(lake, dataset.workflow_version).read()
    train_days = split_partitions(lake, dataset, "train")
    encoded = pd.concat([rows(partition) for partition, _, _ in train_days])
    assert len(counts) == len(read_spec(lake, dataset.workflow_version).categorical) > 3
    for name, of_ids in counts.items():
        occurrences = encoded[name].value_counts()
        for id_, count in enumerate(of_ids.tolist()):
            assert count == (occurrences.get(id_, 0) if id_ >= NUM_RESERVED_IDS else 0), (name, id_)
        assert encoded[name].max() < max(len(of_ids), NUM_RESERVED_IDS)


@pytest.mark.timeout(600)
def test_rows_in_host_memory_change_no_training_of_two_ranks(
    spark: SparkSession, two_runs: tuple[LakePaths, list[str]]
) -> None:
    """The rows of a rank need more than the MiB that its device may hold. Most lookups are hot."""
    lake, overrides = two_runs
    ranks = ["train.num_ranks=2", "train.embeddings.placement=row_wise", "train.device=cpu"]
    wide = ["model.embedding_dim=1024", "model.bottom_mlp=[16, 1024]", "train.log_every_steps=2"]
    memory = ["train.embedding_memory=auto", "train.embedding_memory_mib=1"]
    descriptions = []
    for number, more in enumerate([[], memory]):
        config = load_config(str(ROOT / CONFIG), [*overrides, *ranks, *wide, *more, f"name=memory{number}"])
        plan = make_plan(config, lake, read_dataset(lake, FIRST))
        descriptions.append(train_on_ranks(spark, plan))
    device, both = descriptions
    assert device["num_ranks"] == both["num_ranks"] == 2
    assert both["metrics"] == device["metrics"]
    assert both["history"][-1]["hot_share"] > 0.5
    assert all(0 < entry["hot_share"] < 1 for entry in both["history"])
    assert "hot_share" not in device["history"][-1]
    losses = [[entry["loss"] for entry in training["history"]] for training in descriptions]
    assert losses[0] == losses[1]


@pytest.mark.timeout(600)
def test_training_again_changes_nothing(spark: SparkSession, two_runs: tuple[LakePaths, list[str]]) -> None:
    """For the other stages of a run, tests/airflow check this."""
    lake, overrides = two_runs
    challenger, champion = challenger_of(lake, "generated", SECOND), champion_as_of(lake, "generated", SECOND)
    evaluated = read_manifest(lake.evaluations.partition(SECOND)).digest
    run_stage(spark, build_features, SECOND, [*overrides, "workflow.mode=retrain"])
    run_stage(spark, train_model, SECOND, overrides)
    assert challenger_of(lake, "generated", SECOND) == challenger
    assert champion_as_of(lake, "generated", SECOND) == champion
    assert read_manifest(lake.evaluations.partition(SECOND)).digest == evaluated


def test_a_destructive_training_is_kept_out_and_the_champion_serves_on(
    two_runs: tuple[LakePaths, list[str]],
) -> None:
    lake, overrides = two_runs
    champion = champion_as_of(lake, "generated", FIRST)
    facts = read_manifest(lake.evaluations.partition(SECOND)).facts
    assert facts["challenger"]["auc"] < facts["champion"]["auc"]
    assert facts["intervals"]["auc"]["low"] < -0.003
    assert facts["promoted"] is False
    assert champion_as_of(lake, "generated", SECOND) == champion
    assert set(rows(lake.recommendations.partition(SECOND))["model_version"]) == {champion}
    words = [sys.executable, "jobs/champion.py", "--config", CONFIG, "--run-date", SECOND]
    assert run_process(*words, *settings(overrides))["champion"] == champion
