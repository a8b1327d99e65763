"""Counts the values of all columns in one pass over the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from etl.workflow.feature_plan import Plan

Kind = Literal["string", "int", "float"]

LABEL_CELLS = ""  # column name of the label in value counts; no raw column has this name


@dataclass(frozen=True)
class Column:
    """A column of the raw log that a feature reads.

    Attributes:
        kind: "string" for categorical values, which are compared as text; "int" or "float" for numbers.
    """

    name: str
    kind: Kind

    @property
    def numeric(self) -> bool:
        """Returns whether the values are numbers."""
        return self.kind != "string"


def feature_columns(plan: Plan) -> list[Column]:
    """Returns the raw columns that features read, in the order of the configured features.

    If a dense feature reads a numeric column, its values are compared as numbers. The values of all other
    columns are compared as text.
    """
    types = plan.columns
    columns: dict[str, Column] = {}
    for group in plan.config.features:
        for name in group.columns:
            kind = types[name]
            if kind in ("int", "float", "string"):  # lists, which `prepare` may add, have no profile
                columns.setdefault(name, Column(name, kind if group.kind == "dense" else "string"))
    return list(columns.values())
