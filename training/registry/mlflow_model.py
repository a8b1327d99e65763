"""Describes a model of the lake to MLflow, by the file `MLmodel` and the dataset of its training.

`mlflow.pyfunc.load_model("models:/<name>@champion")` reads the file, imports the module that it names
(nightrank/mlflow_model.py), and gets a model that scores raw rows. No tensors are uploaded.
"""

from __future__ import annotations

import json
import platform
import uuid
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from storage import file_io
from storage.paths import LakePaths

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

FILE_NAME = "MLmodel"
FLAVOR = "nightrank"
_LOADER = "nightrank.mlflow_model"
_NAMESPACE = uuid.UUID("6f1d1f0e-52f4-4c5b-9a1f-0d1f6d0c7a11")


def model_file(lake: LakePaths, description: Mapping[str, Any], raw_types: Mapping[str, str]) -> str:
    """Returns the text of the file. It is the same for the same model and the same release of MLflow.

    The signature has the raw columns that the features are computed from. Numbers and lists have the type
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
            FLAVOR: {"lake": _absolute(lake.root), "name": description["name"], "version": version},
        },
        "metadata": {"raw_types": dict(raw_types)},
        "mlflow_version": metadata.version("mlflow"),
        "model_uuid": uuid.uuid5(_NAMESPACE, version).hex,
        "signature": {"inputs": json.dumps(columns), "outputs": json.dumps(outputs), "params": None},
        "utc_time_created": str(description.get("created_at", "")),
    }
    return yaml.safe_dump(values)


def write_model_file(lake: LakePaths, description: Mapping[str, Any], text: str) -> None:
    """Writes the file into the folder of the model, unless the file already has this text."""
    path = f"{lake.models(description['name'])}/{description['version']}/{FILE_NAME}"
    try:
        if file_io.read_text(path) == text:
            return
    except FileNotFoundError:
        pass
    file_io.replace_text(path, text)


def log_dataset(client: MlflowClient, run_id: str, lake: LakePaths, description: Mapping[str, Any]) -> None:
    """Logs the dataset of a training as the input of its MLflow run. Logging it again changes nothing.

    Args:
        client: the client of the store.
        run_id: the run of the training.
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
