"""The experiment of a run date: the model that serves its treatment group, and whether it was stopped.

    models/<name>/experiment_stops/dt=<run date>.json     the experiments that stop on a run date

A stop takes effect on its run date and on later ones. So the recommendation lists of a date do not depend on
files of later dates, and a rerun makes the same lists. Stops are never deleted: a new name or
`serving.experiment.resume` starts the experiment again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from conf.errors import ConfigError
from conf.stage_types import CHALLENGER, ServingExperiment
from conf.types import Config
from storage import file_io, format_versions
from storage.manifest import digest_of
from storage.paths import LakePaths
from training.registry.champion_history import champion_state_as_of, dated_path, dates_of, read_decisions
from training.registry.comparison import experiments_name
from training.registry.model_json import is_complete, read_description
from training.registry.overrides import withdrawal_of
from training.registry.refits import refit_name, serving_model
from training.registry.versions import model_path

STOPS = "experiment_stops"  # folder name


@dataclass(frozen=True)
class ExperimentStop:
    """The record of a stopped experiment.

    Attributes:
        run_date: the first run date on which the control serves all users.
        experiment: the name of the experiment.
        reason: the reason for the stop, as one sentence.
        figures: the figures that were the reason, as JSON values.
        at: time of the decision in UTC.
    """

    run_date: str
    experiment: str
    reason: str
    figures: Mapping[str, Any]
    at: str


@dataclass(frozen=True)
class ServedExperiment:
    """The experiment of a run date.

    Attributes:
        settings: the section `serving.experiment`.
        version: the version of the model of the treatment; None if the control serves all users.
        folder: the folder of this model; None if the control serves all users.
        idle_because: the reason why the control serves all users; None if the experiment runs.
    """

    settings: ServingExperiment
    version: str | None
    folder: str | None
    idle_because: str | None = None

    @property
    def digest(self) -> str:
        """Returns a digest of all settings that decide which user gets which model."""
        settings = self.settings
        return digest_of([settings.name, settings.salted_prefix, settings.share, self.version])


def served_experiment(config: Config, lake: LakePaths, run_date: str) -> ServedExperiment | None:
    """Returns the experiment of a run date; None if the configuration has none for this date.

    The result does not depend on files of later dates.

    Raises:
        ConfigError: the model of the treatment does not exist.
    """
    settings = config.serving.experiment
    if settings is None or not settings.runs_on(run_date):
        return None
    stop = stop_in_force(lake, config.name, settings, run_date)
    if stop is not None:
        return ServedExperiment(settings, None, None, f"it was stopped on {stop.run_date}: {stop.reason}")
    version, folder = treatment_model(config, lake, settings)
    state = champion_state_as_of(lake, config.name, run_date)
    # A refit is withdrawn with the model that it refits.
    origin = read_description(folder).get("refit_of") or version
    withdrawn = withdrawal_of(lake, config.name, origin, state)
    serving = serving_model(config, lake, run_date)
    idle = None
    if withdrawn is not None:
        idle = f"its model {withdrawn}"
    elif serving is not None and version in (serving.version, serving.champion):
        idle = f"its model {version} is the champion"
    if idle is not None:
        return ServedExperiment(settings, None, None, idle)
    return ServedExperiment(settings, version, folder)


def treatment_model(config: Config, lake: LakePaths, settings: ServingExperiment) -> tuple[str, str]:
    """Returns the version and the folder of the model of the treatment.

    Raises:
        ConfigError: the model does not exist.
    """
    version = settings.model
    if version == CHALLENGER:
        decisions = reversed(read_decisions(lake, config.name, settings.start))
        kept_out = (
            decision["challenger"]
            for date, decision in decisions
            if date < settings.start and not decision["promoted"]
        )
        newest = next(kept_out, None)
        if newest is None:
            raise ConfigError(
                "serving.experiment.model=challenger needs a challenger that was not promoted, but before "
                f"start={settings.start}, the gate promoted every challenger in {lake.models(config.name)}",
                "set serving.experiment.model to the version of a model, or remove serving.experiment",
            )
        version = str(newest)
    names = (config.name, refit_name(config.name), experiments_name(config))
    for name in names:
        if is_complete(model_path(lake, name, version)):
            return version, model_path(lake, name, version)
    folders = ", ".join(lake.models(name) for name in names)
    raise ConfigError(
        f"serving.experiment.model={settings.model}: there is no complete model {version} in {folders}",
        "set serving.experiment.model to the version of a model that is in one of these folders",
    )


def stop_in_force(
    lake: LakePaths, name: str, settings: ServingExperiment, run_date: str
) -> ExperimentStop | None:
    """Returns the first stop of an experiment that is in force on a run date; None if there is none.

    `settings.resume` is the date on which the experiment starts again. From that date on, earlier stops and a
    stop of that date are no longer in force.
    """
    for stop in read_stops(lake, name, run_date):
        resumed = settings.resume is not None and stop.run_date <= settings.resume <= run_date
        if stop.experiment == settings.name and not resumed:
            return stop
    return None


def read_stops(lake: LakePaths, name: str, until: str) -> list[ExperimentStop]:
    """Returns the records of experiments that were stopped up to the run date `until`, ascending by date."""
    stops = []
    for date in dates_of(lake, name, STOPS):
        if date <= until:
            path = dated_path(lake, name, STOPS, date)
            stops += format_versions.EXPERIMENT_STOP.load(
                path, lambda values: [ExperimentStop(**stop) for stop in values["stops"]]
            )
    return stops


def record_stop(lake: LakePaths, name: str, stop: ExperimentStop) -> None:
    """Atomically records that an experiment stops, unless it has a record of this date already."""
    of_date = [known for known in read_stops(lake, name, stop.run_date) if known.run_date == stop.run_date]
    if any(known.experiment == stop.experiment for known in of_date):
        return
    values = {"run_date": stop.run_date, "stops": [asdict(known) for known in (*of_date, stop)]}
    path = dated_path(lake, name, STOPS, stop.run_date)
    file_io.replace_json(path, format_versions.EXPERIMENT_STOP.stamp(values))
