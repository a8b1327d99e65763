"""Uniform descriptions of feature groups and chains, for digests and for comparisons of configurations."""

from __future__ import annotations

from collections.abc import Sequence

from conf.types import FeatureGroup
from etl.ops import Operator, operator_from_config
from etl.workflow.unfitted_chains import Chain

# Parameters that may change in an extension: they affect only values without an id, or the age of a value.
_MAY_CHANGE = ("min_count", "max_size", "max_age_days")


def canonical_groups(groups: Sequence[FeatureGroup]) -> list[FeatureGroup]:
    """Returns feature groups with operators in a uniform notation and without default parameters."""
    return [
        group.model_copy(update={"ops": [operator_from_config(entry).config() for entry in group.ops]})
        for group in groups
    ]


def chain_description(chain: Chain) -> str:
    """Returns a text with everything about a chain that must not change when its workflow is extended."""
    steps = [f"{_parameters(step.operator)} {'/'.join(step.outputs)}" for step in chain.steps]
    return f"{','.join(chain.inputs)} → {', '.join(steps)}"


def _parameters(operator: Operator) -> str:
    """Returns the operator's name and the parameters that must not change when a workflow is extended."""
    entry = operator.config()
    parameters = dict((entry.get(operator.name) or {}) if isinstance(entry, dict) else {})
    fixed = {name: value for name, value in sorted(parameters.items()) if name not in _MAY_CHANGE}
    return f"{operator.name}({', '.join(f'{name}={value}' for name, value in fixed.items())})"
