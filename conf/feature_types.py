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
        description="Operators in order. Each operator is written as `name` or `{name: {parameter: value}}`; "
        "docs/operators describes all operators."
    )


class Scopes(Strict):
    """The scopes of features: a feature depends on the user, on the item, or on neither (the context).

    A feature that is in none of the lists has the scope `pair`: its value may be different for every pair of
    user and item.
    """

    user: Names = Field(default=[], description="Features that depend only on the user.")
    item: Names = Field(default=[], description="Features that depend only on the item.")
    context: Names = Field(
        default=[],
        description="Features that depend neither on the user nor on the item, such as the hour of the day "
        "or the device. For lists, `score.context` gives the raw values of these features.",
    )


class SplitConfig(Strict):
    """Settings that divide rows over time into train, validation and test."""

    by: Literal["day", "fraction", "leave_last_out"] = Field(
        description="`day`: each split consists of whole days. The last test day is the run date; the "
        "validation days precede the test days, and the train days precede the validation days. `fraction`: "
        "all rows of the log are divided by event time, or by the order of the valid rows if the log has no "
        "event time. `leave_last_out`: for each user, the test rows begin with the latest positive row, and "
        "the validation rows begin with the positive row before it."
    )
    train_days: Days = Field(default=7, description="Number of train days (by=day).")
    validation_days: Days = Field(default=1, description="Number of validation days (by=day).")
    test_days: Days = Field(default=1, description="Number of test days (by=day).")
    min_train_days: Days = Field(
        default=1,
        description="Smallest number of train days that have a log (by=day). Train days without a log are "
        "left out.",
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
    """Settings that decide how build_features gets the fitted workflow, and which engine applies it."""

    engine: Literal["auto", "sql", "arrow"] = Field(
        default="auto",
        description="`sql` parses lines and looks up ids with Spark expressions and joins, which RAPIDS can "
        "run on a GPU. `arrow` parses lines and looks up ids in Python workers on Arrow batches, which is "
        "faster on CPUs. `auto` is `sql` if the Spark profile has the RAPIDS plugin, and for looking up ids "
        "also if the vocabularies together have more than `output.broadcast_max_rows` rows. Otherwise `auto` "
        "is `arrow`. Both engines give the same rows.",
    )
    mode: Literal["auto", "fit", "extend", "apply", "retrain"] = Field(
        default="auto",
        description="`fit`: a new workflow is fitted to the train days of this run. `extend`: the values of "
        "new train days are added to the champion's workflow. `apply`: the champion's workflow is used "
        "unchanged. `retrain`: as `extend`, but as `fit` if there is no champion yet or if `train.retrain` "
        "requires a fresh start. `auto`: as `apply`, but as `fit` if there is no champion yet.",
    )
