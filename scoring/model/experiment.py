"""Reads the experiment of a run date, and assigns users to its control or treatment.

A salted hash assigns the users: XXH64 of the salt and the key. Spark and this process compute the same hash,
so both assign a user to the same variant. A user is in the treatment if the hash, scaled to a number from 0
to 1, is smaller than the share.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from conf.errors import ConfigError
from conf.stage_types import ServingExperiment
from scoring.model.model_info import ModelInfo, read_model_info
from scoring.requests import CONTROL, TREATMENT, VARIANT, require_listable
from spark.rows import Rows, query, quoted, with_hash
from storage.manifest import Manifest, is_published, read_manifest
from storage.run_context import RunContext
from training.registry.served_experiments import ServedExperiment, served_experiment

log = logging.getLogger("nightrank.scoring")

_SALTED, _HASH = "salted", "hashed"


@dataclass(frozen=True)
class Treatment:
    """The treatment's model, and the feature tables of its workflow.

    Attributes:
        model: the model.
        users, items: the manifests of the run date's tables `users` and `items` of the treatment's workflow.
    """

    model: ModelInfo
    users: Manifest
    items: Manifest


def read_treatment(
    context: RunContext, control: ModelInfo
) -> tuple[ServedExperiment | None, Treatment | None]:
    """Returns the experiment of the run date, and its treatment.

    The experiment is None if the configuration has none for the run date. The treatment is None if the
    control serves all users; a warning then gives the reason.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        control: the model of the control.

    Raises:
        ConfigError: the treatment's model does not exist or cannot make lists, or build_features did not
            compute the features of its workflow for the run date.
    """
    lake = context.lake
    experiment = served_experiment(context.config, lake, context.run_date)
    if experiment is None or experiment.folder is None:
        if experiment is not None:
            log.warning(
                "experiment %s: the control serves all users, because %s",
                experiment.settings.name,
                experiment.idle_because,
            )
        return experiment, None
    model = read_model_info(experiment.folder, lake.recorder)
    require_listable(model.spec)
    version = model.spec.workflow_version
    partitions = [table.partition(context.run_date) for table in (lake.users(version), lake.items(version))]
    missing = [partition.path for partition in partitions if not is_published(partition)]
    if missing:
        raise ConfigError(
            f"serving.experiment: model {model.version} needs features of workflow {version}, but {missing} "
            "do not exist",
            f"run build_features for {context.run_date} again with this section `serving`, then the jobs "
            "after it; or choose a model of the champion's workflow",
        )
    if control.refit_of and not model.refit_of:
        log.warning(
            "experiment %s: the control is a refit, which was also trained on validation and test days, "
            "but the treatment was not. So the difference contains the effect of these days",
            experiment.settings.name,
        )
    return experiment, Treatment(model, *(read_manifest(partition) for partition in partitions))


def hash_limit(share: float) -> int:
    """Returns the limit of the hashes for a share: users with smaller hashes (int64) get the treatment."""
    return min(max(round(share * 2**64), 1), 2**64 - 1) - 2**63


def with_variants(
    rows: Rows, key: str, experiment: ServingExperiment | None, columns: Sequence[str] = ()
) -> Rows:
    """Returns chosen columns of the rows, and the column `variant`: `control` or `treatment`.

    Args:
        rows: rows of users, with the column `key`.
        key: the column with the key of the user, a string.
        experiment: the salt and the share. With None, all users are in the control.
        columns: the columns to return besides `variant`. If there are none, the column `key` is returned.
    """
    kept = ", ".join(quoted(name) for name in columns or (key,))
    if experiment is None:
        return query(f"SELECT {kept}, '{CONTROL}' AS {VARIANT} FROM {{rows}}", rows=rows)
    salted = query(
        f"SELECT {kept}, concat('{experiment.salted_prefix}', {quoted(key)}) AS {_SALTED} FROM {{rows}}",
        rows=rows,
    )
    return query(
        f"""
        SELECT {kept}, CASE WHEN {_HASH} < {hash_limit(experiment.share)} THEN '{TREATMENT}'
            ELSE '{CONTROL}' END AS {VARIANT}
        FROM {{hashed}}
        """,
        hashed=with_hash(salted, _SALTED, _HASH),
    )
