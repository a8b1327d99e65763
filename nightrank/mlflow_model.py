"""Loads a model of a data lake for MLflow, which calls this module (training/registry/mlflow_mirror.py).

import mlflow

model = mlflow.pyfunc.load_model("models:/generated@champion")
model.predict(rows)                                    # click probabilities of a DataFrame of raw rows
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml

from conf.errors import DataError
from nightrank.model import Model
from scoring.model.model_info import read_model_info
from storage.paths import LakePaths

if TYPE_CHECKING:
    import pandas as pd


class RawRowScorer:
    """A model with the method `predict`, which MLflow calls.

    Args:
        model: the model.
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    def predict(self, rows: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.Series:
        """Returns the click probabilities of raw rows, with the index of `rows`; see `Model.score`."""
        return cast("pd.Series", self.model.score(rows))


def _load_pyfunc(path: str) -> RawRowScorer:
    """Returns the model that the file MLmodel in the folder `path` describes.

    If this folder is the model's folder in its lake, the function uses the lake that contains it, even if the
    lake was moved. Otherwise MLflow has copied the file, and the function uses the lake whose path the file
    contains.

    Raises:
        DataError: the lake does not have the model.
    """
    flavor = yaml.safe_load((Path(path) / "MLmodel").read_text(encoding="utf-8"))["flavors"]["nightrank"]
    version, name = flavor["version"], flavor["name"]
    here = Path(path).resolve()
    in_lake = here.parts[-3:] == ("models", name, version) and (here / "model.json").is_file()
    lake = LakePaths(str(here.parents[2]) if in_lake else flavor["lake"])
    info = read_model_info(f"{lake.models(name)}/{version}")
    if info.version != version:
        raise DataError(
            f"{info.path} contains the model.json of version {info.version} instead of {version}",
            "delete this folder, then train the model again",
        )
    return RawRowScorer(Model(lake, info, str(info.description["run_date"])))
