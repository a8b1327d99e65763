"""Compares challenger and champion on the same raw test rows; the gate decides which model serves.

The features of a model are computed by the workflow version with which the model was trained.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from conf.load import config_digest
from conf.types import SPLITS, Split
from jobs.runner import run_job
from scoring.evaluation.gate import Verdict
from scoring.evaluation.gate_run import run_gate
from scoring.feature_rows import count_rows
from scoring.model.model_info import read_model_info
from spark.choose_workers import stay_in_process
from storage.dataset import read_dataset
from storage.job_summary import JobSummary
from storage.publish import publish_facts
from storage.run_context import RunContext
from training.registry import mlflow_mirror
from training.registry.champion_history import champion_state_as_of
from training.registry.overrides import reason_against_promotion
from training.registry.versions import challenger_of, model_path, record_decision

DESCRIPTION = (
    "Compares the challenger with the champion on the same raw test rows. Each model's workflow computes "
    "its features from these rows. The gate then decides which of the two models serves."
)

log = logging.getLogger("nightrank.evaluate_model")


def run(context: RunContext) -> JobSummary:
    """Measures challenger and champion, publishes the comparison, and finally records the gate's decision."""
    lake, name, run_date = context.lake, context.config.name, context.run_date
    challenger = read_model_info(model_path(lake, name, challenger_of(lake, name, run_date)), lake.recorder)
    mlflow_mirror.prepare(lake)
    champion_state = champion_state_as_of(lake, name, run_date, before=True)
    before = champion_state.champion
    champion = read_model_info(model_path(lake, name, before), lake.recorder) if before else None
    dataset = read_dataset(lake, run_date)
    # If the gate compares no lists, only test rows are read. The rows of only one workflow are in memory at a
    # time.
    splits: Sequence[Split] = SPLITS if context.config.gate.lists_users else ("test",)
    stay_in_process(context, count_rows(lake, dataset, splits))
    barred_because = reason_against_promotion(lake, name, challenger.version, champion_state)
    evaluation = run_gate(context, dataset, challenger, champion, barred_because)
    verdict = evaluation.verdict
    _log_verdict(verdict)
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
    rows, ranking = facts["challenger"]["rows"], evaluation.challenger.ranking
    return JobSummary(
        output=lake.evaluations.partition(run_date).path,
        rows_in=rows,
        rows_out=rows,
        facts={
            "promoted": verdict.promoted,
            "reason": verdict.reason,
            "warnings": [check.message for check in verdict.checks if check.level == "warn"],
            "challenger": challenger.version,
            "champion": evaluation.champion_after,
            "challenger_auc": facts["challenger"]["auc"],
            "champion_auc": facts["champion"]["auc"] if facts["champion"] else None,
            **(
                {"unmeasured": unmeasured} if (unmeasured := evaluation.challenger.quality.unmeasured) else {}
            ),
            "auc_interval": evaluation.intervals.get("auc"),
            "best_auc": facts["best_auc"],
            **({"challenger_ranking": ranking} if ranking else {}),
            **_list_facts(facts["lists"]),
            "ndcg_interval": evaluation.intervals.get("ndcg"),
        },
    )


def _list_facts(lists: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figures of both models' lists for the job summary, such as `challenger_ndcg`.

    Args:
        lists: the value of the key `lists` in the `facts` of the evaluation's manifest.
    """
    figures = {
        f"{model}_{name}": lists[model][name] if lists[model] else None
        for model in ("challenger", "champion")
        for name in ("hit_rate", "ndcg")
    }
    return {"list_users": lists["users"], "lists_skipped": lists["skipped"], **figures}


def _log_verdict(verdict: Verdict) -> None:
    """Logs the decision of the gate and each check that is not ok."""
    log.info("%s: %s", "promoted" if verdict.promoted else "not promoted", verdict.reason)
    for check in verdict.checks:
        if check.level != "ok":
            log.warning("gate, %s: %s", check.level, check.message)


if __name__ == "__main__":
    run_job("evaluate_model", DESCRIPTION, run)
