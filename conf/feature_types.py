"""The typed configuration of features: groups of columns, scopes, workflow, added columns, negatives, split.

The sections `history` and `last_values` add columns.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from conf.names import ColumnName, reject_repeated, reject_unknown
from conf.raw_types import LIST_TYPES, Days, Names, PositiveInt, RawTable, Seed, Share, Strict

OperatorEntry = str | dict[str, dict[str, Any] | None]
Scope = Literal["user", "item", "pair", "context"]
FeatureKind = Literal["dense", "categorical", "multi_hot"]


class FeatureGroup(Strict):
    """Columns that go through one chain of operators. The outputs of the chain become features."""

    columns: Annotated[Names, Field(min_length=1)] = Field(
        description="Raw columns, by name. Ranges such as `I{1..13}` are expanded."
    )
    kind: FeatureKind = Field(
        description="`dense`: a number. `categorical`: one id. `multi_hot`: a list of ids."
    )
    ops: list[OperatorEntry] = Field(
        description="Operators in order. Each operator is written as `name` or `{name: {parameter: value}}`; "
        "docs/operators describes all operators."
    )


class Scopes(Strict):
    """The scopes of features: a feature depends only on the user, only on the item, or only on the context.

    A feature that is in none of the lists has the scope `pair`: its value may be different for every pair of
    user and item.
    """

    user: Names = Field(default=[], description="Features that depend only on the user.")
    item: Names = Field(default=[], description="Features that depend only on the item.")
    context: Names = Field(
        default=[],
        description="Features that do not depend on the user or the item, such as the hour of the day or "
        "the device. When lists are made, `score.context` gives the raw values of these "
        "features.",
    )


class WorkflowConfig(Strict):
    """Settings for the fitted workflow: how build_features gets the workflow, and which engine applies it."""

    engine: Literal["auto", "sql", "arrow"] = Field(
        default="auto",
        description="`sql` fits workflows and looks up ids with Spark expressions and joins, which RAPIDS "
        "can run on a GPU. `arrow` does the same in Python workers on Arrow batches, which is faster, even "
        "on a machine with a GPU (docs/gpu.md). Both engines give the same rows. `auto` is the "
        "same as `arrow`, with one exception: a job reads and prepares logs in its own processes if it runs "
        "on one machine and was started with Python instead of spark-submit. Such a job starts a JVM only "
        "for work that needs Spark (docs/roads.md). With `sql` or `arrow`, Spark's Python workers always "
        "read the logs.",
    )
    device: Literal["cpu", "cuda"] = Field(
        default="cpu",
        description="The device on which tasks find the fields of a text log (`tsv`, `csv`), count values "
        "and look up features. `cuda`: GPUs. This work is done by one process for each GPU of this machine, "
        "or by the tasks of a Spark profile whose `spark.task.resource.gpu.amount` is 1. Without such a GPU, "
        "and for other formats, tasks work as with `cpu`. Both values give the same tables. The speed on a "
        "GPU has not been measured yet, so `cpu` is the default (docs/gpu.md).",
    )
    mode: Literal["auto", "fit", "extend", "apply", "retrain"] = Field(
        default="auto",
        description="`fit`: a new workflow is fitted to the train days of this run. `extend`: the values of "
        "new train days are added to the champion's workflow; this needs `{date}` in `log.path`. `apply`: "
        "the champion's workflow is used unchanged. On the date of a promotion, the promoted model is the "
        "champion. `retrain`: the same as `extend` in most cases. It is the same as `fit` if there is no "
        "champion yet, if `log.path` has no `{date}`, or if `train.retrain` requires a fresh start. `auto`: "
        "the workflow of the champion before the run date is used unchanged. If there is no champion yet, a "
        "new workflow is fitted, as with `fit`. `nightly --retrain` uses `fit` if this key has the value "
        "`fit`, and `retrain` otherwise.",
    )


# The typed configuration of histories: the items that a user clicked before a row.


class History(Strict):
    """A column with the keys of the items that the user clicked most recently before each row.

    The most recent item comes first. Rows of a user are ordered by event time, then by their position in the
    log. Without an event time, they are ordered by their position. The list of a row contains only earlier
    clicks, so it does not contain the row's own click. If the log has groups (keys.group), all rows of a
    group have the list of the group's first row. The reason is that clicks in the group are not known yet
    when the group is shown. Features can use the column like any column of the log. Lists are scored with the
    histories in the table `users`, which contain the last clicks up to the run date. If the lists are
    compared with the test split (measure.against=test_split), these histories contain no clicks of the test
    split.
    """

    column: ColumnName = Field(default="history", description="Name of the new column, a list of strings.")
    ages: ColumnName | None = Field(
        default=None,
        description="Name of another new column with a list of integers: for each item of the history, the "
        "seconds from its click to the user's last click before the row. The first item of the history is "
        "the item of this last click, so the first number is 0. The operator `bucketize` turns the list into "
        "ids, which a model such as `hstu` reads. The column needs log.event_time. Null: no such column.",
    )
    length: PositiveInt = Field(default=50, description="Largest number of items in a list.")
    days: Days | None = Field(
        default=None,
        description="Number of days before the row's day whose clicks are used, in addition to earlier "
        "clicks on the row's day. The key is required with split.by=day. With another split.by it is "
        "refused, because all rows of the log are used.",
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """Returns the names of the new columns: the lists of clicked items and, if configured, their ages."""
        return (self.column,) if self.ages is None else (self.column, self.ages)

    def new_columns(self, split_by: str, columns: Collection[str], *, timed: bool) -> set[str]:
        """Returns the names of the columns that the section adds.

        Raises ValueError if a column is not new, if `ages` is set for a log without times, or if `days` is
        missing for split.by=day or set for another split.

        Args:
            split_by: the value of split.by: `day`, `fraction` or `leave_last_out`.
            columns: the names of all other columns.
            timed: whether log.event_time is set.
        """
        if self.column in columns:
            raise ValueError(
                f"history.column={self.column!r} is the name of another column: choose a new name"
            )
        if self.ages in {self.column, *columns}:
            raise ValueError(f"history.ages={self.ages!r} is the name of another column: choose a new name")
        if self.ages is not None and not timed:
            raise ValueError(
                f"history.ages={self.ages!r} is computed from the times of clicks, but log.event_time is not "
                "set: set log.event_time, or remove history.ages"
            )
        if split_by == "day" and self.days is None:
            raise ValueError(
                "history.days is missing: with split.by=day, set how many earlier days are used, such as 14"
            )
        if split_by != "day" and self.days is not None:
            raise ValueError(
                f"history.days={self.days} has no effect with split.by={split_by}, because all rows of the "
                "log are used: remove it"
            )
        return set(self.columns)


# The typed configuration of last values: the latest values of an item's events before the day of a row.


class LastValues(Strict):
    """Columns with the latest values, such as prices, from events of a row's item before the row's day.

    For each column in `columns`, such as `price`, each row gets a column `last_price`. Its value comes from
    the events of the row's item on the `days` days before the day of the row. The event with the latest event
    time is used. If several events have this time, or if the log has no event times, the last of them in the
    log is used. Nulls are skipped, so different columns may have their values from different events. If no
    event of the item on these days has a value, the value is null. If the log has event times, the value is
    also null if this event is not earlier than the row. An event is not used if its time, in
    `log.time_zone`, is on a later day than the day of its file. Features can use these columns like columns
    of the table of items. Lists are scored with the table `items`, which has the last values up to the run
    date. If the lists are compared with the test split (measure.against=test_split), these values come from
    no event of the test split. The section needs `split.by=day`.
    """

    columns: Annotated[Names, Field(min_length=1)] = Field(
        description="Columns of the log with numbers, booleans, times or strings, such as `price`. The keys "
        "and the label are not allowed. The new columns have the prefix `last_`, such as `last_price`."
    )
    days: Days = Field(
        default=14,
        description="Number of days whose events are used. The last of them is the day before the row's "
        "day. Days without a log are skipped. With more days, fewer rows have null values, but a run reads "
        "more small tables.",
    )

    @property
    def new_columns(self) -> dict[str, str]:
        """Maps the name of each new column to the column of the log that has its values."""
        return {f"{_LAST}{name}": name for name in self.columns}

    def checked_columns(self, split_by: str, log: RawTable, refused: Collection[str]) -> set[str]:
        """Returns the names of the columns that the section adds.

        Raises ValueError if the log is not divided by days, or if a column is listed twice, is not in the
        log, is a list, or is in `refused` (the columns of keys and label).
        """
        if split_by != "day":
            raise ValueError(
                f"last_values uses the values of earlier days, so it needs split.by=day, not {split_by}: "
                "remove last_values, or store the log by day, with {date} in log.path, and set split.by=day"
            )
        reject_repeated("last_values.columns", self.columns)
        reject_unknown("last_values.columns", self.columns, set(log.names))
        wrong = [name for name in self.columns if name in refused]
        if wrong:
            raise ValueError(
                f"last_values.columns names {wrong}, which are columns of keys or of the label: list only "
                "columns that describe an item at the time of an event, such as its price"
            )
        lists = [name for name in self.columns if log.type_of(name) in LIST_TYPES]
        if lists:
            raise ValueError(f"last_values.columns names {lists}, which are lists: remove these columns")
        return set(self.new_columns)


_LAST = "last_"


# The typed configuration of the split into train, validation and test rows.

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


class Negatives(Strict):
    """Settings of added rows with label 0, for a log that records only what users chose.

    For each positive row, `per_positive` items are drawn by a hash of (row, draw, seed) from the items of the
    row's split and of earlier splits. For each drawn item, a row with label 0 is added. It has the user, the
    time and the split of the positive row, and the weight 1 if `log.label.weights` is set. If the user
    already has a row with the item in these splits, no row is added. If the log is divided by days
    (split.by=day), items are drawn only from rows of the same day, and only rows of this day are searched for
    the user and the item.
    """

    per_positive: PositiveInt = Field(
        description="Number of items that are drawn for each positive row: the largest number of rows that "
        "are added for it."
    )
    train: bool = Field(
        default=True,
        description="Whether rows are also added for positive rows of the train split. False if the "
        "training uses only positive rows: with `train.negatives`, or with a `train.loss` over all items "
        "or the items of a batch. False needs a `split.by` other than `day`, because a day is a train day "
        "of one run and a test day of another.",
    )
    seed: Seed = Field(default=0, description="Seed of the draws.")

    def is_drawn(self, row_id: int) -> bool:
        """Returns whether a row of a feature table is a drawn negative.

        The ids of the other rows are multiples of `per_positive` + 1 (etl.raw.splits).
        """
        return row_id % (self.per_positive + 1) != 0


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
    train: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.8, description="Share of the rows in the train split (by=fraction)."
    )
    validation: Share = Field(
        default=0.1, description="Share of the rows in the validation split (by=fraction). The rest is test."
    )

    @model_validator(mode="after")
    def _check(self) -> SplitConfig:
        if self.train + self.validation >= 1.0:
            raise ValueError(
                f"train={self.train} + validation={self.validation} leaves no rows for test: choose shares "
                "whose sum is below 1"
            )
        if self.min_train_days > self.train_days:
            raise ValueError(
                f"min_train_days={self.min_train_days} must not be more than train_days={self.train_days}"
            )
        return self
