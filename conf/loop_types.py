"""The typed configuration of parts of the training: early stopping, profiler, reading, retraining."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from conf.raw_types import Days, PositiveInt, Strict


class StopAt(Strict):
    """When a training ends before its last planned step. The weights of the step at which it ends are kept.

    The metric is measured on the validation split every `train.evaluate_every_steps` steps.
    """

    metric: Literal["auc", "log_loss", "normalized_entropy"] = Field(
        default="auc", description="Metric that decides when the training ends."
    )
    value: float | None = Field(
        default=None,
        description="The training ends when the metric is at least as good as this value. Null: no target.",
    )
    patience: PositiveInt | None = Field(
        default=None,
        description="The training ends after this number of evaluations in a row without a new best value. "
        "Null: no limit.",
    )

    @model_validator(mode="after")
    def _asks_for_something(self) -> StopAt:
        if self.value is None and self.patience is None:
            raise ValueError("stop_at needs value, patience, or both")
        return self


class Profile(Strict):
    """Steps that torch.profiler records. A trace is written to `<checkpoints of the model>.profile`."""

    first_step: PositiveInt = Field(default=10, description="First recorded step, counted from 1.")
    steps: PositiveInt = Field(default=5, description="Number of recorded steps.")
    every_rank: bool = Field(
        default=False, description="Whether all ranks write a trace, instead of only rank 0."
    )


class Reading(Strict):
    """How a rank reads feature tables.

    Rows are shuffled in buffer pools, and then divided into batches. Row groups are decoded before a pool
    needs them, up to `read_ahead_mib`. If the lake is on an object store, a rank first copies its files to a
    local folder, one row group at a time. It deletes a copy after reading it.
    """

    pool_rows: PositiveInt = Field(
        default=131_072,
        description="Rows of the buffer pools of all ranks together. A pool has at least 4 batches.",
    )
    read_ahead_mib: PositiveInt = Field(
        default=1024,
        description="MiB of decoded row groups that may wait for a pool. One more row group is always "
        "allowed.",
    )
    staging_folder: str | None = Field(
        default=None,
        description="Folder for copies of row groups. Each rank uses a folder in `nightrank-<user id>` "
        "below it. Null: the folder of temporary files.",
    )
    staging_mib: PositiveInt = Field(
        default=16_384,
        description="MiB of copies that may wait to be read. The copy that is being read and the one that is "
        "being written are not counted.",
    )


class Retrain(Strict):
    """How a retraining starts."""

    start: Literal["auto", "warm", "fresh"] = Field(
        default="auto",
        description="`warm`: from the weights of the champion, with its vocabularies extended by new values. "
        "If that is not possible, the job fails and names the reason. `fresh`: from random weights, "
        "with vocabularies fitted only to the window. `auto`: `warm` if possible, otherwise `fresh`.",
    )
    fresh_every_days: Days | None = Field(
        default=None,
        description="Number of days after which a retraining with start=auto is fresh again, so that the "
        "model forgets values and habits that are no longer in the window. Null: no such limit.",
    )

    @model_validator(mode="after")
    def _only_auto_has_a_period(self) -> Retrain:
        if self.start != "auto" and self.fresh_every_days is not None:
            raise ValueError(f"fresh_every_days={self.fresh_every_days} needs start=auto, not {self.start}")
        return self
