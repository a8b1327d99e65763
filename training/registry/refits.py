"""Refits: promoted models that were trained again on the rows of all three splits.

A refit makes the recommendation lists in place of the model that was promoted.

    models/<name>-refit/<version>/              its files, as for every model
    models/<name>/refits/dt=<run date>.json     the refit of the model that was promoted on the run date

The gate, warm starts and overrides use only the models in `models/<name>`, which were trained on the train
split. The gate and overrides make no decisions about refits: a refit serves whenever the model that it refits
is champion. The record is written after the refit is complete. If the job is killed before the record is
written, the champion itself serves, or its previous refit if it has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conf.errors import DataError
from conf.types import Config
from storage import file_io, format_versions
from storage.format_versions import require_names, typed
from storage.paths import LakePaths
from training.registry.champion_history import (
    WEIGHTS,
    champion_state_as_of,
    dated_path,
    dates_of,
    decided_weights,
)
from training.registry.model_json import is_described, read_description, weights_digest

REFITS = "refits"  # folder name


@dataclass(frozen=True)
class Refit:
    """The record of a refit.

    Attributes:
        run_date: the date on which the champion was promoted and refitted. The refit serves from then on.
        champion: the version of the model that was trained on the train split.
        version: the version of the refit.
        weights: the digest of its weights; None if an earlier release recorded the refit.
    """

    run_date: str
    champion: str
    version: str
    weights: str | None = field(default=None, compare=False)


@dataclass(frozen=True)
class ServingModel:
    """The model that serves: the champion, or its refit.

    Attributes:
        champion: the version that is champion.
        refit: the version of its refit; None if the champion itself serves.
    """

    champion: str
    refit: str | None = None

    @property
    def version(self) -> str:
        """Returns the version of the model that serves: the refit, if there is one, or the champion."""
        return self.refit or self.champion

    def folder(self, lake: LakePaths, name: str) -> str:
        """Returns the folder of the model that serves.

        Args:
            lake: the lake.
            name: the key `name` of the configuration.
        """
        return f"{lake.models(refit_name(name) if self.refit else name)}/{self.version}"


def refit_name(name: str) -> str:
    """Returns the name of a model's refits in the registry."""
    return f"{name}-refit"


def promoted_on(lake: LakePaths, name: str, run_date: str) -> str | None:
    """Returns the champion at the end of a run if the gate promoted it in this run, else None."""
    champion = champion_state_as_of(lake, name, run_date).champion
    return champion if champion != champion_state_as_of(lake, name, run_date, before=True).champion else None


def record_refit(lake: LakePaths, name: str, refit: Refit) -> None:
    """Atomically records the refit of the champion that was promoted on a run date."""
    values: dict[str, str | None] = {
        "run_date": refit.run_date,
        "refit_of": refit.champion,
        "version": refit.version,
    }
    folder = f"{lake.models(refit_name(name))}/{refit.version}"
    if is_described(folder):
        values |= {WEIGHTS: weights_digest(read_description(folder))}
    path = dated_path(lake, name, REFITS, refit.run_date)
    file_io.replace_json(path, format_versions.TRAINED_VERSION.stamp(values))


def read_refits(lake: LakePaths, name: str, until: str) -> list[Refit]:
    """Returns the refits of all run dates up to `until`, in ascending order of their dates."""
    refits = []
    for date in dates_of(lake, name, REFITS):
        if date <= until:
            path = dated_path(lake, name, REFITS, date)
            refits.append(format_versions.TRAINED_VERSION.load(path, parse_refit))
    return refits


def parse_refit(values: Mapping[str, Any]) -> Refit:
    """Converts the content of a refit's file to a `Refit`. Raises KeyError, TypeError or ValueError."""
    typed(values, run_date=str, refit_of=str, version=str)
    require_names(values["refit_of"], values["version"])
    return Refit(values["run_date"], values["refit_of"], values["version"], values.get(WEIGHTS))


def serving_model(config: Config, lake: LakePaths, run_date: str) -> ServingModel | None:
    """Returns the model that serves at the end of a run; None if there is no champion.

    If `train.refit` is false, the champion itself serves, even if it has a refit.
    """
    return serving_model_of(lake, config.name, run_date, use_refit=config.train.refit)


def serving_model_of(lake: LakePaths, name: str, run_date: str, *, use_refit: bool) -> ServingModel | None:
    """Returns which model named `name` serves at the end of a run; None if there is no champion.

    The result does not depend on files of later dates.

    Args:
        lake: the lake.
        name: the key `name` of the configuration.
        run_date: the date of the run.
        use_refit: whether to return the champion's refit if it has one.
    """
    champion = champion_state_as_of(lake, name, run_date).champion
    if champion is None:
        return None
    refits = read_refits(lake, name, run_date) if use_refit else []
    of_champion = [refit.version for refit in refits if refit.champion == champion]
    return ServingModel(champion, of_champion[-1] if of_champion else None)


def require_recorded_weights(
    lake: LakePaths, name: str, until: str, path: str, description: Mapping[str, Any]
) -> None:
    """Checks that a champion or a refit has the weights that were recorded when it began to serve.

    Models whose record was written by an earlier release are not checked.

    Args:
        lake: the lake.
        name: the key `name` of the configuration.
        until: the last run date whose records are read.
        path: the folder of the model.
        description: its model.json.

    Raises:
        DataError: the model has other weights.
    """
    version, job = str(description["version"]), "evaluate_model"
    recorded = decided_weights(lake, name, until, version)
    if description.get("refit_of"):
        job = "refit_model"
        refits = [refit for refit in read_refits(lake, name, until) if refit.version == version]
        recorded = next(((one.run_date, one.weights) for one in reversed(refits) if one.weights), None)
    if recorded is not None and weights_digest(description) != recorded[1]:
        date = recorded[0]
        raise DataError(
            f"{path} does not have the weights that {job} recorded for model {version} on {date}",
            f"run {job} for {date} again, if the model was trained again since then; or roll back to another "
            "model",
        )
