"""A trained model, which scores raw rows and makes the lists of users in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from os import PathLike, fspath
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import ConfigError, DataError
from conf.types import Config, Score
from etl.workflow.local_workflow import load_local
from nightrank.frames import Column, Frame, column_like
from nightrank.workflow import Workflow, fitted_workflow
from scoring.inputs.list_tables import list_manifests
from scoring.inputs.requests import (
    CANDIDATES,
    EXCLUDED,
    PROBABILITY,
    SOURCE_SCORES,
    ListRequest,
    require_listable,
)
from scoring.model.context_features import encode_context
from scoring.model.model_info import ModelInfo
from scoring.model.served_blend import blend_request, served_blend
from scoring.rules.request import rules_request
from scoring.spark.score_frames import score_lists, score_rows
from storage.dataset import read_dataset
from storage.feature_spec import ROW_ID, USER_KEY, FeatureSpec
from storage.manifest import Manifest, data_files
from storage.parquet_files import read_rows_of_keys
from storage.paths import Lake
from storage.run_context import RunContext


class Model:
    """A trained model, as it served on a run date. `Lake.champion` makes it.

    It is loaded when it scores first, and stays in memory.

    Args:
        lake: the lake of the model.
        info: the content of model.json.
        date: the run date.
        config: the configuration; None if it is not known.
    """

    def __init__(self, lake: Lake, info: ModelInfo, date: str, config: Config | None = None) -> None:
        self._lake = lake
        self._info = info
        self._config = config
        self.date = date

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

    @cached_property
    def workflow(self) -> Workflow:
        """Returns the workflow that computes the features of the model."""
        return fitted_workflow(load_local(self._lake, self.spec.workflow_version))

    def score(self, rows: Frame | pa.RecordBatch) -> Column:
        """Returns the click probability of each raw row, float32, in the order of the rows.

        Args:
            rows: a frame of pandas, Polars or Arrow; see `Workflow.encode`.

        Returns:
            A series of pandas (with the index of `rows`) or of Polars, or a column of Arrow.

        Raises:
            ConfigError: `rows` is no frame, the device of the configuration does not exist, or torch is not
                installed.
            DataError: a raw column is missing, a value does not fit, or a probability is NaN.
        """
        _require_torch()
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
        _require_torch()
        from scoring.model.predictor import model_inputs

        encoded = self.workflow.encode_to_arrow(rows)
        columns = {name: encoded.column(name) for name in encoded.column_names}
        dense, categorical = model_inputs(columns, self.spec, self._info.multi_hot, len(encoded))
        return {"dense": dense.numpy(), "categorical": categorical.numpy()}

    def export(
        self, folder: str | PathLike[str], formats: Sequence[Literal["fp16", "int8"]] = ()
    ) -> dict[str, Any]:
        """Writes ONNX and torch.export programs of the model to a new folder (docs/exports.md).

        Args:
            folder: a folder that does not exist yet.
            formats: number formats with fewer bits, in which each ONNX program is also written.

        Returns:
            The content of export.json.

        Raises:
            ConfigError: the folder exists, or torch is not installed.
            InfrastructureError: the folder cannot be written, or a program differs too much from the
                model.
        """
        _require_torch()
        from scoring.model.export import export

        return export(self._info, fspath(folder), formats)

    def recommend(
        self,
        user_ids: Iterable[str | int],
        k: int | None = None,
        *,
        context: Mapping[str, Any] | None = None,
        unknown: Literal["raise", "skip"] = "raise",
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
            ConfigError: a context value is missing, a feature depends on user and item together, or k < 1.
            DataError: a user is unknown, the run date has no candidates, or they were made with another
                workflow than the model.
        """
        keys = list(dict.fromkeys(str(user) for user in user_ids))
        if k is not None and k < 1:
            raise ConfigError(f"k={k} is smaller than 1", "pass a positive number")
        _require_torch()
        require_listable(self.spec)
        version = read_dataset(self._lake, self.date).workflow_version
        if version != self.spec.workflow_version:
            raise DataError(
                f"model {self.version} needs features of workflow {self.spec.workflow_version}, but "
                f"the run of {self.date} used workflow {version}",
                f"run build_features --run-date {self.date} --set workflow.mode=apply, then build_candidates",
            )
        users, items, candidates = list_manifests(self._lake, version, self.date)
        request = self._request(items, candidates, k, context)
        rows = self._users(keys, users, candidates, unknown, with_scores=request.blend is not None)
        lists: pa.Table = score_lists(rows, self.spec, request)
        return lists

    @property
    def _score(self) -> Score:
        return self._config.score if self._config else Score()

    def _request(
        self, items: Manifest, candidates: Manifest, k: int | None, context: Mapping[str, Any] | None
    ) -> ListRequest:
        score, version = self._score, self.spec.workflow_version
        length = k or score.k
        values = encode_context(self._lake, self._info, score.context if context is None else context)
        files = data_files(self._lake.candidate_items(version).partition(self.date), items)
        rules = blend = None
        if self._config is not None:
            folders = {"lake": self._config.lake, "data": self._config.data}
            rules = rules_request(score.rules, length, self.date, folders)
            record = served_blend(RunContext("nightrank", self._config, self.date), candidates)
            blend = None if record is None else blend_request(record, candidates)
        return ListRequest(
            self._info.request(score), tuple(files), tuple(sorted(values.items())), length, rules, blend
        )

    def _users(
        self,
        keys: list[str],
        users: Manifest,
        candidates: Manifest,
        unknown: Literal["raise", "skip"],
        *,
        with_scores: bool,
    ) -> pa.Table:
        """Returns features and candidates of users, one row per user that is known."""
        lake, version = self._lake, self.spec.workflow_version
        features = [feature.name for feature in self.spec.scoped("user")]
        known = read_rows_of_keys(
            lake.users(version).partition(self.date), users, USER_KEY, keys, [USER_KEY, *features]
        )
        of_users = known.column(USER_KEY)
        missing = sorted(set(keys) - set(of_users.to_pylist()))
        if missing and unknown == "raise":
            raise DataError(
                f"{len(missing)} of {len(keys)} users are not in {users.table} dt={self.date}: {missing[:5]}",
                "check that ids are written as in the log, or pass unknown='skip'",
            )
        columns = [CANDIDATES, EXCLUDED, *([SOURCE_SCORES] if with_scores else [])]
        lists = read_rows_of_keys(
            lake.candidates(version).partition(self.date),
            candidates,
            USER_KEY,
            of_users.to_pylist(),
            [USER_KEY, *columns],
        )
        listed = known.filter(pc.is_in(of_users, lists.column(USER_KEY)))
        for name in columns:
            listed = listed.append_column(name, lists.column(name))
        return listed


def _require_torch() -> None:
    """Raises ConfigError if the packages that compute models are not installed."""
    missing = [name for name in ("torch", "safetensors") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"a model needs the packages {missing}, which are not installed",
            "pip install 'nightrank[models]'",
        )
