"""Reads experiments files, and creates configurations for training runs and for a chosen experiment."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, model_validator

from conf.errors import ConfigError
from conf.load import (
    config_digest,
    load_config,
    read_models,
    read_section,
    read_yaml,
    set_key,
    set_override,
)
from conf.names import FolderName, PlainText
from conf.raw_types import PositiveInt, Seed, Strict
from conf.types import Config

# Keys under `train` that experiments must not set, because a comparison sets them. The values are the
# remedies in error messages.
_RESERVED = {
    "train.seed": "list the seeds in repeat_seeds",
    "train.baselines": "add an experiment that sets model: {architecture: …} for each baseline",
    "train.retrain": "leave it out: every experiment starts from random weights",
}
_SECTIONS = ("model", "train")


@dataclass(frozen=True)
class Experiment:
    """One experiment: its changed settings, and its configurations.

    Attributes:
        name: the name of the experiment in tables, charts and MLflow.
        changes: maps dotted keys to values. A key of a section comes after the section itself: `model.dim`
            comes after `model`. A model file is given by its absolute path.
        configs: maps each seed to the configuration of the training run with this seed.
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
    """Returns the experiments of a file, in the order of the file. In a grid, the last key changes fastest.

    Args:
        config: the configuration that the experiments change.
        experiments: the content of the file, which has the key `runs` or `grid`.
        path: the experiments file. Paths of model files are relative to its folder.

    Raises:
        ConfigError: there are too many training runs, experiments must not change one of the keys, or a value
            is wrong for its key.
    """
    seeds = experiments.repeat_seeds or [config.train.seed]
    named = len(experiments.runs or ()) or math.prod(map(len, (experiments.grid or {}).values()))
    if named * len(seeds) > MOST_TRAININGS:
        raise ConfigError(
            f"{path} has {named} experiments with {len(seeds)} seeds each, so it needs "
            f"{named * len(seeds)} training runs; one file may need at most {MOST_TRAININGS} training runs",
            "remove values or seeds, or divide the experiments among several files",
        )
    return [
        _experiment(config, experiments, path, name, written, seeds, f"{path}: experiment {name!r}: ")
        for name, written in _named_changes(experiments)
    ]


def plan_space(config: Config, experiments: Experiments, path: str) -> dict[str, list[Experiment]]:
    """Returns, for each searched key, experiments that check its values before the first trial.

    Each experiment changes only one key, to one of its choices or to an end of its range. For a range of
    real numbers, a value between the ends is checked too. Without this value, a range of real numbers from
    1.0 to 2.0 would be accepted for an integer setting, which accepts 1.0 but not 1.5. If the key `model`
    is searched too, keys below `model` are checked with the first of the models that are its choices.

    Args:
        config, path: see `plan_experiments`.
        experiments: the content of a file with the key `search`.

    Raises:
        ConfigError: experiments must not change one of the keys, or a value is wrong for its key.
    """
    space = experiments.search.space if experiments.search else {}
    planned = {}
    for key, searched in space.items():
        of_model = key.startswith("model.") and "model" in space
        first = {"model": space["model"].examples[0]} if of_model else {}
        planned[key] = [
            _experiment(
                config,
                experiments,
                path,
                f"search.space, {key}={value!r}",
                {**first, key: value},
                [config.train.seed],
                f"{path}: search.space, {key}={value!r}: ",
            )
            for value in searched.examples
        ]
    return planned


def plan_trial(
    config: Config, experiments: Experiments, path: str, number: int, values: Mapping[str, Any]
) -> Experiment:
    """Returns the experiment of one trial of a search.

    Args:
        config, path: see `plan_experiments`.
        experiments: the content of a file with the key `search`.
        number: the number of the trial, from 1.
        values: the proposed value of each key of the space.

    Raises:
        ConfigError: this combination of values breaks a rule of the configuration.
    """
    intro = f"{path}: trial {number}: "
    return _experiment(config, experiments, path, f"trial {number}", values, [config.train.seed], intro)


def _experiment(
    config: Config,
    experiments: Experiments,
    path: str,
    name: str,
    written: Mapping[str, Any],
    seeds: Sequence[int],
    intro: str,
) -> Experiment:
    """Returns one experiment: the configuration with the settings in `written`. Errors begin with `intro`."""
    changes = {key: written[key] for key in sorted(written, key=lambda key: key.count("."))}
    for key, value in changes.items():
        _require_comparable(intro, key, value)
    if isinstance(changes.get("model"), str):
        changes["model"] = _model_file(changes["model"], path)
    configs = {seed: changed_config(config, changes, seed, intro) for seed in seeds}
    _require_measurable(intro, experiments.choose_by, next(iter(configs.values())))
    return Experiment(name, changes, configs)


def _model_file(name: str, path: str) -> str:
    """Returns the absolute path of a model file, named relative to the folder of the experiments file."""
    return os.path.abspath(Path(path).parent / name)


def space_values(search: Search, path: str) -> dict[str, dict[str, Any]]:
    """Returns the space of a search as JSON values, with absolute paths of model files.

    Args:
        search: the section `search`.
        path: the experiments file.
    """
    space = {key: values.model_dump(mode="json", exclude_none=True) for key, values in search.space.items()}
    models = space.get("model", {}).get("choices", [])
    if models:
        named = [_model_file(model, path) if isinstance(model, str) else model for model in models]
        space["model"]["choices"] = named
    return space


def changed_config(config: Config, changes: Mapping[str, Any], seed: int, intro: str) -> Config:
    """Returns the configuration with changed settings and another seed, without `train.baselines`.

    Args:
        config: the configuration, which is not changed.
        changes: maps dotted keys to values; see `Experiment.changes`.
        seed: the new value of `train.seed`.
        intro: the beginning of error messages: the file and the experiment.

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
    """Yields the name and the changes of each experiment.

    In a grid, the name of an experiment consists of its keys and values.
    """
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
    """Raises ConfigError if experiments must not change this key."""
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
            f"change {section} in the configuration, run build_features, and compare on the new dataset"
            if known
            else "write a key of the section model or train, such as train.learning_rate"
        )
        raise ConfigError(f"{intro}{key}={value!r} may not vary: {reason}", remedy)
    for reserved, remedy in _RESERVED.items():
        if key == reserved or key.startswith(f"{reserved}."):
            raise ConfigError(f"{intro}{key}={value!r} may not vary: compare_models sets {reserved}", remedy)


def _require_measurable(intro: str, choose_by: str, config: Config) -> None:
    """Raises ConfigError if `choose_by` needs probabilities, but a model with this loss predicts none."""
    if choose_by != "auc" and config.score_kind == "ranking":
        raise ConfigError(
            f"{intro}choose_by={choose_by} needs probabilities, but scores of a model with "
            f"train.loss={config.train.loss_name} are not probabilities",
            "set choose_by: auc, or compare only experiments with train.loss: bce",
        )


# The typed contents of an experiments file, which compare_models reads.

Measure = Literal["auc", "log_loss", "normalized_entropy"]

# Upper limit of the training runs (experiments × seeds) of a file. A larger comparison needs several files.
MOST_TRAININGS = 100


class ExperimentRun(Strict):
    """One experiment of the list `runs`: the configuration with some changed settings."""

    name: PlainText = Field(description="Name of the experiment in tables, charts and MLflow.")
    changes: dict[str, Any] = Field(
        default={},
        alias="set",
        description="Maps dotted keys in the sections `model` and `train` to their values, such as "
        "`train.learning_rate: 0.001`. The key `model` replaces the whole model; its value is a section or "
        "the name of a model file, relative to the folder of the experiments file. Empty: the experiment "
        "uses the configuration unchanged.",
    )


def _number(value: Any) -> Any:
    """Returns a number. Converts strings such as `1e-4`, because YAML reads such a number as a string."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("write a number, such as 0.001")
    return value


Bound = Annotated[int | float, BeforeValidator(_number)]


class SearchedValues(Strict):
    """The values of one searched setting: a range with `low` and `high`, or a list `choices`."""

    low: Bound | None = Field(
        default=None,
        description="Smallest value of a range. If `low` and `high` are integers, all values are integers; "
        "write 0.0 instead of 0 for a range of real numbers. Null: the setting has `choices`.",
    )
    high: Bound | None = Field(
        default=None, description="Largest value of a range. Null: the setting has `choices`."
    )
    log: bool = Field(
        default=False,
        description="Whether proposals are spread evenly over the logarithm of the value, as is usual for "
        "a learning rate. `low` must be above 0.",
    )
    choices: list[Any] | None = Field(
        default=None,
        description="List of values of any type, such as numbers, strings or lists. For the key `model`, "
        "each value is a section or the name of a model file. Null: the setting has a range.",
    )

    @property
    def is_whole(self) -> bool:
        """Returns whether the range has only integers, which is so if both of its ends are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def examples(self) -> list[Any]:
        """Returns the choices, or both ends of the range and, for real numbers, a value between them."""
        if self.choices is not None:
            return self.choices
        low, high = self.low or 0, self.high or 0
        return [low, high] if self.is_whole else [low, high, low + (high - low) * _BETWEEN]

    @model_validator(mode="after")
    def _range_or_choices(self) -> SearchedValues:
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.log:
                raise ValueError(
                    f"choices={self.choices!r} cannot be combined with the keys low, high and log: write "
                    "either choices, or low and high"
                )
            if len(self.choices) < 2:
                raise ValueError(
                    f"choices={self.choices!r} leaves nothing to search: list two values or more"
                )
            _require_distinct("the list of choices", self.choices)
        elif self.low is None or self.high is None:
            raise ValueError(
                f"low={self.low!r} and high={self.high!r}: write both, such as {{low: 0.001, high: 0.1}}, or "
                "a list of choices"
            )
        elif self.low >= self.high:
            raise ValueError(
                f"low={self.low!r} is not less than high={self.high!r}: write the smaller number as low, "
                "or set a single value in the configuration"
            )
        elif self.log and self.low <= 0:
            raise ValueError(
                f"low={self.low!r} has no logarithm, which log=true needs: write a low above 0, or remove log"
            )
        return self


# The position of the checked value between the ends of a range of real numbers, as a share of the range's
# length. A value at this position is almost never an integer.
_BETWEEN = 0.3819660112501051


class Search(Strict):
    """A search for good settings. Each trial trains a model with settings that Optuna proposes.

    Optuna's TPE sampler proposes settings that are likely to be better than those of earlier trials. The
    first ten trials are random. Equal inputs give equal trials.
    """

    trials: PositiveInt = Field(
        description="Number of trials, at most 100. A trial that repeats the settings of an earlier trial is "
        "counted, but trains no model."
    )
    timeout: float | None = Field(
        default=None,
        gt=0,
        description="Time limit in seconds, counted from the first trial of a run of the job. After this "
        "time, no new trial begins. A trial that has begun is completed. Null: no limit.",
    )
    space: dict[str, SearchedValues] = Field(
        min_length=1,
        description="Maps dotted keys in the sections `model` and `train` to the values that a trial may "
        "have. All other settings are those of the configuration.",
    )
    seed: Seed | None = Field(
        default=None, description="Seed of the proposals. Null: `train.seed` of the configuration."
    )
    prune: bool = Field(
        default=False,
        description="Whether bad trials end early. A trial ends if its best value of the measure "
        "`choose_by` on the validation split is worse than the median of the complete trials after the same "
        "number of epochs. Trials are pruned only after five trials are complete. A pruned trial is shown, "
        "but it is not ranked.",
    )

    @model_validator(mode="after")
    def _not_too_many(self) -> Search:
        if self.trials > MOST_TRAININGS:
            raise ValueError(
                f"trials={self.trials}, but one file may need at most {MOST_TRAININGS} training runs: write "
                f"{MOST_TRAININGS} or fewer, or divide the space among several files"
            )
        return self


class Experiments(Strict):
    """An experiments file: models and settings that compare_models trains on one dataset and compares.

    The file has one of the keys `runs`, `grid` and `search`. Every experiment starts from random weights. No
    baselines are trained. A file may need at most 100 training runs: one for each experiment and seed, or one
    for each trial.
    """

    name: FolderName = Field(
        description="Name of the comparison. Its results are in the folder `comparisons/<name>` of the lake."
    )
    runs: list[ExperimentRun] | None = Field(
        default=None,
        description="The list of experiments. Null: the file has the key `grid` or `search`.",
    )
    grid: dict[str, list[Any]] | None = Field(
        default=None,
        description="Maps dotted keys in the sections `model` and `train` to lists of values. There is one "
        "experiment for each combination of values. Null: the file has the key `runs` or `search`.",
    )
    search: Search | None = Field(
        default=None,
        description="Settings that Optuna searches. Each trial is one experiment. Null: the file has the key "
        "`runs` or `grid`.",
    )
    repeat_seeds: Annotated[list[Seed], Field(min_length=1)] | None = Field(
        default=None,
        description="Seeds: every experiment is trained once with each seed (`train.seed`). Null: each "
        "experiment is trained once, with `train.seed` of the configuration. It cannot be combined with "
        "`search`.",
    )
    choose_by: Measure = Field(
        default="log_loss",
        description="Measure on the validation split that decides which experiment is the best. `auc`: the "
        "largest area under the ROC curve. `log_loss`: the smallest mean log loss. `normalized_entropy`: the "
        "smallest ratio of the log loss to that of a model that predicts the click rate for every row. The "
        "last two need `train.loss: bce`. Measures of lists, such as NDCG, are not available on the "
        "validation split.",
    )

    @model_validator(mode="after")
    def _one_form(self) -> Experiments:
        if sum(form is not None for form in (self.runs, self.grid, self.search)) != 1:
            raise ValueError("the file needs exactly one of the keys `runs`, `grid` and `search`")
        if self.search is not None and self.repeat_seeds is not None:
            raise ValueError(
                f"repeat_seeds={self.repeat_seeds} cannot repeat the trials of a search: remove the key, and "
                "repeat the best trials as `runs` in a second file"
            )
        return self

    @model_validator(mode="after")
    def _not_empty(self) -> Experiments:
        if self.runs is not None and not self.runs:
            raise ValueError("runs is empty: list at least one experiment, such as {name: base}")
        if self.grid is not None and not self.grid:
            raise ValueError("grid is empty: write at least one key with a list of values")
        for key, values in (self.grid or {}).items():
            if not values:
                raise ValueError(f"grid has no values for {key}, so it has no combinations: list some values")
        return self

    @model_validator(mode="after")
    def _distinct(self) -> Experiments:
        _require_distinct("repeat_seeds", self.repeat_seeds or [])
        _require_distinct("the list of names in runs", [run.name for run in self.runs or []])
        for key, values in (self.grid or {}).items():
            _require_distinct(f"grid: the list of {key}", values)
        return self


def _require_distinct(what: str, values: list[Any]) -> None:
    """Raises ValueError if a value occurs twice. Here 1 and true are different, but 1 and 1.0 are equal."""
    seen: list[Any] = []
    for value in values:
        if any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in seen):
            raise ValueError(f"{what} contains {value!r} twice; remove one of the two")
        seen.append(value)


# The functions below create command lines and configuration files with the settings of a chosen experiment.

# The first line of each file. A file without this line was not written by compare_models.
HEAD = "# Written by compare_models; a later run may replace this file."


def nightly_command(config: str, overrides: Sequence[str], run_date: str, changes: Mapping[str, Any]) -> str:
    """Returns the command that runs all jobs of a run date with the settings of an experiment.

    Args:
        config: path of the configuration file, for the option --config.
        overrides: the overrides `a.b=value` of the comparison.
        run_date: the run date.
        changes: the settings of the experiment; see `conf.experiments.Experiment.changes`.
    """
    chosen = [f"{key}={_written(key, value)}" for key, value in changes.items()]
    options = [word for override in (*overrides, *chosen) for word in ("--set", override)]
    words = ["python", "jobs/nightly.py", "--config", config, "--run-date", run_date, "--retrain", *options]
    return shlex.join(words)


def _written(key: str, value: Any) -> str:
    return value if key == "model" and isinstance(value, str) else json.dumps(value)


def configuration_files(
    path: str, config_path: str, overrides: Sequence[str], changes: Mapping[str, Any], config: Config
) -> dict[str, str]:
    """Returns the text of a new configuration file from which `config` is read, and of its model file.

    The new file extends `config_path`. It contains the keys that `overrides` and `changes` set, and inherits
    all others. If none of these keys belongs to `model`, there is no model file.

    `extends` merges mappings, so it cannot remove a key of a mapping. If the extending file would not give
    `config` for this reason, the new file contains the whole configuration instead.

    Args:
        path: the path of the configuration file. The model file is in the same folder.
        config_path: the configuration file of the comparison, which the new file extends.
        overrides: the overrides `a.b=value` of the comparison.
        changes: the changed settings of the experiment; see `Experiment.changes`.
        config: the configuration of the experiment, with all settings of the architecture in `model`.

    Returns:
        Maps the path of each file to its text.
    """
    model_file = Path(path).with_suffix(".model.yaml")
    model = {str(model_file): _yaml(config.model.model_dump(mode="json"))}
    keys = {*changes, *(override.partition("=")[0] for override in overrides)}
    of_model = any(key.split(".")[0] == "model" for key in keys)
    values: dict[str, Any] = {}
    for override in overrides:
        if override.partition("=")[0].split(".")[0] not in _SECTIONS:
            set_override(values, override, Config)
    read_models(values, Path(config_path))
    if of_model:
        values["model"] = model_file.name
    train = config.train.model_dump(mode="json")
    changed = sorted(train if "train" in keys else {key.split(".")[1] for key in keys if key[:6] == "train."})
    if changed:
        values["train"] = {key: train[key] for key in changed}
    extending = {"extends": str(Path(config_path).resolve()), **values}
    files = {**(model if of_model else {}), path: _yaml(extending)}
    if _gives(files, path, config, with_model=of_model):
        return files
    files = {**model, path: _yaml({**config.model_dump(mode="json"), "model": model_file.name})}
    if not _gives(files, path, config, with_model=True):
        raise ConfigError(
            f"internal error, please report: {path} would not give the configuration of the best experiment",
            "run the printed command, which contains its settings as --set",
        )
    return files


def _gives(files: Mapping[str, str], path: str, config: Config, *, with_model: bool) -> bool:
    """Returns whether reading the configuration file `path`, with the given contents, gives `config`.

    Without `with_model`, the sections `model` are not compared, because the file inherits its model.
    """
    sections = [name for name in Config.model_fields if with_model or name != "model"]
    with TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, Path(name).name).write_text(text, encoding="utf-8")
        try:
            written = load_config(str(Path(folder, Path(path).name)))
        except ConfigError:
            return False
    return config_digest(written, *sections) == config_digest(config, *sections)


def _yaml(values: Mapping[str, Any]) -> str:
    return f"{HEAD}\n{yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)}"
