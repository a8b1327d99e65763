"""Checks the experiments of a comparison before any of them is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conf.errors import ConfigError, DataError
from conf.experiments import Experiment
from jobs.checks.config_checks import check_config, check_training
from training.loop.training_plan import TrainPlan


def check_experiments(path: str, experiments: Sequence[Experiment]) -> None:
    """Checks that each experiment can be trained on the features of its configuration.

    Args:
        path: the experiments file, for error messages.
        experiments: the experiments.

    Raises:
        ConfigError: an architecture or one of its settings is not valid; the error names the experiment.
    """
    for experiment in experiments:
        config = next(iter(experiment.configs.values()))  # seeds do not matter here
        try:
            check_config(config)
            check_training(config)
        except ConfigError as error:
            changed = ", ".join(f"{key}={value!r}" for key, value in experiment.changes.items()) or "nothing"
            raise ConfigError(
                f"{path}: experiment {experiment.name!r}, which sets {changed}: {error.problem}", error.remedy
            ) from error


def check_plans(path: str, plans: Mapping[tuple[str, int], TrainPlan]) -> None:
    """Checks that all trainings make different models, and that the validation split has rows.

    Args:
        path: the experiments file, for error messages.
        plans: maps the name of an experiment and a seed to the plan of the training.

    Raises:
        ConfigError: two experiments make the same model.
        DataError: the validation split has no rows.
    """
    first: dict[str, str] = {}
    for (name, _), plan in plans.items():
        other = first.setdefault(plan.description["version"], name)
        if other != name:
            raise ConfigError(
                f"{path}: the experiments {other!r} and {name!r} train the same model: their settings are "
                "equal, or differ only in settings that do not change a model, such as train.num_ranks",
                "remove one of the two experiments",
            )
    if not all(plan.splits["validation"] for plan in plans.values()):
        raise DataError(
            "the validation split of the dataset has no rows, so experiments cannot be compared on it",
            "use a dataset with a validation split; see the section split of the configuration",
        )
