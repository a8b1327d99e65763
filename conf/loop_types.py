"""The typed configuration of parts of the training: lost ranks, early stopping, reading, retraining."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from conf.raw_types import Days, PositiveInt, Strict


class Elastic(Strict):
    """Elastic training: if ranks are lost, the other ranks continue from the last checkpoint.

    If Spark starts the lost ranks again, or later has resources for more ranks, the new ranks join the
    training at a checkpoint, up to `train.num_ranks` ranks.
    """

    min_ranks: PositiveInt = Field(
        default=1,
        description="Smallest number of ranks. If there are fewer, the training waits "
        "`train.start_timeout_s` seconds for more ranks, and fails if they do not start.",
    )


class StopAt(Strict):
    """A condition that ends a training early. `train.keep` says which weights the model then has.

    The metric is measured on the validation split every `train.evaluate_every_steps` steps, and with
    `train.keep: best` also at the end of each epoch.
    """

    metric: Literal["auc", "log_loss", "normalized_entropy"] = Field(
        default="auc",
        description="Metric that decides when the training ends. `auc`: area under the ROC curve; a larger "
        "value is better. `log_loss`: mean log loss of a row; a smaller value is better. "
        "`normalized_entropy`: log loss divided by that of the click rate as the prediction of every row; a "
        "smaller value is better.",
    )
    value: float | None = Field(
        default=None,
        description="The training ends when the metric is at least as good as this value. Null: no target.",
    )
    patience: PositiveInt | None = Field(
        default=None,
        description="The training ends after this number of consecutive evaluations without a new best value "
        "of the metric. Null: no limit.",
    )

    @model_validator(mode="after")
    def _asks_for_something(self) -> StopAt:
        if self.value is None and self.patience is None:
            raise ValueError("stop_at needs the key `value`, the key `patience`, or both")
        return self


class Profile(Strict):
    """Training steps that torch.profiler records.

    The trace is written to `<lake>/checkpoints/<model version>.profile`.
    """

    first_step: PositiveInt = Field(default=10, description="First recorded step, counted from 1.")
    steps: PositiveInt = Field(default=5, description="Number of recorded steps.")
    every_rank: bool = Field(
        default=False, description="Whether all ranks write a trace, instead of only rank 0."
    )


class TrainNegatives(Strict):
    """Negatives that are drawn anew for every row in every epoch, instead of the same ones in all epochs.

    It is for logs that record only what users chose, so the section `negatives` is required. In training,
    each positive row is used with `per_positive` items that are drawn by a hash of (seed, epoch, row, draw).
    Items are drawn from those in the train rows of the row's day, and have their features of that day. An
    item that the user chose on that day or on an earlier train day is replaced by another draw. All other
    rows are left out: the negatives that `negatives` added to the train split, and rows of the log with
    label 0. The validation and test splits are measured with the negatives that `negatives` added.
    """

    per_positive: PositiveInt = Field(
        default=20, description="Number of items that are drawn for each positive row in each epoch."
    )
    popularity: Annotated[float, Field(ge=0, le=4)] = Field(
        default=0.0,
        description="An item is drawn with a probability proportional to its number of positive train rows "
        "of the day, to the power of `popularity`. 0: all items are equally likely.",
    )


class Reading(Strict):
    """Settings for reading feature tables in a rank.

    Rows are shuffled in buffer pools, and then divided into batches. A rank decodes row groups before a pool
    needs them; `read_ahead_mib` limits the size of the decoded row groups. If the lake is on an object store,
    the rank first copies each row group to a local folder. It deletes this copy after reading the row group.
    """

    pool_rows: PositiveInt = Field(
        default=131_072,
        description="Number of rows in one buffer pool of every rank, added over all ranks. A pool has at "
        "least 4 batches.",
    )
    read_ahead_mib: PositiveInt = Field(
        default=256,
        description="Largest size, in MiB, of the decoded row groups that wait for a pool. One more row "
        "group is always allowed.",
    )
    staging_folder: str | None = Field(
        default=None,
        description="Local folder for copies of row groups. Each rank creates its own folder in the "
        "subfolder `nightrank-<user id>`. Null: the folder of temporary files ($TMPDIR, or /tmp).",
    )
    staging_mib: PositiveInt = Field(
        default=16_384,
        description="Largest size, in MiB, of the copies of row groups that wait to be read. The copy that "
        "is being read and the copy that is being written are not counted.",
    )


class Retrain(Strict):
    """The weights and vocabularies from which a retraining starts."""

    start: Literal["auto", "warm", "fresh"] = Field(
        default="auto",
        description="`warm`: from the weights of the champion; new values are added to the champion's "
        "vocabularies. If that is not possible, the job fails and says why. `fresh`: from random weights, "
        "with vocabularies that are fitted only to the train days. `auto`: `warm` if possible, otherwise "
        "`fresh`.",
    )
    fresh_every_days: Days | None = Field(
        default=None,
        description="With start=auto, a retraining is also fresh if the last fresh one was this number of "
        "days ago or more. The model then forgets values that no longer occur in the train days. Null: no "
        "such limit.",
    )

    @model_validator(mode="after")
    def _only_auto_has_a_period(self) -> Retrain:
        if self.start != "auto" and self.fresh_every_days is not None:
            raise ValueError(
                f"fresh_every_days={self.fresh_every_days} needs start=auto, but start={self.start} is set"
            )
        return self
