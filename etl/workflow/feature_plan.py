"""The plan of a configuration: what build_features does to raw rows, resolved and checked at its start."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from conf.raw_types import OTHER_EVENT
from conf.types import Config, FeatureGroup, JoinedTable
from etl.operators.join_external import JoinExternal
from etl.ops import RowChanger, RowFilter, Type, frame_operator_from_config
from etl.ops.choose_engine import Engine, choose_engine
from etl.raw.erased_rows import ERASED
from etl.raw.layout_digest import layout_digest
from etl.workflow.plan_checks import require_chains, require_free_weight, require_keys, require_scopes
from etl.workflow.preparation_methods import preparation
from etl.workflow.unfitted_chains import Chain, bind_group, chains_of
from storage.feature_spec import EVENT_TIME, LABEL, WEIGHT, raw_keys

# How a day is divided into train, validation and test rows: not at all, by the position of a row in the log,
# by its time, or by the order of the rows of its user.
Division = Literal["day", "position", "time", "user"]

_COUNTED = ("int", "float", "string")


@dataclass(frozen=True)
class Plan:
    """A configuration, resolved once: everything that build_features does to raw rows.

    A stage resolves its configuration with `plan_of`, and passes the plan on. Which days a run reads depends
    on the logs that exist (etl.checked_days.raw_days).

    Attributes:
        config: the configuration.
        filters: operators that drop rows. They run first.
        changers: operators that add columns or combine rows, in order.
        columns: maps each column that exists after the changers to its type.
        chains: the chains that compute the features.
        features: names of the features, in the order of the FeatureSpec. A fit may remove some features.
        engine: what computes features: tasks (`arrow`) or frames of Spark (`sql`).
        division: how a day is divided into splits.
        layout: digest of the rules by which the log and the tables of users and items are parsed.
        methods: versions of the methods that prepare rows (etl.workflow.preparation_methods.preparation).
    """

    config: Config
    filters: tuple[RowFilter, ...]
    changers: tuple[RowChanger, ...]
    columns: Mapping[str, Type]
    chains: tuple[Chain, ...]
    features: tuple[str, ...]
    engine: Engine
    division: Division
    layout: str
    methods: Mapping[str, str]

    @property
    def keeps_rows(self) -> bool:
        """Returns whether every row that passes the filters becomes exactly one prepared row."""
        return not any(changer.name == "groupby" for changer in self.changers)

    @property
    def is_divided(self) -> bool:
        """Returns whether one day has rows of several splits. Otherwise, each day belongs to one split."""
        return self.division != "day"

    @cached_property
    def fixed_columns(self) -> tuple[str, ...]:
        """Returns the columns of all rows that the rules of the log compute: keys, time, label, weight."""
        log = self.config.log
        times = [EVENT_TIME] if log.event_time else []
        weights = [WEIGHT] if log.label.weights is not None else []
        return (*raw_keys(self.config.keys), *times, LABEL, *weights)

    @cached_property
    def counted_columns(self) -> tuple[str, ...]:
        """Returns the columns whose values are counted: inputs of features that are no lists."""
        inputs = {name for chain in self.chains for name in chain.inputs}
        return tuple(name for name, kind in self.columns.items() if name in inputs and kind in _COUNTED)

    @cached_property
    def preparations(self) -> tuple[str, ...]:
        """Returns what rows get, or how they change, before values are counted and features computed.

        Attributes, negatives, histories and positions are added to rows, and operators may change rows. A
        split by the times of rows, or by the rows of each user, also needs all rows of a day, or of a user.
        The result is empty if the rows of the log need no preparation.
        """
        config = self.config
        applies = {
            "histories": config.history is not None,
            "negatives": config.negatives is not None,
            "positions": config.serving.row_column is not None,
            "table of users": config.users is not None,
            "table of items": config.items is not None,
            **{f"`{changer.name}`": True for changer in self.changers},
            "split of the rows of each user": self.division == "user",
            "split by event time": self.division == "time",
        }
        return tuple(name for name, needed in applies.items() if needed)

    @cached_property
    def reasons_left_out(self) -> tuple[str, ...]:
        """Returns the reasons of rows that are not used, but are not quarantined either.

        These are rows of events that `log.label` does not name, rows that operators of `prepare` drop, and
        rows of erased users.
        """
        label = self.config.log.label
        others = [OTHER_EVENT] if label.weights is not None and label.other_events == "drop" else []
        return (*others, *(operator.reason for operator in self.filters), ERASED)

    @cached_property
    def external_tables(self) -> dict[str, JoinedTable]:
        """Returns the tables that the operator `join_external` reads, by the text that names each of them."""
        operators = [(step, step.operator) for chain in self.chains for step in chain.steps]
        return {
            f"join_external.path={operator.path}": operator.source(step)[0]
            for step, operator in operators
            if isinstance(operator, JoinExternal)
        }

    def raw_columns(self, wanted: Collection[str], *, everything: bool = False) -> tuple[str, ...]:
        """Returns the fixed columns, and then the columns of the log that are in `wanted`, or all of them."""
        fixed = self.fixed_columns
        names = [name for name in self.config.log.names if everything or name in wanted]
        return (*fixed, *(name for name in names if name not in fixed))


def plan_of(config: Config) -> Plan:
    """Resolves a configuration.

    Raises:
        ConfigError: an operator or parameter is unknown, a column has a wrong type, a feature does not have
            the kind that its group declares, two features or vocabularies have the same name, or a scope
            lists an unknown feature.
    """
    columns: dict[str, Type] = {}
    for table in (config.log, config.users, config.items):
        columns |= table.types if table else {}
    if config.history:
        columns[config.history.column] = "strings"
    if config.serving.row_column:
        columns[config.serving.row_column] = "int"
    operators = [frame_operator_from_config(entry) for entry in config.prepare]
    filters = tuple(operator for operator in operators if isinstance(operator, RowFilter))
    changers = tuple(operator for operator in operators if isinstance(operator, RowChanger))
    log_columns = config.log.types
    for row_filter in filters:
        row_filter.bind(log_columns)
    for changer in changers:
        columns = dict(changer.bind(columns))
    require_keys(config, changers, columns)
    chains, features = plan_features(config.features, columns, config.log.label.column)
    require_scopes(config, features, chains)
    require_free_weight(config, columns, chains)
    return Plan(
        config,
        filters,
        changers,
        columns,
        chains,
        features,
        engine=choose_engine(config.workflow.engine),
        division=_division(config),
        layout=layout_digest(config),
        methods=preparation(config),
    )


def _division(config: Config) -> Division:
    if config.split.by == "day":
        return "day"
    if config.split.by == "leave_last_out":
        return "user"
    return "position" if config.log.event_time is None else "time"


def plan_features(
    groups: Sequence[FeatureGroup], columns: Mapping[str, Type], label: str
) -> tuple[tuple[Chain, ...], tuple[str, ...]]:
    """Returns the chains of feature groups, and the names of their features in order.

    Args:
        groups: the section `features` of the configuration.
        columns: maps each raw column to its type.
        label: the raw column with the label.

    Raises:
        ConfigError: see `plan_of`.
    """
    chains = tuple(chain for group in groups for chain in chains_of(group, columns))
    features = tuple(name for group in groups for name in bind_group(group, columns).outputs)
    require_chains(columns, features, chains, label)
    return chains, features
