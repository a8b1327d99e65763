"""The typed configuration of output files, scoring, measures, delivery, monitoring and generated logs.

It also contains two sections for production: an experiment with another model, and the log of impressions.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from conf.feature_types import Split
from conf.list_types import ListRules
from conf.names import ColumnName, FolderName, IsoDate, PlainText, fits_column, has_date
from conf.raw_types import (
    Days,
    EventTime,
    Keys,
    PositiveInt,
    Seed,
    Share,
    Strict,
    TableOfRoles,
)
from conf.train_types import Kernels

# The typed configuration of delivery: limits above which lists are not published, and sinks.

_PASSWORD_IN_URL = re.compile(r"[?&]\w*(user|password|pwd)=|//[^/]*@", re.IGNORECASE)
Limit = Annotated[float, Field(ge=0)] | None


class Stop(Strict):
    """Limits on the new lists and on their differences from the last published lists.

    If the new lists exceed a limit, score_daily does not publish them.
    """

    max_churn: Share | None = Field(
        default=None,
        description="Largest share of new items in a list, averaged over users. An item is new if the user's "
        "last published list did not contain it. Null: no limit.",
    )
    min_coverage: Share | None = Field(
        default=None,
        description="Smallest share of the candidate items that occur in at least one list. Null: no limit.",
    )
    max_cold_share: Share | None = Field(
        default=None,
        description="Largest share of list entries whose item has no click in the train split. Null: no "
        "limit.",
    )
    max_score_psi: Limit = Field(
        default=None,
        description="Largest population stability index of the scores against those of the last published "
        "lists. An index that can be due to chance is ignored. Null: no limit.",
    )
    max_users_lost_share: Share | None = Field(
        default=None,
        description="Of the users who have a list in the last published lists, the largest share without a "
        "new list. Null: no limit.",
    )


class Secret(Strict):
    """The location of a user name or a password: an environment variable of the driver, or a file.

    Exactly one of `env` and `file` must be given.
    """

    env: str | None = Field(
        default=None, description="Name of the environment variable. Null: `file` is used instead."
    )
    file: str | None = Field(
        default=None,
        description="Path of a file that contains only the user name or the password. Null: `env` is used "
        "instead.",
    )

    @model_validator(mode="after")
    def _one_place(self) -> Secret:
        if (self.env is None) == (self.file is None):
            raise ValueError("set either `env` or `file`, not both")
        return self


class SinkSettings(Strict):
    """Base of the settings of all sinks."""

    kind: str = Field(description="Name of the sink's module in scoring/delivery/sinks, or of a plug-in.")
    name: PlainText = Field(description="Name of the sink in logs and manifests.")


class SinkConfig(SinkSettings):
    """A sink and its settings.

    All keys except those below are settings of the sink (docs/delivery.md). Every job checks these settings
    when it starts (scoring/delivery/sinks).
    """

    model_config = ConfigDict(extra="allow")


class Deliver(Strict):
    """The sinks to which deliver_recommendations copies the published lists."""

    sinks: list[SinkConfig] = Field(default=[], description="The sinks, in order. Empty: none.")

    @model_validator(mode="before")
    @classmethod
    def _no_password_in_a_url(cls, values: object) -> object:
        """Refuses a URL with a password before the other checks, because their messages would print it."""
        sinks = values.get("sinks") if isinstance(values, dict) else None
        for sink in sinks if isinstance(sinks, list) else []:
            if isinstance(sink, dict) and _PASSWORD_IN_URL.search(str(sink.get("url", ""))):
                raise ValueError(
                    "the url of a sink must not contain a user or a password: under `user` and `password`, "
                    "name the environment variable or the file that contains them"
                )
        return values

    @model_validator(mode="after")
    def _names_differ(self) -> Deliver:
        names = [sink.name for sink in self.sinks]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"several sinks have the same name: {repeated}; give each sink another name")
        return self


# The typed configuration of output files, scoring, measures of the lists, and the click log generator.


_HOURS_OF_A_CENTURY = 876_600


class Output(Strict):
    """Limits for the tables that jobs write: size of files, age of unused files, and size of broadcasts."""

    row_group_rows: PositiveInt = Field(
        default=1_000_000,
        description="Largest number of rows of a Parquet file. A file has one row group. Only files of "
        "features that are encoded without Spark frames may have several, each with at most 32 MiB of "
        "model inputs, so that training needs less memory.",
    )
    grace_hours: Annotated[float, Field(ge=0, le=_HOURS_OF_A_CENTURY)] = Field(
        default=24.0,
        description="Hours after which a data file is deleted if no manifest names it any more, or if none "
        "has ever named it, such as a file of a killed job. The time must be longer than the longest run of "
        "a job: a shorter time deletes files that another run has written and not yet published.",
    )
    broadcast_max_rows: PositiveInt = Field(
        default=2_000_000,
        description="Largest number of rows of a vocabulary or keyed table that Spark broadcasts in a join.",
    )


class Score(Strict):
    """Settings of the top-k lists (score_daily) and of the probabilities of rows (score_rows)."""

    k: PositiveInt = Field(default=10, description="Number of items in a user's list.")
    context: dict[str, str | int | float | list[int] | list[str]] = Field(
        default={},
        description="The raw values with which lists are scored: maps raw columns of the features of scope "
        "`context` to one value. A string column needs a value in quotes, and a list column needs a list. A "
        "date is the number of days since 1970-01-01, and a timestamp the number of microseconds since "
        "1970-01-01 00:00 UTC. A column that is missing here has the most frequent value of the train rows "
        "of the run date, computed from the 20 most frequent values of each day. A string of more than 200 "
        "characters is never used in this way. The summary of score_daily and the report show the values "
        "that were used.",
    )
    rows_per_step: PositiveInt | None = Field(
        default=None,
        description="Number of (user, item) pairs or feature rows that go through the model at once. The "
        "number is halved if the memory of the device is too small. Null: the largest number that fits "
        "into the caches of a CPU or into the free memory of a GPU.",
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32",
        description="Precision of the matrix products that are computed for each (user, item) pair or row. "
        "`fp32`: float32. `bf16`: bfloat16. `fp16`: float16. Probabilities are always float32. "
        "docs/scoring.md lists the rounding errors of each precision.",
    )
    rows_split: Split = Field(
        default="test",
        description="Split of the feature rows for which score_rows computes probabilities: `train`, "
        "`validation` or `test`.",
    )
    embeddings: Literal["stored", "int8", "on_demand"] = Field(
        default="stored",
        description="How embedding tables are stored while scoring. `stored`: all rows in memory, in the "
        "format of the model file. `int8`: one byte per number and one scale per row, which needs about a "
        "quarter of the memory of float32. The manifest of the lists or probabilities says how much `int8` "
        "changes the probabilities of a sample. `on_demand`: rows stay in the model's files until they are "
        "needed, for models that are larger than the memory of a worker.",
    )
    rows_mib: PositiveInt = Field(
        default=1024,
        description="Memory in MiB in which each Python worker keeps the rows that it has read. Used only "
        "with `embeddings: on_demand`.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto",
        description="Device that computes the scores. `cpu`: the CPU. `cuda`: a GPU; the job fails if there "
        "is none. `auto`: a GPU if there is one.",
    )
    kernels: Kernels = Field(
        default="auto",
        description="Kernels for scoring on a GPU: `auto`, `triton` or `torch`, with the same meaning as for "
        "`train.kernels`.",
    )
    blend: Literal["none", "auto"] = Field(
        default="none",
        description="How lists are ranked. `none`: by the model. `auto`: by the model, by one source of "
        "candidates, or by a blend of the model and all sources. learn_blend chooses the one whose lists "
        "are best for the clicks of the validation split. `auto` needs sources other than `all_items`.",
    )
    rules: ListRules | None = Field(
        default=None, description="Business rules that change lists after the ranking. Null: no rules."
    )
    stop: Stop = Field(
        default=Stop(),
        description="Limits on the new lists. If the lists exceed a limit, they are not published.",
    )

    @model_validator(mode="after")
    def _kernels_on_gpus(self) -> Score:
        if self.kernels == "triton" and self.device == "cpu":
            raise ValueError("kernels=triton needs a GPU, but device=cpu is set: change one of the two")
        return self


class Measure(Strict):
    """Settings of the measures of lists (measure_recommendations) and of rankings (evaluate_model)."""

    against: Literal["next_day", "test_split"] = Field(
        default="next_day",
        description="The clicks that the lists are compared with. `next_day`: the clicks of the day after "
        "the run date. If `log.path` has no `{date}`, these are the rows of this day (`log.event_time` in "
        "`log.time_zone`) that are later than all rows of the run that made the lists. Without "
        "`log.event_time`, such lists are not measured. `test_split`: the positive rows of the test split, "
        "for lists that are not served. It needs either `candidates.repeats: all`, or a "
        "`candidates.exclude_clicked` that does not list `test`. Otherwise, the lists do not contain the "
        "items of these rows.",
    )
    group_k: PositiveInt = Field(
        default=12,
        description="The k of MAP@k and NDCG@k, which evaluate_model computes over the groups of "
        "`keys.group`.",
    )


class Generate(Strict):
    """The generator of click logs. etl/synthetic describes how clicks are drawn.

    The rows of a day depend on all of these keys except `days`, `first_date` and `compression`. The layouts
    `criteo` and `named` give the same rows. The layout `outbrain` gives a different log
    (etl/synthetic/outbrain): each display has several ads, and the ads are the items.
    """

    days: Days = Field(default=11, description="Number of days that are written.")
    first_date: IsoDate = Field(
        default="2026-01-01",
        description="First day of the generated log, for the demo. generate_clicks does not read this key: "
        "its log begins with its run date.",
    )
    rows_per_day: PositiveInt = Field(
        default=60_000,
        description="Number of rows per day. With the layout `outbrain`, the number is approximate.",
    )
    users: PositiveInt = Field(default=4_000, description="Number of users.")
    items: PositiveInt = Field(
        default=800, description="Number of items. The layout `outbrain` needs at least 100."
    )
    seed: Seed = Field(default=42, description="Seed of all draws.")
    layout: Literal["criteo", "named", "outbrain"] = Field(
        default="criteo",
        description="Columns and format of the log. `criteo`: Criteo's columns, as tab-separated values. "
        "`named`: the same rows with readable names, as CSV. `outbrain`: Outbrain's displays, as CSV.",
    )
    files_per_day: PositiveInt = Field(default=2, description="Number of files per day.")
    compression: Literal["none", "gzip"] = Field(
        default="none", description="Compression of the files. `none`: plain text. `gzip`: gzip files."
    )
    missing_share: Share = Field(
        default=0.02, description="Probability that a field is empty, for all fields other than the keys."
    )
    malformed_share: Share = Field(default=0.002, description="Share of the rows that are malformed.")
    cold_share: Share = Field(
        default=0.02,
        description="Share of the users, and of the items, that are replaced by new ones each day.",
    )

    @model_validator(mode="after")
    def _every_file_has_rows(self) -> Generate:
        if self.files_per_day > self.rows_per_day:
            raise ValueError(
                f"files_per_day={self.files_per_day} must not be more than rows_per_day={self.rows_per_day}"
            )
        if self.layout == "outbrain" and self.items < 100:
            raise ValueError(f"items={self.items} is too few: layout=outbrain needs at least 100")
        return self


# The typed configuration of monitoring: Prometheus metrics, lineage events and the price of a run.

_HTTP = re.compile(r"https?://[^/?#@]+(/[^?#@]*)?")


class Watch(Strict):
    """Prometheus metrics, lineage events and the price of a run (docs/operations.md).

    Jobs write run records to `<lake>/runs/dt=…`, and Spark's event logs, even if none of these keys is set.
    """

    textfile_folder: str | None = Field(
        default=None,
        description="Local folder of node_exporter's textfile collector. At its end, each job atomically "
        "replaces a file with its metrics in this folder. Null: no file.",
    )
    push_gateway: str | None = Field(
        default=None,
        description="Address of a Prometheus push gateway, http(s)://host:port. Each job also sends its "
        "metrics there. Null: metrics are not sent.",
    )
    openlineage: dict[str, Any] | None = Field(
        default=None,
        description="Where each job sends the OpenLineage events for its start and its end: a transport of "
        "OpenLineage's Python client, such as `{type: http, url: http://marquez:5000}`. Null: events are "
        "only in the run record.",
    )
    core_hour_price: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        default=None,
        description="Price of one hour of one core, in `currency`. Null: the cost of a run is reported only "
        "in core seconds.",
    )
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = Field(
        default="EUR", description="Currency of `core_hour_price`: three capital letters."
    )

    @field_validator("textfile_folder")
    @classmethod
    def _local(cls, value: str | None) -> str | None:
        if value is not None and "://" in value:
            raise ValueError("it must be the path of a local folder, because node_exporter reads it")
        return value

    @field_validator("openlineage")
    @classmethod
    def _has_a_type_and_no_secret(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and not isinstance(value.get("type"), str):
            raise ValueError("it must have the key `type`, such as http, kafka, file or console")
        if value is not None and "auth" in value:
            raise ValueError(
                "the configuration must not contain credentials; set the environment variable "
                "OPENLINEAGE__TRANSPORT__AUTH"
            )
        return value

    @model_validator(mode="before")
    @classmethod
    def _gateway_is_an_address(cls, values: object) -> object:
        """Refuses an address with a password before other checks, because their messages would print it."""
        address = values.get("push_gateway") if isinstance(values, dict) else None
        if address is not None and not _HTTP.fullmatch(str(address)):
            raise ValueError(
                "push_gateway must be http(s)://host:port, without user, password, query or fragment"
            )
        return values


# The typed configuration of production: an experiment with another model, and the log of impressions.

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
        description="`stop_below` can stop the experiment only if each variant has at least this number of "
        "users with clicks, added up over days.",
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
        default=1000,
        description="Number of resamples of the users, for the intervals. The total of the experiment leaves "
        "out dates that were measured with another number.",
    )
    seed: Seed = Field(
        default=0,
        description="Seed of the resamples. The total of the experiment leaves out dates that were measured "
        "with another seed.",
    )

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
        """Returns what precedes a user's key in the string whose hash chooses the user's variant.

        It ends with a `:`, which no salt contains.
        """
        return f"{self.salt or self.name}:"

    def runs_on(self, run_date: str) -> bool:
        """Returns whether a run date belongs to the experiment."""
        return self.start <= run_date <= (self.end or run_date)

    def first_date(self, run_date: str) -> str:
        """Returns the first date in an experiment's figures: `start`, or `resume` from that date on."""
        return self.resume if self.resume is not None and self.resume <= run_date else self.start


class Impressions(TableOfRoles):
    """The log of the items that were shown to users from the published lists (docs/experiments.md).

    measure_recommendations reads this log for the day after the run date of the lists, and compares it with
    the lists and with the clicks of that day. Rows with the same user, item, position, variant and model
    version are one impression.

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
        description="Largest share that causes no warning. measure_recommendations warns if a larger share "
        "of a day's impressions disagrees with the published lists. build_features warns if a larger share "
        "of a day's impressions has no user, item, position or time.",
    )
    row_column: ColumnName | None = Field(
        default=None,
        description="Name of a new column of the rows of the click log, with the type int: the position at "
        "which the item of the row was shown to its user on the same day. The position is null if the log of "
        "impressions has no such row. Features can use the column like any column of the log. `row_column` "
        "needs `keys` and split.by=day. Null: no such column.",
    )
    time: PlainText | None = Field(
        default=None,
        description="Column with the time of the impression. It is required if `row_column` and "
        "`log.event_time` are set, and refused otherwise. If `columns` does not declare the column, it is "
        "written like the time of the log: an integer in the unit of `log.event_time`, or a time in its "
        "`format`. Times without an offset are interpreted in `log.time_zone`, unless "
        "`time_zone` is set.",
    )
    min_effective_entries: PositiveInt = Field(
        default=200,
        description="`by_score` estimates the click rate that explored positions would have if their items "
        "were ordered by score. It is null if the effective number of shown entries (docs/experiments.md) "
        "is below this number.",
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
            raise ValueError(f"the columns {self.roles} must differ: each key needs its own column")
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
        """Returns the configured columns of the log of shown items, such as user, item and position."""
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
            split_by: the value of split.by: `day`, `fraction` or `leave_last_out`.
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
