"""The typed configuration of the stages: features, split, model, training, scoring, the generator."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from conf.dates import IsoDate
from conf.delivery_types import ListRules, Stop
from conf.raw_types import Days, Names, PositiveInt, Seed, Share, Strict
from conf.split_types import Split
from conf.train_types import Kernels

OperatorEntry = str | dict[str, dict[str, Any] | None]
Scope = Literal["user", "item", "pair", "context"]


class FeatureGroup(Strict):
    """Columns that go through one chain of operators, whose outputs become features of this kind.

    An operator is `name` or `{name: {parameter: value}}`; docs/operators shows all of them.
    """

    columns: Annotated[Names, Field(min_length=1)]
    kind: Literal["dense", "categorical", "multi_hot"]
    ops: list[OperatorEntry]


class Scopes(Strict):
    """On which side of a (user, item) pair a feature lives; a feature named nowhere is of scope `pair`."""

    user: Names = []
    item: Names = []
    context: Names = []


class SplitConfig(Strict):
    """How rows are divided in time.

    `day`: for run date D the test days end on D, before them lie the validation days, before those the train days;
    days without a log are left out as long as `min_train_days` remain. `fraction`: one partition is cut by event
    time, or by the order of its good rows where the log has no time. `leave_last_out`: per user, rows from the latest positive on are test, from the one before it on
    validation.
    """

    by: Literal["day", "fraction", "leave_last_out"]
    train_days: Days = 7
    validation_days: Days = 1
    test_days: Days = 1
    min_train_days: Days = 1
    train: Share = 0.8
    validation: Share = 0.1

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
    """What build_features does with the workflow.

    `fit`: a new one from this run's training days. `extend`: the champion's, with new values appended. `apply`: the
    champion's as it is. `retrain`: extend, or fit where there is no champion yet or `train.retrain` wants a fresh start. `auto`: apply, or fit likewise.

    `engine` says how lines are parsed and vocabularies looked up: by Spark expressions and joins (`sql`, what RAPIDS
    runs on the GPU) or in Python workers on Arrow batches (`arrow`, faster on CPUs); `auto` chooses by profile and size.
    Both give the same rows.
    """

    engine: Literal["auto", "sql", "arrow"] = "auto"
    mode: Literal["auto", "fit", "extend", "apply", "retrain"] = "auto"


ShareLimit = Share | None
Limit = Annotated[float, Field(ge=0)] | None


class Quality(Strict):
    """What a day's log may be like. `max_bad_share`: share of a day's rows that may be quarantined.

    The others hold the run date's day against its train days. Above `_warn` a figure is logged and marked in the report,
    above `_stop` build_features ends with exit code 3 before it publishes features; null never does.

    `null_rate_change`: difference of a column's share of nulls. `new_value_rate`: share of a categorical column's values
    that the train days do not have. `psi`: population stability index of a column, where it is more than chance gives a
    day of that size. `click_rate_change`: relative change of the share of clicks. `row_shortfall`, `row_excess`: rows
    missing from, or beyond, those of the median train day, as a share of them. `exempt`: feature columns that no limit
    applies to, such as ids of sessions.
    """

    max_bad_share: Share = 0.05
    null_rate_change_warn: ShareLimit = 0.1
    null_rate_change_stop: ShareLimit = None
    new_value_rate_warn: ShareLimit = 0.5
    new_value_rate_stop: ShareLimit = None
    psi_warn: Limit = 0.25
    psi_stop: Limit = None
    click_rate_change_warn: Limit = 0.5
    click_rate_change_stop: Limit = None
    row_shortfall_warn: ShareLimit = 0.5
    row_shortfall_stop: ShareLimit = None
    row_excess_warn: Limit = 1.0
    row_excess_stop: Limit = None
    exempt: Names = []

    @model_validator(mode="after")
    def _warns_before_it_stops(self) -> Quality:
        for name in type(self).model_fields:
            check = name.removesuffix("_warn")
            warn, stop = getattr(self, name), getattr(self, f"{check}_stop", None)
            if name.endswith("_warn") and warn is not None and stop is not None and warn > stop:
                raise ValueError(f"{name}={warn} must not be above {check}_stop={stop}")
        return self


class Output(Strict):
    """Shape of written tables. `row_group_rows`: rows a Parquet file holds, as one row group."""

    row_group_rows: PositiveInt = 1_000_000
    grace_hours: Annotated[float, Field(ge=0)] = 24.0
    broadcast_max_rows: PositiveInt = 2_000_000


class Score(Strict):
    """The nightly top-k and bulk scoring.

    `context` gives tonight's raw value of every feature of scope `context`. `rows_per_step`: (user, item) pairs or
    feature rows that go through the model at once; without it as many as fit the caches of a CPU, or the free memory
    of a GPU. It is halved where the device's memory does not suffice. `precision`: of the products of matrices over
    pairs or rows; probabilities are float32 (docs/scoring.md has the errors). `rows_split`: the split whose feature
    rows score_rows gives a probability. `embeddings`: `int8` scores with a byte and a shared scale in place of the numbers of
    each embedding row, a quarter of the memory of float32; how far that moves probabilities is measured on a sample and stands
    in the manifest. `kernels`: as `train.kernels`, for scoring. `rules`: business rules after ranking. `stop`: limits on the change of the lists, past which they are not
    published.
    """

    k: PositiveInt = 10
    context: dict[str, str | int | float] = {}
    rows_per_step: PositiveInt | None = None
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    rows_split: Split = "test"
    embeddings: Literal["stored", "int8"] = "stored"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    kernels: Kernels = "auto"
    rules: ListRules | None = None
    stop: Stop = Stop()

    @model_validator(mode="after")
    def _kernels_on_gpus(self) -> Score:
        if self.kernels == "triton" and self.device == "cpu":
            raise ValueError("kernels=triton needs a GPU, device=cpu has none")
        return self


class Measure(Strict):
    """What recommendations are measured against: the clicks of the day after, or the test split's positives.

    `group_k`: places that count in MAP@k and NDCG@k of the groups of keys.group, which evaluate_model measures.
    """

    against: Literal["next_day", "test_split"] = "next_day"
    group_k: PositiveInt = 12


class Generate(Strict):
    """The click-log generator: sizes, rates and the seed; see etl/synthetic for the world it draws from.

    A day's rows depend on everything here but `days`, `first_date`, `layout` and `compression`. `first_date` is where a chain of
    nights over the log starts; generate_clicks itself begins with its run date. `missing_share`: chance that a field
    other than a key is left empty. `malformed_share`: share of rows that are broken. `cold_share`: share of users and
    of items that are new each day; as many leave. The layout `outbrain` is a log of its own (etl/synthetic/outbrain): displays of
    several ads, which are its items; its days have about `rows_per_day` rows.
    """

    days: Days = 11
    first_date: IsoDate = "2026-01-01"
    rows_per_day: PositiveInt = 60_000
    users: PositiveInt = 4_000
    items: PositiveInt = 800
    seed: Seed = 42
    layout: Literal["criteo", "named", "outbrain"] = "criteo"
    files_per_day: PositiveInt = 2
    compression: Literal["none", "gzip"] = "none"
    missing_share: Share = 0.02
    malformed_share: Share = 0.002
    cold_share: Share = 0.02

    @model_validator(mode="after")
    def _every_file_has_rows(self) -> Generate:
        if self.files_per_day > self.rows_per_day:
            raise ValueError(
                f"files_per_day={self.files_per_day} is more than rows_per_day={self.rows_per_day}"
            )
        if self.layout == "outbrain" and self.items < 100:
            raise ValueError(f"items={self.items}: a display shows up to 12 different ads; have at least 100")
        return self
