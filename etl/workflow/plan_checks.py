"""Checks that the parts of a configuration fit together: keys, names, tables, scopes of features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conf.errors import ConfigError
from conf.names import column_name
from conf.raw_types import fits_column
from conf.types import RESERVED, Config
from etl.operators.categorify import Categorify
from etl.ops import FrameOperator, Type
from etl.ops.base import NUMBERS
from etl.ops.keyed import table_name
from etl.ops.tables import RARE, VOCABULARY
from etl.workflow.unfitted_chains import Chain
from storage.feature_spec import LABEL, WEIGHT

Chains = tuple[Chain, ...]


def require_keys(config: Config, changers: tuple[FrameOperator, ...], columns: Mapping[str, Type]) -> None:
    """Raises ConfigError if a key column does not exist after the operators of `prepare`."""
    keys = config.keys.columns if config.keys else []
    lost = [name for name in keys if name not in columns]
    if lost and changers:
        raise ConfigError(
            f"`prepare` drops the key columns {lost}", "add these columns to `by` of `groupby` in `prepare`"
        )


def require_chains(
    columns: Mapping[str, Type], features: tuple[str, ...], chains: Chains, label: str
) -> None:
    """Checks features, and the chains that compute them.

    Args:
        columns: maps each raw column to its type.
        features: the names of the features.
        chains: the chains.
        label: the raw column with the label.

    Raises:
        ConfigError: a name is not allowed or not unique, a feature reads the label, or an operator reads a
            column of a wrong type.
    """
    _require_names(columns, chains)
    _require_unique(features, chains)
    _require_tables(chains)
    _require_reads(chains, columns)
    _require_no_label(label, chains)
    _require_free_names(chains)


def _require_names(columns: Mapping[str, Type], chains: Chains) -> None:
    """Raises ConfigError if a name cannot be used for a column, or as a part of a file name."""
    outputs = [name for chain in chains for step in chain.steps for name in step.outputs]
    for name in (*columns, *outputs):
        try:
            column_name(name)
        except ValueError as error:
            raise ConfigError(
                f"an operator would add a column {name!r}: {error}", "give this column another name"
            ) from error


def require_free_weight(config: Config, columns: Mapping[str, Type], chains: Chains) -> None:
    """Raises ConfigError if rows have weights, and an operator adds another column with their name."""
    steps = {name for chain in chains for step in chain.steps for name in step.outputs}
    if config.log.label.weights is not None and WEIGHT in {*columns, *steps}:
        raise ConfigError(
            f"an operator would add a column {WEIGHT!r}, which is that of the weights of log.label.weights",
            "give this column another name",
        )


def _require_no_label(label: str, chains: Chains) -> None:
    """Raises ConfigError if a feature reads the label, or a raw column with the name of the label."""
    for chain in chains:
        labels = [name for name in chain.inputs if name in (LABEL, label)]
        if labels:
            raise ConfigError(
                f"features are computed from {labels}, which is the label that a model must predict",
                "remove the column from features; if it is another column with the name of the label, write "
                "a new `name` in log.columns, and the column's name in the raw log as `source`",
            )


def require_scopes(config: Config, features: tuple[str, ...], chains: Chains) -> None:
    """Raises ConfigError if a scope lists a feature that it must not contain.

    If the section `users` is set, features in the scope `user` must be computed from columns of this table.
    The same holds for the section `items` and the scope `item`. If the section `negatives` is set, features
    in the scope `item` must not read columns of the log. Features of users and items must not read the
    position of an impression, which belongs to a row.
    """
    scopes = config.scopes
    unknown = [name for name in (*scopes.user, *scopes.item, *scopes.context) if name not in features]
    if unknown:
        raise ConfigError(
            f"the section `scopes` lists {unknown}, which are not features",
            f"list only features; the features are {list(features)}",
        )
    sources = {name: chain.inputs for chain in chains for name in chain.outputs}
    history = config.history.column if config.history else ""
    for side, table, names in (("user", config.users, scopes.user), ("item", config.items, scopes.item)):
        known = set(table.names) if table else set()
        known |= {history} if side == "user" else set()
        elsewhere = [name for name in names if table and not set(sources[name]) <= known]
        if elsewhere:
            raise ConfigError(
                f"scopes.{side} lists {elsewhere}, which are computed from columns that are not in "
                f"{side}s.columns",
                f"compute these features from columns in {side}s.columns, or list them in another scope",
            )
    wrong = [name for name in (*scopes.item, *scopes.context) if history in sources[name]]
    if wrong:
        raise ConfigError(
            f"scopes.item and scopes.context list {wrong}, which are computed from the history of the user "
            f"({history})",
            "list these features in scopes.user",
        )
    _require_positions_in_context(config, sources)
    if config.negatives and config.keys:
        log_columns = set(config.log.names) - {config.keys.item}
        wrong = [name for name in scopes.item if set(sources[name]) & log_columns]
        if wrong:
            raise ConfigError(
                f"`negatives` puts another item into a row, but scopes.item lists {wrong}, which are "
                "computed from columns of the log: these columns describe the item of the log row, so they "
                "would be wrong for the drawn item",
                "declare these columns in items.columns, and deliver a table of items",
            )


def _require_positions_in_context(config: Config, sources: Mapping[str, tuple[str, ...]]) -> None:
    """Raises ConfigError if a feature of users or items is computed from the position of an impression.

    `sources` maps each feature to the raw columns from which it is computed.
    """
    column = config.serving.row_column
    wrong = [name for name in (*config.scopes.user, *config.scopes.item) if column in sources[name]]
    if wrong:
        raise ConfigError(
            f"scopes.user and scopes.item list {wrong}, which are computed from {column} "
            "(serving.impressions.row_column), the position of one impression",
            f"list these features in scopes.context, and set score.context.{column}, such as 1",
        )


def _require_free_names(chains: Chains) -> None:
    """Raises ConfigError if an output of a step has the name of a column that every feature table has."""
    outputs = {
        name for chain in chains for name in (*chain.outputs, *(n for s in chain.steps for n in s.outputs))
    }
    wrong = sorted(name for name in outputs if name in RESERVED or not fits_column(name))
    if wrong:
        raise ConfigError(
            f"features would add columns named {wrong}, which is not allowed: {list(RESERVED)} are columns "
            "of every feature table, and a name must not contain a dot or a backtick, or begin with an "
            "underscore",
            "give these columns other names with the operator `rename`, or write a new `name` in log.columns "
            "and the column's name in the raw log as `source`",
        )


def _require_unique(features: tuple[str, ...], chains: Chains) -> None:
    """Raises ConfigError if two features, or two vocabularies that are not shared, have the same name."""
    repeated = sorted({name for name in features if features.count(name) > 1})
    if repeated:
        raise ConfigError(
            f"two features have the same name: {repeated}",
            "give one of the two another name with the operator `rename`",
        )
    seen: dict[str, Categorify] = {}
    counted: set[str] = set()
    for step in (step for chain in chains for step in chain.steps):
        operator = step.operator
        if not isinstance(operator, Categorify):
            continue
        name = operator.vocabulary(step)
        if name in seen and (operator.share is None or seen[name].rule != operator.rule):
            raise ConfigError(
                f"two vocabularies would be named {name}",
                "put `rename` before `categorify` in one of the two groups, or let both groups share a "
                "vocabulary: write categorify with `share` and equal parameters in both",
            )
        if name in (VOCABULARY, RARE):
            raise ConfigError(
                f"a vocabulary cannot be named {name}: a table of every workflow has this name",
                "put `rename` before `categorify`, or set `share` to another name",
            )
        seen[name] = operator
        counted |= {name} if operator.counts or operator.values else set()
    if set(seen) - counted:
        raise ConfigError(
            f"no column is counted for the vocabularies {sorted(set(seen) - counted)}, because all their "
            "columns have counts=false",
            "remove counts=false from categorify of one column that shares this vocabulary",
        )


def _require_tables(chains: Chains) -> None:
    """Raises ConfigError if two different tables of statistics by key would have the same name.

    Two steps may share one table if the same operators compute it from the same columns.
    """
    seen: dict[str, Any] = {}
    for chain in chains:
        for position, step in enumerate(chain.steps):
            if step.operator.needs in ("groups", "external"):
                definition = (chain.inputs, chain.steps[: position + 1])
                if seen.setdefault(table_name(step), definition) != definition:
                    raise ConfigError(
                        f"two tables of {step.operator.name} would be named {table_name(step)}",
                        f"put `rename` before {step.operator.name} in one of the two groups, so that "
                        f"{list(step.inputs)} have other names there",
                    )


def _require_reads(chains: Chains, columns: Mapping[str, Type]) -> None:
    """Raises ConfigError if an operator computes statistics of a raw column that is not a number."""
    for operator in (step.operator for chain in chains for step in chain.steps):
        wrong = {name: columns.get(name) for name in operator.reads() if columns.get(name) not in NUMBERS}
        if wrong:
            raise ConfigError(
                f"{operator.name} needs columns of type {' or '.join(NUMBERS)}, not {wrong}",
                "use some of the columns "
                f"{sorted(name for name, kind in columns.items() if kind in NUMBERS)}",
            )
