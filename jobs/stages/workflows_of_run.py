"""Finds the workflows that a run of build_features applies or extends. check_quality needs the same ones."""

from __future__ import annotations

import logging

from storage.run_context import RunContext
from training.registry.model_json import read_description
from training.registry.served_experiments import served_experiment
from training.registry.versions import champion_as_of, model_path
from training.registry.warm_or_fresh import fresh_start

log = logging.getLogger("nightrank.build_features")


def workflows_of_run(context: RunContext) -> tuple[str | None, str | None]:
    """Returns the workflow version of the champion before the run date, and that of a served experiment.

    The first is None if there is no champion, and if a retraining must fit a new workflow. The second is None
    if no experiment is served.
    """
    config, lake, run_date = context.config, context.lake, context.run_date
    champion = champion_as_of(lake, config.name, run_date, before=True)
    parent = None
    reason = fresh_start(config, lake, run_date) if config.workflow.mode == "retrain" else None
    if champion and reason:
        log.info("fitting a new workflow instead of extending that of champion %s: %s", champion, reason)
    elif champion:
        parent = read_description(model_path(lake, config.name, champion))["workflow_version"]
    experiment = served_experiment(config, lake, run_date)
    treatment = experiment.folder if experiment else None
    return parent, read_description(treatment)["workflow_version"] if treatment else None
