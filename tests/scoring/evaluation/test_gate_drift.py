"""The gate's checks of drift, from a published data report and from the scores of two models."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conf.types import Config
from etl.quality.checks import ColumnReport, DayComparison, PieceRows
from metrics.psi import bin_keys
from scoring.evaluation.gate_run import ModelMeasures, drift_checks, score_drift
from scoring.evaluation.prediction_quality import PredictionQuality
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.reporting.report_lake import RUN_DATE, publish_facts
from tests.scoring.scoring_lake import make_config


def column(name: str, psi: float | None, noise: float = 0.01) -> ColumnReport:
    """The report of a raw column."""
    return ColumnReport(name, "string", 0, 100, 0, 700, 5, 9, 1, psi, noise, None, (), (), None, None, None)


REPORT = DayComparison(
    RUN_DATE,
    False,
    (
        PieceRows("2026-01-06", "train", 900, 300),
        PieceRows("2026-01-07", "train", 100, 0),
        PieceRows(RUN_DATE, "test", 100, 15),
    ),
    (
        column("steady", 0.005),
        column("moved", 0.4),
        column("more", 0.7),
        column("small", 0.9, noise=1.0),
        column("empty", None),
    ),
)


def measures(probability: np.ndarray, oov: dict[str, float] | None = None) -> ModelMeasures:
    """Measures of a model with these scores."""
    bins = Counter(bin_keys(probability.astype(np.float64)).tolist())
    return ModelMeasures("m", "w", PredictionQuality({}, bins, {}), oov or {})


def job_of(folder: Path, drift: dict[str, Any] | None = None, exempt: list[str] | None = None) -> RunContext:
    """The context of evaluate_model with these limits."""
    config = make_config(folder, gate={"drift": drift or {}}, quality={"exempt": exempt or []})
    return RunContext("evaluate_model", config, RUN_DATE)


def publish(config: Config, report: DayComparison) -> None:
    """Publishes a data report."""
    facts = {**report.to_facts(), "findings": []}
    publish_facts(LakePaths(config.lake).quality(config.name).partition(RUN_DATE), facts)


def checks_of(
    job: RunContext, ours: ModelMeasures, theirs: ModelMeasures | None = None
) -> dict[str, tuple[str, str, str | None]]:
    """Check → level, message and setting."""
    return {
        check.name: (check.level, check.message, check.setting)
        for check in drift_checks(job, ours, theirs)[0]
    }


SCORES = np.random.default_rng(1).beta(2, 6, 20_000).astype(np.float32)


def test_scores_of_one_distribution_do_not_drift_and_shifted_ones_do() -> None:
    other = np.random.default_rng(2).beta(2, 6, 20_000).astype(np.float32)
    same = score_drift(measures(other), measures(SCORES))
    assert same is not None
    assert same.psi < same.noise < 0.01
    moved = score_drift(measures(np.clip(SCORES * 1.8, 0, 1)), measures(SCORES))
    assert moved is not None
    assert 0.25 < moved.psi < 3


def test_the_psi_of_scores_is_that_of_the_champions_tenths() -> None:
    """Against NumPy: both histograms over the quantiles of the champion's scores, up to the width of a bin.

    Scores stay in the champion's range: what lies outside of it has a bin of its own.
    """
    ours = np.clip(SCORES * 1.4, SCORES.min(), SCORES.max())
    edges = np.quantile(SCORES, np.linspace(0, 1, 11))
    e, a = (
        np.histogram(np.clip(scores, edges[0], edges[-1]), edges)[0] / len(scores)
        for scores in (SCORES, ours)
    )
    expected = float(((a - e) * np.log(a / e)).sum())
    drift = score_drift(measures(ours), measures(SCORES))
    assert drift is not None
    assert drift.psi == pytest.approx(expected, rel=0.02)


def test_limits_warn_or_hold_and_name_their_key(tmp_path: Path) -> None:
    ours, theirs = measures(np.clip(SCORES * 1.8, 0, 1), {"who": 0.6, "what": 0.1}), measures(SCORES)
    job = job_of(tmp_path, {"feature_psi_hold": 0.6, "click_rate_change_warn": 0.4, "score_psi_hold": 0.3})
    publish(job.config, REPORT)
    checks = checks_of(job, ours, theirs)
    assert checks["feature_psi"] == (
        "hold",
        f"columns of {RUN_DATE} drifted from its train days: more by PSI 0.700, moved by PSI 0.400 "
        "(above gate.drift.feature_psi_hold=0.6)",
        "gate.drift.feature_psi_hold",
    )
    assert checks["click_rate_change"] == (
        "warn",
        "15.00% of the test rows are clicks, but 30.00% of the train rows "
        "(above gate.drift.click_rate_change_warn=0.4)",
        "gate.drift.click_rate_change_warn",
    )
    assert checks["score_psi"][0] == "hold"
    assert checks["oov_share"] == (
        "warn",
        "60.00% of the ids of who are unknown to the new vocabulary (above gate.drift.oov_share_warn=0.5)",
        "gate.drift.oov_share_warn",
    )


def test_exempt_columns_and_chance_do_not_count(tmp_path: Path) -> None:
    job = job_of(tmp_path, exempt=["who"])
    publish(job.config, replace(REPORT, columns=(column("who", 0.7), column("small", 0.9, noise=1.0))))
    checks = checks_of(job, measures(SCORES, {"who": 0.9, "what": 0.1}), measures(SCORES))
    assert {name: level for name, (level, _, _) in checks.items()} == {
        "score_psi": "ok",
        "feature_psi": "ok",
        "click_rate_change": "ok",
        "oov_share": "ok",
    }
    assert "what" in checks["oov_share"][1]


def test_without_a_report_or_a_champion_it_is_said_what_was_not_looked_at(tmp_path: Path) -> None:
    checks = checks_of(job_of(tmp_path), measures(SCORES))
    assert set(checks) == {"feature_psi"}
    assert checks["feature_psi"][0] == "warn"
    assert f"there is no data report of {RUN_DATE}" in checks["feature_psi"][1]


def test_drawn_negatives_leave_no_click_rate_to_check(tmp_path: Path) -> None:
    for negatives, checked in ((None, True), ({"per_positive": 4}, False)):
        config = make_config(tmp_path / str(checked), negatives=negatives)
        publish(config, REPORT)
        checks, facts = drift_checks(RunContext("evaluate_model", config, RUN_DATE), measures(SCORES), None)
        assert ("click_rate_change" in {check.name for check in checks}) is checked
        assert (facts["click_rate"] is not None) is checked


@pytest.mark.parametrize(
    "scores, missing",
    [
        ("click_probability", set()),
        ("probability", {"predicted_over_observed", "calibration"}),
        ("ranking", {"predicted_over_observed", "calibration", "log_loss", "normalized_entropy"}),
    ],
)
def test_facts_that_the_scores_cannot_have_are_null(scores: Any, missing: set[str]) -> None:
    names = ("auc", "log_loss", "normalized_entropy", "predicted_over_observed", "calibration", "histogram")
    quality = PredictionQuality(dict.fromkeys(names, 0.5), Counter(), {})
    model = ModelMeasures("m", "w", quality, {}, scores=scores)
    facts = model.to_facts()
    assert {name for name in names if facts[name] is None} == missing
    assert facts["scores"] == scores
    assert (model.figures.log_loss is None) == ("log_loss" in missing)
    assert (model.figures.calibration is None) == ("calibration" in missing)
