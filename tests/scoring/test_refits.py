"""Which jobs use the refit of a champion, and which use the champion: on a small lake, with Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from conf.errors import DataError
from conf.types import Config
from jobs.build_candidates import run as build_candidates
from jobs.check_lists import run as check_lists
from jobs.evaluate_model import run as evaluate_model
from jobs.measure_recommendations import run as measure_recommendations
from jobs.score_daily import run as score_daily
from jobs.score_rows import run as score_rows
from scoring.model import context_features
from scoring.model.champion import serving_model_and_dataset
from storage import file_io
from storage.job_summary import JobSummary
from storage.manifest import Manifest, read_manifest
from storage.paths import LakePaths
from tests.scoring.reference_scores import ReferenceScores, write_model
from tests.scoring.scoring_lake import DAY_AFTER, DAYS, RUN_DATE, EncodedContext, feature_rows, publish_lake
from tests.scoring.test_jobs import job_of, probabilities_of, read_rows
from training.registry import mlflow_mirror
from training.registry.refits import Refit, record_refit, refit_name


@dataclass
class RefittedRun:
    """The jobs of RUN_DATE before and after its champion m1 got the refit r1, whose weights contradict m1.

    Attributes:
        config: the configuration with `train.refit`.
        lists, rows: the published lists and probabilities; the key is the version that made the lists.
        manifests: the manifests of the lists, by the same keys.
        scored: the job summary of score_daily with the refit.
        decisions: the record of the gate's decision on RUN_DATE, before and after the refit.
        gate: the facts of the evaluation of DAY_AFTER, whose champion m1 has a refit.
    """

    config: Config
    lists: dict[str, pd.DataFrame]
    rows: dict[str, pd.DataFrame]
    manifests: dict[str, Manifest]
    scored: JobSummary
    decisions: list[str]
    gate: dict


def with_refit(config: Config, *, refit: bool = True) -> Config:
    return config.model_copy(update={"train": config.train.model_copy(update={"refit": refit})})


@pytest.fixture(scope="module")
def without_workflow() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_mirror, "prepare", lambda *_: None)
        patch.setattr(mlflow_mirror, "set_aliases", lambda *_: None)
        patch.setattr(context_features, "load_local", lambda *_: EncodedContext())
        yield


def write_refit(lake: LakePaths, trained_days: list[str]) -> None:
    """Writes the model r1, and the days on which it says that it was trained, and records it last."""
    folder = Path(lake.models(refit_name("toy"))) / "r1"
    write_model(folder, version="r1", sign=-1.0)
    file = f"{folder}/model.json"
    values = {**file_io.read_json(file), "refit_of": "m1", "trained_days": trained_days}
    file_io.replace_json(file, values)
    record_refit(lake, "toy", Refit(RUN_DATE, "m1", "r1"))


@pytest.fixture(scope="module")
def run(
    spark: SparkSession,
    reference: ReferenceScores,
    tmp_path_factory: pytest.TempPathFactory,
    without_workflow: None,
) -> RefittedRun:
    config = with_refit(publish_lake(tmp_path_factory.mktemp("lake"), reference))
    lake, job = LakePaths(config.lake), job_of(spark, config)
    decision = Path(lake.models("toy")) / f"promotions/dt={RUN_DATE}.json"
    evaluate_model(job)
    build_candidates(job)
    decisions, lists, rows, manifests = [decision.read_text()], {}, {}, {}
    for version in ("m1", "r1"):
        if version == "r1":
            write_refit(lake, DAYS)
        scored = score_daily(job)
        score_rows(job)
        lists[version] = read_rows(lake.recommendations.partition(RUN_DATE))
        rows[version] = read_rows(lake.scores.partition(RUN_DATE))
        manifests[version] = read_manifest(lake.recommendations.partition(RUN_DATE))
    decisions.append(decision.read_text())
    evaluate_model(job_of(spark, config, DAY_AFTER))
    gate = dict(read_manifest(lake.evaluations.partition(DAY_AFTER)).facts)
    return RefittedRun(config, lists, rows, manifests, scored, decisions, gate)


def test_the_lists_are_those_of_the_refit(run: RefittedRun, reference: ReferenceScores) -> None:
    """A score of r1 is the probability of m1 with all weights negated."""
    for version, sign in (("m1", 1), ("r1", -1)):
        lists = run.lists[version].rename(columns={"user_id": "user_key", "item_id": "item_key"})
        assert set(lists.model_version) == {version}
        probability = probabilities_of(reference, lists)
        logit = np.log(probability / (1 - probability))
        np.testing.assert_allclose(lists.score, 1 / (1 + np.exp(-sign * logit)), atol=1e-5)
    assert run.scored.facts["model_version"] == "r1"
    assert run.scored.facts["refit_of"] == run.manifests["r1"].facts["refit_of"] == "m1"
    assert "refit_of" not in run.manifests["m1"].facts
    assert run.manifests["r1"].inputs["model"] == "r1"


def test_rows_that_a_refit_was_trained_on_are_scored_by_its_champion(
    spark: SparkSession, run: RefittedRun, reference: ReferenceScores
) -> None:
    pd.testing.assert_frame_equal(run.rows["r1"], run.rows["m1"])
    lake = LakePaths(run.config.lake)
    assert read_manifest(lake.scores.partition(RUN_DATE)).facts["model_version"] == "m1"
    write_refit(lake, DAYS[:3])  # it was not trained on the test day
    score_rows(job_of(spark, run.config))
    assert read_manifest(lake.scores.partition(RUN_DATE)).facts["model_version"] == "r1"
    # If the log is one file, the refit was trained on rows that have another day in later runs.
    log = run.config.log.model_copy(update={"path": "{lake}/raw/clicks.tsv"})
    of_one_file = job_of(spark, run.config.model_copy(update={"log": log}))
    assert serving_model_and_dataset(of_one_file, scored="test")[0].version == "m1"
    write_refit(lake, DAYS)


def test_the_gate_compares_models_without_their_refits(run: RefittedRun, reference: ReferenceScores) -> None:
    assert run.decisions[0] == run.decisions[1]
    champion = run.gate["champion"]
    assert champion["version"] == "m1"
    assert run.gate["challenger"]["auc"] == pytest.approx(1 - champion["auc"], abs=1e-9)  # m2 contradicts m1
    test = feature_rows(reference, len(DAYS) - 1).to_pandas()
    ranks = pd.Series(probabilities_of(reference, test)).rank().to_numpy()
    positive = test.label.to_numpy() == 1
    pairs = positive.sum() * (~positive).sum()
    auc = (ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2) / pairs
    assert champion["auc"] == pytest.approx(auc, abs=1e-6)


def test_lists_are_checked_against_the_model_that_serves(spark: SparkSession, run: RefittedRun) -> None:
    facts = check_lists(job_of(spark, run.config)).facts
    assert (facts["model_version"], facts["champion"]) == ("r1", "m1")
    with pytest.raises(DataError, match="computed with model r1, but the champion is m1"):
        check_lists(job_of(spark, with_refit(run.config, refit=False)))


def test_lists_of_a_refit_are_not_measured_on_the_test_split(spark: SparkSession, run: RefittedRun) -> None:
    measure = run.config.measure.model_copy(update={"against": "test_split"})
    config = with_refit(run.config, refit=False).model_copy(update={"measure": measure})
    with pytest.raises(DataError, match="made by refit r1, which was also trained on the test split"):
        measure_recommendations(job_of(spark, config))
    facts = measure_recommendations(job_of(spark, run.config)).facts
    assert facts["against"] == "next_day"
    assert facts["hit_rate"] is not None
