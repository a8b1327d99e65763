"""A vocabulary from value counts: the parent's entries and new counts added up, ids given, files written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from etl.native.count_sums import Sums
from etl.statistics.vocabulary import IdRule
from etl.value_counts.count_files import ALL, Bucket
from etl.value_counts.requests import Counts, Question, measured_texts
from storage import file_io
from storage.publish import own_path

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


@dataclass(frozen=True)
class Folders:
    """Where files of values with ids and of rare values are written, and the rows of their row groups."""

    known: str
    rare: str
    row_group_rows: int


def collect(question: Question, counts: Counts, bucket: Bucket) -> pa.Table:
    """(value, id or null, count, last_seen) of a bucket's values: those of the parent, and those counted, or those given."""
    if question.given is not None:
        return _given(question.given, _rule(question), counts.latest)
    sums, ids = Sums(), [np.zeros(0, np.int32)]
    for files, known in zip(question.parent, (True, False), strict=True):
        for entries in _of_parent(files, question.key, bucket):
            values = entries["value"].combine_chunks()
            sums.add(values, entries["count"].to_numpy(), day=entries["last_seen"].to_numpy())
            if known:
                ids.append(entries["id"].to_numpy())
    for source in question.sources:
        for path, day in counts.files:
            texts, times = measured_texts(source, path, bucket)
            sums.add(texts, times, day=day)
    values, found, last = sums.result()
    # The parent's entries came first, each once, so that theirs are the first codes.
    given = np.concatenate(ids)
    every = np.concatenate([given, np.zeros(len(values) - len(given), np.int32)])
    return pa.table(
        {
            "value": values,
            "id": pa.array(every, mask=np.arange(len(values)) >= len(given)),
            "count": pa.array(found[:, 0]),
            "last_seen": pa.array(last),
        }
    )


def split_bucket(
    index: int, question: Question, counts: Counts, bucket: Bucket, folders: Folders
) -> tuple[pa.Table, dict[str, Any]]:
    """(entries that have an id or may get one, what is known of the others, which are written)."""
    entries = collect(question, counts, bucket)
    enough = pc.greater_equal(entries["count"], _rule(question).min_count)
    stays = pc.or_(pc.is_valid(entries["id"]), enough)
    return entries.filter(stays), _write_rare(
        f"part-{index:05d}-{bucket.index:03d}.parquet", question, entries.filter(pc.invert(stays)), folders
    )


def complete(
    index: int, question: Question, entries: pa.Table, rare: Sequence[Mapping[str, Any]], folders: Folders
) -> dict[str, Any]:
    """Gives ids, writes the files, and tells {facts, files}.

    Args:
        entries: all that have an id or may get one.
        rare: what is known of the rare values that were written already, bucket by bucket.
    """
    whole = entries if question.given is not None else _with_ids(entries, _rule(question))
    has_id = pc.is_valid(whole["id"])
    known = whole.filter(has_id).sort_by("id")
    part = f"part-{index:05d}.parquet"
    name = _write(part, folders.known, question, known, VOCABULARY_SCHEMA, folders)
    written = [*rare, _write_rare(part, question, whole.filter(pc.invert(has_id)), folders)]
    return {
        "files": {"known": [name], "rare": [each["rare"] for each in written]},
        "facts": {
            "entries": len(known),
            "highest": pc.max(known["id"]).as_py() or 0,
            "occurrences": pc.sum(known["count"]).as_py() or 0,
            "rare_values": sum(each["values"] for each in written),
            "rare_occurrences": sum(each["occurrences"] for each in written),
        },
    }


def _rule(question: Question) -> IdRule:
    if question.rule is None:
        raise ValueError(f"the vocabulary {question.key} has no rule for ids")
    return question.rule


def _given(values: Sequence[str], rule: IdRule, latest: int) -> pa.Table:
    return pa.table(
        {
            "value": pa.array(values, pa.string()),
            "id": pa.array(np.arange(len(values), dtype=np.int32) + rule.first_id),
            "count": pa.array(np.zeros(len(values), np.int64)),
            "last_seen": pa.array(np.full(len(values), latest, np.int32)),
        }
    )


def _of_parent(files: Sequence[str], name: str, bucket: Bucket = ALL) -> Iterator[pa.Table]:
    """A vocabulary's entries in a bucket, row group by row group."""
    for path in files:
        found, inner = file_io.filesystem(path)
        with found.open_input_file(inner) as source:
            parquet = pq.ParquetFile(source)
            for group in range(parquet.metadata.num_row_groups):
                names = parquet.metadata.row_group(group).column(0).statistics
                if names is not None and not names.min <= name <= names.max:
                    continue
                entries = parquet.read_row_group(group, use_threads=False)
                entries = entries.filter(pc.equal(entries["column"], name))
                if bucket.of > 1 and len(entries):
                    kept = bucket.holds(entries["value"].combine_chunks())
                    entries = entries.filter(pa.array(kept))
                yield entries


def _with_ids(entries: pa.Table, rule: IdRule) -> pa.Table:
    """Ids for the arrivals, as etl.statistics.vocabulary.assign_ids gives them."""
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


def _write_rare(name: str, question: Question, rare: pa.Table, folders: Folders) -> dict[str, Any]:
    ordered = rare.drop_columns(["id"]).sort_by("value")
    written = _write(name, folders.rare, question, ordered, RARE_SCHEMA, folders)
    return {"rare": written, "values": len(rare), "occurrences": pc.sum(rare["count"]).as_py() or 0}


def _write(
    name: str, folder: str, question: Question, part: pa.Table, schema: pa.Schema, folders: Folders
) -> str:
    """Writes one file of a vocabulary; its name, to which each call adds a part of its own."""
    path = own_path(f"{folder}/{name}")
    column = pa.array([question.key]).take(pa.array(np.zeros(len(part), np.int64)))
    files, inner = file_io.filesystem(path)
    if file_io.is_local(path):
        files.create_dir(inner.rsplit("/", 1)[0], recursive=True)
    with files.open_output_stream(inner) as sink:
        pq.write_table(
            part.add_column(0, "column", column).select(schema.names),
            sink,
            compression="zstd",
            row_group_size=folders.row_group_rows,
            use_dictionary=["column"],
        )
    return path.rsplit("/", 1)[1]
