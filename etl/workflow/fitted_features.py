"""The features of fitted chains, as a FeatureSpec lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from conf.errors import ConfigError
from conf.feature_types import FeatureKind
from conf.types import Scope
from etl.workflow.fitted_chains import FittedChain
from etl.workflow.unfitted_chains import Chain
from storage.feature_spec import Feature


def fitted_features(
    chains: Sequence[Chain], names: Sequence[str], fitted: Sequence[FittedChain], scopes: Mapping[str, Scope]
) -> tuple[Feature, ...]:
    """Returns the features that are left after a fit, in the order of `names`.

    Args:
        chains: the chains before the fit.
        names: the features before the fit, in order.
        fitted: the same chains after the fit, which may have removed features.
        scopes: maps features to their scopes. Other features depend on the pair of user and item.

    Raises:
        ConfigError: the fit has removed all features.
    """
    kinds = {name: chain.kind for chain in chains for name in chain.outputs}
    cardinalities = {name: size for chain in fitted for name, size in chain.cardinalities.items()}
    outputs = {name for chain in fitted for name in chain.outputs}
    features = tuple(
        _feature(name, kinds[name], scopes.get(name, "pair"), cardinalities.get(name))
        for name in names
        if name in outputs
    )
    if not features:
        raise ConfigError(
            "drop_low_cardinality removed every feature",
            "lower the parameter min_cardinality of drop_low_cardinality",
        )
    return features


def _feature(name: str, kind: FeatureKind, scope: Scope, cardinality: int | None) -> Feature:
    if kind == "dense":
        return Feature(name, "dense", "float32", scope)
    if kind == "multi_hot":
        return Feature(name, "multi_hot", "list<int32>", scope, cardinality)
    if kind == "categorical":
        return Feature(name, "categorical", "int32", scope, cardinality)
    assert_never(kind)
