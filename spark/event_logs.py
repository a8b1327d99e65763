"""The settings of Spark's event log. By default, every job writes its event log into the lake."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from storage import file_io

log = logging.getLogger("nightrank.watch")

_ENABLED, _FOLDER = "spark.eventLog.enabled", "spark.eventLog.dir"
# The log is written as several files. So a long training does not write one file of gigabytes, and an object
# store gets the first files before the job ends.
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
        folder: the folder for event logs if the profile names none. The function creates this folder, because
            Spark does not start if it is missing.
    """
    if (configured(_ENABLED) or "true").strip().lower() != "true":
        return {}
    in_lake = configured(_FOLDER) is None
    if in_lake:
        try:
            files, inner = file_io.filesystem(folder)
            files.create_dir(inner, recursive=True)
        except Exception as error:  # the job runs without event logs
            log.warning("Spark's events are not logged: the folder %s cannot be created: %s", folder, error)
            return {_ENABLED: "false"}
    settings = {**_SETTINGS, _ENABLED: "true"} | ({_FOLDER: _uri(folder)} if in_lake else {})
    return {key: value for key, value in settings.items() if configured(key) is None or key == _ENABLED}


def _uri(folder: str) -> str:
    """Returns the folder as a URI. Spark decodes the escapes of spaces and other characters."""
    return Path(file_io.filesystem(folder)[1]).as_uri() if file_io.is_local(folder) else folder
