"""The command line of init, which needs no configuration and no Spark session."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from conf.errors import EXIT_OK, ConfigError, NightrankError
from conf.messages import printable, program_name
from jobs.command_line import report_failure, report_interruption

if TYPE_CHECKING:
    from jobs.new_config.configuration import NewConfig

DESCRIPTION = (
    "Looks at the first rows of a log, and writes a configuration with which nightly makes lists. It "
    "prints the content of each column, and its choices with their reasons. It asks a question if the rows "
    "do not decide. Without a terminal, or with --yes, it takes the first answer and writes the question "
    "into the file."
)
_EXAMPLES = 3


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
    from jobs.new_config.configuration import Wishes, new_config
    from jobs.new_config.questions import Questions
    from jobs.new_config.yaml_text import yaml_of

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
        f"    nightrank run --config {out} --run-date {config.run_date} --retrain{lists}",
        file=sys.stderr,
    )
    summary = {"job": "init", "output": str(out), "run_date": config.run_date, "questions": questions.open}
    print(json.dumps(summary))
    return EXIT_OK


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
        "log", metavar="LOG", help="a file, a folder, or a glob in quotes; a day in names becomes {date}"
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
