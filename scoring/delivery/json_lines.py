"""The JSON lines sink: writes one JSON object per user to files, and publishes the files with a manifest."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from conf.errors import InfrastructureError
from conf.types import JsonLinesSink
from scoring.delivery.published_lists import Delivered, PublishedLists
from storage import file_io
from storage.leftovers import delete_leftovers
from storage.manifest import (
    FileEntry,
    Manifest,
    current_manifest,
    data_files,
    is_published,
    read_manifest,
    replace_manifest,
)
from storage.paths import Partition
from storage.publish import new_attempt

_ENDINGS = {"none": ".json", "gzip": ".json.gz"}
_ENTRY = ("item_id", "position", "score", "reason")


def deliver(sink: JsonLinesSink, lists: PublishedLists, grace_hours: float) -> Delivered:
    """Publishes the lists of a date in the folder `<path>/dt=<date>`.

    If this folder already contains the same lists in the same layout, nothing changes. Each line is an object
    {"user_id", "date", "items": [{item_id, position, score, reason}]}, with the items ordered by position.
    The lines are sorted by user. This order continues across files, in the order in which the manifest names
    the files. If the process is killed, the manifest names either the old files or the new files.

    Args:
        sink: the sink from the configuration.
        lists: the published lists of the date.
        grace_hours: files that no manifest names are deleted when they are older than this many hours.

    Raises:
        InfrastructureError: the files do not have exactly one line per user.
    """
    partition = Partition(
        sink.name, lists.run_date, f"{sink.path.rstrip('/')}/dt={lists.run_date}", recorder=lists.recorder
    )
    inputs = {
        "recommendations": lists.manifest.digest,
        "layout": f"{sink.compression}, {sink.users_per_file} users a file",
    }
    known = current_manifest(partition, inputs)
    if known is None:
        attempt = new_attempt(partition)
        _write(sink, lists, partition.file(attempt))
        known = _publish(sink, lists, partition, attempt, inputs, grace_hours)
    return Delivered(partition.path, lists.manifest.rows)


def lines(lists: PublishedLists) -> DataFrame:
    """Returns the lines to write: a frame with the columns user_id, date and items, one row per user."""
    items = F.sort_array(F.collect_list(F.struct("position", "item_id", "score", "reason")))
    users = lists.rows.groupBy("user_id").agg(items.alias("items"))
    ordered = F.transform("items", lambda item: F.struct(*(item[name].alias(name) for name in _ENTRY)))
    return users.select("user_id", F.lit(lists.run_date).alias("date"), ordered.alias("items"))


def _write(sink: JsonLinesSink, lists: PublishedLists, folder: str) -> None:
    """Writes the files. The rows are sorted by user across all files."""
    files = max(1, -(-lists.users // sink.users_per_file))
    rows = lines(lists)
    partitioned = rows.repartitionByRange(files, "user_id") if files > 1 else rows.repartition(1)
    partitioned.sortWithinPartitions("user_id").write.json(folder, compression=sink.compression)


def _publish(
    sink: JsonLinesSink,
    lists: PublishedLists,
    partition: Partition,
    attempt: str,
    inputs: dict[str, str],
    grace_hours: float,
) -> Manifest:
    """Counts the lines of the written files by reading them back, and publishes the files."""
    folder = partition.file(attempt)
    ending = _ENDINGS[sink.compression]
    sizes = {
        entry.path.rsplit("/", 1)[1]: entry.size
        for entry in file_io.list_files(folder)
        if entry.path.endswith(ending)
    }
    written = lists.rows.sparkSession.read.text(folder)
    by_file = written.select(F.col("_metadata.file_name").alias("name")).groupBy("name").count()
    counts = {row["name"]: row["count"] for row in by_file.collect()}
    written_lines = sum(count for name, count in counts.items() if name in sizes)
    if written_lines != lists.users:
        raise InfrastructureError(
            f"{folder} has {written_lines} lines, but {lists.users} users have a list",
            "rerun the job: the lists changed while they were delivered. If that does not help, this is an "
            "internal error, please report",
        )
    entries = [
        FileEntry(f"{attempt}/{name}", counts[name], size, (counts[name],))
        for name, size in sizes.items()  # in the order of the users
        if name in counts
    ]
    manifest = Manifest(
        table=partition.table,
        partition=partition.dt,
        files=tuple(entries),
        schema=(("line", "json"),),
        inputs=inputs,
        rows_in=lists.manifest.rows,
        facts={"users": lists.users, "entries": lists.manifest.rows, "compression": sink.compression},
        created_at=file_io.utc_now(),
    )
    previous = read_manifest(partition) if is_published(partition) else None
    file_io.make_durable(data_files(partition, manifest), partition.root)
    replace_manifest(partition, manifest)
    delete_leftovers(partition, [manifest, previous], grace_hours)
    return manifest
