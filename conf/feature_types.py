"""The typed configuration of features: groups of columns, scopes, the split by time, and the workflow."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from conf.raw_types import Days, Names, Share, Strict

OperatorEntry = str | dict[str, dict[str, Any] | None]
Scope = Literal["user", "item", "pair", "context"]


class FeatureGroup(Strict):
    """Columns that go through one chain of operators. The outputs of the chain become features."""

    columns: Annotated[Names, Field(min_length=1)] = Field(
        description="Raw columns, by name. Ranges such as `I{1..13}` are expanded."
    )
    kind: Literal["dense", "categorical", "multi_hot"] = Field(
        description="`dense`: a number. `categorical`: one id. `multi_hot`: a list of ids."
    )
    ops: list[OperatorEntry] = Field(
        description="Operators in order. Each is `name` or `{name: {parameter: value}}`; docs/operators "
        "describes them."
    )


class Scopes(Strict):
    """The side of a (user, item) pair that a feature depends on. All other features have the scope `pair`."""

    user: Names = Field(default=[], description="Features that depend only on the user.")
    item: Names = Field(default=[], description="Features that depend only on the item.")
    context: Names = Field(
        default=[],
        description="Features that depend only on the time of the event, such as the hour of the day. For "
        "scoring, `score.context` gives their values.",
    )


class SplitConfig(Strict):
    """How rows are divided over time into train, validation and test."""

    by: Literal["day", "fraction", "leave_last_out"] = Field(
        description="`day`: for run date D the test days end on D, the validation days precede them, and "
        "the train days precede those. `fraction`: one partition is divided by event time, or by "
        "the order of its valid rows if the log has no time. `leave_last_out`: for each user, the "
        "test rows begin with the latest positive row, and the validation rows begin with the "
        "positive row before it."
    )
    train_days: Days = Field(default=7, description="Number of train days (by=day).")
    validation_days: Days = Field(default=1, description="Number of validation days (by=day).")
    test_days: Days = Field(default=1, description="Number of test days (by=day).")
    min_train_days: Days = Field(
        default=1,
        description="Smallest number of train days with a log (by=day). Days without a log are left out.",
    )
    train: Share = Field(default=0.8, description="Share of the rows that are train (by=fraction).")
    validation: Share = Field(
        default=0.1, description="Share of the rows that are validation (by=fraction). The rest is test."
    )

    @model_validator(mode="after")
    def _check(self) -> SplitConfig:
        if self.train + self.validation >= 1.0:
            raise ValueError(f"train={self.train} + validation={self.validation} leaves no rows for test")
        if self.min_train_days > self.train_days:
            raise ValueError(
                f"min_train_days={self.min_train_days} is more than train_days={self.train_days}"
            )
        return self


class WorkflowConfig(Strict):
    """How build_features gets the fitted workflow, and which engine applies it."""

    engine: Literal["auto", "sql", "arrow"] = Field(
        default="auto",
        description="`sql` parses lines and looks up ids with Spark expressions and joins, which RAPIDS can "
        "run on a GPU. `arrow` does both in Python workers on Arrow batches, which is faster on CPUs. "
        "`auto` chooses by profile and size. Both engines give the same rows.",
    )
    mode: Literal["auto", "fit", "extend", "apply", "retrain"] = Field(
        default="auto",
        description="`fit`: a new workflow from the train days of this run. `extend`: the champion's "
        "workflow with new values appended. `apply`: the champion's workflow, unchanged. `retrain`: "
        "`extend`, or `fit` if there is no champion yet or `train.retrain` asks for a fresh start. "
        "`auto`: `apply`, or `fit` in the same two cases.",
    )
