"""Prepares the rows of days in tasks of this machine, without Spark (etl.prepare.prepare_tasks)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from conf.errors import InfrastructureError
from conf.raw_types import RawTable
from etl.prepare.attributes import plain_array, read_attribute_table
from etl.prepare.click_tables import click_tables
from etl.prepare.negatives import merge_items
from etl.prepare.positions import impressions_table
from etl.prepare.prepare_tasks import (
    BucketTask,
    DayInputs,
    Preparation,
    PreparedFile,
    items_of_buckets,
    load_table,
    prepare_buckets,
    save_table,
    times_of,
)
from etl.prepare.prepared_passes import PreparedPasses
from etl.prepare.row_operators import keep_users_together, require_table_forms
from etl.prepare.splits import Cuts, position_cuts, time_cuts
from etl.raw.erased_rows import erased_of_table
from etl.raw.file_splits import FileSplit, compression
from etl.raw.files import RawFiles, require_raw
from etl.text.encoded_days import labelled_file
from etl.text.file_layout import FileLayout, layout_of_days
from etl.text.publish_value_counts import file_name
from etl.text.scanned_day import ScannedDay
from etl.text.spilled_rows import Spill, delete_spilled_of, spilled_lines
from etl.value_counts.count_file_format import buckets_for
from etl.workflow.feature_plan import Plan
from spark.local_workers import LocalWorkers
from storage.feature_spec import EVENT_TIME, LABEL, ROW_ID, USER_KEY, WEIGHT, raw_keys
from storage.paths import Lake
from storage.publish import new_attempt, publish_files

# A task that prepares rows has this many bytes of raw text. Histories and negatives need much more memory.
_TASK_BYTES = 8 * 2**20
_MAX_BUCKETS = 256
_COMPRESSED = 5  # text is about so many times as large as its compressed file
_ARROW_TYPES = {
    "int": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
    "ints": pa.list_(pa.int64()),
    "strings": pa.list_(pa.string()),
}


class TaskPasses(PreparedPasses):
    """The passes over days whose rows are prepared by tasks of this machine."""

    def __init__(self, workers: LocalWorkers, plan: Plan, lake: Lake) -> None:
        """Creates the passes.

        Raises:
            ConfigError: an operator of `prepare` has only a form for Spark frames.
        """
        clicks = click_tables(workers, plan, lake)
        super().__init__(workers, plan, lake, clicks.digest_before if clicks else None)
        self._local, self._clicks = workers, clicks
        require_table_forms(self._plan.changers)
        self._saved: dict[tuple[str, ...], str] = {}  # maps a table of attributes to the file with its rows

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
            InfrastructureError: not all of the `good` rows of the log were read: stored rows are lost.
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
        """Reads the tables that tasks need, and computes the items of each day, and its cuts by time.

        `cuts` has the cuts by position of each day, by its index.
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
        """Returns the cuts of each day by its index."""
        counted = times_of(self._workers, tasks, preparation)
        days = counted["day"].to_numpy()
        cuts = {}
        for day in np.unique(days).tolist():
            of_day = counted.filter(pa.array(days == day))
            times, counts = of_day["time"].to_numpy(), of_day["count"].to_numpy()
            cuts[day] = time_cuts(times, counts, self._plan.config.split)
        return cuts

    def _attributes(self, raw: RawFiles, section: str, key: str) -> str:
        """Returns the path of a file with the rows of a table of attributes. Each table is read once."""
        config = self._plan.config
        table: RawTable | None = config.users if section == "users" else config.items
        if table is None:
            raise ValueError(f"internal error, please report: the section {section} is not set")
        files = require_raw(config, table, raw.dt, f"{section}.path", raw.recorder)
        known = (section, *files.paths)
        if known not in self._saved:
            rows = read_attribute_table(config, table, key, section, raw.dt, key, raw.recorder)
            if section == "users" and (erased := erased_of_table(config, table, raw.dt)) is not None:
                ids = plain_array(rows[key]).cast(pa.string())
                rows = rows.filter(pa.array(~erased.are_in(ids)))
            self._saved[known] = save_table(rows, self._new_file())
        return self._saved[known]

    def _new_file(self) -> str:
        return str(self._local.folder / f"{uuid.uuid4().hex[:12]}.arrow")

    def _new_folder(self) -> Path:
        folder = self._local.folder / uuid.uuid4().hex[:12]
        folder.mkdir()
        return folder
