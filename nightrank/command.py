"""The command `nightrank`: starts the jobs, from any folder, in the environment of the project.

Each command is a script of `jobs/` (or the doctor), which gets the arguments unchanged. The jobs need Spark,
so they run in a checkout, or in the project that `nightrank setup` installs. The package needs neither.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import NoReturn

from conf.errors import EXIT_OK, ConfigError, NightrankError
from conf.program import started_by
from nightrank.completion import SHELLS, completion
from nightrank.installed_project import HOME_VARIABLE, find_project, install_project

# Short names of commands. All other jobs have the name of their script.
SHORT_NAMES = {"run": "nightly", "compare": "compare_models", "erase": "erase_user", "serve": "serve_model"}
DOCTOR = "doctor"
_EVERYDAY = ("demo", "run", "report", "show", "champion", "compare", "serve", "doctor")
_BASH = '. "$0/setup/env.sh" && exec python "$@"'


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code. A job replaces this process and does not return."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words and words[0] in commands():
            _start(words[0], words[1:])
        parser = _parser()
        if words and not words[0].startswith("-") and words[0] not in _OWN_OPTIONS:
            known = sorted({*commands(), *_OWN_OPTIONS})
            similar = [f"{name!r}" for name in get_close_matches(words[0], known)]
            meant = f"did you mean {' or '.join(similar)}? Otherwise " if similar else ""
            parser.error(f"there is no command {words[0]!r}: {meant}choose from {known}")
        arguments = parser.parse_args(words)
        if arguments.command == "completion":
            print(completion(arguments.shell, {**options(), **_OWN_OPTIONS}), end="")
            return EXIT_OK
        return install_project(arguments.folder, arguments.python)
    except NightrankError as error:
        print(f"nightrank failed: {error}", file=sys.stderr)
        return error.exit_code


@cache
def _jobs() -> Mapping[str, Mapping[str, object]]:
    """Returns what `make docs` wrote about the jobs: description and options, by the name of the script."""
    loaded: dict[str, dict[str, object]] = json.loads(
        Path(__file__).with_name("jobs.json").read_text(encoding="utf-8")
    )
    return loaded


@cache
def commands() -> Mapping[str, str]:
    """Maps each command that starts a job to the name of its script."""
    short = {job: name for name, job in SHORT_NAMES.items()}
    return {short.get(job, job): job for job in _jobs()}


def options() -> dict[str, list[str]]:
    """Maps each command that starts a job to its options."""
    return {name: list(_jobs()[job]["options"]) for name, job in commands().items()}  # type: ignore[call-overload]


_OWN_OPTIONS = {"setup": ["--folder", "--python"], "completion": list(SHELLS)}


def _start(command: str, arguments: Sequence[str]) -> NoReturn:
    """Replaces this process with a job.

    Raises:
        ConfigError: the project is not installed.
    """
    home = find_project()
    if home is None:
        raise ConfigError(
            f"`nightrank {command}` needs Spark and the other packages of the jobs, which are not installed",
            f"run `nightrank setup`, or set {HOME_VARIABLE} to the folder of a checkout after `make setup`",
        )
    job = commands()[command]
    script = [f"{home}/jobs/{job}.py"]
    if job == DOCTOR:  # it is no part of the packed environment
        script = ["-m", "setup.doctor"]
        os.environ["PYTHONPATH"] = str(home)
    started_by(f"nightrank {command}")
    os.execv("/bin/bash", ["bash", "-c", _BASH, str(home), *script, *arguments])


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the commands that start no job; its help lists all commands."""
    stages = sorted(set(commands()) - set(_EVERYDAY))
    parser = argparse.ArgumentParser(
        prog="nightrank",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Runs the jobs of Nightrank.",
        epilog=f"every day:\n{_listed(_EVERYDAY)}\n\nsingle stages and tools:\n{_listed(stages)}\n\n"
        "`nightrank COMMAND --help` shows the options of a command.",
    )
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    setup = parsers.add_parser("setup", help="install the project: jobs, Spark, Horovod (7 GB)")
    setup.add_argument(
        "--folder",
        type=Path,
        help=f"where (default: below this environment); for another folder, also set {HOME_VARIABLE}",
    )
    setup.add_argument(
        "--python", default="python3.11", metavar="PROGRAM", help="a Python 3.11 (default: %(default)s)"
    )
    shell = parsers.add_parser("completion", help="print a script that completes commands and options")
    shell.add_argument("shell", choices=SHELLS, help='for example: eval "$(nightrank completion bash)"')
    return parser


def _listed(names: Sequence[str]) -> str:
    """Returns a line or more for each command, with its summary."""
    width = min(get_terminal_size().columns, 110)
    return "\n".join(
        fill(
            f"{name:<24}{_jobs()[commands()[name]]['summary']}",
            width,
            initial_indent="  ",
            subsequent_indent=" " * 26,
        )
        for name in names
    )


if __name__ == "__main__":
    sys.exit(main())
