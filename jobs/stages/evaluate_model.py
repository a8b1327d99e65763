"""Compares challenger and champion on the same raw test rows; the gate decides which model serves.

Each model reads these rows through its workflow version.
"""

from __future__ import annotations

import logging

from conf.load import config_digest
from scoring.evaluation.gate import Check, Verdict, judge
from scoring.evaluation.gate_drift import drift_checks
from scoring.evaluation.gate_measures import compare, measure_models
from scoring.evaluation.gate_record import Evaluation
from scoring.model.model_info import read_model_info
from storage.dataset import read_dataset
from storage.job_summary import JobSummary
from storage.publish import publish_facts
from storage.run_context import RunContext
from training.registry import mlflow_mirror
from training.registry.champion_history import standing_as_of
from training.registry.versions import barred, challenger_of, model_path, record_decision

log = logging.getLogger("nightrank.evaluate_model")


def run(context: RunContext) -> JobSummary:
    """Measures both models, publishes the comparison, and last of all records the decision."""
    lake, name, run_date = context.lake, context.config.name, context.run_date
    challenger = read_model_info(model_path(lake, name, challenger_of(lake, name, run_date)))
    mlflow_mirror.prepare(lake)
    standing = standing_as_of(lake, name, run_date, before=True)
    before = standing.champion
    champion = read_model_info(model_path(lake, name, before)) if before else None
    dataset = read_dataset(lake, run_date)
    measured = measure_models(
        context.spark, context, dataset, [challenger, *([champion] if champion else [])]
    )
    challenger_measures = measured.models[challenger.version]
    champion_measures = measured.models[champion.version] if champion else None
    compared = (
        compare(context.config.gate.confidence, challenger_measures, champion_measures, measured.users)
        if champion_measures
        else None
    )
    checks, drift = drift_checks(context, challenger_measures, champion_measures)
    reason = barred(lake, name, challenger.version, standing)
    if reason:
        checks.insert(0, Check("standing", "hold", reason))
    verdict = judge(context.config.gate, challenger_measures.figures, compared, checks)
    _log_verdict(verdict)
    evaluation = Evaluation(challenger, challenger_measures, champion_measures, compared, drift, verdict)
    facts = evaluation.facts(context, dataset)
    with context.phase("decide"):
        inputs = {
            "challenger": challenger.version,
            "champion": before or "",
            "dataset": dataset.digest,
            "config": config_digest(context.config, "gate"),
        }
        publish_facts(lake.evaluations.partition(run_date), inputs=inputs, facts=facts)
        record_decision(lake, name, run_date, evaluation.decision())
    rows = facts["challenger"]["rows"]
    return JobSummary(
        output=lake.evaluations.partition(run_date).path,
        rows_in=rows,
        rows_out=rows,
        facts={
            "promoted": verdict.promoted,
            "reason": verdict.reason,
            "warnings": [check.said for check in verdict.checks if check.level == "warn"],
            "challenger": challenger.version,
            "champion": evaluation.champion_after,
            "challenger_auc": challenger_measures.figures.auc,
            "champion_auc": champion_measures.figures.auc if champion_measures else None,
            "auc_interval": evaluation.intervals.get("auc"),
            "best_auc": facts["best_auc"],
            **({"challenger_ranking": challenger_measures.ranking} if challenger_measures.ranking else {}),
        },
    )


def _log_verdict(verdict: Verdict) -> None:
    """Logs the verdict and each check that is not ok."""
    log.info("%s: %s", "promoted" if verdict.promoted else "not promoted", verdict.reason)
    for check in verdict.checks:
        if check.level != "ok":
            log.warning("gate, %s: %s", check.level, check.said)
