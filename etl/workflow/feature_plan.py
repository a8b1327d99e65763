"""What a configuration asks of its raw columns, checked before anything runs: row operators and chains of features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conf.errors import ConfigError
from conf.names import column_name
from conf.raw_types import fits_column
from conf.types import RESERVED, Config, FeatureGroup
from etl.ops import (
    FrameOperator,
    Operator,
    RowChanger,
    RowFilter,
    Step,
    Type,
    frame_operator_from_config,
    operator_from_config,
)
from etl.ops.base import LISTS, NUMBERS
from etl.ops.categorify import Categorify
from etl.ops.keyed import table_name
from etl.ops.tables import RARE, VOCABULARY
from storage.feature_spec import LABEL


@dataclass(frozen=True)
class Chain:
    """The steps that make some features of some raw columns, unfitted. No other chain shares its steps.

    Attributes:
        inputs: raw columns it reads; their values reach the steps under these names.
        types: of the inputs.
        outputs: features, in order; a step may still leave some out when it is fitted.
    """

    inputs: tuple[str, ...]
    types: tuple[Type, ...]
    kind: str
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """All a configuration does to raw rows.

    Attributes:
        filters: leave rows out, before anything else.
        changers: add columns or change the grain, in order.
        columns: raw columns after them → type.
        features: names in order, which is the order of the FeatureSpec; some may be left out by a fit.
    """

    filters: tuple[RowFilter, ...]
    changers: tuple[RowChanger, ...]
    columns: Mapping[str, Type]
    chains: tuple[Chain, ...]
    features: tuple[str, ...]

    @property
    def keeps_rows(self) -> bool:
        """Whether there is one prepared row for each row that passes the filters."""
        return not any(each.name == "groupby" for each in self.changers)


def plan(config: Config) -> Plan:
    """The plan of a configuration.

    Raises:
        ConfigError: an unknown operator or parameter, a column of a wrong type, a chain that does not end in its kind of
            feature, a feature or vocabulary named twice, a scope of an unknown feature.
    """
    columns: dict[str, Type] = {}
    for table in (config.log, config.users, config.items):
        columns |= {column.name: column.type for column in table.columns} if table else {}
    operators = [frame_operator_from_config(entry) for entry in config.prepare]
    filters = tuple(each for each in operators if isinstance(each, RowFilter))
    changers = tuple(each for each in operators if isinstance(each, RowChanger))
    of_log = {column.name: column.type for column in config.log.columns}
    for each in filters:
        each.bind(of_log)
    for changer in changers:
        columns = dict(changer.bind(columns))
    _require_keys(config, changers, columns)
    chains = tuple(chain for group in config.features for chain in _chains(group, columns))
    features = tuple(name for group in config.features for name in _outputs(group, columns))
    _require_names(columns, chains)
    _require_unique(features, chains)
    _require_tables(chains)
    _require_reads(chains, columns)
    _require_no_label(config, chains)
    _require_free_names(chains)
    _require_scopes(config, features, chains)
    return Plan(filters, changers, columns, chains, features)


def _require_names(columns: Mapping[str, Type], chains: tuple[Chain, ...]) -> None:
    """Names that operators make become columns and parts of file names too."""
    made = [name for chain in chains for step in chain.steps for name in step.outputs]
    for name in (*columns, *made):
        try:
            column_name(name)
        except ValueError as error:
            raise ConfigError(
                f"an operator makes a column {name!r}: {error}", "give it another name"
            ) from error


def _require_keys(config: Config, changers: tuple[FrameOperator, ...], columns: Mapping[str, Type]) -> None:
    keys = config.keys.columns if config.keys else []
    lost = [name for name in keys if name not in columns]
    if lost and changers:
        raise ConfigError(f"prepare loses the keys {lost}", "add them to `by` of groupby")


def _require_no_label(config: Config, chains: tuple[Chain, ...]) -> None:
    """No feature is made of the answer, nor of a raw column that the label's own column replaces by name."""
    for chain in chains:
        told = [name for name in chain.inputs if name in (LABEL, config.log.label.column)]
        if told:
            raise ConfigError(
                f"features are made of {told}, which is the label a model is to predict",
                "leave it out of features; a raw column that only has that name takes another in log.columns (source)",
            )


def _require_scopes(config: Config, features: tuple[str, ...], chains: tuple[Chain, ...]) -> None:
    """Scopes name features; those of a side with a table of attributes are made of its columns alone."""
    scopes = config.scopes
    unknown = [name for name in (*scopes.user, *scopes.item, *scopes.context) if name not in features]
    if unknown:
        raise ConfigError(
            f"scopes names {unknown}, which are no features", f"the features are {list(features)}"
        )
    sources = {name: chain.inputs for chain in chains for name in chain.outputs}
    for side, table, named in (("user", config.users, scopes.user), ("item", config.items, scopes.item)):
        elsewhere = [name for name in named if table and not set(sources[name]) <= set(table.names)]
        if elsewhere:
            raise ConfigError(
                f"scopes.{side} names {elsewhere}, which {side}s.columns does not hold",
                f"make them of columns of {side}s, or give them another scope",
            )
    if config.negatives and config.keys:
        of_log = set(config.log.names) - {config.keys.item}
        told = [name for name in scopes.item if set(sources[name]) & of_log]
        if told:
            raise ConfigError(
                f"negatives draws other items, and scopes.item names {told} of the log, which tell of the item in the row",
                "read them from a table of items",
            )


def _bound(
    group: FeatureGroup, columns: Mapping[str, Type]
) -> tuple[list[Step], dict[str, Type], dict[str, bool]]:
    """The group's steps in order, its outputs with their types, and which of them are ids."""
    unknown = [name for name in group.columns if name not in columns]
    if unknown:
        raise ConfigError(
            f"features.columns names {unknown}, which are no columns", f"use some of {sorted(columns)}"
        )
    current = {name: columns[name] for name in group.columns}
    ids = dict.fromkeys(current, False)
    steps: list[Step] = []
    for operator in (operator_from_config(entry) for entry in group.ops):
        _require_sequence(group, operator, ids)
        bound = operator.bind(current)
        steps += bound
        ids = {
            name: operator.makes_ids or (operator.keeps_ids and all(ids[each] for each in step.inputs))
            for step in bound
            for name in step.outputs
        }
        for place, step in enumerate(bound):
            lost = sorted({name for later in bound[place + 1 :] for name in later.inputs} & set(step.outputs))
            if lost:
                raise ConfigError(
                    f"{operator.name} makes {list(step.outputs)} of {list(step.inputs)} before {lost} is read",
                    "go through names that are not in the group's columns",
                )
        names = [name for step in bound for name in step.outputs]
        if len(set(names)) != len(names):
            raise ConfigError(f"{operator.name} makes columns of one name: {names}", "rename some before it")
        current = {name: kind for step in bound for name, kind in step.types.items()}
    return steps, current, ids


def _require_sequence(group: FeatureGroup, operator: Operator, ids: Mapping[str, bool]) -> None:
    again = [name for name, made in ids.items() if made]
    if again and isinstance(operator, Categorify):
        # Ids of one vocabulary are no values for another, which would depend on the first one's order.
        makers = [entry for entry in group.ops if "categorify" in str(entry)]
        if len(makers) > 1:
            raise ConfigError(
                f"features {group.columns[:3]}: {makers} encodes ids again", "keep one categorify"
            )


def _outputs(group: FeatureGroup, columns: Mapping[str, Type]) -> list[str]:
    return list(_bound(group, columns)[1])


def _chains(group: FeatureGroup, columns: Mapping[str, Type]) -> list[Chain]:
    steps, outputs, ids = _bound(group, columns)
    _require_kind(group, outputs, ids)
    sources = {name: frozenset([name]) for name in group.columns}
    parts: list[frozenset[str]] = [frozenset([name]) for name in group.columns]
    of_step: list[frozenset[str]] = []
    for step in steps:
        source = frozenset().union(*(sources[name] for name in step.inputs))
        of_step.append(source)
        sources |= dict.fromkeys(step.outputs, source)
        joined = frozenset().union(*(part for part in parts if part & source))
        parts = [part for part in parts if not part & source] + [joined]
    parts.sort(key=lambda part: min(group.columns.index(name) for name in part))
    chains = []
    for part in parts:
        inputs = tuple(name for name in group.columns if name in part)
        mine = tuple(step for step, source in zip(steps, of_step, strict=True) if source <= part)
        made = tuple(name for name in outputs if sources[name] <= part)
        if made:
            chains.append(Chain(inputs, tuple(columns[name] for name in inputs), group.kind, mine, made))
    return chains


def _require_kind(group: FeatureGroup, outputs: Mapping[str, Type], ids: Mapping[str, bool]) -> None:
    """Each feature must be what its group says: a number, an id, or a list of ids."""
    named = f"features {group.columns[:3]}"
    if group.kind == "dense":
        wrong = [name for name, kind in outputs.items() if kind not in NUMBERS or ids[name]]
        if wrong:
            raise ConfigError(
                f"{named}: {wrong} would be ids or texts, and no dense feature",
                "set kind: categorical, or end the chain in numbers",
            )
        return
    wanted = ("ints",) if group.kind == "multi_hot" else ("int",)
    wrong = [name for name, kind in outputs.items() if kind not in wanted or not ids[name]]
    if wrong:
        lists = [name for name in wrong if outputs[name] in LISTS]
        raise ConfigError(
            f"{named}: a {group.kind} chain ends in ids, and {wrong} would be none",
            "lists of ids are of kind multi_hot, or end in list_slice: {length: 3, columns: true}"
            if lists and group.kind == "categorical"
            else "write ops: [{categorify: {min_count: 5}}] or another operator that makes ids",
        )


def _require_free_names(chains: tuple[Chain, ...]) -> None:
    """What operators make is not named like a column that is ours."""
    made = {
        name for chain in chains for name in (*chain.outputs, *(n for s in chain.steps for n in s.outputs))
    }
    wrong = sorted(name for name in made if name in RESERVED or not fits_column(name))
    if wrong:
        raise ConfigError(
            f"features makes columns named {wrong}: {list(RESERVED)} are columns that feature tables have of their own, and a "
            "name holds no dot and no backtick and begins with no underscore",
            "give them another name with rename, or in log.columns (source)",
        )


def _require_unique(features: tuple[str, ...], chains: tuple[Chain, ...]) -> None:
    repeated = sorted({name for name in features if features.count(name) > 1})
    if repeated:
        raise ConfigError(f"features are made twice: {repeated}", "give one of each another name with rename")
    seen: dict[str, Categorify] = {}
    for step in counted_steps(chains):
        operator = step.operator
        assert isinstance(operator, Categorify)
        name = operator.vocabulary(step)
        if name in seen and (operator.share is None or seen[name] != operator):
            raise ConfigError(
                f"two vocabularies would be named {name}",
                "put rename before one categorify, or `share` one vocabulary with equal parameters",
            )
        if name in (VOCABULARY, RARE):
            raise ConfigError(
                f"a vocabulary cannot be named {name}: a table is", "put rename before categorify"
            )
        seen[name] = operator


def _require_tables(chains: tuple[Chain, ...]) -> None:
    """Two keyed tables of one name hold the same: they are made of the same columns by the same operators."""
    seen: dict[str, Any] = {}
    for chain in chains:
        for place, step in enumerate(chain.steps):
            if step.operator.needs in ("groups", "external"):
                made_by = (chain.inputs, chain.steps[: place + 1])
                if seen.setdefault(table_name(step), made_by) != made_by:
                    raise ConfigError(
                        f"two tables of {step.operator.name} would be named {table_name(step)}",
                        f"put rename before one of them, so that {list(step.inputs)} differ",
                    )


def _require_reads(chains: tuple[Chain, ...], columns: Mapping[str, Type]) -> None:
    for operator in (step.operator for chain in chains for step in chain.steps):
        wrong = {name: columns.get(name) for name in operator.reads() if columns.get(name) not in NUMBERS}
        if wrong:
            raise ConfigError(
                f"{operator.name} measures columns of type {' or '.join(NUMBERS)}, not {wrong}",
                f"use some of {sorted(name for name, kind in columns.items() if kind in NUMBERS)}",
            )


def counted_steps(chains: tuple[Chain, ...]) -> list[Step]:
    """The steps that have a vocabulary."""
    return [step for chain in chains for step in chain.steps if isinstance(step.operator, Categorify)]
