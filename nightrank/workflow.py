"""A workflow: fits operators on rows, and computes the features of raw rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any, Literal, get_args

import pyarrow as pa

from conf.errors import ConfigError, DataError
from conf.load import parse_yaml, read_section
from conf.messages import counted
from conf.types import FeatureGroup
from etl.fit.fit_frame import columns_of, fit_frame
from etl.fit.version_tables import save_fitted
from etl.workflow.fitted_workflow import LocalWorkflow, load_local, saved_versions
from etl.workflow.raw_values import raw_values
from nightrank.frames import Frame, arrow_table, decoded_like, frame_like, listed, with_columns
from nightrank.saved_models import lake_at
from nightrank.spark_frames import AnyFrame, is_spark_frame, local_table, transform_frame
from storage import file_io
from storage.feature_spec import LABEL, FeatureSpec
from storage.file_digests import table_digest
from storage.paths import LakePaths


class Workflow:
    """Feature groups with their operators and, after `fit`, the learned values of the operators.

        workflow = Workflow([{"columns": ["city"], "kind": "categorical", "ops": ["categorify"]}])
        features = workflow.fit(train).transform(rows)

    A new workflow must be fitted before its other methods can be used. `Lake.workflow` and `load` return
    fitted workflows, which cannot be fitted again.

    A workflow can be pickled and copied. The pickle of a workflow that was fitted on rows contains the
    learned values. The pickle of a loaded workflow contains only paths, so the files must remain at these
    paths.

    Args:
        features: the section `features` of a configuration: a list of groups with the keys `columns`, `kind`
            and `ops`, or its YAML text. docs/operators describes the operators.
        types: maps raw columns to their types for the operators: int, float, string, ints or strings. A
            column that is not in `types` gets the type of its values when the workflow is fitted. Pass `int`
            for integers that are floats because some are missing, and `string` for keys that are numbers.
        label: the column with the label. Only the operator target_encoding may compute features from it.

    Raises:
        ConfigError: a key, an operator or a parameter is unknown or not allowed, or an operator does not
            support fitting on a frame.
    """

    def __init__(
        self,
        features: Sequence[Group] | str,
        *,
        types: Mapping[str, ColumnType] | None = None,
        label: str = LABEL,
    ) -> None:
        self._groups: list[FeatureGroup] | None = read_groups(features)
        self._types = checked_types(types or {})
        self._label = label
        self._fitted: LocalWorkflow | None = None
        self._fitted_on: str | None = None  # digest of the rows of `fit`, if their order matters
        inputs, others = columns_of(self._groups, label)
        unknown = sorted(set(self._types) - {*inputs, *others})
        if unknown:
            raise ConfigError(
                f"`types` contains {unknown}, which no operator reads", f"choose from {[*inputs, *others]}"
            )

    @classmethod
    def load(cls, folder: str | PathLike[str], version: str | None = None) -> Workflow:
        """Returns a workflow that `save` wrote.

        Args:
            folder: its folder or URI.
            version: the version; None if the folder has only one.

        Raises:
            ConfigError: the folder has several versions.
            DataError: the version does not exist, or its files are damaged.
            InfrastructureError: the storage cannot be read.
        """
        lake = lake_at(folder)
        return fitted_workflow(load_local(lake, find_workflow(lake, version)))

    @property
    def label(self) -> str:
        """Returns the column with the label."""
        return self._label

    @property
    def version(self) -> str:
        """Returns the version.

        Two workflows have the same version if their features and learned values are equal.
        """
        return self._require_fitted().version

    @property
    def spec(self) -> FeatureSpec:
        """Returns the features, with their kinds, dtypes and scopes."""
        return self._require_fitted().spec

    @property
    def raw_columns(self) -> Mapping[str, str]:
        """Maps each raw column that the features depend on to its type.

        The types are int, float, string, ints and strings; the last two are lists.
        """
        return self._require_fitted().raw_types()

    @property
    def training_columns(self) -> list[str]:
        """Returns the columns that `fit` and `encode_training` read.

        The result contains the label only if an operator reads the label. For a loaded workflow, the result
        is `raw_columns`.
        """
        inputs, others = self._read_columns()
        return [*inputs, *others] or list(self.raw_columns)

    def fit(self, rows: AnyFrame | pa.RecordBatch) -> Workflow:
        """Learns from training rows, and returns this workflow. Replaces values that were learned earlier.

        All rows are training rows. build_features would learn the same values if its only training day had
        these rows. Values are converted as `encode` converts them.

        Args:
            rows: a frame of pandas, Polars, Arrow or Spark with at least one row. The columns that operators
                read are copied to this process, even from a frame of Spark.

        Raises:
            ConfigError: the workflow was loaded, so it cannot be fitted; `rows` is not a frame; or an
                operator does not accept the type of a column.
            DataError: a column is missing or has an invalid value, or a statistic of a column cannot be
                computed.
        """
        self._keep(*self._learn(rows))
        return self

    def fit_transform(self, rows: AnyFrame | pa.RecordBatch, keep: Sequence[str] = ()) -> AnyFrame:
        """Learns from training rows, and returns the features for training a model.

        The result differs from `fit(rows).transform(rows)` only if the workflow has the operator
        target_encoding. This operator divides the training rows into folds. It encodes the key of a row with
        the mean of the target, such as the label, over the rows in other folds that have this key. So the
        features of a row do not depend on its own label. The fold of a row depends on its position.
        build_features does the same for training rows.

        Args:
            rows: as for `fit`.
            keep: columns of `rows` that precede the features, such as the label.

        Raises:
            ConfigError: `fit` or `transform` raises this error; or the workflow has the operator
                target_encoding, and `rows` is a frame of Spark, whose rows have no position.
            DataError: see `fit`.
        """
        fitted, table = self._learn(rows)
        if not is_spark_frame(rows):
            features: AnyFrame = with_columns(rows, keep, frame_like(rows, fitted.encode_training(table)))
        elif is_out_of_fold(fitted):
            raise ConfigError(
                "target_encoding needs the positions of training rows, which rows of a frame of Spark do not "
                "have",
                "pass a frame of pandas, Polars or Arrow",
            )
        else:
            features = transform_frame(rows, fitted, keep)
        self._keep(fitted, table)
        return features

    def transform(self, rows: AnyFrame | pa.RecordBatch, keep: Sequence[str] = ()) -> AnyFrame:
        """Returns the features of rows, as a frame of the same kind, in the order of the rows.

        All rows are treated as rows that `fit` did not read. For training rows, use `fit_transform`. No row
        is left out.

        Args:
            rows: a frame of pandas, Polars, Arrow or Spark with the columns `raw_columns`. Spark transforms
                its frames in Python workers when the result is used. A wrong value then stops the Spark job;
                the row number in the error is the position in a batch.
            keep: columns of `rows` that precede the features, such as keys.

        Raises:
            ConfigError: `rows` lacks a column of `keep`, or is not a frame; or the workflow is not fitted.
            DataError: a raw column is missing, or has a value that does not fit its type.
        """
        if is_spark_frame(rows):
            return transform_frame(rows, self._require_fitted(), keep)
        return with_columns(rows, keep, self.encode(rows)) if keep else self.encode(rows)

    def save(self, folder: str | PathLike[str]) -> None:
        """Writes the fitted workflow to a folder or URI, in the format of a lake. `load` reads it.

        Raises:
            ConfigError: the workflow is not fitted, or the folder is a lake, to which only jobs write.
            InfrastructureError: the storage cannot be written.
        """
        fitted, lake = self._require_fitted(), LakePaths(fspath(folder))
        if file_io.list_files(lake.datasets.path):
            raise ConfigError(f"{lake.root} is a lake, to which only jobs write", "pass another folder")
        save_fitted(lake, fitted)

    def encode(self, rows: Frame | pa.RecordBatch, features: Sequence[str] | None = None) -> Frame:
        """Returns the features of raw rows, as a frame of the same kind as `rows`, in the order of the rows.

        Rows are treated as rows that `fit` did not read, so a target encoding is computed from all training
        rows. Values that are not in a vocabulary of the workflow get the id of unknown values.

        Integers may have any integer type. They may also be floats with NaN for nulls, as in pandas. String
        columns may contain integers. NaN and empty strings are nulls.

        Args:
            rows: a frame of pandas, Polars or Arrow with the columns `raw_columns`; other columns are
                ignored.
            features: the features to compute; None for all features, in the order of `spec`.

        Raises:
            ConfigError: a feature does not exist, the workflow is not fitted, or `rows` is not a frame.
            DataError: a raw column is missing, or has a value that does not fit its type. The message names
                the column, the row and the value.
        """
        return frame_like(rows, self.encode_to_arrow(rows, features))

    def encode_to_arrow(
        self, rows: Frame | pa.RecordBatch, features: Sequence[str] | None = None
    ) -> pa.Table:
        """Like `encode`, but returns an Arrow table for every kind of frame."""
        fitted = self._require_fitted()
        return fitted.encode_table(arrow_table(rows, list(self.raw_columns)), listed("features", features))

    def decode(self, feature: str, ids: Any) -> Any:
        """Returns the values of a feature's ids: the reverse of `encode` for the operator categorify.

        Values are strings, as in the vocabulary, even if the raw column has integers. A reserved id (0 for
        padding, 1 for null, 2 for unknown or rare values) has no value, so the result is None.

        Args:
            feature: a feature with ids of a vocabulary. Its kind is categorical or multi_hot.
            ids: integers, or lists of integers: a series of pandas or Polars, such as a column of the result
                of `encode`, an array or column of Arrow, or a sequence, such as an array of NumPy.

        Returns:
            A series of the same library, an array or column of Arrow, or a list.

        Raises:
            ConfigError: the feature does not exist or has no vocabulary, or the workflow is not fitted.
            DataError: an id is missing, is not an integer, or is not below the cardinality of the feature.
        """
        fitted = self._require_fitted()
        known = {one.name: one.cardinality for one in fitted.spec.features}
        if feature not in known:
            raise ConfigError(f"the workflow has no feature {feature!r}", f"choose from {list(known)}")
        fitted.vocabulary_of(feature)  # this line raises ConfigError if the feature has no vocabulary
        return decoded_like(ids, lambda distinct: _values_of(fitted, feature, known[feature] or 0, distinct))

    def encode_training(self, rows: AnyFrame | pa.RecordBatch, label: str | None = None) -> pa.Table:
        """Returns the features for training a model on rows, as an Arrow table, in the order of the rows.

        These are the features that `transform` returns or, with the operator target_encoding, the features
        that `fit_transform` returns. So the features of a row never contain its own label.

        Args:
            rows: as for `fit`. With target_encoding, pass the rows that this workflow was fitted on, in the
                same order.
            label: the column that the model predicts; None for the label of the workflow.

        Raises:
            ConfigError: a feature contains the label; the workflow has the operator target_encoding, and was
                fitted on other rows or was loaded; or `encode` raises this error.
            DataError: see `encode`.
        """
        fitted = self._require_fitted()
        is_own = label is None or label == self._label or self._groups is None
        refuse_label(fitted, label or self._label, [LABEL] if is_own else [])
        if not is_out_of_fold(fitted):
            return fitted.encode_table(local_table(rows, list(self.raw_columns)))
        inputs, others = self._read_columns()
        table = local_table(rows, [*inputs, *others])
        if self._fitted_on is None or rows_digest(fitted, table, others) != self._fitted_on:
            raise ConfigError(
                "the workflow has the operator target_encoding, and was not fitted on these rows in this "
                "order by this process, so a row's own label may be in its features",
                "fit a new Workflow on the rows with which the model is trained",
            )
        return fitted.encode_training(table)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restores a pickled workflow.

        Raises:
            DataError: the workflow was loaded, and its files do not exist.
        """
        self.__dict__.update(state)
        if self._fitted is None:
            return
        files = [path for paths in self._fitted.local.files.values() for path in paths]
        missing = [path for path, size in zip(files, file_io.sizes(files), strict=True) if size is None]
        if missing:
            raise DataError(
                f"this is a pickle of workflow {self.version}, whose file {missing[0]} is not there now. The "
                "pickle of a saved workflow contains only paths",
                "put the file back, or copy the folder to this machine and read it with Workflow.load",
            )

    def __repr__(self) -> str:
        if self._fitted is None:
            return f"Workflow(not fitted, {counted(len(self._groups or ()), 'group')} of features)"
        return f"Workflow({self.version!r}, {counted(len(self.spec.features), 'feature')})"

    def _read_columns(self) -> tuple[list[str], list[str]]:
        """Returns two lists: the raw columns that features need, and other columns that `fit` reads.

        Operators read the other columns only during the fit. Both lists are empty for a loaded workflow.
        """
        return columns_of(self._groups, self._label) if self._groups is not None else ([], [])

    def _learn(self, rows: AnyFrame | pa.RecordBatch) -> tuple[LocalWorkflow, pa.Table]:
        """Returns a workflow that is fitted on rows, and the columns that operators read."""
        if self._groups is None:
            raise ConfigError(
                f"workflow {self.version} was loaded, so it cannot be fitted",
                "make a new Workflow with its features",
            )
        table = local_table(rows, self.training_columns)
        return fit_frame(table, self._groups, self._types, self._label), table

    def _keep(self, fitted: LocalWorkflow, rows: pa.Table) -> None:
        """Stores the fitted workflow, and a digest of the rows if `encode_training` needs their positions."""
        digest = rows_digest(fitted, rows, self._read_columns()[1]) if is_out_of_fold(fitted) else None
        self._fitted, self._fitted_on = fitted, digest

    def _require_fitted(self) -> LocalWorkflow:
        if self._fitted is None:
            raise ConfigError("the workflow is not fitted", "call `fit` with training rows first")
        return self._fitted


def _values_of(fitted: LocalWorkflow, feature: str, cardinality: int, ids: pa.Array) -> pa.Array:
    """Returns the values of distinct ids; null for reserved ids.

    Raises:
        DataError: an id is not an integer, or is not below the cardinality.
    """
    if len(ids) and (not pa.types.is_integer(ids.type) or ids.null_count):
        kind = "missing ids" if pa.types.is_integer(ids.type) else f"values of the type {ids.type}"
        raise DataError(f"{feature}: there are {kind}", "pass integers, as `encode` returns them")
    wrong = [number for number in ids.to_pylist() if not 0 <= number < cardinality]
    if wrong:
        raise DataError(
            f"{feature}: the id {wrong[0]} is not from 0 to {cardinality - 1}",
            "pass ids of a feature of this workflow",
        )
    values = fitted.decode_ids({feature: ids.to_pylist()})[feature]
    return pa.array([values.get(number) for number in ids.to_pylist()], pa.string())


def fitted_workflow(fitted: LocalWorkflow) -> Workflow:
    """Returns a `Workflow` that cannot be fitted again, with the values in `fitted`."""
    workflow = Workflow.__new__(Workflow)
    workflow._groups, workflow._types, workflow._label = None, {}, LABEL
    workflow._fitted, workflow._fitted_on = fitted, None
    return workflow


def copy_of(workflow: Workflow) -> Workflow:
    """Returns a copy of a fitted workflow. Fitting `workflow` again does not change the copy."""
    return fitted_workflow(workflow._require_fitted())


def learned_by(workflow: Workflow) -> LocalWorkflow:
    """Returns the fitted values of a workflow. Raises ConfigError if it is not fitted."""
    return workflow._require_fitted()


# Functions that read the groups of features that a caller passes, and the types of raw columns.

Group = FeatureGroup | Mapping[str, Any]
ColumnType = Literal["int", "float", "string", "ints", "strings"]


def read_groups(features: Sequence[Group] | str) -> list[FeatureGroup]:
    """Returns the groups of a section `features`: a list, or a YAML text with or without this key.

    Raises:
        ConfigError: the section is not a list of groups, or a group has a wrong key or value.
    """
    section: Any = parse_yaml(features, "features") if isinstance(features, str) else features
    if isinstance(section, Mapping) and list(section) == ["features"]:
        section = section["features"]
    if isinstance(section, Mapping | str) or not isinstance(section, Sequence) or not section:
        raise ConfigError(
            f"features is {section!r}, but it must be a list of groups",
            "pass a list such as [{'columns': ['C1'], 'kind': 'categorical', 'ops': ['categorify']}]",
        )
    return [
        group
        if isinstance(group, FeatureGroup)
        else read_section(FeatureGroup, _mapping(group), f"features[{index}]: ", "correct these keys")
        for index, group in enumerate(section)
    ]


def _mapping(group: Any) -> dict[str, Any]:
    if not isinstance(group, Mapping):
        raise ConfigError(
            f"features contains {group!r}, but a group must be a mapping",
            "write the keys columns, kind and ops",
        )
    return dict(group)


def checked_types(types: Mapping[str, ColumnType]) -> dict[str, ColumnType]:
    """Returns the declared types of raw columns. Raises ConfigError if a type does not exist."""
    if not isinstance(types, Mapping):
        raise ConfigError(
            f"types is {types!r}, but it must be a mapping", "pass a mapping such as {'I1': 'int'}"
        )
    wrong = {name: kind for name, kind in types.items() if kind not in get_args(ColumnType)}
    if wrong:
        raise ConfigError(f"types has unknown types: {wrong}", f"use {list(get_args(ColumnType))}")
    return dict(types)


# A function that finds workflows in a folder that `Workflow.save` or `Model.save` wrote.


def find_workflow(lake: LakePaths, version: str | None) -> str:
    """Returns the version of a workflow in a folder; if `version` is None, the only version.

    Raises:
        ConfigError: the version is None, and there are several workflows.
        DataError: the workflow does not exist.
    """
    versions = saved_versions(lake)
    if not versions:
        raise DataError(f"{lake.root} has no workflow", "pass the folder that was passed to `save`")
    if version is None and len(versions) > 1:
        raise ConfigError(f"{lake.root} has several workflows: {versions}", "pass one of them as `version`")
    if version is not None and version not in versions:
        raise DataError(f"{lake.root} has no workflow {version}", f"choose from {versions}")
    return version or versions[0]


# Functions that check that the features of training rows do not contain the labels of these rows.


def is_out_of_fold(workflow: LocalWorkflow) -> bool:
    """Returns whether features of training rows depend on the rows' positions (target_encoding)."""
    return any(chain.out_of_fold for chain in workflow.chains)


def rows_digest(workflow: LocalWorkflow, rows: pa.Table, others: Sequence[str]) -> str:
    """Returns a digest of training rows, which depends on the order of the rows.

    The digest covers the values from which features are computed. It is the same for all kinds of frames.

    Args:
        workflow: the workflow that was fitted on the rows.
        rows: the rows, with the raw columns of the workflow.
        others: columns that operators read only during the fit. Operators can read only numbers and
            booleans from them, so the digest leaves out all other types.

    Raises:
        DataError: a raw column is missing, or has a value that does not fit its type.
    """
    numbers = [
        name for name in others if name in rows.column_names and _is_number(rows.schema.field(name).type)
    ]
    return table_digest(
        pa.table(raw_values(rows, {**workflow.raw_types(), **dict.fromkeys(numbers, "float")}))
    )


def refuse_label(workflow: LocalWorkflow, label: str, other_names: Sequence[str]) -> None:
    """Raises ConfigError if a feature contains the label of its row, or a statistic that includes this label.

    The operator target_encoding may read the label, because it encodes a row without the labels of the row's
    own fold.

    Args:
        workflow: the workflow that computes the features.
        label: the column with the label.
        other_names: further names that operators may use for the label.
    """
    if label in workflow.raw_types():
        raise ConfigError(
            f"features are computed from {label!r}, which is the label that the model must predict",
            "remove the column from the features, or pass another `label`",
        )
    for description in workflow.descriptions:
        # The description of a fitted operator contains repr(name) for each column that the fit measured.
        measured = [name for name in (label, *other_names) if repr(name) in description]
        if measured and "join_groupby(" in description:
            raise ConfigError(
                f"join_groupby would compute features of a row from the label {measured[0]!r} of this row",
                "use target_encoding, which encodes a row without the labels of the row's own fold",
            )


def _is_number(kind: pa.DataType) -> bool:
    """Returns whether a fit can read values of this type as numbers (FrameRows.numbers)."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_float = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return is_float or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
