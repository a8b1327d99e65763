"""What a fit asks of the training days, answered from their value counts: one task a column, no pass over rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from conf import storage
from etl.chains import FittedChain
from etl.moments import moments_of_counts
from etl.ops.base import Moments, Type
from etl.ops.texts import text_array
from etl.tables import LocalTables
from etl.vocabulary import IdRule

VOCABULARY_SCHEMA = pa.schema(
    [
        ("column", pa.string()),
        ("value", pa.string()),
        ("id", pa.int32()),
        ("count", pa.int64()),
        ("last_seen", pa.int32()),
    ]
)
RARE_SCHEMA = pa.schema([field for field in VOCABULARY_SCHEMA if field.name != "id"])
_TASKS_A_SLOT = 3
_TYPES: Mapping[Type, pa.DataType] = {"int": pa.int64(), "float": pa.float64(), "string": pa.string()}


@dataclass(frozen=True)
class Source:
    """A raw column and the steps its values go through before they are measured.

    Attributes:
        value: name of the step's value that is measured.
    """

    column: str
    chain: FittedChain
    value: str


@dataclass(frozen=True)
class Question:
    """One thing a fit asks: moments or the median of a column, or the vocabulary of one column or several.

    Attributes:
        rule, given, parent: of a vocabulary: who gets an id, a given list of values, files of (vocabulary, rare values) to
            extend.
    """

    key: str
    wants: Literal["moments", "median", "counts"]
    sources: tuple[Source, ...]
    rule: IdRule | None = None
    given: tuple[str, ...] | None = None
    parent: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


@dataclass(frozen=True)
class Counts:
    """The value counts of the training days: (file, day in days since 1970-01-01) each."""

    files: tuple[tuple[str, int], ...]
    latest: int


def answer_from_counts(
    spark: SparkSession,
    questions: Sequence[Question],
    counts: Counts,
    folders: tuple[str, str],
    row_group_rows: int,
) -> dict[str, dict[str, Any]]:
    """Key → what was found: {moments} or {median}, or {facts, files} of a vocabulary.

    Files of vocabularies are written below the two folders (values with ids, rare values), and not published.

    Raises:
        DataError: a value too large for exact moments.
    """
    function = _worker(tuple(questions), counts, folders, row_group_rows)
    # A Python task costs some 50 ms whatever it does: a few columns share one, and there are enough to keep slots busy.
    tasks = max(1, min(len(questions), _TASKS_A_SLOT * spark.sparkContext.defaultParallelism))
    numbers = spark.range(0, len(questions), 1, tasks)
    found = numbers.mapInArrow(function, "question int, found string")
    return {
        questions[row["question"]].key: json.loads(row["found"])
        for row in found.collect()  # one row a column
    }


def _worker(
    questions: tuple[Question, ...], counts: Counts, folders: tuple[str, str], row_group_rows: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                found = _answer(index, questions[index], counts, folders, row_group_rows)
                yield pa.RecordBatch.from_arrays(
                    [pa.array([index], pa.int32()), pa.array([json.dumps(found)])], ["question", "found"]
                )

    return run


def _answer(
    index: int, question: Question, counts: Counts, folders: tuple[str, str], row_group_rows: int
) -> dict[str, Any]:
    if question.wants == "counts":
        entries = _vocabulary(question, counts)
        return _write(index, question, entries, folders, row_group_rows)
    source = question.sources[0]
    table = merged(source, counts)
    values = table["value"].combine_chunks().cast(pa.float64(), safe=False)
    weights = table["count"].to_numpy()
    if question.wants == "moments":
        found = moments_of_counts(question.sources[0].column, values.to_numpy(zero_copy_only=False), weights)
        return {"rows": found.rows, "mean": found.mean, "std": found.std}
    return {"median": _median(values.to_numpy(zero_copy_only=False), weights)}


def moments_from(found: Mapping[str, Any]) -> Moments:
    return Moments(found["rows"], found["mean"], found["std"])


def merged(source: Source, counts: Counts) -> pa.Table:
    """(value, count, last_seen): what a source's values become after its steps, each once, nulls left out."""
    table = merge_files(counts.files, source.column)
    kind = source.chain.types[0]
    raw = table["value"].combine_chunks()
    if not source.chain.steps and kind == "string":
        return table.filter(pc.is_valid(table["value"]))
    values = {source.chain.inputs[0]: raw.cast(_TYPES[kind])}
    for step in source.chain.steps:
        made = step.compute([values[name] for name in step.inputs], LocalTables({}))
        values |= dict(zip(step.outputs, made, strict=True))
    value = values[source.value]
    rest = table.select(["count", "last_seen"])
    if pa.types.is_list(value.type):
        rest = rest.take(pc.list_parent_indices(value))
        value = pc.list_flatten(value)
    changed = rest.append_column("value", value)
    return _summed(changed.filter(pc.is_valid(changed["value"])))


_EMPTY = pa.table(
    {
        "value": pa.array([], pa.string()),
        "count": pa.array([], pa.int64()),
        "last_seen": pa.array([], pa.int32()),
    }
)


def merge_files(files: Sequence[tuple[str, int]], column: str) -> pa.Table:
    """(value, count, last_seen) of one column over counts files with their days: each value once, null among them."""
    parts = []
    for path, day in files:
        part = read_column(path, column)
        parts.append(part.append_column("last_seen", pa.array(np.full(len(part), day, np.int32))))
    return _summed(pa.concat_tables(parts)) if parts else _EMPTY


def read_column(path: str, column: str) -> pa.Table:
    """(value, count) of one column of a counts file: only its row groups are read."""
    files, inner = storage.filesystem(path)
    with files.open_input_file(inner) as source:
        parquet = pq.ParquetFile(source)
        groups = [
            index
            for index in range(parquet.metadata.num_row_groups)
            if parquet.metadata.row_group(index).column(0).statistics.min == column
        ]
        return parquet.read_row_groups(groups, columns=["value", "count"], use_threads=False)


def _summed(table: pa.Table) -> pa.Table:
    grouped = table.group_by("value", use_threads=False).aggregate([("count", "sum"), ("last_seen", "max")])
    return pa.table(
        {
            "value": grouped["value"].combine_chunks(),
            "count": grouped["count_sum"].combine_chunks(),
            "last_seen": grouped["last_seen_max"].combine_chunks(),
        }
    )


def _median(values: np.ndarray, weights: np.ndarray) -> float | None:
    if not len(values):
        return None
    order = np.argsort(values, kind="stable")
    until = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(until, -(-until[-1] // 2))])


def _vocabulary(question: Question, counts: Counts) -> pa.Table:
    """(value, id or null, count, last_seen) of all values: those of the parent, those counted, those given."""
    if question.given is not None and question.rule is not None:
        size = len(question.given)
        return pa.table(
            {
                "value": pa.array(question.given, pa.string()),
                "id": pa.array(np.arange(size, dtype=np.int32) + question.rule.first_id),
                "count": pa.array(np.zeros(size, np.int64)),
                "last_seen": pa.array(np.full(size, counts.latest, np.int32)),
            }
        )
    tables = []
    for source in question.sources:
        table = merged(source, counts)
        tables.append(table.set_column(0, "value", text_array(table["value"].combine_chunks())))
    new = _summed(pa.concat_tables(tables)) if len(tables) > 1 else tables[0]
    new = new.append_column("id", pa.nulls(len(new), pa.int32())).select(
        ["value", "id", "count", "last_seen"]
    )
    known = [
        _of_parent(files, question.key, ids)
        for files, ids in zip(question.parent, (True, False), strict=True)
        if files
    ]
    if known:
        grouped = (
            pa.concat_tables([*known, new])
            .group_by("value", use_threads=False)
            .aggregate([("id", "max"), ("count", "sum"), ("last_seen", "max")])
        )
        new = pa.table(
            {
                name: grouped[made].combine_chunks()
                for name, made in (
                    ("value", "value"),
                    ("id", "id_max"),
                    ("count", "count_sum"),
                    ("last_seen", "last_seen_max"),
                )
            }
        )
    return _with_ids(new, question.rule) if question.rule else new


def _of_parent(files: Sequence[str], name: str, ids: bool) -> pa.Table:
    schema = VOCABULARY_SCHEMA if ids else RARE_SCHEMA
    tables = []
    for path in files:
        found, inner = storage.filesystem(path)
        tables.append(
            pq.read_table(
                inner,
                filesystem=found,
                filters=[("column", "==", name)],
                partitioning=None,
                use_threads=False,
            ).cast(schema)
        )
    table = pa.concat_tables(tables).drop_columns(["column"])
    if not ids:
        table = table.append_column("id", pa.nulls(len(table), pa.int32()))
    return table.select(["value", "id", "count", "last_seen"])


def _with_ids(entries: pa.Table, rule: IdRule) -> pa.Table:
    """Ids for the arrivals, as etl.vocabulary.assign_ids gives them."""
    ids = entries["id"].combine_chunks()
    counts = entries["count"].to_numpy()
    arrives = ids.is_null().to_numpy(zero_copy_only=False) & (counts >= rule.min_count)
    at = np.flatnonzero(arrives)
    if not len(at):
        return entries
    arriving = entries.take(pa.array(at))
    order = pc.sort_indices(arriving, [("count", "descending"), ("value", "ascending")]).to_numpy()
    known = len(ids) - ids.null_count
    room = len(order) if rule.max_size is None else max(0, rule.max_size - known)
    highest = pc.max(ids).as_py() if known else rule.first_id - 1
    found = ids.fill_null(-1).to_numpy(zero_copy_only=False).copy()
    found[at[order[:room]]] = highest + 1 + np.arange(min(room, len(order)), dtype=np.int32)
    return entries.set_column(1, "id", pa.array(found, mask=found < 0))


def _write(
    index: int, question: Question, entries: pa.Table, folders: tuple[str, str], row_group_rows: int
) -> dict[str, Any]:
    has_id = pc.is_valid(entries["id"])
    known = entries.filter(has_id).sort_by("id")
    rare = entries.filter(pc.invert(has_id)).drop_columns(["id"]).sort_by("value")
    names = []
    for folder, part, schema in ((folders[0], known, VOCABULARY_SCHEMA), (folders[1], rare, RARE_SCHEMA)):
        names.append(f"part-{index:05d}.parquet")
        column = pa.array([question.key]).take(pa.array(np.zeros(len(part), np.int64)))
        _write_file(
            f"{folder}/{names[-1]}", part.add_column(0, "column", column).select(schema.names), row_group_rows
        )
    ids = known["id"]
    return {
        "files": names,
        "facts": {
            "entries": len(known),
            "highest": (pc.max(ids).as_py() or 0) if len(known) else 0,
            "occurrences": pc.sum(known["count"]).as_py() or 0,
            "rare_values": len(rare),
            "rare_occurrences": pc.sum(rare["count"]).as_py() or 0,
        },
    }


def _write_file(path: str, table: pa.Table, row_group_rows: int) -> None:
    files, inner = storage.filesystem(path)
    if storage.is_local(path):
        files.create_dir(inner.rsplit("/", 1)[0], recursive=True)
    with files.open_output_stream(inner) as sink:
        pq.write_table(
            table, sink, compression="zstd", row_group_size=row_group_rows, use_dictionary=["column"]
        )
