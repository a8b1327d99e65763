"""Settings of the RAPIDS Accelerator that depend on its release and on Spark's release.

A release of the accelerator contains one *shim* for each patch release of Spark that it supports:
`spark355` for Spark 3.5.5. Spark needs the class of the shim as `spark.shuffle.manager`, before any code of
the accelerator runs. If a jar has no shim for the running Spark, the accelerator refuses to start, unless
`spark.rapids.shims-provider-override` names a shim. Profiles contain neither of these two settings:
`accelerator_settings` derives both from the jar for every session (spark/session.py).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from conf.errors import ConfigError

log = logging.getLogger("nightrank.accelerator")

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
            f"{SHUFFLE_MANAGER}={manager} does not fit {jar} on Spark {spark_version}, whose class is "
            f"{shim.shuffle_manager} in this jar",
            f"leave out {SHUFFLE_MANAGER}: jobs derive it from the jar",
        )
    settings = {} if manager is not None else {SHUFFLE_MANAGER: shim.shuffle_manager}
    if override is None and shim != _native(spark_version):
        # Do not log a warning here, because it would cause an alert for every run. The accelerator itself
        # writes a warning to Spark's log.
        log.info(
            "%s has no shim for Spark %s; the shim of an earlier patch release is used: %s",
            jar,
            spark_version,
            shim.name,
        )
        settings[SHIM_OVERRIDE] = shim.provider
    return settings


def shims_of(jar: Path) -> frozenset[Shim]:
    """Returns the shims of a jar that the accelerator and Spark can both load.

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
            f"{jar} has no shim for Spark {spark_version} or an earlier {major}.{minor}; its shims: {known}",
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
    """Returns the first jar of a class path that has the plugin, in the JVM's order."""
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
    """Returns whether a file is a jar with the plugin's class."""
    try:
        with ZipFile(path) as packed:
            return _entry(PLUGIN) in packed.namelist()
    except (OSError, BadZipFile):  # the JVM skips unreadable entries too
        return False


def _entry(class_name: str) -> str:
    """Returns the path of a class in a jar."""
    return f"{class_name.replace('.', '/')}.class"


def _native(spark_version: str) -> Shim:
    """Returns the shim for exactly this version of Spark, even if the jar does not have it."""
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
