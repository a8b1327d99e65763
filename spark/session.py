"""Builds the SparkSession of a job. A profile (conf/spark/*.conf) sets where Spark runs and its resources.

Some settings of the RAPIDS Accelerator depend on its release and on Spark's release. A release of the
accelerator contains one *shim* for each patch release of Spark that it supports: `spark355` for Spark 3.5.5.
Spark needs the class of the shim as `spark.shuffle.manager`, before any code of the accelerator runs. If a
jar has no shim for the running Spark, the accelerator starts only if `spark.rapids.shims-provider-override`
names another shim. Profiles contain neither of these two settings: `accelerator_settings` derives both from
the jar for every session.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from py4j.java_gateway import java_import
from pyspark import SparkConf, SparkContext
from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession

from conf.errors import ConfigError
from conf.process import collect_often
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

    PySpark names these classes without their package. Without this cache, the JVM would search all jars and
    all imported packages for the class, in each of thousands of calls.
    """
    java_import(session._jvm, "org.apache.spark.sql.functions")
    for name in _KEPT_CLASSES:
        setattr(session._jvm, name, getattr(session._jvm, name))


def _require_known_daemon(configured: Callable[[str], str | None]) -> None:
    """Raises ConfigError if the profile names a worker daemon of an earlier release, which does not exist."""
    if configured(_DAEMON) in _FORMER_DAEMONS:
        raise ConfigError(
            f"the Spark profile has {_DAEMON}={configured(_DAEMON)}, a module of an earlier release",
            f"set {_DAEMON} to spark.worker_daemon, as conf/spark/local.conf does",
        )


def _configured(settings: Mapping[str, str]) -> Callable[[str], str | None]:
    """Returns a function that reads a Spark setting. `settings` override the profile of this process."""
    # A process that starts the JVM must read the settings before it starts the JVM.
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()
    if SparkContext._jvm is None:
        started_with = {**launch_settings(os.environ), **settings}
        return started_with.get
    submitted = SparkConf(_jvm=SparkContext._jvm)
    return lambda key: settings.get(key, submitted.get(key))


# The code below chooses the settings of Spark's event log. By default, every job writes its event log into
# the lake.

log = logging.getLogger("nightrank.watch")
_ENABLED, _FOLDER = "spark.eventLog.enabled", "spark.eventLog.dir"

# The log is written as several files. Otherwise a long job would write one file of gigabytes, and an
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


# The code below derives the settings of the RAPIDS Accelerator that depend on its release and on Spark's.

accelerator_log = logging.getLogger("nightrank.accelerator")

PLUGIN = "com.nvidia.spark.SQLPlugin"
SHUFFLE_MANAGER = "spark.shuffle.manager"
SHIM_OVERRIDE = "spark.rapids.shims-provider-override"

_PACKAGE = "com.nvidia.spark.rapids"
_PROVIDERS = "META-INF/services/com.nvidia.spark.rapids.SparkShimServiceProvider"
_CLASS_PATH = "spark.driver.extraClassPath"
_JAR_REMEDY = (
    f"put the jar of the accelerator (requirements/jars.lock names the release) at the same path "
    f"on every node and name that path in {_CLASS_PATH} and spark.executor.extraClassPath (docs/gpu.md)"
)


@dataclass(frozen=True)
class Shim:
    """The accelerator's classes for one release of Spark.

    Attributes:
        name: the name of these classes in the jar, such as `spark355`.
    """

    name: str

    @property
    def shuffle_manager(self) -> str:
        """Returns the name of the class for `spark.shuffle.manager`."""
        return f"{_PACKAGE}.{self.name}.RapidsShuffleManager"

    @property
    def provider(self) -> str:
        """Returns the name of the class for `spark.rapids.shims-provider-override`."""
        return f"{_PACKAGE}.shims.{self.name}.SparkShimServiceProvider"


def accelerator_settings(configured: Callable[[str], str | None], spark_version: str) -> dict[str, str]:
    """Returns the settings to add to a session; empty if the session does not use the accelerator.

    Args:
        configured: returns the value of a Spark setting, or None if the profile and the command line do not
            set it.
        spark_version: the version of the running Spark, such as `3.5.8`.

    Raises:
        ConfigError: no jar of the accelerator is on the driver's class path, the jar has no shim for this
            version of Spark, or the class in `spark.shuffle.manager` or
            `spark.rapids.shims-provider-override` does not fit the jar and Spark.
    """
    if PLUGIN not in [plugin.strip() for plugin in (configured("spark.plugins") or "").split(",")]:
        return {}
    jar = _jar_on(configured(_CLASS_PATH) or "")
    shims = shims_of(jar)
    override, manager = configured(SHIM_OVERRIDE), configured(SHUFFLE_MANAGER)
    shim = shim_for(spark_version, shims, jar) if override is None else _overriding(override, shims, jar)
    if manager is not None and manager.startswith(f"{_PACKAGE}.") and manager != shim.shuffle_manager:
        raise ConfigError(
            f"{SHUFFLE_MANAGER}={manager} does not fit {jar}: on Spark {spark_version}, the shuffle "
            f"manager of this jar is {shim.shuffle_manager}",
            f"leave out {SHUFFLE_MANAGER}: jobs derive it from the jar",
        )
    settings = {} if manager is not None else {SHUFFLE_MANAGER: shim.shuffle_manager}
    if override is None and shim != _native(spark_version):
        # Do not log a warning here, because it would cause an alert for every run. The accelerator itself
        # writes a warning to Spark's log.
        accelerator_log.info(
            "%s has no shim for Spark %s; the shim of an earlier patch release is used: %s",
            jar,
            spark_version,
            shim.name,
        )
        settings[SHIM_OVERRIDE] = shim.provider
    return settings


def shims_of(jar: Path) -> frozenset[Shim]:
    """Returns the shims in a jar. Only shims that both the accelerator and Spark can load are included.

    Raises:
        ConfigError: the file is not a jar of the accelerator.
    """
    try:
        with ZipFile(jar) as packed:
            entries = set(packed.namelist())
            providers = packed.read(_PROVIDERS).decode().split()
    except (OSError, BadZipFile, KeyError) as error:
        raise ConfigError(
            f"{jar} cannot be read as a jar of the accelerator: {error}", _JAR_REMEDY
        ) from error
    listed = {Shim(provider.split(".")[-2]) for provider in providers if provider.count(".") > 1}
    # Spark loads the shuffle manager itself, from the root of the jar.
    return frozenset(shim for shim in listed if _entry(shim.shuffle_manager) in entries)


def shim_for(spark_version: str, shims: frozenset[Shim], jar: Path) -> Shim:
    """Returns the shim for a version of Spark, or else the shim for the newest earlier patch release.

    An earlier shim is safe because patch releases of Spark do not change query plans.

    Raises:
        ConfigError: the jar has no shim for this version and none for an earlier patch release.
    """
    native = _native(spark_version)
    if native in shims:
        return native
    major, minor, patch = _numbers(spark_version)
    # Shims whose names contain letters after the version (`spark350db143`) are for Spark releases of vendors.
    # They do not work with any other Spark.
    of_line = {
        int(match[1]): shim
        for shim in shims
        if (match := re.fullmatch(rf"spark{major}{minor}(\d+)", shim.name))
    }
    earlier = [release for release in of_line if release < patch]
    if not earlier:
        known = ", ".join(sorted(shim.name for shim in shims)) or "none"
        raise ConfigError(
            f"{jar} supports neither Spark {spark_version} nor an earlier release of {major}.{minor}. It "
            f"supports {known}",
            "use a release of the accelerator that supports this version of Spark (docs/gpu.md), "
            f"or remove {PLUGIN} from spark.plugins",
        )
    return of_line[max(earlier)]


def _overriding(provider: str, shims: frozenset[Shim], jar: Path) -> Shim:
    """Returns the shim whose provider class a setting requests.

    Raises:
        ConfigError: the jar does not contain this class.
    """
    matching = [shim for shim in shims if shim.provider == provider]
    if not matching:
        raise ConfigError(
            f"{SHIM_OVERRIDE}={provider} is not in {jar}",
            f"leave out {SHIM_OVERRIDE}: jobs derive it from the jar",
        )
    return matching[0]


def _jar_on(class_path: str) -> Path:
    """Returns the first jar on a class path, in the JVM's order, that has the accelerator's plugin class."""
    for entry in filter(None, class_path.split(":")):
        path = Path(entry)
        candidates = sorted(path.parent.glob("*.jar")) if path.name == "*" else [path]
        for jar in candidates:
            if _has_plugin(jar):
                return jar
    raise ConfigError(
        f"spark.plugins={PLUGIN}, but no jar with that class is at "
        f"{_CLASS_PATH}={class_path or '(not set)'} on this machine",
        _JAR_REMEDY,
    )


def _has_plugin(path: Path) -> bool:
    """Returns whether a file is a jar with the plugin class of the RAPIDS Accelerator."""
    try:
        with ZipFile(path) as packed:
            return _entry(PLUGIN) in packed.namelist()
    except (OSError, BadZipFile):  # the JVM skips unreadable entries too
        return False


def _entry(class_name: str) -> str:
    """Returns the path of a class in a jar."""
    return f"{class_name.replace('.', '/')}.class"


def _native(spark_version: str) -> Shim:
    """Returns the accelerator's shim for exactly this version of Spark, which a jar need not contain."""
    major, minor, patch = _numbers(spark_version)
    return Shim(f"spark{major}{minor}{patch}")


def _numbers(spark_version: str) -> tuple[int, int, int]:
    """Returns the major, minor and patch number of a version."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", spark_version)
    if match is None:
        raise ConfigError(
            f"the Spark version {spark_version!r} does not consist of three numbers, so the accelerator's "
            "shim for it cannot be chosen",
            f"set {SHIM_OVERRIDE} to the provider class of the shim for your Spark",
        )
    return int(match[1]), int(match[2]), int(match[3])
