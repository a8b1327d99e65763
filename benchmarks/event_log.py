"""Reads from Spark's event log what the scans of files read: rows and bytes, by format and place."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

_STARTS = "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart"
_CHANGES = "org.apache.spark.sql.execution.ui.SparkListenerSQLAdaptiveExecutionUpdate"

# With this setting, the plan of a cached frame is in the log before the frame is computed. Otherwise, Spark
# replans it, and logs the new plan only if the frame is read again.
CACHED_PLANS = {"spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "false"}


@dataclass(frozen=True)
class Scan:
    """What the tasks of one scan node read.

    Attributes:
        format: the format in Spark's plan, in lower case: `text` or `parquet`.
        location: the description of the files in Spark's plan, with the path of the first file.
        rows: rows that the node returned, over all its tasks. A cached frame counts when it is computed.
        bytes: bytes that these tasks read. With Parquet, only those of the columns that are needed.
    """

    format: str
    location: str
    rows: int
    bytes: int


def scans_of(folder: Path) -> list[Scan]:
    """Returns all scans of files in the event logs below a folder, in the order of their plans.

    Scans that returned no row are left out.
    """
    nodes: dict[int, tuple[str, str]] = {}  # by the id of the metric with the rows of the node
    for event in _events(folder):
        if event["Event"] in (_STARTS, _CHANGES):
            nodes |= _scan_nodes(event["sparkPlanInfo"])
    rows: dict[int, int] = {}
    read: dict[int, int] = {}
    for event in _events(folder):
        if event["Event"] == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "Success":
            updates = {entry["ID"]: entry.get("Update") for entry in event["Task Info"]["Accumulables"]}
            of_scans = [metric for metric in updates if metric in nodes]
            for metric in of_scans:
                rows[metric] = rows.get(metric, 0) + int(updates[metric] or 0)
                of_task = event["Task Metrics"]["Input Metrics"]["Bytes Read"] // len(of_scans)
                read[metric] = read.get(metric, 0) + of_task
    return [Scan(*nodes[metric], count, read[metric]) for metric, count in rows.items() if count]


def _scan_nodes(plan: Mapping[str, Any]) -> dict[int, tuple[str, str]]:
    """Returns the scans of files in a plan: the format and location, by the id of the metric of rows."""
    nodes = {}
    if "Scan" in plan["nodeName"] and "Format" in plan["metadata"]:
        described = (plan["metadata"]["Format"].lower(), plan["metadata"].get("Location", ""))
        nodes = {
            metric["accumulatorId"]: described
            for metric in plan["metrics"]
            if metric["name"] in ("number of output rows", "output rows")
        }
    for child in plan["children"]:
        nodes |= _scan_nodes(child)
    return nodes


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    files = [path for path in folder.rglob("*") if path.is_file() and _is_log(path)]
    for path in sorted(files, key=lambda file: (str(file.parent), _number(file))):
        with path.open("rb") as file:
            lines = pa.CompressedInputStream(file, "zstd") if path.name.endswith(".zstd") else file
            for line in io.TextIOWrapper(io.BytesIO(lines.read()), encoding="utf-8"):
                yield json.loads(line)


def _is_log(path: Path) -> bool:
    return path.name.startswith(("events_", "local-", "app-")) and not path.name.endswith(".crc")


def _number(path: Path) -> int:
    """Returns the number of a file of a log that consists of several files."""
    parts = path.name.split("_")
    return int(parts[1]) if parts[0] == "events" and parts[1].isdigit() else 0
