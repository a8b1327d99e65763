"""The tasks that prepare the rows of a day. Each task has all rows of some users, or all rows of the day.

The scan pass has stored the good rows of the log in hash buckets of the user (etl.text.spilled_rows). A task
reads one bucket, and adds in this order: the split, the history, negatives, positions of impressions,
attributes of users and items. Then it applies the operators of `prepare` that change rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.types import SPLITS, History, Negatives, Split, SplitConfig
from etl.ops import RowChanger
from etl.prepare.attributes import join_attributes
from etl.prepare.click_tables import ClickFiles
from etl.prepare.histories import add_history
from etl.prepare.negatives import DayItems, add_negatives, items_of
from etl.prepare.positions import add_positions
from etl.prepare.prepared_files import write_prepared
from etl.prepare.row_operators import apply_row_operators
from etl.prepare.splits import Cuts, assign_split, count_times
from etl.split.time_split import SPLIT
from etl.text.spilled_rows import LINE, delete_spilled, read_spilled
from spark.workers import Workers
from storage.feature_spec import ROW_ID, USER_KEY

TIMES_SCHEMA = pa.schema([("day", pa.int32()), ("time", pa.int64()), ("count", pa.int64())])


@dataclass(frozen=True)
class Preparation:
    """What is added to the rows of a log, by the configuration.

    Attributes:
        split: the section `split`, if one partition contains all splits; None if rows of a day are in one.
        history, negatives: the sections of the configuration; None without them.
        item_column: the raw column of the item key; empty without keys.
        position_column: `serving.impressions.row_column`; None without it.
        has_time: whether the log has event times.
        keys_of_tables: maps `users` and `items`, if they are tables, to the raw column of the key.
        changers: the operators of `prepare` that change rows, in order.
        columns: the columns to write.
        types: the types of the columns of the good rows, for a day without rows.
    """

    split: SplitConfig | None
    history: History | None
    negatives: Negatives | None
    item_column: str
    position_column: str | None
    has_time: bool
    keys_of_tables: Mapping[str, str]
    changers: tuple[RowChanger, ...]
    columns: tuple[str, ...]
    types: Mapping[str, pa.DataType]


@dataclass(frozen=True)
class DayInputs:
    """Tables that the tasks of a day need. Files are mapped into memory.

    Attributes:
        earlier: the files of the clicks of earlier days; None without them.
        impressions: path of the impressions of the day; None without them.
        tables: maps `users` and `items`, if they are tables, to the path of their rows.
        items: folder of the items of the day (etl.prepare.negatives.DayItems); None without negatives.
        cuts: the cuts of a log that is divided by times; None for other logs.
    """

    earlier: ClickFiles | None
    impressions: str | None
    tables: Mapping[str, str]
    items: str | None = None
    cuts: Cuts | None = None


@dataclass(frozen=True)
class BucketTask:
    """The rows that one task prepares.

    Attributes:
        day: index of the day.
        dt: the ISO date of the day.
        spills: for each file split of the day, the name of its stored rows and the row_id of its first line.
        bucket: the bucket to read.
        file: path of the files to write; each split has a folder of its own if `Preparation.split` is set.
    """

    day: int
    dt: str
    spills: tuple[tuple[str, int], ...]
    bucket: int
    file: str


@dataclass(frozen=True)
class PreparedFile:
    """A written file: its path, the split of its rows (None if the day is in one split), number of rows.

    `good` is the number of good rows of the log that its task read; only the first file of a task has it.
    """

    path: str
    split: Split | None
    rows: int
    good: int


def save_table(rows: pa.Table, path: str) -> str:
    """Writes a table to a file that tasks map into memory. Returns the path."""
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return path


def load_table(path: str) -> pa.Table:
    """Maps a file of `save_table` into memory."""
    with pa.memory_map(path) as source:
        return pa.ipc.open_stream(source).read_all()


def times_of(workers: Workers, tasks: Sequence[BucketTask], preparation: Preparation) -> pa.Table:
    """Returns how many rows have each event time, by day: a table with TIMES_SCHEMA, not merged."""
    return workers.run(len(tasks), partial(_count_times, tuple(tasks), preparation), TIMES_SCHEMA)


def _count_times(
    tasks: tuple[BucketTask, ...], preparation: Preparation, index: int
) -> Iterator[pa.RecordBatch]:
    task = tasks[index]
    times, counts = count_times(_load(task, preparation))
    days = pa.array(np.full(len(times), task.day, np.int32))
    yield pa.RecordBatch.from_arrays([days, pa.array(times), pa.array(counts)], schema=TIMES_SCHEMA)


def items_of_buckets(
    workers: Workers,
    tasks: Sequence[BucketTask],
    preparation: Preparation,
    days: Sequence[DayInputs],
    folder: str,
) -> list[str]:
    """Returns for each task the path of a file with the items of its rows (etl.prepare.negatives.items_of).

    The files are in `folder`.
    """
    run = partial(_find_items, tuple(tasks), preparation, tuple(days), folder)
    return workers.collect(len(tasks), run)


def _find_items(
    tasks: tuple[BucketTask, ...],
    preparation: Preparation,
    days: tuple[DayInputs, ...],
    folder: str,
    index: int,
) -> str:
    task = tasks[index]
    rows = _with_split(_load(task, preparation), preparation, days[task.day])
    return save_table(items_of(rows, preparation.item_column), f"{folder}/items-{index}.arrow")


def prepare_buckets(
    workers: Workers, tasks: Sequence[BucketTask], preparation: Preparation, days: Sequence[DayInputs]
) -> list[list[PreparedFile]]:
    """Prepares the rows of all tasks, and returns the files of each task. They are not published."""
    texts = workers.collect(len(tasks), partial(_prepare_bucket, tuple(tasks), preparation, tuple(days)))
    return [[PreparedFile(*file) for file in json.loads(text)] for text in texts]


def _prepare_bucket(
    tasks: tuple[BucketTask, ...], preparation: Preparation, days: tuple[DayInputs, ...], index: int
) -> str:
    task = tasks[index]
    good = _load(task, preparation)
    rows = prepare(good, preparation, days[task.day])
    files = [
        (write_prepared(part, _in_folder(task.file, split)), split, len(part), 0 if index else len(good))
        for index, (split, part) in enumerate(_by_split(rows))
    ]
    delete_spilled([name for name, _ in task.spills], task.bucket)
    return json.dumps(files)


def prepare(rows: pa.Table, preparation: Preparation, day: DayInputs) -> pa.Table:
    """Returns the prepared rows of a task, with the columns to write and, if the log is divided, `split`.

    Args:
        rows: the good rows of some users, or of a whole day.
        preparation: what to add.
        day: the tables of the day.
    """
    rows = _with_split(rows, preparation, day)
    if preparation.history:
        earlier = day.earlier.read(_users_of(rows)) if day.earlier else None
        rows = add_history(rows, preparation.history, earlier)
    if preparation.negatives and day.items:
        items = DayItems.load(Path(day.items))
        rows = add_negatives(rows, preparation.negatives, preparation.item_column, items)
    if preparation.position_column:
        shown = _of_users(load_table(day.impressions), rows) if day.impressions else None
        rows = add_positions(rows, shown, preparation.position_column, preparation.has_time)
    for section, key in preparation.keys_of_tables.items():
        rows = join_attributes(rows, load_table(day.tables[section]), key)
    rows = apply_row_operators(rows, preparation.changers)
    kept = [name for name in (*preparation.columns, SPLIT) if name in rows.column_names]
    return rows.select(kept)


def _with_split(rows: pa.Table, preparation: Preparation, day: DayInputs) -> pa.Table:
    return assign_split(rows, preparation.split, day.cuts) if preparation.split else rows


def _load(task: BucketTask, preparation: Preparation) -> pa.Table:
    """Returns the stored rows of a task, with their row_ids."""
    names = [name for name, _ in task.spills]
    batches = []
    for index, batch in read_spilled(names, task.bucket):
        place = batch.schema.get_field_index(LINE)
        row_ids = pc.add(batch.column(place), task.spills[index][1])
        others = [column for at, column in enumerate(batch.columns) if at != place]
        columns = [name for name in batch.schema.names if name != LINE]
        batches.append(pa.Table.from_arrays([row_ids, *others], [ROW_ID, *columns]))
    if batches:
        return pa.concat_tables(batches)
    return pa.table({name: pa.array([], kind) for name, kind in preparation.types.items()})


def _of_users(impressions: pa.Table, rows: pa.Table) -> pa.Table:
    """Returns the impressions of the users of some rows."""
    return impressions.filter(pc.is_in(impressions[USER_KEY], value_set=_users_of(rows)))


def _users_of(rows: pa.Table) -> pa.Array:
    """Returns the keys of the users of some rows, and perhaps of other users; each key may occur twice."""
    chunks = rows.column(USER_KEY).chunks
    keys = [chunk.dictionary if isinstance(chunk, pa.DictionaryArray) else chunk for chunk in chunks]
    return pa.concat_arrays(keys) if keys else pa.array([], pa.string())


def _by_split(rows: pa.Table) -> list[tuple[Split | None, pa.Table]]:
    """Returns the rows of each split that has rows, without the column of the split."""
    if SPLIT not in rows.column_names:
        return [(None, rows)]
    others = rows.drop_columns([SPLIT])
    of_rows = rows.column(SPLIT)
    parts: list[tuple[Split | None, pa.Table]] = []
    for split in SPLITS:
        part = others.filter(pc.equal(of_rows.cast(pa.string()), split))
        if len(part) or split == SPLITS[-1]:  # a task writes at least one file
            parts.append((split, part))
    return parts


def _in_folder(path: str, split: Split | None) -> str:
    folder, name = path.rsplit("/", 1)
    return f"{folder}/{split}/{name}" if split else path
