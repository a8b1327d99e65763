"""Runs the demo: generates a click log, runs the chain for some dates, and measures the last lists."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from conf.errors import EXIT_OK, ConfigError, DataError, NightrankError
from conf.load import load_config, parse_date
from conf.messages import counted, program_name
from conf.types import Config
from jobs.chain.launchers import (
    JOBS,
    Interruptions,
    Launcher,
    StageOutcome,
    Submission,
    add_isolate,
    launcher_of,
)
from jobs.chain.run_chain import StageRunner, run_chain, stage_of
from jobs.chain.steps import RunPlan
from jobs.checks import check_config, check_lists, check_training
from jobs.command_line import add_future, report_failure
from reporting.elements import numbers
from reporting.facts.run_facts import (
    MeasuredRelevance,
    RunFacts,
    UserList,
    logistic_regression,
    read_run_facts,
    sample_lists,
)
from reporting.terminal import StageProgress, text_table
from spark.profile import DEFAULT_PROFILE
from storage.paths import LakePaths

DESCRIPTION = (
    "Generates a click log, runs all stages with retraining for a few run dates, compares the last "
    "lists with the generated clicks of the next day, and prints the results."
)
EXIT_MISSED = 1
_DEFAULT_CONFIG = "conf/datasets/generated.yaml"

_MARKER = ".nightrank_demo"
_USERS, _POSITIONS = 3, 5


@dataclass(frozen=True)
class Calendar:
    """The days of a demo.

    Attributes:
        first: the first day of the generated log.
        run_dates: the run dates, in ascending order.
        held_out: the day after the last run date. No stage of a run reads the log of this day.
    """

    first: str
    run_dates: tuple[str, ...]
    held_out: str


def run_demo(
    launcher: Launcher, out: Path, num_runs: int, interruptions: Interruptions, progress: StageProgress
) -> bool:
    """Generates the log, runs all stages, and prints the result.

    Args:
        launcher: runs the stages. Its configuration must have a section `generate`, and its overrides must
            put the lake into `out`.
        out: the folder of the demo. It is emptied first.
        num_runs: number of run dates, at least 1.
        interruptions: the signals that this process has received.
        progress: prints progress and the result.

    Returns:
        Whether a figure missed its target.

    Raises:
        ConfigError: the configuration, the number of runs, the run dates or the folder cannot be used.
        StageError: a stage failed.
        StoppedError: a signal arrived.
    """
    start = time.monotonic()
    config = load_config(launcher.submission.config, list(launcher.submission.overrides))
    check_config(config)
    days = calendar(config, num_runs)
    parse_date(days.run_dates[-1], future=launcher.submission.future)
    launcher.prepare(train=True)
    check_training(config)
    check_lists(config)
    make_fresh(out)
    lake, last = LakePaths(config.lake), days.run_dates[-1]

    progress.write(f"Nightrank demo: {counted(num_runs, 'run')} on a generated click log, in {out}/")
    generate = stage_of(lake, days.first, "generate_clicks", "generate_clicks", days.first)
    StageRunner(launcher, interruptions, progress).run([generate])
    outcomes = {}
    for run_date in days.run_dates:
        progress.write()
        runner = StageRunner(launcher, interruptions, progress)
        outcomes[run_date] = run_chain(RunPlan(config, run_date, retrain=True), runner)
    progress.write(f"\nThe lists of {last} against the clicks of {days.held_out}, which no stage has seen")
    measures = "measure_recommendations"
    measure = stage_of(lake, days.held_out, measures, measures, last)
    report = stage_of(lake, last, "report", "report", last)
    StageRunner(launcher, interruptions, progress).run([measure, report])

    missed = _print_quality(config, last, progress)
    progress.write(f"\nSeconds by stage\n{seconds_table(outcomes)}")
    progress.write(f"\nAll in {time.monotonic() - start:.0f} s. Report: {Path(lake.report(last)).resolve()}")
    return missed


def _print_quality(config: Config, run_date: str, progress: StageProgress) -> bool:
    """Prints some lists of a run date, and quality figures with their targets.

    Returns True if a figure missed its target.
    """
    lake, facts = LakePaths(config.lake), read_run_facts(config, run_date)
    if facts.recommendations is not None:
        partition = lake.recommendations.partition(run_date)
        lists = sample_lists(lake, partition, facts.recommendations, None, _USERS)
        progress.write(
            f"\nRecommendations of {run_date} for {_USERS} users, the first {_POSITIONS} of {config.score.k}"
        )
        progress.write(_lists_table(lists))
    figures = verdict(facts)
    progress.write(f"\nWhat they are worth\n{verdict_table(figures)}")
    return any(figure.met is False for figure in figures)


def calendar(config: Config, num_runs: int) -> Calendar:
    """Returns the days of a demo. The log has all train, validation and test days of the first run date.

    Raises:
        ConfigError: the log is not generated by day, or has no day after the last run date.
    """
    split, generate = config.split, config.generate
    if generate is None or split.by != "day":
        raise ConfigError(
            "the demo needs the section `generate` and split.by=day",
            "use conf/datasets/generated.yaml or a file that extends it",
        )
    if num_runs < 1:
        raise ConfigError(f"--nights {num_runs} is less than 1", "pass --nights 1 or more")
    window = split.train_days + split.validation_days + split.test_days
    if generate.days < window + num_runs:
        raise ConfigError(
            f"generate.days={generate.days} is too few: {counted(num_runs, 'run')} "
            f"{'needs' if num_runs == 1 else 'need'} {window + num_runs} days, "
            f"{window} for the window of the first run (section `split`), one for each later run, and one "
            "for measuring the last lists",
            f"pass --set generate.days={window + num_runs}, or a smaller --nights",
        )
    days = [_days_after(generate.first_date, window - 1 + index) for index in range(num_runs + 1)]
    return Calendar(generate.first_date, tuple(days[:-1]), days[-1])


def _days_after(day: str, days: int) -> str:
    """Returns the ISO date that is `days` days later."""
    return (date.fromisoformat(day) + timedelta(days=days)).isoformat()


def make_fresh(folder: Path) -> None:
    """Empties the demo's folder. Deletes only folders that a demo has written.

    Raises:
        ConfigError: the folder contains files but not the marker file of the demo, is a file, or cannot be
            written.
    """
    try:
        if folder.exists() and any(folder.iterdir()) and not (folder / _MARKER).exists():
            raise ConfigError(
                f"{folder}/ was not made by the demo",
                "move this folder away, or pass another folder as --out",
            )
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / _MARKER).touch()
    except OSError as error:
        raise ConfigError(
            f"--out {folder} cannot be emptied and written: {error}", "pass another folder as --out"
        ) from error


def _lists_table(lists: Sequence[UserList]) -> str:
    """Returns a table with the first items of each user's list."""
    rows = [
        [user_list.user if position == 1 else "", str(position), item, numbers.decimal(score)]
        for user_list in lists
        for position, item, score, _ in user_list.entries[:_POSITIONS]
    ]
    return text_table(["User", "Position", "Item", "Score"], rows, right=(1, 3))


def seconds_table(outcomes: Mapping[str, Sequence[StageOutcome]]) -> str:
    """Returns a table of the seconds that each stage took: one row for each stage, one column for each run.

    The last row contains the sum of each run. If a run did not have a stage, the cell is empty.
    """
    seconds = {run: {outcome.stage.name: outcome.seconds for outcome in of} for run, of in outcomes.items()}
    longest_first = sorted(seconds.values(), key=len, reverse=True)
    names = dict.fromkeys(name for by_stage in longest_first for name in by_stage)
    rows = [
        [name, *(f"{by_stage[name]:.1f}" if name in by_stage else "" for by_stage in seconds.values())]
        for name in names
    ]
    rows.append(["all stages", *(f"{sum(by_stage.values()):.1f}" for by_stage in seconds.values())])
    return text_table(["Stage", *outcomes], rows, right=range(1, len(outcomes) + 1))


# The result of the demo: its figures, their targets, and whether each figure meets its target.

MODEL_SHARE, BASELINE_SHARE, LIFT = 0.9, 0.8, 1.5


@dataclass(frozen=True)
class TargetFigure:
    """One line of the result. `met` is None if the figure has no target."""

    name: str
    value: str
    target: str = ""
    met: bool | None = None


def verdict(run: RunFacts) -> list[TargetFigure]:
    """Returns the figures of a measured run. The log is generated, so its best possible AUC is known.

    Raises:
        DataError: the run was not evaluated, or its lists were not measured.
    """
    if run.evaluation is None or run.judged is None or run.measure is None or run.measure.dt != run.run_date:
        raise DataError(
            f"the run of {run.run_date} has no evaluation or no measure of its lists",
            "run nightly --retrain for this date, then measure_recommendations",
        )
    best = run.evaluation.get("best_auc")
    logistic = logistic_regression(run.evaluation)
    return [
        TargetFigure(f"Best AUC the log of {run.run_date} allows", numbers.decimal(best)),
        *_auc_figures(
            "DLRM", run.judged["auc"], best, f"at least {MODEL_SHARE}", lambda share: share >= MODEL_SHARE
        ),
        *_auc_figures(
            "Logistic regression",
            logistic["auc"] if logistic else None,
            best,
            f"below {BASELINE_SHARE}",
            lambda share: share < BASELINE_SHARE,
        ),
        *_hit_rates(run.measure),
    ]


def _auc_figures(
    name: str, auc: float | None, best: float | None, target: str, meets: Callable[[float], bool]
) -> list[TargetFigure]:
    """Returns two figures of a model: the AUC, and (AUC - 0.5) / (best AUC - 0.5) with its target."""
    share = numbers.share_reached(auc, best)
    return [
        TargetFigure(f"{name}: AUC", numbers.decimal(auc)),
        TargetFigure(
            f"{name}: (AUC - 0.5) / (best - 0.5)",
            numbers.decimal(share, 3),
            target,
            share is not None and meets(share),
        ),
    ]


def _hit_rates(measure: MeasuredRelevance) -> list[TargetFigure]:
    """Returns the hit rate of the lists, the hit rate of the most popular items, and their ratio (lift)."""
    values = measure.values
    k, lift = values["k"], values["lift"]
    return [
        TargetFigure(f"Recommendations: HR@{k} on the day after", numbers.decimal(values["hit_rate"])),
        TargetFigure(f"Most popular items: HR@{k}", numbers.decimal(values["popular"]["hit_rate"])),
        TargetFigure("Lift", numbers.decimal(lift, 2), f"at least {LIFT}", lift is not None and lift >= LIFT),
        *_ceiling(values.get("truth"), k),
    ]


def _ceiling(truth: Mapping[str, Any] | None, k: int) -> list[TargetFigure]:
    """Returns hit rates of lists ranked by the true probabilities, and a ratio for the published lists.

    This ratio is the hit rate of the published lists, divided by that of the best possible lists. The result
    is empty if the true probabilities are unknown.
    """
    if truth is None:
        return []
    return [
        TargetFigure(
            f"Lists by true click probability: HR@{k}",
            numbers.decimal(truth["click_probability"]["hit_rate"]),
        ),
        TargetFigure(f"Best possible lists: HR@{k}", numbers.decimal(truth["best"]["hit_rate"])),
        TargetFigure("Recommendations: HR / best HR", numbers.decimal(truth["share_of_best"], 3)),
    ]


def verdict_table(figures: list[TargetFigure]) -> str:
    """Returns the figures as a table for a terminal."""
    outcome = {True: "met", False: "MISSED", None: ""}
    rows = [[figure.name, figure.value, figure.target, outcome[figure.met]] for figure in figures]
    return text_table(["Figure", "Value", "Target", ""], rows, right=(1,))


def main(argv: list[str] | None = None) -> int:
    """Runs the demo and returns its exit code."""
    arguments = _parser().parse_args(argv)
    overrides = (*arguments.overrides, f"lake={arguments.out}/lake")
    config = arguments.config or str(JOBS.parent / _DEFAULT_CONFIG)
    submission = Submission(arguments.profile, config, overrides, future=arguments.future)
    try:
        launcher = launcher_of(submission, isolate=arguments.isolate)
        with Interruptions() as interruptions, closing(launcher):
            missed = run_demo(launcher, Path(arguments.out), arguments.nights, interruptions, StageProgress())
    except NightrankError as error:
        return report_failure("demo failed", error)
    return EXIT_MISSED if missed and arguments.strict else EXIT_OK


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the demo's command line."""
    parser = argparse.ArgumentParser(
        prog=program_name("demo.py"),
        description=DESCRIPTION,
        epilog="Exit codes: 0 done, 1 a target was missed (with --strict), 2 bad configuration or "
        "arguments, otherwise the exit code of the stage that failed.",
    )
    parser.add_argument(
        "--config",
        metavar="YAML",
        help=f"configuration with a section generate (default: {_DEFAULT_CONFIG} of the project)",
    )
    parser.add_argument(
        "--nights", type=int, default=3, metavar="N", help="number of run dates (default: %(default)s)"
    )
    parser.add_argument(
        "--out",
        default="demo_out",
        metavar="FOLDER",
        help="folder for the lake, which is emptied first (default: %(default)s)",
    )
    parser.add_argument(
        "--profile",
        default=DEFAULT_PROFILE,
        metavar="CONF",
        help="Spark properties file (default: %(default)s)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="a.b=value",
        dest="overrides",
        help="override one key of the configuration; may be given several times",
    )
    add_future(parser)
    add_isolate(parser)
    parser.add_argument("--strict", action="store_true", help="end with exit code 1 if a target is missed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
