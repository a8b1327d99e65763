"""The plan of a configuration: its row operators and feature chains, checked before a job starts work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from conf.types import Config, FeatureGroup, JoinedTable
from etl.ops import RowChanger, RowFilter, Type, frame_operator_from_config
from etl.ops.join_external import JoinExternal
from etl.raw.erased_rows import ERASED
from etl.workflow.plan_checks import require_chains, require_keys, require_scopes
from etl.workflow.unfitted_chains import Chain, bind_group, chains_of


@dataclass(frozen=True)
class Plan:
    """Everything that a configuration does to raw rows.

    Attributes:
        filters: operators that drop rows. They run first.
        changers: operators that add columns or combine rows, in order.
        columns: maps each column that exists after the changers to its type.
        chains: the chains that compute the features.
        features: names of the features, in the order of the FeatureSpec. A fit may remove some features.
    """

    filters: tuple[RowFilter, ...]
    changers: tuple[RowChanger, ...]
    columns: Mapping[str, Type]
    chains: tuple[Chain, ...]
    features: tuple[str, ...]

    @property
    def keeps_rows(self) -> bool:
        """Returns whether every row that passes the filters becomes exactly one prepared row."""
        return not any(changer.name == "groupby" for changer in self.changers)


def plan(config: Config) -> Plan:
    """Returns the plan of a configuration.

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
    return Plan(filters, changers, columns, chains, features)


def reasons_left_out(config: Config) -> list[str]:
    """Returns the reasons of rows that are not used, but are not quarantined either.

    These are rows that operators of `prepare` drop, and rows of erased users.
    """
    return [*(operator.reason for operator in plan(config).filters), ERASED]


def external_tables(config: Config) -> dict[str, JoinedTable]:
    """Returns the tables that the operator `join_external` reads, by the text that names each of them."""
    operators = [(step, step.operator) for chain in plan(config).chains for step in chain.steps]
    return {
        f"join_external.path={operator.path}": operator.source(step)[0]
        for step, operator in operators
        if isinstance(operator, JoinExternal)
    }


def plan_features(
    groups: Sequence[FeatureGroup], columns: Mapping[str, Type], label: str
) -> tuple[tuple[Chain, ...], tuple[str, ...]]:
    """Returns the chains of feature groups, and the names of their features in order.

    Args:
        groups: the section `features` of the configuration.
        columns: maps each raw column to its type.
        label: the raw column with the label.

    Raises:
        ConfigError: see `plan`.
    """
    chains = tuple(chain for group in groups for chain in chains_of(group, columns))
    features = tuple(name for group in groups for name in bind_group(group, columns).outputs)
    require_chains(columns, features, chains, label)
    return chains, features
