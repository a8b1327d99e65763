"""The typed configuration: every key of a configuration file, with its type, default and rule.

An unknown key is an error. One file configures all jobs of one log, and each job reads the sections that it
needs.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from conf.candidate_types import Candidates, NotAllowed, OutOfStock, Repeats, UserAttributes
from conf.feature_types import (
    SPLITS,
    FeatureGroup,
    History,
    OperatorEntry,
    Scope,
    Scopes,
    Split,
    SplitConfig,
    WorkflowConfig,
)
from conf.names import FolderName, LakeRoot, RawLocation, reject_repeated, reject_unknown
from conf.quality_types import Gate, Quality
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
    Negatives,
    PositiveInt,
    RawTable,
    Share,
    Strict,
    expand_range,
)
from conf.rule_types import ListRules
from conf.serving_types import Serving
from conf.spark_tables import SPARK_TABLE
from conf.stage_types import (
    Deliver,
    Generate,
    Measure,
    Output,
    Score,
    Secret,
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


# Columns of prepared rows and of feature tables (storage.feature_spec). Raw columns cannot have these names.
RESERVED = ("row_id", "user_key", "item_key", "group_key", "event_time", "label", "split")
# These tables have this column only if `log.label.weights` is set.
WEIGHT_COLUMN = "weight"


def _is_integer(text: str) -> bool:
    """Returns whether a text is an integer of 64 bits in its shortest form."""
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
        description="Root of the lake: a path that every node mounts, or a URI such as s3a://bucket/folder.",
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
        default=Quality(), description="How much the log of a day may differ from its train days."
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
                "train.negatives draws negatives for training; validation and test rows need some, too: set "
                "the section negatives, such as {per_positive: 4}"
            )
        if self.negatives and not self.negatives.train and self.split.by == "day":
            raise ValueError(
                "negatives.train=false needs a split.by other than day, because a train day of one run is "
                "the test day of another; remove negatives.train"
            )
        if self.train.compares_vectors and not self.keys:
            raise ValueError(
                f"train.loss={self.train.loss_name} compares items, so it needs the section keys, which "
                "names them"
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
        taken = [*known, *self.reserved]
        known |= self.serving.new_columns(self.split.by, self.keys, self.log.event_time, taken)
        features = [name for group in self.features for name in group.columns]
        if not self.prepare:  # the operators of `prepare` add columns
            reject_unknown("features.columns", features, known)
            reject_unknown("quality.exempt", self.quality.exempt, set(features))
        for group in self.features:
            reject_repeated("features.columns", group.columns)
        reject_repeated("scopes", [*self.scopes.user, *self.scopes.item, *self.scopes.context])
        self._check_label()
        if self.log.event_time:
            reject_unknown("log.event_time", [self.log.event_time.column], set(self.log.names))
            times = ("timestamp", "date", "int")
            self.log.require_types("log.event_time", [self.log.event_time.column], times, f": {DECLARE_TIME}")
            self.log.require_present("log.event_time", [self.log.event_time.column])
        if self.keys:
            reject_unknown("keys", self.keys.columns, set(self.log.names))
            self.log.require_types("keys", self.keys.columns, ("int", "string"))
            self.log.require_present("keys", self.keys.columns)
        elif (
            any((self.users, self.items, self.negatives, self.history, self.deliver.sinks))
            or self.split.by == "leave_last_out"
        ):
            raise ValueError(
                "users, items, negatives, history, deliver.sinks and split.by=leave_last_out need the "
                "section `keys`"
            )
        for side, table in (("user", self.users), ("item", self.items)):
            if table and self.keys:
                table.require_present("keys", [getattr(self.keys, side)])
                self._check_attributes(side, table, getattr(self.keys, side))
        if self.split.by == "day" and not self.log.by_day:
            raise ValueError(f"split.by=day needs {{date}} in log.path={self.log.path!r}")
        self._check_order()
        self._check_candidates()
        return self

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
        """Returns the value of `candidates.repeats`, with `auto` replaced by its meaning for this log."""
        if self.candidates.repeats != "auto":
            return self.candidates.repeats
        label = self.log.label
        of_choices = self.negatives is not None or label.positive_at_least is not None or label.is_only_clicks
        return "none" if of_choices else "unclicked"

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

    def _check_order(self) -> None:
        """Raises ValueError if the order of rows is needed, but the log is an unordered table of Spark."""
        ordered = self.split.by != "day" or self.history is not None
        if self.log.format == SPARK_TABLE and self.log.event_time is None and ordered:
            raise ValueError(
                "the rows of a table of Spark's catalogue have no order: set log.event_time, or use "
                "split.by=day without the section `history`"
            )

    def _check_label(self) -> None:
        """Raises ValueError if the label has a wrong type, or if both label and keys are missing."""
        column = self.log.label.column
        if column is None:
            if self.keys is None:
                raise ValueError(
                    "log.label is missing, so every row is a click, but without the section `keys` its "
                    "item is not known: add this section, or name the column with the label in log.label"
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
                f"log.label names the events {nulls}, but log.null_values says that these texts mean null"
            )

    def _check_candidates(self) -> None:
        dated = self.split.by == "day" or self.log.event_time is not None
        if self.candidates.counts_days and not dated:
            raise ValueError(
                f"candidates: {self.candidates.counts_days} count only some days, but rows have no date: "
                "set split.by=day or log.event_time, or remove these keys"
            )
        if self.measure.against == "test_split" and "test" in self.candidates.splits:
            raise ValueError(
                f"candidates.splits={self.candidates.splits} must not contain `test` if "
                "measure.against=test_split is set, because the lists would be computed from the clicks on "
                "which they are measured"
            )
        if self.measure.against == "test_split" and self.train.refit:
            raise ValueError(
                "train.refit=true trains the model that makes the lists on the test split, so "
                "measure.against=test_split would measure it on rows that it was trained on; set one of the "
                "two to another value"
            )

    def _check_attributes(self, side: str, table: JoinedTable, key: str) -> None:
        """Raises ValueError if a table of attributes lacks the key, or has another column of the log."""
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
