"""Lists for tests of the sink `table`, and deliveries of them that are killed."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from scoring.delivery.dated_tables import DeltaFolder
from scoring.delivery.published_lists import LakeTable, PublishedLists
from scoring.delivery.sinks import table
from storage.manifest import FileEntry, Manifest

DAY, NEXT_DAY = "2026-01-08", "2026-01-09"
TYPES = {
    "user_id": pa.string(),
    "position": pa.int32(),
    "item_id": pa.string(),
    "score": pa.float32(),
    "reason": pa.string(),
    "model_version": pa.string(),
    "workflow_version": pa.string(),
}
_NUMBERS = itertools.count()


def manifest_of(rows: pa.Table, dt: str, facts: Mapping[str, Any] | None = None) -> Manifest:
    """A manifest of these rows, with a digest of its own."""
    return Manifest(
        table="recommendations",
        partition=dt,
        files=(FileEntry("part", len(rows), 1, (len(rows),)),),
        schema=tuple((field.name, str(field.type).replace("item:", "element:")) for field in rows.schema),
        inputs={"number": str(next(_NUMBERS))},
        rows_in=len(rows),
        facts=facts or {},
        created_at="2026-01-09T00:00:00Z",
    )


def lists_of(items: Mapping[str, Sequence[str]], dt: str = DAY, **more: pa.Array) -> PublishedLists:
    """Published lists with these items of each user, as a table whose rows are not in order."""
    entries = [
        (user, place, item) for user, of_user in items.items() for place, item in enumerate(of_user, 1)
    ]
    entries.sort(key=lambda entry: hash(entry[:2]))
    number = len(entries)
    columns = [
        pa.array([user for user, _, _ in entries], pa.string()),
        pa.array([place for _, place, _ in entries], pa.int32()),
        pa.array([item for _, _, item in entries], pa.string()),
        pa.array([1 / (place + len(item)) for _, place, item in entries], pa.float32()),
        pa.array(["ranked" if place < 3 else "explore" for _, place, _ in entries], pa.string()),
        pa.array(["m1"] * number, pa.string()),
        pa.array(["w1"] * number, pa.string()),
    ]
    rows = pa.table([*columns, *more.values()], [*TYPES, *more])
    return PublishedLists(rows, manifest_of(rows, dt, {"users": len(items), "users_without": 0}))


def features_of(key: str, rows: pa.Table, dt: str = DAY) -> LakeTable:
    """A table of features."""
    return LakeTable(key, manifest_of(rows, dt), lambda: rows)


def sink_to(path: Path | str, **settings: Any) -> table.Settings:
    """A sink with a Delta table in a folder."""
    return table.Settings.model_validate(
        {"kind": "table", "name": "warehouse", "path": str(path), **settings}
    )


def rows_of(path: Path | str, dt: str | None = None) -> list[tuple[Any, ...]]:
    """The rows of a Delta table, or of one date, in order. DuckDB reads the files of the current version."""
    adds = pa.RecordBatchReader._import_from_c_capsule(
        DeltaTable(str(path)).get_add_actions(flatten=True).__arrow_c_stream__()
    ).read_all()
    rows = []
    for file, date in zip(adds["path"].to_pylist(), adds["partition.dt"].to_pylist(), strict=True):
        if dt is None or str(date) == dt:
            content = duckdb.read_parquet(str(Path(path) / file), hive_partitioning=False).fetchall()
            rows += [(str(date), *row) for row in content]
    return sorted(rows, key=repr)


def expected(lists: PublishedLists) -> list[tuple[Any, ...]]:
    """The rows that a table must have for these lists."""
    variant = () if "variant" in lists.rows.column_names else (None,)
    return sorted(((lists.run_date, *row.values(), *variant) for row in lists.rows.to_pylist()), key=repr)


def version_of(path: Path | str) -> int:
    """The version of a Delta table."""
    return int(DeltaTable(str(path)).version())


def deliver_and_die(sink: table.Settings, lists: PublishedLists, step: str, when: str) -> None:
    """Delivers lists to a folder. The process is killed before or after a step, a method of DeltaFolder."""
    real = getattr(DeltaFolder, step)

    def dying(*arguments: Any) -> Any:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaFolder, step, dying)
        table.deliver(sink, lists)
