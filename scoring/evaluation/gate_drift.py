"""Drift at the gate: how the challenger's scores differ from the champion's, and what the data report says of the test day.

The data report was published by build_features (etl.quality); nothing of it is computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from etl.quality.report_types import ClickRates, Comparison
from metrics.psi import Drift, bin_numbers, drift_of
from scoring.evaluation.gate import Check, level_of
from scoring.evaluation.gate_measures import ModelMeasures
from storage.manifest import is_published, read_manifest
from storage.run_context import RunContext

_NAMED = 5


def drift_checks(
    context: RunContext, challenger: ModelMeasures, champion: ModelMeasures | None
) -> tuple[list[Check], dict[str, Any]]:
    """The checks of the section `gate.drift`, and the figures behind them for the evaluation's facts."""
    report = data_report(context)
    exempt = set(context.config.quality.exempt)
    scores = score_drift(challenger, champion) if champion else None
    columns = sorted(_column_psi(report, exempt), key=lambda each: (-each[1], each[0])) if report else []
    oov = sorted(
        ((name, value) for name, value in challenger.oov_shares.items() if name not in exempt),
        key=lambda each: (-each[1], each[0]),
    )
    clicks = report.click_rates if report else None
    checks = [
        _of_scores(context, scores),
        _of_columns(context, report, columns),
        _of_clicks(context, report, clicks),
        _of_oov(context, oov),
    ]
    facts = {
        "score_psi": scores.psi if scores else None,
        "score_psi_noise": scores.noise if scores else None,
        "feature_psi": dict(columns[:_NAMED]),
        "click_rate": clicks and {"test": clicks.today, "train": clicks.train},
        "oov_share": dict(oov[:_NAMED]),
    }
    return [each for each in checks if each], facts


def data_report(context: RunContext) -> Comparison | None:
    """What the run date's data report says; None where build_features published none."""
    partition = context.lake.quality(context.config.name).partition(context.run_date)
    return Comparison.from_facts(read_manifest(partition).facts) if is_published(partition) else None


def score_drift(challenger: ModelMeasures, champion: ModelMeasures) -> Drift | None:
    """PSI over about ten bins of equal shares of the champion's probabilities (metrics.psi)."""
    return drift_of(bin_numbers(champion.measured.score_bins, challenger.measured.score_bins, 0, 0))


def _column_psi(report: Comparison, exempt: set[str]) -> Iterator[tuple[str, float]]:
    """Raw columns whose drift is more than chance."""
    for column in report.columns:
        if column.name not in exempt and column.psi_above_noise:
            yield column.name, column.psi_above_noise


def _check(context: RunContext, name: str, value: float | None, said: str) -> Check:
    drift = context.config.gate.drift
    level, limit = level_of(value, getattr(drift, f"{name}_warn"), getattr(drift, f"{name}_hold"))
    setting = None if level == "ok" else f"gate.drift.{name}_{level}"
    if limit is not None:
        said += f" (above {setting}={limit:g})"
    return Check(name, level, said, value, limit, setting)


def _of_scores(context: RunContext, scores: Drift | None) -> Check | None:
    if scores is None:
        return None
    said = f"scores moved by PSI {scores.psi:.3f} from the champion's"
    value = scores.psi_above_noise
    if value:
        said += (
            f", most at {scores.moved}, which {scores.moved_day_share:.1%} of its rows have and "
            f"{scores.moved_train_share:.1%} of the champion's"
        )
    return _check(context, "score_psi", value, said)


def _of_columns(context: RunContext, report: Comparison | None, columns: list[tuple[str, float]]) -> Check:
    if report is None:
        said = f"there is no data report of {context.run_date}, so drift of the log was not looked at: run build_features"
        return Check("feature_psi", "warn", said)
    if not columns:
        return _check(context, "feature_psi", None, f"no column of {report.day} drifted from its train days")
    named = ", ".join(f"{name} by PSI {value:.3f}" for name, value in columns[:_NAMED])
    return _check(
        context, "feature_psi", columns[0][1], f"columns of {report.day} drifted from its train days: {named}"
    )


def _of_clicks(context: RunContext, report: Comparison | None, rates: ClickRates | None) -> Check | None:
    if (
        report is None or rates is None or context.config.split.by == "leave_last_out"
    ):  # its splits are made by clicks
        return None
    said = f"{rates.today:.2%} of the test rows are clicks, {rates.train:.2%} of the train rows"
    return _check(context, "click_rate_change", rates.change, said)


def _of_oov(context: RunContext, oov: list[tuple[str, float]]) -> Check | None:
    if not oov:
        return None
    name, value = oov[0]
    return _check(
        context, "oov_share", value, f"{value:.2%} of the ids of {name} are unknown to the new vocabulary"
    )
