"""Copies trainings and aliases to MLflow: to the server in MLFLOW_TRACKING_URI, or to a local store.

The local store is a SQLite file in the lake, if the lake is on a local disk. If the lake is on an object
store and there is no server, nothing is copied.

The JSON files in the lake are the source of truth. An error in this module is logged and does not end a
training. Importing MLflow and opening its store takes seconds, so jobs call `prepare`, which does both in a
thread. The application of a run does both in a process of its own (mlflow_process.py).

A training becomes one MLflow run and one version of the registered model, even if the training is copied
several times. Run and version have the tag `nightrank.version`. The tag `nightrank.source` is the URI of the
model's folder. The source of the MLflow version is the same URI if MLflow accepts this URI. An MLflow server
refuses local paths, because it would read them on its own disk. The folder has a file `MLmodel`, so MLflow
can load the version (mlflow_model.py). If the server refuses the URI, the run gets this file as an artifact.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from storage import file_io
from storage.paths import Lake
from training.registry import mlflow_model, mlflow_process
from training.registry.mlflow_runs import SOURCE_TAG, VERSION_TAG, log_training, run_of

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

log = logging.getLogger("nightrank.tracking")

_import_lock = threading.Lock()

P = ParamSpec("P")


def never_fails(function: Callable[P, None]) -> Callable[P, None]:
    """Decorates a function so that it logs its errors as warnings and does not raise."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Exception as error:
            log.warning(
                "MLflow was not updated, but the registry in the lake was (%s: %s)",
                type(error).__name__,
                error,
            )

    return guarded


def prepare(lake: Lake) -> None:
    """Imports MLflow and creates the store's tables in the background. Later calls wait for that."""
    if _uri(lake) is not None:
        threading.Thread(target=open_store, args=(lake,), name="mlflow", daemon=True).start()


@never_fails
def open_store(lake: Lake) -> None:
    """Imports MLflow, and creates the tables of a new store."""
    if not mlflow_process.call("open_store", lake.root):
        open_client(lake)


@never_fails
def track_training(
    lake: Lake,
    description: Mapping[str, Any],
    params: Mapping[str, Any],
    raw_types: Callable[[], Mapping[str, str]] = dict,
) -> None:
    """Writes a trained model as an MLflow run and as a registered version, which MLflow can load.

    The version gets the alias `challenger`, unless it is a refit: the gate never compares refits.

    Existing entries are not written again. If a killed job left entries incomplete, they are completed.

    Args:
        lake: the lake of the model.
        description: the model's model.json.
        params: the nested configuration. Nested names are joined with dots.
        raw_types: returns the type of each raw column of the model's features, for the signature.
    """
    if _uri(lake) is not None:
        arguments = {"description": description, "params": params, "raw_types": raw_types()}
        if mlflow_process.call("write_training", lake.root, arguments):
            return
        write_training(lake, **arguments)
    else:
        open_client(lake)  # logs why there is none


@never_fails
def write_training(
    lake: Lake, description: Mapping[str, Any], params: Mapping[str, Any], raw_types: Mapping[str, str]
) -> None:
    """Does the work of `track_training` in this process, with known types."""
    if (client := open_client(lake)) is None:
        return
    name, version = description["name"], description["version"]
    file = mlflow_model.model_file(lake, description, raw_types)
    mlflow_model.write_model_file(lake, description, file)
    if _registered(client, name, version) is None:
        run = _logged_run(client, lake, description, params)
        _register(client, name, version, run, source_uri(lake, name, version), file)
    if "refit_of" not in description:
        _set_alias(client, name, "challenger", version)


@never_fails
def set_aliases(lake: Lake, name: str, versions: Mapping[str, str]) -> None:
    """Sets the aliases (`champion`, `challenger`) of a registered model to the given versions."""
    if mlflow_process.call("set_aliases", lake.root, {"name": name, "versions": versions}):
        return
    if (client := open_client(lake)) is None:
        return
    for alias, version in versions.items():
        _set_alias(client, name, alias, version)


def _uri(lake: Lake) -> str | None:
    return os.environ.get("MLFLOW_TRACKING_URI") or lake.mlflow_uri


def source_uri(lake: Lake, name: str, version: str) -> str:
    """Returns the URI of a model's folder, in a scheme that MLflow can read."""
    path = f"{lake.models(name)}/{version}"
    if file_io.is_local(path):
        return Path(file_io.filesystem(path)[1]).as_uri()
    return f"s3://{path.removeprefix('s3a://')}" if path.startswith("s3a://") else path


def open_client(lake: Lake) -> MlflowClient | None:
    """Returns a client of the server in MLFLOW_TRACKING_URI, or else of the lake's local store.

    Returns None if there is neither a server nor a local store.
    """
    uri = _uri(lake)
    if uri is None:
        log.info(
            "MLflow is not updated: MLFLOW_TRACKING_URI is not set, and the lake %s is not a local folder, "
            "so it has no local MLflow store",
            lake.root,
        )
        return None
    with _import_lock:
        client = import_mlflow()(tracking_uri=uri, registry_uri=uri)
        client.search_experiments(max_results=1)  # creates the tables of a new store
    return client


def import_mlflow() -> type[MlflowClient]:
    """Imports MLflow, which takes seconds, and returns the class of its clients."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.tracking import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    return MlflowClient


def _logged_run(
    client: MlflowClient, lake: Lake, description: Mapping[str, Any], params: Mapping[str, Any]
) -> str:
    """Logs a training as one run, and returns the id of the run."""
    run = run_of(client, description, source_uri(lake, description["name"], description["version"]))
    if run.info.status != "FINISHED":
        mlflow_model.log_dataset(client, run.info.run_id, lake, description)
    log_training(client, run, description, params)
    return str(run.info.run_id)


def _register(
    client: MlflowClient, name: str, version: str, run_id: str, source: str, model_file: str
) -> None:
    from mlflow.exceptions import MlflowException

    if not client.search_registered_models(filter_string=f"name='{name}'"):
        client.create_registered_model(name)
    tags = {VERSION_TAG: version, SOURCE_TAG: source}
    try:
        client.create_model_version(name, source=source, run_id=run_id, tags=tags)
    except MlflowException as error:
        if error.error_code != "INVALID_PARAMETER_VALUE":
            raise
        log.info("MLflow does not accept %s as a source; the tag %s contains it instead", source, SOURCE_TAG)
        client.log_text(run_id, model_file, f"model/{mlflow_model.FILE_NAME}")
        client.create_model_version(name, source=f"runs:/{run_id}/model", run_id=run_id, tags=tags)


def _registered(client: MlflowClient, name: str, version: str) -> str | None:
    """Returns the number of a model version in MLflow; None if MLflow does not have the version."""
    matches = client.search_model_versions(f"name='{name}' and tags.`{VERSION_TAG}`='{version}'")
    return matches[0].version if matches else None


def _set_alias(client: MlflowClient, name: str, alias: str, version: str) -> None:
    number = _registered(client, name, version)
    if number is not None:
        client.set_registered_model_alias(name, alias, number)
