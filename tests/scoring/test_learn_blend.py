"""learn_blend and the lists that its blend ranks, on a small lake: pandas, reruns, and errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from conf.errors import ConfigError, DataError
from conf.types import Config
from jobs import learn_blend as stage
from jobs.build_candidates import run as build_candidates
from jobs.checks import check_config
from jobs.measure_recommendations import run as measure_recommendations
from jobs.score_daily import run as score_daily
from reporting.html.page import build
from scoring.candidates.candidate_tables import read_candidate_tables
from scoring.evaluation import blend_fit
from scoring.evaluation.blend_fit import BLEND, MODEL, LearnedBlend, MeasuredPairs, measured_pairs
from scoring.model import context_features
from scoring.model.champion import champion_and_dataset
from storage import file_io
from storage.manifest import read_manifest
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.scoring.reference_scores import ReferenceScores, write_model
from tests.scoring.scoring_lake import RUN_DATE, WORKFLOW, EncodedContext, feature_rows, publish_lake
from tests.scoring.test_jobs import job_of, read_rows
from training.registry import mlflow_mirror
from training.registry.blends import blend_key, blend_of
from training.registry.refits import Refit, record_refit
from training.registry.versions import ChampionDecision, record_decision

SOURCES = [{"source": "popular", "n": 9}, {"source": "covisitation", "n": 6}]


@pytest.fixture(scope="module")
def config(reference: ReferenceScores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Config]:
    """A lake whose champion `m2` contradicts the clicks, with two sources and a blend."""
    config = publish_lake(tmp_path_factory.mktemp("lake"), reference)
    values = config.model_dump()
    values["candidates"] |= {"sources": SOURCES, "splits": ["train", "validation"]}
    values["score"] |= {"blend": "auto"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_mirror, "set_aliases", lambda *_: None)
        patch.setattr(context_features, "load_local", lambda *_: EncodedContext())
        record_decision(
            LakePaths(config.lake), "toy", RUN_DATE, ChampionDecision("m2", None, True, "m2", "a test")
        )
        yield Config.model_validate(values)


@pytest.fixture(scope="module")
def job(spark: SparkSession, config: Config) -> RunContext:
    """The context of the jobs of RUN_DATE."""
    return replace(job_of(spark, config), in_process=True)


@pytest.fixture(scope="module")
def log(reference: ReferenceScores) -> pd.DataFrame:
    """The feature rows of all days, with the split of each."""
    splits = ["train", "train", "validation", "test"]
    days = [feature_rows(reference, day).to_pandas().assign(split=split) for day, split in enumerate(splits)]
    return pd.concat(days, ignore_index=True)


def test_pairs_are_measured_as_before_the_validation_clicks(
    job: RunContext, reference: ReferenceScores, log: pd.DataFrame
) -> None:
    """Neither scores nor exclusions nor candidates depend on rows of the validation or test split."""
    model, dataset = champion_and_dataset(job)
    pairs = measured_pairs(job, dataset, model, read_candidate_tables(job, WORKFLOW))
    train = log[log.split == "train"]
    clicks = train[train.label == 1]
    later = log[(log.split == "validation") & (log.label == 1)]
    users = sorted(set(later.user_key) & set(train.user_key))
    items = sorted(set(train.item_key))
    counts = clicks.item_key.value_counts()
    assert len(pairs.positives) == len(users)
    for number, user in enumerate(users):
        rows = slice(pairs.starts[number], pairs.starts[number + 1])
        listed = [items[index] for index in pairs.items[rows]]
        gone = set(clicks[clicks.user_key == user].item_key)
        assert not gone & set(listed)
        by_count = sorted(set(items) - gone, key=lambda item: (-counts.get(item, 0), item))[:9]
        popular = {
            item: score
            for item, score in zip(listed, pairs.scores[rows, 0], strict=True)
            if not np.isnan(score)
        }
        assert popular == pytest.approx({item: np.log1p(counts.get(item, 0)) for item in by_count})
        place = reference.users.user_key.tolist().index(user)
        of_items = [reference.items.item_key.tolist().index(item) for item in listed]
        probability = reference.probabilities[place, of_items]
        np.testing.assert_allclose(pairs.logits[rows], -np.log(probability / (1 - probability)), atol=1e-4)
        wanted = set(later[later.user_key == user].item_key)
        assert pairs.clicked[rows].tolist() == [item in wanted for item in listed]
        assert pairs.positives[number] == len(wanted)
    assert sorted(np.bincount(pairs.folds)) == [len(users) // 5] * (5 - len(users) % 5) + [
        len(users) // 5 + 1
    ] * (len(users) % 5)


def test_a_poor_champion_does_not_rank_alone_and_lists_follow_the_recorded_blend(
    job: RunContext, reference: ReferenceScores, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_candidates(job)
    with pytest.raises(DataError, match=r"no blend of champion m2 [\s\S]*run learn_blend for 2026-01-05"):
        score_daily(job)
    summary = stage.run(job)
    record = blend_of(job.lake, "toy", RUN_DATE)
    assert record is not None
    assert (record.key.champion, list(record.sources)) == ("m2", ["popular", "covisitation"])
    ndcg = {contender["name"]: contender["ndcg"] for contender in record.contenders}
    assert list(ndcg) == [MODEL, "popular", "covisitation", BLEND]
    assert ndcg[record.chosen] == max(ndcg.values()) > ndcg[MODEL]
    assert summary.facts["chosen"] == record.chosen
    path = Path(str(summary.output))
    written = path.read_text()
    with monkeypatch.context() as patch:
        patch.setattr(stage, "measured_pairs", lambda *_: pytest.fail("computed again"))
        assert stage.run(job).facts == summary.facts
    assert path.read_text() == written
    _require_lists(job, reference)
    measured = measure_recommendations(job)
    assert measured.facts["blend"]["contenders"] == record.contenders


def _require_lists(job: RunContext, reference: ReferenceScores) -> None:
    """Checks the published lists against the published candidates and the recorded weights."""
    score_daily(job)
    record = blend_of(job.lake, "toy", RUN_DATE)
    assert record is not None
    assert record.weights is not None
    candidates = read_rows(job.lake.candidates(WORKFLOW).partition(RUN_DATE))
    partition = job.lake.recommendations.partition(RUN_DATE)
    assert read_manifest(partition).facts["scores"] == "ranking"  # a blend gives no click probabilities
    lists = read_rows(partition)
    keys = (
        read_rows(job.lake.candidate_items(WORKFLOW).partition(RUN_DATE)).sort_values("item_index").item_key
    )
    logit_of = np.log(reference.probabilities / (1 - reference.probabilities)) * -1
    place = {key: index for index, key in enumerate(reference.users.user_key)}
    for row in candidates.itertuples():
        scores = np.array(row.source_scores).reshape(-1, 2)
        parts = np.where(
            np.isnan(scores), record.weights["absent"], np.nan_to_num(scores) * record.weights["weights"]
        )
        logits = logit_of[place[str(row.user_key)], row.candidates]
        total = record.weights["intercept"] + record.weights["logit"] * logits + parts.sum(axis=1)
        order = np.lexsort((row.candidates, -total.astype(np.float32)))[: job.config.score.k]
        listed = lists[lists.user_id == row.user_key].sort_values("position")
        assert listed.item_id.tolist() == keys.iloc[np.array(row.candidates)[order]].tolist()
        np.testing.assert_allclose(listed.score, 1 / (1 + np.exp(-total[order])), atol=1e-5)


def test_a_failure_before_the_record_is_written_leaves_the_old_one(
    job: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of the configuration gives another blend, which the failed attempt does not replace."""
    stage.run(job)
    before = blend_of(job.lake, "toy", RUN_DATE)
    values = job.config.model_dump()
    values["candidates"] |= {"sources": [{"source": "popular", "n": 5}]}
    changed = RunContext("test", Config.model_validate(values), RUN_DATE, open_session=job.open_session)
    with monkeypatch.context() as patch:
        patch.setattr(stage, "record_blend", _fail)
        with pytest.raises(RuntimeError, match="killed"):
            stage.run(changed)
    assert blend_of(job.lake, "toy", RUN_DATE) == before
    build_candidates(changed)
    with pytest.raises(DataError, match="no blend of champion m2"):
        score_daily(changed)
    stage.run(changed)
    assert score_daily(changed).facts["ranked_by"] != MODEL
    build_candidates(job)  # the former configuration has lost its blend of this date
    with pytest.raises(DataError, match="run learn_blend"):
        score_daily(job)
    stage.run(job)
    assert blend_of(job.lake, "toy", RUN_DATE) == before


def _fail(*_: Any) -> None:
    raise RuntimeError("killed")


def test_wrong_configurations_and_records_end_with_a_remedy(job: RunContext, tmp_path: Path) -> None:
    values = job.config.model_dump()
    values["candidates"] |= {"sources": [{"source": "all_items"}]}
    with pytest.raises(ConfigError, match=r"score\.blend=auto needs the scores of sources[\s\S]*name other"):
        check_config(Config.model_validate(values))
    values = job.config.model_dump()
    values["score"] |= {"blend": "none"}
    plain = RunContext("test", Config.model_validate(values), RUN_DATE, open_session=job.open_session)
    with pytest.raises(ConfigError, match=r"score\.blend=none[\s\S]*set score\.blend=auto"):
        stage.run(plain)
    stage.run(job)
    build_candidates(plain)
    assert "source_scores" not in read_rows(job.lake.candidates(WORKFLOW).partition(RUN_DATE)).columns
    with pytest.raises(DataError, match=r"has no scores of the sources[\s\S]*run build_candidates again"):
        score_daily(job)
    record = blend_of(job.lake, "toy", RUN_DATE)
    path = Path(job.lake.models("toy")) / "blends" / f"dt={RUN_DATE}.json"
    known = file_io.read_json(str(path))
    file_io.replace_json(str(path), {**known, "format_version": 3})
    with pytest.raises(DataError, match="reads up to version 2"):
        blend_of(job.lake, "toy", RUN_DATE)
    file_io.replace_json(str(path), known)
    assert blend_of(job.lake, "toy", RUN_DATE) == record


def test_without_a_user_to_learn_from_the_model_ranks(
    job: RunContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(blend_fit, "most_users", lambda _: 0)
    recorded = Path(job.lake.models("toy")) / "blends" / f"dt={RUN_DATE}.json"
    recorded.unlink(missing_ok=True)  # another test may have learned a blend
    summary = stage.run(job)
    assert (summary.facts["users"], summary.facts["chosen"], summary.facts["weights"]) == (0, MODEL, None)
    assert summary.facts["contenders"] == []
    assert "so lists are ranked by the model alone until a later run learns one" in caplog.text
    build_candidates(job)
    score_daily(job)
    measured = measure_recommendations(job)
    assert measured.facts["hit_rate"] is not None
    assert "Lists against clicks" in build(job.config, RUN_DATE)[1]


def test_the_champion_retrieves_for_its_own_blend_and_its_refit_for_the_lists(
    reference: ReferenceScores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    """Nothing else is trained. The refit knows the validation clicks, so no blend is fitted to its scores."""
    values = publish_lake(tmp_path, reference).model_dump()
    values["candidates"]["sources"] = [{"source": "retrieval", "n": 5}, {"source": "popular", "n": 9}]
    values["score"] |= {"blend": "auto"}
    values["train"] |= {"refit": True}
    config = Config.model_validate(values)
    lake = LakePaths(config.lake)
    for folder, version, sign in (("toy", "v1", 1.0), ("toy-refit", "r1", -1.0)):
        write_model(Path(lake.models(folder)) / version, "two_tower", version=version, sign=sign)
    monkeypatch.setattr(mlflow_mirror, "set_aliases", lambda *_: None)
    monkeypatch.setattr(context_features, "load_local", lambda *_: EncodedContext())
    record_decision(lake, "toy", RUN_DATE, ChampionDecision("v1", None, True, "v1", "a test"))
    record_refit(lake, "toy", Refit(RUN_DATE, "v1", "r1"))
    job = replace(job_of(spark, config), in_process=True)
    seen: list[MeasuredPairs] = []

    def kept(pairs: MeasuredPairs, sources: Sequence[str], k: int) -> LearnedBlend:
        seen.append(pairs)
        return blend_fit.learn(pairs, sources, k)

    monkeypatch.setattr(stage, "learn", kept)
    stage.run(job)
    record = blend_of(lake, "toy", RUN_DATE)
    assert record is not None
    assert (record.key.champion, record.key.retriever) == ("v1", None)
    assert record.key == blend_key(lake, config, RUN_DATE)
    assert record.inputs["retriever"] == "v1"
    (pairs,) = seen
    retrieved = ~np.isnan(pairs.scores[:, 0])
    differences = pairs.logits[retrieved] - pairs.scores[retrieved, 0]
    np.testing.assert_allclose(differences, differences[0], atol=1e-3)  # the logit is the product and a bias
    for user in range(len(pairs.positives)):
        rows = slice(pairs.starts[user], pairs.starts[user + 1])
        best = np.argsort(-pairs.logits[rows], kind="stable")[:5]
        assert set(np.flatnonzero(retrieved[rows])) == set(best)
    build_candidates(job)
    candidates = read_manifest(lake.candidates(WORKFLOW).partition(RUN_DATE))
    assert candidates.inputs["retriever"] == "r1"
    score_daily(job)
