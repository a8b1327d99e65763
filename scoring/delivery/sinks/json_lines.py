"""The JSON lines sink: writes one JSON object per user to files, and publishes the files with a manifest."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from conf.lazy_imports import F
from scoring.delivery.file_sink import (
    Files,
    FileSinkSettings,
    ListRecord,
    erase_records,
    folders_of,
    publish_files,
)
from scoring.delivery.published_lists import Delivered, Erased, EraseRequest, PublishedLists
from scoring.requests import VARIANT
from storage import file_io

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

IN_PROCESS = True
places = folders_of

_ENDINGS = {"none": ".json", "gzip": ".json.gz"}
_ENTRY = ("item_id", "position", "score", "reason")
_ROWS_AT_ONCE = 10_000


class Settings(FileSinkSettings):
    """Files with one JSON object per user. A manifest lists the published files, as in tables of the lake.

    The manifest of a date is in the folder `path`/dt=…. The files themselves are in a folder `_data` next to
    the last folder of `path`.
    """


def deliver(sink: Settings, lists: PublishedLists) -> Delivered:
    """Publishes the lists of a date in the folder `<path>/dt=<date>`, as `publish_files` does.

    Each line is an object {"user_id", "date", "items": [{item_id, position, score, reason}]}, with the items
    ordered by position. During an experiment, it also has the key "variant". The lines are sorted by user.
    If the files are read in the order of the manifest, all lines have this order.

    Args:
        sink: the keys of the sink in `deliver.sinks`.
        lists: the published lists of the date.

    Raises:
        InfrastructureError: the files do not have exactly one line per user.
    """
    files = Files(
        write=partial(_write, sink, lists),
        count=partial(_count, lists),
        ending=_ENDINGS[sink.compression],
        records=lists.users,
        layout=f"{sink.compression}, {sink.users_per_file} users a file",
        schema=(("line", "json"),),
        facts={"users": lists.users, "entries": lists.manifest.rows, "compression": sink.compression},
    )
    partition = publish_files(sink.name, sink.path, lists, files)
    return Delivered(partition.path, lists.manifest.rows)


def erase(sink: Settings, request: EraseRequest) -> Erased:
    """Removes the lines of users from all files, and immediately deletes files that no manifest names."""
    return Erased(sink.path, erase_records(sink.name, sink.path, request, parse_lines))


def parse_lines(content: bytes) -> tuple[bytes, list[ListRecord]]:
    """Returns the bytes before the first record (none), and the lines of a file as records."""
    objects = [(line, json.loads(line)) for line in content.splitlines(keepends=True)]
    return b"", [ListRecord(of_user["user_id"], len(of_user["items"]), line) for line, of_user in objects]


def lines(lists: PublishedLists) -> DataFrame:
    """Returns the lines to write: a frame with the columns user_id, date and items, one row per user.

    During an experiment, the frame also has the column variant.
    """
    items = F.sort_array(F.collect_list(F.struct("position", "item_id", "score", "reason")))
    variant = [VARIANT] if VARIANT in lists.frame.columns else []
    users = lists.frame.groupBy("user_id", *variant).agg(items.alias("items"))
    ordered = F.transform("items", lambda item: F.struct(*(item[name].alias(name) for name in _ENTRY)))
    return users.select("user_id", F.lit(lists.run_date).alias("date"), *variant, ordered.alias("items"))


def _write(sink: Settings, lists: PublishedLists, folder: str) -> None:
    """Writes the files. The rows are sorted by user across all files."""
    files = max(1, -(-lists.users // sink.users_per_file))
    if isinstance(lists.rows, pa.Table):
        _write_table(lists.rows, lists, folder, files, _ENDINGS[sink.compression])
        return
    rows = lines(lists)
    partitioned = rows.repartitionByRange(files, "user_id") if files > 1 else rows.repartition(1)
    partitioned.sortWithinPartitions("user_id").write.json(folder, compression=sink.compression)


def _count(lists: PublishedLists, folder: str) -> dict[str, int]:
    """Returns the number of lines of each file."""
    if isinstance(lists.rows, pa.Table):
        return {
            info.base_name: len(_content(f"{folder}/{info.base_name}").splitlines())
            for info in file_io.list_files(folder)
        }
    written = lists.frame.sparkSession.read.text(file_io.escaped(folder))
    by_file = written.select(F.col("_metadata.file_name").alias("name")).groupBy("name").count()
    return {row["name"]: row["count"] for row in by_file.collect()}


def _write_table(rows: pa.Table, lists: PublishedLists, folder: str, number: int, ending: str) -> None:
    """Writes `number` files with about equal numbers of users, in this process."""
    ordered = rows.sort_by([("user_id", "ascending"), ("position", "ascending")])
    users = list(_users(ordered, lists.run_date))
    storage, inner = file_io.filesystem(folder)
    if file_io.is_local(folder):
        storage.create_dir(inner, recursive=True)
    for index in range(number):
        first, last = len(users) * index // number, len(users) * (index + 1) // number
        text = "".join(
            json.dumps(user, ensure_ascii=False, separators=(",", ":")) + "\n" for user in users[first:last]
        )
        content = gzip.compress(text.encode()) if ending.endswith(".gz") else text.encode()
        with storage.open_output_stream(f"{inner}/part-{index:05d}{ending}", compression=None) as target:
            target.write(content)


def _users(ordered: pa.Table, run_date: str) -> Iterator[dict[str, Any]]:
    """Yields the line of each user, as an object.

    Args:
        ordered: the entries of all lists, by user and position.
        run_date: the date of the lists.
    """
    of_user: dict[str, Any] | None = None
    has_variant = VARIANT in ordered.column_names
    for batch in ordered.to_batches(max_chunksize=_ROWS_AT_ONCE):
        # The text of a float32 is shorter than that of the same number as a float64.
        scores = [float(str(score)) for score in batch.column("score").to_numpy(zero_copy_only=False)]
        for row, score in zip(batch.to_pylist(), scores, strict=True):
            if of_user is None or row["user_id"] != of_user["user_id"]:
                if of_user is not None:
                    yield of_user
                variant = {VARIANT: row[VARIANT]} if has_variant else {}
                of_user = {"user_id": row["user_id"], "date": run_date, **variant, "items": []}
            of_user["items"].append({**{name: row[name] for name in _ENTRY}, "score": score})
    if of_user is not None:
        yield of_user


def _content(path: str) -> bytes:
    files, inner = file_io.filesystem(path)
    with files.open_input_stream(inner, compression=None) as source:
        content: bytes = source.read()
    return gzip.decompress(content) if path.endswith(".gz") else content
