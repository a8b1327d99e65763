"""Chains of steps that make the features of one group of the configuration, before they are fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from conf.errors import ConfigError
from conf.types import FeatureGroup
from etl.ops import Operator, Step, Type, operator_from_config
from etl.ops.base import LISTS, NUMBERS
from etl.ops.categorify import Categorify


@dataclass(frozen=True)
class Chain:
    """Unfitted steps that make features of raw columns. Chains share no step.

    Attributes:
        inputs: raw columns that it reads; their values reach the steps under these names.
        types: of the inputs.
        outputs: features, in order; a step may still leave some out when it is fitted.
    """

    inputs: tuple[str, ...]
    types: tuple[Type, ...]
    kind: str
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class BoundGroup:
    """The operators of a group, bound to its columns.

    Attributes:
        steps: in order.
        outputs: feature → type, in order.
        ids: feature → whether it holds ids of an embedding table.
    """

    steps: tuple[Step, ...]
    outputs: Mapping[str, Type]
    ids: Mapping[str, bool]


def bind_group(group: FeatureGroup, columns: Mapping[str, Type]) -> BoundGroup:
    """The steps and outputs of a group.

    Args:
        columns: raw column → type.

    Raises:
        ConfigError: an unknown column, operator or parameter, or operators that do not fit together.
    """
    unknown = [name for name in group.columns if name not in columns]
    if unknown:
        raise ConfigError(
            f"features.columns names {unknown}, which are no columns", f"use some of {sorted(columns)}"
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
    """The chains of a group: columns that no step combines are in chains of their own.

    Raises:
        ConfigError: as bind_group, or a feature is not of the group's kind.
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
    """(value → the raw columns that it depends on, the same of each step)."""
    sources = {name: frozenset([name]) for name in group.columns}
    step_sources: list[frozenset[str]] = []
    for step in steps:
        source = frozenset().union(*(sources[name] for name in step.inputs))
        step_sources.append(source)
        sources |= dict.fromkeys(step.outputs, source)
    return sources, step_sources


def _connected(group: FeatureGroup, step_sources: Sequence[frozenset[str]]) -> list[frozenset[str]]:
    """The group's columns in parts, so that every step reads columns of one part only."""
    parts = [frozenset([name]) for name in group.columns]
    for source in step_sources:
        joined = frozenset().union(*(part for part in parts if part & source))
        parts = [part for part in parts if not part & source] + [joined]
    return sorted(parts, key=lambda part: min(group.columns.index(name) for name in part))


def _require_values(group: FeatureGroup, operator: Operator, ids: Mapping[str, bool]) -> None:
    """Raises ConfigError where ids of a vocabulary would be the values of another one.

    Such ids depend on the order of the first vocabulary.
    """
    if any(ids.values()) and isinstance(operator, Categorify):
        entries = [entry for entry in group.ops if "categorify" in str(entry)]
        if len(entries) > 1:
            raise ConfigError(
                f"features {group.columns[:3]}: {entries} encodes ids again", "keep one categorify"
            )


def _require_outputs(operator: Operator, steps: Sequence[Step]) -> None:
    """Raises ConfigError where a step replaces a value that a later one reads, or a name is used twice."""
    for position, step in enumerate(steps):
        read_later = {name for later in steps[position + 1 :] for name in later.inputs}
        lost = sorted(read_later & set(step.outputs))
        if lost:
            raise ConfigError(
                f"{operator.name} makes {list(step.outputs)} of {list(step.inputs)} before {lost} is read",
                "rename first to names that are not in the group's columns",
            )
    names = [name for step in steps for name in step.outputs]
    if len(set(names)) != len(names):
        raise ConfigError(f"{operator.name} makes columns of one name: {names}", "rename some before it")


def _require_kind(group: FeatureGroup, bound: BoundGroup) -> None:
    """Raises ConfigError where a feature is not what its group says: a number, an id, or a list of ids."""
    label = f"features {group.columns[:3]}"
    if group.kind == "dense":
        wrong = [name for name, kind in bound.outputs.items() if kind not in NUMBERS or bound.ids[name]]
        if wrong:
            raise ConfigError(
                f"{label}: {wrong} would be ids or texts, and no dense feature",
                "set kind: categorical, or end the chain in numbers",
            )
        return
    allowed = ("ints",) if group.kind == "multi_hot" else ("int",)
    wrong = [name for name, kind in bound.outputs.items() if kind not in allowed or not bound.ids[name]]
    if wrong:
        lists = [name for name in wrong if bound.outputs[name] in LISTS]
        raise ConfigError(
            f"{label}: a {group.kind} chain ends in ids, and {wrong} would be none",
            "lists of ids are of kind multi_hot, or end in list_slice: {length: 3, columns: true}"
            if lists and group.kind == "categorical"
            else "write ops: [{categorify: {min_count: 5}}] or another operator that makes ids",
        )
