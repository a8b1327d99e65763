"""Converts a lake that an earlier release wrote to the formats of this release, without a Spark session."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from conf.errors import EXIT_DATA, EXIT_OK, NightrankError
from conf.messages import counted, program_name
from jobs.command_line import report_failure
from storage.job_summary import JobSummary
from storage.migration import Survey, migrate, survey
from storage.paths import LakePaths

DESCRIPTION = (
    "Lists the format versions of all files of a lake, and the files that this release would rewrite. "
    "Without --apply, it changes nothing. No other job may use the lake while migrate runs with --apply. "
    "If migrate "
    "is interrupted, start it again: it continues where it stopped."
)


def version_table(survey: Survey) -> str:
    """Returns a table with one line for each kind of file and format version."""
    files = Counter((file.kind.name, file.version, file.kind.version) for file in survey.files)
    to_migrate = Counter((file.kind.name, file.version, file.kind.version) for file in survey.to_migrate)
    lines = [f"  {'Kind of file':<30}  {'Version':>7}  {'Current':>7}  {'Files':>7}  {'To migrate':>10}"]
    for key, count in sorted(files.items()):
        name, version, current = key
        lines.append(f"  {name:<30}  {version:>7}  {current:>7}  {count:>7,}  {to_migrate[key]:>10,}")
    return "\n".join(lines)


def summarize(lake: LakePaths, survey: Survey, *, applied: bool, migrated: int, seconds: float) -> JobSummary:
    """Returns the job summary. It has no run date, no rows and no output."""
    facts = {
        "lake": lake.root,
        "applied": applied,
        "files": len(survey.files),
        "to_migrate": len(survey.to_migrate),
        "migrated": migrated,
        "problems": len(survey.problems),
    }
    summary = JobSummary(None, rows_in=None, rows_out=None, dropped=None, facts=facts)
    return summary.completed("migrate", None, {}, seconds)


def main(argv: list[str] | None = None) -> int:
    """Lists the files of the lake, and migrates them if --apply is given.

    Also prints the job summary. Returns the exit code.
    """
    arguments = _parser().parse_args(argv)
    lake = LakePaths(arguments.lake)
    start = time.monotonic()
    migrated = 0
    try:
        lake_files = survey(lake)
        print(version_table(lake_files))
        for problem in lake_files.problems:
            print(f"{problem}", file=sys.stderr)
        if arguments.apply:
            for file in lake_files.to_migrate:
                migrate(lake, file)
                migrated += 1
            print(f"{counted(migrated, 'partition')} migrated")
        elif lake_files.to_migrate:
            print(
                f"{counted(len(lake_files.to_migrate), 'partition')} would be migrated; nothing was changed: "
                "start again with --apply"
            )
    except NightrankError as error:
        return report_failure(f"migrate failed after {counted(migrated, 'partition')}", error)
    except OSError as error:
        remedy = "check that the lake can be reached, then start migrate again"
        return report_failure(f"migrate failed after {counted(migrated, 'partition')}", error, remedy)
    seconds = time.monotonic() - start
    print(summarize(lake, lake_files, applied=arguments.apply, migrated=migrated, seconds=seconds).line())
    return EXIT_DATA if lake_files.problems else EXIT_OK


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=program_name("migrate.py"),
        description=DESCRIPTION,
        epilog="Exit codes: 0 done, 2 bad arguments, 3 some files are damaged or were written by a newer "
        "release, 4 infrastructure (worth a retry). The last line on standard output is one JSON object.",
    )
    parser.add_argument(
        "--lake", required=True, metavar="PATH", help="the value of the key lake in the configuration"
    )
    parser.add_argument(
        "--apply", action="store_true", help="rewrite the files; without this option, nothing is changed"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
