"""The typed configuration of the split: which rows are train, validation and test."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from conf.raw_types import Days, Share, Strict

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


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
        description="Smallest number of train days that have a log with rows (by=day). Train days without a "
        "log, or with a log without rows, are left out.",
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
