"""Winsorize: limits numbers to the range between two quantiles of the training rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from conf.errors import ConfigError, DataError
from etl.operators.clip import FittedClip
from etl.ops.base import Operator, Step
from etl.ops.training_statistics import Need, Statistics

Probability = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class FittedWinsorize(FittedClip):
    """The fitted step of the operator `winsorize`. `min` and `max` are the quantiles."""

    name: ClassVar[str] = "winsorize"


class Winsorize(Operator):
    """Replaces values outside two quantiles of the training rows by the nearer quantile. Null stays null.

    The quantile of the probability p is the smallest value v such that at least the share p of the values is
    <= v. It is computed exactly, and is always a value of the column. The quantile is the minimum for p = 0,
    and the maximum for p = 1. If a column is null in all training rows, fitting raises DataError.

    | in   | out (training rows 1 2 3 90, lower=0, upper=0.75) |
    |------|---------------------------------------------------|
    | -5   | 1.0                                               |
    | 2    | 2.0                                               |
    | 90   | 3.0                                               |
    | null | null                                              |
    """

    name: ClassVar[str] = "winsorize"
    page: ClassVar[str] = "numbers"
    needs: ClassVar[Need] = "quantiles"
    lower: Probability = Field(
        default=0.01, description="Probability of the quantile that is the lower limit."
    )
    upper: Probability = Field(
        default=0.99, description="Probability of the quantile that is the upper limit."
    )

    @model_validator(mode="after")
    def _is_a_range(self) -> Winsorize:
        if self.lower >= self.upper:
            raise ConfigError(
                f"winsorize lower={self.lower} is not below upper={self.upper}",
                "set a probability for `lower` that is below `upper`, such as 0.01 and 0.99",
            )
        return self

    def probabilities(self) -> tuple[float, ...]:
        """Returns the probabilities of the quantiles that `fit` needs."""
        return float(self.lower), float(self.upper)

    def fit(self, step: Step, statistics: Statistics) -> FittedWinsorize:
        """Returns the fitted step."""
        if not statistics.quantiles:
            raise DataError(
                f"winsorize cannot be fitted on {step.inputs[0]}: the column is null in all training rows",
                f"add `fill` before `winsorize`, or remove {step.inputs[0]} from features",
            )
        return FittedWinsorize(
            step.inputs, step.outputs, *(statistics.quantiles[share] for share in self.probabilities())
        )
