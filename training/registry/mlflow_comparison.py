"""Copies a comparison to MLflow: one parent run, and one child run for each training run.

The run of a pruned trial has the measures up to the last evaluation, and the tag `nightrank.pruned`.

The runs are in the MLflow experiment `<name>-experiments`. No model version is registered and no alias is
set. If the same comparison is copied again, no runs are added. Errors are logged and do not end the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage.manifest import digest_of
from storage.paths import LakePaths
from training.registry.comparison import MEASURES, Comparison, TrainingOutcome
from training.registry.mlflow_mirror import (
    SOURCE_TAG,
    VERSION_TAG,
    find_or_create_run,
    log_training,
    never_fails,
    open_client,
    source_uri,
)
from training.registry.model_json import read_description
from training.registry.search import read_pruned
from training.registry.versions import model_path

_PARENT_TAG = "mlflow.parentRunId"  # the tag by which MLflow's UI shows a run below its parent run
COMPARISON_TAG, EXPERIMENT_TAG = "nightrank.comparison", "nightrank.experiment"
PRUNED_TAG = "nightrank.pruned"  # the number of epochs after which the trial was pruned


@never_fails
def track_comparison(
    lake: LakePaths, name: str, run_date: str, comparison: Comparison, params: Mapping[str, Mapping[str, Any]]
) -> None:
    """Writes a comparison as a parent run with a child run for each training run that is complete or pruned.

    Args:
        lake: the lake of the models.
        name: the name of the experiments' models, which is also the name of the MLflow experiment.
        run_date: the run date.
        comparison: the result.
        params: maps each model version to the nested configuration of its training.
    """
    if (client := open_client(lake)) is None:
        return
    best = comparison.best
    identity = digest_of([comparison.name, run_date, comparison.versions])
    parent = find_or_create_run(
        client, name, f"{comparison.name} {run_date}", {COMPARISON_TAG: identity}, {"run_date": run_date}
    )
    parent_id = parent.info.run_id
    for experiment in comparison.experiments:
        for training in experiment.trainings:
            if training.failure is None:
                description = _description(lake, name, training)
                tags = {
                    SOURCE_TAG: source_uri(lake, name, training.version),
                    EXPERIMENT_TAG: experiment.name,
                }
                if training.pruned is not None:
                    tags[PRUNED_TAG] = f"{training.pruned:.4g}"
                child = find_or_create_run(
                    client,
                    name,
                    f"{experiment.name}, seed {training.seed}",
                    {VERSION_TAG: training.version, _PARENT_TAG: parent_id},
                    tags,
                )
                log_training(client, child, description, params[training.version])
    if parent.info.status == "FINISHED":
        return
    client.set_tag(parent_id, "best", best.name)
    client.log_param(parent_id, "choose_by", comparison.choose_by)
    client.log_param(parent_id, "experiments", len(comparison.experiments))
    for measure in MEASURES:
        if (mean := best.mean("validation", measure)) is not None:
            client.log_metric(parent_id, f"best.validation.{measure}", mean)
    client.set_terminated(parent_id)


def _description(lake: LakePaths, name: str, training: TrainingOutcome) -> Mapping[str, Any]:
    """Returns the model.json of a training run, or its record without final metrics if it was pruned."""
    path = model_path(lake, name, training.version)
    record = read_pruned(path) if training.pruned is not None else None
    return read_description(path) if record is None else {"metrics": {}, "baselines": {}, **record}
