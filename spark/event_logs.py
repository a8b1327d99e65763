"""Spark's event log: on for every job, in the lake, unless the profile says otherwise; read by Spark's history server."""

from __future__ import annotations

import logging
from collections.abc import Callable

from storage import file_io

log = logging.getLogger("nightrank.watch")

_ENABLED, _FOLDER = "spark.eventLog.enabled", "spark.eventLog.dir"
# Rolled, so that a long training does not make one file of gigabytes and an object store sees parts before the end.
_SETTINGS = {
    "spark.eventLog.rolling.enabled": "true",
    "spark.eventLog.rolling.maxFileSize": "64m",
    "spark.eventLog.compress": "true",
    "spark.eventLog.compression.codec": "zstd",
}


def event_log_settings(said: Callable[[str], str | None], folder: str) -> dict[str, str]:
    """What the session must be told so that it logs its events; nothing that the profile says is changed.

    Args:
        said: what the profile (spark-submit's properties) says of a setting, None for nothing.
        folder: where event logs go unless the profile names a folder; it is made, because Spark refuses to start without.
    """
    if (said(_ENABLED) or "true").strip().lower() != "true":
        return {}
    own = said(_FOLDER) is None
    if own:
        try:
            files, inner = file_io.filesystem(folder)
            files.create_dir(inner, recursive=True)
        except Exception as error:  # whatever it is, the job runs without
            log.warning("Spark's events are not logged: %s cannot be made: %s", folder, error)
            return {_ENABLED: "false"}
    wanted = {**_SETTINGS, _ENABLED: "true"} | ({_FOLDER: _uri(folder)} if own else {})
    return {key: value for key, value in wanted.items() if said(key) is None or key == _ENABLED}


def _uri(folder: str) -> str:
    return f"file://{file_io.filesystem(folder)[1]}" if file_io.is_local(folder) else folder
