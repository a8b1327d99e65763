"""The base classes of feature operators.

An `Operator` holds parameters, which are checked when it is constructed. Its method `bind` takes columns with
their types and returns `Step`s. A step is an operator with named input and output columns. The method `fit`
takes a step and the statistics of the training rows that this step needs, and returns a `Fitted`. A `Fitted`
is immutable and is stored as JSON.

A fitted step returns the same results in both engines, `sql` and `arrow`. In the engine `sql`, the step's
method `apply` builds Spark column expressions and joins. In the engine `arrow`, the step's method `compute`
processes Arrow arrays. Operators must not use a Spark session or a file path.

To add an operator, add a file to etl/operators (discovery.py finds it) and an example to tests/etl/ops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from conf.errors import ConfigError
from conf.types import FeatureGroup, OperatorEntry
from etl.ops.array_statistics import GroupedRows, GroupParts
from etl.ops.parameters import Parameters
from etl.ops.tables import LocalTables, Tables
from etl.ops.training_statistics import MergeableStatistic, Need, Statistics

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Types of values in a chain of steps: int has 64 bits, float is a double, and the last two types are lists.
Type = Literal["int", "float", "string", "ints", "strings"]
NUMBERS: tuple[Type, ...] = ("int", "float")
KEYS: tuple[Type, ...] = ("int", "string")
LISTS: tuple[Type, ...] = ("ints", "strings")


@dataclass(frozen=True)
class Fitted(ABC):
    """A fitted step computes values of `outputs` from values of `inputs`, row by row.

    Attributes:
        out_of_fold: whether the outputs of a training row differ from the outputs of an equal row that is not
            a training row. If true, `compute_training` computes the outputs of training rows from the
            positions of these rows.
        takes_codes: whether `compute` and `compute_training` accept dictionary-encoded arrays, and lists with
            dictionary-encoded elements. Otherwise, arrays are decoded first.
    """

    name: ClassVar[str]
    out_of_fold: ClassVar[bool] = False
    takes_codes: ClassVar[bool] = False
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @abstractmethod
    def apply(
        self, rows: DataFrame, values: Sequence[Column], tables: Tables, tag: str
    ) -> tuple[DataFrame, list[Column]]:
        """Returns `rows`, joined with the tables that the step looks up, and one expression per output.

        Args:
            values: one Spark expression over `rows` for each input.
            tag: prefix for the columns that a join adds. It is unique in the workflow.
        """

    @abstractmethod
    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output. `values` has one Arrow array per input.

        The type of an array is int64, double, string, or a list of int64 or of string.
        """

    def compute_training(
        self, values: Sequence[pa.Array], tables: LocalTables, row_ids: np.ndarray
    ) -> list[pa.Array]:
        """Does the same as `compute` for the rows on which the step was fitted.

        Called only for `out_of_fold` steps. `row_ids` are the ids of these rows, shape (n,), int64: the
        position of a row in the log of its day, or in the frame on which the step was fitted.
        """
        return self.compute(values, tables)

    @property
    def training_days(self) -> tuple[str, ...]:
        """Returns the days that an `out_of_fold` step was fitted on, as ISO dates."""
        return ()

    def state(self) -> dict[str, Any]:
        """Returns JSON values from which `from_state` creates an equal fitted step."""
        common = {field.name for field in fields(Fitted)}
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in common}

    @classmethod
    def from_state(cls, inputs: Sequence[str], outputs: Sequence[str], state: Mapping[str, Any]) -> Fitted:
        """Creates the fitted step from stored JSON values."""
        return cls(tuple(inputs), tuple(outputs), **state)

    @property
    def cardinality(self) -> int | None:
        """Returns the number of embedding rows that the output ids need; None if the outputs are not ids."""
        return None

    def resized(self, cardinality: int | None) -> Fitted:
        """Returns a copy of the step. If the step has a field `size`, the field is set to `cardinality`."""
        sized: dict[str, Any] = (
            {"size": cardinality} if any(field.name == "size" for field in fields(self)) else {}
        )
        return replace(self, **sized)

    @property
    def kept(self) -> tuple[str, ...]:
        """Returns the outputs that remain in the chain: all outputs, unless the operator removes columns."""
        return self.outputs


@dataclass(frozen=True)
class RowWise(Fitted):
    """A fitted step whose only output is computed by one column expression."""

    @abstractmethod
    def expression(self, *values: Column) -> Column:
        """Returns the expression of the output, from the expressions of the inputs."""

    def apply(
        self, rows: DataFrame, values: Sequence[Column], tables: Tables, tag: str
    ) -> tuple[DataFrame, list[Column]]:
        """Returns `rows` unchanged, and the expression of the only output."""
        return rows, [self.expression(*values)]


@dataclass(frozen=True)
class Step:
    """An operator that is bound to columns but not fitted yet.

    Attributes:
        outputs: names of the outputs, in the order of the fitted step.
        types: maps each output to its type.
        taken: types of the inputs, in the order of the inputs. Empty if the fitted step does not depend on
            these types.
    """

    operator: Operator
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, Type]
    taken: tuple[Type, ...] = ()


class Operator(Parameters, ABC):
    """The base class of operators over columns.

    Attributes:
        needs: the kind of statistics of the training rows that `fit` needs.
        takes: the types of input columns that the operator accepts.
        makes_ids: whether the outputs are ids of an embedding table.
        keeps_ids: whether the outputs are ids of an embedding table if the inputs are such ids.
        of_all_rows: whether `facts` needs statistics over all training rows, in addition to statistics by
            key.
        page: the page of docs/operators that describes the operator (`PAGES` in etl/ops/pages.py).
    """

    needs: ClassVar[Need] = "nothing"
    takes: ClassVar[tuple[Type, ...]] = NUMBERS
    makes_ids: ClassVar[bool] = False
    keeps_ids: ClassVar[bool] = False
    of_all_rows: ClassVar[bool] = False
    page: ClassVar[str]

    def bind(self, columns: Mapping[str, Type]) -> list[Step]:
        """Returns one step for each column in `columns`. The output of a step replaces the column.

        Subclasses that combine several columns override this method.

        Raises:
            ConfigError: the operator does not accept a column's type, or a column in a parameter does not
                exist.
        """
        self.require_types(columns)
        return [Step(self, (name,), (name,), {name: self.gives(kind)}) for name, kind in columns.items()]

    def gives(self, taken: Type) -> Type:
        """Returns the type of the output column for an input column of the type `taken`."""
        return "float"

    def reads(self) -> tuple[str, ...]:
        """Returns the raw columns that the statistics need in addition to the inputs of the step."""
        return ()

    def aggregates(self, value: Column, kind: Type) -> dict[str, Column]:
        """Returns Spark aggregates of the input `value` over the training rows, by name.

        The results must not depend on the order of rows.
        """
        raise NotImplementedError(f"internal error, please report: {self.name} has no aggregates")

    def aggregate_values(self, values: pa.Array, kind: Type) -> dict[str, Any]:
        """Returns the statistics of `aggregates`, computed from an Arrow array of all training rows.

        Raises:
            ConfigError: the operator does not define this method.
        """
        raise self._not_in_memory()

    def aggregates_of_counts(self, values: pa.Array, counts: np.ndarray, kind: Type) -> dict[str, Any]:
        """Returns the statistics of `aggregates`, computed from value counts of all training rows.

        A subclass that overrides this method needs no array of all rows.

        Args:
            values: (n,) distinct values. Null may be one of the values. No value is a list.
            counts: (n,) int64, the number of rows with each value.
            kind: the type of the values.
        """
        return self.aggregate_values(values.take(pa.array(np.repeat(np.arange(len(counts)), counts))), kind)

    def merge_aggregates(self, first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
        """Merges the statistics of two parts of a column of lists.

        Raises:
            ConfigError: the operator accepts lists, but does not define this method.
        """
        raise self._not_in_memory()

    def probabilities(self) -> tuple[float, ...]:
        """Returns the probabilities of the quantiles of the first input that `fit` needs."""
        raise NotImplementedError(f"internal error, please report: {self.name} has no quantiles")

    def statistic(self, kind: Type) -> MergeableStatistic:
        """Returns the statistic that `fit` needs of the first input. The input has the type `kind`."""
        raise NotImplementedError(f"internal error, please report: {self.name} has no statistic")

    def groups(self, rows: DataFrame) -> DataFrame:
        """Computes the statistics by key of several steps of this operator in one aggregation.

        The two columns in `GROUP` (etl/ops/keyed.py) contain the step and the key of a row.

        Args:
            rows: the training rows with the columns of `reads()` and of `GROUP`. Each training row occurs
                once per step.

        Returns:
            A frame with one row per step and key. It has the columns of `GROUP` and one column per statistic.
        """
        raise NotImplementedError(f"internal error, please report: {self.name} has no statistics by key")

    def group_values(self, rows: GroupedRows) -> dict[str, pa.Array]:
        """Returns the statistics of `groups` from rows in memory, each as an array of `rows.size` values.

        Raises:
            ConfigError: the operator does not define this method, and does not define `group_parts`.
        """
        parts = self.group_parts(rows)
        if self.reads_rows_twice:
            squares = self.group_squares(rows, self.group_means(parts))
            parts = replace(parts, sums={**parts.sums, **squares})
        return self.group_statistics(parts)

    @property
    def reads_rows_twice(self) -> bool:
        """Returns whether the statistics by key need a second pass over the rows (`group_squares`)."""
        return False

    def group_parts(self, rows: GroupedRows) -> GroupParts:
        """Returns statistics of some training rows by key, to be merged into the statistics of all rows.

        Raises:
            ConfigError: the operator does not define this method.
        """
        raise self._not_in_memory()

    def group_means(self, parts: GroupParts) -> dict[str, np.ndarray]:
        """Returns means over all training rows for `group_squares`: (parts.size,) float64 arrays by name."""
        return {}

    def group_squares(self, rows: GroupedRows, means: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the sums that a second pass over some of the rows adds to `GroupParts.sums`.

        Args:
            rows: some of the training rows.
            means: the result of `group_means` for the groups of `rows`: arrays (rows.size,).
        """
        return {}

    def group_statistics(self, parts: GroupParts) -> dict[str, pa.Array]:
        """Returns the statistics of `groups`, from the merged parts of all training rows."""
        raise self._not_in_memory()

    def facts(self, whole: Mapping[str, Any]) -> dict[str, Any]:
        """Returns additional values for `fit`, computed from statistics over all training rows.

        `whole` maps the name of each of these statistics to its value. It is empty if there are no training
        rows.
        """
        return {}

    @abstractmethod
    def fit(self, step: Step, statistics: Statistics) -> Fitted:
        """Returns the fitted step, which is immutable."""

    def _not_in_memory(self) -> ConfigError:
        return ConfigError(
            f"the operator {self.name} computes statistics only in Spark, so it cannot be fitted on a frame, "
            "or without a JVM",
            "remove the operator, or fit the workflow with build_features and workflow.engine=arrow",
        )

    def require_types(self, columns: Mapping[str, Type]) -> None:
        """Raises ConfigError if a column has a type that the operator does not accept."""
        for column, kind in columns.items():
            if kind not in self.takes:
                raise ConfigError(
                    f"{self.name} takes columns of type {' or '.join(self.takes)}, but {column} is {kind}",
                    f"declare {column} with one of these types, or put an operator that converts {column} "
                    f"before {self.name}",
                )

    def __rrshift__(self, columns: Sequence[str]) -> Pipeline:
        """Returns a Pipeline for expressions such as `["C1", "C2"] >> Categorify(min_count=15)`."""
        return Pipeline(tuple(columns), (self,))

    def config(self) -> str | dict[str, dict[str, Any] | None]:
        """Returns the operator as an entry of `features.ops`. Parameters with default values are omitted."""
        parameters = {
            name: getattr(self, name)
            for name, field in type(self).model_fields.items()
            if field.is_required() or getattr(self, name) != field.default
        }
        return {self.name: parameters} if parameters else self.name


@dataclass(frozen=True)
class Pipeline:
    """A list of columns, and the operators that are applied to these columns one after the other.

    `feature` converts a pipeline to a feature group of the configuration. The workflow version does not
    depend on whether a feature group was written in Python or in YAML.
    """

    columns: tuple[str, ...]
    operators: tuple[Operator, ...]

    def __rshift__(self, following: Operator) -> Pipeline:
        return Pipeline(self.columns, (*self.operators, following))

    def feature(self, kind: Literal["dense", "categorical", "multi_hot"]) -> FeatureGroup:
        """Returns the pipeline as a feature group, whose outputs become features of the kind `kind`."""
        entries: list[OperatorEntry] = [operator.config() for operator in self.operators]
        return FeatureGroup(columns=list(self.columns), kind=kind, ops=entries)
