"""Trains on one rank in this process, without Spark and Horovod, to debug, profile or try out a training run.

python -m training.launch --config my.yaml --run-date 2026-01-08
"""

from __future__ import annotations

import argparse
import logging
import sys
from typing import Any

from conf.errors import EXIT_INFRASTRUCTURE, EXIT_OK, NightrankError
from conf.load import load_config, parse_date
from conf.messages import json_line
from storage.dataset import read_dataset
from storage.paths import LakePaths
from training.loop.run import train_in_process
from training.loop.training_plan import make_plan
from training.registry.model_json import is_complete, read_description

log = logging.getLogger("nightrank.launch")

DESCRIPTION = (
    "Trains the model of a run date on one rank in this process, without Spark. The plan, the checkpoints "
    "and the model's folder are the same as those of train_model, so train_model can resume a training that "
    "was started here. This command does not record the model as the challenger of the run date; train_model "
    "records it, without training again."
)


def main(argv: list[str] | None = None) -> int:
    """Trains a model; returns the exit code: 0 done, 2 bad configuration, 3 bad data, 4 infrastructure."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    logging.getLogger("petastorm").setLevel(logging.WARNING)
    try:
        facts = _train(arguments)
    except NightrankError as error:
        log.error("training failed: %s", error)
        return error.exit_code
    except (OSError, MemoryError):
        log.exception("training failed because of an infrastructure error")
        return EXIT_INFRASTRUCTURE
    print(json_line(facts), flush=True)
    return EXIT_OK


def _train(arguments: argparse.Namespace) -> dict[str, Any]:
    run_date = parse_date(arguments.run_date, future=arguments.future)
    config = load_config(arguments.config, arguments.overrides)
    lake = LakePaths(config.lake)
    plan = make_plan(config, lake, read_dataset(lake, run_date))
    if is_complete(plan.model_path, checksums=True):
        log.info("model version %s has already been trained", plan.description["version"])
        description = read_description(plan.model_path)
    else:
        description = train_in_process(plan)
    keys = ("version", "metrics", "baselines", "steps", "kept", "seconds", "num_ranks")
    return {"output": plan.model_path, **{key: description[key] for key in keys}}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training.launch",
        description=DESCRIPTION,
        epilog="Exit codes: 0 done, 2 bad configuration or arguments, 3 bad data, 4 infrastructure (worth a "
        "retry). The last line on standard output is one JSON object.",
    )
    parser.add_argument("--config", required=True, metavar="YAML", help="configuration of the log")
    parser.add_argument("--run-date", required=True, metavar="YYYY-MM-DD", help="run date of the dataset")
    parser.add_argument("--future", action="store_true", help="accept a run date later than tomorrow (UTC)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="a.b=value",
        dest="overrides",
        help="override one key of the configuration; may be given several times",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
