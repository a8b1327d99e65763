"""Tables replaced by another job between reading their manifest and their rows: the old rows are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conf.errors import DataError
from jobs import build_candidates as build_candidates_job
from jobs import measure_recommendations as measure_job
from jobs import score_daily as score_daily_job
from jobs.build_candidates import run as build_candidates
from jobs.measure_recommendations import run as measure_recommendations
from jobs.score_daily import run as score_daily
from scoring import feature_rows
from scoring.feature_rows import read_split
from scoring.model import context_features
from spark.rows import count, whole
from storage.dataset import read_dataset
from storage.manifest import data_files, read_manifest
from storage.paths import Partition
from storage.publish import publish_rows
from storage.run_context import RunContext
from tests.scoring.reference_scores import ReferenceScores
from tests.scoring.scoring_lake import RUN_DATE, WORKFLOW, EncodedContext, publish_lake
from training.registry import mlflow_mirror
from training.registry.versions import ChampionDecision, record_decision


@pytest.fixture
def job(reference: ReferenceScores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunContext:
    """The run of RUN_DATE up to its candidates."""
    monkeypatch.setattr(mlflow_mirror, "set_aliases", lambda *_: None)
    monkeypatch.setattr(context_features, "load_local", lambda *_: EncodedContext())
    run = RunContext("test", publish_lake(tmp_path, reference), RUN_DATE)
    record_decision(run.lake, "toy", RUN_DATE, ChampionDecision("m1", None, True, "m1", "the first"))
    build_candidates(run)
    return run


def published(partition: Partition) -> pa.Table:
    """The rows of a partition."""
    files = data_files(partition, read_manifest(partition))
    return pa.concat_tables(pq.read_table(file, partitioning=None) for file in files)


def replace(partition: Partition, rows: int = 5) -> None:
    """By its first rows alone."""
    first = published(partition).slice(0, rows)
    publish_rows(first, partition, inputs={"another": "build"}, row_group_rows=60)


def followed(patch: pytest.MonkeyPatch, module: Any, name: str, then: Callable[[], None]) -> None:
    """Lets something happen right after each call of a function."""
    original = getattr(module, name)

    def call(*arguments: Any, **named: Any) -> Any:
        actual = original(*arguments, **named)
        then()
        return actual

    patch.setattr(module, name, call)


def test_lists_are_made_of_the_tables_that_were_checked(
    job: RunContext, reference: ReferenceScores, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = job.lake.users(WORKFLOW).partition(RUN_DATE)
    candidates = job.lake.candidates(WORKFLOW).partition(RUN_DATE)
    checked = {"users": read_manifest(users).digest, "candidates": read_manifest(candidates).digest}

    def another_run() -> None:
        for partition in (users, candidates):
            replace(partition)

    followed(monkeypatch, score_daily_job, "encoded_context", another_run)
    score_daily(job)
    lists = job.lake.recommendations.partition(RUN_DATE)
    manifest = read_manifest(lists)
    assert {name: manifest.inputs[name] for name in checked} == checked
    assert set(published(lists).column("user_id").to_pylist()) == set(reference.users.user_key)


def test_candidates_are_made_of_the_users_that_were_looked_at(
    job: RunContext, reference: ReferenceScores, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = job.lake.users(WORKFLOW).partition(RUN_DATE)
    looked_at = read_manifest(users).digest
    followed(monkeypatch, build_candidates_job, "read_candidate_tables", lambda: replace(users))
    build_candidates(job)
    manifest = read_manifest(job.lake.candidates(WORKFLOW).partition(RUN_DATE))
    assert (manifest.inputs["users"], manifest.rows) == (looked_at, len(reference.users))


def test_rows_of_a_split_are_those_that_the_dataset_was_held_against(
    job: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = read_dataset(job.lake, RUN_DATE)
    member = dataset.splits["test"][0]
    partition = job.lake.features(WORKFLOW).partition(member.dt)
    rows = read_manifest(partition).rows
    followed(monkeypatch, feature_rows, "split_partitions", lambda: replace(partition))
    assert count(whole(read_split(job, dataset, ["test"]))) == rows


def test_lists_are_measured_as_they_were_looked_at(job: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    score_daily(job)
    before = measure_recommendations(job).facts
    lists = job.lake.recommendations.partition(RUN_DATE)
    followed(monkeypatch, measure_job, "positives", lambda: replace(lists, 7))
    after = measure_recommendations(job).facts
    assert {name: after[name] for name in ("hit_rate", "ndcg", "users")} == {
        name: before[name] for name in ("hit_rate", "ndcg", "users")
    }


def test_candidates_of_items_that_were_numbered_anew_are_not_measured(job: RunContext) -> None:
    score_daily(job)
    replace(job.lake.candidate_items(WORKFLOW).partition(RUN_DATE))
    with pytest.raises(DataError, match="was built from candidate_items") as caught:
        measure_recommendations(job)
    assert caught.value.remedy == f"run build_candidates for {RUN_DATE} again"
