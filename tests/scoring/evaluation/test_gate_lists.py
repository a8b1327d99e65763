"""Lists at the gate, on the lake of scoring_lake.py: figures, sample, decision, and reasons not to measure."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from conf.types import Config
from jobs.evaluate_model import run as evaluate_model
from metrics.bootstrap import Resample, draw_weights
from scoring.evaluation.gate_lists import measure_lists_of, reason_against_lists
from scoring.model import context_features
from scoring.model.model_info import ModelInfo, read_model_info
from spark.choose_workers import stay_in_process
from storage.dataset import Dataset, Member, publish_dataset
from storage.feature_spec import Feature
from storage.manifest import read_manifest
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.etl.ops.hashing import of_text
from tests.scoring.reference_scores import SPEC, ReferenceScores, logistic_probabilities, write_model
from tests.scoring.scoring_lake import (
    DAY_AFTER,
    DAYS,
    RUN_DATE,
    WORKFLOW,
    EncodedContext,
    feature_rows,
    make_config,
    publish_lake,
    write_table,
)
from training.registry import mlflow_mirror
from training.registry.champion_history import read_decisions
from training.registry.versions import model_path, record_run

# The champion ranks items well, but not users. The challenger ranks users well, and reverses the items.
CHAMPION = {"who": -3.0, "age": -3.0}
CHALLENGER = {"what": -0.1, "kind": -0.1, "price": -0.1}
K, REPLICATES = 5, 200


@dataclass
class Gated:
    """A lake in which the gate has decided on a challenger with a better AUC and worse lists.

    Attributes:
        facts: the evaluation of the challenger.
        messages: what the gate logged.
        units: the hash of each user.
    """

    config: Config
    facts: dict[str, Any]
    messages: list[str]
    reference: ReferenceScores
    units: pd.Series[int]

    def per_user(self, version: str) -> pd.DataFrame:
        """The oracle: hit and NDCG of each measured user, by pandas."""
        log = pd.concat([steep_rows(self.reference, day).to_pandas().assign(day=day) for day in range(4)])
        before, test = log[log.day < 3], log[(log.day == 3) & (log.label == 1)]
        users, items = self.reference.users, self.reference.items
        path = model_path(LakePaths(self.config.lake), "toy", version)
        scores = logistic_probabilities(path, users, items).astype(np.float32)
        rows = {}
        for user in sorted(set(test.user_key) & set(before.user_key)):
            clicked = set(before[(before.user_key == user) & (before.label == 1)].item_key)
            mine = pd.DataFrame({"item": items.item_key, "score": scores[list(users.user_key).index(user)]})
            mine = mine[~mine.item.isin(clicked)].sort_values(["score", "item"], ascending=[False, True])[:K]
            wanted = set(test[test.user_key == user].item_key)
            hits = [item in wanted for item in mine.item]
            gain = sum(1 / math.log2(place + 2) for place, hit in enumerate(hits) if hit)
            ideal = sum(1 / math.log2(place + 2) for place in range(min(K, len(wanted))))
            rows[user] = {"hit_rate": float(any(hits)), "ndcg": gain / ideal}
        return pd.DataFrame.from_dict(rows, orient="index")


def steep_rows(reference: ReferenceScores, day: int) -> pa.Table:
    """Rows of one day whose clicks depend strongly on the user and still more on the item."""
    rows = feature_rows(reference, day, 600 if day == 3 else 150)
    logits = np.log(reference.probabilities / (1 - reference.probabilities))
    of_user, of_item = logits.mean(axis=1), logits.mean(axis=0)
    user = pd.Index(reference.users.user_key).get_indexer(rows.column("user_key").to_pandas())
    item = pd.Index(reference.items.item_key).get_indexer(rows.column("item_key").to_pandas())
    latent = 2 * (of_user - of_user.mean())[user] / of_user.std()
    latent += 3 * (of_item - of_item.mean())[item] / of_item.std() - 1.5
    clicks = np.random.default_rng(700 + day).random(rows.num_rows) < 1 / (1 + np.exp(-latent))
    label = rows.schema.get_field_index("label")
    return rows.set_column(label, "label", pa.array(clicks.astype(np.float32)))


def with_gate(config: Config, **changed: Any) -> Config:
    """The configuration with some settings of the gate replaced."""
    return config.model_copy(update={"gate": config.gate.model_copy(update=changed)})


def evaluated(config: Config, run_date: str = DAY_AFTER) -> dict[str, Any]:
    """The facts of a new evaluation."""
    evaluate_model(RunContext("test", config, run_date))
    return dict(read_manifest(LakePaths(config.lake).evaluations.partition(run_date)).facts)


@pytest.fixture(scope="module")
def gated(reference: ReferenceScores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gated]:
    config = publish_lake(tmp_path_factory.mktemp("gated"), reference)
    config = with_gate(
        config, calibration_low=0.01, calibration_high=100.0, replicates=REPLICATES, min_users=10, margin=0.1
    )
    lake = LakePaths(config.lake)
    for number, day in enumerate(DAYS):
        write_table(lake.features(WORKFLOW).partition(day), steep_rows(reference, number))
    for run_date in (RUN_DATE, DAY_AFTER):
        publish_dataset(lake, dataset_of(lake, run_date), "")
    for version, dt, factors in (("champion", RUN_DATE, CHAMPION), ("challenger", DAY_AFTER, CHALLENGER)):
        write_model(Path(lake.models("toy")) / version, version=version, factors=factors)
        record_run(lake, "toy", dt, version)
    units = pd.Series({key: of_text(key) for key in reference.users.user_key})
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("nightrank.evaluate_model")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_mirror, "prepare", lambda *_: None)
        patch.setattr(mlflow_mirror, "set_aliases", lambda *_: None)
        patch.setattr(context_features, "load_local", lambda *_: EncodedContext())
        first = evaluated(config, RUN_DATE)
        assert first["promoted"]
        assert first["lists"]["champion"] is None
        assert first["lists"]["challenger"]["ndcg"] > 0
        facts = evaluated(config)
        yield Gated(config, facts, messages, reference, units)
    logger.setLevel(logging.NOTSET)
    logger.removeHandler(handler)


def test_figures_and_intervals_equal_pandas(gated: Gated) -> None:
    lists, users = gated.facts["lists"], {}
    for name in ("champion", "challenger"):
        users[name] = gated.per_user(name)
        assert lists[name]["items"] == 23
        for measure in ("hit_rate", "ndcg"):
            assert lists[name][measure] == pytest.approx(users[name][measure].mean(), abs=1e-9)
    assert (lists["k"], lists["users"], lists["skipped"]) == (K, len(users["champion"]), None)
    assert lists["users"] > gated.config.gate.min_users
    units = gated.units[users["champion"].index].to_numpy(np.int64)
    weights = list(draw_weights(units, Resample(REPLICATES, gated.config.gate.seed)))
    for measure in ("hit_rate", "ndcg"):
        values = (users["challenger"][measure] - users["champion"][measure]).to_numpy()
        means = [np.repeat(values, weight).mean() for weight in weights]
        between = gated.facts["intervals"][measure]
        assert between["difference"] == pytest.approx(values.mean(), abs=1e-9)
        assert [between["low"], between["high"]] == pytest.approx(
            np.quantile(means, [0.025, 0.975]), abs=1e-8
        )


def test_worse_lists_hold_a_challenger_with_a_better_auc(gated: Gated) -> None:
    facts = gated.facts
    levels = {check["name"]: check["level"] for check in facts["checks"]}
    assert facts["challenger"]["auc"] > facts["champion"]["auc"] + 0.05
    assert levels["auc"] == "ok"
    assert facts["lists"]["challenger"]["ndcg"] < facts["lists"]["champion"]["ndcg"] - 0.02
    assert not facts["promoted"]
    assert [name for name, level in levels.items() if level == "hold"] == ["list_ndcg"]
    assert "worse by more than gate.lists_margin=0.02" in facts["reason"]
    assert any("not promoted" in message and "NDCG@5 of lists" in message for message in gated.messages)
    decision = read_decisions(LakePaths(gated.config.lake), "toy", DAY_AFTER)[-1][1]
    assert decision["metrics"]["challenger"]["lists"] == facts["lists"]["challenger"]
    assert decision["champion_after"] == "champion"


def test_a_rerun_gives_equal_facts(gated: Gated) -> None:
    assert evaluated(gated.config) == gated.facts


def test_without_a_margin_the_same_lists_do_not_decide(gated: Gated) -> None:
    """Measures only; the lake keeps the first decision for the tests after this one."""
    try:
        facts = evaluated(with_gate(gated.config, lists_margin=None))
        assert facts["promoted"]
        assert (facts["lists"], facts["lists_margin"]) == (gated.facts["lists"], None)
        assert facts["intervals"] == gated.facts["intervals"]
    finally:
        evaluated(gated.config)


def test_a_sample_has_the_users_with_the_smallest_hashes(gated: Gated) -> None:
    """Test rows never exclude items, whatever `exclude_clicked` says."""
    config = with_gate(gated.config, lists_users=10)
    candidates = config.candidates.model_copy(update={"exclude_clicked": ["train", "validation", "test"]})
    config = config.model_copy(update={"candidates": candidates})
    context = RunContext("test", config, DAY_AFTER)
    stay_in_process(context, 0)
    lake = LakePaths(config.lake)
    versions = ["champion", "challenger"]
    models = [read_model_info(model_path(lake, "toy", version)) for version in versions]
    measured = measure_lists_of(context, dataset_of(lake), models)
    assert measured.users == 10
    for version in versions:
        of_user = gated.per_user(version)
        sample = of_user.loc[gated.units[of_user.index].sort_values().index[:10]]
        assert measured.models[version].hit_rate == pytest.approx(sample.hit_rate.mean(), abs=1e-9)
        assert measured.models[version].ndcg == pytest.approx(sample.ndcg.mean(), abs=1e-9)


def dataset_of(lake: LakePaths, run_date: str = DAY_AFTER) -> Dataset:
    """The dataset of the lake, by its published partitions."""
    members = [
        Member(day, read_manifest(lake.features(WORKFLOW).partition(day)).digest, None) for day in DAYS
    ]
    splits = {"train": tuple(members[:2]), "validation": (members[2],), "test": (members[3],)}
    return Dataset(run_date, WORKFLOW, splits, "fit")


def test_users_without_earlier_rows_are_not_measured(gated: Gated, tmp_path: Path) -> None:
    """The last three users of the lake have rows on the test day only."""
    config = gated.config.model_copy(update={"lake": str(tmp_path / "lake")})
    lake = LakePaths(config.lake)
    for number, day in enumerate(DAYS):
        rows = feature_rows(gated.reference, number)
        if day == RUN_DATE:
            rows = rows.filter(pc.greater_equal(rows.column("user_key"), "u034"))
        write_table(lake.features(WORKFLOW).partition(day), rows)
    model = ModelInfo("", "m1", SPEC, {})
    context = RunContext("test", config, RUN_DATE)
    stay_in_process(context, 0)
    measured = measure_lists_of(context, dataset_of(lake), [model])
    assert (measured.users, measured.models, measured.level) == (0, {}, "warn")
    assert measured.skipped == (
        "no user with a click in the test split has a row in the train or validation split"
    )


PAIR = replace(SPEC, features=(*SPEC.features, Feature("both", "dense", "float32", "pair")))


@pytest.mark.parametrize(
    "changes, spec, reason",
    [
        ({"keys": None}, SPEC, "the log has no users and items (section `keys`)"),
        ({}, PAIR, "the features ['both'] may differ for every (user, item) pair"),
        ({"score": {"context": {}}}, SPEC, "score.context must have a value for each raw column"),
        ({}, SPEC, None),
    ],
)
def test_lists_that_cannot_be_made_are_skipped_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, Any], spec: Any, reason: str | None
) -> None:
    monkeypatch.setattr(context_features, "load_local", lambda *_: EncodedContext())
    config = make_config(tmp_path)
    if "score" in changes:
        changes = {"score": config.score.model_copy(update=changes["score"])}
    context = RunContext("test", config.model_copy(update=changes), RUN_DATE)
    model = ModelInfo("", "m1", spec, {})
    actual = reason_against_lists(context, [model])
    if reason is None:
        assert actual is None
    else:
        assert actual is not None
        assert actual.startswith(reason)
        skipped = measure_lists_of(context, dataset_of_nothing(), [model])
        assert (skipped.skipped, skipped.level, skipped.models) == (actual, "ok", {})


def test_a_null_number_of_users_switches_the_lists_off(tmp_path: Path) -> None:
    config = with_gate(make_config(tmp_path), lists_users=None)
    skipped = measure_lists_of(RunContext("test", config, RUN_DATE), dataset_of_nothing(), [])
    assert (skipped.skipped, skipped.level) == ("gate.lists_users is null", "ok")


def dataset_of_nothing() -> Dataset:
    """A dataset without partitions."""
    return Dataset(RUN_DATE, WORKFLOW, {}, "fit")
