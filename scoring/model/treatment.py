"""Finds the model of an experiment's treatment, and checks whether it can make lists on the run date."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from conf.errors import ConfigError
from scoring.inputs.requests import require_listable
from scoring.model.model_info import ModelInfo, read_model_info
from storage.manifest import Manifest, is_published, read_manifest
from storage.run_context import RunContext
from training.registry.served_experiments import ServedExperiment, served_experiment

log = logging.getLogger("nightrank.scoring")


@dataclass(frozen=True)
class Treatment:
    """The model of the treatment, and the features of its workflow.

    Attributes:
        model: the model.
        users, items: the manifests of the tables `users` and `items` of the run date and of its workflow.
    """

    model: ModelInfo
    users: Manifest
    items: Manifest


def read_treatment(
    context: RunContext, control: ModelInfo
) -> tuple[ServedExperiment | None, Treatment | None]:
    """Returns the experiment of the run date, and its treatment.

    The experiment is None if the configuration has none for the run date. The treatment is None if the
    control serves all users; a warning then says why.

    Args:
        context: the context of the run.
        control: the model of the control.

    Raises:
        ConfigError: the model does not exist or cannot make lists, or build_features did not compute the
            features of its workflow for the run date.
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
            "experiment %s: the control is a refit, which was also trained on validation and test days, but "
            "the treatment is not: the difference contains the effect of these days",
            experiment.settings.name,
        )
    return experiment, Treatment(model, *(read_manifest(partition) for partition in partitions))
