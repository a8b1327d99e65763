"""The typed configuration of written tables, scoring, measurement and the generator of click logs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from conf.dates import IsoDate
from conf.delivery_types import Stop
from conf.raw_types import Days, PositiveInt, Seed, Share, Strict
from conf.rule_types import ListRules
from conf.split_types import Split
from conf.train_types import Kernels


class Output(Strict):
    """The size of files in written tables, and related limits."""

    row_group_rows: PositiveInt = Field(
        default=1_000_000, description="Largest number of rows of a Parquet file. A file is one row group."
    )
    grace_hours: Annotated[float, Field(ge=0)] = Field(
        default=24.0, description="Hours after which files that no manifest names are deleted."
    )
    broadcast_max_rows: PositiveInt = Field(
        default=2_000_000,
        description="Largest number of rows of a vocabulary or keyed table that Spark broadcasts in a join.",
    )


class Score(Strict):
    """The daily top-k lists, and the probabilities of feature rows."""

    k: PositiveInt = Field(default=10, description="Number of items in a user's list.")
    context: dict[str, str | int | float] = Field(
        default={}, description="Raw value of every feature of scope `context`, for the lists of the run."
    )
    rows_per_step: PositiveInt | None = Field(
        default=None,
        description="Number of (user, item) pairs or feature rows that go through the model at once. It is "
        "halved if the memory of the device is too small. Null: as many as fit into the caches of a CPU "
        "or the free memory of a GPU.",
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32",
        description="Precision of matrix products over pairs or rows. Probabilities are always float32. "
        "docs/scoring.md lists the resulting errors.",
    )
    rows_split: Split = Field(
        default="test", description="Split whose feature rows get a probability from score_rows."
    )
    embeddings: Literal["stored", "int8"] = Field(
        default="stored",
        description="Format of embedding tables while scoring. `int8`: one byte per number and one scale per "
        "row, which needs a quarter of the memory of float32. The manifest says how much this changes "
        "the probabilities of a sample. `stored`: the format of the model file.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="Device that computes the scores. `auto`: a GPU if there is one."
    )
    kernels: Kernels = Field(default="auto", description="Kernels of a GPU, as `train.kernels`.")
    rules: ListRules | None = Field(
        default=None, description="Business rules, applied after the ranking. Null: none."
    )
    stop: Stop = Field(
        default=Stop(),
        description="Limits on the change of the lists. If the lists exceed a limit, they are not published.",
    )

    @model_validator(mode="after")
    def _kernels_on_gpus(self) -> Score:
        if self.kernels == "triton" and self.device == "cpu":
            raise ValueError("kernels=triton needs a GPU, but device=cpu is set")
        return self


class Measure(Strict):
    """The clicks that recommendations and groups are compared with."""

    against: Literal["next_day", "test_split"] = Field(
        default="next_day",
        description="`next_day`: the clicks of the day after the run date. `test_split`: the positives of "
        "the test split.",
    )
    group_k: PositiveInt = Field(
        default=12,
        description="The k of MAP@k and NDCG@k for the groups of keys.group (evaluate_model).",
    )


class Generate(Strict):
    """The generator of click logs: sizes, rates and the seed. etl/synthetic describes how clicks arise.

    The rows of a day depend on all of these keys except `days`, `first_date`, `layout` and `compression`. The
    layout `outbrain` is a different log (etl/synthetic/outbrain): each display has several ads, which are the
    items.
    """

    days: Days = Field(default=11, description="Number of days that are written.")
    first_date: IsoDate = Field(
        default="2026-01-01",
        description="First generated day, for jobs that run the chain over the whole log. generate_clicks "
        "itself begins with its run date.",
    )
    rows_per_day: PositiveInt = Field(
        default=60_000, description="Rows of a day. With the layout `outbrain` the number is approximate."
    )
    users: PositiveInt = Field(default=4_000, description="Number of users.")
    items: PositiveInt = Field(
        default=800, description="Number of items. The layout `outbrain` needs at least 100."
    )
    seed: Seed = Field(default=42, description="Seed of all draws.")
    layout: Literal["criteo", "named", "outbrain"] = Field(
        default="criteo",
        description="Columns and format of the log: Criteo's columns, the same rows with readable names, or "
        "Outbrain's displays.",
    )
    files_per_day: PositiveInt = Field(default=2, description="Number of files of a day.")
    compression: Literal["none", "gzip"] = Field(default="none", description="Compression of the files.")
    missing_share: Share = Field(
        default=0.02, description="Probability that a field other than a key is empty."
    )
    malformed_share: Share = Field(default=0.002, description="Share of the rows that are malformed.")
    cold_share: Share = Field(
        default=0.02, description="Share of users and of items that are replaced by new ones each day."
    )

    @model_validator(mode="after")
    def _every_file_has_rows(self) -> Generate:
        if self.files_per_day > self.rows_per_day:
            raise ValueError(
                f"files_per_day={self.files_per_day} is more than rows_per_day={self.rows_per_day}"
            )
        if self.layout == "outbrain" and self.items < 100:
            raise ValueError(f"items={self.items} is too few: layout=outbrain needs at least 100")
        return self
