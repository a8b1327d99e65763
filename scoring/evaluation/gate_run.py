"""Runs all steps of the gate in order: measures both models, checks lists and drift, and decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from conf.errors import DataError
from conf.messages import counted
from conf.train_types import ScoreKind
from conf.types import Gate
from etl.build import encode_split
from etl.quality.checks import ClickRates
from etl.quality.checks import DayComparison as DataReport
from etl.workflow.feature_plan import plan_of
from etl.workflow.fitted_workflow import load_workflow
from metrics.bootstrap import Interval, Resample, interval
from metrics.psi import ColumnDrift, bin_numbers, drift_of
from metrics.ranking import map_at_k, ndcg_at_k
from scoring.evaluation.gate import (
    STANDING,
    ChallengerComparison,
    GateCheck,
    GateMeasure,
    ModelFigures,
    Verdict,
    decide,
    keep_champion,
    level_of,
    margin_check,
)
from scoring.evaluation.gate_lists import ListFigures, ListMeasurement, measure_lists_of
from scoring.evaluation.prediction_quality import UNIT, PredictionQuality, measure_predictions
from scoring.evaluation.rows_of_day import LEARNED, learned_rows, rows_after
from scoring.feature_rows import read_split
from scoring.model.model_info import ModelInfo
from scoring.requests import PROBABILITY
from scoring.spark.score_frames import score_rows
from spark.choose_workers import choose_workers
from spark.rows import (
    ReadableRows,
    Rows,
    count,
    map_rows,
    persist,
    query,
    quoted,
    read_in_pieces,
    records,
    select,
    unpersist,
    with_hash,
)
from storage.dataset import Dataset, read_spec
from storage.feature_spec import GROUP_KEY, LABEL, ROW_ID, USER_KEY, FeatureSpec
from storage.manifest import is_published, read_manifest
from storage.run_context import RunContext
from training.registry.versions import ChampionDecision
from training.registry.warm_or_fresh import day_name

# Maps each value of `split.by` to the remedy in the error for a test split without clicks or non-clicks.
_MORE_TEST_ROWS = {
    "day": "choose a run date whose test days have both, or set more test days (split.test_days)",
    "fraction": "lower split.train or split.validation, so that more rows are in the test split",
    "leave_last_out": "deliver a log with more users, or add the section `negatives`",
}


def run_gate(
    context: RunContext,
    dataset: Dataset,
    challenger: ModelInfo,
    champion: ModelInfo | None,
    barred_because: str | None = None,
) -> GateEvaluation:
    """Evaluates a challenger on the test rows of a dataset. This function does not publish tables.

    Test days on which a model was trained are left out. In a log without days, such test rows are left out.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        dataset: the splits that build_features published for the run date.
        challenger: the model to decide on.
        champion: the model that serves before the decision; None if there is none.
        barred_because: the reason of the person who decided against the challenger; None if no person did so.

    Raises:
        DataError: the champion and the challenger were not measured on the same rows, or there is no champion
            and the test split lacks clicks or non-clicks.
    """
    gate = context.config.gate
    models = [challenger] if champion is None else [challenger, champion]
    dataset, held_out = held_out_days(dataset, models)
    after, learned = learned_rows(context, dataset, models)
    measurement = measure_models(context, dataset, models, after)
    challenger_measures, champion_measures, comparison = measurement.models[challenger.version], None, None
    unmeasured = challenger_measures.quality.unmeasured
    if champion is None and unmeasured is not None:
        raise DataError(
            f"{unmeasured}, so {challenger.version} cannot become the first champion",
            _MORE_TEST_ROWS[context.config.split.by],
        )
    if champion is not None:
        champion_measures = measurement.models[champion.version]
        comparison = compare(gate.confidence, challenger_measures, champion_measures, measurement.users)
    measured_lists = measure_lists_of(context, dataset, models, after)
    champion_version = champion.version if champion else None
    lists = compare_lists(gate.confidence, measured_lists, challenger.version, champion_version)
    drift_found, drift = drift_checks(context, challenger_measures, champion_measures)
    checks = [*held_out, *learned, *list_checks(gate, lists), *drift_found]
    if barred_because is not None:
        checks.insert(0, GateCheck(STANDING, "hold", barred_because))
    figures = challenger_measures.figures
    verdict = (
        keep_champion(unmeasured, checks) if figures is None else decide(gate, figures, comparison, checks)
    )
    return GateEvaluation(
        challenger, challenger_measures, champion_measures, comparison, lists, drift, verdict
    )


def held_out_days(dataset: Dataset, models: Sequence[ModelInfo]) -> tuple[Dataset, list[GateCheck]]:
    """Returns the dataset with only those test days on which no model was trained, and a check.

    A model fits the labels of its own training rows too well. A model may have been trained on a test day if
    `split.test_days` was enlarged after the training run. The check reports these days. If no test day is
    left, all are kept, and the check has the level `hold`. If no model was trained on a test day, there is no
    check.
    """
    test, seen = dataset.splits["test"], {}
    for role, model in zip(("challenger", "champion"), models, strict=False):
        known = model.description.get("trained_days", ())
        if days := [day.dt for day in test if day_name(day.dt, day.label) in known]:
            seen[f"the {role} {model.version}"] = days
    if not seen:
        return dataset, []
    message = " and ".join(f"{model} was trained on the test days {days}" for model, days in seen.items())
    left = tuple(day for day in test if not any(day.dt in days for days in seen.values()))
    if not left:
        message += ", so no test day is left for the comparison: train again for a later run date"
        return dataset, [GateCheck(LEARNED, "hold", message)]
    message += f", so the gate measures only the test days {[day.dt for day in left]}"
    return replace(dataset, splits={**dataset.splits, "test": left}), [GateCheck(LEARNED, "warn", message)]


# The code below compares the lists of challenger and champion, and checks the difference against
# `gate.lists_margin`.
#
# NDCG@k decides, because its interval is narrower than the interval of the hit rate. NDCG@k also falls if the
# hits move down in the lists. The hit rate is only reported.

_SETTING = "gate.lists_margin"
_FEW = "too few users to resample"


@dataclass(frozen=True)
class ListComparison:
    """The figures of the lists of challenger and champion, for the same users.

    Attributes:
        measurement: the measured lists.
        challenger, champion: the figures of each model. Both are None if lists were not measured; `champion`
            is also None if there is no champion.
        intervals: maps `hit_rate` and `ndcg` to the confidence interval of the difference, challenger minus
            champion. A key is missing if its interval is unknown.
    """

    measurement: ListMeasurement
    challenger: ListFigures | None = None
    champion: ListFigures | None = None
    intervals: Mapping[str, Interval] = field(default_factory=dict)

    def to_facts(self) -> dict[str, Any]:
        """Returns the figures, without the intervals, as a dictionary that the evaluation writes as JSON."""
        return {
            "k": self.measurement.k,
            "users": self.measurement.users,
            "skipped": self.measurement.skipped,
            "challenger": self.challenger.to_facts() if self.challenger else None,
            "champion": self.champion.to_facts() if self.champion else None,
        }

    def interval_facts(self) -> dict[str, Any]:
        """Returns the intervals of the differences between both models' lists, as JSON values."""
        return {name: asdict(between) for name, between in self.intervals.items()}


def compare_lists(
    confidence: float, measurement: ListMeasurement, challenger: str, champion: str | None
) -> ListComparison:
    """Computes the differences between the lists of two models, with their confidence intervals.

    Args:
        confidence: the confidence of the intervals.
        measurement: the figures of the models' lists.
        challenger, champion: versions of the models; `champion` is None if there is none.
    """
    ours = measurement.models.get(challenger)
    theirs = measurement.models.get(champion) if champion else None
    if ours is None or theirs is None:
        return ListComparison(measurement, ours, theirs)
    differences = {"hit_rate": ours.hit_rate - theirs.hit_rate, "ndcg": ours.ndcg - theirs.ndcg}
    intervals = {
        name: interval(difference, ours.replicates[name], theirs.replicates[name], confidence)
        for name, difference in differences.items()
    }
    known = {name: between for name, between in intervals.items() if between is not None}
    return ListComparison(measurement, ours, theirs, known)


def list_checks(gate: Gate, comparison: ListComparison) -> list[GateCheck]:
    """Returns the checks of the lists.

    The list is empty if there is no champion. If lists could not be measured, there is only one check, which
    gives the reason. If fewer than `gate.min_users` users were measured, no check of the lists prevents the
    promotion. If `gate.lists_users` is smaller, this number of users is enough, because no more are measured.
    """
    measurement = comparison.measurement
    if measurement.skipped is not None:
        message = f"lists were not compared: {measurement.skipped}"
        return [GateCheck("list_ndcg", measurement.level, message)]
    ours, theirs = comparison.challenger, comparison.champion
    if ours is None or theirs is None:
        return []
    k, between = measurement.k, comparison.intervals
    most = gate.min_users if gate.lists_users is None else gate.lists_users
    fewest, setting = min((gate.min_users, "min_users"), (most, "lists_users"))
    enough = measurement.users >= fewest
    remedy = "measure more users (gate.lists_users)"
    ndcg = GateMeasure("list_ndcg", f"NDCG@{k} of lists", _SETTING, remedy, _FEW)
    hit_rate = GateMeasure("list_hit_rate", f"HR@{k} of lists", None, few=_FEW)
    checks = [
        margin_check(
            ndcg, ours.ndcg, theirs.ndcg, between.get("ndcg"), gate.lists_margin if enough else None
        ),
        margin_check(hit_rate, ours.hit_rate, theirs.hit_rate, between.get("hit_rate"), None),
    ]
    if not enough and gate.lists_margin is not None:
        users = f"{counted(measurement.users, 'user')} {'is' if measurement.users == 1 else 'are'}"
        message = f"{checks[0].message}; {users} too few to decide on (gate.{setting}={fewest:,})"
        checks[0] = replace(checks[0], level="warn", message=message)
    return checks


# The second step of the gate checks the challenger's scores and the test day's data for drift.
#
# This step reads the figures about the data from the data report that build_features published (etl.quality).

# Reports and messages name at most this number of columns: those with the largest drift.
_MAX_NAMED = 5
NamedValue = tuple[str, float]


def drift_checks(
    context: RunContext, challenger: ModelMeasures, champion: ModelMeasures | None
) -> tuple[list[GateCheck], dict[str, Any]]:
    """Returns the results of the drift checks, and the figures that were checked.

    The section `gate.drift` of the configuration sets the limits. The figures are a dictionary of JSON
    values, which becomes part of the published evaluation.
    """
    report = data_report(context)
    exempt = {*context.config.quality.exempt, *context.config.drawn_columns}
    scores = score_drift(challenger, champion) if champion else None
    columns = _largest_first(_column_psi(report, exempt)) if report else []
    oov_shares = _largest_first(
        (name, value) for name, value in challenger.oov_shares.items() if name not in exempt
    )
    # With the section `negatives`, the configuration determines the click rate. So a drift of this rate says
    # nothing about the users.
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


def score_drift(challenger: ModelMeasures, champion: ModelMeasures) -> ColumnDrift | None:
    """Returns the drift (PSI) between the scores of the champion and the scores of the challenger.

    The scores are divided into about ten bins. Each bin has an equal share of the champion's scores
    (metrics.psi).
    """
    return drift_of(bin_numbers(champion.quality.score_bins, challenger.quality.score_bins, 0, 0))


def _largest_first(values: Iterator[NamedValue]) -> list[NamedValue]:
    """Sorts pairs (name, value) by descending value, then by name."""
    return sorted(values, key=lambda item: (-item[1], item[0]))


def _column_psi(report: DataReport, exempt: set[str]) -> Iterator[NamedValue]:
    """Yields (name, PSI) for each raw column whose PSI is larger than random variation explains.

    Columns in `exempt` are skipped.
    """
    for column in report.columns:
        if column.name not in exempt and column.psi_above_noise:
            yield column.name, column.psi_above_noise


def _limit_check(context: RunContext, name: str, value: float | None, message: str) -> GateCheck:
    """Compares `value` with the limits `gate.drift.<name>_warn` and `gate.drift.<name>_hold`."""
    limits = context.config.gate.drift
    level, limit = level_of(value, getattr(limits, f"{name}_warn"), getattr(limits, f"{name}_hold"))
    setting = None if level == "ok" else f"gate.drift.{name}_{level}"
    if limit is not None:
        message += f" (above {setting}={limit:g})"
    return GateCheck(name, level, message, value, limit, setting)


def _score_check(context: RunContext, scores: ColumnDrift | None) -> GateCheck | None:
    """Checks how far the challenger's scores drifted from the champion's. Returns None without a champion."""
    if scores is None:
        return None
    message = f"the PSI of the challenger's scores against the champion's scores is {scores.psi:.3f}"
    value = scores.psi_above_noise
    if value:
        message += (
            f"; the largest change is in the bin {scores.moved}, which has {scores.moved_day_share:.1%} of "
            f"the challenger's scores and {scores.moved_train_share:.1%} of the champion's"
        )
    return _limit_check(context, "score_psi", value, message)


def _column_check(context: RunContext, report: DataReport | None, columns: list[NamedValue]) -> GateCheck:
    """Checks how far the raw columns of the test day drifted from the train days."""
    if report is None:
        message = (
            f"there is no data report of {context.run_date}, so the drift of the log was not checked: "
            "run build_features"
        )
        return GateCheck("feature_psi", "warn", message)
    if not columns:
        message = f"no column of {report.day} drifted from its train days"
        return _limit_check(context, "feature_psi", None, message)
    named = ", ".join(f"{name} by PSI {value:.3f}" for name, value in columns[:_MAX_NAMED])
    message = f"columns of {report.day} drifted from its train days: {named}"
    return _limit_check(context, "feature_psi", columns[0][1], message)


def _click_rate_check(
    context: RunContext, report: DataReport | None, click_rates: ClickRates | None
) -> GateCheck | None:
    """Checks how far the click rate of the test rows is from the click rate of the train rows.

    Returns None if one of the click rates is unknown. Also returns None if split.by is `leave_last_out`,
    because this split chooses the rows of test and train by their clicks.
    """
    if report is None or click_rates is None or context.config.split.by == "leave_last_out":
        return None
    message = (
        f"{click_rates.today:.2%} of the test rows are clicks, but {click_rates.train:.2%} of the train rows"
    )
    return _limit_check(context, "click_rate_change", click_rates.change, message)


def _oov_check(context: RunContext, oov_shares: list[NamedValue]) -> GateCheck | None:
    """Checks the largest share of unknown ids that any feature has. Returns None if no feature has ids."""
    if not oov_shares:
        return None
    name, value = oov_shares[0]
    message = f"{value:.2%} of the ids of {name} are unknown to the new vocabulary"
    return _limit_check(context, "oov_share", value, message)


# The last step of the gate formats the result as JSON for the report, and as a record for the registry.

HEADLINE = ("auc", "log_loss", "normalized_entropy", "predicted_over_observed", "rows", "positives")
LINEAGE = (
    "run_date",
    "parent",
    "trained_days",
    "dataset_digest",
    "workflow_version",
    "config_digest",
    "code_version",
)
_WORST_FIRST = ("hold", "warn", "ok")


@dataclass(frozen=True)
class GateEvaluation:
    """The evaluation of a challenger against the champion.

    Attributes:
        info: the challenger's model.json.
        challenger, champion: the measures of each model; `champion` is None if there is no champion.
        comparison: the comparison of challenger and champion; None if there is no champion.
        lists: the comparison of the models' lists.
        drift: the figures that `drift_checks` returns.
        verdict: the decision and all checks.
    """

    info: ModelInfo
    challenger: ModelMeasures
    champion: ModelMeasures | None
    comparison: ChallengerComparison | None
    lists: ListComparison
    drift: Mapping[str, Any]
    verdict: Verdict

    @property
    def champion_after(self) -> str | None:
        """Returns the version of the champion after this decision; None if there is no champion."""
        if self.verdict.promoted:
            return self.challenger.version
        return self.champion.version if self.champion else None

    @property
    def intervals(self) -> dict[str, Any]:
        """Returns the confidence intervals of the differences, challenger minus champion.

        The keys are `auc` and `log_loss`, and for lists `hit_rate` and `ndcg`. A key is missing if its
        interval is unknown.
        """
        if self.comparison is None:
            return {}
        intervals = {"auc": self.comparison.auc, "log_loss": self.comparison.log_loss}
        known = {name: asdict(interval) for name, interval in intervals.items() if interval is not None}
        return known | self.lists.interval_facts()

    @property
    def checks(self) -> list[dict[str, Any]]:
        """Returns the results of all checks as JSON values, ordered by severity: `hold`, `warn`, `ok`."""
        ordered = sorted(self.verdict.checks, key=lambda check: _WORST_FIRST.index(check.level))
        return [_check_facts(check) for check in ordered]

    def facts(self, context: RunContext, dataset: Dataset) -> dict[str, Any]:
        """Returns the results that evaluate_model publishes in the table `evaluations`, as JSON values."""
        resampled_by = "user" if context.config.keys else "row"
        return {
            "challenger": self.challenger.to_facts(),
            "champion": self.champion.to_facts() if self.champion else None,
            "promoted": self.verdict.promoted,
            "reason": self.verdict.reason,
            "margin": context.config.gate.margin,
            "lists_margin": context.config.gate.lists_margin,
            "lists": self.lists.to_facts(),
            "intervals": self.intervals,
            "resampled": {"by": resampled_by, "count": self.comparison.users} if self.comparison else None,
            "checks": self.checks,
            "drift": dict(self.drift),
            "baselines": self.info.description.get("baselines", {}),
            "best_auc": best_auc(context, dataset),
        }

    def decision(self) -> ChampionDecision:
        """Returns the decision as a record for the model registry.

        The record contains the main figures of both models. It also contains the lineage, from which the
        challenger can be trained again.
        """
        return ChampionDecision(
            self.challenger.version,
            self.champion.version if self.champion else None,
            self.verdict.promoted,
            self.champion_after,
            self.verdict.reason,
            metrics={
                "challenger": _headline(self.challenger, self.lists.challenger),
                "champion": _headline(self.champion, self.lists.champion) if self.champion else None,
            },
            intervals=self.intervals,
            checks=self.checks,
            lineage={key: self.info.description.get(key) for key in LINEAGE},
        )


def best_auc(context: RunContext, dataset: Dataset) -> float | None:
    """Returns the AUC of the true click probabilities on the test day: the best AUC that a model can reach.

    Only generated logs record the true click probabilities. The result is None for other logs, and if there
    are several test days.
    """
    days = [member.dt for member in dataset.splits["test"]]
    raw = context.lake.raw.partition(days[0]) if len(days) == 1 else None
    return read_manifest(raw).facts.get("best_auc") if raw and is_published(raw) else None


def _headline(measures: ModelMeasures, lists: ListFigures | None) -> dict[str, Any]:
    """Returns the figures that the registry records for a model."""
    ranking = {"ranking": dict(measures.ranking)} if measures.ranking else {}
    of_lists = {"lists": lists.to_facts()} if lists else {}
    return {**{name: measures.facts[name] for name in HEADLINE}, **ranking, **of_lists}


def _check_facts(check: GateCheck) -> dict[str, Any]:
    """Returns a check as JSON values. In the JSON, the field `message` is named `said`."""
    return {"said" if name == "message" else name: value for name, value in asdict(check).items()}


# The first step of the gate measures both models on the same raw test rows.
#
# The workflow of each model encodes the test rows for this model.

_OF_PROBABILITIES = ("log_loss", "normalized_entropy")
_OF_CLICK_PROBABILITIES = ("predicted_over_observed", "calibration")


@dataclass(frozen=True)
class ModelMeasures:
    """The measures of one model on the test rows.

    Attributes:
        version: the model's version, 16 hexadecimal digits.
        workflow_version: version of the workflow that encoded the test rows.
        quality: the quality of the predicted probabilities.
        oov_shares: maps each id feature to the share of its ids in the test rows that the vocabulary of the
            workflow does not contain.
        ranking: MAP@k and NDCG@k of the groups of rows (`measure_groups`); empty if keys.group is not
            configured.
        scores: the kind of the model's scores. In the result of `to_facts`, values that are undefined for
            this kind are None.
    """

    version: str
    workflow_version: str
    quality: PredictionQuality
    oov_shares: Mapping[str, float]
    ranking: Mapping[str, Any] = field(default_factory=dict)
    scores: ScoreKind = "click_probability"

    @property
    def figures(self) -> ModelFigures | None:
        """Returns the figures that the gate compares; None if the AUC is undefined on the test rows."""
        if self.quality.unmeasured is not None:
            return None
        facts = self.facts
        return ModelFigures(facts["auc"], facts["log_loss"], facts["predicted_over_observed"])

    @property
    def facts(self) -> dict[str, Any]:
        """Returns the quality of the predictions.

        Values that are undefined for the model's kind of scores are None.

        Scores that only order rows have no log loss. Only click probabilities can be compared with a click
        rate.
        """
        missing: tuple[str, ...] = _OF_CLICK_PROBABILITIES if self.scores != "click_probability" else ()
        missing += _OF_PROBABILITIES if self.scores == "ranking" else ()
        return {**self.quality.facts, **dict.fromkeys(missing)}

    def to_facts(self) -> dict[str, Any]:
        """Returns the measures as JSON values for the published evaluation."""
        return {
            "version": self.version,
            "workflow_version": self.workflow_version,
            "oov_shares": dict(self.oov_shares),
            "scores": self.scores,
            **self.facts,
            **({"ranking": dict(self.ranking)} if self.ranking else {}),
        }


@dataclass(frozen=True)
class Measurement:
    """The measures of one or two models on the same rows.

    Attributes:
        models: maps the version of each model to its measures.
        users: number of users that were resampled. If the log has no user column, this is the number of
            distinct row ids. If only one model was measured, this is 0.
    """

    models: Mapping[str, ModelMeasures]
    users: int


def measure_models(
    context: RunContext, dataset: Dataset, models: list[ModelInfo], after: int | None = None
) -> Measurement:
    """Measures each model on the test rows.

    If there are two models, both are also measured on the same bootstrap resamples of the users. The test
    rows are encoded once for each workflow version. If `after` is set, only rows with a later event time (µs)
    are measured.

    Raises:
        DataError: the models were measured on different numbers of rows or clicks, so the raw log has
            changed.
    """
    gate = context.config.gate
    resample = Resample(gate.replicates, gate.seed) if len(models) > 1 else None
    rows: dict[str, ReadableRows] = {}  # maps a workflow version to the test rows that it encoded
    oov: dict[str, dict[str, float]] = {}
    units = 0
    measures: dict[str, ModelMeasures] = {}
    for model in models:
        version = model.spec.workflow_version
        model.require_spec(read_spec(context.lake, version))
        if version not in rows:
            rows.clear()
            with context.phase("encode"):
                rows[version] = rows_after(encoded_test_rows(context, dataset, version), after)
                oov[version] = oov_shares(rows[version], model.spec)
        with context.phase("score"):
            grouped = GROUP_KEY in model.spec.key_columns
            keep = [LABEL, *([_unit_of(model.spec)] if resample else []), *([GROUP_KEY] if grouped else [])]
            request = model.request(context.config.score)
            # float32 would round high probabilities to 1, and rows of equal probability count as ties.
            scored = score_rows(rows[version], model.spec, request, keep, double=True)
            predictions = persist(with_hash(scored, _unit_of(model.spec), UNIT) if resample else scored)
            quality = measure_predictions(predictions, resample)
            ranking = measure_groups(predictions, context.config.measure.group_k) if grouped else {}
            if resample and not units:
                units = _count_units(predictions)
            unpersist(predictions)
        measures[model.version] = ModelMeasures(
            model.version, version, quality, oov[version], ranking, model.score_kind(context.config)
        )
    counts = {(model.quality.facts["rows"], model.quality.facts["positives"]) for model in measures.values()}
    if len(counts) > 1:
        found = " and ".join(f"{rows} rows with {clicks} clicks" for rows, clicks in sorted(counts))
        raise DataError(
            f"champion and challenger were measured on different rows: {found}",
            f"the raw log changed after build_features ran: run build_features for {context.run_date} again",
        )
    return Measurement(measures, units)


def compare(
    confidence: float, challenger: ModelMeasures, champion: ModelMeasures, users: int
) -> ChallengerComparison | None:
    """Compares two models: computes the differences of their measures, challenger minus champion.

    Each difference has a confidence interval. A measure that is undefined for one of the models is not
    compared. Returns None if the AUC of a model is undefined on the test rows.
    """
    of_champion = champion.figures
    if of_champion is None:
        return None

    def difference(name: str) -> Interval | None:
        ours, theirs = challenger.facts[name], champion.facts[name]
        if ours is None or theirs is None:
            return None
        replicates = challenger.quality.replicates[name], champion.quality.replicates[name]
        return interval(ours - theirs, *replicates, confidence)

    rows = int(challenger.quality.facts["rows"])
    return ChallengerComparison(of_champion, difference("auc"), difference("log_loss"), rows, users)


def oov_shares(rows: ReadableRows, spec: FeatureSpec) -> dict[str, float]:
    """Returns the share of out-of-vocabulary ids of each id feature.

    The result maps the name of the feature to this share. An id is out of vocabulary if it represents an
    unknown or rare value. The function runs one query.
    """
    if not spec.embedded:
        return {}
    sums = []
    for number, feature in enumerate(spec.embedded):
        name = quoted(feature.name)
        ids, unknown = "count(1)", f"count(CASE WHEN {name} = {spec.oov_id} THEN 1 END)"
        if feature.kind == "multi_hot":
            known = f"size(array_remove({name}, {spec.oov_id}))"
            ids = f"sum(CASE WHEN {name} IS NULL THEN 0 ELSE size({name}) END)"
            unknown = f"sum(CASE WHEN {name} IS NULL THEN 0 ELSE size({name}) - {known} END)"
        sums += [f"{ids} AS ids_{number}", f"{unknown} AS oov_{number}"]
    names = [feature.name for feature in spec.embedded]
    (totals,) = records(query(f"SELECT {', '.join(sums)} FROM {{rows}}", rows=select(rows, names)))
    return {
        name: (totals[f"oov_{number}"] or 0) / (totals[f"ids_{number}"] or 1)
        for number, name in enumerate(names)
    }


def _count_units(rows: Rows) -> int:
    """Returns the number of distinct units (users or row ids) that a bootstrap resamples."""
    return count(query(f"SELECT DISTINCT {UNIT} FROM {{rows}}", rows=select(rows, [UNIT])))


def _unit_of(spec: FeatureSpec) -> str:
    """Returns the column whose hash is the column UNIT: the user, or the row id without a user column.

    Rows with the same value of UNIT are resampled together. Row ids start at 0 on each day. So without a user
    column, rows of different test days with equal row ids are also resampled together.
    """
    return USER_KEY if USER_KEY in spec.key_columns else ROW_ID


# The code below encodes the test rows of a run date by the workflow of each model that the gate compares.


def encoded_test_rows(context: RunContext, dataset: Dataset, workflow_version: str) -> ReadableRows:
    """Returns the test split of the run date, encoded by the workflow with this version.

    If this workflow computed the features of the dataset, the function reads the published features.
    Otherwise it encodes the raw rows again (etl.build.encode_split).
    """
    if workflow_version == dataset.workflow_version:
        return read_split(context, dataset, ["test"])
    config = context.config
    engine = config.workflow.engine
    workers = choose_workers(engine, lambda: context.spark)
    workflow = load_workflow(
        context.lake, workflow_version, config.output.broadcast_max_rows, engine, workers
    )
    plan, read = plan_of(config), partial(read_in_pieces, context)
    days = [member.dt for member in dataset.splits["test"]]
    return encode_split(workers, plan, context.lake, workflow, context.run_date, "test", read, days)


# The code below measures MAP@k and NDCG@k of ranked groups of rows, such as ads that were displayed together.
#
# All rows of a group are in one Spark task. Each task reduces its groups to one row of integer sums, and the
# driver adds the rows of all tasks. So the result does not depend on the order of the tasks, and the driver's
# memory does not grow with the number of groups.

_UNITS = 2**32
_SUMS = pa.schema([("groups", pa.int64()), ("map_units", pa.int64()), ("ndcg_units", pa.int64())])


def measure_groups(predictions: Rows, k: int) -> dict[str, Any]:
    """Measures MAP@k and NDCG@k of the rows of each group, ranked by descending probability.

    Args:
        predictions: rows with the columns group_key, label and probability. The label is 0 or 1.
        k: number of top positions that are measured.

    Returns:
        A dictionary with the keys `k`, `groups`, `map` and `ndcg`. `groups` is the number of groups with a
        click; all other groups are ignored. `map` and `ndcg` are the means of AP@k and NDCG@k over the groups
        with a click (metrics.ranking); None if no group has a click.
    """
    rows = select(predictions, [GROUP_KEY, LABEL, PROBABILITY])
    of_group = rows.repartition(GROUP_KEY) if isinstance(rows, DataFrame) else rows
    partials = records(map_rows(of_group, _reducer(k), _SUMS))
    groups = sum(sums["groups"] for sums in partials)
    means = {
        name: sum(sums[f"{name}_units"] for sums in partials) / _UNITS / groups if groups else None
        for name in ("map", "ndcg")
    }
    return {"k": k, "groups": groups, **means}


def _reducer(k: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function for `map_rows` that reduces the groups of one task to one row of sums."""

    def reduce(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
        if tables:
            sums = reduce_groups(pa.concat_tables(tables), k)
            yield pa.RecordBatch.from_pylist([sums], schema=_SUMS)

    return reduce


def reduce_groups(rows: pa.Table, k: int) -> dict[str, int]:
    """Returns the number of groups with a click, and the sums of AP@k and of NDCG@k over these groups.

    The sums are integers in units of 2⁻³².

    Args:
        rows: a table with the columns group_key, label and probability, and at least one row. The table must
            contain all rows of each of its groups.
        k: number of top positions that are measured.
    """
    group = rows.column(GROUP_KEY).combine_chunks().dictionary_encode().indices.to_numpy()
    label = rows.column(LABEL).to_numpy()
    score = rows.column(PROBABILITY).to_numpy()
    groups = len(np.unique(group[label > 0]))
    if not groups:
        return {"groups": 0, "map_units": 0, "ndcg_units": 0}
    means = {"map": map_at_k(label, score, group, k), "ndcg": ndcg_at_k(label, score, group, k)}
    return {
        "groups": groups,
        **{f"{name}_units": round(mean * groups * _UNITS) for name, mean in means.items()},
    }
