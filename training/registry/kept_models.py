"""Divides model versions into versions that runs may still need, and versions that may be deleted.

Kept dates are the dates whose data is kept. A version is needed if it served on a kept date, was trained for
a kept date, or may serve again after a rollback. If an experiment is configured, the model of its treatment
group is needed too. So are the retrievers of workflow versions that are kept. The refits and the ancestors of
a needed version are also needed. Ancestors are kept because a model counts as withdrawn if one of its
ancestors is withdrawn. A refit has the same ancestors as the model that it refits, because both start from
the same parent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from conf.errors import ConfigError
from conf.types import Config
from storage import file_io
from storage.paths import LakePaths
from training.registry.champion_history import OVERRIDES, PROMOTIONS, champion_state_as_of, dates_of
from training.registry.model_json import is_described, read_description
from training.registry.refits import refit_name
from training.registry.served_experiments import treatment_model
from training.registry.versions import RUNS, challenger_of, model_path, retriever_name

_VERSION = re.compile(r"[0-9a-f]{16}")
_LAST_DATE = "9999-12-31"


@dataclass(frozen=True)
class ModelVersions:
    """The model versions of a configuration.

    Attributes:
        kept: pairs (name, version) of the versions that runs may need. Not all of them have a folder.
        unused: pairs (name, version) of the other versions that have a folder. The folder may be incomplete.
    """

    kept: frozenset[tuple[str, str]]
    unused: tuple[tuple[str, str], ...]


def model_versions(
    config: Config,
    lake: LakePaths,
    first_date: str,
    run_date: str,
    dates: Iterable[str],
    workflows: Iterable[str],
) -> ModelVersions:
    """Finds out which models, refits and retrievers of a configuration may be deleted.

    The result contains no models of other configurations or of comparisons (`<name>-experiments`).

    Args:
        config: the configuration.
        lake: the lake.
        first_date: the first date that is kept.
        run_date: a run date. Runs of this date and of later dates need only the versions that are kept.
        dates: earlier dates whose recommendation lists are kept.
        workflows: the workflow versions of the datasets that are kept.

    Raises:
        DataError: a file of the registry is damaged.
    """
    name = config.name
    described = {one: dict(_described(lake, one)) for one in (name, refit_name(name), retriever_name(config))}
    needed = {
        *_served(lake, name, first_date, dates),
        *_trained(lake, name, _first_training(config, first_date, run_date)),
        *_treatment(config, lake),
        *(version for version, values in described[name].items() if _is_of(values, first_date)),
    }
    refits = described[refit_name(name)]
    needed |= {str(refits[version]["refit_of"]) for version in needed & refits.keys()}
    models = _with_ancestors(needed, described[name])
    kept_refits = {
        version
        for version, values in refits.items()
        if _is_of(values, first_date) or values.get("refit_of") in models or version in needed
    }
    used = {
        *workflows,
        *(
            str(values["workflow_version"])
            for version, values in described[name].items()
            if version in models
        ),
    }
    retrievers = _retrievers(
        lake, retriever_name(config), described[retriever_name(config)], first_date, used
    )
    kept = {
        *((name, version) for version in models),
        *((refit_name(name), version) for version in kept_refits),
        *((retriever_name(config), version) for version in retrievers),
    }
    folders = ((one, version) for one in described for version in _folders(lake, one))
    return ModelVersions(frozenset(kept), tuple(sorted(one for one in folders if one not in kept)))


def _folders(lake: LakePaths, name: str) -> list[str]:
    infos = file_io.list_files(lake.models(name))
    return [info.base_name for info in infos if not info.is_file and _VERSION.fullmatch(info.base_name)]


def _described(lake: LakePaths, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each version of a model that has a model.json, and the content of this file."""
    for version in _folders(lake, name):
        path = model_path(lake, name, version)
        if is_described(path):
            yield version, read_description(path)


def _is_of(description: dict[str, Any], first_date: str) -> bool:
    """Returns whether a model was trained for `first_date` or a later date, or has no run date."""
    return str(description.get("run_date", _LAST_DATE)) >= first_date


def _served(lake: LakePaths, name: str, first_date: str, dates: Iterable[str]) -> set[str]:
    """Returns the champions of kept dates, at the beginning and at the end of each run.

    The result also has the champion before each of them, because a rollback would restore it.
    """
    decided = {day for kind in (PROMOTIONS, OVERRIDES) for day in dates_of(lake, name, kind)}
    later = {day for day in decided if day >= first_date}
    states = [
        champion_state_as_of(lake, name, day, before=before)
        for day in sorted({first_date, *later, *dates})
        for before in (True, False)
    ]
    states.append(champion_state_as_of(lake, name, _LAST_DATE))
    versions: set[str] = set()
    for state in states:
        earlier = [version for _, version in reversed(state.champions) if version != state.champion]
        versions |= {version for version in (state.champion, *earlier[:1]) if version is not None}
    return versions


def _first_training(config: Config, first_date: str, run_date: str) -> str:
    """Returns the first date whose models matter to later runs (see `train.retrain.fresh_every_days`)."""
    days = config.train.retrain.fresh_every_days or 0
    return min(first_date, (date.fromisoformat(run_date) - timedelta(days=days)).isoformat())


def _trained(lake: LakePaths, name: str, first_date: str) -> set[str]:
    """Returns the challengers of the kept dates, and the challenger of the newest training run."""
    dates = dates_of(lake, name, RUNS)
    wanted = {*dates[-1:], *(day for day in dates if day >= first_date)}
    return {challenger_of(lake, name, day) for day in wanted}


def _treatment(config: Config, lake: LakePaths) -> set[str]:
    """Returns the version that the configured experiment's treatment group gets; empty if there is none."""
    if config.serving.experiment is None:
        return set()
    try:
        return {treatment_model(config, lake, config.serving.experiment)[0]}
    except ConfigError:  # the treatment's model does not exist, so there is none to keep
        return set()


def _with_ancestors(versions: set[str], described: dict[str, dict[str, Any]]) -> set[str]:
    """Returns the versions and all models from which their training runs started."""
    result: set[str] = set()
    for version in versions:
        current: str | None = version
        while current is not None and current not in result:
            result.add(current)
            current = described.get(current, {}).get("parent")
    return result


def _retrievers(
    lake: LakePaths, name: str, described: dict[str, dict[str, Any]], first_date: str, workflows: set[str]
) -> set[str]:
    """Returns the versions of the retriever that are kept.

    These are the retrievers of `first_date` and later and, for each of `workflows`, the newest one before.
    """
    kept = {version for version, values in described.items() if _is_of(values, first_date)}
    newest: dict[str, str] = {}  # maps each workflow version to a retriever
    for run_date in dates_of(lake, name, RUNS):
        version = challenger_of(lake, name, run_date)
        if run_date >= first_date:
            kept.add(version)
        elif version in described:
            newest[str(described[version]["workflow_version"])] = version
    return kept | {version for workflow, version in newest.items() if workflow in workflows}


# The code below lists the complete models of a lake.


def saved_models(lake: LakePaths) -> list[dict[str, str]]:
    """Returns `name`, `version` and `workflow_version` of each complete model of a lake, by name."""
    root = lake.models("").rstrip("/")
    names = [info.base_name for info in file_io.list_files(root)]
    folders = {name: [info.base_name for info in file_io.list_files(lake.models(name))] for name in names}
    return [
        {"name": name, "version": version, "workflow_version": str(workflow)}
        for name, versions in folders.items()
        for version in versions
        if is_described(path := f"{lake.models(name)}/{version}")
        and (workflow := read_description(path).get("workflow_version")) is not None
    ]
