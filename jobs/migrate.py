"""Brings a lake that an earlier release wrote to the formats of this one. Needs no Spark session."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter

from conf.errors import EXIT_DATA, EXIT_INFRASTRUCTURE, EXIT_OK, NightrankError
from storage.migration import Survey, migrate, survey
from storage.paths import Lake

DESCRIPTION = (
    "Lists the format versions of all files of a lake and says which ones this release would rewrite. It changes nothing without "
    "--apply. Let no job work on the lake while --apply runs. A run that was interrupted goes on when it is started again."
)


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    lake = Lake(arguments.lake)
    start = time.monotonic()
    migrated = 0
    try:
        found = survey(lake)
        print(_table(found))
        for problem in found.problems:
            print(f"{problem}", file=sys.stderr)
        if arguments.apply:
            for file in found.to_migrate:
                migrate(lake, file)
                migrated += 1
            print(f"{migrated} partitions migrated")
        elif found.to_migrate:
            print(
                f"{len(found.to_migrate)} partitions would be migrated; nothing was changed: start again with --apply"
            )
    except NightrankError as error:
        print(f"migrate failed after {migrated} partitions: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        remedy = "check that the lake can be reached, then start migrate again"
        print(f"migrate failed after {migrated} partitions: {error}\n  what to do: {remedy}", file=sys.stderr)
        return EXIT_INFRASTRUCTURE
    summary = {
        "job": "migrate",
        "lake": lake.root,
        "applied": arguments.apply,
        "files": len(found.files),
        "to_migrate": len(found.to_migrate),
        "migrated": migrated,
        "problems": len(found.problems),
        "seconds": {"total": round(time.monotonic() - start, 2)},
    }
    print(json.dumps(summary, allow_nan=False))
    return EXIT_DATA if found.problems else EXIT_OK


def _table(found: Survey) -> str:
    """A line for each kind of file and version."""
    counts = Counter((file.kind.name, file.version, file.kind.version) for file in found.files)
    work = Counter((file.kind.name, file.version, file.kind.version) for file in found.to_migrate)
    lines = [f"  {'Kind of file':<30}  {'Version':>7}  {'Current':>7}  {'Files':>7}  {'To migrate':>10}"]
    for key, count in sorted(counts.items()):
        name, version, current = key
        lines.append(f"  {name:<30}  {version:>7}  {current:>7}  {count:>7,}  {work[key]:>10,}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="migrate.py",
        description=DESCRIPTION,
        epilog="Exit codes: 0 done, 2 bad arguments, 3 files that are damaged or of a newer release, 4 infrastructure (worth a "
        "retry). The last line on standard output is one JSON object.",
    )
    made.add_argument(
        "--lake", required=True, metavar="PATH", help="folder or URI of the lake, as in the configuration"
    )
    made.add_argument(
        "--apply", action="store_true", help="rewrite the files; without it, nothing is changed"
    )
    return made


if __name__ == "__main__":
    sys.exit(main())
