"""Chains written in Python: `["I1", "I2"] >> Clip(min=0) >> Log1p()`, beside those of the YAML files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from conf.types import FeatureGroup, OperatorEntry
from etl.ops.base import Operator


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
        entries: list[OperatorEntry] = [each.config() for each in self.operators]
        return FeatureGroup(columns=list(self.columns), kind=kind, ops=entries)
