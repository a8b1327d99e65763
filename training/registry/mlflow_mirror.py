"""Mirrors trainings and the registry's aliases to MLflow: the server of MLFLOW_TRACKING_URI, or a store in a local lake.

A lake on an object store has no store of its own, because SQLite needs a local file: without a server nothing is mirrored.

The lake's JSON files are the truth. Whatever goes wrong here is logged and costs nobody a training. MLflow takes
seconds to import and to open its store, so jobs `prepare` it in a thread while they work.

A training is one run and one version of the registered model, both tagged `nightrank.version`, however often it is mirrored.
The tag `nightrank.source` is the URI of the model's folder. It is the version's source too, where MLflow accepts it: a server
refuses local paths, which it could not tell from paths of its own disk.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from storage import file_io
from storage.paths import Lake

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

log = logging.getLogger("nightrank.tracking")

_VERSION_TAG, _SOURCE_TAG = "nightrank.version", "nightrank.source"
_METRICS_A_CALL, _PARAMS_A_CALL = 1000, 100  # MLflow's limits for log_batch
_PARAM_LENGTH = 500
_import_lock = threading.Lock()

P = ParamSpec("P")


def _never_fails(function: Callable[P, None]) -> Callable[P, None]:
    """Turns any failure into a logged warning."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Exception as error:
            log.warning(
                "MLflow was not written, the lake's registry was (%s: %s)", type(error).__name__, error
            )

    return guarded


def prepare(lake: Lake) -> None:
    """Begins to import MLflow and to make the store's tables, in a thread; later calls wait for it."""
    if _uri(lake) is not None:
        threading.Thread(target=_prepare, args=(lake,), name="mlflow", daemon=True).start()


@_never_fails
def _prepare(lake: Lake) -> None:
    _open(lake)


@_never_fails
def track_training(lake: Lake, description: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    """Writes a trained model as an MLflow run and as a registered version with the alias `challenger`.

    What is there already is left as it is, and what a killed job has left undone is completed.

    Args:
        description: its model.json.
        params: nested configuration; names are joined by dots.
    """
    if (client := _open(lake)) is None:
        return
    name, version = description["name"], description["version"]
    if _registered(client, name, version) is None:
        run = _logged_run(client, description, params, _source(lake, name, version))
        _register(client, name, version, run, _source(lake, name, version))
    _set_alias(client, name, "challenger", version)


@_never_fails
def set_aliases(lake: Lake, name: str, versions: Mapping[str, str]) -> None:
    """Points aliases (`champion`, `challenger`) of a registered model at versions."""
    if (client := _open(lake)) is None:
        return
    for alias, version in versions.items():
        _set_alias(client, name, alias, version)


def _uri(lake: Lake) -> str | None:
    return os.environ.get("MLFLOW_TRACKING_URI") or lake.mlflow_uri


def _source(lake: Lake, name: str, version: str) -> str:
    """The URI of a model's folder, in the schemes that MLflow reads."""
    path = f"{lake.models(name)}/{version}"
    if file_io.is_local(path):
        return Path(file_io.filesystem(path)[1]).as_uri()
    return f"s3://{path.removeprefix('s3a://')}" if path.startswith("s3a://") else path


def _open(lake: Lake) -> MlflowClient | None:
    """A client of MLFLOW_TRACKING_URI's server where that is set, of the lake's own store otherwise; None without either."""
    uri = _uri(lake)
    if uri is None:
        log.info(
            "MLflow is not written: MLFLOW_TRACKING_URI is not set, and %s is no local folder for a store",
            lake.root,
        )
        return None
    with _import_lock:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_experiments(max_results=1)  # makes the tables of a new store
    return client


def _logged_run(
    client: MlflowClient, description: Mapping[str, Any], params: Mapping[str, Any], source: str
) -> str:
    """The id of the one run of a training, with all that is known of it."""
    from mlflow.entities import Param, RunTag

    run = _run_of(client, description, source)
    if run.info.status == "FINISHED":
        return str(run.info.run_id)
    run_id = run.info.run_id
    tags = {
        key: description[key] or ""
        for key in ("run_date", "workflow_version", "dataset_digest", "code_version", "parent")
    }
    client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])
    values = [Param(key, str(value)[:_PARAM_LENGTH]) for key, value in _flat(params)]
    for first in range(0, len(values), _PARAMS_A_CALL):
        client.log_batch(run_id, params=values[first : first + _PARAMS_A_CALL])
    metrics = _metrics(description)
    for first in range(0, len(metrics), _METRICS_A_CALL):
        client.log_batch(run_id, metrics=metrics[first : first + _METRICS_A_CALL])
    client.set_terminated(run_id)
    return str(run_id)


def _run_of(client: MlflowClient, description: Mapping[str, Any], source: str) -> Run:
    """The run of a training, made where it is missing. Two jobs at once agree on the older one."""
    from mlflow.exceptions import MlflowException

    name, version = description["name"], description["version"]
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            experiment = client.get_experiment(client.create_experiment(name))
        except MlflowException:  # another job has just made it
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    experiment_id = experiment.experiment_id

    def found() -> list[Run]:
        runs = client.search_runs([experiment_id], f"tags.`{_VERSION_TAG}` = '{version}'")
        return sorted(runs, key=lambda run: (run.info.start_time, run.info.run_id))

    if known := found():
        return known[0]
    made = client.create_run(
        experiment_id,
        run_name=f"{description['run_date']} {version}",
        tags={_VERSION_TAG: version, _SOURCE_TAG: source},
    )
    first = found()[0]
    if first.info.run_id != made.info.run_id:
        client.delete_run(made.info.run_id)
    return first


def _register(client: MlflowClient, name: str, version: str, run_id: str, source: str) -> None:
    from mlflow.exceptions import MlflowException

    if not client.search_registered_models(filter_string=f"name='{name}'"):
        client.create_registered_model(name)
    tags = {_VERSION_TAG: version, _SOURCE_TAG: source}
    try:
        client.create_model_version(name, source=source, run_id=run_id, tags=tags)
    except MlflowException as error:
        if error.error_code != "INVALID_PARAMETER_VALUE":
            raise
        log.info("MLflow does not accept %s as a source; the tag %s holds it", source, _SOURCE_TAG)
        client.create_model_version(name, source=f"runs:/{run_id}/model", run_id=run_id, tags=tags)


def _metrics(description: Mapping[str, Any]) -> list[Any]:
    """The history by step, and the final measures of the model and its baselines (`test.auc`, …)."""
    from mlflow.entities import Metric

    at_ms = _time_ms(description)
    found = [
        Metric(key, float(entry[key]), at_ms, int(entry["step"]))
        for entry in description["history"]
        for key in ("loss", "learning_rate", "rows_per_s", "loader_wait_share")
    ]
    found += [
        Metric(f"during.validation.{key}", float(value), at_ms, int(entry["step"]))
        for entry in description["history"]
        for key, value in entry.get("validation", {}).items()
        if value is not None
    ]
    measures = {
        **description["metrics"],
        "baseline": description["baselines"],
        "seconds": description["seconds"],
    }
    found += [
        Metric(key, float(value), at_ms, description["steps"])
        for key, value in _flat(measures)
        if value is not None and not isinstance(value, list)
    ]
    return found


def _time_ms(description: Mapping[str, Any]) -> int:
    """When the model was made: the same each time, so that metrics logged again are no second points of a curve."""
    created_at = description.get("created_at")
    made = datetime.fromisoformat(created_at) if created_at else datetime.now(UTC)
    return int(made.timestamp() * 1000)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, leaf) of nested mappings."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _registered(client: MlflowClient, name: str, version: str) -> str | None:
    """MLflow's number of one of our versions."""
    found = client.search_model_versions(f"name='{name}' and tags.`{_VERSION_TAG}`='{version}'")
    return found[0].version if found else None


def _set_alias(client: MlflowClient, name: str, alias: str, version: str) -> None:
    number = _registered(client, name, version)
    if number is not None:
        client.set_registered_model_alias(name, alias, number)
