"""Reads files of Spark properties, and the properties with which a process would start Spark."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from conf.errors import ConfigError

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# The key ends at the first white space, `=` or `:` without a backslash.
_SETTING = re.compile(r"((?:[^\s=:\\]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)


def read_properties(path: Path) -> dict[str, str]:
    """Returns the settings in a properties file, which is parsed as spark-submit parses it.

    Java's rules: `key value`, `key=value` and `key: value` are the same, a backslash at the end of a line
    continues it, and `#` or `!` begins a comment. Spark removes white space around values.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the Spark profile {path} cannot be read: {error}", "pass a properties file in UTF-8"
        ) from error
    settings: dict[str, str] = {}
    logical = ""
    for line in text.splitlines():
        line = line.lstrip()
        if not logical and (not line or line[0] in "#!"):
            continue
        logical += line
        if (len(line) - len(line.rstrip("\\"))) % 2:
            logical = logical[:-1]
            continue
        _add_setting(settings, logical)
        logical = ""
    _add_setting(settings, logical)
    return settings


def _add_setting(settings: dict[str, str], line: str) -> None:
    """Adds the setting of a line to others, unless the line is empty."""
    parts = _SETTING.match(line)
    if line and parts:
        settings[_unescaped(parts[1])] = _unescaped(parts[2]).strip()


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(
        lambda escape: chr(int(escape[1], 16)) if escape[1] else _ESCAPED.get(escape[2], escape[2]), text
    )


def properties_file(environment: Mapping[str, str]) -> Path:
    """Returns the properties file with which a JVM of this process would start; it need not exist.

    It is that of the option `--properties-file` in PYSPARK_SUBMIT_ARGS, or else `spark-defaults.conf`.
    """
    named = [value for option, value in _submit_options(environment) if option == "--properties-file"]
    folder = environment.get("SPARK_CONF_DIR") or f"{environment.get('SPARK_HOME', '')}/conf"
    return Path(named[-1]) if named else Path(folder) / "spark-defaults.conf"


def _submit_options(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the options and their values in PYSPARK_SUBMIT_ARGS."""
    return list(pairwise(shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", ""))))


def launch_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties with which a Spark session of this process would start, before a JVM runs.

    They are in `spark-defaults.conf` or in the file of the option `--properties-file`, and in the options
    `--master` and `--conf` of PYSPARK_SUBMIT_ARGS.
    """
    file = properties_file(environment)
    settings = {"spark.master": environment["MASTER"]} if environment.get("MASTER") else {}
    if file.is_file():
        settings |= read_properties(file)
    for option, value in _submit_options(environment):
        if option == "--conf" and "=" in value:
            name, _, text = value.partition("=")
            settings[name] = text
        elif option == "--master":
            settings["spark.master"] = value
    return settings


def local_cores(master: str) -> int | None:
    """Returns how many tasks Spark runs at the same time on a `local` master; None for any other master."""
    if master == "local":
        return 1
    if not master.startswith("local[") or not master.endswith("]"):
        return None
    cores = master[len("local[") : -1].split(",")[0]
    return len(os.sched_getaffinity(0)) if cores == "*" else int(cores)
