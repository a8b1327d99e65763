"""Compares all files of a lake with their manifests, and checks its models and workflows.

The job needs no Spark session.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from conf.errors import EXIT_DATA, EXIT_OK, DataError, NightrankError
from conf.messages import counted, printable, program_name
from etl.workflow.fitted_workflow import load_local
from jobs.command_line import INTERRUPTED, report_failure, report_interruption
from storage import file_io, format_versions
from storage.format_versions import Format
from storage.fsck import Damage, Findings, check_lake, repair
from storage.job_summary import JobSummary
from storage.paths import LakePaths
from training.registry.champion_history import (
    OVERRIDES,
    PROMOTIONS,
    dated_path,
    dates_of,
    parse_decision,
    parse_overrides,
)
from training.registry.model_json import MODEL_JSON, damage_of_model, is_described
from training.registry.refits import REFITS, parse_refit

DESCRIPTION = (
    "Compares every data file of a lake with the digest in its manifest, and parses the JSON files of the "
    "lake. Prints each damaged file, the difference, and the job that writes the file again. Without "
    "--repair, it changes nothing. Files of earlier releases and raw logs have no digests. The job counts "
    "them as unverified, and compares only their sizes."
)
_PROGRESS_S = 10.0

# The folders of a model that have one JSON file per date, with the format and parser of these files.
_DATED: dict[str, tuple[Format, Callable[[dict[str, Any]], object]]] = {
    PROMOTIONS: (format_versions.PROMOTION, parse_decision),
    OVERRIDES: (format_versions.INTERVENTION, parse_overrides),
    REFITS: (format_versions.TRAINED_VERSION, parse_refit),
}
_REMEDY_OF_MODEL = (
    "run train_model again for the date on which this model was trained; until then, the previous champion "
    "can serve in its place (`nightrank champion --rollback`)"
)


def check_descriptions(lake: LakePaths, findings: Findings) -> Findings:
    """Adds damaged models, and damaged JSON files of models and workflows, to the findings about the lake."""
    known = {damage.path for damage in findings.damages}
    further = [damage for damage in _damages(lake) if damage.path not in known]
    findings.damages = (*findings.damages, *further)
    return findings


def _damages(lake: LakePaths) -> Iterator[Damage]:
    for version in _folders(lake.workflow("").rstrip("/")):
        path = f"{lake.workflow(version)}/workflow.json"
        if file_io.exists(path):
            yield from _parsed(path, partial(load_local, lake, version))
    for name in _folders(lake.models("").rstrip("/")):
        for folder, (kind, parse) in _DATED.items():
            for date in dates_of(lake, name, folder):
                path = dated_path(lake, name, folder, date)
                yield from _parsed(path, partial(kind.load, path, parse))
        for version in _folders(lake.models(name)):
            folder = f"{lake.models(name)}/{version}"
            if is_described(folder) and (problem := damage_of_model(folder)) is not None:
                yield Damage("models", version, f"{folder}/{MODEL_JSON}", problem, _REMEDY_OF_MODEL)


def _parsed(path: str, parse: Callable[[], object]) -> Iterator[Damage]:
    """Yields a finding if a file cannot be parsed."""
    try:
        parse()
    except DataError as error:
        yield Damage("", "", path, error.problem.removeprefix(f"{path} "), error.remedy)


def _folders(path: str) -> list[str]:
    return [info.base_name for info in file_io.list_files(path) if not info.is_file]


def summarize(lake: LakePaths, findings: Findings, *, changes: int, seconds: float) -> JobSummary:
    """Returns the job summary. It has no run date, no rows and no output."""
    facts = {
        "lake": lake.root,
        "partitions": findings.partitions,
        "files": findings.files,
        "bytes": findings.bytes,
        "unverified": findings.unverified,
        "damaged": len(findings.damages),
        "changes": changes,
    }
    summary = JobSummary(None, rows_in=None, rows_out=None, dropped=None, facts=facts)
    return summary.completed("fsck", None, {}, seconds)


def main(argv: list[str] | None = None) -> int:
    """Checks a lake, repairs it if --repair is given, and prints the job summary. Returns the exit code."""
    arguments = _parser().parse_args(argv)
    lake = LakePaths(arguments.lake)
    start = time.monotonic()
    changes = 0
    try:
        findings = check_lake(lake, _Progress())
        findings = check_descriptions(lake, findings)
        for damage in findings.damages:
            print(printable(f"{damage.path} is damaged: {damage.difference}"))
            print(printable(f"  what to do: {damage.remedy}"))
        if arguments.repair:
            for text in repair(lake, findings):
                print(printable(text))
                changes += 1
    except NightrankError as error:
        return report_failure("fsck failed", error)
    except OSError as error:
        return report_failure("fsck failed", error, "check that the lake can be reached, then start again")
    except KeyboardInterrupt:
        report_interruption("fsck")
        return INTERRUPTED
    print(
        f"{counted(findings.files, 'data file')} of {counted(findings.partitions, 'partition')} compared, "
        f"{counted(findings.unverified, 'file')} unverified, {counted(len(findings.damages), 'file')} damaged"
    )
    if findings.damages and not arguments.repair:
        print("start fsck again with --repair: then the next runs of these jobs write the tables again")
    print(summarize(lake, findings, changes=changes, seconds=time.monotonic() - start).line())
    return EXIT_DATA if findings.damages else EXIT_OK


class _Progress:
    """Writes the number of compared files to standard error every ten seconds."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, findings: Findings) -> None:
        now = time.monotonic()
        if now - self._last < _PROGRESS_S:
            return
        self._last = now
        gib = findings.bytes / 2**30
        print(f"fsck: {counted(findings.files, 'file')}, {gib:.1f} GiB compared", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=program_name("fsck.py"),
        description=DESCRIPTION,
        epilog="Exit codes: 0 nothing is damaged, 2 bad arguments, 3 files are damaged (even if --repair "
        "has marked them), 4 infrastructure (worth a retry). The last line on standard output is one JSON "
        "object.",
    )
    parser.add_argument(
        "--lake",
        default=".",
        metavar="PATH",
        help="the value of the key lake in the configuration (default: the current folder)",
    )
    parser.add_argument(
        "--repair",
        action="store_true",
        help="mark damaged partitions, so that each job rewrites its damaged partitions when it runs next; "
        "no data file is deleted",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
