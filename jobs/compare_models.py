"""The command line of the stage compare_models."""

from __future__ import annotations

import argparse

from jobs.command_line import job_parser
from jobs.runner import run_with_options
from jobs.stages.compare_models import ComparisonRequest, run
from storage.job_summary import JobSummary
from storage.run_context import RunContext

DESCRIPTION = (
    "Trains models with different settings on the dataset of the run date, one after another, and compares "
    "them on the validation split. The experiments file lists the settings, or a space of settings that "
    "Optuna searches. Shows a table, and writes <lake>/reports/comparison-<name>-<run date>.html. Run it "
    "after build_features. A run that was killed can be repeated: only experiments without a complete model "
    "are trained, and a search continues. No model of a comparison becomes challenger or champion."
)


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
        help="also write the best experiment as a configuration file that extends the one of --config; its "
        "model, if it differs, is written to <name>.model.yaml in the same folder",
    )
    return parser


def _stage(context: RunContext, arguments: argparse.Namespace) -> JobSummary:
    """Runs the stage with the arguments of the command line."""
    request = ComparisonRequest(
        arguments.experiments, arguments.config, tuple(arguments.overrides), arguments.write_best
    )
    return run(context, request)


if __name__ == "__main__":
    run_with_options("compare_models", _parser(), _stage)
