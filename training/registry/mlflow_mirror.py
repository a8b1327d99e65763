"""Copies training runs and aliases to MLflow: to the server in MLFLOW_TRACKING_URI, or to a local store.

The local store is a SQLite file in the lake, if the lake is on a local disk. If the lake is on an object
store and no MLflow server is configured, nothing is copied to MLflow.

The JSON files in the lake are the source of truth. An error in this module is logged and does not end a
training run. Importing MLflow and opening its store takes seconds. So jobs call `prepare`, which does both in
a thread. If the jobs of a run share an application, it does both in a separate process (mlflow_process.py).

A training run becomes one MLflow run and one version of the registered model, even if this module copies it
several times. Both the MLflow run and the version have the tag `nightrank.version`. The tag
`nightrank.source` is the URI of the model's folder. The source of the MLflow version is the same URI if
MLflow accepts this URI. An MLflow server refuses local paths, because it would read them on its own disk. The
folder has a file `MLmodel`, so MLflow can load the version. If the server refuses the URI, the run gets this
file as an artifact. `mlflow.pyfunc.load_model("models:/<name>@champion")` reads the file, imports the module
that it names (nightrank/mlflow_model.py), and gets a model that scores raw rows. No tensors are uploaded.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import platform
import posixpath
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import yaml

from storage import file_io
from storage.paths import LakePaths
from training.registry import mlflow_process

if TYPE_CHECKING:
    from mlflow.entities import Run
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


def prepare(lake: LakePaths) -> None:
    """Imports MLflow and creates the store's tables in a thread. Later calls wait for this thread."""
    if _uri(lake) is not None:
        threading.Thread(target=open_store, args=(lake,), name="mlflow", daemon=True).start()


@never_fails
def open_store(lake: LakePaths) -> None:
    """Imports MLflow, and creates the tables of a new store."""
    if not mlflow_process.call("open_store", lake.root):
        open_client(lake)


@never_fails
def track_training(
    lake: LakePaths,
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
        open_client(lake)  # logs why there is no client


@never_fails
def write_training(
    lake: LakePaths, description: Mapping[str, Any], params: Mapping[str, Any], raw_types: Mapping[str, str]
) -> None:
    """Writes a trained model to MLflow in this process, as a run and a version; see `track_training`."""
    if (client := open_client(lake)) is None:
        return
    name, version = description["name"], description["version"]
    file = _model_file(lake, description, raw_types)
    _write_model_file(lake, description, file)
    if _registered(client, name, version) is None:
        run = _logged_run(client, lake, description, params)
        _register(client, name, version, run, source_uri(lake, name, version), file)
    if "refit_of" not in description:
        _set_alias(client, name, "challenger", version)


@never_fails
def set_aliases(lake: LakePaths, name: str, versions: Mapping[str, str]) -> None:
    """Sets the aliases (`champion`, `challenger`) of a registered model to the given versions."""
    if mlflow_process.call("set_aliases", lake.root, {"name": name, "versions": versions}):
        return
    if (client := open_client(lake)) is None:
        return
    for alias, version in versions.items():
        _set_alias(client, name, alias, version)


def _uri(lake: LakePaths) -> str | None:
    return os.environ.get("MLFLOW_TRACKING_URI") or lake.mlflow_uri


def source_uri(lake: LakePaths, name: str, version: str) -> str:
    """Returns the URI of a model's folder, in a scheme that MLflow can read."""
    path = f"{lake.models(name)}/{version}"
    if file_io.is_local(path):
        return Path(file_io.filesystem(path)[1]).as_uri()
    return f"s3://{path.removeprefix('s3a://')}" if path.startswith("s3a://") else path


def open_client(lake: LakePaths) -> MlflowClient | None:
    """Returns a client of the server in MLFLOW_TRACKING_URI, or else of the lake's local store.

    Returns None if there is no server and no local store.
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
    client: MlflowClient, lake: LakePaths, description: Mapping[str, Any], params: Mapping[str, Any]
) -> str:
    """Logs a training run as one run, and returns the id of the run."""
    run = run_of(client, description, source_uri(lake, description["name"], description["version"]))
    if run.info.status != "FINISHED":
        _log_dataset(client, run.info.run_id, lake, description)
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
        client.log_text(run_id, model_file, f"model/{_MODEL_FILE}")
        client.create_model_version(name, source=f"runs:/{run_id}/model", run_id=run_id, tags=tags)


def _registered(client: MlflowClient, name: str, version: str) -> str | None:
    """Returns the number of a model version in MLflow; None if MLflow does not have the version."""
    matches = client.search_model_versions(f"name='{name}' and tags.`{VERSION_TAG}`='{version}'")
    return matches[0].version if matches else None


def _set_alias(client: MlflowClient, name: str, alias: str, version: str) -> None:
    number = _registered(client, name, version)
    if number is not None:
        client.set_registered_model_alias(name, alias, number)


# The code below records training runs in MLflow: tags, parameters and metrics.

VERSION_TAG, SOURCE_TAG = "nightrank.version", "nightrank.source"
_METRICS_A_CALL, _PARAMS_A_CALL = 1000, 100  # limits of MLflow's log_batch
_PARAM_LENGTH, _PARAM_NAME_LENGTH = 500, 250
_TAGS = ("run_date", "workflow_version", "dataset_digest", "code_version", "parent", "refit_of")


def log_training(
    client: MlflowClient, run: Run, description: Mapping[str, Any], params: Mapping[str, Any]
) -> None:
    """Logs tags, parameters and metrics of a training run, and ends its MLflow run.

    An MLflow run that has ended is not changed.

    Args:
        client: the client of the store.
        run: the MLflow run of the training run.
        description: the model's model.json.
        params: the nested configuration. Nested names are joined with dots.
    """
    from mlflow.entities import Param, RunTag

    if run.info.status == "FINISHED":
        return
    run_id = run.info.run_id
    tags = {key: description[key] or "" for key in _TAGS if key in description}
    client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])
    values = [Param(_param_name(key), str(value)[:_PARAM_LENGTH]) for key, value in _flat(params)]
    for first in range(0, len(values), _PARAMS_A_CALL):
        client.log_batch(run_id, params=values[first : first + _PARAMS_A_CALL])
    metrics = _metrics(description)
    for first in range(0, len(metrics), _METRICS_A_CALL):
        client.log_batch(run_id, metrics=metrics[first : first + _METRICS_A_CALL])
    client.set_terminated(run_id)


def run_of(client: MlflowClient, description: Mapping[str, Any], source: str) -> Run:
    """Returns the MLflow run of a training run, and creates it if it is missing."""
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
        except MlflowException:  # perhaps another job has just created the experiment
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
    """Returns metrics for MLflow: the history by step, and the final metrics of the model and its baselines.

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


def _param_name(key: str) -> str:
    """Returns a key as a name that MLflow accepts for a parameter. Different keys get different names.

    A key may contain the name of a feature, and so any characters. In a key that MLflow refuses, unusual
    characters become `_`, and a digest of the key is appended.
    """
    refused = re.fullmatch(r"[/\w.\- :]*", key) is None or posixpath.normpath(key) != key
    if not refused and len(key) <= _PARAM_NAME_LENGTH:
        return key
    accepted = re.sub(r"[^\w.\- :]", "_", key)[: _PARAM_NAME_LENGTH - 9]
    return f"{accepted}_{sha256(key.encode()).hexdigest()[:8]}"


# The file `MLmodel` describes a model of the lake to MLflow.
_MODEL_FILE = "MLmodel"
_FLAVOR = "nightrank"
_LOADER = "nightrank.mlflow_model"
_NAMESPACE = uuid.UUID("6f1d1f0e-52f4-4c5b-9a1f-0d1f6d0c7a11")


def _model_file(lake: LakePaths, description: Mapping[str, Any], raw_types: Mapping[str, str]) -> str:
    """Returns the text of `MLmodel`. It depends only on the model and on MLflow's release.

    The signature lists the raw columns from which the features are computed. Numbers and lists have the type
    `any`, because MLflow would refuse integers with nulls. The model checks the values.

    The text is written without MLflow's classes, whose import takes seconds.

    Args:
        lake: the lake of the model.
        description: the model's model.json.
        raw_types: maps each raw column of the features to its type: int, float, string, ints or strings.
    """
    columns = [
        {"type": "string" if kind == "string" else "any", "name": name, "required": False}
        for name, kind in raw_types.items()
    ]
    outputs = [{"type": "float", "name": "probability", "required": True}]
    version = description["version"]
    values = {
        "flavors": {
            "python_function": {"loader_module": _LOADER, "python_version": platform.python_version()},
            _FLAVOR: {"lake": _absolute(lake.root), "name": description["name"], "version": version},
        },
        "metadata": {"raw_types": dict(raw_types)},
        "mlflow_version": metadata.version("mlflow"),
        "model_uuid": uuid.uuid5(_NAMESPACE, version).hex,
        "signature": {"inputs": json.dumps(columns), "outputs": json.dumps(outputs), "params": None},
        "utc_time_created": str(description.get("created_at", "")),
    }
    return yaml.safe_dump(values)


def _write_model_file(lake: LakePaths, description: Mapping[str, Any], text: str) -> None:
    """Writes `MLmodel` into the folder of the model, unless the file already has this text."""
    path = f"{lake.models(description['name'])}/{description['version']}/{_MODEL_FILE}"
    try:
        if file_io.read_text(path) == text:
            return
    except FileNotFoundError:
        pass
    file_io.replace_text(path, text)


def _log_dataset(client: MlflowClient, run_id: str, lake: LakePaths, description: Mapping[str, Any]) -> None:
    """Logs the dataset of a training run as the input of its MLflow run. Logging it again changes nothing.

    Args:
        client: the client of the store.
        run_id: the MLflow run of the training run.
        lake: the lake of the dataset.
        description: the model's model.json.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag

    path = lake.datasets.partition(description["run_date"]).path
    kind = "local" if file_io.is_local(path) else path.partition(":")[0].removesuffix("a")  # s3a is S3
    profile = {key: description[key] for key in ("train_rows", "trained_days") if key in description}
    dataset = Dataset(
        name=f"datasets dt={description['run_date']}",
        digest=description["dataset_digest"],
        source_type=kind,
        source=json.dumps({"uri": _absolute(path).replace("s3a://", "s3://")}),
        profile=json.dumps(profile),
    )
    client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])


def _absolute(root: str) -> str:
    return str(Path(file_io.filesystem(root)[1]).resolve()) if file_io.is_local(root) else root
