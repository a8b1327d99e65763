"""The base classes of feature operators.

An `Operator` holds parameters, which are checked when it is constructed. `bind` applies the operator to typed
columns and returns `Step`s with named inputs and outputs. `fit` takes a step and the statistics of the
training rows that it needs, and returns a frozen `Fitted`, which is stored as JSON. A fitted step returns the
same results in both engines: `apply` builds Spark column expressions and joins (`sql`), and `compute`
processes Arrow arrays (`arrow`). Operators must not use a session or a path.

To add an operator, add a file to this folder, an entry to `etl/ops/__init__.py`, and an example to
tests/etl/ops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from dataclasses import field as dataclass_field
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from conf.errors import ConfigError
from conf.types import FeatureGroup, OperatorEntry
from etl.ops.parameters import Parameters
from etl.ops.tables import LocalTables, Tables
from storage.feature_spec import FLOAT32_MAX

# Types of values in a chain: int has 64 bits, float is a double, and the last two types are lists.
Type = Literal["int", "float", "string", "ints", "strings"]
NUMBERS: tuple[Type, ...] = ("int", "float")
KEYS: tuple[Type, ...] = ("int", "string")
LISTS: tuple[Type, ...] = ("ints", "strings")

# Statistics that `fit` may need. moments: exact mean and standard deviation. aggregates: the result of
# `Operator.aggregates`. median: the lower median. counts: a vocabulary. groups: a keyed table, computed by
# `Operator.groups`. external: the rows of an external table.
Need = Literal["nothing", "moments", "aggregates", "median", "counts", "groups", "external"]


@dataclass(frozen=True)
class Moments:
    """Exact moments of a numeric column over the training rows, without nulls. `std` is of the population."""

    rows: int
    mean: float
    std: float


@dataclass(frozen=True)
class Statistics:
    """Statistics of the training rows for a step. Only statistics that the operator `needs` are set.

    Attributes:
        table: name of the published table with the step's vocabulary or keyed statistics.
        cardinality: number of embedding rows of the vocabulary, including reserved ids.
        facts: further JSON values that the operator computed from the rows.
    """

    moments: Moments | None = None
    aggregates: Mapping[str, Any] = dataclass_field(default_factory=dict)
    median: float | None = None
    table: str | None = None
    cardinality: int | None = None
    facts: Mapping[str, Any] = dataclass_field(default_factory=dict)


@dataclass(frozen=True)
class Fitted(ABC):
    """A fitted step computes values of `outputs` from values of `inputs`, row by row.

    `sql_only`: whether only the sql engine can compute rows of a table, because an output depends on more
    columns than the inputs. `compute` then returns the values for a single raw row that is not in a table.
    """

    name: ClassVar[str]
    sql_only: ClassVar[bool] = False
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @abstractmethod
    def apply(
        self, rows: DataFrame, values: Sequence[Column], tables: Tables, tag: str
    ) -> tuple[DataFrame, list[Column]]:
        """Returns the frame, joined with tables if necessary, and one expression per output.

        Args:
            values: one expression over `rows` per input.
            tag: prefix for columns that a join adds; unique in the workflow.
        """

    @abstractmethod
    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one array per output. `values` has one array per input (int64, double, string or lists)."""

    def state(self) -> dict[str, Any]:
        """JSON values from which `from_state` creates an equal step."""
        common = {field.name for field in fields(Fitted)}
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in common}

    @classmethod
    def from_state(cls, inputs: Sequence[str], outputs: Sequence[str], state: Mapping[str, Any]) -> Fitted:
        """Creates the fitted step from stored JSON values."""
        return cls(tuple(inputs), tuple(outputs), **state)

    @property
    def cardinality(self) -> int | None:
        """Number of embedding rows of the output's ids, including reserved ids; None if it has no ids."""
        return None

    def resized(self, cardinality: int | None) -> Fitted:
        """The same step for ids of another cardinality, which is stored in the field `size` if it exists."""
        sized: dict[str, Any] = (
            {"size": cardinality} if any(field.name == "size" for field in fields(self)) else {}
        )
        return replace(self, **sized)

    @property
    def kept(self) -> tuple[str, ...]:
        """The outputs that remain in the chain: all, unless the operator removes columns."""
        return self.outputs


@dataclass(frozen=True)
class RowWise(Fitted):
    """A fitted step with one output, which is computed by one column expression."""

    @abstractmethod
    def expression(self, *values: Column) -> Column:
        """Returns the expression of the output, from the expressions of the inputs."""

    def apply(
        self, rows: DataFrame, values: Sequence[Column], tables: Tables, tag: str
    ) -> tuple[DataFrame, list[Column]]:
        """Returns the frame, joined with tables if necessary, and one expression per output."""
        return rows, [self.expression(*values)]


@dataclass(frozen=True)
class Step:
    """An operator that is bound to columns but not fitted yet.

    Attributes:
        outputs: names of the outputs, in order.
        types: output → type.
        taken: types of the inputs, for operators whose result depends on them.
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
        takes: types of the values that it accepts.
        makes_ids: whether its outputs are ids of an embedding table.
        keeps_ids: whether the outputs are ids if the inputs are ids.
        of_all_rows: whether `facts` needs the statistics over all rows.
    """

    needs: ClassVar[Need] = "nothing"
    takes: ClassVar[tuple[Type, ...]] = NUMBERS
    makes_ids: ClassVar[bool] = False
    keeps_ids: ClassVar[bool] = False
    of_all_rows: ClassVar[bool] = False

    def bind(self, columns: Mapping[str, Type]) -> list[Step]:
        """Returns the steps over these columns: one step per column. Its output replaces the column.

        Operators that combine several columns override this method.

        Raises:
            ConfigError: the operator does not accept a column's type, or it names a column that does not
                exist.
        """
        self.require_types(columns)
        return [Step(self, (name,), (name,), {name: self.gives(kind)}) for name, kind in columns.items()]

    def gives(self, taken: Type) -> Type:
        """The type of an output whose input has the type `taken`."""
        return "float"

    def reads(self) -> tuple[str, ...]:
        """Raw columns that `fit` needs in addition to the inputs of the step."""
        return ()

    def aggregates(self, value: Column, kind: Type) -> dict[str, Column]:
        """Returns name → aggregate of one input over the training rows. Must not depend on the row order."""
        raise NotImplementedError(f"{self.name} needs no aggregates")

    def groups(self, rows: DataFrame) -> DataFrame:
        """Computes the keyed tables of several steps together, with one row per value of `GROUP`.

        Args:
            rows: the training rows with the columns `reads()`, repeated for each step. The columns
                `GROUP` contain the number of the step and the key of the row
                (etl/statistics/keyed_tables.py).
        """
        raise NotImplementedError(f"{self.name} has no keyed table")

    def facts(self, whole: Mapping[str, Any]) -> dict[str, Any]:
        """Further values for `fit`, computed from the statistics `whole` of all training rows.

        `whole` is empty if there are no rows.
        """
        return {}

    @abstractmethod
    def fit(self, step: Step, statistics: Statistics) -> Fitted:
        """Returns the frozen, fitted step."""

    def require_types(self, columns: Mapping[str, Type]) -> None:
        """Raises ConfigError if a column has a type that the operator does not accept."""
        for column, kind in columns.items():
            if kind not in self.takes:
                raise ConfigError(
                    f"{self.name} takes {' or '.join(self.takes)}, but {column} is {kind}",
                    f"declare {column} with such a type, or convert it with an operator before {self.name}",
                )

    def __rrshift__(self, columns: Sequence[str]) -> Pipeline:
        """`["C1", "C2"] >> Categorify(min_count=15)` is a Pipeline."""
        return Pipeline(tuple(columns), (self,))

    def config(self) -> str | dict[str, dict[str, Any] | None]:
        """The entry of `features.ops` for this operator with these parameters."""
        parameters = {
            name: getattr(self, name)
            for name, field in type(self).model_fields.items()
            if field.is_required() or getattr(self, name) != field.default
        }
        return {self.name: parameters} if parameters else self.name


def bounded_column(value: Column) -> Column:
    """Clips doubles to the range of float32, so that no feature is infinite; null stays null."""
    limit = F.lit(FLOAT32_MAX)
    return F.when(value > limit, limit).when(value < -limit, -limit).otherwise(value)


def bounded_array(numbers: Any) -> Any:
    """Clips (n,) float64 numbers to the range of float32."""
    return np.clip(numbers, -FLOAT32_MAX, FLOAT32_MAX)


def as_doubles(values: pa.Array) -> Any:
    """Returns (n,) float64 values, with NaN for null, and (n,) bool: whether each value is null."""
    nulls = values.is_null().to_numpy(zero_copy_only=False)
    return values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), nulls


def from_doubles(values: Any, nulls: Any) -> pa.Array:
    """Returns a float64 Arrow array of the NumPy `values`; null where `nulls` is true."""
    return pa.array(values, pa.float64(), mask=nulls)


@dataclass(frozen=True)
class Pipeline:
    """Columns, and the operators that are applied to them, in order.

    `feature` converts it to a feature group of the configuration. So a chain in Python and the same chain in
    YAML have the same workflow version.
    """

    columns: tuple[str, ...]
    operators: tuple[Operator, ...]

    def __rshift__(self, following: Operator) -> Pipeline:
        return Pipeline(self.columns, (*self.operators, following))

    def feature(self, kind: Literal["dense", "categorical", "multi_hot"]) -> FeatureGroup:
        """Returns the feature group, whose outputs become features of this kind."""
        entries: list[OperatorEntry] = [operator.config() for operator in self.operators]
        return FeatureGroup(columns=list(self.columns), kind=kind, ops=entries)
