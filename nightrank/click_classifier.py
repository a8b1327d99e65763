"""A click model with the methods of scikit-learn's classifiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from conf.errors import ConfigError, DataError
from metrics.ranking import plain_array
from nightrank import metrics
from nightrank.estimator import Estimator, Training, operators
from nightrank.frame_training import train
from nightrank.model import Model
from nightrank.spark_frames import AnyFrame, local_table
from nightrank.workflow import ColumnType, Group, Workflow, read_groups

# The name of the column with the labels. Features cannot have this name.
_LABEL = "_label"


class ClickClassifier(Estimator):
    """A model that predicts the probability of a click, trained on a data frame.

        model = nightrank.ClickClassifier("dlrm", embedding_dim=8).fit(rows, clicks)
        model.predict_proba(rows)[:, 1]

    The class follows the conventions of scikit-learn, so `clone`, `cross_val_score` and `GridSearchCV` work
    with it. `get_params` and `set_params` include the settings of the architecture. scikit-learn need not be
    installed. `fit` calls `Workflow.fit` and `nightrank.train`, so the job train_model would train the same
    model from the same rows.

    Args:
        model: the architecture: dlrm, dcn_v2, deepfm, din, wide_and_deep, neumf or logistic_regression
            (docs/models.md).
        features: the groups of features, as for `Workflow`. None: each column becomes a feature. A
            column of numbers becomes a dense feature. A column of strings or booleans becomes a feature with
            one id, and a column of lists becomes a feature with several ids.
        types: the types of columns, as for `Workflow`. They do not change the features that `features=None`
            selects.
        epochs: number of passes over the rows.
        batch_size: number of rows in a training step.
        learning_rate: learning rate of the dense layers; None for the default of the section `train`, 0.003.
        embedding_learning_rate: learning rate of the embeddings; None for the default of the section `train`,
            0.15.
        device: auto, cpu or cuda.
        seed: seed of initial weights, order of rows and dropout.
        settings: settings of the architecture, such as embedding_dim=8. conf/models contains the defaults.

    Attributes:
        classes_: (2,) the two values of the labels, in ascending order. The second value means a click.
        feature_names_in_: (C,) the column names of the rows that were passed to `fit`, as strings.
        workflow_: the fitted `Workflow`.
        model_: the trained `Model`, with its metrics and methods, such as `save` and `export`.
    """

    _estimator_type = "classifier"  # scikit-learn before 1.6 reads this attribute

    def __init__(
        self,
        model: str = "dlrm",
        *,
        features: Sequence[Group] | str | None = None,
        types: Mapping[str, ColumnType] | None = None,
        epochs: int = 5,
        batch_size: int = 256,
        learning_rate: float | None = None,
        embedding_learning_rate: float | None = None,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        seed: int = 0,
        **settings: Any,
    ) -> None:
        self.model, self.features, self.types = model, features, types
        self.epochs, self.batch_size = epochs, batch_size
        self.learning_rate, self.embedding_learning_rate = learning_rate, embedding_learning_rate
        self.device, self.seed, self.settings = device, seed, settings

    def fit(
        self,
        rows: AnyFrame | pa.RecordBatch,
        labels: ArrayLike,
        *,
        validation: tuple[AnyFrame | pa.RecordBatch, ArrayLike] | None = None,
    ) -> ClickClassifier:
        """Fits the workflow on rows, trains a new model, and returns this estimator.

        Args:
            rows: a frame of pandas, Polars, Arrow or Spark. Names of features are strings, so column 0 of a
                frame of pandas becomes the feature "0".
            labels: (N,) the label of each row: two distinct values, such as 0 and 1.
            validation: rows and their labels. The model keeps the weights of the epoch with the best AUC on
                these rows. With None, it keeps the weights of the last epoch.

        Raises:
            ConfigError: an argument is wrong, or the architecture is not a click model.
            DataError: the labels do not have exactly two values, a label is missing, lengths differ, or a
                value of the rows is invalid.
        """
        columns = _columns_of(rows)
        table = local_table(rows, columns)
        classes, clicks = _two_classes(labels, len(table))
        groups = read_groups(self.features or _groups_of(table))
        training = Training(
            self.model,
            self.epochs,
            self.batch_size,
            self.learning_rate,
            self.embedding_learning_rate,
            refit=False,
            device=self.device,
            seed=self.seed,
            settings=self.settings,
        )
        if training.recipe.loss != "bce":
            raise ConfigError(
                f"model={self.model!r} ranks items, so it predicts no click probabilities",
                "use nightrank.Recommender",
            )
        section = training.model_section(has_dense=any(group.kind == "dense" for group in groups))
        workflow = Workflow(groups, types=self.types, label=_LABEL)
        labelled = table.append_column(_LABEL, pa.array(clicks))
        others = None
        if validation is not None:
            others = local_table(validation[0], columns)
            others = others.append_column(_LABEL, pa.array(_clicks_of(validation[1], classes, len(others))))
        fitted = workflow.fit(labelled)
        self.model_: Model = train(
            fitted,
            labelled,
            model=section,
            train=training.train_section(None),
            validation=others,
            label=_LABEL,
        )
        self.workflow_, self.classes_ = fitted, classes
        self.feature_names_in_ = np.array(columns, dtype=object)
        return self

    def predict_proba(self, rows: AnyFrame | pa.RecordBatch) -> NDArray[np.float64]:
        """Returns the probability of each class for each row: (N, 2), in the order of `classes_`.

        Raises:
            ConfigError: the model is not fitted, or `rows` is not a frame.
            DataError: a column is missing, or a value is invalid.
        """
        model: Model = self._require(getattr(self, "model_", None), "click model")
        scored: pa.ChunkedArray = model.score(local_table(rows, list(self.workflow_.raw_columns)))
        click = scored.to_numpy().astype(np.float64)
        return np.stack([1 - click, click], axis=1)

    def predict(self, rows: AnyFrame | pa.RecordBatch) -> NDArray[Any]:
        """Returns the more likely class of each row: (N,).

        Arguments and errors are those of `predict_proba`.
        """
        is_click = self.predict_proba(rows)[:, 1] >= 0.5
        return self.classes_[is_click.astype(np.intp)]

    def score(self, rows: AnyFrame | pa.RecordBatch, labels: ArrayLike) -> float:
        """Returns the AUC of the predictions. scikit-learn compares settings by this score.

        (Classifiers of scikit-learn return the accuracy, which is of little use if clicks are rare.)

        Raises:
            ConfigError: `predict_proba` raises this error.
            DataError: `predict_proba` raises this error, or the labels have only one value.
        """
        click = self.predict_proba(rows)[:, 1]
        return metrics.auc(_clicks_of(labels, self.classes_, len(click)), click)

    def __sklearn_tags__(self) -> Any:
        """Returns scikit-learn's tags: this estimator is a classifier of two classes."""
        # Only scikit-learn calls this method, so it is imported already when this line runs.
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(multi_class=False),
            input_tags=InputTags(two_d_array=False, allow_nan=True),
        )


def _columns_of(rows: Any) -> list[str]:
    names = rows.schema.names if isinstance(rows, pa.Table | pa.RecordBatch) else getattr(rows, "columns", ())
    if not len(names):
        raise ConfigError(
            f"{type(rows).__module__}.{type(rows).__name__} is not a frame with columns",
            "pass a DataFrame of pandas or Polars, or a table of Arrow",
        )
    return [str(name) for name in names]


def _groups_of(table: pa.Table) -> list[dict[str, Any]]:
    """Returns the default features of each column of a table, one group per column."""
    return [{"columns": [field.name], **operators(field.type)} for field in table.schema]


def _two_classes(labels: ArrayLike, rows: int) -> tuple[NDArray[Any], NDArray[np.int8]]:
    """Returns the two distinct labels, and the class of each row: 1 for the second label, 0 for the first."""
    values = _labels(labels, rows)
    classes = np.unique(values)
    if len(classes) != 2:
        raise DataError(
            f"the labels have {len(classes)} distinct values: {classes[:5].tolist()}, but a click model "
            "needs two",
            "pass labels with exactly two distinct values",
        )
    return classes, _clicks_of(values, classes, rows)


def _clicks_of(labels: ArrayLike, classes: NDArray[Any], rows: int) -> NDArray[np.int8]:
    """Returns the class of each label: 1 for the second class, 0 for the first."""
    values = _labels(labels, rows)
    wrong = ~np.isin(values, classes)
    if wrong.any():
        place = int(wrong.argmax())
        raise DataError(
            f"label {place} is {values[place]!r}, but the labels passed to `fit` are {classes.tolist()}",
            "pass labels with the values of `fit`",
        )
    return (values == classes[1]).astype(np.int8)


def _labels(labels: ArrayLike, rows: int) -> NDArray[Any]:
    """Returns the labels as an array. Raises DataError if a label is missing, or lengths differ."""
    values = labels if isinstance(labels, pa.Array | pa.ChunkedArray) else plain_array(labels)
    shape = values.shape if isinstance(values, np.ndarray) else (len(values),)
    if shape != (rows,):
        raise DataError(
            f"there are {rows} rows, but the labels have the shape {shape}", "pass one label per row"
        )
    try:
        column = pa.array(values, from_pandas=True) if isinstance(values, np.ndarray) else values
    except (pa.ArrowException, OverflowError) as error:
        raise DataError(f"the labels have different types: {error}", "convert them to one type") from error
    if column.null_count:
        raise DataError(f"{column.null_count} of {rows} labels are missing", "leave these rows out")
    return np.asarray(column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column)
