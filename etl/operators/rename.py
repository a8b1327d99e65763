"""Rename: gives columns other names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from pydantic import Field, model_validator

from conf.errors import ConfigError
from etl.ops.base import Operator, RowWise, Step, Type
from etl.ops.tables import LocalTables
from etl.ops.training_statistics import Statistics

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class FittedRename(RowWise):
    """The fitted step of the operator `rename`."""

    name: ClassVar[str] = "rename"
    size: int | None = None

    def expression(self, *values: Column) -> Column:
        """Returns the Spark expression of the output."""
        return values[0]

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        return [values[0]]

    @property
    def cardinality(self) -> int | None:
        """Returns the number of embedding rows that the output ids need; None if the outputs are not ids."""
        return self.size


class Rename(Operator):
    """Renames columns, so that one raw column can become several features. Values do not change.

    `names` maps old names to new names. The names of the other columns get the prefix `prefix` and the suffix
    `suffix`.

    | column | new name (names={C1: user}, suffix=_raw) |
    |--------|------------------------------------------|
    | C1     | user                                     |
    | C2     | C2_raw                                   |
    """

    name: ClassVar[str] = "rename"
    page: ClassVar[str] = "columns"
    keeps_ids: ClassVar[bool] = True
    takes: ClassVar[tuple[Type, ...]] = ("int", "float", "string", "ints", "strings")
    names: Mapping[str, str] | None = Field(
        default=None, description="Maps old names to new names. Null: every column gets prefix and suffix."
    )
    prefix: str = Field(
        default="", description="Text before the name of each column that `names` does not contain."
    )
    suffix: str = Field(
        default="", description="Text after the name of each column that `names` does not contain."
    )

    @model_validator(mode="after")
    def _changes_a_name(self) -> Rename:
        if not self.names and not self.prefix and not self.suffix:
            raise ConfigError(
                "`rename` has neither `names` nor `prefix` nor `suffix`",
                "set one of them, such as rename: {names: {C1: user}}",
            )
        return self

    def bind(self, columns: Mapping[str, Type]) -> list[Step]:
        """Returns the unfitted steps that apply the operator to `columns`.

        Raises:
            ConfigError: the operator does not accept these columns.
        """
        new_names = dict(self.names or {})
        unknown = sorted(set(new_names) - set(columns))
        if unknown:
            raise ConfigError(
                f"rename.names lists {unknown}, which are not in {list(columns)}",
                "list only columns of the group in `names`",
            )
        return [
            Step(self, (name,), (new,), {new: kind})
            for name, kind in columns.items()
            for new in [new_names.get(name, f"{self.prefix}{name}{self.suffix}")]
        ]

    def fit(self, step: Step, statistics: Statistics) -> FittedRename:
        """Returns the fitted step."""
        return FittedRename(step.inputs, step.outputs, statistics.cardinality)
