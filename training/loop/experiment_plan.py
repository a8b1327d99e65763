"""The plan of one training of a comparison."""

from __future__ import annotations

from conf.types import Config
from storage.dataset import Dataset
from storage.paths import Lake
from training.loop.training_plan import TrainPlan, make_plan
from training.registry.experiments import experiments_config


def make_experiment_plan(config: Config, lake: Lake, dataset: Dataset) -> TrainPlan:
    """Creates the plan of one training of a comparison.

    The model's name in the registry is the one of experiments, which have no champion. So the training starts
    from random weights, and the gate never considers its model. If `train.evaluate_every_steps` is 0, the
    model is evaluated at the end of each epoch. Evaluations do not change the weights.

    Raises:
        ConfigError, DataError: see `make_plan`.
    """
    config = experiments_config(config)
    plan = make_plan(config, lake, dataset)
    if config.train.evaluate_every_steps:
        return plan
    train = config.train.model_copy(update={"evaluate_every_steps": plan.steps_per_epoch})
    return make_plan(config.model_copy(update={"train": train}), lake, dataset)
