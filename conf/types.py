"""The typed configuration: every key of a configuration file, with its type, default and rule.

An unknown key is an error. One file configures all jobs of one log, and each job reads the sections that it
needs. This module contains the limits of the data report and of the gate, and the whole configuration. The
other modules `*_types.py` contain the other sections.
"""

from __future__ import annotations

import struct
from typing import Annotated

from pydantic import Field, model_validator

from conf.feature_types import (
    SPLITS,
    FeatureGroup,
    History,
    LastValues,
    Negatives,
    OperatorEntry,
    Scope,
    Scopes,
    Split,
    SplitConfig,
    WorkflowConfig,
)
from conf.list_types import Candidates, ListRules, NotAllowed, OutOfStock, Repeats, UserAttributes
from conf.names import (
    SPARK_TABLE,
    FolderName,
    LakeRoot,
    RawLocation,
    expand_range,
    reject_repeated,
    reject_unknown,
)
from conf.raw_types import (
    DECLARE_TIME,
    Column,
    EventTime,
    ItemsTable,
    JoinedTable,
    Keys,
    Label,
    Log,
    Names,
    PositiveInt,
    RawTable,
    Seed,
    Share,
    Strict,
)
from conf.stage_types import (
    Deliver,
    Generate,
    Measure,
    Output,
    Score,
    Secret,
    Serving,
    SinkConfig,
    SinkSettings,
    Stop,
    Watch,
)
from conf.train_types import (
    EmbeddingStorage,
    ModelConfig,
    MultiHot,
    Profile,
    Reading,
    ScoreKind,
    StopAt,
    Train,
    TrainNegatives,
)

__all__ = [
    "SPLITS",
    "Candidates",
    "Column",
    "Config",
    "Deliver",
    "EmbeddingStorage",
    "EventTime",
    "FeatureGroup",
    "Gate",
    "Generate",
    "History",
    "ItemsTable",
    "JoinedTable",
    "Keys",
    "Label",
    "LastValues",
    "ListRules",
    "Log",
    "Measure",
    "ModelConfig",
    "MultiHot",
    "Names",
    "Negatives",
    "NotAllowed",
    "OperatorEntry",
    "OutOfStock",
    "Output",
    "PositiveInt",
    "Profile",
    "Quality",
    "RawTable",
    "Reading",
    "Scope",
    "Scopes",
    "Score",
    "Secret",
    "Share",
    "SinkConfig",
    "SinkSettings",
    "Split",
    "SplitConfig",
    "Stop",
    "StopAt",
    "Strict",
    "Train",
    "TrainNegatives",
    "UserAttributes",
    "Watch",
    "WorkflowConfig",
    "expand_range",
]


# The typed configuration of limits: the checks of a day's data, and the gate that a challenger must pass.

ShareLimit = Share | None
Limit = Annotated[float, Field(ge=0)] | None


class Quality(Strict):
    """Limits on the quality of the raw log, and of the tables of users and items.

    `max_bad_share`, `misdated_share_warn` and `max_misdated_share` are limits for each day that a run reads.
    `users_without_row_…` and `items_without_row_…` are limits for the tables of users and items. All other
    limits are for figures that compare the run date with its train days. If a figure is above its limit
    `…_warn`, the job logs the figure and marks it in the report. If a figure is above its limit `…_stop`,
    build_features ends with exit code 3 before it publishes features. The limits of users and items without
    a row are checked later: before the tables `users` and `items` are published.
    """

    max_bad_share: Share = Field(
        default=0.05, description="Largest share of a day's rows that may be quarantined."
    )
    misdated_share_warn: ShareLimit = Field(
        default=0.05,
        description="Warns if a larger share of a day's rows has an event_time outside of this day in "
        "`log.time_zone`. Used only if `log.path` has `{date}` and `log.event_time` is set. Null: no limit.",
    )
    max_misdated_share: Share = Field(
        default=0.9,
        description="Largest share of a day's rows that may have an event_time outside of this day in "
        "`log.time_zone`. If the days of the files are those of another time zone, at most 0.6 of the rows "
        "are outside. If the unit of the times is wrong, all rows are outside. Used only if `log.path` has "
        "`{date}` and `log.event_time` is set.",
    )
    null_rate_change_warn: ShareLimit = Field(
        default=0.1,
        description="Warns if a column's share of nulls differs from that of the train days by more than "
        "this number. Null: no limit.",
    )
    null_rate_change_stop: ShareLimit = Field(
        default=None,
        description="Stops if a column's share of nulls differs from that of the train days by more than "
        "this number. Null: no limit.",
    )
    new_value_rate_warn: ShareLimit = Field(
        default=0.5,
        description="Warns if more than this share of a categorical column's values does not occur in the "
        "train days. Null: no limit.",
    )
    new_value_rate_stop: ShareLimit = Field(
        default=None,
        description="Stops if more than this share of a categorical column's values does not occur in the "
        "train days. Null: no limit.",
    )
    psi_warn: Limit = Field(
        default=0.25,
        description="Warns if the population stability index of a column (run date compared with the train "
        "days) is above this value. An index that can be due to chance for the number of rows is ignored. "
        "Null: no limit.",
    )
    psi_stop: Limit = Field(
        default=None,
        description="Stops if the population stability index of a column (run date compared with the train "
        "days) is above this value. An index that can be due to chance for the number of rows is ignored. "
        "Null: no limit.",
    )
    click_rate_change_warn: Limit = Field(
        default=0.5,
        description="Warns if the relative change of the click rate (run date compared with the train "
        "days) is above this value. Not checked if `negatives` adds rows, or if every row is a click. "
        "Null: no limit.",
    )
    click_rate_change_stop: Limit = Field(
        default=None,
        description="Stops if the relative change of the click rate (run date compared with the train "
        "days) is above this value. Null: no limit.",
    )
    row_shortfall_warn: ShareLimit = Field(
        default=0.5,
        description="Warns if the number of rows is more than this share below the median of the train days. "
        "With 0.5, it warns below half of the median. Null: no limit.",
    )
    row_shortfall_stop: ShareLimit = Field(
        default=None,
        description="Stops if the number of rows is more than this share below the median of the train days. "
        "Null: no limit.",
    )
    row_excess_warn: Limit = Field(
        default=1.0,
        description="Warns if the number of rows is more than this share above the median of the train days. "
        "With 1.0, it warns above twice the median. Null: no limit.",
    )
    row_excess_stop: Limit = Field(
        default=None,
        description="Stops if the number of rows is more than this share above the median of the train days. "
        "Null: no limit.",
    )
    users_without_row_warn: ShareLimit = Field(
        default=0.1,
        description="Warns if more than this share of the users of the log has no row in the table of "
        "users. The users on all days of the run are counted. Null: no limit.",
    )
    users_without_row_stop: ShareLimit = Field(
        default=None,
        description="Stops if more than this share of the users of the log has no row in the table of "
        "users. The users on all days of the run are counted. Null: no limit.",
    )
    items_without_row_warn: ShareLimit = Field(
        default=0.1,
        description="Warns if more than this share of the items of the log has no row in the table of "
        "items. The items on all days of the run are counted. Null: no limit.",
    )
    items_without_row_stop: ShareLimit = Field(
        default=None,
        description="Stops if more than this share of the items of the log has no row in the table of "
        "items. The items on all days of the run are counted. Null: no limit.",
    )
    exempt: Names = Field(
        default=[],
        description="Feature columns to which these limits do not apply, such as session ids, which are new "
        "every day.",
    )

    @model_validator(mode="after")
    def _warns_before_it_stops(self) -> Quality:
        if self.misdated_share_warn is not None and self.misdated_share_warn > self.max_misdated_share:
            raise ValueError(
                f"misdated_share_warn={self.misdated_share_warn} must not be above "
                f"max_misdated_share={self.max_misdated_share}"
            )
        for name in type(self).model_fields:
            check = name.removesuffix("_warn")
            warn, stop = getattr(self, name), getattr(self, f"{check}_stop", None)
            if name.endswith("_warn") and warn is not None and stop is not None and warn > stop:
                raise ValueError(f"{name}={warn} must not be above {check}_stop={stop}")
        return self


# The typed configuration of the gate, which decides whether a challenger replaces the champion.

Positive = Annotated[float, Field(gt=0)]


class Drift(Strict):
    """Limits on how much the test day's data and the challenger's scores may differ from expected values.

    Each figure has two limits. If a figure is above its limit `…_warn`, the gate logs a warning, and the
    report marks the figure. If a figure is above its limit `…_hold`, the champion remains. Columns in
    `quality.exempt` are ignored.
    """

    score_psi_warn: Limit = Field(
        default=0.25,
        description="Warns if the population stability index (PSI) between the challenger's and the "
        "champion's scores of the same test rows is above this value. Null: no limit.",
    )
    score_psi_hold: Limit = Field(
        default=None,
        description="The champion remains if the PSI of the scores is above this value. Null: no limit.",
    )
    feature_psi_warn: Limit = Field(
        default=0.25,
        description="Warns if the PSI of a raw column (test day compared with train days) is above this "
        "value. Only the column with the largest PSI counts; a PSI that can be due to chance is ignored. "
        "Null: no limit.",
    )
    feature_psi_hold: Limit = Field(
        default=None,
        description="The champion remains if the largest PSI of a raw column is above this value. Null: no "
        "limit.",
    )
    click_rate_change_warn: Limit = Field(
        default=0.5,
        description="Warns if the relative change of the click rate (test day compared with train days) is "
        "above this value. Not checked if `negatives` adds rows, or if every row is a click. Null: no "
        "limit.",
    )
    click_rate_change_hold: Limit = Field(
        default=None,
        description="The champion remains if the relative change of the click rate is above this value. "
        "Null: no limit.",
    )
    oov_share_warn: Limit = Field(
        default=0.5,
        description="Warns if more than this share of a feature's values on the test day are missing in "
        "the challenger's vocabulary. Only the feature with the largest share counts. Null: no limit.",
    )
    oov_share_hold: Limit = Field(
        default=None,
        description="The champion remains if, for any feature, more than this share of the values is "
        "missing in the challenger's vocabulary. Null: no limit.",
    )

    @model_validator(mode="after")
    def _warns_before_it_holds(self) -> Drift:
        for name in type(self).model_fields:
            check = name.removesuffix("_warn")
            warn, hold = getattr(self, name), getattr(self, f"{check}_hold", None)
            if name.endswith("_warn") and warn is not None and hold is not None and warn > hold:
                raise ValueError(f"{name}={warn} must not be above {check}_hold={hold}")
        return self


class Gate(Strict):
    """Settings that decide when a challenger replaces the champion. docs/retraining.md helps to choose them.

    The challenger must not be worse than the champion by more than `margin`. The gate computes a confidence
    interval of the difference between the two AUCs (challenger minus champion) on the same test rows. This
    interval must begin above -`margin`. The interval is computed by resampling users, or by resampling rows
    if the log has no keys. If lists can be made, the same rule applies to NDCG@k of both models' lists
    (`lists_margin`). The first model is always promoted.
    """

    margin: Annotated[float, Field(ge=0)] = Field(
        default=0.002, description="Largest decrease of the AUC that is accepted."
    )
    log_loss_margin: Limit = Field(
        default=None,
        description="Largest increase of the log loss that is accepted. Null: the log loss is ignored. "
        "Only models trained with `train.loss: bce` have a log loss.",
    )
    confidence: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.95, description="Confidence of the interval of the difference."
    )
    replicates: Annotated[int, Field(ge=100, lt=2**31)] = Field(
        default=1000, description="Number of resamples."
    )
    seed: Seed = Field(default=0, description="Seed of the resamples.")
    min_rows: PositiveInt = Field(
        default=1000,
        description="Smallest number of rows in the test split. With fewer rows, the champion remains.",
    )
    min_users: PositiveInt = Field(
        default=50,
        description="Smallest number of users in the test split. With fewer users, the champion remains.",
    )
    calibration_low: Positive = Field(
        default=0.8,
        description="Lower limit of the challenger's ratio of predicted clicks to observed clicks. If this "
        "ratio is below `calibration_low` or above `calibration_high`, the challenger is promoted only if "
        "the champion's ratio is further away from 1. Only checked if the scores are click probabilities: "
        "with `train.loss: bce`, and without drawn negatives.",
    )
    calibration_high: Positive = Field(
        default=1.25, description="Upper limit of the challenger's ratio of predicted to observed clicks."
    )
    lists_margin: Limit = Field(
        default=0.02,
        description="Largest decrease of NDCG@k of the users' lists that is accepted (k is `score.k`). Null: "
        "the lists are measured, but they do not decide.",
    )
    lists_users: PositiveInt | None = Field(
        default=1000,
        description="Largest number of users whose lists are measured. A hash of the user key chooses them, "
        "so both models and all reruns use the same users. Null: lists are not measured.",
    )
    drift: Drift = Field(default=Drift(), description="Limits on the drift of data and scores.")

    @model_validator(mode="after")
    def _a_band_around_one(self) -> Gate:
        if not self.calibration_low <= 1 <= self.calibration_high:
            raise ValueError(
                f"1 must be between calibration_low={self.calibration_low} and "
                f"calibration_high={self.calibration_high}: lower the first, or raise the second"
            )
        return self


# The whole configuration.

# Columns of prepared rows and of feature tables (storage.feature_spec). Raw columns cannot have these names.
RESERVED = ("row_id", "user_key", "item_key", "group_key", "event_time", "label", "split")
# Columns of the tables from which lists are made (scoring/requests.py), beside the features of the user or of
# the item. Features of the scope `user` or `item` cannot have these names, which Spark and DuckDB compare
# without case.
LIST_COLUMNS = {"user": ("candidates", "excluded", "sources", "source_scores"), "item": ("item_index",)}
# Prepared rows and feature tables have this column only if `log.label.weights` is set.
WEIGHT_COLUMN = "weight"


def _is_integer(text: str) -> bool:
    """Returns whether a string is an integer of 64 bits, written in its shortest form."""
    try:
        return str(int(text)) == text and -(2**63) <= int(text) < 2**63
    except ValueError:
        return False


class Config(Strict):
    """The configuration of all jobs of one log.

    The operators `filter` in `prepare` always run before the other operators in `prepare`, wherever they are
    in the list. They read only columns of the log.
    """

    name: FolderName = Field(
        description="Name of the configuration. Folders of the lake have this name, such as `models/<name>`."
    )
    lake: LakeRoot = Field(
        default="lake",
        description="Root of the lake: a path that every node mounts, or a URI such as s3a://bucket/folder. "
        "It must not begin with ~ or contain braces or variables such as $HOME, because nothing is replaced "
        "in it.",
    )
    data: RawLocation = Field(
        default="data", description="Folder of raw data. `{data}` in a path is replaced by this value."
    )
    log: Log = Field(description="The click log.")
    users: JoinedTable | None = Field(
        default=None,
        description="Table of attributes of users, joined with the log by the key of the user. Null: no "
        "table.",
    )
    items: ItemsTable | None = Field(
        default=None,
        description="Table of attributes of items, joined with the log by the key of the item. Null: no "
        "table.",
    )
    negatives: Negatives | None = Field(
        default=None,
        description="Rows with label 0 that are added to a log which records only what users chose. Null: no "
        "rows are added.",
    )
    history: History | None = Field(
        default=None, description="A column with the user's last clicks before a row. Null: no such column."
    )
    last_values: LastValues | None = Field(
        default=None,
        description="Columns with the last values of an item's earlier events, such as its price. Null: no "
        "such columns.",
    )
    keys: Keys | None = Field(
        default=None,
        description="Columns that identify users and items. Null: the log has no such columns, so no lists "
        "are made.",
    )
    prepare: list[OperatorEntry] = Field(
        default=[],
        description="Operators that are applied to the rows of the log before features are computed, in "
        "order: filter, dropna, difference_lag, groupby (docs/operators/rows.md).",
    )
    features: Annotated[list[FeatureGroup], Field(min_length=1)] = Field(
        description="Groups of features, in order."
    )
    scopes: Scopes = Field(
        default=Scopes(),
        description="Features that depend only on the user, only on the item, or only on the context.",
    )
    split: SplitConfig = Field(description="How rows are divided into train, validation and test.")
    workflow: WorkflowConfig = Field(
        default=WorkflowConfig(),
        description="Whether build_features fits a new workflow or uses that of the champion, and which "
        "engine applies it.",
    )
    quality: Quality = Field(
        default=Quality(), description="How much the log of a day may differ from the logs of its train days."
    )
    output: Output = Field(default=Output(), description="Limits for the tables that jobs write.")
    model: ModelConfig = Field(description="The model: a section, or the name of a file with its keys.")
    train: Train = Field(default=Train(), description="The training loop.")
    gate: Gate = Field(default=Gate(), description="When a challenger replaces the champion.")
    candidates: Candidates = Field(
        default_factory=Candidates, description="The items that are scored for each user."
    )
    score: Score = Field(default=Score(), description="The daily lists and the probabilities of rows.")
    deliver: Deliver = Field(
        default=Deliver(), description="The sinks to which deliver_recommendations copies the lists."
    )
    serving: Serving = Field(default=Serving(), description="Experiments, and the log of what was shown.")
    measure: Measure = Field(default=Measure(), description="The clicks that the lists are compared with.")
    watch: Watch = Field(
        default=Watch(), description="Prometheus metrics, lineage events, and the price of a run."
    )
    generate: Generate | None = Field(
        default=None, description="The generator of click logs. Null: the log is not generated."
    )

    @model_validator(mode="after")
    def _losses_can_be_computed(self) -> Config:
        if self.train.negatives and not self.negatives:
            raise ValueError(
                "train.negatives draws negatives only for training, but the validation and test splits need "
                "negatives too: set the section negatives, such as {per_positive: 4}"
            )
        if self.negatives and not self.negatives.train and self.split.by == "day":
            raise ValueError(
                "negatives.train=false needs a split.by other than day, because a train day of one run is "
                "the test day of another; remove negatives.train"
            )
        if self.train.compares_vectors and not self.keys:
            raise ValueError(
                f"train.loss={self.train.loss_name} compares items, so it needs the section keys, which "
                "names the column of the item"
            )
        return self

    @model_validator(mode="after")
    def _known_columns(self) -> Config:
        self._check_reserved()
        known = set(self.log.names)
        for table in (self.users, self.items):
            known |= set(table.names) if table else set()
        taken = [*known, *self.reserved]
        timed = self.log.event_time is not None
        known |= self.history.new_columns(self.split.by, taken, timed=timed) if self.history else set()
        known |= self._last_columns(known)
        taken = [*known, *self.reserved]
        known |= self.serving.new_columns(self.split.by, self.keys, self.log.event_time, taken)
        features = [name for group in self.features for name in group.columns]
        if not self.prepare:  # the operators of `prepare` may add columns
            reject_unknown("features.columns", features, known)
        reject_unknown("quality.exempt", self.quality.exempt, set(features))
        for group in self.features:
            reject_repeated("features.columns", group.columns)
        reject_repeated("scopes", [*self.scopes.user, *self.scopes.item, *self.scopes.context])
        self._check_label()
        if self.log.event_time:
            self._check_event_time(self.log.event_time)
        if self.keys:
            reject_unknown("keys", self.keys.columns, set(self.log.names))
            self.log.require_types("keys", self.keys.columns, ("int", "string"))
            self.log.require_present("keys", self.keys.columns)
        elif (
            any((self.users, self.items, self.negatives, self.history, self.last_values))
            or self.deliver.sinks
            or self.split.by == "leave_last_out"
        ):
            raise ValueError(
                "users, items, negatives, history, last_values, deliver.sinks and "
                "split.by=leave_last_out need the section `keys`: add this section"
            )
        for side, table in (("user", self.users), ("item", self.items)):
            if table and self.keys:
                table.require_present("keys", [getattr(self.keys, side)])
                self._check_attributes(side, table, getattr(self.keys, side))
        if self.split.by == "day" and not self.log.by_day:
            raise ValueError(
                f"split.by=day needs {{date}} in log.path={self.log.path!r}: write {{date}} in place of the "
                "day, or choose another split.by"
            )
        self._check_order()
        self._check_candidates()
        return self

    @property
    def folders(self) -> dict[str, str]:
        """Returns the values that replace `{lake}` and `{data}` in paths."""
        return {"lake": self.lake, "data": self.data}

    @property
    def reserved(self) -> tuple[str, ...]:
        """Returns the names of internal columns, which raw columns and features must not have."""
        return RESERVED if self.log.label.weights is None else (*RESERVED, WEIGHT_COLUMN)

    @property
    def score_kind(self) -> ScoreKind:
        """Returns the meaning of the scores of a model that is trained with this configuration."""
        weighted = self.log.label.weights is not None
        return self.train.score_kind(draws=self.negatives is not None or weighted)

    @property
    def repeats(self) -> Repeats:
        """Returns the value of `candidates.repeats`, with `auto` replaced by its meaning for this log.

        The value is `without_event` if `candidates.exclude_events` is set.
        """
        if self.candidates.exclude_events is not None:
            return "without_event"
        if self.candidates.repeats != "auto":
            return self.candidates.repeats
        label = self.log.label
        of_choices = self.negatives is not None or label.positive_at_least is not None or label.is_only_clicks
        return "none" if of_choices else "unclicked"

    @property
    def days_before(self) -> int:
        """Returns for how many days before the first day of the splits a run reads the events."""
        of_values = self.last_values.days if self.last_values else 0
        return max((self.history.days or 0) if self.history else 0, of_values)

    @property
    def uncounted_days(self) -> int:
        """Returns how many days up to the run date are not in `candidates.splits` (split.by=day)."""
        if self.split.by != "day" or "test" in self.candidates.splits:
            return 0
        days = self.split.test_days
        return days if "validation" in self.candidates.splits else days + self.split.validation_days

    @property
    def drawn_columns(self) -> frozenset[str]:
        """Returns the columns that depend on drawn items in validation and test rows, but not in train rows.

        With `negatives.train: false`, items are drawn only for validation and test rows. So the values of
        these columns differ from those of train rows even if users behave in the same way.
        """
        if self.negatives is None or self.negatives.train or self.keys is None:
            return frozenset()
        return frozenset({self.keys.item, *(self.items.names if self.items else ())})

    def _check_reserved(self) -> None:
        """Raises ValueError if a raw column has the name of an internal column of feature tables."""
        event_time = self.log.event_time.column if self.log.event_time else None
        for section, table in (("log", self.log), ("users", self.users), ("items", self.items)):
            allowed = (
                {"label", "event_time" if event_time == "event_time" else ""} if section == "log" else set()
            )
            names = table.names if table else []
            taken = [name for name in names if name in self.reserved and name not in allowed]
            if taken:
                raise ValueError(
                    f"{section}.columns names {taken}, but feature tables have internal columns with these "
                    "names; write another name as `name`, and the name in the raw files as `source`: "
                    f"{{name: raw_{taken[0]}, source: {taken[0]}}}"
                )

    def _check_event_time(self, event_time: EventTime) -> None:
        """Raises ValueError if a column of `log.event_time` is missing or has a wrong type."""
        where, log = "log.event_time", self.log
        reject_unknown(where, event_time.columns, set(log.names))
        log.require_present(where, event_time.columns)
        if event_time.time_of_day is None:
            times = ("timestamp", "date", "int")
            log.require_types(where, [event_time.column], times, f": {DECLARE_TIME}")
            return
        whole = "; a column with the whole time needs no `time_of_day`"
        log.require_types(f"{where}.column", [event_time.column], ("date",), whole)
        of_day = '; for a notation other than 13:45:00 also set `format`, such as `format: "%I:%M %p"`'
        log.require_types(f"{where}.time_of_day", [event_time.time_of_day], ("time",), of_day)

    def _last_columns(self, known: set[str]) -> set[str]:
        """Returns the columns that the section `last_values` adds; empty without this section.

        Raises ValueError if the section is wrong, or if it would add a column whose name is in `known` or is
        the name of an internal column.
        """
        if self.last_values is None:
            return set()
        refused = {*(self.keys.columns if self.keys else ()), self.log.label.column or ""}
        added = self.last_values.checked_columns(self.split.by, self.log, refused)
        taken = sorted(added & {*known, *self.reserved})
        if taken:
            raise ValueError(
                f"last_values would add the columns {taken}, which are the names of other columns: give "
                "these other columns another `name`, and write their names in the raw files as `source`"
            )
        return added

    def _check_order(self) -> None:
        """Raises ValueError if the order of rows is needed, but the log is an unordered table of Spark."""
        earlier = self.history is not None or self.last_values is not None
        ordered = self.split.by != "day" or earlier
        if self.log.format == SPARK_TABLE and self.log.event_time is None and ordered:
            raise ValueError(
                "the rows of a table of Spark's catalogue have no order: set log.event_time, or use "
                "split.by=day without the sections `history` and `last_values`"
            )

    def _check_label(self) -> None:
        """Raises ValueError if the label has a wrong type, or if both label and keys are missing."""
        column = self.log.label.column
        if column is None:
            if self.keys is None:
                raise ValueError(
                    "log.label is missing, so every row is a click, but without the section `keys` the "
                    "clicked items are not known: add this section, or name the column with the label in "
                    "log.label"
                )
            return
        reject_unknown("log.label", [column], set(self.log.names))
        self.log.require_types("log.label", [column], ("int", "bool", "float", "decimal", "string"))
        self.log.require_present("log.label", [column])
        self._check_events(column)

    def _check_events(self, column: str) -> None:
        """Raises ValueError if the column of the label cannot contain the events in `log.label`."""
        label = self.log.label
        if label.positive is None:
            return
        self.log.require_types("log.label.positive", [column], ("string", "int"))
        of_integers = any(one.name == column and one.type == "int" for one in self.log.columns)
        wrong = [event for event in label.event_weights if of_integers and not _is_integer(event)]
        if wrong:
            raise ValueError(
                f"log.label names the events {wrong}, but the column {column!r} has the type int: "
                "write integers of 64 bits, such as 3, or give the column the type string in log.columns"
            )
        nulls = [event for event in label.event_weights if event in self.log.null_values]
        if nulls:
            raise ValueError(
                f"log.label names the events {nulls}, but log.null_values says that these strings mean null: "
                "remove them from one of the two keys"
            )

    def _check_candidates(self) -> None:
        dated = self.split.by == "day" or self.log.event_time is not None
        if self.candidates.counts_days and not dated:
            raise ValueError(
                f"candidates: {[*self.candidates.counts_days]} count only some days, but rows have no date: "
                "set split.by=day or log.event_time, or remove these keys"
            )
        self._check_windows()
        self._check_excluding_events()
        if self.measure.against == "test_split" and "test" in self.candidates.splits:
            raise ValueError(
                f"candidates.splits={self.candidates.splits} must not contain `test` if "
                "measure.against=test_split is set, because the lists would be computed from the clicks on "
                "which they are measured: set one of the two to another value"
            )
        if self.measure.against == "test_split" and self.train.refit:
            raise ValueError(
                "with train.refit=true, the model that makes the lists is also trained on the test split, so "
                "measure.against=test_split would measure the model on rows that it was trained on; set one "
                "of the two to another value"
            )

    def _check_excluding_events(self) -> None:
        """Raises ValueError if a row's weight does not show whether `exclude_events` has the row's event."""
        weights = self.log.label.event_weights if self.log.label.weights is not None else {}
        events = self.candidates.exclude_events or ()
        unknown = [event for event in events if event not in weights]
        if unknown:
            raise ValueError(
                f"candidates.exclude_events: {unknown} are not among the events of log.label.weights, "
                f"{[*weights]}: name some of these events, or give the others a weight"
            )
        stored = {event: struct.pack("f", weight) for event, weight in weights.items()}
        excluding = {stored[event] for event in events}
        alike = [event for event in stored if event not in events and stored[event] in excluding]
        if alike:
            raise ValueError(
                f"candidates.exclude_events: the events {alike} have the same weight in log.label.weights as "
                f"an event of {[*events]}, and rows are distinguished by their weights: give them different "
                "weights, or add them to exclude_events"
            )

    def _check_windows(self) -> None:
        """Raises ValueError if no day of a window (a number of days) is in one of `candidates.splits`."""
        gap = self.uncounted_days
        empty = [f"{name}={days}" for name, days in self.candidates.counts_days.items() if days <= gap]
        if empty:
            raise ValueError(
                f"candidates: the windows {', '.join(empty)} (in days) contain no rows, because "
                f"candidates.splits={self.candidates.splits} does not include the splits of the last {gap} "
                f"days up to the run date: add these splits, or set windows of more than {gap} days"
            )

    def _check_attributes(self, side: str, table: JoinedTable, key: str) -> None:
        """Raises ValueError if a table of attributes lacks the key, or shares another column with the log."""
        if key not in table.names:
            raise ValueError(
                f"{side}s.columns must contain the key {key!r}, but contains only {table.names}: add the "
                f"column that keys.{side} names"
            )
        again = sorted((set(table.names) & set(self.log.names)) - {key})
        if again:
            raise ValueError(
                f"{side}s.columns and log.columns both name {again}: in one of the two, write another name "
                "as `name`, and the name in the raw files as `source`"
            )
