"""Trains the experiments of a file on the dataset of a run date, one after another, and compares them.

The trials of a search are experiments too. Optuna proposes the settings of a trial after the earlier trials
have results.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from conf.errors import ConfigError, DataError
from conf.experiments import (
    HEAD,
    Experiment,
    Experiments,
    Search,
    configuration_files,
    nightly_command,
    plan_experiments,
    plan_space,
    plan_trial,
    read_experiments,
    space_values,
)
from conf.types import Config
from jobs.checks import check_experiments, check_plans
from jobs.command_line import job_parser
from jobs.runner import run_with_options
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
    SearchResult,
    TrainingOutcome,
    delete_old_experiments,
    experiments_name,
)
from training.registry.mlflow_comparison import track_comparison
from training.registry.search import Proposals, finished_training, outcome_of
from training.settings import complete

DESCRIPTION = (
    "Trains models with different settings on the dataset of the run date, one after another, and compares "
    "them on the validation split. The experiments file lists the settings, or a space of settings that "
    "Optuna searches. Shows a table, and writes <lake>/reports/comparison-<name>-<run date>.html. Run this "
    "job after build_features. A run that was killed can be repeated: only experiments without a complete "
    "model are trained, and a search continues. No model of a comparison becomes challenger or champion."
)

log = logging.getLogger("nightrank.compare_models")


@dataclass(frozen=True)
class ComparisonRequest:
    """The arguments of the command line.

    Attributes:
        experiments: path of the experiments file (--experiments).
        config: path of the configuration file (--config).
        overrides: the overrides `a.b=value` of the configuration (--set).
        write_best: path of the configuration file to write for the best experiment; None for no file.
    """

    experiments: str
    config: str
    overrides: Sequence[str] = ()
    write_best: str | None = None


@dataclass
class _Trained:
    """The training runs that compare_models has planned or completed so far.

    Attributes:
        dataset: the dataset.
        experiments: the experiments, or the trials, except trials with the settings of an earlier trial.
        outcomes: the outcomes of `experiments`, in the same order.
        plans: maps the name of an experiment and a seed to the plan of the training run. A trial whose
            settings break a rule of the configuration has no plan.
        search: the progress of the search; None if the file has no search.
    """

    dataset: Dataset
    experiments: list[Experiment] = field(default_factory=list)
    outcomes: list[ExperimentOutcome] = field(default_factory=list)
    plans: dict[tuple[str, int], TrainPlan] = field(default_factory=dict)
    search: SearchResult | None = None


def run(context: RunContext, request: ComparisonRequest) -> JobSummary:
    """Compares the experiments, and publishes the result in the lake, as an HTML page, and to MLflow.

    An experiment with a complete model is not trained again. A training run that was killed resumes from its
    last checkpoint. If a training run fails with a DataError, such as a loss that is not finite, the other
    experiments are still trained.

    Raises:
        ConfigError: the file has an error. No model is trained.
        DataError: there is no dataset, or no experiment has a result.
    """
    lake, config = context.lake, context.config
    contents = read_experiments(request.experiments)
    if contents.search is None:
        trained = _train_experiments(context, request, contents)
    else:
        trained = _search(context, request, contents, contents.search)
    comparison = Comparison(contents.name, contents.choose_by, trained.outcomes, trained.search)
    best = comparison.best
    command = nightly_command(request.config, request.overrides, context.run_date, best.changes)
    page = lake.comparison_page(comparison.name, context.run_date)
    with context.phase("publish"):
        _publish(context, trained.dataset, comparison)
        file_io.replace_text(page, comparison_page(comparison, context.run_date, command))
        _write_best(config, request, trained.experiments, comparison)
    with context.phase("track"):
        params = {
            plan.description["version"]: {"model": plan.model.model_dump(), "train": plan.train.model_dump()}
            for plan in trained.plans.values()
        }
        track_comparison(lake, experiments_name(config), context.run_date, comparison, params)
    delete_old_experiments(config)
    print(comparison_text(comparison, context.run_date, command), file=sys.stderr, flush=True)
    return JobSummary(
        output=page,
        rows_in=next(iter(trained.plans.values())).rows,
        facts={
            "comparison": comparison.name,
            "experiments": len(trained.outcomes),
            "trainings": len(trained.plans),
            "failed": [outcome.name for outcome in trained.outcomes if outcome.failure],
            "pruned": [outcome.name for outcome in trained.outcomes if outcome.pruned is not None],
            "choose_by": comparison.choose_by,
            "best": best.name,
            "best_validation": best.mean("validation", comparison.choose_by),
            "best_versions": [training.version for training in best.trainings],
            "command": command,
        },
    )


def _train_experiments(context: RunContext, request: ComparisonRequest, contents: Experiments) -> _Trained:
    """Trains the experiments of a file with the key `runs` or `grid`."""
    with context.phase("plan"):
        experiments = plan_experiments(context.config, contents, request.experiments)
        check_experiments(request.experiments, experiments)
        _require_writable(request)
        dataset = read_dataset(context.lake, context.run_date)
        plans = _plans(context, dataset, experiments)
        check_plans(request.experiments, plans)
    mlflow_mirror.prepare(context.lake)
    outcomes = []
    for experiment in experiments:
        trainings = []
        for seed in experiment.configs:
            place = list(plans).index((experiment.name, seed)) + 1
            where = f"training {place} of {len(plans)}, {experiment.name}, seed {seed}"
            trainings.append(_outcome(context, where, seed, plans[experiment.name, seed]))
        outcomes.append(ExperimentOutcome(experiment.name, experiment.changes, trainings))
    return _Trained(dataset, experiments, outcomes, plans)


def _plans(
    context: RunContext, dataset: Dataset, experiments: Sequence[Experiment]
) -> dict[tuple[str, int], TrainPlan]:
    """Returns the plan of each training run, in the order of the runs."""
    return {
        (experiment.name, seed): make_experiment_plan(config, context.lake, dataset)
        for experiment in experiments
        for seed, config in experiment.configs.items()
    }


def _outcome(context: RunContext, where: str, seed: int, plan: TrainPlan) -> TrainingOutcome:
    """Trains one model if it is not complete yet, and returns its outcome. Log lines begin with `where`."""
    version, steps_per_epoch = plan.description["version"], plan.steps_per_epoch
    outcome = finished_training(plan.model_path, seed, steps_per_epoch, plan.pruning)
    if outcome is not None:
        log.info("%s: model version %s was trained before", where, version)
    else:
        log.info("%s: model version %s", where, version)
        try:
            with context.phase("train"), TrainingBar() as bar:
                description = train_plan(lambda: context.spark, plan, bar.show)
        except DataError as error:
            log.warning("%s is left out of the comparison because its training failed: %s", where, error)
            return TrainingOutcome(seed, version, str(error))
        outcome = outcome_of(description, seed, steps_per_epoch, plan.pruning)
    if outcome.pruned is None:
        context.recorder.record_write(plan.model_path, version)
    else:
        log.info("%s: pruned after %.4g epochs", where, outcome.pruned)
    return outcome


# The functions below train the trials of a search.


def _search(
    context: RunContext, request: ComparisonRequest, contents: Experiments, search: Search
) -> _Trained:
    """Trains the trials of a search, until the number of trials or the time limit is reached.

    If the proposed values break a rule of the configuration, the trial has failed.
    """
    config, path = context.config, request.experiments
    with context.phase("plan"):
        space = plan_space(config, contents, path)
        for examples in space.values():
            check_experiments(path, examples)
        _require_writable(request)
        dataset = read_dataset(context.lake, context.run_date)
        for examples in space.values():
            check_plans(path, _plans(context, dataset, examples))
        seed = config.train.seed if search.seed is None else search.seed
        proposals = Proposals(search, contents.choose_by, seed)
    mlflow_mirror.prepare(context.lake)
    trained, done, since = _Trained(dataset), 0, monotonic()
    repeated: list[tuple[int, int]] = []
    while done < search.trials and not (done and _is_over(search, since)):
        done += 1
        values = proposals.ask()
        try:
            trial = plan_trial(config, contents, path, done, values)
            check_experiments(path, [trial])
            plan = next(iter(_plans(context, dataset, [trial]).values()))
        except ConfigError as error:
            log.warning("trial %d of %d is left out of the comparison: %s", done, search.trials, error)
            trial = Experiment(f"trial {done}", values, {})
            outcome = TrainingOutcome(config.train.seed, "", str(error))
        else:
            earlier = _with_version(trained, plan.description["version"])
            if earlier is not None:
                log.info("trial %d of %d has the settings of %s", done, search.trials, earlier.name)
                repeated.append((done, earlier.trial or 0))
                proposals.tell(earlier.trainings[0])
                continue
            rule = proposals.pruning_rule() if search.prune else None
            where = f"trial {done} of {search.trials}"
            outcome = _outcome(context, where, config.train.seed, replace(plan, pruning=rule))
            trained.plans[trial.name, config.train.seed] = plan
        proposals.tell(outcome)
        trained.experiments.append(trial)
        trained.outcomes.append(ExperimentOutcome(trial.name, trial.changes, [outcome], done))
    trained.search = SearchResult(space_values(search, path), search.trials, done, repeated)
    return trained


def _is_over(search: Search, since: float) -> bool:
    """Returns whether the search has reached its time limit, after which no further trial begins.

    If so, logs a message.
    """
    over = search.timeout is not None and monotonic() - since >= search.timeout
    if over:
        log.info("no further trial begins, because search.timeout=%g s have passed", search.timeout)
    return over


def _with_version(trained: _Trained, version: str) -> ExperimentOutcome | None:
    """Returns the earlier trial that trained the model version `version`; None if there is none."""
    return next((trial for trial in trained.outcomes if trial.trainings[0].version == version), None)


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
    config: Config, request: ComparisonRequest, experiments: Sequence[Experiment], comparison: Comparison
) -> None:
    """Writes the configuration file of the best experiment, if --write-best is set.

    The file has the seed and the baselines of `config`, the configuration of the comparison.
    """
    if request.write_best is None:
        return
    best = next(experiment for experiment in experiments if experiment.name == comparison.best.name)
    measured = next(iter(best.configs.values()))
    kept = {"seed": config.train.seed, "baselines": config.train.baselines}
    train = measured.train.model_copy(update=kept)
    chosen = measured.model_copy(update={"train": train, "model": complete(measured.model)})
    files = configuration_files(request.write_best, request.config, request.overrides, best.changes, chosen)
    for path, text in files.items():
        file_io.replace_text(path, text)


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line: the options of every job, and those of compare_models."""
    parser = job_parser("compare_models", DESCRIPTION)
    parser.add_argument(
        "--experiments",
        required=True,
        metavar="YAML",
        help="experiments file, e.g. conf/experiments/generated.yaml",
    )
    parser.add_argument(
        "--write-best",
        metavar="YAML",
        help="also write a configuration file for the best experiment, which extends the file of --config if "
        "possible; if the experiment or --set changes the model, the model is written to <name>.model.yaml "
        "in the same folder",
    )
    return parser


def _stage(context: RunContext, arguments: argparse.Namespace) -> JobSummary:
    """Compares the experiments that the command line selects."""
    request = ComparisonRequest(
        arguments.experiments, arguments.config, tuple(arguments.overrides), arguments.write_best
    )
    return run(context, request)


if __name__ == "__main__":
    run_with_options("compare_models", _parser(), _stage)
