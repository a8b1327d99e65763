"""Reads an experiments file, and makes the configuration of each of its trainings."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from conf.errors import ConfigError
from conf.experiment_types import MOST_TRAININGS, Experiments
from conf.load import read_section
from conf.overrides import set_key
from conf.types import Config
from conf.yaml_files import read_yaml

# Keys under `train` that a comparison sets itself, and what to do instead.
_RESERVED = {
    "train.seed": "list the seeds in repeat_seeds",
    "train.baselines": "add an experiment that sets model: {architecture: …} for each baseline",
    "train.retrain": "leave it out: every experiment starts from random weights",
}
_SECTIONS = ("model", "train")


@dataclass(frozen=True)
class Experiment:
    """One experiment: the settings by which it differs, and its configurations.

    Attributes:
        name: the name of the experiment.
        changes: maps dotted keys to values, a key after the keys above it. A model file is named by its
            absolute path.
        configs: maps each seed to the configuration of the training with this seed.
    """

    name: str
    changes: Mapping[str, Any]
    configs: Mapping[int, Config]


def read_experiments(path: str) -> Experiments:
    """Reads an experiments file.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, or a value breaks its rule.
    """
    return read_section(
        Experiments, read_yaml(Path(path)), f"{path}: ", "correct these keys in the experiments file"
    )


def plan_experiments(config: Config, experiments: Experiments, path: str) -> list[Experiment]:
    """Returns the experiments of a file, in its order; those of a grid vary the last key fastest.

    Args:
        config: the configuration that the experiments change.
        experiments: the content of the file.
        path: the experiments file. Names of model files are relative to it.

    Raises:
        ConfigError: there are too many trainings, a key may not vary, or the configuration refuses a value.
    """
    seeds = experiments.repeat_seeds or [config.train.seed]
    named = len(experiments.runs or ()) or math.prod(map(len, (experiments.grid or {}).values()))
    if named * len(seeds) > MOST_TRAININGS:
        raise ConfigError(
            f"{path} has {named} experiments with {len(seeds)} seeds each, which are {named * len(seeds)} "
            f"trainings; a file may have {MOST_TRAININGS}",
            "remove values or seeds, or divide the experiments among several files",
        )
    planned = []
    for name, written in _named_changes(experiments):
        intro = f"{path}: experiment {name!r}: "
        changes = {key: written[key] for key in sorted(written, key=lambda key: key.count("."))}
        for key, value in changes.items():
            _require_comparable(intro, key, value)
        if isinstance(changes.get("model"), str):
            changes["model"] = os.path.abspath(Path(path).parent / changes["model"])
        configs = {seed: changed_config(config, changes, seed, intro) for seed in seeds}
        _require_measurable(intro, experiments.choose_by, next(iter(configs.values())))
        planned.append(Experiment(name, changes, configs))
    return planned


def changed_config(config: Config, changes: Mapping[str, Any], seed: int, intro: str) -> Config:
    """Returns the configuration with changed settings, a seed, and no baselines.

    Args:
        config: the configuration, which stays as it is.
        changes: maps dotted keys to values; see `Experiment.changes`.
        seed: the new value of `train.seed`.
        intro: the beginning of error messages.

    Raises:
        ConfigError: a key is unknown, or a value breaks its rule.
    """
    values = config.model_dump(mode="json")
    for key, value in changes.items():
        if key == "model" and isinstance(value, str):
            value = read_yaml(Path(value))
        set_key(values, key.split("."), deepcopy(value), f"{intro}{key}={value!r}")
    values["train"]["seed"], values["train"]["baselines"] = seed, []
    return read_section(Config, values, intro, "correct these keys in the experiments file")


def _named_changes(experiments: Experiments) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the name and the changes of each experiment. Names of a grid say its keys and values."""
    for run in experiments.runs or ():
        yield run.name, dict(run.changes)
    grid = experiments.grid or {}
    ends = [key.rsplit(".", 1)[-1] for key in grid]
    labels = [end if ends.count(end) == 1 else key for key, end in zip(grid, ends, strict=True)]
    for values in product(*grid.values()) if grid else ():
        parts = [f"{label}={_shown(value)}" for label, value in zip(labels, values, strict=True)]
        yield ", ".join(parts), dict(zip(grid, values, strict=True))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _require_comparable(intro: str, key: str, value: Any) -> None:
    """Raises ConfigError unless experiments may differ in this key."""
    section = key.split(".")[0]
    if not all(key.split(".")) or key == "train":
        raise ConfigError(
            f"{intro}{key}={value!r} does not name a setting", "write a key such as train.learning_rate"
        )
    if section not in _SECTIONS:
        known = section in Config.model_fields
        reason = (
            "the experiments of a comparison share one published dataset, so only keys of the sections model "
            "and train may vary"
            if known
            else f"the configuration has no section {section}"
        )
        remedy = (
            f"change {section} in the configuration, run build_features, and compare on that dataset"
            if known
            else "write a key of the section model or train, such as train.learning_rate"
        )
        raise ConfigError(f"{intro}{key}={value!r} may not vary: {reason}", remedy)
    for reserved, remedy in _RESERVED.items():
        if key == reserved or key.startswith(f"{reserved}."):
            raise ConfigError(f"{intro}{key}={value!r} may not vary: compare_models sets {reserved}", remedy)


def _require_measurable(intro: str, choose_by: str, config: Config) -> None:
    """Raises ConfigError if `choose_by` needs probabilities, but the loss of the training gives none."""
    if choose_by != "auc" and config.score_kind == "ranking":
        raise ConfigError(
            f"{intro}choose_by={choose_by} needs probabilities, but scores of a model with "
            f"train.loss={config.train.loss_name} are not probabilities",
            "set choose_by: auc, or compare only experiments with train.loss: bce",
        )
