"""Tasks that compute statistics of training rows in blocks: value counts, and partial statistics by key."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import InfrastructureError
from conf.names import days_since_epoch
from etl.fit.rounds import RowBatch, TrainingBlocks
from etl.fit.version_tables import (
    KeyRange,
    PartsByKey,
    choose_ranges,
    merge_parts,
    one_group,
    parts_from_json,
    parts_to_json,
    write_parts,
    write_sorted,
)
from etl.native.distinct_values import Sums
from etl.native.mapped_files import open_keyed
from etl.ops import column_operator
from etl.ops.arrays import as_doubles
from etl.ops.base import LISTS, Operator, Type
from etl.ops.keyed import KEY
from etl.ops.tables import LocalTables
from etl.ops.training_statistics import GroupedRows, GroupParts
from etl.raw.text_values import joined_array, text_array
from etl.statistics.moments import VALUE_TYPES
from etl.statistics.value_counts import MERGE_VALUES, Counts, buckets_for, read_counts, write_counts
from etl.workflow.chains import FittedChain, RowPlace, RowValues, decoded, row_values
from spark.workers import Workers
from storage.feature_spec import LABEL
from storage.file_digests import split_name
from storage.read_parquet import read_file

_MEAN = "mean/"


@dataclass(frozen=True)
class Measured:
    """The results of one pass over the training rows.

    Attributes:
        counts: the value counts of the steps whose values are counted. The name of a column of counts is the
            step's key.
        parts: maps the name of a step to the files with its partial statistics, which `write_parts` wrote.
            Only steps whose operator needs statistics by key have such files.
        whole: the statistics over all rows, for operators that need them (`of_all_rows`). If several steps
            have equal operators, only the key of the first step is mapped to these statistics.
        lists: for each step that aggregates lists, maps its key to its aggregates.
        files: the paths of all files that were written.
    """

    counts: Counts
    parts: Mapping[str, Sequence[Mapping[str, Any]]]
    whole: Mapping[str, GroupParts]
    lists: Mapping[str, dict[str, Any]]
    files: tuple[str, ...]


def measure_blocks(
    workers: Workers,
    blocks: TrainingBlocks,
    steps: Sequence[BlockStep],
    tables: LocalTables,
    folder: str,
    latest: int,
) -> Measured:
    """Computes value counts and partial statistics of all steps in one pass over the training rows.

    Args:
        workers: the processes that run the tasks of `blocks`.
        blocks: the training rows.
        steps: the steps to measure.
        tables: the tables in which the steps that are already fitted look up values.
        folder: the folder in which tasks write files.
        latest: the last day that the workflow includes, in days since 1970-01-01.
    """
    run = partial(_measure_task, blocks, tuple(steps), tables, folder)
    results = [json.loads(text) for text in workers.collect(blocks.tasks, run)]
    counts = [file for result in results for file in result["counts"]]
    values = dict.fromkeys((step.key for step in steps), 0)
    for file in counts:
        for name, number in file["values"].items():
            values[name] += number
    parts = {
        step.key: [result["parts"][step.key] for result in results if step.key in result["parts"]]
        for step in steps
        if step.operator.needs == "groups"
    }
    whole: dict[str, list[GroupParts]] = {}
    lists: dict[str, dict[str, Any]] = {}
    operators = {step.key: step.operator for step in steps}
    for result in results:
        for key, stored in result["whole"].items():
            whole.setdefault(key, []).append(parts_from_json(stored))
        for key, aggregates in result["lists"].items():
            merge = operators[key].merge_aggregates
            lists[key] = merge(lists[key], aggregates) if key in lists else aggregates
    paths = [file["path"] for file in [*counts, *(file for files in parts.values() for file in files)]]
    return Measured(
        Counts(tuple((file["path"], file["day"]) for file in counts), latest, values),
        parts,
        {key: one_group(groups) for key, groups in whole.items()},
        lists,
        tuple(paths),
    )


def _measure_task(
    blocks: TrainingBlocks, steps: tuple[BlockStep, ...], tables: LocalTables, folder: str, task: int
) -> str:
    """Runs one task of `measure_blocks`. Returns its results as JSON."""
    counted: dict[int, dict[str, _Counted]] = {}
    by_key = {step.key: PartsByKey() for step in steps if step.operator.needs == "groups"}
    whole: dict[str, GroupParts] = {}
    lists: dict[str, dict[str, Any]] = {}
    owners = _owners_of_whole(steps)
    for inputs in read_steps(blocks, steps, tables, task):
        for values in inputs:
            step, operator = values.step, values.step.operator
            if operator.needs == "groups":
                keys, rows = values.by_key()
                by_key[step.key].add(keys, operator.group_parts(rows))
                if step.key in owners:
                    part = operator.group_parts(values.all_rows())
                    whole[step.key] = one_group([whole[step.key], part]) if step.key in whole else part
            elif operator.needs == "aggregates" and step.kind in LISTS:
                part_of_list = _list_aggregates(values)
                known = lists.get(step.key)
                lists[step.key] = operator.merge_aggregates(known, part_of_list) if known else part_of_list
            else:
                of_day = counted.setdefault(days_since_epoch(values.batch.dt), {})
                of_day.setdefault(step.key, _Counted()).add(*counted_texts(values.values[0]))
    parts = {
        key: write_parts(f"{folder}/parts-{task:05d}-{number:03d}.parquet", *result)
        for number, (key, accumulated) in enumerate(by_key.items())
        if (result := accumulated.result()) is not None
    }
    files = []
    for day, columns in counted.items():
        results = {key: column.result() for key, column in columns.items()}
        most = max(len(values) for values, _ in results.values())
        buckets = buckets_for(most * blocks.tasks, MERGE_VALUES)
        name, numbers = write_counts(f"{folder}/counts-{task:05d}-{day}.parquet", results, buckets)
        files.append({"path": split_name(name)[0], "day": day, "values": numbers})
    stored = {key: parts_to_json(group) for key, group in whole.items()}
    return json.dumps({"counts": files, "parts": parts, "whole": stored, "lists": lists})


def _owners_of_whole(steps: Sequence[BlockStep]) -> set[str]:
    """Returns, for each operator that needs statistics over all rows, the key of its first step."""
    owners: list[BlockStep] = []
    for step in steps:
        if step.operator.of_all_rows and all(step.operator != owner.operator for owner in owners):
            owners.append(step)
    return {step.key for step in owners}


def _list_aggregates(values: StepValues) -> dict[str, Any]:
    step, lists = values.step, values.values[0].plain
    takes_codes = column_operator(step.operator.name)[1].takes_codes
    return step.operator.aggregate_values(lists if takes_codes else decoded(lists), step.kind)


class _Counted:
    """Counts the values of one column."""

    def __init__(self) -> None:
        self._sums, self._nulls = Sums(), 0

    def add(self, texts: pa.Array, counts: np.ndarray, nulls: int) -> None:
        self._sums.add(texts, counts)
        self._nulls += nulls

    def result(self) -> tuple[pa.Array, np.ndarray]:
        """Returns (values, counts). If null occurs, it is the last value."""
        values, counts, _ = self._sums.result()
        summed = counts[:, 0]
        if not self._nulls:
            return values, summed
        return pa.concat_arrays([values, pa.nulls(1, pa.string())]), np.append(summed, self._nulls)


def aggregate_counts(
    workers: Workers, steps: Sequence[BlockStep], counts: Counts
) -> dict[str, dict[str, Any]]:
    """Computes the aggregates of steps from the value counts of their first inputs.

    Returns the aggregates by step key.
    """
    run = partial(_aggregate_task, tuple(steps), counts)
    results = workers.collect(len(steps), run)
    return {step.key: json.loads(text) for step, text in zip(steps, results, strict=True)}


def _aggregate_task(steps: tuple[BlockStep, ...], counts: Counts, index: int) -> str:
    step, counted = steps[index], _Counted()
    for path, _ in counts.files:
        counted.add(*read_counts(path, step.key))
    texts, summed = counted.result()
    values = texts.cast(VALUE_TYPES[step.kind])
    return json.dumps(step.operator.aggregates_of_counts(values, summed, step.kind))


@dataclass(frozen=True)
class KeyedFiles:
    """The ascending ranges of a step's keys, and for each range the file with the merged statistics."""

    ranges: tuple[KeyRange, ...]
    files: tuple[str, ...]


def merge_by_key(
    workers: Workers,
    steps: Mapping[str, BlockStep],
    parts: Mapping[str, Sequence[Mapping[str, Any]]],
    folders: Mapping[str, str],
    row_group_rows: int,
) -> dict[str, KeyedFiles]:
    """Merges the partial statistics of steps by key, and writes one file for each range of keys.

    For a step whose operator reads rows twice, the files contain the merged partial statistics and means.
    `measure_squares` reads these files.

    Args:
        workers: the processes that run one task for each range of a step.
        steps: maps the key of each step to the step.
        parts: maps the key of each step to the files with its partial statistics.
        folders: maps the key of each step to the folder for its files.
        row_group_rows: maximum number of rows of a Parquet row group.
    """
    ranges = {key: choose_ranges(files) for key, files in parts.items()}
    tasks = [
        _MergeTask(
            steps[key].operator, tuple(file["path"] for file in parts[key]), keys, folders[key], number
        )
        for key, of_step in ranges.items()
        for number, keys in enumerate(of_step)
    ]
    written = iter(workers.collect(len(tasks), partial(_merge_task, tuple(tasks), row_group_rows)))
    return {
        key: KeyedFiles(tuple(of_step), tuple(next(written) for _ in of_step))
        for key, of_step in ranges.items()
    }


@dataclass(frozen=True)
class _MergeTask:
    """A task that merges the partial statistics of one step for the keys of one range.

    Attributes:
        paths: the files with the partial statistics.
        first: if the second pass over the rows wrote `paths`, the file with the merged statistics of the
            first pass; otherwise None.
    """

    operator: Operator
    paths: tuple[str, ...]
    keys: KeyRange
    folder: str
    number: int
    first: str | None = None


def _merge_task(tasks: tuple[_MergeTask, ...], row_group_rows: int, index: int) -> str:
    """Merges one range. Returns the name of the file that it wrote (storage.file_digests.named).

    If a second pass over the rows will follow, returns the path instead, because this file is not published.

    Raises:
        InfrastructureError: the second pass over the rows found different keys from the first pass.
    """
    task = tasks[index]
    operator, path = task.operator, f"{task.folder}/part-{task.number:05d}.parquet"
    merged = merge_parts(task.paths, task.keys)
    if task.first is not None:
        keys, parts = _read_merged(task.first)
        if merged is not None and not merged[0].equals(keys):
            raise InfrastructureError(
                "two passes over the training rows returned different groups for the operator "
                f"{operator.name}",
                "rerun the job when no other job writes to its training days; if the error occurs again, "
                "report it as an internal error",
            )
        squares = merged[1].sums if merged else operator.group_squares(_NO_ROWS, operator.group_means(parts))
        parts = replace(parts, sums={**parts.sums, **squares})
    else:
        keys, parts = merged or (pa.array([], pa.string()), operator.group_parts(_NO_ROWS))
        if operator.reads_rows_twice:
            means = {f"{_MEAN}{name}": pa.array(v) for name, v in operator.group_means(parts).items()}
            table = pa.table({KEY: keys, **parts.to_arrays(), **means})
            return split_name(write_sorted(path, table, row_group_rows))[0]
    return write_sorted(path, pa.table({KEY: keys, **operator.group_statistics(parts)}), row_group_rows)


def _read_merged(path: str) -> tuple[pa.Array, GroupParts]:
    table = read_file(path)
    keys = pa.concat_arrays([pa.array([], pa.string()), *table[KEY].chunks])
    return keys, GroupParts.from_table(table)


def _no_numbers(name: str) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(0), np.zeros(0, bool)


_NONE = np.zeros(0, np.int64)
_NO_ROWS = GroupedRows(_no_numbers, _NONE, _NONE, _NONE, 0)


def measure_squares(
    workers: Workers,
    blocks: TrainingBlocks,
    steps: Mapping[str, BlockStep],
    merged: Mapping[str, KeyedFiles],
    tables: LocalTables,
    folders: Mapping[str, str],
    row_group_rows: int,
) -> tuple[dict[str, KeyedFiles], tuple[str, ...]]:
    """Makes the second pass over the training rows for steps whose operators read rows twice.

    Args:
        workers, blocks, steps, tables, folders, row_group_rows: as for `measure_blocks` and `merge_by_key`.
        merged: maps the key of each step to the files with merged partial statistics and means.

    Returns:
        (tables, files): a mapping from the key of each step to the files of its final table, and the paths of
            all files that are not part of a table.
    """
    of_step = tuple((step, merged[key].files, folders[key]) for key, step in steps.items())
    results = [
        json.loads(text)
        for text in workers.collect(blocks.tasks, partial(_squares_task, blocks, of_step, tables))
    ]
    parts = {key: [result[key] for result in results if key in result] for key in steps}
    tasks = [
        _MergeTask(
            steps[key].operator, tuple(file["path"] for file in parts[key]), keys, folders[key], number, first
        )
        for key, files in merged.items()
        for number, (keys, first) in enumerate(zip(files.ranges, files.files, strict=True))
    ]
    written = iter(workers.collect(len(tasks), partial(_merge_task, tuple(tasks), row_group_rows)))
    final = {
        key: KeyedFiles(files.ranges, tuple(next(written) for _ in files.ranges))
        for key, files in merged.items()
    }
    unneeded = [path for files in merged.values() for path in files.files]
    unneeded += [file["path"] for files in parts.values() for file in files]
    return final, tuple(unneeded)


def _squares_task(
    blocks: TrainingBlocks,
    steps: tuple[tuple[BlockStep, tuple[str, ...], str], ...],
    tables: LocalTables,
    task: int,
) -> str:
    """Runs one task of `measure_squares`.

    Returns JSON that maps the key of each step to the file with its partial statistics. A step without rows
    has no entry.
    """
    by_key = {step.key: PartsByKey() for step, _, _ in steps}
    files_of = {step.key: files for step, files, _ in steps}
    for inputs in read_steps(blocks, [step for step, _, _ in steps], tables, task):
        for values in inputs:
            keys, rows = values.by_key()
            if not len(keys):
                continue
            lookup, table = open_keyed(files_of[values.step.key])
            at = lookup.find(keys)
            means = {
                name.removeprefix(_MEAN): table[name].combine_chunks().to_numpy(zero_copy_only=False)[at]
                for name in table.column_names
                if name.startswith(_MEAN)
            }
            squares = values.step.operator.group_squares(rows, means)
            by_key[values.step.key].add(keys, GroupParts(rows.size, squares))
    return json.dumps(
        {
            step.key: write_parts(f"{folder}/squares-{task:05d}.parquet", *result)
            for step, _, folder in steps
            if (result := by_key[step.key].result()) is not None
        }
    )


# The classes and functions below read blocks of training rows, and compute the inputs of each step that needs
# statistics.


@dataclass(frozen=True)
class BlockStep:
    """A step that needs statistics of the training rows. Objects of this class are pickled.

    Attributes:
        key: the name of the step in error messages. Each measured step has a different key.
        before: the earlier steps of the step's chain, which are already fitted.
        inputs: the names of the values that the step reads: raw columns, or results of `before`.
        kind: the type of the first input.
    """

    key: str
    before: FittedChain
    operator: Operator
    inputs: tuple[str, ...]
    kind: Type

    @property
    def raw_columns(self) -> frozenset[str]:
        """Returns the raw columns that the statistics of the step depend on."""
        label = {LABEL} if self.operator.needs == "groups" else set()
        return frozenset({*self.before.inputs, *self.operator.reads(), *label})


@dataclass(frozen=True)
class StepValues:
    """The n training rows of a batch, and the inputs of one step for these rows.

    Attributes:
        numbers: function that returns a numeric raw column of the batch (GroupedRows.numbers).
    """

    step: BlockStep
    batch: RowBatch
    values: tuple[RowValues, ...]
    numbers: Callable[[str], tuple[np.ndarray, np.ndarray]]

    def by_key(self) -> tuple[pa.Array, GroupedRows]:
        """Divides the rows by the key that the inputs form.

        Returns:
            (keys, rows): the distinct keys as strings, and the rows that have a key. Each key occurs in at
            least one row.
        """
        first = self.values[0]
        if len(self.values) == 1:
            texts, codes = text_array(first.distinct), first.codes
        else:
            texts, codes = joined_array([decoded(value.plain) for value in self.values]), None
        coded = texts.dictionary_encode()
        groups = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        if codes is not None:
            groups = groups[codes.to_numpy(zero_copy_only=False)]
        rows = np.flatnonzero(groups >= 0)
        groups = groups[rows]
        present = np.flatnonzero(np.bincount(groups, minlength=len(coded.dictionary)))
        compact = np.zeros(len(coded.dictionary), np.int64)
        compact[present] = np.arange(len(present))
        keys = coded.dictionary.take(pa.array(present))
        return keys, self._grouped(rows, compact[groups], len(present))

    def all_rows(self) -> GroupedRows:
        """Returns all rows of the batch as one group."""
        rows = np.arange(len(self.batch.row_ids))
        return self._grouped(rows, np.zeros(len(rows), np.int64), 1)

    def _grouped(self, rows: np.ndarray, groups: np.ndarray, size: int) -> GroupedRows:
        return GroupedRows(self.numbers, self.batch.row_ids, rows, groups, size)


@dataclass(frozen=True)
class _Numbers:
    """A function (GroupedRows.numbers) that returns numeric raw columns of a batch.

    Each column is converted only once.
    """

    columns: Mapping[str, pa.Array]

    @cached_property
    def _converted(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        return {}

    def __call__(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        if name not in self._converted:
            values = row_values(self.columns[name], encode=False)
            numbers, nulls = as_doubles(values.distinct)
            if values.codes is not None:
                codes = values.codes.to_numpy(zero_copy_only=False)
                numbers, nulls = numbers[codes], nulls[codes]
            self._converted[name] = numbers, nulls
        return self._converted[name]


def read_steps(
    blocks: TrainingBlocks, steps: Sequence[BlockStep], tables: LocalTables, task: int
) -> Iterator[list[StepValues]]:
    """Yields, for each batch of a task, the inputs of all steps.

    Batches without rows are left out. Values that several steps of one chain need are computed only once.
    """
    wanted = frozenset().union(*(step.raw_columns for step in steps))
    for batch in blocks.read(task, wanted):
        if not len(batch.row_ids):
            continue
        of_chain: dict[int, dict[str, RowValues]] = {}
        place, numbers = RowPlace(batch.row_ids, batch.dt), _Numbers(batch.columns)
        inputs = []
        for step in steps:
            chain = step.before
            if id(chain) not in of_chain:
                arrays = [batch.columns[name] for name in chain.inputs]
                of_chain[id(chain)] = chain.values(arrays, tables, place)
            values = of_chain[id(chain)]
            inputs.append(StepValues(step, batch, tuple(values[name] for name in step.inputs), numbers))
        yield inputs


def counted_texts(values: RowValues) -> tuple[pa.Array, np.ndarray, int]:
    """Counts the values of a column, or the elements of its lists.

    Returns:
        (texts, counts, nulls): k non-null values as strings, their counts (k,), and the number of nulls. A
            string may occur more than once. Numbers can be parsed back exactly; -0.0 is counted as 0.0.
    """
    distinct, counts = values.counts()
    if pa.types.is_floating(distinct.type):
        distinct = pc.add(distinct, 0.0)
    nulls = 0
    if distinct.null_count:
        valid = distinct.is_valid().to_numpy(zero_copy_only=False)
        nulls = int(counts[~valid].sum())
        distinct, counts = distinct.filter(pa.array(valid)), counts[valid]
    return text_array(distinct), counts, nulls
