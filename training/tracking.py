"""Mirrors trainings and the registry's aliases to MLflow: the embedded store of the lake, or a server.

The lake's JSON files are the truth. Whatever goes wrong here is logged and costs nobody a training. MLflow takes
seconds to import and to open its store, so jobs `prepare` it in a thread while they work.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec

from conf import storage
from conf.lake import Lake

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

log = logging.getLogger("nightrank.tracking")

_VERSION_TAG = "nightrank.version"
_METRICS_A_CALL = 1000  # MLflow's limit for log_batch
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
    threading.Thread(target=_prepare, args=(lake,), name="mlflow", daemon=True).start()


@_never_fails
def _prepare(lake: Lake) -> None:
    _open(lake)


@_never_fails
def track_training(lake: Lake, description: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    """Writes a trained model as an MLflow run and as a registered version with the alias `challenger`.

    A version that is registered already gets the alias only.

    Args:
        description: its model.json.
        params: nested configuration; names are joined by dots.
    """
    client = _open(lake)
    name, version = description["name"], description["version"]
    if _registered(client, name, version) is None:
        _register(client, lake, description, params)
    _set_alias(client, name, "challenger", version)


@_never_fails
def set_aliases(lake: Lake, name: str, versions: Mapping[str, str]) -> None:
    """Points aliases (`champion`, `challenger`) of a registered model at versions."""
    client = _open(lake)
    for alias, version in versions.items():
        _set_alias(client, name, alias, version)


def _open(lake: Lake) -> MlflowClient:
    """A client of MLFLOW_TRACKING_URI's server where that is set, of the lake's own store otherwise."""
    with _import_lock:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or lake.mlflow_uri
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_experiments(max_results=1)  # makes the tables of a new store
    return client


def _register(
    client: MlflowClient, lake: Lake, description: Mapping[str, Any], params: Mapping[str, Any]
) -> None:
    from mlflow.entities import Param, RunTag

    name, version = description["name"], description["version"]
    path = storage.filesystem(f"{lake.models(name)}/{version}")[1]
    experiment = client.get_experiment_by_name(name)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(name)
    run = client.create_run(experiment_id, run_name=f"{description['run_date']} {version}").info.run_id
    tags = {
        key: description[key] or ""
        for key in ("run_date", "workflow_version", "dataset_digest", "code_version", "parent")
    }
    client.log_batch(
        run,
        params=[Param(key, str(value)[:_PARAM_LENGTH]) for key, value in _flat(params)],
        tags=[RunTag(key, value) for key, value in {**tags, _VERSION_TAG: version}.items()],
    )
    metrics = _metrics(description)
    for first in range(0, len(metrics), _METRICS_A_CALL):
        client.log_batch(run, metrics=metrics[first : first + _METRICS_A_CALL])
    client.set_terminated(run)
    if not client.search_registered_models(filter_string=f"name='{name}'"):
        client.create_registered_model(name)
    client.create_model_version(name, source=path, run_id=run, tags={_VERSION_TAG: version})


def _metrics(description: Mapping[str, Any]) -> list[Any]:
    """The history by step, and the final measures of the model and its baselines (`test.auc`, …)."""
    from mlflow.entities import Metric

    now_ms = int(time.time() * 1000)
    found = [
        Metric(key, float(entry[key]), now_ms, int(entry["step"]))
        for entry in description["history"]
        for key in ("loss", "learning_rate", "rows_per_s", "loader_wait_share")
    ]
    found += [
        Metric(f"during.validation.{key}", float(value), now_ms, int(entry["step"]))
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
        Metric(key, float(value), now_ms, description["steps"])
        for key, value in _flat(measures)
        if value is not None and not isinstance(value, list)
    ]
    return found


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
