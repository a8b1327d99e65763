"""Finds the features in which unknown values have the id OOV_ID."""

from __future__ import annotations

from etl.operators.categorify import Categorify
from etl.workflow.feature_plan import Plan
from etl.workflow.unfitted_chains import Chain


def features_with_oov_id(feature_plan: Plan) -> list[str]:
    """Returns the features, in order, whose values get OOV_ID if they are not in the vocabulary.

    Their ids come from `categorify`. With `oov_buckets` above 1, unknown values have several ids, so such a
    feature is not returned.
    """
    chosen = {name for chain in feature_plan.chains if _has_oov_id(chain) for name in chain.outputs}
    return [name for name in feature_plan.features if name in chosen]


def id_feature_of(feature_plan: Plan, column: str) -> str | None:
    """Returns the feature that contains the id of each value of a raw column, such as the user.

    The feature must be computed from this column alone, and have OOV_ID for unknown values. Returns None if
    there is no such feature.
    """
    for chain in feature_plan.chains:
        if chain.inputs == (column,) and chain.kind == "categorical" and _has_oov_id(chain):
            return chain.outputs[0]
    return None


def _has_oov_id(chain: Chain) -> bool:
    makers = [step.operator for step in chain.steps if step.operator.makes_ids]
    return bool(makers) and all(
        isinstance(operator, Categorify) and operator.oov_buckets == 1 for operator in makers
    )
