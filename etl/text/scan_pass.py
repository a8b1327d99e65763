"""The first pass: every line of some days parsed once, its values counted, its bad lines told apart.

Each task reads one slice. It writes the slice's value counts as a Parquet file of its own, and returns what the day's
quarantine and line numbers are made of.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from etl.quality.counts import LABEL_CELLS
from etl.raw.file_splits import Slice, blocks
from etl.raw.value_text import text_array
from etl.text import parsed_splits
from etl.text.layout import FileLayout
from etl.text.parse_block import Block, parse_block, unify
from etl.value_counts.count_files import write_counts
from spark.tasks import run_tasks
from storage.feature_spec import LABEL

# Blocks whose counts are kept before they are merged: bounds what a task holds beside one block.
_MERGE_EVERY = 8


@dataclass(frozen=True)
class Task:
    """A slice, the hash buckets its value counts are cut into, and the name of the parsed slice's scratch.

    `counts_file`: where its value counts go. Each attempt at the task adds a part of its own to that name.
    """

    part: Slice
    counts_file: str
    buckets: int = 1
    scratch: str | None = None


@dataclass(frozen=True)
class Summary:
    """What the first pass found in a slice.

    Attributes:
        lines, good: its lines, and those that are good rows.
        dropped: reason → other lines.
        values: column → rows of its counts, as many as it has different values.
        file: path of its value counts.
    """

    lines: int
    good: int
    dropped: Mapping[str, int]
    values: Mapping[str, int]
    file: str


_SCHEMA = "task int, summary string, line bigint, reason string, text string"
_ARROW = pa.schema(
    [
        ("task", pa.int32()),
        ("summary", pa.string()),
        ("line", pa.int64()),
        ("reason", pa.string()),
        ("text", pa.string()),
    ]
)


def survey(
    spark: SparkSession, tasks: Sequence[Task], layout: FileLayout, counted: Sequence[str]
) -> DataFrame:
    """Frame of (task, summary) once a task and (task, line in the slice, reason, text) once a bad line.

    Counts files are written as a side effect, under new names whenever it is evaluated: persist it for more than one look,
    and publish the files that the summaries name.

    Args:
        counted: raw columns whose values are counted; the labels are too, under the name LABEL_CELLS.
    """
    sent, names = tuple(tasks), tuple(counted)
    return run_tasks(
        spark, len(sent), lambda index: _survey_slice(index, sent[index], layout, names), _SCHEMA
    )


def summaries(surveyed: DataFrame) -> dict[int, Summary]:
    """Task → summary. One row a slice is collected."""
    rows = surveyed.where("summary is not null").select("task", "summary").collect()
    return {row["task"]: Summary(**json.loads(row["summary"])) for row in rows}


def _survey_slice(
    index: int, task: Task, layout: FileLayout, counted: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    lines, good, dropped = 0, 0, Counter[str]()
    counts = {name: _Counts() for name in (LABEL_CELLS, *counted)}
    for block in blocks(task.part):
        parsed = parse_block(
            block, layout, wanted(layout, counted), layout.header and starts_file(task.part, lines)
        )
        yield from _bad_lines(index, lines, parsed)
        # A compressed file may come in several blocks; only what is one is kept.
        if task.scratch and task.part.end is not None:
            parsed_splits.save(task.scratch, parsed)
        lines += parsed.lines
        good += len(parsed.places)
        dropped.update(reason for _, reason, _ in parsed.bad)
        labels = parsed.columns[LABEL].cast(pa.float64()).dictionary_encode()
        for name, count in counts.items():
            if name == LABEL_CELLS:
                count.add(labels)
            else:
                count.add(parsed.columns[name], parsed.counts.get(name))
    found = {name: count.result() for name, count in counts.items()}
    file, values = write_counts(task.counts_file, found, task.buckets)
    summary = json.dumps({"lines": lines, "good": good, "dropped": dropped, "values": values, "file": file})
    yield pa.RecordBatch.from_arrays(
        [
            pa.array([each], field.type)
            for each, field in zip((index, summary, None, None, None), _ARROW, strict=True)
        ],
        schema=_ARROW,
    )


def starts_file(part: Slice, lines_before: int) -> bool:
    """Whether the next block begins the file, so that its first line is a header, where files have one."""
    return part.start == 0 and lines_before == 0


def wanted(layout: FileLayout, features: Sequence[str]) -> tuple[str, ...]:
    """The raw columns a parse must return: those of features and of the log's own meaning."""
    names = {*features, layout.label.column}
    if layout.keys:
        names |= set(layout.keys.columns)
    for _, not_null, text in layout.filters:
        names |= {*not_null, *(layout.formula(text).columns if text else ())}
    return tuple(column.name for column in layout.columns if column.name in names)


def _bad_lines(index: int, before: int, parsed: Block) -> Iterator[pa.RecordBatch]:
    if parsed.bad:
        places, reasons, texts = zip(*parsed.bad, strict=True)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([index] * len(places), pa.int32()),
                pa.nulls(len(places), pa.string()),
                pa.array(np.asarray(places, np.int64) + before),
                pa.array(reasons, pa.string()),
                pa.array(texts, pa.string()),
            ],
            schema=_ARROW,
        )


class _Counts:
    """Occurrences of each distinct value of one column over the blocks of a slice."""

    def __init__(self) -> None:
        self._parts: list[pa.DictionaryArray] = []
        self._counts: list[np.ndarray] = []
        self._nulls = 0

    def add(self, coded: pa.DictionaryArray, counts: np.ndarray | None = None) -> None:
        """Counts a block's values; `counts` are those of its dictionary, if somebody knows them."""
        codes = coded.indices
        self._nulls += codes.null_count
        if counts is None:
            codes = codes.drop_null() if codes.null_count else codes
            counts = np.bincount(codes.to_numpy(zero_copy_only=False), minlength=len(coded.dictionary))
        # Each part stands for its distinct values: one code a value, counted beside.
        every = pa.array(np.arange(len(coded.dictionary), dtype=np.int32))
        self._parts.append(pa.DictionaryArray.from_arrays(every, coded.dictionary))
        self._counts.append(counts)
        if len(self._parts) >= _MERGE_EVERY:
            self._merge()

    def _merge(self) -> None:
        whole = unify(self._parts)
        codes = whole.indices.to_numpy(zero_copy_only=False)
        # Weights are doubles, exact for counts up to 2**53.
        counts = np.bincount(codes, np.concatenate(self._counts), len(whole.dictionary)).astype(np.int64)
        every = pa.array(np.arange(len(counts), dtype=np.int32))
        self._parts = [pa.DictionaryArray.from_arrays(every, whole.dictionary)]
        self._counts = [counts]

    def result(self) -> tuple[pa.Array, np.ndarray]:
        """(distinct values as texts, their counts), values that occur only; null, where it occurs, comes last."""
        if not self._parts:
            return pa.array([], pa.string()), np.zeros(0, np.int64)
        if len(self._parts) > 1:
            self._merge()
        values, counts = text_array(self._parts[0].dictionary), self._counts[0]
        # A value may stand in a block's dictionary for a bad row alone.
        there = counts > 0
        if not there.all():
            at = np.flatnonzero(there)
            values, counts = values.take(pa.array(at)), counts[at]
        if self._nulls:
            values = pa.concat_arrays([values, pa.nulls(1, pa.string())])
            counts = np.append(counts, self._nulls)
        return values, counts
