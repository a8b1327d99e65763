"""Makes command lines and configuration files that use the settings of a chosen experiment."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from conf.types import Config, ModelConfig

# The first line of each file. A file without this line was not written by compare_models.
HEAD = "# Written by compare_models; a later run may replace this file."


def nightly_command(config: str, overrides: Sequence[str], run_date: str, changes: Mapping[str, Any]) -> str:
    """Returns the command that runs the chain of a date with the settings of an experiment.

    Args:
        config: path of the configuration file.
        overrides: the overrides `a.b=value` that the comparison itself was given.
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
    path: str, config_path: str, changes: Mapping[str, Any], config: Config, model: ModelConfig
) -> dict[str, str]:
    """Returns the texts of a configuration file that extends the compared one, and of its model file.

    The sections of both files replace those of the extended file completely. If no key of `model` differs,
    there is no model file. The seed of the extended file stays.

    Args:
        path: the path of the configuration file. The model file is next to it.
        config_path: the compared configuration file.
        changes: the settings of the experiment.
        config: the configuration of one training of the experiment.
        model: the model of this configuration with all settings of its architecture.

    Returns:
        Maps the path of each file to its text.
    """
    values: dict[str, Any] = {"extends": str(Path(config_path).resolve())}
    files = {}
    if any(key.split(".")[0] == "model" for key in changes):
        model_file = Path(path).with_suffix(".model.yaml")
        files[str(model_file)] = _yaml(model.model_dump(mode="json"))
        values["model"] = model_file.name
    # The key below `train` is written with all keys of its section, because `extends` merges sections.
    keys = sorted({key.split(".")[1] for key in changes if key.startswith("train.")})
    if keys:
        train = config.train.model_dump(mode="json")
        values["train"] = {key: train[key] for key in keys}
    files[path] = _yaml(values)
    return files


def _yaml(values: Mapping[str, Any]) -> str:
    return f"{HEAD}\n{yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)}"
