"""Which partitions of the table `last_clicks` a history uses, and whether they are up to date.

The rules are the same for Spark frames (etl/spark/last_clicks.py) and for Arrow tables
(etl/prepare/click_tables.py). So a lake may get partitions from both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import date, timedelta

from conf.types import Config, History
from etl.raw.files import RawFiles, find_raw
from etl.raw.layout_digest import earlier_layout_digest, layout_digest
from storage.manifest import Manifest, current_manifest, is_published, read_manifest
from storage.paths import Lake, Partition

log = logging.getLogger("nightrank.etl")

# Parts of the digest of prepared rows. Change them when the code would compute other histories for the same
# log: METHOD for logs without groups, GROUP_METHOD for logs with groups.
METHOD = "clicks before the row"
GROUP_METHOD = "clicks before the group"
# Publishes the partition of a day that is missing or obsolete, with these inputs.
Publish = Callable[[RawFiles, Partition, dict[str, str]], Manifest]


def click_days(config: Config, history: History, lake: Lake, day: str, publish: Publish) -> list[Manifest]:
    """Returns the manifests of the `history.days` days before `day` that count, in date order.

    A day counts if it has a raw log, or if its partition was published before its raw log was deleted.
    """
    last, count = date.fromisoformat(day), history.days or 0
    dates = [(last - timedelta(days=back)).isoformat() for back in range(count, 0, -1)]
    manifests = (_published(config, history, lake, dt, publish) for dt in dates)
    return [manifest for manifest in manifests if manifest is not None]


def _published(config: Config, history: History, lake: Lake, dt: str, publish: Publish) -> Manifest | None:
    """Returns the manifest of a day's partition. Publishes the partition if it is missing or obsolete.

    Returns None if the day has neither a raw log nor a partition. A partition without a raw log cannot be
    computed again, so it is used only if it was computed with the present settings. The rules of parsing may
    be those of an earlier release.
    """
    partition = lake.last_clicks.partition(dt)
    raw = find_raw(config, config.log, dt, lake.recorder)
    method = f"{METHOD}, {history.length}"
    if raw is None or raw.bytes == 0:
        return _without_raw_log(config, partition, method)
    inputs = {"raw": raw.digest, "layout": layout_digest(config), "history": method}
    return current_manifest(partition, inputs) or publish(raw, partition, inputs)


def _without_raw_log(config: Config, partition: Partition, method: str) -> Manifest | None:
    """Returns the manifest of a day whose raw log does not exist; None if its clicks cannot be used."""
    if not is_published(partition):
        return None
    manifest = read_manifest(partition)
    layouts = (layout_digest(config), earlier_layout_digest(config))
    if manifest.inputs.get("history") == method and manifest.inputs.get("layout") in layouts:
        return manifest
    log.warning(
        "the clicks of %s in %s were computed with other settings, and the day has no raw log to compute "
        "them again: histories leave them out",
        partition.dt,
        partition.path,
    )
    return None
