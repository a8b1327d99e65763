"""The base classes of operators: their parameters, feature operators, and operators of the section `prepare`.

Parameters are a pydantic model whose errors name the operator, the parameter and the value. An `Operator`
holds parameters, which are checked when the object is constructed. Its method `bind` takes columns with their
types and returns `Step`s. A step is an operator with named input and output columns. The method `fit` takes a
step and the statistics of the training rows that this step needs, and returns a `Fitted`. A `Fitted` is
immutable and is stored as JSON.

A fitted step returns the same results in both engines, `sql` and `arrow`. In the engine `sql`, the step's
method `apply` builds Spark column expressions and joins. In the engine `arrow`, the step's method `compute`
processes Arrow arrays. Operators must not use a Spark session or a file path.

A `FrameOperator` of the section `prepare` runs before features are computed. To add an operator, add a file
to etl/operators (etl/ops/__init__.py finds it) and an example to tests/etl/ops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, WrapValidator

from conf.errors import ConfigError
from conf.raw_types import Strict
from conf.types import FeatureGroup, OperatorEntry
from etl.ops.tables import LocalTables, Tables
from etl.ops.training_statistics import GroupedRows, GroupParts, MergeableStatistic, Need, Statistics
from storage.feature_spec import FLOAT32_MAX, NUM_RESERVED_IDS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def _keep_as_written(value: Any, validate: Callable[[Any], Any]) -> Any:
    """Validates a number and returns it unchanged: an integer is not converted to a float.

    So the digest of an operator's parameters differs for `3` and `3.0`.
    """
    number = validate(value)
    if not abs(number) <= FLOAT32_MAX:
        raise ValueError("it is outside the range of float32: use a number within ±3.4e38")
    return value


def _number_to_text(value: Any) -> Any:
    """Converts a number to its decimal text; returns other values unchanged."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


# A number that may become the value of a feature, so it must be within the range of float32.
Number = Annotated[float, WrapValidator(_keep_as_written)]
Integer = Annotated[int, Field(gt=-(2**31), lt=2**31)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Buckets = Annotated[int, Field(ge=1, lt=2**31 - NUM_RESERVED_IDS)]
# YAML has lists, but Python callers may pass tuples. So pydantic's strict mode is off for the list, and on
# for its elements.
Texts = Annotated[tuple[str, ...], Field(strict=False)]
Value = Annotated[str, BeforeValidator(_number_to_text), WithJsonSchema({"type": ["string", "number"]})]
Values = Annotated[tuple[Value, ...], Field(strict=False)]

_RULES = {
    "tuple_type": "it must be a list",
    "dict_type": "it must be a mapping",
    "too_short": "it must not be empty",
}


class Parameters(Strict):
    """The parameters of an operator. Objects are immutable. A value must have exactly the declared type.

    Raises:
        ConfigError: a parameter is missing, unknown or not allowed.
    """

    model_config = ConfigDict(strict=True)

    name: ClassVar[str]

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(
                f"{self.name} {'; '.join(_problems(error, values, sorted(type(self).model_fields)))}",
                f"correct these parameters; docs/operators describes the parameters of {self.name}",
            ) from error


def _problems(error: ValidationError, values: Mapping[str, Any], known: Sequence[str]) -> list[str]:
    """Returns one message for each wrong parameter.

    If a parameter may have several types, pydantic reports an error for each type. These errors become one
    message.
    """
    rules: dict[tuple[Any, ...], list[str]] = {}
    for detail in error.errors(include_url=False):
        path = _path(detail["loc"], values)
        key = ".".join(str(part) for part in path)
        if detail["type"] == "extra_forbidden":
            message = f"does not take {key}={detail['input']!r}; its parameters are {known}"
        elif detail["type"] == "missing":
            message = f"needs the parameter {key}"
        else:
            rule = _RULES.get(detail["type"], detail["msg"].removeprefix("Value error, "))
            message = f"{key}={detail['input']!r}: {rule}"
        rules.setdefault(path, []).append(message)
    deepest = [path for path in rules if not any(_is_above(path, other) for other in rules)]
    return [_joined(rules[path]) for path in deepest]


def _path(location: tuple[Any, ...], values: Any) -> tuple[Any, ...]:
    """Returns the keys and indices of an error's location, without the names of types that pydantic adds."""
    path: list[Any] = []
    for part in location:
        if (isinstance(values, Mapping) and part in values) or (
            isinstance(values, list | tuple) and isinstance(part, int) and part < len(values)
        ):
            values = values[part]
        elif path:
            continue
        path.append(part)
    return tuple(path)


def _is_above(path: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Returns whether `path` is a prefix of `other`."""
    return len(path) < len(other) and other[: len(path)] == path


def _joined(messages: Sequence[str]) -> str:
    """Joins several messages about one parameter into one message.

    The value appears once in this message, and the rules are joined by `or`.
    """
    intro = messages[0].partition(": ")[0]
    rules = [message.removeprefix(f"{intro}: ") for message in messages]
    return f"{intro}: {' or '.join(dict.fromkeys(rules))}" if len(messages) > 1 else messages[0]


# The base classes of feature operators.

# Types of values in a chain of steps: int has 64 bits, float is a double, and the last two types are lists.
Type = Literal["int", "float", "string", "ints", "strings"]
NUMBERS: tuple[Type, ...] = ("int", "float")
KEYS: tuple[Type, ...] = ("int", "string")
LISTS: tuple[Type, ...] = ("ints", "strings")


@dataclass(frozen=True)
class Fitted(ABC):
    """A fitted step computes values of `outputs` from values of `inputs`, row by row.

    Attributes:
        out_of_fold: whether the outputs of a training row may differ from the outputs of an equal row that is
            not a training row. If true, `compute_training` computes the outputs of training rows. This method
            also receives the ids of these rows.
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
        """Returns `rows`, joined with the tables that the step needs, and one expression per output.

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
        """Returns one Arrow array per output, for rows on which the step was fitted.

        This method replaces `compute` for these rows. It is called only for `out_of_fold` steps. `row_ids`
        are the ids of these rows, shape (n,), int64. The id of a row is its position in the log of its day,
        or in the frame on which the step was fitted.
        """
        return self.compute(values, tables)

    @property
    def training_days(self) -> tuple[str, ...]:
        """Returns the days whose rows an `out_of_fold` step was fitted on, as ISO dates."""
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
        outputs: names of the outputs, in the same order as in the fitted step.
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

        Subclasses override this method to avoid building an array of all rows.

        Args:
            values: (n,) distinct values. Null may be one of the values. No value is a list.
            counts: (n,) int64, the number of rows with each value.
            kind: the type of the values, such as `int` or `string`.
        """
        return self.aggregate_values(values.take(pa.array(np.repeat(np.arange(len(counts)), counts))), kind)

    def merge_aggregates(self, first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
        """Merges the statistics of two sets of rows. It is called only for columns of lists.

        Raises:
            ConfigError: the operator accepts lists, but does not define this method.
        """
        raise self._not_in_memory()

    def probabilities(self) -> tuple[float, ...]:
        """Returns the probabilities for which `fit` needs quantiles of the first input."""
        raise NotImplementedError(f"internal error, please report: {self.name} has no quantiles")

    def statistic(self, kind: Type) -> MergeableStatistic:
        """Returns the statistic that `fit` needs of the first input. The input has the type `kind`."""
        raise NotImplementedError(f"internal error, please report: {self.name} has no statistic")

    def groups(self, rows: DataFrame) -> DataFrame:
        """Computes the statistics by key of several steps of this operator in one aggregation.

        The two columns in `GROUP` (etl/ops/keyed.py) contain the number of a step and the key of a row in
        this step.

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
        """Returns the statistics by key of some training rows, as parts that can be merged.

        Raises:
            ConfigError: the operator does not define this method.
        """
        raise self._not_in_memory()

    def group_means(self, parts: GroupParts) -> dict[str, np.ndarray]:
        """Returns the means by key that `group_squares` needs, by name: (parts.size,) float64 arrays.

        `parts` are the merged parts of all training rows.
        """
        return {}

    def group_squares(self, rows: GroupedRows, means: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the sums by key that the second pass computes over some rows.

        They are added to `GroupParts.sums`.

        Args:
            rows: a part of the training rows, divided into groups by key.
            means: the result of `group_means` for the groups of `rows`: arrays (rows.size,).
        """
        return {}

    def group_statistics(self, parts: GroupParts) -> dict[str, pa.Array]:
        """Computes the statistics of `groups` from the merged partial statistics of all training rows."""
        raise self._not_in_memory()

    def facts(self, whole: Mapping[str, Any]) -> dict[str, Any]:
        """Returns additional values for `fit`, computed from statistics over all training rows.

        `whole` maps the name of each of these statistics to its value. `whole` is empty if there are no
        training rows.
        """
        return {}

    @abstractmethod
    def fit(self, step: Step, statistics: Statistics) -> Fitted:
        """Returns the fitted step, which is immutable."""

    def _not_in_memory(self) -> ConfigError:
        return ConfigError(
            f"the operator {self.name} computes statistics only in Spark, so it cannot be fitted on a frame "
            "in memory, or without a JVM",
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


# Features are computed by one of two engines: Spark expressions (`sql`), or Arrow arrays in Python workers
# (`arrow`).

Engine = Literal["sql", "arrow"]


def choose_engine(wanted: Literal["auto", "sql", "arrow"]) -> Engine:
    """Returns the engine `wanted`, or `arrow` if `wanted` is `auto`.

    `arrow` is faster than `sql`, even on a GPU (docs/decisions/operators.md#0075). The choice does not depend
    on the size of tables, because workers map tables into memory (etl/native/mapped_files.py).
    """
    return "arrow" if wanted == "auto" else wanted


# The base classes of the operators in the section `prepare`, which run before features are computed.


class FrameOperator(Parameters, ABC):
    """An operator over rows. It is not fitted, and it processes one day at a time.

    Attributes:
        page: the page of docs/operators that describes the operator (`PAGES` in etl/ops/pages.py).
    """

    page: ClassVar[str] = "rows"

    @abstractmethod
    def bind(self, columns: Mapping[str, Type]) -> Mapping[str, Type]:
        """Returns the columns that rows have after the operator, and their types.

        Raises:
            ConfigError: a column in a parameter does not exist or has a wrong type.
        """


class RowFilter(FrameOperator):
    """An operator that drops rows.

    The day's row counts contain the number of dropped rows under the name `reason`.
    """

    @property
    @abstractmethod
    def reason(self) -> str:
        """Returns the name under which the day's row counts contain the number of dropped rows."""

    def inputs(self, columns: Mapping[str, Type]) -> tuple[str, ...]:
        """Returns the raw columns that the condition reads.

        Args:
            columns: maps each raw column to its type.

        Raises:
            ConfigError: the operator does not define this method.
        """
        raise self._no_form("inputs")

    def keeps_rows(
        self, rows: Mapping[str, pa.Array], count: int, columns: Mapping[str, Type]
    ) -> pa.BooleanArray:
        """Returns for each row whether it is kept: `count` booleans.

        A row for which the result is null is dropped.

        Args:
            rows: maps each column of `inputs` to an array of `count` values without a dictionary.
            count: number of rows, which is the length of each array in `rows`.
            columns: maps each raw column to its type.

        Raises:
            ConfigError: the operator does not define this method.
        """
        raise self._no_form("keeps_rows")

    def _no_form(self, method: str) -> ConfigError:
        return ConfigError(
            f"the operator {self.name} cannot filter rows of a log: it does not define `{method}`",
            f"define the methods `inputs` and `keeps_rows` of {self.name} (etl.ops.base.RowFilter); the "
            "method `keeps` of earlier releases, which returned a Spark condition, is no longer called",
        )


class RowChanger(FrameOperator):
    """An operator that adds columns or combines rows.

    `apply` processes Spark frames, and `apply_table` processes Arrow tables. Both return the same rows, in
    any order.

    Attributes:
        of_log_rows: whether the operator gets only the rows of the log, without the rows that the section
            `negatives` adds. If true, an added row gets the new columns of the positive row for which it was
            drawn, and the operator must keep all rows.
    """

    of_log_rows: ClassVar[bool] = False

    @abstractmethod
    def apply(self, rows: DataFrame) -> DataFrame:
        """Applies the operator to a Spark frame of rows, and returns the resulting rows."""

    def apply_table(self, rows: pa.Table) -> pa.Table:
        """Returns the rows after the operator.

        For each key that occurs in `rows` (see `key_columns`), `rows` contains all rows of the day.

        A column of `rows` is a plain array, a dictionary array or an array of lists, in one or more chunks.

        Raises:
            ConfigError: the operator does not define this method.
        """
        raise ConfigError(
            f"the operator {self.name} changes rows only in Spark: it does not define `apply_table`",
            f"define the method `apply_table` of {self.name}, which takes and returns a pyarrow.Table, or "
            "set workflow.engine=sql",
        )

    def key_columns(self) -> tuple[str, ...]:
        """Returns the key columns.

        All rows of a day with equal values in these columns are passed to `apply_table` in one call.

        The result for a row must depend only on the rows of the same call. If there are no key columns, all
        rows of the day are passed in one call.
        """
        return ()

    def reads(self, added: str) -> tuple[str, ...]:
        """Returns the columns from which the operator computes the column `added`.

        No feature may be computed from a column that is computed from the label.
        """
        return self.key_columns()
