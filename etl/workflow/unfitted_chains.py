"""Divides the operators of a feature group into chains of unfitted steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from conf.errors import ConfigError
from conf.feature_types import FeatureKind
from conf.types import FeatureGroup
from etl.operators.categorify import Categorify
from etl.ops import Operator, Step, Type, operator_from_config
from etl.ops.base import LISTS, NUMBERS


@dataclass(frozen=True)
class Chain:
    """Unfitted steps that compute features from raw columns. No step is in two chains.

    Attributes:
        inputs: raw columns that the chain reads. Steps refer to the values of a raw column by its name.
        types: the type of each input.
        kind: kind of the features: dense, categorical or multi_hot.
        outputs: names of the features, in the order of the steps. A fit may remove some features.
    """

    inputs: tuple[str, ...]
    types: tuple[Type, ...]
    kind: FeatureKind
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class BoundGroup:
    """A feature group of the configuration, whose operators are bound to columns.

    Attributes:
        steps: the steps, in the order in which they run.
        outputs: maps each feature to its type, in the order of the features.
        ids: maps each feature to true if its values are ids of an embedding table, otherwise to false.
    """

    steps: tuple[Step, ...]
    outputs: Mapping[str, Type]
    ids: Mapping[str, bool]


def bind_group(group: FeatureGroup, columns: Mapping[str, Type]) -> BoundGroup:
    """Binds the operators of a feature group to columns, one after the other.

    Args:
        columns: maps each raw column to its type.

    Raises:
        ConfigError: a column, operator or parameter is unknown, or an operator does not accept the outputs of
            the operator before it.
    """
    unknown = [name for name in group.columns if name not in columns]
    if unknown:
        raise ConfigError(
            f"features.columns lists {unknown}, which are not columns",
            f"use some of the columns {sorted(columns)}",
        )
    current = {name: columns[name] for name in group.columns}
    ids = dict.fromkeys(current, False)
    steps: list[Step] = []
    for operator in (operator_from_config(entry) for entry in group.ops):
        _require_values(group, operator, ids)
        bound = operator.bind(current)
        _require_outputs(operator, bound)
        steps += bound
        ids = {
            name: operator.makes_ids or (operator.keeps_ids and all(ids[source] for source in step.inputs))
            for step in bound
            for name in step.outputs
        }
        current = {name: kind for step in bound for name, kind in step.types.items()}
    return BoundGroup(tuple(steps), current, ids)


def chains_of(group: FeatureGroup, columns: Mapping[str, Type]) -> list[Chain]:
    """Returns the chains of a feature group. Columns are in the same chain only if a step combines them.

    Raises:
        ConfigError: see `bind_group`; or a feature does not have the kind that its group declares.
    """
    bound = bind_group(group, columns)
    _require_kind(group, bound)
    sources, step_sources = _sources(group, bound.steps)
    chains = []
    for part in _connected(group, step_sources):
        inputs = tuple(name for name in group.columns if name in part)
        steps = tuple(s for s, source in zip(bound.steps, step_sources, strict=True) if source <= part)
        outputs = tuple(name for name in bound.outputs if sources[name] <= part)
        if outputs:
            chains.append(Chain(inputs, tuple(columns[name] for name in inputs), group.kind, steps, outputs))
    return chains


def _sources(
    group: FeatureGroup, steps: Sequence[Step]
) -> tuple[dict[str, frozenset[str]], list[frozenset[str]]]:
    """Returns the raw columns of each value, and the raw columns of each step's inputs."""
    sources = {name: frozenset([name]) for name in group.columns}
    step_sources: list[frozenset[str]] = []
    for step in steps:
        source = frozenset().union(*(sources[name] for name in step.inputs))
        step_sources.append(source)
        sources |= dict.fromkeys(step.outputs, source)
    return sources, step_sources


def _connected(group: FeatureGroup, step_sources: Sequence[frozenset[str]]) -> list[frozenset[str]]:
    """Divides the group's columns into sets such that every step reads columns of only one set."""
    parts = [frozenset([name]) for name in group.columns]
    for source in step_sources:
        joined = frozenset().union(*(part for part in parts if part & source))
        parts = [part for part in parts if not part & source] + [joined]
    return sorted(parts, key=lambda part: min(group.columns.index(name) for name in part))


def _require_values(group: FeatureGroup, operator: Operator, ids: Mapping[str, bool]) -> None:
    """Raises ConfigError if ids of a vocabulary would become the values of another vocabulary.

    Ids depend on how often values occur in the training rows, so they have no meaning as values.
    """
    if any(ids.values()) and isinstance(operator, Categorify):
        entries = [entry for entry in group.ops if "categorify" in str(entry)]
        if len(entries) > 1:
            raise ConfigError(
                f"features {group.columns[:3]}: each of the operators {entries} encodes ids, "
                "but ids can be encoded only once",
                "keep only one of these operators for these features",
            )


def _require_outputs(operator: Operator, steps: Sequence[Step]) -> None:
    """Raises ConfigError if a step replaces a value that a later step reads, or outputs share a name."""
    for position, step in enumerate(steps):
        read_later = {name for later in steps[position + 1 :] for name in later.inputs}
        lost = sorted(read_later & set(step.outputs))
        if lost:
            raise ConfigError(
                f"{operator.name} would replace {lost} by values computed from {list(step.inputs)}, before "
                f"it reads the original values of {lost}",
                "put `rename` first, with new names that are not in the group's columns",
            )
    names = [name for step in steps for name in step.outputs]
    if len(set(names)) != len(names):
        raise ConfigError(
            f"{operator.name} adds columns with equal names: {names}",
            "give the columns different names, for example with `rename` before this operator",
        )


def _require_kind(group: FeatureGroup, bound: BoundGroup) -> None:
    """Raises ConfigError if a feature's type does not match the kind that its group declares."""
    label = f"features {group.columns[:3]}"
    if group.kind == "dense":
        wrong = [name for name, kind in bound.outputs.items() if kind not in NUMBERS or bound.ids[name]]
        if wrong:
            raise ConfigError(
                f"{label}: a dense feature must be a number, but {wrong} would be ids or texts",
                "set kind: categorical, or add an operator that returns numbers",
            )
        return
    allowed: Type
    if group.kind == "multi_hot":
        allowed = "ints"
    elif group.kind == "categorical":
        allowed = "int"
    else:
        assert_never(group.kind)
    wrong = [name for name, kind in bound.outputs.items() if kind != allowed or not bound.ids[name]]
    if wrong:
        lists = [name for name in wrong if bound.outputs[name] in LISTS]
        raise ConfigError(
            f"{label}: a {group.kind} feature must have ids, but the values of {wrong} would not be ids",
            "set kind: multi_hot for lists of ids, or add list_slice: {length: 3, columns: true}"
            if lists and group.kind == "categorical"
            else "add an operator that returns ids, such as ops: [{categorify: {min_count: 5}}]",
        )


# Uniform descriptions of feature groups and chains, for digests and for comparisons of configurations.

# Parameters that may change in an extension, because they affect only the age of values, or values without an
# id.
_MAY_CHANGE = ("min_count", "max_size", "max_age_days")


def canonical_groups(groups: Sequence[FeatureGroup]) -> list[FeatureGroup]:
    """Returns feature groups with operators in a uniform notation and without default parameters."""
    return [
        group.model_copy(update={"ops": [operator_from_config(entry).config() for entry in group.ops]})
        for group in groups
    ]


def chain_description(chain: Chain) -> str:
    """Returns a text with all properties of a chain that must not change when its workflow is extended."""
    steps = [f"{_parameters(step.operator)} {'/'.join(step.outputs)}" for step in chain.steps]
    return f"{','.join(chain.inputs)} → {', '.join(steps)}"


def _parameters(operator: Operator) -> str:
    """Returns the operator's name and the parameters that must not change when a workflow is extended."""
    entry = operator.config()
    parameters = dict((entry.get(operator.name) or {}) if isinstance(entry, dict) else {})
    fixed = {name: value for name, value in sorted(parameters.items()) if name not in _MAY_CHANGE}
    return f"{operator.name}({', '.join(f'{name}={value}' for name, value in fixed.items())})"
