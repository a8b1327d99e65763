"""MLflow's scoring server, which reads and answers requests, with a model of the lake."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import yaml

from conf.errors import NightrankError

if TYPE_CHECKING:
    import pandas as pd
    from fastapi import FastAPI


class _Scorer:
    """The object that MLflow calls."""

    def __init__(self, score: Callable[[pd.DataFrame], pd.Series]) -> None:
        self._score = score

    def predict(self, rows: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.Series:
        """Returns the click probabilities of raw rows.

        Raises:
            MlflowException: the rows are not valid. The server answers with the status 400 and the message.
        """
        from mlflow.exceptions import MlflowException
        from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

        try:
            return self._score(rows)
        except NightrankError as error:
            raise MlflowException(str(error), INVALID_PARAMETER_VALUE) from error


def scoring_application(model_file: str, score: Callable[[pd.DataFrame], pd.Series]) -> FastAPI:
    """Returns MLflow's scoring server as an ASGI application.

    Args:
        model_file: the text of the file MLmodel (`mlflow_model.model_file`), which has the signature.
        score: returns the click probabilities of raw rows, and raises NightrankError if they are not valid.
    """
    from mlflow.models import Model
    from mlflow.pyfunc import PyFuncModel, scoring_server

    metadata = Model.from_dict(yaml.safe_load(model_file))
    application: FastAPI = scoring_server.init(PyFuncModel(metadata, _Scorer(score)))
    return application
