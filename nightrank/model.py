"""A trained model, which scores raw rows and ranks items for users in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from conf.errors import ConfigError, DataError
from conf.messages import counted
from conf.types import Config, Score
from etl.workflow.fitted_workflow import load_local
from nightrank import plots
from nightrank.frames import (
    Column,
    Frame,
    arrow_table,
    as_kind,
    column_like,
    kind_of,
    listed,
    require_onnx,
    require_torch,
)
from nightrank.saved_models import (
    copy_model,
    delete_folder,
    delete_with,
    find_model,
    lake_at,
    private_folder,
    read_files,
    validation_metrics,
    write_files,
)
from nightrank.workflow import Workflow, fitted_workflow, learned_by
from scoring.feature_rows import list_manifests
from scoring.model.champion import blend_request, served_blend
from scoring.model.context_features import TrainingRows, encode_context
from scoring.model.model_info import ModelInfo
from scoring.requests import CANDIDATES, EXCLUDED, PROBABILITY, SOURCE_SCORES, ListRequest, require_listable
from scoring.rules.request import rules_request
from scoring.spark.score_frames import score_lists, score_rows
from storage.dataset import read_dataset
from storage.feature_spec import ROW_ID, USER_KEY, FeatureSpec
from storage.manifest import Manifest, data_files
from storage.paths import LakePaths
from storage.read_parquet import read_rows_of_keys
from storage.run_context import RunContext
from training.registry.model_json import is_described

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Model:
    """A trained model.

    `Lake.champion` returns a model of a lake, and `nightrank.train` trains a model on a frame. The model is
    loaded when it first scores, and stays in memory.

    A model can be pickled and copied. The pickle of a model that `train` returned contains the model. The
    pickle of a model of a lake or a folder contains only the path, so the files must remain at this path.

    Args:
        lake: the lake of the model.
        info: the content of model.json.
        date: the run date on which the model served; None for a model that `train` or `load` returned.
        config: the configuration; None if it is not known.
        workflow: the workflow that computes the features; None for the workflow in the lake.
    """

    def __init__(
        self,
        lake: LakePaths,
        info: ModelInfo,
        date: str | None = None,
        config: Config | None = None,
        workflow: Workflow | None = None,
    ) -> None:
        self._lake = lake
        self._info = info
        self._config = config
        self._workflow = workflow
        self._is_temporary = False
        self.date = date

    @classmethod
    def in_temporary_folder(cls, folder: str, info: ModelInfo, workflow: Workflow | None) -> Model:
        """Returns a model with a temporary folder as its lake. The folder is deleted with the model.

        Args:
            folder: the folder, from `private_folder`.
            info, workflow: as for the constructor.
        """
        model = cls(LakePaths(folder), info, workflow=workflow)
        model._is_temporary = True
        delete_with(model, folder)
        return model

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns a function and its arguments with which pickle, copy and joblib create the model again.

        Raises:
            DataError: the model is temporary, and one of its files was deleted.
            InfrastructureError: a file cannot be read.
        """
        if not self._is_temporary:
            return _opened_again, (dict(self.__dict__),)
        name, version = str(self._info.description["name"]), self.version
        return _written_again, (read_files(self._info), name, version, self._workflow)

    @classmethod
    def load(cls, folder: str | PathLike[str], version: str | None = None) -> Model:
        """Returns a model that `save` wrote.

        Args:
            folder: its folder or URI. The files must remain there as long as the model is used.
            version: the version; None if the folder contains only one version.

        Raises:
            ConfigError: the folder has several models.
            DataError: the model does not exist, or its model.json is damaged.
            InfrastructureError: the storage cannot be read.
        """
        lake = lake_at(folder)
        return cls(lake, find_model(lake, version))

    def save(self, folder: str | PathLike[str]) -> None:
        """Writes the model and its workflow to a folder or URI, with the layout of a lake. `load` reads them.

        Raises:
            ConfigError: the folder is a lake, to which only jobs write.
            DataError: a file of the model or of the workflow is missing.
            InfrastructureError: the storage cannot be written.
        """
        self.workflow.save(folder)
        copy_model(self._info, LakePaths(fspath(folder)))

    @property
    def version(self) -> str:
        """Returns the version of the model."""
        return self._info.version

    @property
    def refit_of(self) -> str | None:
        """Returns the version of the champion if this model is a refit of it; otherwise None.

        A refit is the champion, trained again on the rows of all splits.
        """
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
        if all validation rows have the same label. Metrics of probabilities are None if the model does not
        predict probabilities. Without validation rows, there is no entry.
        """
        return validation_metrics(self._info.description)

    @property
    def kept(self) -> Mapping[str, Any]:
        """Returns which step's weights the training kept for this model (`train.keep`).

        `step` and `epoch` (from 1) are the step and epoch of the weights. `metric` and `value` are the
        measure on the validation rows by which the weights were chosen. `best_step` is the step with the best
        value. `metric`, `value` and `best_step` are None if no measure chose a step. Models of earlier
        releases have an empty mapping.
        """
        return dict(self._info.description.get("kept") or {})

    @cached_property
    def workflow(self) -> Workflow:
        """Returns the workflow that computes the features of the model."""
        if self._workflow is not None:
            return self._workflow
        return fitted_workflow(load_local(self._lake, self.spec.workflow_version))

    def score(self, rows: Frame | pa.RecordBatch) -> Column:
        """Returns the click probability of each raw row, float32, in the order of the rows.

        If `description["scores"]` is not `click_probability`, the result contains scores from 0 to 1 that are
        not click probabilities: only their order is meaningful. In this case, the model was trained with
        drawn negatives, or with a loss other than `bce`. float32 rounds the scores of logits above 17 to 1.

        Args:
            rows: a frame of pandas, Polars or Arrow; see `Workflow.encode`.

        Returns:
            A series of pandas (with the index of `rows`) or of Polars, or a column of Arrow.

        Raises:
            ConfigError: `rows` is not a frame, the device of the configuration does not exist, or torch is
                not installed.
            DataError: a raw column is missing, a value is invalid, or a probability is NaN.
        """
        return column_like(rows, PROBABILITY, self._probabilities(rows))

    def inputs(self, rows: Frame | pa.RecordBatch) -> dict[str, np.ndarray]:
        """Returns the inputs of an exported program for raw rows: `dense` and `categorical`.

        Raises:
            ConfigError: `rows` is not a frame, or torch is not installed.
            DataError: a raw column is missing, or a value is invalid.
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
            formats: additional formats with fewer bits per number, in which each ONNX program is also
                written.
            compiled: whether each program is also compiled by AOTInductor, for the processor of this machine.

        Returns:
            The content of export.json.

        Raises:
            ConfigError: the folder exists or is not a local path, a format does not exist, a package is not
                installed, or there is no C++ compiler for compiled programs.
            InfrastructureError: the folder cannot be written, or the outputs of a program differ too much
                from those of the model.
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
            backend: what runs the model: Triton's ONNX Runtime backend (`onnxruntime`), the same backend with
                TensorRT on a GPU (`tensorrt`), or ONNX Runtime in Triton's Python backend (`python`).
            online: whether to add the ensemble `nightrank_online`, which looks up the features of users and
                items in the store that the sink `redis` fills.
            variant: `treatment` if the model is an experiment's treatment. Then the ensemble is named
                `nightrank_treatment`.

        Returns:
            `version` (of the ensemble), `model_version`, `workflow_version` and `inputs`.

        Raises:
            ConfigError: the models in the repository have a different backend or different inputs, or were
                not written by this project; a raw column has the name of an input or output of the ensemble;
                `online` does not support the scope of a feature; or a package is not installed.
            DataError: a file of the repository is damaged.
            InfrastructureError: the repository cannot be written, or the outputs of the program differ too
                much from those of the model.
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

        If the lake was opened with its configuration, business rules and blend are applied. The lists are
        then those that score_daily publishes. Without the configuration, the model alone ranks the
        candidates.

        Args:
            user_ids: the ids of the users, as in the log.
            k: maximum number of items of a list; None for `score.k` of the configuration, or 10.
            context: maps raw columns of the context features to their values. A column that is not in
                `context` gets its value in `score.context` of the configuration. If the lake was opened with
                its configuration, a column without a value gets its most frequent value in the train split of
                the run date.
            unknown: what happens if a user is not in the table of users. `raise`: DataError. `skip`: the user
                has no list.

        Returns:
            A table with the columns user_id, position (from 1), item_id, score and reason, in the order of
            `user_ids`. An id that occurs twice has one list. A user without candidates has no row.

        Raises:
            ConfigError: a context value is missing, a feature depends on user and item together, `k` is not a
                positive integer, `user_ids` is one string, or the model has no run date.
            DataError: a user is unknown, the run date has no candidates, or the candidates were made with a
                workflow other than the model's.
        """
        keys = list(dict.fromkeys(str(user) for user in listed("user_ids", user_ids)))
        require_length(k)
        if unknown not in get_args(Unknown):
            raise ConfigError(
                f"unknown={unknown!r} is not allowed", f"pass {' or '.join(map(repr, get_args(Unknown)))}"
            )
        require_torch()
        if self.date is None:
            raise ConfigError(
                f"model {self.version} has no run date, so there are no candidates",
                "use the champion of a lake (`Lake.champion`), or score the rows of candidates",
            )
        return UserLists(self._lake, self._info, self.date, self._config).make(keys, k, context, unknown)

    def plot_history(self, ax: Axes | None = None) -> Axes:
        """Plots the loss and the measures of the validation rows by epoch, from model.json.

        The x axis is the number of epochs since the start of the training. Each point of the loss is the mean
        loss of the steps since the previous point. The AUC has a separate axis on the right,
        `ax.figure.axes[-1]`. A dotted line marks the best step, if a measure chose the weights (`kept`).

        model.json does not contain the number of steps of an epoch. The plot uses the smallest number of
        steps per epoch that is consistent with the history. This number is exact if an entry of the history
        is at the end of an epoch.

        Args:
            ax: the Axes of matplotlib to draw on; None for a new figure.

        Returns:
            The Axes. The figure is not shown: call `matplotlib.pyplot.show()` outside notebooks, or
            `ax.figure.savefig`.

        Raises:
            ConfigError: matplotlib is not installed, or `ax` is not an Axes.
            DataError: the model has no history.
        """
        plots.require_axes(ax)
        return plots.draw_history(self.description, self.metrics, ax)

    def plot_calibration(
        self, rows: Frame | pa.RecordBatch, labels: ArrayLike, ax: Axes | None = None
    ) -> Axes:
        """Plots the reliability diagram: share of clicks against mean probability, for ten groups of rows.

        The rows are ordered by probability, and each group is a tenth of them. The points of a calibrated
        model are on the gray diagonal. The legend has the log loss and the expected calibration error. This
        error is the mean vertical distance of the points from the diagonal, weighted by rows (Naeini et al.
        2015, section 2).

        If the model was trained with drawn negatives (`description["scores"]` is `probability`), it predicts
        the share of clicks among clicks and drawn negatives. For such a model, `rows` must contain drawn
        negatives too.

        Args:
            rows: N raw rows, as for `score`.
            labels: (N,) 0 or 1, in the order of the rows. An index of pandas is not used.
            ax: the Axes of matplotlib to draw on; None for a new figure.

        Returns:
            The Axes; see `plot_history`.

        Raises:
            ConfigError: the scores of the model are not probabilities, matplotlib is not installed, `ax` is
                not an Axes, or `score` raises this error.
            DataError: there are no rows, a label is not 0 or 1, lengths differ, or `score` raises this error.
        """
        if self.description.get("scores") == "ranking":
            raise ConfigError(
                f"the scores of model {self.version} are not probabilities; they only order rows",
                "use plot_roc or plot_precision_recall, or train a model with the loss bce",
            )
        plots.require_axes(ax)
        return plots.draw_calibration(labels, self._scores(rows), ax)

    def plot_roc(self, rows: Frame | pa.RecordBatch, labels: ArrayLike, ax: Axes | None = None) -> Axes:
        """Plots the ROC curve: the true positive rate by the false positive rate, for each threshold.

        The points are those of sklearn.metrics.roc_curve. The legend has the AUC. Arguments, result and
        errors are those of `plot_calibration`, but scores need not be probabilities.

        Raises:
            DataError: all labels are equal.
        """
        plots.require_axes(ax)
        return plots.draw_roc(labels, self._scores(rows), ax)

    def plot_precision_recall(
        self, rows: Frame | pa.RecordBatch, labels: ArrayLike, ax: Axes | None = None
    ) -> Axes:
        """Plots precision against recall, with a point for each threshold.

        The points are those of sklearn.metrics.precision_recall_curve. The legend has the average precision,
        and the gray line is the share of clicks. Arguments, result and errors are those of
        `plot_calibration`, but scores need not be probabilities.

        Raises:
            DataError: no label is 1.
        """
        plots.require_axes(ax)
        return plots.draw_precision_recall(labels, self._scores(rows), ax)

    def importance(
        self,
        rows: Frame | pa.RecordBatch,
        labels: ArrayLike,
        columns: Iterable[str] | None = None,
        *,
        repeats: int = 5,
        seed: int = 0,
    ) -> Frame:
        """Returns, for each raw column, the drop of the AUC if the values of the column are permuted.

        A column that the model does not use has a drop of 0. If two columns contain the same information, the
        drop of each may be small (L. Breiman, Machine Learning 45, 2001, section 10; sklearn.inspection.
        permutation_importance has the same mean and standard deviation). The model scores the rows once, and
        `repeats` times for each column. So for a large day, pass a sample of its rows. Use rows on which the
        model was not trained. The same arguments give the same result.

        Args:
            rows: N raw rows, as for `score`.
            labels: (N,) 0 or 1, in the order of the rows. An index of pandas is not used.
            columns: the raw columns to permute; None for all columns in `workflow.raw_columns`.
            repeats: number of permutations of each column.
            seed: seed of the permutations.

        Returns:
            A frame of the library of `rows`, with one row per raw column, the largest drop first: `feature`
            (its name), `auc_drop` (the mean over the permutations) and `standard_deviation` (of the drop).

        Raises:
            ConfigError: a name in `columns` is not a raw column, `repeats` or `seed` is not an integer in its
                range, or `score` raises this error.
            DataError: all labels are equal, a label is not 0 or 1, lengths differ, or `score` raises this
                error.
        """
        return as_kind(kind_of(rows), self._importance(rows, labels, columns, repeats, seed))

    def plot_importance(
        self,
        rows: Frame | pa.RecordBatch,
        labels: ArrayLike,
        columns: Iterable[str] | None = None,
        *,
        repeats: int = 5,
        seed: int = 0,
        ax: Axes | None = None,
    ) -> Axes:
        """Plots the result of `importance`: a bar for each raw column, with its standard deviation.

        Arguments and errors are those of `importance`.

        Args:
            ax: the Axes of matplotlib to draw on; None for a new figure.

        Returns:
            The Axes; see `plot_history`.
        """
        plots.require_axes(ax)
        return plots.draw_importance(self._importance(rows, labels, columns, repeats, seed), ax)

    def vectors(self, feature: str, most: int | None = None) -> pa.Table:
        """Returns the embedding vectors of a feature's values, such as the vectors of all items.

        The most frequent value is first: ids of a vocabulary are ordered by the counts of the training rows.
        Values that a retraining added come last.

        Args:
            feature: a categorical feature with a vocabulary, such as the feature of the item.
            most: the largest number of values; None for all.

        Returns:
            An Arrow table with `value` (string) and `vector` (a list of float32), one row per value.

        Raises:
            ConfigError: the feature does not exist, has no vocabulary, or has no vectors in this model; or
                torch is not installed.
            DataError: a file of the model or of the workflow is missing or damaged.
        """
        require_torch()
        from scoring.model.predictor import rows_of_feature

        known = [one.name for one in self.spec.features if one.cardinality]
        if feature not in known:
            raise ConfigError(f"{feature!r} is not a feature with ids", f"choose from {known}")
        rows = rows_of_feature(self._info.path, feature)
        values = self.workflow.decode(feature, pa.array(range(len(rows)), pa.int64()))
        table = pa.table({"value": values, "vector": list(rows)})
        return table.filter(pc.is_valid(values)).slice(0, most)

    def plot_map(
        self,
        feature: str,
        *,
        groups: Mapping[str, str] | None = None,
        most: int = 2_000,
        labels: int = 0,
        ax: Axes | None = None,
    ) -> Axes:
        """Plots the vectors of a feature's values, such as items, at their first two principal components.

        Values that users chose together tend to be near each other. Read the shares of the variance on the
        axes: if they are small, distances in the plot are not reliable.

        Args:
            feature: as for `vectors`.
            groups: maps values to the names of groups, such as items to categories. The ten largest groups
                have colours. None: all points have one colour.
            most: maximum number of points; the most frequent values are drawn.
            labels: number of points that are labelled; the most frequent values are labelled.
            ax: the Axes of matplotlib to draw on; None for a new figure.

        Returns:
            The Axes; see `plot_history`.

        Raises:
            ConfigError: matplotlib is not installed, `ax` is not an Axes, or `vectors` raises this error.
            DataError: there are fewer than three values, or `vectors` raises this error.
        """
        plots.require_axes(ax)
        table = self.vectors(feature, most)
        values = table["value"].to_pylist()
        vectors = np.array(table["vector"].to_pylist(), dtype=np.float32)
        return plots.draw_map(vectors, values, groups, labels, ax)

    def _importance(
        self,
        rows: Frame | pa.RecordBatch,
        labels: ArrayLike,
        columns: Iterable[str] | None,
        repeats: int,
        seed: int,
    ) -> pa.Table:
        known = list(self.workflow.raw_columns)
        chosen = known if columns is None else list(dict.fromkeys(listed("columns", columns)))
        unknown = [name for name in chosen if name not in known]
        if unknown:
            raise ConfigError(f"{unknown} are not raw columns of the model", f"choose from {known}")
        table = arrow_table(rows, known)
        return plots.permutation_importance(table, labels, self._scores, chosen, repeats, seed)

    def _scores(self, rows: Frame | pa.RecordBatch) -> np.ndarray:
        """Returns the scores of rows as an array: (N,) float64, which keeps scores near 1 distinct."""
        return self._probabilities(rows, double=True).to_numpy()

    def _probabilities(self, rows: Frame | pa.RecordBatch, *, double: bool = False) -> pa.ChunkedArray:
        """Returns the scores of rows as a column; the errors are those of `score`."""
        require_torch()
        encoded = self.workflow.encode_to_arrow(rows)
        numbered = encoded.append_column(ROW_ID, pa.array(np.arange(len(encoded))))
        request = self._info.request(self._score)
        scored: pa.Table = score_rows(numbered, self.spec, request, [ROW_ID], double=double)
        return scored.column(PROBABILITY)

    def __repr__(self) -> str:
        parts = [repr(self.version), str(self.description["architecture"])]
        parts.append(counted(len(self.spec.features), "feature"))
        measured = self.description.get("metrics", {}).get("validation") or {}
        if measured.get("auc") is not None:
            parts.append(f"validation AUC {measured['auc']:.4f}")
        if self.date is not None:
            parts.append(f"served on {self.date}")
        return f"Model({', '.join(parts)})"

    @property
    def _score(self) -> Score:
        return self._config.score if self._config else Score()


def _opened_again(state: Mapping[str, Any]) -> Model:
    """Restores a pickled model of a lake or a folder from its path.

    Raises:
        DataError: its files do not exist.
    """
    model = Model.__new__(Model)
    model.__dict__.update(state)
    if not is_described(model._info.path):
        raise DataError(
            f"this is a pickle of model {model.version}, whose files were in {model._info.path}, but they "
            "are not there now. The pickle of a saved model contains only its path",
            "put the folder back, or copy it to this machine and read it with Model.load",
        )
    return model


def _written_again(files: Mapping[str, bytes], name: str, version: str, workflow: Workflow | None) -> Model:
    """Restores a pickled temporary model, and writes its files to a new temporary folder.

    Raises:
        InfrastructureError: the folder cannot be written.
    """
    folder = private_folder()
    try:
        info = write_files(files, LakePaths(folder), name, version)
        return Model.in_temporary_folder(folder, info, workflow)
    except BaseException:
        delete_folder(folder)
        raise


# The code below makes the recommendation lists of some users from the candidates of a run date.

Unknown = Literal["raise", "skip"]


def require_length(k: int | None) -> None:
    """Raises ConfigError if `k` is not None and not a positive integer."""
    if k is None:
        return
    if not isinstance(k, Integral) or isinstance(k, bool):
        raise ConfigError(f"k={k!r} is not an integer", "pass a positive integer")
    if k < 1:
        raise ConfigError(f"k={k} is smaller than 1", "pass a positive integer")
    if k >= 2**63:
        raise ConfigError(f"k={k} is larger than 2**63 - 1", "pass a smaller integer")


@dataclass(frozen=True)
class UserLists:
    """Makes lists with one model; see `Model.recommend`.

    Attributes:
        lake: the lake with the candidates.
        info: the content of model.json.
        date: the run date of the candidates.
        config: the configuration; None if it is not known.
        score: the section `score`; None for the section in the configuration, or for its defaults.
    """

    lake: LakePaths
    info: ModelInfo
    date: str
    config: Config | None
    score: Score | None = None

    def make(
        self,
        keys: Sequence[str],
        k: int | None,
        context: Mapping[str, Any] | None,
        unknown: Unknown,
        *,
        exclude_seen: bool = True,
    ) -> pa.Table:
        """Returns the lists of the users `keys`; arguments, result and errors are those of `recommend`.

        If `exclude_seen` is false, the lists may contain items that are excluded for the user. This has an
        effect only if the source of the candidates is `all_items`.
        """
        require_listable(self.info.spec)
        needed = self.info.spec.workflow_version
        version = read_dataset(self.lake, self.date).workflow_version
        if version != needed:
            raise DataError(
                f"model {self.info.version} needs features of workflow {needed}, but "
                f"the run of {self.date} used workflow {version}",
                f"run build_features --run-date {self.date} --set workflow.mode=apply, then build_candidates",
            )
        users, items, candidates = list_manifests(self.lake, version, self.date)
        request = self._request(items, candidates, k, context)
        rows = self._users(keys, users, candidates, unknown, with_scores=request.blend is not None)
        if not exclude_seen:
            place = rows.schema.get_field_index(EXCLUDED)
            nothing = pa.nulls(len(rows), rows.schema.field(place).type)
            rows = rows.set_column(place, EXCLUDED, nothing)
        lists: pa.Table = score_lists(rows, self.info.spec, request)
        return lists

    def _request(
        self, items: Manifest, candidates: Manifest, k: int | None, context: Mapping[str, Any] | None
    ) -> ListRequest:
        score = self.score or (self.config.score if self.config else Score())
        version = self.info.spec.workflow_version
        length = k or score.k
        defaults = None if self.config is None else TrainingRows(self.config.name, self.date)
        chosen = {**score.context, **(context or {})}
        values = encode_context(self.lake, self.info, chosen, defaults)
        files = data_files(self.lake.candidate_items(version).partition(self.date), items)
        rules = blend = None
        if self.config is not None:
            folders = {"lake": self.config.lake, "data": self.config.data}
            rules = rules_request(score.rules, length, self.date, folders)
            record = served_blend(RunContext("nightrank", self.config, self.date), candidates)
            blend = None if record is None else blend_request(record, candidates)
        return ListRequest(
            self.info.request(score), tuple(files), tuple(sorted(values.items())), length, rules, blend
        )

    def _users(
        self,
        keys: Sequence[str],
        users: Manifest,
        candidates: Manifest,
        unknown: Unknown,
        *,
        with_scores: bool,
    ) -> pa.Table:
        """Returns features and candidates of users, one row per known user."""
        lake, version = self.lake, self.info.spec.workflow_version
        features = [feature.name for feature in self.info.spec.scoped("user")]
        known = read_rows_of_keys(
            lake.users(version).partition(self.date), users, USER_KEY, keys, [USER_KEY, *features]
        )
        of_users = known.column(USER_KEY)
        missing = sorted(set(keys) - set(of_users.to_pylist()))
        if missing and unknown == "raise":
            raise DataError(
                f"{len(missing):,} of {counted(len(keys), 'user')} are not in {users.table} "
                f"dt={self.date}: {missing[:5]}",
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
