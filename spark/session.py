"""Builds the SparkSession of a job. A profile (conf/spark/*.conf) sets where Spark runs and its resources."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from py4j.java_gateway import java_import
from pyspark import SparkConf, SparkContext
from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession

from conf.errors import ConfigError
from conf.process import collect_often
from spark.accelerator import accelerator_settings
from spark.profile import launch_settings, require_java, require_worker_python
from storage import file_io

# Results are correct only with these settings, so no profile can change them.
_REQUIRED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",  # casts must return null for malformed text, which is quarantined
    "spark.sql.caseSensitive": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}

# Spark's progress bars are redrawn with carriage returns, which fill a log file.
_WITHOUT_BARS = {"spark.ui.showConsoleProgress": "false"}
_KEPT_CLASSES = ("functions", "PythonUtils", "SparkSession")
_DAEMON = "spark.python.daemon.module"
_FORMER_DAEMONS = ("etl.worker_daemon",)  # the module of the daemon in release 0.1.0


def build_session(
    app_name: str, settings: Mapping[str, str] | None = None, event_logs: str | None = None
) -> SparkSession:
    """Builds the Spark session of one job. Python workers run the interpreter of this environment.

    Args:
        app_name: the name that Spark's web pages show.
        settings: the settings of a profile, if the process was not started by spark-submit.
        event_logs: the folder for Spark's event logs if the profile does not set one. If this is None, events
            are logged only if the profile requests event logs.

    Raises:
        ConfigError: the RAPIDS accelerator is enabled, but its jar is missing or does not fit this version of
            Spark; or the profile sets the Python daemon of an earlier release; or Java or the interpreter of
            Python workers is missing on this machine.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        require_java()
    builder = SparkSession.builder.appName(app_name)
    configured = _configured(settings or {})
    require_worker_python(configured("spark.master"))
    _require_known_daemon(configured)
    accelerated = accelerator_settings(configured, spark_version)
    logged = {} if event_logs is None else event_log_settings(configured, event_logs)
    plain = {} if sys.stderr.isatty() else _WITHOUT_BARS
    for key, value in {**(settings or {}), **plain, **accelerated, **logged, **_REQUIRED}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    collect_often()
    _keep_classes(session)
    return session


def _keep_classes(session: SparkSession) -> None:
    """Caches the Java classes that PySpark looks up at every call of a function or a method.

    Without this cache, the JVM would search all jars, and all packages that PySpark has imported, for a class
    with a short name. It would do so in each of thousands of calls.
    """
    java_import(session._jvm, "org.apache.spark.sql.functions")
    for name in _KEPT_CLASSES:
        setattr(session._jvm, name, getattr(session._jvm, name))


def _require_known_daemon(configured: Callable[[str], str | None]) -> None:
    """Raises ConfigError for a daemon module that no longer exists. With it, no Python worker would start."""
    if configured(_DAEMON) in _FORMER_DAEMONS:
        raise ConfigError(
            f"the Spark profile has {_DAEMON}={configured(_DAEMON)}, a module of an earlier release",
            f"set {_DAEMON} to spark.worker_daemon, as conf/spark/local.conf does",
        )


def _configured(settings: Mapping[str, str]) -> Callable[[str], str | None]:
    """Returns a function that reads a Spark setting from `settings`, or else from the process's profile."""
    # If this process starts the JVM, it must read the settings before it does so.
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()
    if SparkContext._jvm is None:
        started_with = {**launch_settings(os.environ), **settings}
        return started_with.get
    submitted = SparkConf(_jvm=SparkContext._jvm)
    return lambda key: settings.get(key, submitted.get(key))


# The settings of Spark's event log. By default, every job writes its event log into the lake.

log = logging.getLogger("nightrank.watch")
_ENABLED, _FOLDER = "spark.eventLog.enabled", "spark.eventLog.dir"

# The log is written as several files. Otherwise a long training would write one file of gigabytes, and an
# object store would get no file before the job ends.
_SETTINGS = {
    "spark.eventLog.rolling.enabled": "true",
    "spark.eventLog.rolling.maxFileSize": "64m",
    "spark.eventLog.compress": "true",
    "spark.eventLog.compression.codec": "zstd",
}


def event_log_settings(configured: Callable[[str], str | None], folder: str) -> dict[str, str]:
    """Returns the settings that a Spark session needs to log its events.

    Settings that the profile contains are not changed.

    Args:
        configured: returns the value of a setting in the profile (spark-submit's properties), or None if the
            profile does not set it.
        folder: the folder for event logs if the profile does not set one. The function creates this folder,
            because Spark does not start without it.
    """
    if (configured(_ENABLED) or "true").strip().lower() != "true":
        return {}
    in_lake = configured(_FOLDER) is None
    if in_lake:
        try:
            files, inner = file_io.filesystem(folder)
            files.create_dir(inner, recursive=True)
        except Exception as error:  # if the folder cannot be created, the job runs without event logs
            log.warning("Spark's events are not logged: the folder %s cannot be created: %s", folder, error)
            return {_ENABLED: "false"}
    settings = {**_SETTINGS, _ENABLED: "true"} | ({_FOLDER: _uri(folder)} if in_lake else {})
    return {key: value for key, value in settings.items() if configured(key) is None or key == _ENABLED}


def _uri(folder: str) -> str:
    """Returns the folder as a URI. Spark decodes the escapes of spaces and other characters."""
    return Path(file_io.filesystem(folder)[1]).as_uri() if file_io.is_local(folder) else folder
