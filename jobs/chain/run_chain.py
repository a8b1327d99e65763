"""Checks the configuration of a run, and runs the stages of its date one by one, until a stage fails."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from conf.errors import EXIT_CRASHED, EXIT_OK, InfrastructureError, NightrankError
from conf.load import load_config, parse_date
from conf.messages import counted, printable_lines
from jobs.chain.launchers import Interruptions, Launcher, Stage, StageError, StageOutcome, StoppedError
from jobs.chain.steps import ChainStep, RunPlan
from jobs.checks import check_config, check_lists, check_sinks, check_tables, check_training
from reporting.monitoring.run_observer import Observer
from reporting.terminal import StageProgress
from storage import file_io
from storage.job_summary import JobSummary
from storage.leases import lease
from storage.paths import LakePaths
from storage.private_folder import ScratchFolder


@dataclass
class StageRunner:
    """A runner of stages, which writes one progress line per stage.

    Attributes:
        outcomes: the outcomes of the stages that this runner has run, including a stage that failed.
    """

    launcher: Launcher
    interruptions: Interruptions
    progress: StageProgress
    outcomes: list[StageOutcome] = field(default_factory=list)

    def run(self, stages: Sequence[Stage]) -> None:
        """Runs stages one after the other.

        Raises:
            StageError: a stage ended with an exit code other than 0; later stages were not started.
            StoppedError: a signal arrived.
        """
        for stage in stages:
            tick = partial(self.progress.tick, stage.name, stage_log=stage.log)
            try:
                outcome = self.launcher.run(stage, self.interruptions, tick)
            finally:
                self._copy_log(stage)
            self.outcomes.append(outcome)
            if outcome.exit_code != EXIT_OK:
                code = f"exit code {outcome.exit_code}"
                self.progress.finished(stage.name, "FAILED", outcome.seconds, code)
                raise StageError(outcome)
            warnings = outcome.summary.facts.get("quality_warnings", []) if outcome.summary else []
            self.progress.finished(stage.name, "done", outcome.seconds, remark(outcome.summary), warnings)

    def _copy_log(self, stage: Stage) -> None:
        """Copies the log of a stage to a lake that is not local, or prints it if this fails."""
        if stage.remote_log is None or not stage.log.exists():
            return
        text = stage.log.read_text(encoding="utf-8", errors="replace")
        try:
            file_io.replace_text(stage.remote_log, text)
        except (OSError, NightrankError) as error:
            problem = f"{text}\nThis log cannot be copied to {stage.remote_log}: {error}"
            print(printable_lines(problem), file=sys.stderr, flush=True)


def run_chain(plan: RunPlan, runner: StageRunner) -> list[StageOutcome]:
    """Prints the first line of a run, runs its stages, and writes its run record.

    If a stage fails, the report is still written. It shows which stages have run.

    Args:
        plan: the plan that chooses the stages.
        runner: the runner of the stages. It must not have run any stage before.

    Returns:
        The outcomes of the stages, in the order in which they ran.

    Raises:
        StageError: a stage ended with an exit code other than 0.
        StoppedError: a signal arrived.
    """
    retraining = ", retraining" if plan.retrain else ""
    runner.progress.write(f"Run of {plan.run_date}{retraining}  ({runner.launcher.submission.config})")
    first_stages = stages_of(plan, plan.steps_before_gate())
    observer = Observer.begin("nightly", plan.config, plan.run_date, waits=True)
    plan = replace(plan, recorder=observer.run)
    exit_code, failure = EXIT_CRASHED, None
    try:
        try:
            runner.run(first_stages)
            runner.run(stages_of(plan, plan.steps_after_gate()))
        except (StageError, StoppedError) as error:
            if (failed := error.outcome) is not None:
                stage = failed.stage
                observer.record_silent(stage.job, stage.run_date, failed.started_s, failed.seconds, error)
            if isinstance(error, StageError) and error.outcome.stage.job != "report":
                # Raise the error of the stage instead of the error of the report.
                with suppress(StageError, InfrastructureError):
                    runner.run(stages_of(plan, [plan.report_step()]))
            raise
        exit_code = EXIT_OK
    except NightrankError as error:
        exit_code, failure = error.exit_code, error
        raise
    finally:
        summary = summarize(plan, runner.outcomes)
        observer.end(exit_code, summary.seconds, summary, failure)
    seconds = sum(outcome.seconds for outcome in runner.outcomes)
    runner.progress.write(f"  {counted(len(runner.outcomes), 'stage')} in {seconds:.1f} s")
    return runner.outcomes


def summarize(plan: RunPlan, outcomes: Sequence[StageOutcome]) -> JobSummary:
    """Returns the job summary of a run, combined from the job summaries of its stages.

    `seconds` has one entry per stage.
    """
    nothing = JobSummary(None)
    summaries = {outcome.stage.name: outcome.summary or nothing for outcome in outcomes}
    features = summaries.get("build_features", nothing)
    scores = summaries.get("score_daily") or summaries.get("score_rows", nothing)
    return JobSummary(
        summaries.get("report", nothing).output or plan.lake.report(plan.run_date),
        rows_in=features.rows_in or 0,
        rows_out=scores.rows_out or 0,
        dropped=features.dropped or {},
        facts={
            "retrain": plan.retrain,
            "stages": list(summaries),
            "exit_codes": {outcome.stage.name: outcome.exit_code for outcome in outcomes},
        },
        job="nightly",
        run_date=plan.run_date,
        seconds={outcome.stage.name: round(outcome.seconds, 2) for outcome in outcomes},
    )


def stages_of(plan: RunPlan, steps: Sequence[ChainStep]) -> list[Stage]:
    """Converts the steps of a run to stages."""
    return [
        stage_of(plan.lake, plan.run_date, step.name, step.job, step.run_date, step.overrides)
        for step in steps
    ]


def stage_of(
    lake: LakePaths, folder: str, name: str, job: str, run_date: str, overrides: tuple[str, ...] = ()
) -> Stage:
    """Returns a stage whose log is `<lake>/logs/dt=<folder>/<name>.log`.

    If the lake is not local, the output of the stage goes to a temporary file, and is copied to this path
    when the stage has ended.
    """
    path = f"{lake.logs}/dt={folder}/{name}.log"
    if file_io.is_local(path):
        return Stage(job, run_date, Path(path.removeprefix("file://")), overrides)
    return Stage(job, run_date, _temporary_logs() / f"dt={folder}" / f"{name}.log", overrides, path)


@cache
def _temporary_logs() -> Path:
    """Returns a folder that is deleted when the process ends."""
    return ScratchFolder().path


# The functions below make a short remark for the progress line of a stage: the main facts of its job summary.


def remark(summary: JobSummary | None) -> str:
    """Returns the result of a stage in about 50 characters, so that its progress line has about 100.

    Facts that are missing in the summary are left out. The remark is empty if there is no summary.
    """
    if summary is None:
        return ""
    phrases = _BY_JOB.get(summary.job, _rows)(summary)
    return ", ".join(phrase for phrase in phrases if phrase)


def _generate_clicks(summary: JobSummary) -> list[str]:
    best = summary.facts.get("best_auc") or {}
    return [
        _count(summary.rows_out, "row"),
        _count(summary.facts.get("days"), "day"),
        f"best AUC {min(best.values()):.3f} to {max(best.values()):.3f}" if best else "",
    ]


def _build_features(summary: JobSummary) -> list[str]:
    facts, dropped = summary.facts, sum((summary.dropped or {}).values())
    return [
        _count(summary.rows_out, "row"),
        f"{dropped:,} dropped" if dropped else "",
        _phrase("workflow", facts.get("mode"), _short(facts.get("workflow_version"))),
        _count(len(facts.get("quality_warnings", [])), "warning"),
    ]


def _train_model(summary: JobSummary) -> list[str]:
    facts = summary.facts
    return [
        _count(facts.get("steps"), "step"),
        _number("validation AUC", facts.get("auc")),
        _phrase("model", _short(facts.get("version"))),
    ]


def _refit_model(summary: JobSummary) -> list[str]:
    facts = summary.facts
    version = facts.get("version")
    return [
        _count(facts.get("steps"), "step"),
        _phrase("model", _short(version)) if version else "no model was promoted",
    ]


def _evaluate_model(summary: JobSummary) -> list[str]:
    facts = summary.facts
    promoted = facts.get("promoted")
    decision = "" if promoted is None else ("promoted" if promoted else "champion kept")
    return [
        _number("AUC", facts.get("challenger_auc")),
        _number("champion's", facts.get("champion_auc")),
        _number("best", facts.get("best_auc")),
        decision,
        "" if facts.get("unmeasured") is None else "not measured",
    ]


def _learn_blend(summary: JobSummary) -> list[str]:
    facts, chosen = summary.facts, summary.facts.get("chosen")
    ndcgs = [contender["ndcg"] for contender in facts.get("contenders") or []]
    return [
        _phrase("lists ranked by", chosen),
        "" if facts.get("users") != 0 else "no validation clicks to learn from",
        _number(f"validation NDCG@{facts.get('k', 'k')}", max(ndcgs, default=None)),
    ]


def _score_daily(summary: JobSummary) -> list[str]:
    coverage, churn = summary.facts.get("coverage"), summary.facts.get("churn")
    return [
        _count(summary.facts.get("users"), "user"),
        _count(summary.rows_out, "recommendation"),
        "" if coverage is None else f"{coverage:.0%} of items",
        "" if churn is None else f"{churn:.0%} new",
    ]


def _deliver_recommendations(summary: JobSummary) -> list[str]:
    names = ", ".join(str(sink["name"]) for sink in summary.facts.get("sinks", []))
    return [_count(summary.facts.get("users"), "user"), f"to {names}" if names else ""]


def _measure_recommendations(summary: JobSummary) -> list[str]:
    facts = summary.facts
    return [
        f"for {facts['recommendations_date']}" if "recommendations_date" in facts else "",
        _phrase("not measured:", facts.get("unmeasured")),
        _number(f"HR@{facts.get('k', 'k')}", facts.get("hit_rate")),
        _number("lift", facts.get("lift"), 2),
        _number("new users'", _new_users(facts).get("hit_rate")),
        _number("recall", (facts.get("candidates") or {}).get("recall"), 2),
        _treatment(facts.get("experiment") or {}),
        _shown(facts.get("impressions") or {}),
    ]


def _treatment(experiment: Mapping[str, Any]) -> str:
    """Returns the relative difference of NDCG between the variants of an experiment, with its interval."""
    between = (experiment.get("total") or {}).get("differences", {}).get("ndcg") or {}
    low, high = between.get("relative_low"), between.get("relative_high")
    if low is None or high is None:
        return ""
    words = f"treatment {between['relative_difference']:+.1%} ({low:+.1%} to {high:+.1%})"
    return f"{words}, stops on {experiment['stops_on']}" if experiment.get("stops_on") else words


def _shown(impressions: Mapping[str, Any]) -> str:
    """Returns the share of list entries that were shown, and the click rate of the first position."""
    if not impressions.get("entries"):
        return ""
    words = f"{impressions['entries_shown'] / impressions['entries']:.0%} of entries shown"
    positions = (impressions["variants"].get("all") or {}).get("positions") or [{}]
    rate = positions[0].get("click_rate")
    return words if rate is None else f"{words}, {rate:.1%} of the first clicked"


def _new_users(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the measures of the lists of users who are new to the model; empty if they are missing."""
    return (facts.get("cold_start") or {}).get("new_users", {}).get("lists", {})


def _report(summary: JobSummary) -> list[str]:
    return [summary.output or ""]


def _rows(summary: JobSummary) -> list[str]:
    return [
        _count(summary.rows_in, "row in", "rows in"),
        f"{summary.rows_out:,} out" if summary.rows_out else "",
    ]


def _count(count: Any, noun: str, plural: str | None = None) -> str:
    return counted(count, noun, plural) if count else ""


def _number(name: str, value: Any, digits: int = 4) -> str:
    return "" if value is None else f"{name} {value:.{digits}f}"


def _short(version: str | None) -> str | None:
    """Returns the first half of a version's name, which is enough to distinguish the versions of a run."""
    return version and version[:8]


def _phrase(noun: str, *words: Any) -> str:
    """Returns the noun, followed by the words that are not empty; an empty string if all words are empty."""
    present = [str(word) for word in words if word]
    return " ".join([noun, *present]) if present else ""


_BY_JOB: dict[str, Callable[[JobSummary], list[str]]] = {
    "generate_clicks": _generate_clicks,
    "build_features": _build_features,
    "train_model": _train_model,
    "train_retriever": _train_model,
    "evaluate_model": _evaluate_model,
    "refit_model": _refit_model,
    "learn_blend": _learn_blend,
    "score_daily": _score_daily,
    "deliver_recommendations": _deliver_recommendations,
    "measure_recommendations": _measure_recommendations,
    "report": _report,
}


def run_night(arguments: argparse.Namespace, launcher: Launcher, interruptions: Interruptions) -> JobSummary:
    """Runs all stages of one run date, and returns the job summary of the run.

    Args:
        arguments: the parsed command line of nightly.
        launcher: runs the stages. The caller has called its method `prepare`.
        interruptions: stores a signal that arrives, which stops the run.

    Raises:
        NightrankError: the configuration is wrong, a table is missing, another process runs this date, or a
            stage failed.
    """
    config = load_config(arguments.config, arguments.overrides)
    check_config(config)
    if arguments.retrain:
        check_training(config)
        check_lists(config)
    run_date = parse_date(arguments.run_date, future=arguments.future)
    plan = RunPlan(config, run_date, arguments.retrain)
    check_tables(config, plan.run_date)
    check_sinks(config, launcher.submission.properties_of("deliver_recommendations"))
    runner = StageRunner(launcher, interruptions, StageProgress())
    with _run_lease(plan, runner):
        return summarize(plan, run_chain(plan, runner))


def _run_lease(plan: RunPlan, runner: StageRunner) -> AbstractContextManager[None]:
    """Returns the lease (a lock) that lets only one run of this date work. Single jobs do not need it.

    In addition, each job has a lease of its own. With only these leases, the stages of two runs could
    alternate, and a stage of one run could read what the other run has replaced.

    Raises:
        InfrastructureError: another process still has the lease after the seconds of --wait.
        StoppedError: a signal arrived while this process waited.
    """
    is_announced = False

    def check() -> None:
        nonlocal is_announced
        if not is_announced:
            runner.progress.write(f"Waiting for another run of {plan.run_date}, which is still in progress")
            is_announced = True
        runner.interruptions.check()

    wait_s = runner.launcher.submission.wait_s
    return lease(plan.lake, plan.run_date, "nightly", plan.config.name, wait_s, check)
