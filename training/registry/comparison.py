"""The result of a comparison: measures of each training run, means over seeds, and the best experiment."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from conf.errors import DataError, NightrankError
from conf.types import Config
from storage import file_io
from storage.manifest import is_published, read_manifest
from storage.paths import LakePaths
from training.registry.model_json import MODEL_JSON
from training.registry.training_leftovers import delete_training_leftovers, is_older
from training.registry.versions import model_path

MEASURES = ("auc", "log_loss", "normalized_entropy")
_LARGER_IS_BETTER = {"auc"}
HeldOut = Literal["validation", "test"]


@dataclass(frozen=True)
class ValidationMeasures:
    """One evaluation on the validation split.

    Attributes:
        epoch: number of epochs done, such as 1.5.
        measures: maps each of MEASURES to its value; None if it is undefined.
    """

    epoch: float
    measures: Mapping[str, float | None]


@dataclass(frozen=True)
class TrainingOutcome:
    """The outcome of one training run.

    Attributes:
        seed: the seed of the training run.
        version: the model's version.
        failure: the reason why the training has no model; None if it has a model. If the training failed, all
            attributes below are empty.
        validation, test: the measures of the final model on the two splits.
        curve: the evaluations on the validation split, ascending by epoch; the last evaluation is that of the
            last step.
        seconds: time spent in the training's steps, in seconds.
        stopped: the reason why the training ended early; None if it did not.
        pruned: number of epochs after which a search ended the training, because other training runs were
            better; None if the training is complete. A pruned training run has a curve, but no model and no
            final measures.
    """

    seed: int
    version: str
    failure: str | None = None
    validation: Mapping[str, float | None] = field(default_factory=dict)
    test: Mapping[str, float | None] = field(default_factory=dict)
    curve: Sequence[ValidationMeasures] = ()
    seconds: float = 0.0
    stopped: str | None = None
    pruned: float | None = None

    @classmethod
    def of(cls, seed: int, description: Mapping[str, Any], steps_per_epoch: int) -> TrainingOutcome:
        """Returns the outcome of a training run from its model.json."""
        final = {split: _chosen(description["metrics"][split]) for split in ("validation", "test")}
        measured = {
            entry["step"]: entry["validation"] for entry in description["history"] if "validation" in entry
        }
        measured.setdefault(description["steps"], description["metrics"]["validation"])
        curve = [
            ValidationMeasures(step / steps_per_epoch, _chosen(metrics))
            for step, metrics in sorted(measured.items())
        ]
        return cls(
            seed,
            description["version"],
            None,
            final["validation"],
            final["test"],
            curve,
            description["seconds"],
            description["stopped"],
        )

    @classmethod
    def of_pruned(
        cls, seed: int, description: Mapping[str, Any], steps_per_epoch: int, step: int
    ) -> TrainingOutcome:
        """Returns the outcome of a training run that is pruned after a step, from its history until then."""
        curve = [
            ValidationMeasures(entry["step"] / steps_per_epoch, _chosen(entry["validation"]))
            for entry in description["history"]
            if "validation" in entry and entry["step"] <= step
        ]
        return cls(
            seed,
            description["version"],
            curve=curve,
            seconds=description["seconds"],
            pruned=step / steps_per_epoch,
        )

    def best_epoch(self, measure: str) -> float | None:
        """Returns the epoch at which a measure first had its best value; None if it has no values."""
        known = [
            (value, evaluation.epoch)
            for evaluation in self.curve
            if (value := evaluation.measures[measure]) is not None
        ]
        return min(known, key=lambda pair: (cost(measure, pair[0]), pair[1]))[1] if known else None


@dataclass(frozen=True)
class ExperimentOutcome:
    """The outcome of one experiment: one training run for each seed.

    Attributes:
        name: name of the experiment.
        changes: maps dotted keys to the values by which the experiment differs from the configuration.
        trainings: the training runs, in the order of the seeds.
        trial: the number of the trial of a search, from 1; None if there was no search.
    """

    name: str
    changes: Mapping[str, Any]
    trainings: Sequence[TrainingOutcome]
    trial: int | None = None

    @property
    def failure(self) -> str | None:
        """The reason why a training run of this experiment failed; None if all training runs have a model."""
        return next((training.failure for training in self.trainings if training.failure), None)

    @property
    def pruned(self) -> float | None:
        """The number of epochs after which a training run was pruned; None if all are complete or failed."""
        return next((training.pruned for training in self.trainings if training.pruned is not None), None)

    def last_evaluation(self, measure: str) -> float | None:
        """Returns a measure's last defined value in a pruned trial's evaluations; None if there is none."""
        values = [evaluation.measures[measure] for evaluation in self.trainings[0].curve]
        return next((value for value in reversed(values) if value is not None), None)

    def values(self, split: HeldOut, measure: str) -> list[float]:
        """Returns a measure's values in all training runs; an empty list if a training run has no value."""
        values = [getattr(training, split).get(measure) for training in self.trainings]
        return [] if None in values else values

    def mean(self, split: HeldOut, measure: str) -> float | None:
        """Returns the mean of a measure over the seeds; None if a training run has no value."""
        values = self.values(split, measure)
        return statistics.fmean(values) if values else None

    def deviation(self, split: HeldOut, measure: str) -> float | None:
        """Returns the sample standard deviation over the seeds; None if there are fewer than two values."""
        values = self.values(split, measure)
        return statistics.stdev(values) if len(values) > 1 else None

    def curve(self, measure: str) -> list[tuple[float, float]]:
        """Returns pairs (epoch, mean over the seeds) of a measure on the validation split, ascending.

        Epochs at which a training run has no value, for example because it ended earlier, are left out.
        """
        curves = [
            {evaluation.epoch: evaluation.measures[measure] for evaluation in training.curve}
            for training in self.trainings
        ]
        points = []
        for epoch in curves[0]:
            values = [value for curve in curves if (value := curve.get(epoch)) is not None]
            if len(values) == len(curves):
                points.append((epoch, statistics.fmean(values)))
        return points

    def best_epochs(self, measure: str) -> list[float | None]:
        """Returns the epoch of the best evaluation of each training run."""
        return [training.best_epoch(measure) for training in self.trainings]

    @property
    def seconds(self) -> float:
        """Time spent in the steps of all training runs, in seconds."""
        return sum(training.seconds for training in self.trainings)


@dataclass(frozen=True)
class SearchResult:
    """The search space, and how many trials a search made. The trials are the experiments of the comparison.

    Attributes:
        space: maps each searched key to its values, as in the experiments file: `low`, `high` and `log`, or
            `choices`. A model file is given by its absolute path.
        planned: number of trials that the file requests.
        done: number of trials that were done.
        repeated: pairs of a trial and an earlier trial with the same settings. Only the earlier one is an
            experiment of the comparison.
    """

    space: Mapping[str, Mapping[str, Any]]
    planned: int
    done: int
    repeated: Sequence[Sequence[int]] = ()


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        name: name of the comparison.
        choose_by: the measure on the validation split that decides which experiment is the best.
        experiments: the outcomes, in the order of the experiments file, or of the trials.
        search: the space and the trials of the search; None if the experiments file has no search.
    """

    name: str
    choose_by: str
    experiments: Sequence[ExperimentOutcome]
    search: SearchResult | None = None

    @property
    def ranked(self) -> list[ExperimentOutcome]:
        """The experiments that have a mean of `choose_by` on the validation split, the best first.

        Experiments with equal means have the order of the experiments file. The test split is not used.
        """
        known = [
            (cost(self.choose_by, mean), place)
            for place, experiment in enumerate(self.experiments)
            if (mean := experiment.mean("validation", self.choose_by)) is not None
        ]
        return [self.experiments[place] for _, place in sorted(known)]

    @property
    def best(self) -> ExperimentOutcome:
        """The best experiment.

        Raises:
            DataError: no experiment has a value of `choose_by` on the validation split.
        """
        if ranked := self.ranked:
            return ranked[0]
        failures = [experiment.failure for experiment in self.experiments if experiment.failure]
        if failures:
            raise DataError(
                f"no experiment of {self.name} was trained completely; the first error is: {failures[0]}",
                "correct the cause that the error names, or change the settings of the experiments",
            )
        raise DataError(
            f"{self.choose_by} of the validation split is undefined: all its rows have the same label",
            "set choose_by: log_loss, or use a dataset whose validation split has clicks and non-clicks",
        )

    @property
    def versions(self) -> list[str]:
        """The versions of all trained models and pruned training runs, sorted."""
        trainings = [training for experiment in self.experiments for training in experiment.trainings]
        return sorted(training.version for training in trainings if not training.failure)

    def facts(self) -> dict[str, Any]:
        """Returns the comparison as JSON values, for its manifest."""
        return {**asdict(self), "best": self.best.name, "versions": self.versions}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Comparison:
        """Returns the comparison from the JSON values in its manifest."""
        experiments = []
        for experiment in facts["experiments"]:
            trainings = [
                TrainingOutcome(
                    **{**training, "curve": [ValidationMeasures(**entry) for entry in training["curve"]]}
                )
                for training in experiment["trainings"]
            ]
            experiments.append(
                ExperimentOutcome(
                    experiment["name"], experiment["changes"], trainings, experiment.get("trial")
                )
            )
        search = facts.get("search")  # missing in manifests of earlier releases, which had no searches
        return cls(facts["name"], facts["choose_by"], experiments, SearchResult(**search) if search else None)


def _chosen(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    return {measure: metrics[measure] for measure in MEASURES}


def cost(measure: str, value: float) -> float:
    """Returns a measure's value, negated if larger values are better, so that smaller is always better."""
    return -value if measure in _LARGER_IS_BETTER else value


# The code below manages the models that comparisons train. Such a model may serve the treatment group of an
# experiment, but it never becomes champion.
#
#     models/<name>-experiments/<version>/    a model of an experiment, as for every model
#
# This folder has no runs, promotions or interventions. So no model in it becomes challenger or champion: the
# gate and overrides read only the folder `models/<name>`.
#
# A model of an experiment is kept as long as the published result of a comparison names its version, or
# `serving.experiment.model` of the configuration is its version. Other models of experiments are deleted when
# they are older than `output.grace_hours`. This time must be longer than a comparison takes.

log = logging.getLogger("nightrank.training")


def experiments_name(config: Config) -> str:
    """Returns the name under which the registry stores models of experiments."""
    return f"{config.name}-experiments"


def experiments_config(config: Config) -> Config:
    """Returns a copy of `config` that stores models under the name for models of experiments."""
    return config.model_copy(update={"name": experiments_name(config)})


def delete_old_experiments(config: Config) -> int:
    """Deletes unused files, and old models of experiments that no published comparison names.

    If the configuration has an experiment (`serving.experiment`), the model of its treatment group is kept.

    Returns the number of deleted models. An error is only logged, because the result of the comparison is
    already published.
    """
    lake, name = LakePaths(config.lake), experiments_name(config)
    limit = time.time() - config.output.grace_hours * 3600
    deleted = 0
    try:
        served = config.serving.experiment
        named = _named_versions(lake) | ({served.model} if served else set())
        folders = [info.base_name for info in file_io.list_files(lake.models(name)) if not info.is_file]
        for version in sorted(set(folders) - named):
            files = [info for info in file_io.list_files(model_path(lake, name, version)) if info.is_file]
            if files and all(is_older(info, limit) for info in files):
                _delete_folder(model_path(lake, name, version))
                _delete_folder(lake.checkpoints(version))
                deleted += 1
    except (NightrankError, OSError) as error:
        log.warning("old experiments in %s could not be deleted: %s", lake.models(name), error)
    delete_training_leftovers(lake, name, config.output.grace_hours)
    return deleted


def _named_versions(lake: LakePaths) -> Set[str]:
    """Returns the model versions that the published comparisons of the lake name."""
    versions: set[str] = set()
    for folder in file_io.list_files(lake.comparisons_root):
        for partition_folder in (
            () if folder.is_file else file_io.list_files(f"{lake.comparisons_root}/{folder.base_name}")
        ):
            date = partition_folder.base_name.removeprefix("dt=")
            partition = lake.comparisons(folder.base_name).partition(date)
            if is_published(partition):
                versions |= set(read_manifest(partition).facts["versions"])
    return versions


def _delete_folder(path: str) -> None:
    """Deletes the files of a folder, model.json first, so that readers never load an incomplete model."""
    files = [info.base_name for info in file_io.list_files(path) if info.is_file]
    for name in sorted(files, key=lambda name: (name != MODEL_JSON, name)):
        with suppress(FileNotFoundError):  # another run may have deleted the file
            file_io.delete_file(f"{path}/{name}")
    file_io.delete_empty_folder(path)  # if another run has written files here, the folder is kept
