"""The typed configuration: every key a YAML file may hold, with its default, its unit and its rule.

Unknown keys are an error. One file configures all jobs of one log; a job reads the sections it needs.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Split = Literal["train", "validation", "test"]
Scope = Literal["user", "item", "pair", "context"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def expand_range(name: str) -> list[str]:
    """`C{1..3}` → `[C1, C2, C3]`; a name without a range is returned alone."""
    match = _RANGE.search(name)
    if match is None:
        return [name]
    first, last = int(match[1]), int(match[2])
    return [f"{name[: match.start()]}{i}{name[match.end() :]}" for i in range(first, last + 1)]


def _expand_names(names: list[str]) -> list[str]:
    return [each for name in names for each in expand_range(name)]


Names = Annotated[list[str], AfterValidator(_expand_names)]
PositiveInt = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Strict(BaseModel):
    """A frozen section that rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Column(Strict):
    """One raw column. `source` is its name in a CSV header or Parquet schema (default: `name`)."""

    name: str
    type: Literal["int", "float", "string"]
    source: str | None = None

    @property
    def source_name(self) -> str:
        return self.source or self.name


class RawTable(Strict):
    """Where raw rows lie and how they are laid out.

    `path` may hold `{lake}`, `{data}` and, for a log kept by day, `{date}` (YYYY-MM-DD); globs are allowed.
    `tsv` is headerless and knows no quotes (Criteo's layout); `csv` has a header line and double quotes (a value
    cannot span lines); `parquet` is matched by column name. Files ending in .gz are decompressed.
    """

    path: str
    format: Literal["tsv", "csv", "parquet"]
    separator: Annotated[str, Field(min_length=1, max_length=1)] = "\t"
    columns: list[Column]

    @model_validator(mode="before")
    @classmethod
    def _expand_columns(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("columns"), list):
            expanded = []
            for column in values["columns"]:
                if isinstance(column, dict) and isinstance(column.get("name"), str):
                    expanded += [{**column, "name": name} for name in expand_range(column["name"])]
                else:
                    expanded.append(column)
            values = {**values, "columns": expanded}
        return values

    @model_validator(mode="after")
    def _unique(self) -> RawTable:
        names = [column.name for column in self.columns]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"columns appear twice: {repeated}")
        return self

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


class Label(Strict):
    """The click: `column` must be 0 or 1, or, with `positive_at_least`, any number compared with it."""

    column: str
    positive_at_least: float | None = None


class EventTime(Strict):
    """The column that holds the time of the event, as an integer of `unit` since 1970-01-01 UTC."""

    column: str
    unit: Literal["s", "ms", "us"] = "s"


class Log(RawTable):
    """The click log. Without `event_time`, the order of rows (by file name, then position) is time."""

    label: Label
    event_time: EventTime | None = None

    @property
    def by_day(self) -> bool:
        return "{date}" in self.path


class Keys(Strict):
    """The raw columns that identify a user and an item."""

    user: str
    item: str


class JoinedTable(RawTable):
    """Attributes of users or of items, joined onto the log by the key column of that side."""


class Negatives(Strict):
    """Unobserved items added as negatives to logs that record only what users chose.

    For each positive row, `per_positive` items are drawn from the log's items by a hash of (row, draw, seed); a draw
    the user has a row with is skipped. The added rows keep the user, the time and the split of their positive.
    """

    per_positive: PositiveInt
    seed: int = 0


class FeatureGroup(Strict):
    """Columns that go through one chain of operators. An operator is `name` or `{name: {parameter: value}}`."""

    columns: Names
    kind: Literal["dense", "categorical"]
    ops: list[str | dict[str, dict[str, Any] | None]]


class Scopes(Strict):
    """On which side of a (user, item) pair a feature lives; a feature named nowhere is of scope `pair`."""

    user: Names = []
    item: Names = []
    context: Names = []


class SplitConfig(Strict):
    """How rows are divided in time.

    `day`: for run date D the test days end on D, before them lie the validation days, before those the train days;
    days without a log are left out as long as `min_train_days` remain. `fraction`: one partition is cut by event
    order. `leave_last_out`: per user, rows from the latest positive on are test, from the one before it on
    validation.
    """

    by: Literal["day", "fraction", "leave_last_out"]
    train_days: PositiveInt = 7
    validation_days: PositiveInt = 1
    test_days: PositiveInt = 1
    min_train_days: PositiveInt = 1
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
    champion's as it is. `retrain`: extend, or fit where there is no champion yet. `auto`: apply, or fit likewise.

    `engine` says how vocabularies are looked up: by joins (`sql`, what RAPIDS runs on the GPU) or in Python workers on
    Arrow batches (`arrow`, faster on CPUs); `auto` chooses by profile and size. Both give the same ids.
    """

    engine: Literal["auto", "sql", "arrow"] = "auto"
    mode: Literal["auto", "fit", "extend", "apply", "retrain"] = "auto"


class Quality(Strict):
    """What stops a job. `max_bad_share`: share of a day's rows that may be quarantined."""

    max_bad_share: Share = 0.05


class Output(Strict):
    """Shape of written tables. `row_group_rows`: rows a Parquet file holds, as one row group."""

    row_group_rows: PositiveInt = 1_000_000
    grace_hours: Annotated[float, Field(ge=0)] = 24.0
    broadcast_max_rows: PositiveInt = 2_000_000


class ModelConfig(Strict):
    """An architecture. Layer lists name hidden sizes in order; the last layer to one logit is implied."""

    architecture: str
    embedding_dim: PositiveInt = 16
    bottom_mlp: list[PositiveInt] = []
    top_mlp: list[PositiveInt] = []


class Train(Strict):
    """The training loop. Batch sizes and rates are global: they do not depend on `num_ranks`.

    The learning rate rises linearly for `warmup_steps`, is constant until `decay_start_step`, then decays with power
    2 to zero over `decay_steps` (0 decay_steps: no decay), as in Facebook's DLRM. Steps may be shares of all steps
    when below 1.
    """

    num_ranks: PositiveInt = 2
    num_shards: PositiveInt = 16
    global_batch_size: PositiveInt = 4096
    epochs: PositiveInt = 1
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    embedding_learning_rate: Annotated[float, Field(gt=0)] = 0.05
    warmup_share: Share = 0.05
    decay_start_share: Share = 0.6
    checkpoint_every_steps: PositiveInt = 500
    log_every_steps: PositiveInt = 20
    seed: int = 0
    baselines: list[str] = []
    warm_start: bool = True
    device: Literal["auto", "cpu", "cuda"] = "auto"
    start_timeout_s: PositiveInt = 180

    @model_validator(mode="after")
    def _divisible(self) -> Train:
        if self.num_shards % self.num_ranks:
            raise ValueError(f"num_shards={self.num_shards} must be a multiple of num_ranks={self.num_ranks}")
        if self.global_batch_size % self.num_shards:
            raise ValueError(
                f"global_batch_size={self.global_batch_size} must be a multiple of num_shards={self.num_shards}"
            )
        return self


class Gate(Strict):
    """The champion is replaced unless the challenger's test AUC is lower by more than `margin`."""

    margin: Annotated[float, Field(ge=0)] = 0.002


class Candidates(Strict):
    """Which items each user is scored against.

    `all_items`: every item. `popular`: the `n` items with most clicks in train, ties by item, that the user has not
    clicked in the splits of `exclude_clicked` (which `all_items` honours too).
    """

    strategy: Literal["all_items", "popular"] = "all_items"
    n: PositiveInt = 500
    exclude_clicked: list[Split] = list(SPLITS)


class Score(Strict):
    """The nightly top-k and bulk scoring.

    `context` gives tonight's raw value of every feature of scope `context`. `rows_per_step`: (user, item) pairs or
    feature rows that go through the model at once; without it 2,048 on a CPU, whose caches they fit, and 131,072 on
    a GPU. `rows_split`: the split whose feature rows score_rows gives a probability.
    """

    k: PositiveInt = 10
    context: dict[str, str | int | float] = {}
    rows_per_step: PositiveInt | None = None
    rows_split: Split = "test"
    device: Literal["auto", "cpu", "cuda"] = "auto"


class Measure(Strict):
    """What recommendations are measured against: the clicks of the day after, or the test split's positives."""

    against: Literal["next_day", "test_split"] = "next_day"


class Generate(Strict):
    """The click-log generator: sizes, rates and the seed; see etl/synthetic for the world it draws from.

    A day's rows depend on everything here but `days`, `first_date`, `layout` and `compression`. `first_date` is where a chain of
    nights over the log starts; generate_clicks itself begins with its run date. `missing_share`: chance that a field
    other than a key is left empty. `malformed_share`: share of rows that are broken. `cold_share`: share of users and
    of items that are new each day; as many leave.
    """

    days: PositiveInt = 11
    first_date: str = "2026-01-01"
    rows_per_day: PositiveInt = 60_000
    users: PositiveInt = 4_000
    items: PositiveInt = 800
    seed: Annotated[int, Field(ge=0)] = 42
    layout: Literal["criteo", "named"] = "criteo"
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
        return self


class Config(Strict):
    """Everything that configures the jobs of one log."""

    name: str
    lake: str = "lake"
    data: str = "data"
    log: Log
    users: JoinedTable | None = None
    items: JoinedTable | None = None
    negatives: Negatives | None = None
    keys: Keys | None = None
    features: list[FeatureGroup]
    scopes: Scopes = Scopes()
    split: SplitConfig
    workflow: WorkflowConfig = WorkflowConfig()
    quality: Quality = Quality()
    output: Output = Output()
    model: ModelConfig
    train: Train = Train()
    gate: Gate = Gate()
    candidates: Candidates = Candidates()
    score: Score = Score()
    measure: Measure = Measure()
    generate: Generate | None = None

    @model_validator(mode="after")
    def _known_columns(self) -> Config:
        known = set(self.log.names)
        for table in (self.users, self.items):
            known |= set(table.names) if table else set()
        features = [name for group in self.features for name in group.columns]
        _reject_unknown("features.columns", features, known)
        _reject_repeated("features.columns", features)
        scoped = [*self.scopes.user, *self.scopes.item, *self.scopes.context]
        _reject_unknown("scopes", scoped, set(features))
        _reject_repeated("scopes", scoped)
        _reject_unknown("log.label", [self.log.label.column], set(self.log.names))
        if self.log.event_time:
            _reject_unknown("log.event_time", [self.log.event_time.column], set(self.log.names))
        if self.keys:
            _reject_unknown("keys", [self.keys.user, self.keys.item], set(self.log.names))
        elif self.users or self.items or self.negatives or self.split.by == "leave_last_out":
            raise ValueError("users, items, negatives and split.by=leave_last_out need the section keys")
        for side, table in (("user", self.users), ("item", self.items)):
            if table and self.keys:
                self._check_attributes(side, table, getattr(self.keys, side))
        if self.split.by == "day" and not self.log.by_day:
            raise ValueError(f"split.by=day needs {{date}} in log.path={self.log.path!r}")
        return self

    def _check_attributes(self, side: str, table: JoinedTable, key: str) -> None:
        """Attributes join the log by its key and add columns; every feature of that side must be one of them."""
        if key not in table.names:
            raise ValueError(f"{side}s.columns must hold the key {key!r}; it has {table.names}")
        again = sorted((set(table.names) & set(self.log.names)) - {key})
        if again:
            raise ValueError(f"{side}s.columns and log.columns both name {again}: rename one with `source`")
        elsewhere = sorted(set(getattr(self.scopes, side)) - set(table.names))
        if elsewhere:
            raise ValueError(f"scopes.{side} names {elsewhere}, which {side}s.columns does not hold")

    @property
    def feature_names(self) -> list[str]:
        """Feature columns in config order: the order of the FeatureSpec, and so of the model's input."""
        return [name for group in self.features for name in group.columns]


def _reject_unknown(where: str, names: list[str], known: set[str]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"{where} names columns that do not exist: {unknown}; known: {sorted(known)}")


def _reject_repeated(where: str, names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{where} names columns twice: {repeated}")
