"""Checks the configuration of a night, and runs its stages."""

from __future__ import annotations

import argparse

from conf.load import load_config, parse_date
from jobs.chain.run_chain import StageRunner, log_path, run_chain, summarize
from jobs.chain.steps import RunPlan
from jobs.chain.submit import Interruptions, Launcher
from jobs.checks import check_config, check_lists, check_sinks, check_tables, check_training
from reporting.terminal import StageProgress
from storage.job_summary import JobSummary


def run_night(arguments: argparse.Namespace, launcher: Launcher, interruptions: Interruptions) -> JobSummary:
    """Runs all stages of one run date, and returns the job summary of the run.

    Args:
        arguments: the arguments of nightly.
        launcher: runs the stages. It has been prepared.
        interruptions: the signals that have arrived.

    Raises:
        NightrankError: the configuration is wrong, a table is missing, or a stage failed.
    """
    config = load_config(arguments.config, arguments.overrides)
    check_config(config)
    if arguments.retrain:
        check_training(config)
        check_lists(config)
    run_date = parse_date(arguments.run_date, future=arguments.future)
    plan = RunPlan(config, run_date, arguments.retrain)
    # Before the lake is read, reject a lake that cannot store logs.
    log_path(plan.lake, plan.run_date, "nightly")
    check_tables(config, plan.run_date)
    check_sinks(config, launcher.submission.properties)
    return summarize(plan, run_chain(plan, StageRunner(launcher, interruptions, StageProgress())))
