"""The typed configuration of the training loop's parts: early stopping, profiler, reading, retraining."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from conf.raw_types import Days, PositiveInt, Strict


class StopAt(Strict):
    """When a training ends before its last step. The weights of the last step are kept.

    The metric is measured on the validation split every `train.evaluate_every_steps` steps.
    """

    metric: Literal["auc", "log_loss", "normalized_entropy"] = Field(
        default="auc", description="Metric that decides."
    )
    value: float | None = Field(
        default=None,
        description="The training ends when the metric is at least as good as this value. Null: no target.",
    )
    patience: PositiveInt | None = Field(
        default=None,
        description="The training ends after so many evaluations in a row without a new best one. Null: no "
        "limit.",
    )

    @model_validator(mode="after")
    def _asks_for_something(self) -> StopAt:
        if self.value is None and self.patience is None:
            raise ValueError("stop_at needs a value to reach, a patience, or both")
        return self


class Profile(Strict):
    """Steps that torch.profiler records. A trace is written to `<checkpoints of the model>.profile`."""

    first_step: PositiveInt = Field(default=10, description="First recorded step, counted from 1.")
    steps: PositiveInt = Field(default=5, description="Number of recorded steps.")
    every_rank: bool = Field(
        default=False, description="Whether all ranks write a trace, instead of rank 0 alone."
    )


class Reading(Strict):
    """How a rank reads feature tables.

    Rows are shuffled and cut into batches in buffer pools. Row groups are decoded up to `read_ahead_mib`
    ahead of the pool that needs them. Files of a lake on an object store are first copied to a folder of the
    rank, one row group at a time, and deleted once they are read.
    """

    pool_rows: PositiveInt = Field(
        default=131_072,
        description="Rows of a buffer pool, over all ranks together. A pool has at least 4 batches.",
    )
    read_ahead_mib: PositiveInt = Field(
        default=1024,
        description="MiB of decoded row groups that may wait for a pool, and one more row group.",
    )
    staging_folder: str | None = Field(
        default=None,
        description="Folder for copies of row groups. Each rank uses a folder in `nightrank-<user id>` "
        "below it. Null: the folder of temporary files.",
    )
    staging_mib: PositiveInt = Field(
        default=16_384,
        description="MiB of copies that may wait to be read, besides the one that is read and the one that "
        "is copied.",
    )


class Retrain(Strict):
    """How a retraining starts."""

    start: Literal["auto", "warm", "fresh"] = Field(
        default="auto",
        description="`warm`: from the champion, over its vocabularies extended by new values. The job stops "
        "with the reason if that does not fit. `fresh`: from random weights, on vocabularies "
        "fitted to the window alone. `auto`: warm if it fits, otherwise fresh.",
    )
    fresh_every_days: Days | None = Field(
        default=None,
        description="Days after which a retraining with start=auto is fresh again, so that values and "
        "habits that left the window leave the model too. Null: never for that reason.",
    )

    @model_validator(mode="after")
    def _only_auto_has_a_period(self) -> Retrain:
        if self.start != "auto" and self.fresh_every_days is not None:
            raise ValueError(f"fresh_every_days={self.fresh_every_days} needs start=auto, it is {self.start}")
        return self
