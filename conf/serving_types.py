"""The typed configuration of production: an experiment with another model, and the log of impressions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import (
    Field,
    field_validator,
    model_validator,
)

from conf.names import ColumnName, FolderName, IsoDate, PlainText, has_date
from conf.raw_types import (
    EventTime,
    Keys,
    PositiveInt,
    Seed,
    Share,
    Strict,
    TableOfRoles,
    fits_column,
)

CHALLENGER = "challenger"


class ServingExperiment(Strict):
    """An experiment: some users, the treatment, get the lists of another model (docs/experiments.md).

    All other users, the control, get the lists of the champion.

    A hash of the salt and the user chooses the variant of a user. So a user has the same variant on all run
    dates. Experiments with different salts choose variants independently of each other.
    """

    name: FolderName = Field(description="Name of the experiment. Each experiment needs its own name.")
    salt: FolderName | None = Field(
        default=None,
        description="Text that is hashed with the user. If two experiments have the same salt and the same "
        "share, they have the same users in the treatment. Null: the name.",
    )
    share: Annotated[float, Field(gt=0, lt=1)] = Field(description="Share of the users in the treatment.")
    model: FolderName = Field(
        default=CHALLENGER,
        description="Version of the model that ranks for the treatment: a model of this configuration, one "
        "of its refits, or one that compare_models trained. `challenger`: the last challenger before `start` "
        "that the gate did not promote.",
    )
    start: IsoDate = Field(description="First run date of the experiment.")
    end: IsoDate | None = Field(
        default=None, description="Last run date of the experiment. Null: it has no end date."
    )
    stop_below: Annotated[float, Field(ge=-1, lt=0)] | None = Field(
        default=None,
        description="The experiment stops if the whole confidence interval of the relative difference in "
        "NDCG@k between treatment and control is below this number, such as -0.05. Null: it never stops "
        "automatically.",
    )
    min_users: PositiveInt = Field(
        default=200,
        description="Smallest number of users with clicks in each variant, added up over days, with which "
        "`stop_below` can stop the experiment.",
    )
    resume: IsoDate | None = Field(
        default=None,
        description="Run date from which a stopped experiment runs again. Its figures then begin with this "
        "date. Null: a stop is final.",
    )
    confidence: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.95, description="Confidence of the intervals."
    )
    replicates: Annotated[int, Field(ge=100, le=10_000)] = Field(
        default=1000, description="Number of resamples of the users, for the intervals."
    )
    seed: Seed = Field(default=0, description="Seed of the resamples.")

    @model_validator(mode="after")
    def _dates_ascend(self) -> ServingExperiment:
        if self.end is not None and self.end < self.start:
            raise ValueError(f"end={self.end} is before start={self.start}")
        if self.resume is not None and not self.start < self.resume <= (self.end or self.resume):
            raise ValueError(
                f"resume={self.resume} must be after start={self.start}, and not after end={self.end}"
            )
        return self

    @property
    def salted_prefix(self) -> str:
        """Returns the prefix for the key of a user. It ends with a character that no salt can contain."""
        return f"{self.salt or self.name}:"

    def runs_on(self, run_date: str) -> bool:
        """Returns whether a run date belongs to the experiment."""
        return self.start <= run_date <= (self.end or run_date)

    def first_date(self, run_date: str) -> str:
        """Returns the first run date whose figures are used on a run date: `start`, or a past `resume`."""
        return self.resume if self.resume is not None and self.resume <= run_date else self.start


class Impressions(TableOfRoles):
    """The log of the items that were shown to users from the published lists (docs/experiments.md).

    measure_recommendations compares the log of the day after the lists with the lists and with the clicks of
    that day. Rows with the same user, item, position, variant and model version are one impression.

    With `row_column`, build_features adds the position of the item to the rows of the click log. A row gets
    the position at which its item was shown to its user on the day of the row. If the log has an event time,
    the last impression at or before the time of the row is used. Otherwise, the smallest position of the day
    is used. Impressions of all variants and models are used, even if no published list contains them.

    The path must contain `{date}`. Columns that `columns` does not declare have default types. User and item
    have the types of the log's `keys`, and the time has the type of the event time. The position is `int`,
    and all other columns are `string`. A value that does not have the type of its column is null.
    """

    user: PlainText = Field(description="Column with the key of the user, as in the lists.")
    item: PlainText = Field(description="Column with the key of the item, as in the lists.")
    position: PlainText = Field(description="Column with the position in the list; the first is 1.")
    variant: PlainText | None = Field(
        default=None,
        description="Column with the variant of an experiment. Null: the variants are not compared with the "
        "lists.",
    )
    model_version: PlainText | None = Field(
        default=None,
        description="Column with the version of the model that made the list. Null: the versions are not "
        "compared with the lists.",
    )
    max_unmatched_share: Share = Field(
        default=0.05,
        description="measure_recommendations logs a warning if a larger share of the impressions fits no "
        "list. build_features logs a warning if a larger share of the rows of a day has no user, item, "
        "position or time.",
    )
    row_column: ColumnName | None = Field(
        default=None,
        description="Name of a new column of the rows of the click log, with the type int: the position at "
        "which the item of the row was shown to its user on the same day; null if this log does not contain "
        "it. Features read the column like a column of the log. It needs `keys` and split.by=day. Null: no "
        "such column.",
    )
    time: PlainText | None = Field(
        default=None,
        description="Column with the time of the impression. It is required if `row_column` and "
        "`log.event_time` are set, and refused otherwise. If `columns` does not declare the column, it is "
        "written like the time of the log: an integer in the unit of `log.event_time`, or a time in its "
        "`format`. Times without an offset are in `log.time_zone` unless `time_zone` is set.",
    )
    min_effective_entries: PositiveInt = Field(
        default=200,
        description="Smallest effective number of shown entries for an estimate of the click rate that "
        "explored positions would have in the order of the scores.",
    )
    confidence: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.95, description="Confidence of the intervals."
    )
    replicates: Annotated[int, Field(ge=100, le=10_000)] = Field(
        default=1000, description="Number of resamples of the users, for the intervals."
    )
    seed: Seed = Field(default=0, description="Seed of the resamples.")

    @field_validator("path")
    @classmethod
    def _has_date(cls, path: str) -> str:
        if not has_date(path):
            raise ValueError(f"{path!r} must contain {{date}}, because each day has its own files")
        return path

    @model_validator(mode="after")
    def _differ(self) -> Impressions:
        if len(set(self.roles)) < len(self.roles):
            raise ValueError(f"the columns {self.roles} must differ")
        return self

    @model_validator(mode="after")
    def _types_fit(self) -> Impressions:
        texts = [name for name in (self.user, self.item, self.variant, self.model_version) if name]
        times = [] if self.time is None else [self.time]
        where = "serving.impressions"
        for names, types in (
            (texts, ("string", "int")),
            ([self.position], ("int",)),
            (times, ("timestamp", "date", "int")),
        ):
            self.require_types(where, names, types, section=where)
        return self

    @model_validator(mode="after")
    def _time_is_used(self) -> Impressions:
        if self.time is not None and self.row_column is None:
            raise ValueError(
                f"time={self.time!r} has an effect only with row_column: set row_column, or remove time"
            )
        return self

    @property
    def roles(self) -> list[str]:
        """Returns the columns that are read: user, item, position, variant, model version and time."""
        names = (self.user, self.item, self.position, self.variant, self.model_version, self.time)
        return [name for name in names if name is not None]


class Serving(Strict):
    """Lists in production: experiments with another model, and the log of the shown items."""

    experiment: ServingExperiment | None = Field(
        default=None, description="An experiment in production. Null: the champion makes all lists."
    )
    impressions: Impressions | None = Field(
        default=None,
        description="The log of what was shown. Null: only clicks are compared with the lists.",
    )

    @property
    def row_column(self) -> str | None:
        """Returns the column that `impressions` adds to the rows of the click log; None if not set."""
        return self.impressions.row_column if self.impressions else None

    @property
    def row_positions(self) -> Impressions | None:
        """Returns the log whose positions are added to the rows of the click log; None if it is not set."""
        return self.impressions if self.row_column is not None else None

    def new_columns(
        self, split_by: str, keys: Keys | None, event_time: EventTime | None, columns: Collection[str]
    ) -> set[str]:
        """Returns the names of the columns that `impressions` adds to the rows of the click log.

        Raises ValueError if the column is not new, or if the log of impressions cannot be joined.

        Args:
            split_by: the value of split.by.
            keys: the section `keys`.
            event_time: the section `log.event_time`.
            columns: the names of all other columns.
        """
        impressions, column = self.row_positions, self.row_column
        if impressions is None or column is None:
            return set()
        where = f"serving.impressions.row_column={column!r}"
        if column in columns:
            raise ValueError(f"{where} is the name of another column: choose a new name")
        if not fits_column(column):
            raise ValueError(
                f"{where} is not allowed: a name must not contain a dot or a backtick, and must not begin "
                "with an underscore"
            )
        if keys is None:
            raise ValueError(f"{where} needs the section `keys`, which names the user and the item of a row")
        if split_by != "day":
            raise ValueError(
                f"{where} needs split.by=day, not split.by={split_by}, because impressions are stored by day"
            )
        if event_time is not None and impressions.time is None:
            raise ValueError(
                f"{where} needs serving.impressions.time, because the log has an event time "
                "(log.event_time): a row must not get the position of a later impression"
            )
        if event_time is None and impressions.time is not None:
            raise ValueError(
                f"serving.impressions.time={impressions.time!r} has no effect, because rows of the click log "
                "have no time: set log.event_time, or remove time"
            )
        return {column}
