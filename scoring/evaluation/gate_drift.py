"""Second step of the gate: checks the challenger's scores and the test day's data for drift.

This step does not compute the figures about the data again. It reads them from the data report that
build_features published (etl.quality).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from etl.quality.report_rates import ClickRates
from etl.quality.report_rates import Comparison as DataReport
from metrics.psi import Drift, bin_numbers, drift_of
from scoring.evaluation.gate import Check, level_of
from scoring.evaluation.gate_measures import ModelMeasures
from storage.manifest import is_published, read_manifest
from storage.run_context import RunContext

# The facts and messages name this many columns: the ones with the largest drift.
_MAX_NAMED = 5

NamedValue = tuple[str, float]


def drift_checks(
    context: RunContext, challenger: ModelMeasures, champion: ModelMeasures | None
) -> tuple[list[Check], dict[str, Any]]:
    """Returns the results of the drift checks, and the figures that were checked.

    The section `gate.drift` of the configuration sets the limits. The figures are a dictionary of JSON values
    for the facts of the evaluation.
    """
    report = data_report(context)
    exempt = {*context.config.quality.exempt, *context.config.drawn_columns}
    scores = score_drift(challenger, champion) if champion else None
    columns = _largest_first(_column_psi(report, exempt)) if report else []
    oov_shares = _largest_first(
        (name, value) for name, value in challenger.oov_shares.items() if name not in exempt
    )
    # The section `negatives` decides how many rows are no clicks, not what users do.
    click_rates = report.click_rates if report and context.config.negatives is None else None
    checks = [
        _score_check(context, scores),
        _column_check(context, report, columns),
        _click_rate_check(context, report, click_rates),
        _oov_check(context, oov_shares),
    ]
    facts = {
        "score_psi": scores.psi if scores else None,
        "score_psi_noise": scores.noise if scores else None,
        "feature_psi": dict(columns[:_MAX_NAMED]),
        "click_rate": click_rates and {"test": click_rates.today, "train": click_rates.train},
        "oov_share": dict(oov_shares[:_MAX_NAMED]),
    }
    return [check for check in checks if check], facts


def data_report(context: RunContext) -> DataReport | None:
    """Returns the data report of the run date, or None if build_features published no data report."""
    partition = context.lake.quality(context.config.name).partition(context.run_date)
    return DataReport.from_facts(read_manifest(partition).facts) if is_published(partition) else None


def score_drift(challenger: ModelMeasures, champion: ModelMeasures) -> Drift | None:
    """Returns the drift (PSI) between the scores of the champion and the scores of the challenger.

    The scores are divided into about ten bins. Each bin has an equal share of the champion's scores
    (metrics.psi).
    """
    return drift_of(bin_numbers(champion.quality.score_bins, challenger.quality.score_bins, 0, 0))


def _largest_first(values: Iterator[NamedValue]) -> list[NamedValue]:
    """Sorts pairs (name, value) by descending value, then by name."""
    return sorted(values, key=lambda item: (-item[1], item[0]))


def _column_psi(report: DataReport, exempt: set[str]) -> Iterator[NamedValue]:
    """Yields (name, PSI) for each raw column whose PSI is larger than chance explains.

    Columns in `exempt` are skipped.
    """
    for column in report.columns:
        if column.name not in exempt and column.psi_above_noise:
            yield column.name, column.psi_above_noise


def _limit_check(context: RunContext, name: str, value: float | None, message: str) -> Check:
    """Compares `value` with the limits `gate.drift.<name>_warn` and `gate.drift.<name>_hold`."""
    limits = context.config.gate.drift
    level, limit = level_of(value, getattr(limits, f"{name}_warn"), getattr(limits, f"{name}_hold"))
    setting = None if level == "ok" else f"gate.drift.{name}_{level}"
    if limit is not None:
        message += f" (above {setting}={limit:g})"
    return Check(name, level, message, value, limit, setting)


def _score_check(context: RunContext, scores: Drift | None) -> Check | None:
    """Checks how far the challenger's scores drifted from the champion's. Returns None without a champion."""
    if scores is None:
        return None
    message = f"scores moved by PSI {scores.psi:.3f} from the champion's"
    value = scores.psi_above_noise
    if value:
        message += (
            f", most in the bin {scores.moved}, which has {scores.moved_day_share:.1%} of the challenger's "
            f"scores and {scores.moved_train_share:.1%} of the champion's"
        )
    return _limit_check(context, "score_psi", value, message)


def _column_check(context: RunContext, report: DataReport | None, columns: list[NamedValue]) -> Check:
    """Checks how far the raw columns of the test day drifted from the train days."""
    if report is None:
        message = (
            f"there is no data report of {context.run_date}, so the drift of the log was not checked: "
            "run build_features"
        )
        return Check("feature_psi", "warn", message)
    if not columns:
        message = f"no column of {report.day} drifted from its train days"
        return _limit_check(context, "feature_psi", None, message)
    named = ", ".join(f"{name} by PSI {value:.3f}" for name, value in columns[:_MAX_NAMED])
    message = f"columns of {report.day} drifted from its train days: {named}"
    return _limit_check(context, "feature_psi", columns[0][1], message)


def _click_rate_check(
    context: RunContext, report: DataReport | None, click_rates: ClickRates | None
) -> Check | None:
    """Checks how far the click rate of the test rows is from the click rate of the train rows.

    Returns None if one of the click rates is unknown. Also returns None if split.by is `leave_last_out`,
    because this split chooses the rows of test and train by their clicks.
    """
    if report is None or click_rates is None or context.config.split.by == "leave_last_out":
        return None
    message = (
        f"{click_rates.today:.2%} of the test rows are clicks, {click_rates.train:.2%} of the train rows"
    )
    return _limit_check(context, "click_rate_change", click_rates.change, message)


def _oov_check(context: RunContext, oov_shares: list[NamedValue]) -> Check | None:
    """Checks the feature with the largest share of unknown ids. Returns None if no feature has ids."""
    if not oov_shares:
        return None
    name, value = oov_shares[0]
    message = f"{value:.2%} of the ids of {name} are unknown to the new vocabulary"
    return _limit_check(context, "oov_share", value, message)
