"""The command `nightrank`: starts the jobs, from any folder, in the environment of the project.

Each command runs a script of `jobs/` or the doctor (`setup/doctor`, which checks a machine), and passes its
arguments unchanged. The jobs need Spark, so they run in a checkout, or in the project that `nightrank setup`
installs. The package itself does not need Spark or a checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import NoReturn

from conf.errors import EXIT_OK, ConfigError, NightrankError
from conf.messages import started_by

# Scripts with which a shell completes the commands and options of `nightrank`.

SHELLS = ("bash", "zsh")
_SCRIPT = """\
_nightrank() {{
    local words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands}"
    else
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _nightrank nightrank
"""
_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def completion(shell: str, options: Mapping[str, Sequence[str]]) -> str:
    """Returns the completion script for a shell. If no option matches, the shell completes file names.

    Args:
        shell: one of SHELLS. The script for zsh loads zsh's emulation of bash completion, then runs the
            script for bash.
        options: maps each command to its options.
    """
    cases = "\n".join(
        f'            {command}) words="{" ".join(words)}" ;;' for command, words in sorted(options.items())
    )
    script = _SCRIPT.format(commands=" ".join(sorted(options)), cases=cases)
    return _ZSH + script if shell == "zsh" else script


# Functions that find the project whose jobs the command `nightrank` starts, or install it from the wheel.
#
# The project is a checkout, or the copy of its files that the wheel contains. pip cannot resolve the
# project's packages together, so `setup/install.py` installs them from lock files into a separate
# environment.

HOME_VARIABLE = "NIGHTRANK_HOME"
_ARCHIVE = Path(__file__).with_name("_project.tar")  # setup/python_wheel.py puts this file into the wheel
_KEPT = (".venv", ".bootstrap", ".setup.lock")  # a newer release does not replace these


def default_folder() -> Path:
    """Returns the folder in this Python environment in which `nightrank setup` installs the project."""
    return Path(sys.prefix) / "share" / "nightrank"


def find_project() -> Path | None:
    """Returns the folder of the installed project; None if no project with an environment is found.

    Raises:
        ConfigError: the variable NIGHTRANK_HOME names a folder without the project.
    """
    named = os.environ.get(HOME_VARIABLE)
    if named:
        if not _is_ready(Path(named)):
            raise ConfigError(
                f"{HOME_VARIABLE}={named} is not an installed project",
                f"run `make setup` in a checkout, or `nightrank setup --folder {named}`",
            )
        return Path(named).absolute()
    # If this process runs in the environment of a checkout, or in that of the archive for clusters, the
    # parent folder of the environment is the project.
    return next((folder for folder in (Path(sys.prefix).parent, default_folder()) if _is_ready(folder)), None)


def _is_ready(folder: Path) -> bool:
    interpreters = [folder / name / "bin/python" for name in (".venv", "environment")]
    return (folder / "jobs/nightly.py").is_file() and any(path.exists() for path in interpreters)


def install_project(folder: Path | None, python: str) -> int:
    """Unpacks the project, and creates the Python environment of its jobs.

    Args:
        folder: the folder of the project; None for `default_folder()`.
        python: name or path of a Python 3.11 interpreter.

    Returns:
        The exit code of the installation.

    Raises:
        ConfigError: this package is part of a checkout, the Python program does not exist, or the folder
            contains other files or cannot be written.
    """
    if not _ARCHIVE.is_file():
        raise ConfigError(
            "this package is part of a checkout; only the package in the wheel contains a project to install",
            "run `make setup` in the checkout",
        )
    if (program := shutil.which(python)) is None:
        raise ConfigError(
            f"{python} is not on PATH", "install Python 3.11, or pass --python /path/to/python3.11"
        )
    target = (folder or default_folder()).absolute()
    try:
        _unpack(target)
    except OSError as error:
        raise ConfigError(
            f"{target} cannot be written: {error}", f"pass --folder FOLDER, and set {HOME_VARIABLE}=FOLDER"
        ) from error
    # Run the installation in the folder of the project, so that its modules, such as `setup`, are found.
    # Remove the variables that would add packages of this Python environment to the new one.
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    code = subprocess.run([program, "-m", "setup.install"], cwd=target, env=clean, check=False).returncode
    if code == 0:
        needs = "" if folder is None else f"\nset {HOME_VARIABLE}={target}"
        print(f"the project is installed in {target}; try: nightrank demo{needs}")
    return code


def _unpack(target: Path) -> None:
    """Replaces the files of the project in a folder, but keeps its environment.

    Raises:
        ConfigError: the folder exists and is not a project.
    """
    if target.is_dir() and any(target.iterdir()) and not (target / "jobs/nightly.py").is_file():
        raise ConfigError(f"{target} contains other files", "pass an empty or a new folder")
    scratch = target.with_name(f"{target.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    with tarfile.open(_ARCHIVE) as packed:
        packed.extractall(scratch, filter="data")
    for name in _KEPT:
        if (target / name).exists():
            (target / name).rename(scratch / name)
    shutil.rmtree(target, ignore_errors=True)
    scratch.rename(target)


# Short names of commands. The other commands have the names of their scripts.
SHORT_NAMES = {
    "check": "check_config",
    "run": "nightly",
    "compare": "compare_models",
    "erase": "erase_user",
    "serve": "serve_model",
    "shop-example": "shop_example",
}
DOCTOR = "doctor"
_EVERYDAY = ("demo", "init", "check", "run", "report", "show", "champion", "compare", "serve", "doctor")
_BASH = '. "$0/setup/env.sh" && exec python "$@"'


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code. If the command is a job, the job replaces this process."""
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
    """Returns the description and the options of each job, by the name of its script.

    The function reads them from jobs.json, which `make docs` writes.
    """
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
    if job == DOCTOR:  # setup.doctor is in the project, not in its environment
        script = ["-m", "setup.doctor"]
        os.environ["PYTHONPATH"] = str(home)
    started_by(f"nightrank {command}")
    os.execv("/bin/bash", ["bash", "-c", _BASH, str(home), *script, *arguments])


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the commands that do not start a job. Its help lists all commands."""
    stages = sorted(set(commands()) - set(_EVERYDAY))
    parser = argparse.ArgumentParser(
        prog="nightrank",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Runs the jobs of Nightrank.",
        epilog=f"every day:\n{_listed(_EVERYDAY)}\n\nsingle stages and tools:\n{_listed(stages)}\n\n"
        "`nightrank COMMAND --help` shows the options of a command.",
    )
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    setup = parsers.add_parser("setup", help="install the jobs with Spark and Horovod (7 GB of disk space)")
    setup.add_argument(
        "--folder",
        type=Path,
        help="folder for the project (default: a folder in this Python environment); if you pass a folder, "
        f"also set {HOME_VARIABLE} to it",
    )
    setup.add_argument(
        "--python",
        default="python3.11",
        metavar="PROGRAM",
        help="name or path of a Python 3.11 interpreter (default: %(default)s)",
    )
    shell = parsers.add_parser("completion", help="print a script that completes commands and options")
    shell.add_argument("shell", choices=SHELLS, help='for example: eval "$(nightrank completion bash)"')
    return parser


def _listed(names: Sequence[str]) -> str:
    """Returns one or more lines for each command, with its summary."""
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
