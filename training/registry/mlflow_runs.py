"""Writes trainings as MLflow runs: tags, parameters and metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

VERSION_TAG, SOURCE_TAG = "nightrank.version", "nightrank.source"
_METRICS_A_CALL, _PARAMS_A_CALL = 1000, 100  # limits of MLflow's log_batch
_PARAM_LENGTH = 500
_TAGS = ("run_date", "workflow_version", "dataset_digest", "code_version", "parent", "refit_of")


def log_training(
    client: MlflowClient, run: Run, description: Mapping[str, Any], params: Mapping[str, Any]
) -> None:
    """Logs tags, parameters and metrics of a training, and ends its run. A run that has ended stays as it is.

    Args:
        client: the client of the store.
        run: the run of the training.
        description: the model's model.json.
        params: the nested configuration. Nested names are joined with dots.
    """
    from mlflow.entities import Param, RunTag

    if run.info.status == "FINISHED":
        return
    run_id = run.info.run_id
    tags = {key: description[key] or "" for key in _TAGS if key in description}
    client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])
    values = [Param(key, str(value)[:_PARAM_LENGTH]) for key, value in _flat(params)]
    for first in range(0, len(values), _PARAMS_A_CALL):
        client.log_batch(run_id, params=values[first : first + _PARAMS_A_CALL])
    metrics = _metrics(description)
    for first in range(0, len(metrics), _METRICS_A_CALL):
        client.log_batch(run_id, metrics=metrics[first : first + _METRICS_A_CALL])
    client.set_terminated(run_id)


def run_of(client: MlflowClient, description: Mapping[str, Any], source: str) -> Run:
    """Returns the run of a training, and creates it if it is missing."""
    version = description["version"]
    run_name = f"{description['run_date']} {version}"
    return find_or_create_run(
        client, description["name"], run_name, {VERSION_TAG: version}, {SOURCE_TAG: source}
    )


def find_or_create_run(
    client: MlflowClient, name: str, run_name: str, identity: Mapping[str, str], tags: Mapping[str, str]
) -> Run:
    """Returns the run with the tags `identity`, and creates it if it is missing.

    If two jobs create a run at the same time, both use the older run.

    Args:
        client: the client of the store.
        name: the name of the MLflow experiment; a missing one is created.
        run_name: the name of a new run.
        identity: tags that identify the run in its MLflow experiment. Values contain no quotes.
        tags: further tags of a new run.
    """
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            experiment = client.get_experiment(client.create_experiment(name))
        except MlflowException:  # another job has just created it
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    experiment_id = experiment.experiment_id

    def runs_by_age() -> list[Run]:
        filters = " and ".join(f"tags.`{tag}` = '{value}'" for tag, value in identity.items())
        runs = client.search_runs([experiment_id], filters)
        return sorted(runs, key=lambda run: (run.info.start_time, run.info.run_id))

    if existing := runs_by_age():
        return existing[0]
    created = client.create_run(experiment_id, run_name=run_name, tags={**identity, **tags})
    oldest = runs_by_age()[0]
    if oldest.info.run_id != created.info.run_id:
        client.delete_run(created.info.run_id)
    return oldest


def _metrics(description: Mapping[str, Any]) -> list[Any]:
    """Returns MLflow metrics: the history by step, and the final metrics of the model and its baselines.

    The name of a final metric is a path, such as `test.auc`.
    """
    from mlflow.entities import Metric

    at_ms = _time_ms(description)
    metrics = [
        Metric(key, float(entry[key]), at_ms, int(entry["step"]))
        for entry in description["history"]
        for key in ("loss", "learning_rate", "rows_per_s", "loader_wait_share")
    ]
    metrics += [
        Metric(f"during.validation.{key}", float(value), at_ms, int(entry["step"]))
        for entry in description["history"]
        for key, value in entry.get("validation", {}).items()
        if value is not None
    ]
    final = {
        **description["metrics"],
        "baseline": description["baselines"],
        "seconds": description["seconds"],
    }
    kept = description.get("kept") or {"step": description["steps"]}
    metrics += [
        Metric(key, float(value), at_ms, int(kept["step"]))
        for key, value in _flat(final)
        if value is not None and not isinstance(value, list)
    ]
    return metrics


def _time_ms(description: Mapping[str, Any]) -> int:
    """Returns the time at which the model was created, in milliseconds since 1970.

    All metrics are logged with this time. So if a metric is logged twice, its curve gets no second point.
    """
    created_at = description.get("created_at")
    time = datetime.fromisoformat(created_at) if created_at else datetime.now(UTC)
    return int(time.timestamp() * 1000)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields one pair (dotted name, value) for each value of nested mappings."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
