"""Looks at the first rows of a log, and writes a configuration with a comment above each section."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import yaml

from conf.errors import EXIT_OK, ConfigError, NightrankError
from conf.messages import printable, program_name
from jobs.command_line import report_failure, report_interruption

if TYPE_CHECKING:
    from jobs.new_config.log_columns import NewConfig
DESCRIPTION = (
    "Looks at the first rows of a log, and writes a configuration with which nightly makes lists. It "
    "prints the content of each column, and its choices with their reasons. It asks a question if the rows "
    "do not show which choice is right. Without a terminal, or with --yes, it takes the first answer and "
    "writes the question into the file."
)
_EXAMPLES = 3

_WIDTH = 120
_COMMENTS: Mapping[str, str] = {
    "name": "Name of the model in the registry, and of the tables that belong to this log.",
    "data": "Folder of the raw files; paths below refer to it as {data}.",
    "lake": "Folder of all tables that the jobs write.",
    "log": "The log: its files, its columns, which rows are clicks (label), and the times of the rows.",
    "users": "Attributes of users, one row per user. Users of the log without a row get nulls.",
    "items": "Attributes of items, one row per item. Items without a row are not recommended; with "
    "`missing: serve` they are.",
    "keys": "The columns that identify a user and an item.",
    "history": "The items that the user of a row chose before (column `history`), the most recent one first.",
    "last_values": "Values that describe the item and change over time, such as its price. A row has the "
    "last values of earlier days (columns last_...), because the values in tomorrow's events are not known.",
    "negatives": "The log has only rows of items that users chose. For each row, rows of items that the "
    "user did not choose are added with label 0, to measure the model. train.negatives draws other items for "
    "training.",
    "features": "Groups of columns: the kind of their features, and the operators (docs/operators) in order.",
    "scopes": "Which features depend only on the user, only on the item, or only on the context of a row.",
    "split": "Which rows are for training, for validation and for the test.",
    "model": "docs/models.md has all models and their settings.",
    "candidates": "Which items are scored for a user. The default is all items that the user has not chosen.",
    "score": "k: number of items of a list. context: the values of context columns for which lists are made. "
    "blend: auto measures on validation clicks whether the model, a source, or a blend of them ranks best.",
}
_OF_REFITS = "refit: a promoted model is trained again before it scores, also on validation and test rows."
_OF_TRAINING = "Each training run also measures lists with the rows of the test split. The report shows both."
_OF_MEASURES = f"Lists are measured with the clicks of the day after the run date. {_OF_TRAINING}"
_OF_ONE_TABLE = (
    "Lists are measured with the clicks of the day after the run date, if these rows are added to the log "
    f"after the run. {_OF_TRAINING}"
)
_WITHOUT_TIMES = (
    "Rows have no time, so the clicks of the day after the run date are unknown. Lists are measured only in "
    "each training run, with the rows of the test split. The report shows these measures."
)


def yaml_of(config: NewConfig, questions: Iterable[str]) -> str:
    """Returns the text of the file.

    Args:
        config: the configuration.
        questions: the questions that no person answered.
    """
    parts = [
        "# Written by `nightrank init`. docs/configuration.md describes every key.\n",
        *(_comment(f"QUESTION: {question}") for question in questions),
        "\n",
    ]
    for key, value in config.sections.items():
        parts.append(_comment(_COMMENTS[key]) if key in _COMMENTS else "")
        parts.append(_comment(config.notes[key]) if key in config.notes else "")
        if key == "train" and "refit" in value:
            parts.append(_comment(_OF_REFITS))
        parts.append(_section(key, value))
        if key == "candidates" and config.inactive_filter is not None:
            parts.append(_inactive(config.inactive_filter, "  "))
        if key == "features":
            parts += [
                _comment(f"No feature: {section}.{name}, because {why}.", "  ")
                for section, name, why in config.left_out
            ]
        parts.append("\n" if key not in ("name",) else "")
    if config.inactive_filter is not None and "candidates" not in config.sections:
        parts.append(_inactive(config.inactive_filter, ""))
        parts.append("\n")
    if config.has_lists:
        by_day = config.sections["split"]["by"] == "day"
        of_table = _OF_ONE_TABLE if "event_time" in config.sections["log"] else _WITHOUT_TIMES
        parts.append(_comment(_OF_MEASURES if by_day else of_table))
        parts.append("measure: {against: next_day}\n")
    return "".join(parts)


def _comment(text: str, indent: str = "") -> str:
    return "".join(f"{indent}# {line}\n" for line in wrap(text, _WIDTH - 2))


def _inactive(of_candidates: tuple[str, dict[str, object]], indent: str) -> str:
    """Returns a candidate filter as commented-out YAML. Without `indent`, it begins with `candidates:`."""
    reason, entry = of_candidates
    lines = ["filters:", *_entries([entry])] if indent else ["candidates:", "  filters:", *_entries([entry])]
    return _comment(reason, indent) + "".join(f"# {indent}{line}\n" for line in lines)


def _entries(values: Iterable[object]) -> list[str]:
    return [f"    - {_flow(value)}" for value in values]


def _section(key: str, value: object) -> str:
    """Returns the YAML of a section: its keys on separate lines, and their values in braces."""
    if isinstance(value, Mapping) and (
        key in ("log", "users", "items", "train", "candidates") or len(_flow(value)) > _WIDTH - 20
    ):
        lines = [f"{key}:"]
        for name, inner in value.items():
            if name in ("columns", "sources", "filters") and isinstance(inner, list):
                lines += [f"  {name}:", *_entries(inner)]
            else:
                lines.append(f"  {name}: {_flow(inner)}")
        return "\n".join(lines) + "\n"
    if isinstance(value, list):
        return "\n".join([f"{key}:", *(f"  - {_flow(entry)}" for entry in value)]) + "\n"
    return f"{key}: {_flow(value)}\n"


def _flow(value: object) -> str:
    """Returns a value in one line of YAML. Strings that YAML could read as another type are quoted."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").rstrip("\n")


def main(argv: list[str] | None = None) -> int:
    """Writes the configuration, and prints the job summary. Returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return _run(arguments)
    except NightrankError as error:
        return report_failure("init failed", error)
    except OSError as error:
        return report_failure("init failed", error, "check that the files can be read, then retry")
    except KeyboardInterrupt:
        return report_interruption("init")


def _run(arguments: argparse.Namespace) -> int:
    # These imports take a second. `--help` does not need them, so they are in this function.
    from conf.load import load_config
    from jobs.checks import check_config, check_lists, check_tables, check_training
    from jobs.new_config.configuration import new_config
    from jobs.new_config.log_columns import Wishes
    from jobs.new_config.questions import Questions

    questions = Questions(ask=not arguments.yes and sys.stdin.isatty() and sys.stderr.isatty())
    names = ("log", "users", "items", "user", "item", "time", "label", "name", "lake", "time_zone", "k")
    config = new_config(Wishes(**{name: getattr(arguments, name) for name in names}), questions)
    out = Path(arguments.out or f"{config.sections['name']}.yaml")
    if out.exists() and not arguments.force:
        raise ConfigError(f"{out} exists already", "pass another file as --out, or --force to replace it")
    text = yaml_of(config, questions.open)
    scratch = out.with_name(f"{out.name}.new")
    try:
        scratch.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{out} cannot be written: {error.strerror}", "pass another file as --out"
        ) from error
    try:
        loaded = load_config(str(scratch))
        check_config(loaded)
        check_training(loaded)
        check_lists(loaded)
        check_tables(loaded, config.run_date)
    except NightrankError as error:
        error.remedy = f"{error.remedy}; the configuration that was refused is in {scratch}"
        raise
    os.replace(scratch, out)
    print(_report(config, questions.open), file=sys.stderr)
    lists = (
        f"\n    nightrank show --config {out} --date {config.run_date} --user USER"
        if config.has_lists
        else ""
    )
    print(
        f"\n{out} is written. Next:\n\n    nightrank check --config {out} --run-date {config.run_date}\n"
        f"    nightrank run --config {out} --run-date {config.run_date} --retrain{lists}"
        f"{_when_measured(config)}",
        file=sys.stderr,
    )
    summary = {"job": "init", "output": str(out), "run_date": config.run_date, "questions": questions.open}
    print(json.dumps(summary))
    return EXIT_OK


def _when_measured(config: NewConfig) -> str:
    """Returns a text that says when lists are first measured; empty if the log is not read by day."""
    if not config.has_lists or config.sections["split"]["by"] != "day":
        return ""
    return (
        f"\n\nThe lists of {config.run_date} are measured by the next run, with the clicks of the day after. "
        "To see measures at once, run an earlier date first, and then the date after it."
    )


def _report(config: NewConfig, open_questions: list[str]) -> str:
    """Returns a text: the content of the tables, the choices with their reasons, and the open questions."""
    from reporting.terminal import text_table

    parts = []
    for section, table in config.tables.items():
        sample = table.sample
        rows = [
            (
                one.sampled.source,
                one.type + (f" ({one.sampled.unit})" if one.sampled.unit else ""),
                f"{one.sampled.nulls:,}",
                f"{one.sampled.distinct:,}",
                ", ".join(printable(text)[:24] for text in one.sampled.examples[:_EXAMPLES]),
            )
            for one in table.columns
        ]
        what = "rows" if sample.is_whole else "rows read"
        parts.append(
            f"\n{section}: {sample.path.pattern} ({sample.format}, {sample.rows.num_rows:,} {what})\n"
        )
        parts.append(
            text_table(("column", "type", "nulls", "distinct", "most frequent values"), rows, (2, 3))
        )
    parts.append("\nchosen\n")
    parts.append(text_table(("what", "why"), config.reasons))
    parts += [f"\n? {question}" for question in open_questions]
    return "\n".join(parts)


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=program_name("init.py"),
        description=DESCRIPTION,
        epilog="Exit codes: 0 done, 2 no configuration fits the log or an argument is wrong, 3 a file cannot "
        "be read.",
    )
    parser.add_argument(
        "log", metavar="LOG", help="a file, a folder, or a glob in quotes; the date in a path becomes {date}"
    )
    parser.add_argument("--users", metavar="FILE", help="table with attributes of users")
    parser.add_argument("--items", metavar="FILE", help="table with attributes of items")
    parser.add_argument("--user", metavar="COLUMN", help="column of the log with the user")
    parser.add_argument("--item", metavar="COLUMN", help="column of the log with the item")
    parser.add_argument("--time", metavar="COLUMN", help="column of the log with the time")
    parser.add_argument("--label", metavar="COLUMN", help="column that says which rows are clicks")
    parser.add_argument(
        "--time-zone",
        default="UTC",
        metavar="ZONE",
        help="zone of times without an offset (default: %(default)s)",
    )
    parser.add_argument("--name", help="name of the configuration (default: the name of the log)")
    parser.add_argument("--lake", metavar="FOLDER", help="folder of the lake (default: lake/NAME)")
    parser.add_argument("--k", type=int, default=10, help="number of items of a list (default: %(default)s)")
    parser.add_argument("--out", metavar="YAML", help="the file to write (default: NAME.yaml)")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    parser.add_argument(
        "--yes", action="store_true", help="ask no questions: take the first answer to each of them"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
