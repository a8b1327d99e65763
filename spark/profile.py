"""Chooses the Spark profile of a process, which is a file of Spark properties, and reads such files."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from glob import glob
from itertools import pairwise
from pathlib import Path

from conf.errors import ConfigError

DEFAULT_PROFILE = "conf/spark/local.conf"

# The checkout. In an environment without a checkout, the folder of installed packages, which contains conf/.
_ROOT = Path(__file__).resolve().parents[1]
_PROFILES = _ROOT / "conf/spark"
_WORKER_PYTHON, _DRIVER_PYTHON = "spark.pyspark.python", "spark.pyspark.driver.python"
_SECRET = "spark.authenticate.secret"
_CLASS_PATH = "spark.driver.extraClassPath"
# Environment variables. At least one of them must be set to the folder with the files from which spark-submit
# reads the address of YARN.
_HADOOP_FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")

# Settings with lists of files that spark-submit copies from this machine.
_COPIED = ("spark.jars", "spark.files", "spark.archives", "spark.submit.pyFiles")
_COPIED_TO_YARN = ("spark.yarn.dist.files", "spark.yarn.dist.jars", "spark.yarn.dist.archives")
_OTHER_FILES = (
    "spark.kubernetes.driver.podTemplateFile",
    "spark.kubernetes.executor.podTemplateFile",
    "spark.driver.resource.gpu.discoveryScript",
)
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:")


def use_profile(name: str | None) -> None:
    """Chooses the profile of the Spark session of this process, before a JVM runs.

    Does nothing if spark-submit has started this process. Without a name, the profile is
    conf/spark/local.conf, unless PYSPARK_SUBMIT_ARGS, MASTER or spark-defaults.conf already sets where Spark
    runs.

    Args:
        name: the option --profile; None if it was not given.

    Raises:
        ConfigError: the profile does not exist, a file that it refers to does not exist, or the option was
            given although spark-submit has started the process.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        if name is not None:
            raise ConfigError(
                f"--profile {name} has no effect: spark-submit has already chosen the Spark properties",
                "leave --profile out and pass the profile's file to spark-submit as --properties-file, "
                "or start the job with python",
            )
        return
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    is_chosen = arguments or os.environ.get("MASTER") or properties_file(os.environ).is_file()
    if name is not None or not is_chosen:
        path = find_profile(name or DEFAULT_PROFILE)
        # Later options of spark-submit replace earlier ones.
        words = ["--properties-file", path, *(shlex.split(arguments) or ["pyspark-shell"])]
        if name is not None and "--properties-file" in words[2:]:
            raise ConfigError(
                f"--profile {name}: PYSPARK_SUBMIT_ARGS={arguments} already names a properties file",
                "unset PYSPARK_SUBMIT_ARGS, or leave out --profile",
            )
        os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join(words)
    settings = launch_settings(os.environ)
    require_files(settings, str(properties_file(os.environ)), submits=False)
    if python := settings.get(_WORKER_PYTHON):
        os.environ["PYSPARK_PYTHON"] = python  # without spark-submit, PySpark reads only this variable


def find_profile(name: str) -> str:
    """Returns the path of a profile.

    Args:
        name: a path, a path relative to the project, or the name of a file in conf/spark without its ending.

    Raises:
        ConfigError: there is no such file.
    """
    if Path(name).is_file():
        return name
    for path in (_ROOT / name, _PROFILES / f"{name}.conf"):
        if path.is_file():
            return str(path)
    known = ", ".join(sorted(file.stem for file in _PROFILES.glob("*.conf")))
    raise ConfigError(
        f"the Spark profile {name} does not exist",
        f"pass the path of a properties file as --profile, or one of these names: {known}",
    )


def require_files(settings: Mapping[str, str], profile: str, *, submits: bool) -> None:
    """Raises ConfigError if a file that the driver needs is missing on this machine.

    Also raises ConfigError if the profile lacks the secret of a standalone cluster, or if no environment
    variable names the folder with YARN's configuration.

    Args:
        settings: maps each property in the profile to its value.
        profile: the path of the profile, for the message.
        submits: whether spark-submit will start the driver's Python.
    """
    # YARN and Kubernetes make a secret for each application. A standalone cluster has one secret for all
    # applications.
    authenticates = settings.get("spark.authenticate", "false").lower() == "true"
    if authenticates and _SECRET not in settings and settings.get("spark.master", "").startswith("spark:"):
        raise ConfigError(
            f"the Spark profile {profile} has spark.authenticate=true, but no {_SECRET}",
            f"add {_SECRET} with the secret of the cluster's master and workers, and let only the user of "
            "the jobs read the file (docs/clusters.md#spark-standalone)",
        )
    if settings.get("spark.master") == "yarn" and not any(os.environ.get(name) for name in _HADOOP_FOLDERS):
        raise ConfigError(
            f"the Spark profile {profile} has spark.master=yarn, but {_HADOOP_FOLDERS[0]} is not set",
            "set it to the folder with yarn-site.xml and core-site.xml of the cluster: docs/clusters.md#yarn",
        )
    for key, path in _files_of(settings, submits):
        _require(f"the Spark profile {profile} has {key}={path}", path)


def require_master(settings: Mapping[str, str], profile: str) -> None:
    """Raises ConfigError if a job would run on this machine because spark-submit gets no master.

    With a properties file, spark-submit does not read spark-defaults.conf, and it never reads
    PYSPARK_SUBMIT_ARGS. The variable MASTER is used if the file has no spark.master.

    Args:
        settings: maps each property in the profile to its value.
        profile: the path of the profile, for the message.
    """
    if not settings.get("spark.master") and not os.environ.get("MASTER"):
        raise ConfigError(
            f"the Spark profile {profile} has no spark.master, so all tasks would run on this machine",
            "add the line `spark.master spark://head:7077` with the address of your cluster, or "
            "`spark.master local[*]` for this machine (docs/clusters.md#make-the-properties-file)",
        )


def require_java() -> None:
    """Raises ConfigError if JAVA_HOME is a folder without Java. Call this before a JVM is started."""
    if home := os.environ.get("JAVA_HOME"):
        _require(f"JAVA_HOME={home}: Spark starts {home}/bin/java", f"{home}/bin/java")


def require_worker_python(master: str | None) -> None:
    """Raises ConfigError if Python workers run on this machine but their interpreter does not exist.

    Args:
        master: the master of the session; None for Spark's default, which is this machine.
    """
    python = os.environ.get("PYSPARK_PYTHON")
    if python and local_cores(master or "local[*]") is not None:
        _require(f"PYSPARK_PYTHON or the Spark profile's {_WORKER_PYTHON} is {python}", python)


def _require(what: str, path: str) -> None:
    if problem := _problem_of(path):
        raise ConfigError(
            f"{what}, {problem}",
            "install the file on this machine, such as the packed environment or a jar "
            "(docs/clusters.md#what-every-node-needs), or correct the setting",
        )


def _files_of(settings: Mapping[str, str], submits: bool) -> Iterator[tuple[str, str]]:
    """Yields (setting, local file) for each file in the settings, except files that only executors need."""
    python_key = _DRIVER_PYTHON if settings.get(_DRIVER_PYTHON) else _WORKER_PYTHON
    if submits and (python := settings.get(python_key)):
        yield python_key, python
    elif local_cores(settings.get("spark.master", "local[*]")) and (python := settings.get(_WORKER_PYTHON)):
        yield _WORKER_PYTHON, python
    for entry in settings.get(_CLASS_PATH, "").split(":"):
        if entry.strip().endswith(".jar"):  # Java accepts missing folders, such as those of other nodes
            yield _CLASS_PATH, entry.strip()
    is_yarn = settings.get("spark.master", "").startswith("yarn")
    for key in (*_COPIED, *(_COPIED_TO_YARN if is_yarn else ()), *_OTHER_FILES):
        for entry in settings.get(key, "").split(","):
            path = re.sub(r"^file:(?://(?=/))?", "", entry.strip()).partition("#")[0]
            if path and not _SCHEME.match(path):
                yield key, path


def _problem_of(path: str) -> str | None:
    """Returns what is wrong with a file of a Spark profile; None if nothing is, or if an archive has it."""
    if path.startswith("./"):
        return None
    if "/" not in path:
        return None if shutil.which(path) or Path(path).exists() else "which is not on PATH"
    if any(character in path for character in "*?[{"):  # Hadoop also expands patterns in the names of folders
        return None if "{" in path or glob(path) else "which matches no file"
    file = Path(path)
    if file.exists():
        return None
    if file.is_symlink():
        return f"which is a link to {os.readlink(file)}, which does not exist"
    return "which does not exist on this machine"


# The code below reads properties files of Spark, and the properties with which a process would start Spark.

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

# The key ends at the first white space, `=` or `:` without a backslash.
_SETTING = re.compile(r"((?:[^\s=:\\]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)


def read_properties(path: Path) -> dict[str, str]:
    """Returns the settings in a properties file, which is parsed as spark-submit parses it.

    Java's rules apply. `key value`, `key=value` and `key: value` mean the same. A backslash at the end of a
    line continues the line. A line that begins with `#` or `!` is a comment. Spark removes white space around
    values.

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
    """Adds the setting in a line to `settings`. Ignores an empty line."""
    parts = _SETTING.match(line)
    if line and parts:
        settings[_unescaped(parts[1])] = _unescaped(parts[2]).strip()


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(
        lambda escape: chr(int(escape[1], 16)) if escape[1] else _ESCAPED.get(escape[2], escape[2]), text
    )


def properties_file(environment: Mapping[str, str]) -> Path:
    """Returns the path of the properties file of a JVM that this process would start; it may be missing.

    The option `--properties-file` in PYSPARK_SUBMIT_ARGS sets it; the default is `spark-defaults.conf`.
    """
    named = [value for option, value in _submit_options(environment) if option == "--properties-file"]
    folder = environment.get("SPARK_CONF_DIR") or f"{environment.get('SPARK_HOME', '')}/conf"
    return Path(named[-1]) if named else Path(folder) / "spark-defaults.conf"


def _submit_options(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the options and their values in PYSPARK_SUBMIT_ARGS."""
    return list(pairwise(shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", ""))))


def launch_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties with which this process would start Spark. A JVM need not run.

    The properties come from `spark-defaults.conf` or the file of the option `--properties-file`, and from the
    options `--master` and `--conf` in PYSPARK_SUBMIT_ARGS.
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
    """Returns the number of tasks that a `local` master runs at the same time; None for other masters."""
    if master == "local":
        return 1
    if not master.startswith("local[") or not master.endswith("]"):
        return None
    cores = master[len("local[") : -1].split(",")[0]
    return len(os.sched_getaffinity(0)) if cores == "*" else int(cores)
