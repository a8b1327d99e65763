"""Prepares the rows of days in tasks of this machine, without Spark."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import ConfigError, InfrastructureError
from conf.raw_types import RawTable
from conf.types import SPLITS, History, Negatives, Split, SplitConfig
from etl.ops import RowChanger
from etl.prepare.attributes import join_attributes, key_texts, read_attribute_table
from etl.prepare.click_tables import ClickFiles, click_tables
from etl.prepare.histories import add_history
from etl.prepare.last_values import join_values, value_tables
from etl.prepare.prepared_passes import PreparedPasses, earlier_digests, write_prepared
from etl.prepare.prepared_rows import (
    Cuts,
    DayItems,
    add_negatives,
    add_positions,
    add_to_log_rows,
    assign_split,
    count_times,
    impressions_table,
    items_of,
    merge_items,
    position_cuts,
    time_cuts,
)
from etl.raw.erased_users import erased_of_table
from etl.raw.file_splits import FileSplit, compression
from etl.raw.files import RawFiles, require_raw
from etl.raw.splits import SPLIT
from etl.statistics.value_counts import buckets_for
from etl.text.parse_block import FileLayout, layout_of_days
from etl.text.published_days import ScannedDay, file_name, labelled_file
from etl.text.stored_rows import (
    SPILLED_LINE,
    Spill,
    delete_spilled,
    delete_spilled_of,
    read_spilled,
    spilled_lines,
)
from etl.workflow.feature_plan import FeaturePlan
from spark.workers import LocalWorkers, Workers
from storage.feature_spec import EVENT_TIME, LABEL, ROW_ID, USER_KEY, WEIGHT, raw_keys
from storage.paths import LakePaths
from storage.publish import new_attempt, publish_files

# Bytes of raw text per task that prepares rows. The histories and negatives of a task need much more memory
# than this.
_TASK_BYTES = 8 * 2**20
_MAX_BUCKETS = 256
_COMPRESSED = 5  # approximate ratio of the size of a file's text to the size of the compressed file
_ARROW_TYPES = {
    "int": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
    "ints": pa.list_(pa.int64()),
    "strings": pa.list_(pa.string()),
}


class TaskPasses(PreparedPasses):
    """The passes of a build_features run in which tasks on this machine prepare the rows, without Spark."""

    def __init__(self, workers: LocalWorkers, plan: FeaturePlan, lake: LakePaths) -> None:
        """Creates the passes.

        Raises:
            ConfigError: an operator of `prepare` can process only Spark frames.
        """
        clicks, values = click_tables(workers, plan, lake), value_tables(workers, plan, lake)
        super().__init__(workers, plan, lake, earlier_digests(clicks, values))
        self._local, self._clicks, self._values = workers, clicks, values
        require_table_forms(self._plan.changers)
        # Maps the section and the paths of a table of attributes to the file with the table's rows.
        self._saved: dict[tuple[str, ...], str] = {}

    def _prepare_days(self, days: Sequence[RawFiles]) -> None:
        run_id = uuid.uuid4().hex[:12]
        try:
            self._prepare_in_buckets(days, run_id)
        finally:
            delete_spilled_of(self._local.folder, run_id)

    def _prepare_in_buckets(self, days: Sequence[RawFiles], run_id: str) -> None:
        layout = layout_of_days(self._plan, days)
        preparation = self._preparation(layout)
        splits = self._splits_of(days, layout)
        buckets = [self._buckets(parts, len(days)) for parts in splits]
        columns, by = self._log_columns(), USER_KEY if self._plan.config.keys else None

        def store(day: int, task: int) -> Spill:
            return Spill(f"{run_id}-{task}", columns, by, buckets[day])

        tasks: list[BucketTask] = []
        attempts = []
        good: list[int] = []
        cuts: dict[int, Cuts | None] = {}
        for index, day in enumerate(self._scan(days, layout, splits, store)):
            good.append(sum(summary.good for _, summary in day.split_summaries()))
            partition = self._prepared(day.raw.dt)
            attempts.append(new_attempt(partition))
            spills = tuple((f"{run_id}-{task}", first_row) for task, _, first_row, _ in day.first_lines())
            for bucket in range(buckets[index]):
                file = partition.file(f"{attempts[-1]}/part-{bucket:05d}.parquet")
                tasks.append(BucketTask(index, day.raw.dt, spills, bucket, file))
            if self._plan.division == "position":
                cuts[index] = self._position_cuts(day, spills, buckets[index])
        inputs = self._day_inputs(days, tasks, preparation, cuts)
        written = prepare_buckets(self._workers, tasks, preparation, inputs)
        for index, raw in enumerate(days):
            files = [
                file
                for task, of_task in zip(tasks, written, strict=True)
                if task.day == index
                for file in of_task
            ]
            self._publish_prepared(raw, attempts[index], files, good[index])

    def _publish_prepared(
        self, raw: RawFiles, attempt: str, files: Sequence[PreparedFile], good: int
    ) -> None:
        """Publishes the prepared rows of a day.

        Raises:
            InfrastructureError: the number of rows that tasks read is not the number of good rows of the log
                (`good`), so stored rows were lost.
        """
        read = sum(file.good for file in files)
        if read != good:
            raise InfrastructureError(
                f"{raw.dt}: {good} good rows were stored for their preparation, but {read} were read",
                f"check whether a program deletes files in {self._local.folder}, and run the job again",
            )
        publish_files(
            self._prepared(raw.dt),
            {labelled_file(attempt, file.split, file_name(file.path)): file.split for file in files},
            inputs=self._prepared_inputs(raw),
            expected_rows=sum(file.rows for file in files),
            grace_hours=self._plan.config.output.grace_hours,
        )

    def _position_cuts(self, day: ScannedDay, spills: Sequence[tuple[str, int]], buckets: int) -> Cuts | None:
        """Returns the row_ids of the last train row and of the last validation row."""
        good = [summary.good for _, summary in day.split_summaries()]

        def row_ids(index: int) -> np.ndarray:
            name, first_row = spills[index]
            return spilled_lines(self._local.folder, name, buckets) + first_row

        return position_cuts(good, row_ids, self._plan.config.split)

    def _buckets(self, file_splits: Sequence[FileSplit], days: int) -> int:
        """Returns the number of tasks that prepare a day. Without keys, one task has all rows of the day."""
        config = self._plan.config
        user = config.keys.user if config.keys else None
        if user is None or not keep_users_together(self._plan.changers, user):
            return 1
        size = sum(part.bytes * (_COMPRESSED if compression(part.path) else 1) for part in file_splits)
        most = _TASK_BYTES if days > 1 else min(_TASK_BYTES, max(size // self._workers.parallelism, 2**18))
        return min(_MAX_BUCKETS, buckets_for(size, max(most, 1)))

    def _preparation(self, layout: FileLayout) -> Preparation:
        config = self._plan.config
        types = {name: pa.string() for name in raw_keys(config.keys)}
        types |= {ROW_ID: pa.int64(), LABEL: pa.float32()}
        types |= {EVENT_TIME: pa.int64()} if config.log.event_time else {}
        types |= {WEIGHT: pa.float32()} if config.log.label.weights is not None else {}
        stored = self._log_columns()
        raw = {name: _ARROW_TYPES[kind] for name, kind in layout.types.items() if name in stored}
        tables = {"users": config.users, "items": config.items}
        keys = {"users": config.keys.user, "items": config.keys.item} if config.keys else {}
        return Preparation(
            split=config.split if self._plan.is_divided else None,
            history=config.history,
            negatives=config.negatives,
            item_column=config.keys.item if config.keys else "",
            position_column=config.serving.row_column,
            has_time=config.log.event_time is not None,
            keys_of_tables={name: keys[name] for name, table in tables.items() if table and name in keys},
            last_values=self._values.names if self._values else (),
            changers=self._plan.changers,
            columns=self._columns(),
            types={**raw, **types},
        )

    def _day_inputs(
        self,
        days: Sequence[RawFiles],
        tasks: Sequence[BucketTask],
        preparation: Preparation,
        cuts: Mapping[int, Cuts | None],
    ) -> list[DayInputs]:
        """Reads the tables that tasks need, and computes the items of each day.

        `cuts` maps the index of each day to the row_ids at which its splits end. If splits end at times
        instead, `cuts` is empty, and this method computes the times.
        """
        inputs = []
        for raw in days:
            shown = impressions_table(self._workers, self._plan, raw)
            inputs.append(
                DayInputs(
                    earlier=self._clicks.files_before(raw.dt) if self._clicks else None,
                    impressions=None if shown is None else save_table(shown, self._new_file()),
                    tables={
                        section: self._attributes(raw, section, key)
                        for section, key in preparation.keys_of_tables.items()
                    },
                    last_values=self._saved_values(raw.dt),
                )
            )
        if preparation.split and preparation.split.by == "fraction":
            cuts = cuts or self._cuts(tasks, preparation)
            inputs = [replace(of_day, cuts=cuts.get(index)) for index, of_day in enumerate(inputs)]
        if preparation.negatives:
            folder = self._new_folder()
            paths = items_of_buckets(self._workers, tasks, preparation, inputs, str(folder))
            for index in range(len(days)):
                parts = [
                    load_table(path) for task, path in zip(tasks, paths, strict=True) if task.day == index
                ]
                items = self._new_folder()
                merge_items(parts).save(items)
                inputs[index] = replace(inputs[index], items=str(items))
        return inputs

    def _cuts(self, tasks: Sequence[BucketTask], preparation: Preparation) -> dict[int, Cuts | None]:
        """Returns, by index of the day, the times at which its train and its validation split end."""
        counted = times_of(self._workers, tasks, preparation)
        days = counted["day"].to_numpy()
        cuts = {}
        for day in np.unique(days).tolist():
            of_day = counted.filter(pa.array(days == day))
            times, counts = of_day["time"].to_numpy(), of_day["count"].to_numpy()
            cuts[day] = time_cuts(times, counts, self._plan.config.split)
        return cuts

    def _attributes(self, raw: RawFiles, section: str, key: str) -> str:
        """Returns the path of a file with the rows of a table of attributes. Reads each table only once."""
        config = self._plan.config
        table: RawTable | None = config.users if section == "users" else config.items
        if table is None:
            raise ValueError(f"internal error, please report: the section {section} is not set")
        files = require_raw(config, table, raw.dt, f"{section}.path", raw.recorder)
        known = (section, *files.paths)
        if known not in self._saved:
            rows = read_attribute_table(config, table, key, section, raw.dt, key, raw.recorder)
            if section == "users" and (erased := erased_of_table(config, table, raw.dt)) is not None:
                rows = rows.filter(pa.array(~erased.are_in(key_texts(config, table, rows, key))))
            self._saved[known] = save_table(rows, self._new_file())
        return self._saved[known]

    def _saved_values(self, day: str) -> str | None:
        """Returns the path of a file with items' last values before a day; None without `last_values`."""
        if self._values is None:
            return None
        rows = self._values.before(day)
        if not isinstance(rows, pa.Table):
            raise ValueError("internal error, please report: last values are a Spark frame, not a table")
        return save_table(rows, self._new_file())

    def _new_file(self) -> str:
        return str(self._local.folder / f"{uuid.uuid4().hex[:12]}.arrow")

    def _new_folder(self) -> Path:
        folder = self._local.folder / uuid.uuid4().hex[:12]
        folder.mkdir()
        return folder


# The code below runs the tasks that prepare the rows of a day. Each task has all rows of some users, or all
# rows of the day.
#
# The scan pass has stored the good rows of the log in buckets, by a hash of the user (etl.text.stored_rows).
# A task reads one bucket, and adds in this order: the split, the history, negatives, positions of
# impressions, attributes of users and items, and last values of items. Then it applies the operators of
# `prepare` that change rows.

TIMES_SCHEMA = pa.schema([("day", pa.int32()), ("time", pa.int64()), ("count", pa.int64())])


@dataclass(frozen=True)
class Preparation:
    """What the configuration requests to add to the rows of a log.

    Attributes:
        split: the section `split` if one partition contains all splits; None if each day is in one split.
        history, negatives: these sections of the configuration; None if a section is not set.
        item_column: the raw column of the item key; empty without keys.
        position_column: `serving.impressions.row_column`; None if it is not set.
        has_time: whether the log has event times.
        keys_of_tables: maps `users` and `items` to the raw column of the key, if the configuration has these
            tables.
        last_values: the columns that the section `last_values` adds.
        changers: the operators of `prepare` that change rows, in the order of the configuration.
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
    last_values: tuple[str, ...]
    changers: tuple[RowChanger, ...]
    columns: tuple[str, ...]
    types: Mapping[str, pa.DataType]


@dataclass(frozen=True)
class DayInputs:
    """Tables that the tasks of a day need. Files are mapped into memory.

    Attributes:
        earlier: the files with clicks of earlier days; None if there are none.
        impressions: path of the impressions of the day; None if there are none.
        tables: maps `users` and `items` to the file with the rows of the table, if the configuration has
            these tables.
        items: folder of the items of the day (etl.prepare.prepared_rows.DayItems); None without negatives.
        cuts: the times or row_ids at which splits end; None if `split.by` is not `fraction`.
        last_values: path of the last values of items before the day; None without `last_values`.
    """

    earlier: ClickFiles | None
    impressions: str | None
    tables: Mapping[str, str]
    items: str | None = None
    cuts: Cuts | None = None
    last_values: str | None = None


@dataclass(frozen=True)
class BucketTask:
    """The rows that one task prepares.

    Attributes:
        day: index of the day.
        dt: the ISO date of the day.
        spills: for each file split of the day, the name under which its rows are stored, and the row_id of
            its first line.
        bucket: the task reads the rows of users whose keys are in this hash bucket.
        file: path of the file to write. If `Preparation.split` is set, the task writes one file per split,
            each in a folder with the name of the split.
    """

    day: int
    dt: str
    spills: tuple[tuple[str, int], ...]
    bucket: int
    file: str


@dataclass(frozen=True)
class PreparedFile:
    """A written file: path, split of its rows (None if the day is in one split), and number of rows.

    `good` is the number of good rows that the task read. It is set only for the task's first file.
    """

    path: str
    split: Split | None
    rows: int
    good: int


def save_table(rows: pa.Table, path: str) -> str:
    """Writes a table to a file that tasks map into memory, and returns the path."""
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return path


def load_table(path: str) -> pa.Table:
    """Maps a file of `save_table` into memory."""
    with pa.memory_map(path) as source:
        return pa.ipc.open_stream(source).read_all()


def times_of(workers: Workers, tasks: Sequence[BucketTask], preparation: Preparation) -> pa.Table:
    """Returns how many rows of each day have each event time, as a table with TIMES_SCHEMA.

    The same time may be in several rows of the table, because the counts of different tasks are not added up.
    """
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
    """Returns, for each task, the path of a file with the items of its rows.

    The files are in `folder`, and contain the results of etl.prepare.prepared_rows.items_of.
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
    """Prepares the rows of all tasks, and returns the files of each task. The files are not published."""
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
    """Returns the prepared rows of a task: the columns to write and, if a day has several splits, `split`.

    Args:
        rows: the good rows of some users, or of a whole day.
        preparation: what to add to the rows.
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
    if day.last_values:
        values = load_table(day.last_values)
        rows = join_values(rows, values, preparation.last_values, timed=preparation.has_time)
    rows = apply_row_operators(rows, preparation.changers, preparation.negatives)
    kept = [name for name in (*preparation.columns, SPLIT) if name in rows.column_names]
    return rows.select(kept)


def _with_split(rows: pa.Table, preparation: Preparation, day: DayInputs) -> pa.Table:
    return assign_split(rows, preparation.split, day.cuts) if preparation.split else rows


def _load(task: BucketTask, preparation: Preparation) -> pa.Table:
    """Returns the stored rows of a task, with their row_ids."""
    names = [name for name, _ in task.spills]
    batches = []
    for index, batch in read_spilled(names, task.bucket):
        place = batch.schema.get_field_index(SPILLED_LINE)
        row_ids = pc.add(batch.column(place), task.spills[index][1])
        others = [column for at, column in enumerate(batch.columns) if at != place]
        columns = [name for name in batch.schema.names if name != SPILLED_LINE]
        batches.append(pa.Table.from_arrays([row_ids, *others], [ROW_ID, *columns]))
    if batches:
        return pa.concat_tables(batches)
    return pa.table({name: pa.array([], kind) for name, kind in preparation.types.items()})


def _of_users(impressions: pa.Table, rows: pa.Table) -> pa.Table:
    """Returns the impressions of the users of some rows."""
    return impressions.filter(pc.is_in(impressions[USER_KEY], value_set=_users_of(rows)))


def _users_of(rows: pa.Table) -> pa.Array:
    """Returns the keys of the users of some rows.

    The result may include keys of other users, and a key may occur twice.
    """
    chunks = rows.column(USER_KEY).chunks
    keys = [chunk.dictionary if isinstance(chunk, pa.DictionaryArray) else chunk for chunk in chunks]
    return pa.concat_arrays(keys) if keys else pa.array([], pa.string())


def _by_split(rows: pa.Table) -> list[tuple[Split | None, pa.Table]]:
    """Returns, for each split with rows, its rows without the column of the split."""
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


# The functions below apply, without Spark, the operators of `prepare` that add columns or combine rows.


def require_table_forms(changers: Sequence[RowChanger]) -> None:
    """Raises ConfigError if an operator can process only Spark frames."""
    for changer in changers:
        if type(changer).apply_table is RowChanger.apply_table:
            changer.apply_table(pa.table({}))


def keep_users_together(changers: Sequence[RowChanger], user_column: str | None) -> bool:
    """Returns whether all operators give the right result if they get the rows of only some users at a time.

    Tasks can then divide the users among themselves. If the result is false, one task must have all rows of
    the day.

    Args:
        changers: the operators of the configuration that change rows.
        user_column: the raw column of the user key; None without the section `keys`.
    """
    return all(user_column in changer.key_columns() for changer in changers)


def apply_row_operators(
    rows: pa.Table, changers: Sequence[RowChanger], negatives: Negatives | None = None
) -> pa.Table:
    """Returns the rows after all operators, in the order of the configuration.

    Args:
        rows: all rows of a day, or all rows of some of its users (`keep_users_together`).
        changers: the operators of the configuration that change rows.
        negatives: the section `negatives` of the configuration, if it has added negatives to `rows`.

    Raises:
        ConfigError: an operator can process only Spark frames, or does not return a table with the columns
            `row_id` and `label`.
    """
    require_table_forms(changers)
    for changer in changers:
        if negatives and changer.of_log_rows:
            changed = add_to_log_rows(rows, negatives.per_positive + 1, changer.apply_table)
        else:
            changed = changer.apply_table(rows)
        if not isinstance(changed, pa.Table) or not {ROW_ID, LABEL} <= set(changed.column_names):
            raise ConfigError(
                f"`apply_table` of the operator {changer.name} did not return a pyarrow.Table with the "
                f"columns {ROW_ID} and {LABEL}",
                f"change the method `apply_table` of {changer.name} so that it returns such a table",
            )
        rows = changed
    return rows
