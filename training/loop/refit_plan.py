"""The plan of a refit: the training of a promoted model, repeated on the rows of all three splits."""

from __future__ import annotations

from dataclasses import replace

from conf.errors import DataError
from conf.types import SPLITS, Config
from storage.dataset import Dataset
from storage.manifest import digest_of
from storage.paths import Lake
from training.loop.training_plan import TrainPlan, make_plan, resolved
from training.registry.model_json import read_description
from training.registry.refits import refit_name
from training.registry.versions import model_path
from training.registry.warm_or_fresh import day_name


def make_refit_plan(config: Config, lake: Lake, dataset: Dataset, champion: str) -> TrainPlan:
    """Creates the plan of a champion's refit, on the dataset on which the champion was trained.

    The refit has the settings and the start of the champion's training: the same random weights, or the same
    parent. Each row of the champion's training, of the validation split and of the test split is used once
    per epoch. Days on which the parent was trained are left out, as in every warm start. If the champion has
    the weights of a step before the last one of its epochs, the refit ends after the same share of all steps,
    rounded up. This is the case if its training ended early, or if an earlier step was better (`train.keep`).
    The refit is not measured, because no row is left for that.

    Args:
        config: the configuration.
        lake: the lake.
        dataset: the dataset of the run date.
        champion: the version of the model that was promoted on the run date.

    Raises:
        ConfigError: see `make_plan`.
        DataError: see `make_plan`. Or the result of a training with this configuration, dataset and release
            is another model than the champion.
    """
    plan = make_plan(config, lake, dataset)
    if plan.description["version"] != champion:
        raise DataError(
            f"champion {champion} of {dataset.run_date} was trained with another configuration, dataset or "
            f"release, with which the training would now make model {plan.description['version']}",
            f"run train_model and evaluate_model for {dataset.run_date} again",
        )
    trained = read_description(plan.model_path)
    steps = trained["kept"]["step"] if "kept" in trained else trained["steps"]
    seen = frozenset(read_description(plan.parent_path)["trained_days"]) if plan.parent_path else frozenset()
    held_out = (*plan.splits["validation"], *plan.splits["test"])
    version = digest_of(["refit", champion, steps])
    days = {day_name(member.dt, member.label) for split in SPLITS for member in dataset.splits.get(split, ())}
    name = refit_name(config.name)
    refit = replace(
        plan,
        description={
            **plan.description,
            "name": name,
            "version": version,
            "refit_of": champion,
            "trained_days": sorted({*plan.description["trained_days"], *days}),
        },
        train=plan.train.model_copy(update={"baselines": [], "evaluate_every_steps": 0, "stop_at": None}),
        splits={"train": (*plan.splits["train"], *held_out)},
        train_files=(*plan.train_files, *(file for file in held_out if file.dt not in seen)),
        model_path=resolved(model_path(lake, name, version)),
        checkpoint_path=resolved(lake.checkpoints(version)),
    )
    return replace(refit, last_step=_last_step(steps, plan, refit))


def _last_step(steps: int, plan: TrainPlan, refit: TrainPlan) -> int | None:
    """Returns the refit's last step; None if the champion has the weights of the last step of its epochs.

    Args:
        steps: number of steps after which the champion's training had its weights.
        plan: the plan of the champion's training.
        refit: the plan of the refit.
    """
    if steps >= plan.steps_per_epoch * plan.train.epochs:
        return None
    return -(-steps * refit.steps_per_epoch // plan.steps_per_epoch)
