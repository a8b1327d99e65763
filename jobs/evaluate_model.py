"""Challenger against champion on the same raw test rows, each through its own workflow; the gate decides who serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from conf.dataset import Dataset, read_dataset, read_spec
from conf.errors import DataError
from conf.feature_spec import GROUP_KEY, LABEL
from conf.load import config_digest
from conf.manifest import is_published, read_manifest
from etl.build import encode_split
from etl.publish import publish_facts
from etl.workflow import load_workflow
from jobs.runner import Job, Result, run
from scoring.features import read_split
from scoring.gate import judge
from scoring.model_info import ModelInfo, read_model_info
from scoring.quality import measure_predictions
from scoring.ranking import measure_groups
from scoring.score import score_rows
from training import tracking
from training.registry import Decision, challenger_of, champion_as_of, model_path, record_decision

HEADLINE = ("auc", "log_loss", "normalized_entropy", "rows", "positives", "ranking")


def evaluate_model(job: Job) -> Result:
    """Measures both models, publishes the comparison, and last of all records the decision."""
    lake, name, run_date = job.lake, job.config.name, job.run_date
    challenger = read_model_info(model_path(lake, name, challenger_of(lake, name, run_date)))
    tracking.prepare(lake)
    before = champion_as_of(lake, name, run_date, before=True)
    champion = read_model_info(model_path(lake, name, before)) if before else None
    dataset = read_dataset(lake, run_date)
    measured = measure_models(job.spark, job, dataset, [challenger, *([champion] if champion else [])])
    ours, theirs = measured[challenger.version], measured[champion.version] if champion else None
    verdict = judge(ours["auc"], theirs["auc"] if theirs else None, job.config.gate.margin)
    facts = {
        "challenger": ours,
        "champion": theirs,
        "promoted": verdict.promoted,
        "reason": verdict.reason,
        "margin": job.config.gate.margin,
        "baselines": challenger.description.get("baselines", {}),
        "best_auc": best_auc(job, dataset),
    }
    with job.phase("decide"):
        publish_facts(
            lake.evaluations.partition(run_date),
            inputs={
                "challenger": challenger.version,
                "champion": before or "",
                "dataset": dataset.digest,
                "config": config_digest(job.config, "gate"),
            },
            facts=facts,
        )
        after = challenger.version if verdict.promoted else before
        metrics = {"challenger": headline(ours), "champion": headline(theirs) if theirs else None}
        decision = Decision(challenger.version, before, verdict.promoted, after, verdict.reason, metrics)
        record_decision(lake, name, run_date, decision)
    return Result(
        output=lake.evaluations.partition(run_date).path,
        rows_in=ours["rows"],
        rows_out=ours["rows"],
        facts={
            "promoted": verdict.promoted,
            "reason": verdict.reason,
            "challenger": challenger.version,
            "champion": after,
            "challenger_auc": ours["auc"],
            "champion_auc": theirs["auc"] if theirs else None,
            "best_auc": facts["best_auc"],
            **{f"challenger_{name}": ours[name] for name in ("ranking",) if name in ours},
        },
    )


def measure_models(
    spark: SparkSession, job: Job, dataset: Dataset, models: list[ModelInfo]
) -> dict[str, dict[str, Any]]:
    """version → its quality on the test rows; models of one workflow version share their encoded rows.

    Raises:
        DataError: the models did not see the same raw rows.
    """
    rows: dict[str, DataFrame] = {}
    measured: dict[str, dict[str, Any]] = {}
    for model in models:
        version = model.spec.workflow_version
        model.require_spec(read_spec(job.lake, version))
        if version not in rows:
            with job.phase("encode"):
                rows[version] = rows_to_judge(spark, job, dataset, version)
        with job.phase("score"):
            keep = [LABEL, *(name for name in model.spec.key_columns if name == GROUP_KEY)]
            request = model.request(job.config.score)
            predictions = score_rows(rows[version], model.spec, request, keep).persist()
            quality = measure_predictions(predictions)
            if GROUP_KEY in keep:
                quality["ranking"] = measure_groups(predictions, job.config.measure.group_k)
            predictions.unpersist()
        measured[model.version] = {"version": model.version, "workflow_version": version, **quality}
    counts = {(each["rows"], each["positives"]) for each in measured.values()}
    if len(counts) > 1:
        raise DataError(
            f"champion and challenger were measured on different rows (rows, clicks): {sorted(counts)}",
            f"the raw log changed since build_features ran: run it for {job.run_date} again",
        )
    return measured


def rows_to_judge(spark: SparkSession, job: Job, dataset: Dataset, workflow_version: str) -> DataFrame:
    """The test split of the run date as this workflow encodes it: the published features where it made them."""
    if workflow_version == dataset.workflow_version:
        return read_split(spark, job.lake, dataset, ["test"])
    workflow = load_workflow(job.lake, workflow_version, job.config.output.broadcast_max_rows)
    return encode_split(spark, job.config, workflow, job.run_date, "test").persist()


def best_auc(job: Job, dataset: Dataset) -> float | None:
    """The best AUC the test day allows, where the log was generated and says so."""
    days = [member.dt for member in dataset.splits["test"]]
    raw = job.lake.raw.partition(days[0]) if len(days) == 1 else None
    return read_manifest(raw).facts.get("best_auc") if raw and is_published(raw) else None


def headline(quality: Mapping[str, Any]) -> dict[str, Any]:
    """The measures that fit a decision's record: without tables; `ranking` is there where keys.group is."""
    return {name: quality[name] for name in HEADLINE if name in quality}


if __name__ == "__main__":
    run("evaluate_model", __doc__ or "", evaluate_model)
