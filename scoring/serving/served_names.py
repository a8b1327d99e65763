"""Checks whether the columns and features of a model can be served."""

from __future__ import annotations

from collections.abc import Mapping

from conf.errors import ConfigError
from etl.workflow.local_workflow import LocalWorkflow
from scoring.serving.served_inputs import PROBABILITY
from storage.feature_spec import ITEM_KEY, USER_KEY, FeatureSpec


def context_columns(spec: FeatureSpec, workflow: LocalWorkflow) -> dict[str, str]:
    """Returns the raw columns of context features, with their types.

    Raises:
        ConfigError: a feature depends on user and item together, or no feature on the user or on the item.
    """
    pairs = [feature.name for feature in spec.scoped("pair")]
    if pairs:
        raise ConfigError(
            f"features of pairs of user and item cannot be looked up: {pairs} are in none of scopes.user, "
            "scopes.item and scopes.context",
            "add their columns to one of these scopes or remove the features, and train again; or export the "
            "model without the look-up",
        )
    without = [scope for scope in ("user", "item") if not spec.scoped(scope)]
    if without:
        raise ConfigError(
            f"the model has no features of the scopes {without} to look up",
            "name the columns of users and items in scopes.user and scopes.item, and train again; or export "
            "the model without the look-up",
        )
    names = [feature.name for feature in spec.scoped("context")]
    return {**workflow.raw_types(names)} if names else {}


def require_names(raw_columns: Mapping[str, str], context: Mapping[str, str] | None) -> None:
    """Raises ConfigError if a column has the name of the output, or of a key of the look-up."""
    taken = [name for name in raw_columns if name == PROBABILITY]
    taken += [name for name in context or () if name in (USER_KEY, ITEM_KEY)]
    if taken:
        raise ConfigError(
            f"the raw columns {taken} have names of other inputs or outputs of an ensemble",
            "rename the columns in the configuration, and train again",
        )
