"""Distributed measures equal the exact ones of one process, however the rows are cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyspark.sql import SparkSession

import metrics
from metrics.ranking import ndcg_at_k
from scoring.evaluation import gate_run
from scoring.evaluation.gate_run import _reducer, measure_models
from scoring.evaluation.prediction_quality import (
    LABEL,
    PROBABILITY,
    _range_reducer,
    combine,
    measure_predictions,
    reduce_rows,
)
from scoring.model.model_info import read_model_info
from storage.feature_spec import GROUP_KEY, ROW_ID, USER_KEY
from storage.run_context import RunContext
from tests.scoring.reference_scores import CONTEXT, ReferenceScores
from tests.scoring.scoring_lake import make_config
from training.checkpoints import load_model


def predictions(rows: int = 5_000) -> tuple[np.ndarray, np.ndarray]:
    """Labels and float32 probabilities with many ties, both ends of [0, 1] included."""
    draw = np.random.default_rng(6)
    probability = np.round(draw.beta(1.2, 4, rows), 2).astype(np.float32)
    probability[:3], probability[3:6] = 0.0, 1.0
    return (draw.random(rows) < probability).astype(np.float32), probability


def in_ranges(label: np.ndarray, probability: np.ndarray, cuts: list[float]) -> list[dict[str, Any]]:
    """The sums of the rows in ranges between these cuts."""
    place = np.searchsorted(cuts, probability, side="right")
    return [
        reduce_rows(label[place == number], probability[place == number]) for number in np.unique(place)[::-1]
    ]


def test_measures_equal_those_of_training() -> None:
    label, probability = predictions()
    actual = combine(in_ranges(label, probability, [])).facts  # type: ignore[arg-type]
    assert actual["auc"] == pytest.approx(metrics.auc(label, probability), abs=1e-12)
    assert actual["log_loss"] == pytest.approx(metrics.log_loss(label, probability), abs=1e-9)
    assert actual["normalized_entropy"] == pytest.approx(
        metrics.normalized_entropy(label, probability), abs=1e-9
    )
    assert (actual["rows"], actual["positives"]) == (len(label), int(label.sum()))
    expected = probability.astype(float).sum() / label.sum()
    assert actual["predicted_over_observed"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("cuts", [[0.5], [0.01, 0.02, 0.03, 0.9], list(np.linspace(0, 1, 97))])
def test_ranges_do_not_change_a_digit(cuts: list[float]) -> None:
    label, probability = predictions()
    cut, whole = (combine(in_ranges(label, probability, value)) for value in (cuts, []))  # type: ignore[arg-type]
    assert (cut.facts, cut.score_bins) == (whole.facts, whole.score_bins)


def test_calibration_and_histogram_describe_the_same_bins() -> None:
    label, probability = predictions()
    actual = combine(in_ranges(label, probability, [0.3])).facts  # type: ignore[arg-type]
    counts, edges = np.histogram(probability.astype(float), bins=20, range=(0, 1))
    assert actual["histogram"]["counts"] == counts.tolist()
    np.testing.assert_allclose(actual["histogram"]["edges"], edges)
    assert sum(bin_["rows"] for bin_ in actual["calibration"]) == len(label)
    second = next(bin_ for bin_ in actual["calibration"] if bin_["low"] == 0.05)
    inside = np.minimum((probability.astype(float) * 20).astype(int), 19) == 1
    assert second["click_rate"] == pytest.approx(label[inside].mean())
    assert second["mean_probability"] == pytest.approx(probability[inside].mean(), abs=1e-6)


def test_through_spark(spark: SparkSession) -> None:
    label, probability = predictions(2_000)
    rows = [(float(a), float(b)) for a, b in zip(label, probability, strict=True)]
    frame = spark.createDataFrame(rows, "label float, probability float").repartition(5)
    assert measure_predictions(frame).facts == combine(in_ranges(label, probability, [])).facts  # type: ignore[arg-type]


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_has_a_loss_but_no_auc(label: float) -> None:
    probability = np.array([0.1, 0.2, 0.3])
    quality = combine([reduce_rows(np.full(3, label), probability)])  # type: ignore[list-item]
    facts, clicks = quality.facts, 3 if label else 0
    assert quality.unmeasured == (
        f"the test split has 3 rows, of which {clicks} are clicks: the AUC needs clicks and non-clicks"
    )
    assert facts["auc"] is facts["normalized_entropy"] is None
    assert facts["log_loss"] == pytest.approx(-np.log(probability if label else 1 - probability).mean())
    expected = pytest.approx(probability.sum() / 3) if label else None
    assert facts["predicted_over_observed"] == expected
    assert (facts["rows"], facts["positives"], sum(facts["histogram"]["counts"])) == (3, clicks, 3)


def test_no_rows_have_no_quality_at_all() -> None:
    quality = combine([])
    assert quality.facts["auc"] is quality.facts["log_loss"] is None
    assert (quality.facts["rows"], quality.facts["calibration"]) == (0, [])
    assert quality.unmeasured == "the test split has no row: the AUC needs clicks and non-clicks"


def test_a_range_of_several_batches_is_reduced_as_one() -> None:
    label, probability = predictions(500)
    table = pa.table({LABEL: label, PROBABILITY: probability})
    (whole,) = _range_reducer(None)(table.to_batches())
    (parts,) = _range_reducer(None)(table.to_batches(max_chunksize=70))
    assert parts.to_pylist() == whole.to_pylist()
    assert whole.to_pylist()[0]["rows"] == 500
    assert list(_range_reducer(None)(table.slice(0, 0).to_batches())) == []


def test_groups_whose_rows_are_in_several_batches_are_measured_as_one() -> None:
    label, probability = predictions(300)
    groups = [f"g{number % 7}" for number in range(300)]
    table = pa.table({"group_key": groups, LABEL: label, PROBABILITY: probability})
    (whole,) = _reducer(5)(table.to_batches())
    (parts,) = _reducer(5)(table.to_batches(max_chunksize=11))
    assert parts.to_pylist() == whole.to_pylist()
    assert whole.to_pylist()[0]["groups"] == 7
    assert list(_reducer(5)(table.slice(0, 0).to_batches())) == []


def test_the_gate_counts_no_ties_among_high_logits(
    reference: ReferenceScores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float32 rounds the sigmoids of logits above 17 to 1. Each group has the rows of one user."""
    model = read_model_info(reference.request.model.path)
    spec = replace(model.spec, key_columns=(ROW_ID, USER_KEY, GROUP_KEY))
    probability = reference.probabilities.ravel()
    label = (np.random.default_rng(2).random(len(probability)) < probability).astype(np.float32)
    weights = load_model(model.path, torch.device("cpu")).model.state_dict()["weights"]
    weight = float(weights[[feature.name for feature in spec.dense].index("hour")])
    pairs = reference.users.merge(reference.items, how="cross").assign(**CONTEXT)
    pairs["hour"] += 20 / weight
    types = {feature.name: feature.dtype for feature in spec.features}
    group = np.unique(pairs.user_key, return_inverse=True)[1]
    pairs = pairs.astype(types).assign(**{LABEL: label, ROW_ID: np.arange(len(pairs)), GROUP_KEY: group})
    rows = pa.Table.from_pandas(pairs, preserve_index=False)
    monkeypatch.setattr(gate_run, "encoded_test_rows", lambda *_: rows)
    monkeypatch.setattr(gate_run, "read_spec", lambda *_: spec)
    monkeypatch.setattr(gate_run, "oov_shares", lambda *_: {})
    job = RunContext("evaluate_model", make_config(tmp_path), "2026-01-08")
    dataset: Any = None
    measures = measure_models(job, dataset, [replace(model, spec=spec)]).models[model.version]
    assert measures.quality.facts["auc"] == pytest.approx(metrics.auc(label, probability), abs=1e-4)
    ndcg = ndcg_at_k(label, probability, group, measures.ranking["k"])
    assert measures.ranking["ndcg"] == pytest.approx(ndcg, abs=1e-4)
