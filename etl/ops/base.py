"""The base classes of operators.

An `Operator` holds parameters, which are checked when it is constructed. `bind` combines it with typed
columns into `Step`s with named inputs and outputs. `fit` turns a step, with the statistics of the training
rows that it needs, into a frozen `Fitted`, which is stored as JSON. A fitted step has the same results in
both engines: `apply` builds Spark column expressions and joins (`sql`), `compute` works on Arrow arrays
(`arrow`). No operator uses a session or a path.

To add an operator, add a file to this folder, its line to `etl/ops/__init__.py`, an example to tests/etl/ops.
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

# Types a value has on its way through a chain: int is 64 bits, float is double, the last two are lists.
Type = Literal["int", "float", "string", "ints", "strings"]
NUMBERS: tuple[Type, ...] = ("int", "float")
KEYS: tuple[Type, ...] = ("int", "string")
LISTS: tuple[Type, ...] = ("ints", "strings")

# What `fit` needs. moments: exact mean and deviation. aggregates: the aggregates that the operator names.
# median: the lower median. counts: a vocabulary. groups: the keyed table that the operator computes.
# external: the rows of a table that the operator names.
Need = Literal["nothing", "moments", "aggregates", "median", "counts", "groups", "external"]


@dataclass(frozen=True)
class Moments:
    """Exact statistics of a numeric column over the training rows, nulls left out (population variance)."""

    rows: int
    mean: float
    std: float


@dataclass(frozen=True)
class Statistics:
    """Statistics of the training rows for a step. Only those are set that its operator's `needs` names.

    Attributes:
        table: name of the published table with the step's vocabulary or keyed statistics.
        cardinality: embedding rows of the vocabulary, reserved ids included.
        facts: further JSON values that the operator computed over the rows.
    """

    moments: Moments | None = None
    aggregates: Mapping[str, Any] = dataclass_field(default_factory=dict)
    median: float | None = None
    table: str | None = None
    cardinality: int | None = None
    facts: Mapping[str, Any] = dataclass_field(default_factory=dict)


@dataclass(frozen=True)
class Fitted(ABC):
    """A fitted step: values of `inputs` → values of `outputs`, row by row; the number of rows stays.

    `sql_only`: whether rows of a table are the sql engine's alone, because a value depends on more of its row
    than the inputs; `compute` then gives what a single raw row outside any table gets.
    """

    name: ClassVar[str]
    sql_only: ClassVar[bool] = False
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @abstractmethod
    def apply(
        self, rows: DataFrame, values: Sequence[Column], tables: Tables, tag: str
    ) -> tuple[DataFrame, list[Column]]:
        """The frame, joined where need be, and one expression over it an output.

        Args:
            values: one expression over `rows` an input.
            tag: prefix for columns a join adds, unique in the workflow.
        """

    @abstractmethod
    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """One array an output from one array (int64, double, string or list of them) an input."""

    def state(self) -> dict[str, Any]:
        """JSON values from which `from_state` makes an equal step."""
        common = {field.name for field in fields(Fitted)}
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in common}

    @classmethod
    def from_state(cls, inputs: Sequence[str], outputs: Sequence[str], state: Mapping[str, Any]) -> Fitted:
        """The fitted step of stored JSON values."""
        return cls(tuple(inputs), tuple(outputs), **state)

    @property
    def cardinality(self) -> int | None:
        """Embedding rows of the ids it makes, reserved ids included; None where it makes no ids."""
        return None

    def resized(self, cardinality: int | None) -> Fitted:
        """The same step for ids of another cardinality: steps that keep ids say it in their field `size`."""
        sized: dict[str, Any] = (
            {"size": cardinality} if any(field.name == "size" for field in fields(self)) else {}
        )
        return replace(self, **sized)

    @property
    def kept(self) -> tuple[str, ...]:
        """The outputs that go on: all, but for operators that leave columns out."""
        return self.outputs


@dataclass(frozen=True)
class RowWise(Fitted):
    """A fitted step with one output that is one column expression."""

    @abstractmethod
    def expression(self, *values: Column) -> Column:
        """The output's value from the inputs' values."""

    def apply(
        self, rows: DataFrame, values: Sequence[Column], tables: Tables, tag: str
    ) -> tuple[DataFrame, list[Column]]:
        """The frame, joined with tables if necessary, and an expression for each output."""
        return rows, [self.expression(*values)]


@dataclass(frozen=True)
class Step:
    """An operator bound to columns, not fitted yet.

    Attributes:
        outputs: names in order.
        types: output → type.
        taken: types of the inputs, for operators that differ by them.
    """

    operator: Operator
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, Type]
    taken: tuple[Type, ...] = ()


class Operator(Parameters, ABC):
    """An operator: its parameters, and what it does with columns.

    Attributes:
        needs: the statistics of the training rows that `fit` asks for.
        takes: types of values it accepts.
        makes_ids: whether its outputs are ids of an embedding table.
        keeps_ids: whether ids stay ids.
        of_all_rows: whether `facts` needs the statistics of all rows.
    """

    needs: ClassVar[Need] = "nothing"
    takes: ClassVar[tuple[Type, ...]] = NUMBERS
    makes_ids: ClassVar[bool] = False
    keeps_ids: ClassVar[bool] = False
    of_all_rows: ClassVar[bool] = False

    def bind(self, columns: Mapping[str, Type]) -> list[Step]:
        """The steps over these columns: one step for each column, which it replaces.

        Operators over several columns override this.

        Raises:
            ConfigError: a column has a type the operator does not take, or it names columns that are not
                there.
        """
        self.require_types(columns)
        return [Step(self, (name,), (name,), {name: self.gives(kind)}) for name, kind in columns.items()]

    def gives(self, taken: Type) -> Type:
        """Type of an output, from the type of its input."""
        return "float"

    def reads(self) -> tuple[str, ...]:
        """Raw columns that `fit` needs besides the inputs of the step."""
        return ()

    def aggregates(self, value: Column, kind: Type) -> dict[str, Column]:
        """Name → aggregate over the training rows of one input; independent of the order of rows."""
        raise NotImplementedError(f"{self.name} asks for no aggregates")

    def groups(self, rows: DataFrame) -> DataFrame:
        """The keyed tables of several steps in one: a row for each pair of `GROUP`, with its statistics.

        Args:
            rows: the training rows with `reads()`, once for each step, under its number and the row's key in
                `GROUP`
                (etl/statistics/keyed_tables.py).
        """
        raise NotImplementedError(f"{self.name} makes no keyed table")

    def facts(self, whole: Mapping[str, Any]) -> dict[str, Any]:
        """Further values for `fit`, from the statistics of all training rows; empty if there are no rows."""
        return {}

    @abstractmethod
    def fit(self, step: Step, statistics: Statistics) -> Fitted:
        """The frozen step."""

    def require_types(self, columns: Mapping[str, Type]) -> None:
        """Raises ConfigError if a column has a type that the operator does not accept."""
        for column, kind in columns.items():
            if kind not in self.takes:
                raise ConfigError(
                    f"{self.name} takes {' or '.join(self.takes)}, and {column} is {kind}",
                    f"declare {column} otherwise in columns, or put an operator before that makes it so",
                )

    def __rrshift__(self, columns: Sequence[str]) -> Pipeline:
        """`["C1", "C2"] >> Categorify(min_count=15)` is a Pipeline."""
        return Pipeline(tuple(columns), (self,))

    def config(self) -> str | dict[str, dict[str, Any] | None]:
        """The entry of `features.ops` that names this operator with these parameters."""
        parameters = {
            name: getattr(self, name)
            for name, field in type(self).model_fields.items()
            if field.is_required() or getattr(self, name) != field.default
        }
        return {self.name: parameters} if parameters else self.name


def bounded_column(value: Column) -> Column:
    """A double moved into float32's range, so that no feature is infinite; null stays null."""
    limit = F.lit(FLOAT32_MAX)
    return F.when(value > limit, limit).when(value < -limit, -limit).otherwise(value)


def bounded_array(numbers: Any) -> Any:
    """(n,) float64 NumPy array moved into float32's range."""
    return np.clip(numbers, -FLOAT32_MAX, FLOAT32_MAX)


def as_doubles(values: pa.Array) -> Any:
    """(n,) float64 NumPy array with NaN for null, and (n,) bool of what is null."""
    nulls = values.is_null().to_numpy(zero_copy_only=False)
    return values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), nulls


def from_doubles(values: Any, nulls: Any) -> pa.Array:
    """float64 Arrow array of NumPy values; null where `nulls` says so."""
    return pa.array(values, pa.float64(), mask=nulls)


@dataclass(frozen=True)
class Pipeline:
    """Columns and the operators they go through, in order.

    `feature` makes it a group of the configuration, so both ways of writing give the same workflow version.
    """

    columns: tuple[str, ...]
    operators: tuple[Operator, ...]

    def __rshift__(self, following: Operator) -> Pipeline:
        return Pipeline(self.columns, (*self.operators, following))

    def feature(self, kind: Literal["dense", "categorical", "multi_hot"]) -> FeatureGroup:
        """The configuration's group: its outputs become features of this kind."""
        entries: list[OperatorEntry] = [operator.config() for operator in self.operators]
        return FeatureGroup(columns=list(self.columns), kind=kind, ops=entries)
