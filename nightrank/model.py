"""A trained model, which scores raw rows and makes the lists of users in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike, fspath
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from conf.errors import ConfigError
from conf.types import Config, Score
from etl.workflow.local_workflow import load_local
from nightrank.frames import Column, Frame, column_like, listed
from nightrank.packages import require_onnx, require_torch
from nightrank.saved_models import copy_model, find_model, validation_metrics
from nightrank.user_lists import Unknown, UserLists, require_length
from nightrank.workflow import Workflow, fitted_workflow, learned_by
from scoring.inputs.requests import PROBABILITY
from scoring.model.model_info import ModelInfo
from scoring.spark.score_frames import score_rows
from storage.feature_spec import ROW_ID, FeatureSpec
from storage.paths import Lake


class Model:
    """A trained model. `Lake.champion` returns one of a lake, and `nightrank.train` trains one on a frame.

    It is loaded when it scores first, and stays in memory.

    Args:
        lake: the lake of the model.
        info: the content of model.json.
        date: the run date on which the model served; None for a model that `train` or `load` returned.
        config: the configuration; None if it is not known.
        workflow: the workflow that computes the features; None for the workflow in the lake.
    """

    def __init__(
        self,
        lake: Lake,
        info: ModelInfo,
        date: str | None = None,
        config: Config | None = None,
        workflow: Workflow | None = None,
    ) -> None:
        self._lake = lake
        self._info = info
        self._config = config
        self._workflow = workflow
        self.date = date

    @classmethod
    def load(cls, folder: str | PathLike[str], version: str | None = None) -> Model:
        """Returns a model that `save` wrote.

        Args:
            folder: its folder or URI. The files must stay there as long as the model is used.
            version: the version; None if the folder has only one.

        Raises:
            ConfigError: the folder has several models.
            DataError: there is no such model, or its model.json is damaged.
            InfrastructureError: the storage cannot be read.
        """
        lake = Lake(fspath(folder))
        return cls(lake, find_model(lake, version))

    def save(self, folder: str | PathLike[str]) -> None:
        """Writes the model and its workflow to a folder or URI, in the format of a lake. `load` reads it.

        Raises:
            ConfigError: the folder is a lake, to which only jobs write.
            DataError: a file of the model or of the workflow is missing.
            InfrastructureError: the storage cannot be written.
        """
        self.workflow.save(folder)
        copy_model(self._info, Lake(fspath(folder)))

    @property
    def version(self) -> str:
        """Returns the version of the model."""
        return self._info.version

    @property
    def refit_of(self) -> str | None:
        """Returns the champion that this model refits; None if it is no refit."""
        return self._info.refit_of

    @property
    def spec(self) -> FeatureSpec:
        """Returns the features of the model."""
        return self._info.spec

    @property
    def description(self) -> Mapping[str, Any]:
        """Returns the content of model.json: configuration, metrics, history and inputs."""
        return self._info.description

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Returns the metrics of the validation rows during and after the training, oldest first.

        Each entry has `epoch` (from 1), `step`, `auc`, `log_loss` and `normalized_entropy`. A metric is None
        if all validation rows have the same label. Those of probabilities are None if the loss gives no
        probabilities. Without validation rows, there is no entry.
        """
        return validation_metrics(self._info.description)

    @cached_property
    def workflow(self) -> Workflow:
        """Returns the workflow that computes the features of the model."""
        if self._workflow is not None:
            return self._workflow
        return fitted_workflow(load_local(self._lake, self.spec.workflow_version))

    def score(self, rows: Frame | pa.RecordBatch) -> Column:
        """Returns the click probability of each raw row, float32, in the order of the rows.

        If `description["scores"]` is not `click_probability`, the result has scores from 0 to 1 that order
        rows: the model was trained with drawn negatives, or with another loss than `bce`.

        Args:
            rows: a frame of pandas, Polars or Arrow; see `Workflow.encode`.

        Returns:
            A series of pandas (with the index of `rows`) or of Polars, or a column of Arrow.

        Raises:
            ConfigError: `rows` is no frame, the device of the configuration does not exist, or torch is not
                installed.
            DataError: a raw column is missing, a value does not fit, or a probability is NaN.
        """
        require_torch()
        encoded = self.workflow.encode_to_arrow(rows)
        numbered = encoded.append_column(ROW_ID, pa.array(np.arange(len(encoded))))
        scored: pa.Table = score_rows(numbered, self.spec, self._info.request(self._score), [ROW_ID])
        return column_like(rows, PROBABILITY, scored.column(PROBABILITY))

    def inputs(self, rows: Frame | pa.RecordBatch) -> dict[str, np.ndarray]:
        """Returns the inputs of an exported program for raw rows: `dense` and `categorical`.

        Raises:
            ConfigError: `rows` is no frame, or torch is not installed.
            DataError: a raw column is missing, or a value does not fit.
        """
        require_torch()
        from scoring.model.predictor import model_inputs

        encoded = self.workflow.encode_to_arrow(rows)
        columns = {name: encoded.column(name) for name in encoded.column_names}
        dense, categorical = model_inputs(columns, self.spec, self._info.multi_hot, len(encoded))
        return {"dense": dense.numpy(), "categorical": categorical.numpy()}

    def export(
        self,
        folder: str | PathLike[str],
        formats: Sequence[Literal["fp16", "int8"]] = (),
        *,
        compiled: bool = False,
    ) -> dict[str, Any]:
        """Writes ONNX and torch.export programs of the model to a new folder (docs/exports.md).

        Args:
            folder: a folder that does not exist yet.
            formats: number formats with fewer bits, in which each ONNX program is also written.
            compiled: whether each program is also compiled by AOTInductor, for the processor of this machine.

        Returns:
            The content of export.json.

        Raises:
            ConfigError: the folder exists or is no local path, there is no such format, a package is not
                installed, or there is no C++ compiler for compiled programs.
            InfrastructureError: the folder cannot be written, or a program differs too much from the
                model.
        """
        require_onnx()
        from scoring.model.export import export

        return export(self._info, fspath(folder), formats, compiled=compiled)

    def export_triton(
        self,
        folder: str | PathLike[str],
        backend: Literal["onnxruntime", "tensorrt", "python"] = "onnxruntime",
        *,
        online: bool = False,
        variant: Literal["control", "treatment"] = "control",
    ) -> dict[str, Any]:
        """Adds the model to a model repository of Triton Inference Server (docs/exports.md).

        Args:
            folder: the repository, which may exist. The next version of its ensemble `nightrank` uses the
                model.
            backend: how the model is computed: by Triton's backend of ONNX Runtime, by the same with TensorRT
                on a GPU, or by ONNX Runtime in Triton's Python backend.
            online: whether to add the ensemble `nightrank_online`, which looks up the features of users and
                items in the store that the sink `redis` fills.
            variant: `treatment` for the model of the treatment of an experiment, whose ensemble is
                `nightrank_treatment`.

        Returns:
            `version` (of the ensemble), `model_version`, `workflow_version` and `inputs`.

        Raises:
            ConfigError: the models in the repository have another backend or other inputs, or are those of
                others; names or scopes of columns do not allow it; or a package is not installed.
            DataError: a file of the repository is damaged.
            InfrastructureError: the repository cannot be written, or the program differs too much from the
                model.
        """
        require_onnx()
        from scoring.serving.repository import add_to_repository

        workflow = learned_by(self.workflow)
        return add_to_repository(
            self._info, workflow, fspath(folder), backend, online=online, variant=variant
        )

    def recommend(
        self,
        user_ids: Iterable[str | int],
        k: int | None = None,
        *,
        context: Mapping[str, Any] | None = None,
        unknown: Unknown = "raise",
    ) -> pa.Table:
        """Returns the k best candidates of some users, from the candidates that were built on the run date.

        If the lake was opened with its configuration, business rules and blend are applied, so the lists are
        those that score_daily publishes. Without it, the model alone ranks the candidates.

        Args:
            user_ids: the ids of the users, as in the log.
            k: maximum number of items of a list; None for `score.k` of the configuration, or 10.
            context: maps each raw column of the context features to its value; None for `score.context` of
                the configuration.
            unknown: what happens if a user is not in the table of users: an error, or the user has no list.

        Returns:
            A table with the columns user_id, position (from 1), item_id, score and reason, in the order of
            `user_ids`. An id that occurs twice has one list. A user without candidates has no row.

        Raises:
            ConfigError: a context value is missing, a feature depends on user and item together, `k` is no
                positive integer, `user_ids` is one text, or the model has no run date.
            DataError: a user is unknown, the run date has no candidates, or they were made with another
                workflow than the model.
        """
        keys = list(dict.fromkeys(str(user) for user in listed("user_ids", user_ids)))
        require_length(k)
        if unknown not in get_args(Unknown):
            raise ConfigError(f"unknown={unknown!r} is not allowed", f"pass one of {get_args(Unknown)}")
        require_torch()
        if self.date is None:
            raise ConfigError(
                f"model {self.version} has no run date, so there are no candidates",
                "use the champion of a lake (`Lake.champion`), or score the rows of candidates",
            )
        return UserLists(self._lake, self._info, self.date, self._config).make(keys, k, context, unknown)

    @property
    def _score(self) -> Score:
        return self._config.score if self._config else Score()
