"""The version of a workflow, a digest of everything that a fit depends on; and what may be extended."""

from __future__ import annotations

from collections.abc import Sequence

from conf.errors import ConfigError
from conf.load import config_digest
from etl.operators.join_external import JoinExternal
from etl.ops import operator_digests
from etl.raw.files import RawFiles, require_raw
from etl.raw.impression_log import rows_digest
from etl.workflow.chain_descriptions import canonical_groups
from etl.workflow.feature_plan import Plan
from etl.workflow.fitted_workflow import FittedWorkflow
from storage.feature_spec import FeatureSpec
from storage.manifest import digest_of

# Part of every version's digest. Raise it when the meaning of an operator changes.
FORMAT = 2


def workflow_version(plan: Plan, parent: FittedWorkflow | None, days: Sequence[RawFiles]) -> str:
    """Returns the digest of everything that the fitted workflow depends on."""
    # The settings of the split select training rows only if the log is split inside one partition.
    sections = ["features", "prepare", "scopes", "keys", "negatives"]
    sections += ["split"] if plan.is_divided else []
    external = {
        table.path: require_raw(
            plan.config, table, days[-1].dt, "join_external.path", days[-1].recorder
        ).digest
        for chain in plan.chains
        for step in chain.steps
        if isinstance(step.operator, JoinExternal) and not parent
        for table in [step.operator.source(step)[0]]
    }
    extensions = operator_digests(step.operator.name for chain in plan.chains for step in chain.steps)
    canonical = plan.config.model_copy(update={"features": canonical_groups(plan.config.features)})
    return digest_of(
        {
            "format": FORMAT,
            "config": config_digest(canonical, *sections),
            "layout": plan.layout,
            "parent": parent.version if parent else "",
            "days": {day.dt: rows_digest(plan.config, day) for day in days},
            "external": external,
            **plan.methods,
            **({"extensions": extensions} if extensions else {}),
        }
    )


def require_weights(plan: Plan, version: str, spec: FeatureSpec) -> None:
    """Raises ConfigError if the rows of a workflow have weights, and the configuration has none."""
    if spec.weight is not None and plan.config.log.label.weights is None:
        raise ConfigError(
            f"the rows of workflow {version} have weights, but the configuration has no log.label.weights",
            "restore log.label.weights, or set workflow.mode=fit to fit a new workflow (the next model then "
            "trains from scratch)",
        )


def require_parent_weights(plan: Plan, parent: FittedWorkflow) -> None:
    """Raises ConfigError if only one of the parent and of the configuration has weights."""
    require_weights(plan, parent.version, parent.spec)
    if parent.spec.weight is None and plan.config.log.label.weights is not None:
        raise ConfigError(
            f"the rows of workflow {parent.version} have no weights, but log.label.weights is set, so the "
            "workflow cannot be extended",
            "remove log.label.weights, or set workflow.mode=fit to fit a new workflow (the next model then "
            "trains from scratch)",
        )


def require_same_chains(descriptions: Sequence[str], parent: FittedWorkflow) -> None:
    """Raises ConfigError if the chains differ from the parent's chains."""
    changed = [chain for chain in descriptions if chain not in parent.descriptions]
    changed += [chain for chain in parent.descriptions if chain not in descriptions]
    if changed:
        raise ConfigError(
            f"workflow {parent.version} has other features than the configuration, so it cannot be extended: "
            f"{changed[:3]}",
            "restore the features of this workflow in the configuration, or set workflow.mode=fit to fit a "
            "new workflow (the next model then trains from scratch)",
        )
