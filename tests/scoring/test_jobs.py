"""The scoring jobs on a small lake: published tables, decisions and errors."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import metrics
from conf.errors import ConfigError, DataError
from conf.types import Config
from jobs.build_candidates import run as build_candidates
from jobs.evaluate_model import run as evaluate_model
from jobs.measure_recommendations import run as measure_recommendations
from jobs.score_daily import run as score_daily
from jobs.score_rows import run as score_rows
from scoring.evaluation import gate_lists, gate_run
from scoring.evaluation.features_before_test import rows_before_test
from scoring.model import context_features
from scoring.spark import int8_change
from storage import file_io
from storage.dataset import Dataset, publish_dataset, read_dataset
from storage.feature_spec import OOV_ID, dumps
from storage.job_summary import JobSummary
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths, Partition
from storage.run_context import RunContext
from tests.scoring.reference_scores import CONTEXT, SPEC, ReferenceScores, write_model
from tests.scoring.scoring_lake import (
    DAY_AFTER,
    DAYS,
    RUN_DATE,
    WORKFLOW,
    EncodedContext,
    feature_rows,
    make_config,
    next_day,
    publish_lake,
)
from training.registry import mlflow_mirror
from training.registry.champion_history import read_decisions
from training.registry.overrides import OverrideRequest, pin, release, roll_back
from training.registry.versions import champion_as_of, record_run


@dataclass
class ScoredRun:
    """A lake after the scoring jobs of RUN_DATE, and their job summaries by name."""

    config: Config
    lake: LakePaths
    results: dict[str, JobSummary]


def read_rows(partition: Partition) -> pd.DataFrame:
    """The rows of a published partition."""
    files = data_files(partition, read_manifest(partition))
    return pa.concat_tables(pq.read_table(path, partitioning=None) for path in files).to_pandas()


def job_of(spark: SparkSession, config: Config, run_date: str = RUN_DATE) -> RunContext:
    """The context of a job."""
    return RunContext("test", config, run_date, open_session=lambda _: spark)


@pytest.fixture(scope="module")
def without_workflow() -> Iterator[None]:
    """Replaces the workflow and MLflow, which the lake does not have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_mirror, "prepare", lambda *_: None)
        patch.setattr(mlflow_mirror, "set_aliases", lambda *_: None)
        patch.setattr(context_features, "load_local", lambda *_: EncodedContext())
        yield


@pytest.fixture(scope="module")
def scored_run(
    spark: SparkSession,
    reference: ReferenceScores,
    tmp_path_factory: pytest.TempPathFactory,
    without_workflow: None,
) -> ScoredRun:
    """All five jobs of RUN_DATE, in order."""
    config = publish_lake(tmp_path_factory.mktemp("lake"), reference)
    job = job_of(spark, config)
    stages = (evaluate_model, build_candidates, score_daily, score_rows, measure_recommendations)
    return ScoredRun(config, job.lake, {stage.__module__.rpartition(".")[2]: stage(job) for stage in stages})


@pytest.fixture(scope="module")
def log(reference: ReferenceScores) -> pd.DataFrame:
    """The feature rows of all days."""
    days = [feature_rows(reference, day).to_pandas().assign(dt=dt) for day, dt in enumerate(DAYS)]
    return pd.concat(days, ignore_index=True)


def clicked_before(log: pd.DataFrame, user: str) -> set[str]:
    """Items the user clicked in train or validation."""
    return set(log[(log.user_key == user) & (log.label == 1) & (log.dt < RUN_DATE)].item_key)


def users_tested(scored_run: ScoredRun) -> int:
    """How many users the test day has."""
    version = read_dataset(scored_run.lake, RUN_DATE).workflow_version
    return int(read_rows(scored_run.lake.features(version).partition(RUN_DATE)).user_key.nunique())


def probabilities_of(reference: ReferenceScores, rows: pd.DataFrame) -> np.ndarray:
    """(P,) what NumPy says of the rows' users and items."""
    users = pd.Index(reference.users.user_key).get_indexer(pd.Index(rows.user_key))
    items = pd.Index(reference.items.item_key).get_indexer(pd.Index(rows.item_key))
    return reference.probabilities[users, items]


def test_recommendations_equal_pandas(
    scored_run: ScoredRun, reference: ReferenceScores, log: pd.DataFrame
) -> None:
    left = {
        user: [
            index
            for index, item in enumerate(reference.items.item_key)
            if item not in clicked_before(log, user)
        ]
        for user in reference.users.user_key
    }
    expected = reference.expected(5, left)
    actual = read_rows(scored_run.lake.recommendations.partition(RUN_DATE))
    columns = ["user_id", "position", "item_id"]
    assert (
        actual[columns].to_numpy().tolist()
        == expected[["user_key", "position", "item_key"]].to_numpy().tolist()
    )
    np.testing.assert_allclose(actual.score, expected.score, atol=1e-6)
    assert set(actual.model_version) == {"m1"}
    assert set(actual.workflow_version) == {WORKFLOW}


def test_manifest_of_recommendations_describes_them(
    scored_run: ScoredRun, reference: ReferenceScores
) -> None:
    manifest = read_manifest(scored_run.lake.recommendations.partition(RUN_DATE))
    assert manifest.facts["scores"] == "click_probability"
    actual = read_rows(scored_run.lake.recommendations.partition(RUN_DATE))
    facts = manifest.facts
    assert [name for name, _ in manifest.schema] == list(actual.columns)
    assert (facts["k"], facts["users"], facts["items"], facts["precision"]) == (5, 37, 23, "fp32")
    assert facts["items_recommended"] == actual.item_id.nunique()
    assert (
        sum(facts["score_histogram"]["counts"]) == len(actual) == scored_run.results["score_daily"].rows_out
    )
    assert facts["users_with_fewer"] == 37 - (actual.position == 5).sum()


def test_candidates_number_the_items_and_name_every_user(
    scored_run: ScoredRun, reference: ReferenceScores, log: pd.DataFrame
) -> None:
    items = read_rows(scored_run.lake.candidate_items(WORKFLOW).partition(RUN_DATE))
    pd.testing.assert_frame_equal(items, reference.items[items.columns])
    candidates = read_rows(scored_run.lake.candidates(WORKFLOW).partition(RUN_DATE))
    assert sorted(candidates.user_key) == reference.users.user_key.tolist()
    assert candidates.candidates.isna().all()
    for user, excluded in zip(candidates.user_key, candidates.excluded, strict=True):
        assert {items.item_key[index] for index in ([] if excluded is None else excluded)} == clicked_before(
            log, user
        )


def test_first_model_is_promoted_and_measured_exactly(
    scored_run: ScoredRun, reference: ReferenceScores, log: pd.DataFrame
) -> None:
    facts = read_manifest(scored_run.lake.evaluations.partition(RUN_DATE)).facts
    test = log[log.dt == RUN_DATE]
    probability = probabilities_of(reference, test).astype(np.float32)
    challenger = facts["challenger"]
    assert challenger["auc"] == pytest.approx(metrics.auc(test.label, probability), abs=1e-6)
    assert challenger["log_loss"] == pytest.approx(metrics.log_loss(test.label, probability), abs=1e-6)
    assert (challenger["rows"], challenger["positives"]) == (len(test), int(test.label.sum()))
    assert (facts["promoted"], facts["champion"], facts["best_auc"]) == (True, None, None)
    assert facts["baselines"] == {"logistic_regression": {"test": {"auc": 0.5}}}
    assert champion_as_of(scored_run.lake, "toy", RUN_DATE) == "m1"
    assert champion_as_of(scored_run.lake, "toy", RUN_DATE, before=True) is None


def test_a_worse_challenger_leaves_the_champion(spark: SparkSession, scored_run: ScoredRun) -> None:
    result = evaluate_model(job_of(spark, scored_run.config, DAY_AFTER))
    facts = read_manifest(scored_run.lake.evaluations.partition(DAY_AFTER)).facts
    assert facts["challenger"]["auc"] == pytest.approx(1 - facts["champion"]["auc"], abs=1e-9)
    assert (facts["champion"]["version"], facts["challenger"]["version"]) == ("m1", "m2")
    assert facts["promoted"] is result.facts["promoted"] is False
    assert champion_as_of(scored_run.lake, "toy", DAY_AFTER) == "m1"
    between = facts["intervals"]["auc"]
    assert between["low"] < between["difference"] < between["high"] < -0.1
    assert facts["challenger"]["auc"] - facts["champion"]["auc"] == between["difference"]
    assert facts["resampled"] == {"by": "user", "count": users_tested(scored_run)}
    assert "worse by more than gate.margin=0.002" in facts["reason"]
    levels = {check["name"]: check["level"] for check in facts["checks"]}
    expected = {"auc": "hold", "log_loss": "ok", "rows": "ok", "users": "ok", "oov_share": "ok"}
    expected |= {"list_ndcg": "hold", "list_hit_rate": "ok"}  # m2 reverses the lists of m1
    assert expected.items() <= levels.items()
    assert levels["feature_psi"] == "warn"  # this lake has no data report
    assert set(levels) == {*expected, "feature_psi", "calibration", "score_psi"}
    decision = read_decisions(scored_run.lake, "toy", DAY_AFTER)[-1][1]
    assert (decision["intervals"], decision["checks"]) == (facts["intervals"], facts["checks"])
    assert decision["lineage"]["workflow_version"] == WORKFLOW


def test_unknown_ids_are_counted_as_they_are(scored_run: ScoredRun, log: pd.DataFrame) -> None:
    shares = read_manifest(scored_run.lake.evaluations.partition(RUN_DATE)).facts["challenger"]["oov_shares"]
    test = log[log.dt == RUN_DATE]
    assert shares == {feature.name: (test[feature.name] == OOV_ID).mean() for feature in SPEC.categorical}
    assert shares["who"] > 0


def test_what_people_decided_holds_at_the_gate(
    spark: SparkSession, fresh: Config, reference: ReferenceScores, tmp_path: Path
) -> None:
    """m3 equals m1, so the gate would promote it; a pin or a rollback of its parent prevents this."""
    fresh = fresh.model_copy(update={"gate": fresh.gate.model_copy(update={"lists_margin": None})})
    lake = LakePaths(fresh.lake)
    evaluate_model(job_of(spark, fresh))
    write_model(Path(lake.models("toy")) / "m3", version="m3")
    record_run(lake, "toy", DAY_AFTER, "m3")
    job = job_of(spark, fresh, DAY_AFTER)
    asked = OverrideRequest(DAY_AFTER, "ada", "sale day", "m1")
    pin(lake, "toy", replace(asked, version="m2"))
    assert evaluate_model(job).facts["champion"] == "m2"
    facts = read_manifest(lake.evaluations.partition(DAY_AFTER)).facts
    assert "champion m2 is pinned (pin of 2026-01-06 by ada: sale day)" in facts["reason"]
    assert facts["checks"][0]["name"] == "standing"
    release(lake, "toy", asked)
    assert evaluate_model(job).facts["champion"] == "m3"
    roll_back(lake, "toy", asked)
    assert champion_as_of(lake, "toy", DAY_AFTER) == "m1"
    assert evaluate_model(job).facts["champion"] == "m1"
    reason = read_manifest(lake.evaluations.partition(DAY_AFTER)).facts["reason"]
    assert "m3 was withdrawn (rollback of 2026-01-06 by ada: sale day)" in reason


def test_rows_of_the_test_split_have_their_probability(
    scored_run: ScoredRun, reference: ReferenceScores, log: pd.DataFrame
) -> None:
    actual = read_rows(scored_run.lake.scores.partition(RUN_DATE)).sort_values("row_id")
    test = log[log.dt == RUN_DATE].sort_values("row_id")
    assert actual.row_id.tolist() == test.row_id.tolist()
    assert set(actual.features_dt) == {RUN_DATE}
    np.testing.assert_allclose(actual.probability, probabilities_of(reference, test), atol=1e-6)


def with_score(config: Config, **changed: Any) -> Config:
    """The configuration with some settings of `score` replaced."""
    return config.model_copy(update={"score": config.score.model_copy(update=changed)})


def test_scores_of_rows_are_published_by_their_manifests(
    spark: SparkSession, fresh: Config, reference: ReferenceScores, log: pd.DataFrame
) -> None:
    """A split of two days: a rerun has the same digest; a file without some rows stops the job."""
    evaluate_model(job_of(spark, fresh))
    config = with_score(fresh, rows_split="train")
    result = score_rows(job_of(spark, config))
    scores = LakePaths(config.lake).scores.partition(RUN_DATE)
    manifest = read_manifest(scores)
    actual = read_rows(scores).merge(
        log, left_on=["features_dt", "row_id"], right_on=["dt", "row_id"], validate="one_to_one"
    )
    train = log[log.dt < DAYS[2]]
    assert len(actual) == len(train) == result.rows_in == result.rows_out == manifest.rows
    np.testing.assert_allclose(actual.probability, probabilities_of(reference, actual), atol=1e-6)
    assert manifest.schema == (("row_id", "int64"), ("features_dt", "string"), ("probability", "float"))
    assert max(file.rows for file in manifest.files) <= 60 * 9 // 8 + 1  # output.row_group_rows
    assert "int8" not in manifest.facts
    score_rows(job_of(spark, config))
    again = read_manifest(scores)
    assert again.digest == manifest.digest
    features = LakePaths(config.lake).features(WORKFLOW).partition(DAYS[1])
    path = data_files(features, read_manifest(features))[0]
    pq.write_table(pq.read_table(path, partitioning=None).slice(1), path)
    with pytest.raises(DataError) as caught:
        score_rows(job_of(spark, config))
    expected = "has row groups of [74] rows, but its manifest says 1 row groups with 75 rows in row group 0"
    assert expected in caught.value.problem
    assert read_manifest(scores) == again


def test_probabilities_that_are_rounded_to_0_and_1_are_published(spark: SparkSession, fresh: Config) -> None:
    lake = LakePaths(fresh.lake)
    folder = Path(f"{lake.models('toy')}/m1")
    shutil.rmtree(folder)
    write_model(folder, sign=1e6)
    evaluate_model(job_of(spark, fresh))
    score_rows(job_of(spark, fresh))
    assert set(read_rows(lake.scores.partition(RUN_DATE)).probability.unique()) == {0.0, 1.0}


def test_a_split_without_partitions_is_named(spark: SparkSession, fresh: Config) -> None:
    evaluate_model(job_of(spark, fresh))
    dataset = read_dataset(LakePaths(fresh.lake), RUN_DATE)
    splits = {name: actual for name, actual in dataset.splits.items() if name != "validation"}
    publish_dataset(LakePaths(fresh.lake), replace(dataset, splits=splits, mode="apply"), "")
    with pytest.raises(
        DataError, match=r"has no partition for the split validation, only for \['test', 'train'\]"
    ):
        score_rows(job_of(spark, with_score(fresh, rows_split="validation")))


def test_int8_is_measured_on_the_rows_and_pairs_it_scores(
    spark: SparkSession,
    fresh: Config,
    reference: ReferenceScores,
    log: pd.DataFrame,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A DLRM against the same jobs without int8, for all rows and for all pairs."""
    lake = LakePaths(fresh.lake)
    shutil.rmtree(f"{lake.models('toy')}/m1")  # a whole model is never replaced
    write_model(Path(lake.models("toy")) / "m1", "dlrm")
    evaluate_model(job_of(spark, fresh))
    build_candidates(job_of(spark, fresh))
    config = with_score(fresh, k=23)
    actual: dict[str, dict[str, pd.DataFrame]] = {}
    results: dict[str, JobSummary] = {}
    keys = {"scores": ["row_id"], "recommendations": ["user_id", "item_id"]}
    monkeypatch.setattr(int8_change, "SAMPLE_ROWS", 100)
    for form in ("stored", "int8"):
        job = job_of(spark, with_score(config, embeddings=form))
        results = {"scores": score_rows(job), "recommendations": score_daily(job)}
        actual[form] = {
            name: read_rows(getattr(lake, name).partition(RUN_DATE)).sort_values(by)
            for name, by in keys.items()
        }
    for name, column in (("scores", "probability"), ("recommendations", "score")):
        stored, int8 = (actual[form][name].reset_index(drop=True) for form in ("stored", "int8"))
        assert stored[keys[name]].equals(int8[keys[name]])
        moved = (int8[column].astype(float) - stored[column]).abs()
        measured = dict(read_manifest(getattr(lake, name).partition(RUN_DATE)).facts["int8"])
        assert measured == results[name].facts["int8"]
        if name == "scores":
            moved = moved[:100]
            assert measured["compared"] == 100
        else:
            assert measured["compared"] == 37 * 23
            assert len(moved) < 37 * 23  # what was clicked before is no candidate
        assert 0 < measured["mean_change"] < measured["largest_change"] < 0.05
        assert measured["largest_change"] >= moved.max() - 1e-6
        if name == "scores":
            assert measured["mean_change"] == pytest.approx(moved.mean(), abs=1e-6)
            assert measured["largest_change"] == pytest.approx(moved.max(), abs=1e-6)
        rows = sum(SPEC.cardinalities)
        # Of 4 numbers of float32 a row remain 4 bytes and a scale.
        assert measured["stored_bytes"] - measured["int8_bytes"] == rows * (16 - 8)


def test_jobs_score_with_rows_on_demand(spark: SparkSession, fresh: Config) -> None:
    """Rows and lists are those of a model whose rows are all in memory."""
    lake = LakePaths(fresh.lake)
    shutil.rmtree(f"{lake.models('toy')}/m1")  # a whole model is never replaced
    write_model(Path(lake.models("toy")) / "m1", "dlrm")
    keys = {lake.scores: ["row_id"], lake.recommendations: ["user_id", "item_id"]}
    actual = {}
    for form in ("stored", "on_demand"):
        job = job_of(spark, with_score(fresh, k=23, embeddings=form, rows_mib=1))
        evaluate_model(job)
        build_candidates(job)
        score_rows(job)
        score_daily(job)
        actual[form] = [
            read_rows(table.partition(RUN_DATE)).sort_values(by).reset_index(drop=True)
            for table, by in keys.items()
        ]
    for mine, expected in zip(actual["on_demand"], actual["stored"], strict=True):
        pd.testing.assert_frame_equal(mine, expected, check_exact=True)


def test_measures_equal_pandas(scored_run: ScoredRun, reference: ReferenceScores, log: pd.DataFrame) -> None:
    facts = read_manifest(scored_run.lake.measures.partition(RUN_DATE)).facts
    raw = next_day(reference)
    wanted = raw[raw.clicked == 1].groupby("user").item.agg(set).to_dict()
    warm = set(log[log.dt < DAYS[2]].user_key)
    train = log[log.dt < DAYS[2]]
    clicks = train[train.label == 1].item_key.value_counts()
    ranking = sorted(reference.items.item_key, key=lambda key: (-clicks.get(key, 0), key))
    lists = (
        read_rows(scored_run.lake.recommendations.partition(RUN_DATE))
        .groupby("user_id")
        .item_id.agg(list)
        .to_dict()
    )
    popular = {
        user: [key for key in ranking if key not in clicked_before(log, user)][:5]
        for user in reference.users.user_key
    }

    def ndcg(user_rows: list[str], hits: set[str]) -> float:
        gain = sum(1 / math.log2(place + 1) for place, key in enumerate(user_rows, 1) if key in hits)
        return gain / sum(1 / math.log2(place + 1) for place in range(1, min(5, len(hits)) + 1))

    users = [user for user in wanted if user in lists and user in warm]
    cold = [user for user in wanted if user in lists and user not in warm]
    assert facts["users"] == len(users) > 20
    for name, user_rows in (("", lists), ("popular", popular)):
        measured = facts[name] if name else facts
        hit_rate = sum(bool(wanted[user] & set(user_rows[user])) for user in users) / len(users)
        assert measured["hit_rate"] == pytest.approx(hit_rate)
        assert measured["ndcg"] == pytest.approx(
            np.mean([ndcg(user_rows[user], wanted[user]) for user in users]), abs=1e-9
        )
        assert measured["coverage"] == len({key for keys in user_rows.values() for key in keys}) / 23
    assert facts["lift"] == pytest.approx(facts["hit_rate"] / facts["popular"]["hit_rate"])
    assert facts["cold_users"]["users"] == len(cold) == 3
    assert facts["cold_users"]["hit_rate"] == sum(bool(wanted[user] & set(lists[user])) for user in cold) / 3
    # No feature of this lake is the id of the user alone, so users without a train row are new to the model.
    new = facts["cold_start"]["new_users"]
    assert new["users"] == facts["cold_users"]["users"]
    assert new["lists"]["hit_rate"] == facts["cold_users"]["hit_rate"]
    popular_hits = [bool(wanted[user] & set(popular[user])) for user in cold]
    assert new["popular"]["hit_rate"] == pytest.approx(np.mean(popular_hits))
    assert "best" not in new
    assert facts["cold_start"]["known_users"]["lists"]["hit_rate"] == pytest.approx(facts["hit_rate"])
    assert facts["against"] == "next_day"
    assert facts["truth"] is None, "this log has no generator"


def test_a_rerun_gives_the_same_partitions(spark: SparkSession, scored_run: ScoredRun) -> None:
    partitions = [
        scored_run.lake.candidates(WORKFLOW).partition(RUN_DATE),
        scored_run.lake.recommendations.partition(RUN_DATE),
        scored_run.lake.evaluations.partition(RUN_DATE),
        scored_run.lake.measures.partition(RUN_DATE),
    ]
    before = [read_manifest(partition) for partition in partitions]
    lists = read_rows(partitions[1])
    job = job_of(spark, scored_run.config)
    for body in (evaluate_model, build_candidates, score_daily, measure_recommendations):
        body(job)
    for old, partition in zip(before, partitions, strict=True):
        new = read_manifest(partition)
        assert new.digest == old.digest
        same = {name: value for name, value in new.facts.items() if name != "scored_at"}
        assert same == {name: value for name, value in old.facts.items() if name != "scored_at"}
    pd.testing.assert_frame_equal(read_rows(partitions[1]), lists)


@pytest.fixture
def fresh(tmp_path: Path, reference: ReferenceScores, without_workflow: None) -> Config:
    """A lake in which no scoring job has run yet."""
    return publish_lake(tmp_path / "lake", reference)


@pytest.mark.parametrize("lost_rows", [0, 1])
def test_models_of_two_workflows_meet_on_the_same_raw_rows(
    spark: SparkSession,
    fresh: Config,
    reference: ReferenceScores,
    monkeypatch: pytest.MonkeyPatch,
    lost_rows: int,
) -> None:
    lake, day = LakePaths(fresh.lake), DAYS.index(RUN_DATE)
    evaluate_model(job_of(spark, fresh))
    other = replace(SPEC, workflow_version="w2")
    file_io.replace_text(lake.feature_spec("w2"), dumps(other))
    write_model(Path(lake.models("toy")) / "m3", version="m3", spec=other)
    record_run(lake, "toy", DAY_AFTER, "m3")
    encoded = spark.createDataFrame(feature_rows(reference, day).slice(lost_rows).to_pandas())
    asked = []

    def encode_split(*arguments: Any) -> DataFrame:
        asked.append((*arguments[3:6], arguments[7]))
        return encoded

    monkeypatch.setattr(gate_run, "load_workflow", lambda _, version, *__: version)
    monkeypatch.setattr(gate_run, "encode_split", encode_split)
    monkeypatch.setattr(
        gate_lists,
        "rows_before_test",
        lambda context, dataset, _, side: rows_before_test(context, dataset, SPEC, side),
    )
    job = job_of(spark, fresh, DAY_AFTER)
    if lost_rows:
        with pytest.raises(DataError, match=r"measured on different rows[\s\S]*build_features"):
            evaluate_model(job)
        assert champion_as_of(lake, "toy", DAY_AFTER) == "m1"
        return
    evaluate_model(job)
    facts = read_manifest(lake.evaluations.partition(DAY_AFTER)).facts
    assert asked == [("w2", DAY_AFTER, "test", [RUN_DATE])]
    assert (facts["champion"]["workflow_version"], facts["challenger"]["workflow_version"]) == ("w1", "w2")
    assert facts["champion"]["auc"] == facts["challenger"]["auc"]
    assert facts["lists"]["champion"] == facts["lists"]["challenger"]
    assert champion_as_of(lake, "toy", DAY_AFTER) == "m3"


@pytest.mark.parametrize("body", [score_daily, score_rows])
def test_without_a_champion_the_remedy_is_to_train(spark: SparkSession, fresh: Config, body: Any) -> None:
    with pytest.raises(DataError, match=r"no champion on 2026-01-05[\s\S]*train_model and evaluate_model"):
        body(job_of(spark, fresh))


def test_evaluating_before_training_names_train_model(spark: SparkSession, fresh: Config) -> None:
    with pytest.raises(DataError, match=r"no model was trained for 2026-01-04[\s\S]*train_model"):
        evaluate_model(job_of(spark, fresh, DAYS[2]))


def test_scoring_before_candidates_names_the_missing_table(spark: SparkSession, fresh: Config) -> None:
    evaluate_model(job_of(spark, fresh))
    with pytest.raises(DataError, match="candidate_items/w1 has no published partition"):
        score_daily(job_of(spark, fresh))


def test_features_of_another_workflow_are_refused(
    spark: SparkSession, scored_run: ScoredRun, tmp_path: Path
) -> None:
    lake, other = scored_run.lake, "2026-01-09"
    dataset = read_dataset(lake, RUN_DATE)
    publish_dataset(lake, Dataset(other, "w2", dataset.splits, "extend"), "")
    with pytest.raises(
        DataError,
        match=r"features of workflow w1, but the dataset of 2026-01-09 was made with workflow w2[\s\S]*apply",
    ):
        score_daily(job_of(spark, scored_run.config, other))
    changed = replace(SPEC, features=(replace(SPEC.features[0], scope="user"), *SPEC.features[1:]))
    file_io.replace_text(lake.feature_spec(WORKFLOW), dumps(changed))
    try:
        with pytest.raises(DataError, match=r"different features: Feature\(name='price'"):
            score_rows(job_of(spark, scored_run.config))
    finally:
        file_io.replace_text(lake.feature_spec(WORKFLOW), dumps(SPEC))


@pytest.mark.parametrize("context, named", [({}, "device"), ({**CONTEXT, "price": 1}, "price")])
def test_context_must_be_complete(
    spark: SparkSession, scored_run: ScoredRun, context: dict[str, float], named: str
) -> None:
    config = scored_run.config.model_copy(
        update={"score": scored_run.config.score.model_copy(update={"context": context})}
    )
    with pytest.raises(ConfigError, match=named):
        score_daily(job_of(spark, config))


def test_stale_candidates_are_refused(spark: SparkSession, scored_run: ScoredRun) -> None:
    partition = scored_run.lake.candidates(WORKFLOW).partition(RUN_DATE)
    manifest = file_io.read_json(partition.file("_MANIFEST.json"))
    stale = {**manifest, "inputs": {**manifest["inputs"], "users": "older"}}
    file_io.replace_json(partition.file("_MANIFEST.json"), stale)
    try:
        with pytest.raises(
            DataError, match=r"built from users with the digest older[\s\S]*run build_candidates"
        ):
            score_daily(job_of(spark, scored_run.config))
    finally:
        file_io.replace_json(partition.file("_MANIFEST.json"), manifest)


def test_measuring_needs_the_day_after(spark: SparkSession, scored_run: ScoredRun) -> None:
    (Path(scored_run.lake.raw.partition(DAY_AFTER).path) / "clicks.tsv").rename(
        Path(scored_run.config.lake) / "aside"
    )
    try:
        with pytest.raises(DataError, match=r"no raw file at .*2026-01-06"):
            measure_recommendations(job_of(spark, scored_run.config))
    finally:
        (Path(scored_run.config.lake) / "aside").rename(
            Path(scored_run.lake.raw.partition(DAY_AFTER).path) / "clicks.tsv"
        )


def test_jobs_on_keys_need_keys(spark: SparkSession, tmp_path: Path) -> None:
    config = make_config(tmp_path, keys=None)
    for body in (build_candidates, score_daily, measure_recommendations):
        with pytest.raises(ConfigError, match="keys"):
            body(job_of(spark, config))
