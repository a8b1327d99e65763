"""Compares all files of a lake with their manifests. The job needs no Spark session."""

from __future__ import annotations

import argparse
import sys
import time

from conf.errors import EXIT_DATA, EXIT_OK, NightrankError
from conf.messages import counted, printable, program_name
from jobs.command_line import INTERRUPTED, report_failure, report_interruption
from jobs.stages.fsck import check_descriptions, summarize
from storage.fsck import Findings, check_lake, repair
from storage.paths import LakePaths

DESCRIPTION = (
    "Compares every data file of a lake with the digest in its manifest, and parses the JSON files of the "
    "lake. Prints each damaged file, the difference, and the job that writes the file again. Without "
    "--repair, it changes nothing. Files of earlier releases and raw logs have no digests. The job counts "
    "them as unverified, and compares only their sizes."
)
_PROGRESS_S = 10.0


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
    """Writes the counts to standard error every ten seconds."""

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
        help="mark damaged partitions, so that the next run of the job that writes a partition writes it "
        "again; no data file is deleted",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
