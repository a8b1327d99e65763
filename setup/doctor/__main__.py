"""The command `python -m setup.doctor`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial

from conf.errors import ConfigError
from conf.load import load_config
from conf.messages import program_name
from setup.doctor import gpus, lake, resources, software, yarn
from setup.doctor.findings import Check, findings_of, shown
from setup.doctor.profile import Profile, read_profile

_DEFAULT_PROFILE = "local"
_FINE, _TO_CORRECT, _WRONG_ARGUMENTS = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Checks this node, prints the findings, and returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        profile = read_profile(options.profile or [_DEFAULT_PROFILE], options.master)
        path = options.lake
        if options.config is not None and path is None:
            path = load_config(options.config, options.set).lake
    except ConfigError as error:
        print(f"error: {error.problem}\n  {error.remedy}", file=sys.stderr)
        return _WRONG_ARGUMENTS
    findings = findings_of(checks_of(profile, path))
    print(shown(findings))
    return _FINE if all(finding.fine for finding in findings) else _TO_CORRECT


def checks_of(profile: Profile, path: str | None) -> list[tuple[str, Check]]:
    """Returns the checks of a node, with their subjects. The lake is checked if `path` is not None."""
    checks: list[tuple[str, Check]] = [
        ("Java", software.java),
        ("Spark", software.spark),
        ("Python", partial(software.python, profile)),
        ("accelerator", partial(software.accelerator, profile)),
        ("jars", partial(software.jars, profile)),
        ("C compiler", partial(software.compiler, profile)),
        ("Horovod", partial(software.horovod, profile)),
        ("GPUs", partial(gpus.gpus, profile)),
        ("cores", partial(resources.cores, profile)),
        ("memory", partial(resources.memory, profile)),
        ("disk", partial(resources.disks, profile, os.environ)),
        ("open files", resources.open_files),
        ("host name", partial(resources.addresses, profile)),
        ("ports", partial(resources.ports, profile)),
        ("time zone", partial(resources.time_zone, profile)),
        ("YARN", partial(yarn.yarn, profile, os.environ)),
    ]
    return checks if path is None else [*checks, ("lake", partial(lake.lake, path))]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program_name("python -m setup.doctor"),
        description="Checks whether this node can run the jobs of a Spark profile. Run it on the "
        "driver's machine and on a node of each kind.",
        epilog="Exit codes: 0 the node can run the jobs, 1 something must be corrected, 2 wrong arguments.",
    )
    parser.add_argument(
        "--profile", action="append", metavar="NAME",
        help="a properties file, or the name of one in conf/spark, such as etl-gpu; repeat the option to "
        f"append further files (default: {_DEFAULT_PROFILE})",
    )  # fmt: skip
    parser.add_argument("--master", metavar="URL", help="the Spark master (default: that of the profile)")
    parser.add_argument("--lake", metavar="PATH", help="also check this lake: path or URI")
    parser.add_argument("--config", metavar="YAML", help="also check the lake of this configuration")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="a.b=value",
        help="override one key of the configuration",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
