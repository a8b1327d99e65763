"""Trains the experiments of a file on the dataset of a run date, one after another, and compares them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.errors import ConfigError, DataError
from conf.experiments import (
    HEAD,
    Experiment,
    configuration_files,
    nightly_command,
    plan_experiments,
    read_experiments,
)
from jobs.checks.config_checks import check_experiments, check_plans
from reporting.html.page import comparison_page
from reporting.inspect.model_tables import comparison_text
from reporting.terminal import TrainingBar
from storage import file_io
from storage.dataset import Dataset, read_dataset
from storage.job_summary import JobSummary
from storage.manifest import digest_of
from storage.publish import publish_facts
from storage.run_context import RunContext
from training.launch import train_plan
from training.loop.training_plan import TrainPlan, make_experiment_plan
from training.registry import mlflow_mirror
from training.registry.comparison import (
    Comparison,
    ExperimentOutcome,
    TrainingOutcome,
    delete_old_experiments,
    experiments_name,
)
from training.registry.mlflow_comparison import track_comparison
from training.registry.model_json import is_complete, read_description
from training.settings import complete

log = logging.getLogger("nightrank.compare_models")

Plans = Mapping[tuple[str, int], TrainPlan]


@dataclass(frozen=True)
class ComparisonRequest:
    """What the command line asks for.

    Attributes:
        experiments: path of the experiments file.
        config: path of the configuration file.
        overrides: the overrides `a.b=value` of the configuration.
        write_best: path of the configuration file to write for the best experiment; None for no file.
    """

    experiments: str
    config: str
    overrides: Sequence[str] = ()
    write_best: str | None = None


def run(context: RunContext, request: ComparisonRequest) -> JobSummary:
    """Compares the experiments, and publishes the result as facts, as a page, and to MLflow.

    An experiment with a complete model is not trained again. A training that was killed resumes from its
    last checkpoint. If a training fails with a DataError, such as a loss that is not finite, the other
    experiments are still trained.

    Raises:
        ConfigError: the file has an error; then nothing is trained.
        DataError: there is no dataset, or no experiment has a result.
    """
    lake, config = context.lake, context.config
    with context.phase("plan"):
        contents = read_experiments(request.experiments)
        experiments = plan_experiments(config, contents, request.experiments)
        check_experiments(request.experiments, experiments)
        _require_writable(request)
        dataset = read_dataset(lake, context.run_date)
        plans = _plans(context, dataset, experiments)
        check_plans(request.experiments, plans)
    mlflow_mirror.prepare(lake)
    outcomes = [
        ExperimentOutcome(
            experiment.name,
            experiment.changes,
            [_outcome(context, experiment.name, seed, plans) for seed in experiment.configs],
        )
        for experiment in experiments
    ]
    comparison = Comparison(contents.name, contents.choose_by, outcomes)
    best = comparison.best
    command = nightly_command(request.config, request.overrides, context.run_date, best.changes)
    page = lake.comparison_page(comparison.name, context.run_date)
    with context.phase("publish"):
        _publish(context, dataset, comparison)
        file_io.replace_text(page, comparison_page(comparison, context.run_date, command))
        _write_best(request, experiments, comparison)
    with context.phase("track"):
        params = {
            plan.description["version"]: {"model": plan.model.model_dump(), "train": plan.train.model_dump()}
            for plan in plans.values()
        }
        track_comparison(lake, experiments_name(config), context.run_date, comparison, params)
    delete_old_experiments(config)
    print(comparison_text(comparison, context.run_date, command), file=sys.stderr, flush=True)
    return JobSummary(
        output=page,
        rows_in=next(iter(plans.values())).rows,
        facts={
            "comparison": comparison.name,
            "experiments": len(outcomes),
            "trainings": len(plans),
            "failed": [outcome.name for outcome in outcomes if outcome.failure],
            "choose_by": comparison.choose_by,
            "best": best.name,
            "best_validation": best.mean("validation", comparison.choose_by),
            "best_versions": [training.version for training in best.trainings],
            "command": command,
        },
    )


def _plans(context: RunContext, dataset: Dataset, experiments: Sequence[Experiment]) -> Plans:
    """Returns the plan of each training, in the order of the trainings."""
    return {
        (experiment.name, seed): make_experiment_plan(config, context.lake, dataset)
        for experiment in experiments
        for seed, config in experiment.configs.items()
    }


def _outcome(context: RunContext, name: str, seed: int, plans: Plans) -> TrainingOutcome:
    """Trains one model unless it is complete, and returns its outcome."""
    plan, place = plans[name, seed], list(plans).index((name, seed)) + 1
    version = plan.description["version"]
    where = f"training {place} of {len(plans)}, {name}, seed {seed}"
    if is_complete(plan.model_path, checksums=True):
        log.info("%s: model version %s was trained before", where, version)
        description = read_description(plan.model_path)
    else:
        log.info("%s: model version %s", where, version)
        try:
            with context.phase("train"), TrainingBar() as bar:
                description = train_plan(lambda: context.spark, plan, bar.show)
        except DataError as error:
            log.warning("%s is left out of the comparison because its training failed: %s", where, error)
            return TrainingOutcome(seed, version, str(error))
    context.recorder.record_write(plan.model_path, version)
    return TrainingOutcome.of(seed, description, plan.steps_per_epoch)


def _publish(context: RunContext, dataset: Dataset, comparison: Comparison) -> None:
    """Publishes the result in the table of the comparison."""
    partition = context.lake.comparisons(comparison.name).partition(context.run_date)
    inputs = {"dataset": dataset.digest, "models": digest_of(comparison.versions)}
    publish_facts(partition, inputs=inputs, facts=comparison.facts())


def _require_writable(request: ComparisonRequest) -> None:
    """Raises ConfigError if --write-best names a file that compare_models did not write."""
    path = request.write_best
    if path is None:
        return
    if not path.endswith((".yaml", ".yml")):
        raise ConfigError(
            f"--write-best {path!r} is not the path of a YAML file", "write a path such as best.yaml"
        )
    for file in (Path(path), Path(path).with_suffix(".model.yaml")):
        if file.is_dir() or (file.is_file() and not file_io.read_text(str(file)).startswith(HEAD)):
            raise ConfigError(
                f"--write-best would replace {file}, which compare_models did not write",
                "write the path of a new file, or delete that file",
            )


def _write_best(
    request: ComparisonRequest, experiments: Sequence[Experiment], comparison: Comparison
) -> None:
    """Writes the configuration file of the best experiment, if the command line asks for it."""
    if request.write_best is None:
        return
    best = next(experiment for experiment in experiments if experiment.name == comparison.best.name)
    config = next(iter(best.configs.values()))
    model = complete(config.model)
    files = configuration_files(request.write_best, request.config, best.changes, config, model)
    for path, text in files.items():
        file_io.replace_text(path, text)
