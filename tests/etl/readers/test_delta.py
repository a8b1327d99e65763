"""The reader of Delta tables, against pandas, and the files that a path with partitions stands for."""

from __future__ import annotations

import datetime as dt
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from conf.errors import ConfigError, DataError
from conf.raw_types import EventTime, RawTable
from conf.types import Config
from etl.build import BuildResult
from etl.ops.tables import VOCABULARY, workflow_table
from etl.prepare.attributes import read_attribute_table
from etl.raw.files import RawFiles, files_at, find_raw, kept_rows, split_location, version_of
from etl.readers.delta import DeltaReader
from storage.paths import LakePaths
from tests.etl import cases
from tests.etl.readers.blocks import opened, read_all
from tests.etl.tasks_here import TasksHere

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]
COLUMNS: dict[str, Any] = {"key": "int", "name": "string", "x": "float", "day": "string"}


def table_of(path: Path | str, **columns: Any) -> RawTable:
    listed = [
        {"name": name, **(kind if isinstance(kind, dict) else {"type": kind})}
        for name, kind in (columns or COLUMNS).items()
    ]
    return RawTable.model_validate({"path": str(path), "format": "delta", "columns": listed})


def found(folder: Path, table: RawTable, day: str = "") -> RawFiles | None:
    return find_raw(cases.write_config(folder), table, day)


def read(path: Path, *, split_bytes: int | None = None, **columns: Any) -> dict[str, list[Any]]:
    table = table_of(path, **columns)
    reader = opened(DeltaReader, table, [file.path for file in files_at(str(path))])
    return read_all(reader, table.names, split_bytes).columns


def in_order(rows: pd.DataFrame) -> list[tuple[Any, ...]]:
    plain = rows[list(COLUMNS)].astype(object)
    return sorted(plain.where(plain.notna(), None).itertuples(index=False, name=None), key=repr)


ROWS = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.sampled_from(["a", "b c", "ö/=:%", None]),
        st.one_of(st.none(), st.floats(-4, 4, width=16)),
        st.sampled_from(DAYS),
    ),
    min_size=1,
    max_size=12,
)
KINDS = ["append", "overwrite", "replace", "delete", "compact"]
COMMITS = st.lists(st.tuples(st.sampled_from(KINDS), ROWS), max_size=4)
SCHEMA = pa.schema([("key", pa.int32()), ("name", pa.string()), ("x", pa.float64()), ("day", pa.string())])


def frame(rows: list[Any]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"x": "float64", "name": object})


def commit(path: Path, kind: str, values: list[Any], known: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Makes a commit of a table that has the rows `known`. Returns the rows that it has then."""

    def write(rows: pd.DataFrame, **mode: Any) -> None:
        table = pa.Table.from_pandas(rows, schema=SCHEMA, preserve_index=False)
        write_deltalake(path, table, partition_by=by or None, **mode)

    rows, key, day = frame(values), values[0][0], values[0][3]
    if kind == "append":
        write(rows, mode="append")
        return pd.concat([known, rows])
    if kind == "overwrite":
        write(rows, mode="overwrite")
        return rows
    if kind == "replace":
        rows = rows[rows["day"] == day]
        write(rows, mode="overwrite", predicate=f"day = '{day}'")
        return pd.concat([known[known["day"] != day], rows])
    if kind == "delete":
        DeltaTable(path).delete(f"key >= {key}")
        return known[known["key"] < key]
    DeltaTable(path).optimize.compact()
    return known


def read_rows(path: str) -> list[tuple[Any, ...]]:
    """The rows of the files that a path stands for, in any order."""
    table, paths = table_of(path), [file.path for file in files_at(path)]
    if not paths:
        return []
    return in_order(pd.DataFrame(read_all(opened(DeltaReader, table, paths), table.names).columns))


@settings(max_examples=10, deadline=None, derandomize=True, database=None)
@given(first=ROWS, commits=COMMITS, by=st.sampled_from([[], ["day"], ["day", "name"]]))
@example(  # delta-rs writes types of Arrow that pyarrow 14 does not have
    first=[(0, "a", None, DAYS[0]), (1, "b", 0.5, DAYS[0])], commits=[("delete", [(1, "", 0.0, "")])], by=[]
)
@example(
    first=[(0, "a", None, DAYS[0]), (1, "b c", 0.5, DAYS[1])],
    commits=[
        ("append", [(2, "a", 1.5, DAYS[0])]),
        ("compact", [(0, "", 0.0, "")]),
        ("replace", [(3, None, 1.5, DAYS[0])]),
    ],
    by=["day"],
)
def test_the_current_version_has_the_rows_of_pandas(
    tmp_path_factory: pytest.TempPathFactory,
    first: list[Any],
    commits: list[tuple[str, list[Any]]],
    by: list[str],
) -> None:
    path = tmp_path_factory.mktemp("delta") / "table"
    known = commit(path, "append", first, frame([]), by)
    for kind, values in commits:
        known = commit(path, kind, values, known, by)
    assert read_rows(str(path)) == in_order(known)
    for day in DAYS if by else ():
        assert read_rows(f"{path}/day={day}") == in_order(known[known["day"] == day])


def test_locations_have_partitions_at_their_end() -> None:
    assert split_location("/srv/a=1/clicks") == ("/srv/a=1/clicks", [])
    assert split_location("s3a://b/clicks/dt=2026-01-01/kind=x y/") == (
        "s3a://b/clicks",
        [("dt", "2026-01-01"), ("kind", "x y")],
    )


def test_a_day_is_a_partition_and_has_a_digest_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "raw/clicks"
    table = table_of("{data}/clicks/dt={date}", key="int", dt={"type": "date"})

    def write(day: int, **mode: Any) -> None:
        rows = {"key": [day], "dt": [dt.date(2026, 1, day)]}
        write_deltalake(path, pa.table(rows), partition_by=["dt"], mode="append", **mode)

    assert found(tmp_path, table, DAYS[0]) is None
    write(1)
    first = found(tmp_path, table, DAYS[0])
    assert first is not None
    assert found(tmp_path, table, DAYS[1]) is None
    write(2)
    again, second = found(tmp_path, table, DAYS[0]), found(tmp_path, table, DAYS[1])
    assert again == first
    assert second is not None
    assert second.digest != first.digest
    write(1)
    later = found(tmp_path, table, DAYS[0])
    assert later is not None
    assert (len(later.paths), later.paths[:1]) == (2, first.paths)  # in the order of the commits
    assert later.digest != first.digest
    both = found(tmp_path, table, "2026-01-0[12]")
    assert both is not None
    assert set(both.paths) == {*later.paths, *second.paths}


def test_partition_columns_have_the_declared_types_and_stand_in_the_quarantine(tmp_path: Path) -> None:
    at = dt.datetime(2026, 1, 1, 12, 30, tzinfo=dt.UTC)
    kinds: dict[str, Any] = {
        "label": pa.array(["1", "x"]),
        "at": pa.array([at, at], pa.timestamp("us", "UTC")),
        "day": pa.array([dt.date(2026, 1, 1), None]),
        "number": pa.array([7, 8], pa.int32()),
        "text": pa.array(["a b", "ö=%2/"]),
        "value": pa.array([0.5, 1.5]),
    }
    write_deltalake(tmp_path / "t", pa.table(kinds), partition_by=["at", "day", "number", "text", "label"])
    table = table_of(
        "t", label="int", at="int", day="date", number="string", text="string", value="float", many={
            "source": "text", "type": "list<string>", "separator": " "
        }
    )  # fmt: skip
    paths = [file.path for file in files_at(str(tmp_path / "t"))]
    rows = read_all(opened(DeltaReader, table, paths, EventTime(column="at", unit="s")), table.names)
    seconds = int(at.timestamp())
    expected = {
        "7": (1, seconds, 20454, "7", "a b", 0.5, ["a", "b"]),
        "8": (None, seconds, None, "8", "ö=%2/", 1.5, ["ö=%2/"]),
    }
    actual = dict(zip(rows.columns["number"], zip(*rows.columns.values(), strict=True), strict=True))
    assert actual == expected
    assert sorted(map(str, rows.reasons)) == ["None", "integer:label"]
    bad = rows.texts[rows.reasons.index("integer:label")]
    assert json.loads(bad) == {
        "value": 1.5, "label": "x", "at": seconds * 10**6, "number": 8, "text": "ö=%2/"
    }  # fmt: skip
    assert rows.exact == [seconds * 10**6] * 2


def test_columns_that_files_lack_are_null_and_columns_that_the_table_lacks_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_deltalake(path, pa.table({"key": [1]}))
    write_deltalake(path, pa.table({"key": [2], "name": ["b"]}), mode="append", schema_mode="merge")
    assert read(path, key="int", name="string") == {"key": [1, 2], "name": [None, "b"]}
    gone = {"type": "int", "optional": True}
    assert read(path, key="int", gone=gone)["gone"] == [None, None]
    with pytest.raises(DataError, match=r"t has no column.*\['x'\].*\['key', 'name'\]"):
        read(path, key="int", x="float")


def test_wrong_locations_are_errors_with_a_remedy(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"key": [1], "day": ["a"]}), partition_by=["day"])
    with pytest.raises(ConfigError, match=r"\['key'\] are not partition columns .* columns are \['day'\]"):
        files_at(f"{tmp_path}/t/key=1")
    (tmp_path / "plain").mkdir()
    with pytest.raises(ConfigError, match="plain is not a Delta table: it has no folder _delta_log"):
        files_at(f"{tmp_path}/plain/day=a")
    assert files_at(f"{tmp_path}/nothing/day=a") == []
    assert files_at(f"{tmp_path}/t/day=b") == []


def test_files_that_another_job_has_replaced_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_deltalake(path, pa.table({"key": [1]}))
    paths = [file.path for file in files_at(str(path))]
    write_deltalake(path, pa.table({"key": [2]}), mode="overwrite")
    with pytest.raises(DataError, match="is not part of version 1 of the Delta table"):
        DeltaReader.open(table_of(path, key="int"), tuple(paths))
    with pytest.raises(DataError, match="contains a _delta_log, so the file is not part of a Delta table"):
        version_of(f"{tmp_path}/other/file.parquet")


def _edit_log(path: Path, features: list[str], **changes: Any) -> None:
    """Changes the first commit of a table: the features that a reader needs, and keys of its actions."""
    log = path / f"_delta_log/{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": features,
                "writerFeatures": features,
            }
        for kind in action.keys() & changes.keys():
            action[kind] |= changes[kind]
    log.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def _deletion_vector(file: Path, rows: list[int]) -> dict[str, Any]:
    """Writes a deletion vector of rows below 2¹⁶, as the protocol describes it; returns its descriptor."""
    container = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + struct.pack(f"<{len(rows)}H", *rows)
    data = struct.pack("<I", 1681511377) + struct.pack("<QI", 1, 0) + container
    file.write_bytes(b"\x01" + struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data)))
    return {
        "storageType": "p",
        "pathOrInlineDv": f"file://{file}",
        "offset": 1,
        "sizeInBytes": len(data),
        "cardinality": len(rows),
    }


@pytest.mark.parametrize("split_bytes", [None, 1])
def test_rows_that_a_deletion_vector_deletes_are_left_out(tmp_path: Path, split_bytes: int | None) -> None:
    path, rows = tmp_path / "t", 30
    write_deltalake(
        path,
        pa.table({"key": list(range(rows)), "name": ["bad" if row == 7 else "1" for row in range(rows)]}),
    )
    deleted = [3, 4, 11, 18, 29]
    _edit_log(
        path, ["deletionVectors"], add={"deletionVector": _deletion_vector(tmp_path / "vector.bin", deleted)}
    )
    (file,) = files_at(str(path))
    mask = kept_rows(version_of(file.path), {file.path})[file.path]
    assert [row for row, kept in enumerate(mask) if not kept] == deleted
    table = table_of(path, key="int", name="int")
    reader = DeltaReader.open(table, (file.path,))
    (part,) = reader.splits(split_bytes)
    (block,) = reader.blocks(part, table.names)
    kept = [row for row in range(rows) if row not in deleted]
    assert block.columns["key"].to_pylist() == kept
    assert block.row_lines.tolist() == kept
    assert block.lines == rows
    assert dict(block.malformed) == {kept.index(7): "integer:name"}
    assert block.texts([7]) == ['{"key":7,"name":"bad"}']


def _config_of_days(folder: Path, lake: str = "lake") -> Config:
    log = {
        "path": "{data}/clicks/dt={date}",
        "format": "delta",
        "columns": [
            {"name": "user", "type": "string"},
            {"name": "item", "type": "string"},
            {"name": "click", "type": "int"},
        ],
        "label": {"column": "click"},
    }
    features = [{"columns": ["user", "item"], "kind": "categorical", "ops": ["categorify"]}]
    scopes = {"user": ["user"], "item": ["item"]}
    split = {"by": "day", "train_days": 1, "validation_days": 1, "test_days": 1}
    changes = {"log": log, "features": features, "scopes": scopes, "split": split}
    (folder / lake).mkdir()
    return cases.write_config(folder / lake, changes, {"lake": str(folder / lake), "data": str(folder)})


def _write_days(folder: Path) -> list[int]:
    """Writes a table of three days. Returns the rows of the user `gone` on the first day, which has one file."""
    for number, day in enumerate(DAYS):
        users = ["gone" if row % 3 == 0 and day == DAYS[0] else f"u{row % 5}" for row in range(30)]
        clicks = {"user": users, "item": [f"i{row % (5 + number)}" for row in range(30)]}
        rows = pa.table({**clicks, "click": [row % 2 for row in range(30)], "dt": [day] * 30})
        write_deltalake(folder / "clicks", rows, partition_by=["dt"], mode="append")
    return list(range(0, 30, 3))


def _delete(folder: Path, rows: list[int]) -> None:
    """Deletes rows of the first day by a new version of the table, as `DELETE` of Spark does."""
    log = folder / "clicks/_delta_log"
    actions = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    (add,) = [action["add"] for action in actions if "add" in action]
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    commit: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"remove": {"path": add["path"], "dataChange": True, "deletionTimestamp": add["modificationTime"]}},
        {"add": {**add, "deletionVector": _deletion_vector(folder / "vector.bin", rows)}},
    ]
    text = "".join(f"{json.dumps(action)}\n" for action in commit)
    (log / f"{len(DAYS):020}.json").write_text(text)


def _built(config: Config) -> tuple[BuildResult, dict[str, int]]:
    """Builds the features of the three days; also returns how often each value of the vocabulary was counted."""
    result = cases.run_build(TasksHere(1, _no_session), config, DAYS[2])
    known = cases.read_rows(workflow_table(LakePaths(config.lake), result.workflow.version, VOCABULARY))
    return result, dict(zip(known["value"], known["count"], strict=True))


def _no_session() -> SparkSession:
    raise AssertionError("the run needs no session")


def test_no_vocabulary_and_no_data_report_counts_deleted_rows(tmp_path: Path) -> None:
    _delete(tmp_path, _write_days(tmp_path))
    result, counts = _built(_config_of_days(tmp_path))
    assert counts == {f"{kind}{number}": 4 for kind in "ui" for number in range(5)}
    assert [piece.rows for piece in result.quality.compared.train] == [20]
    assert {column.train_cells for column in result.quality.compared.columns} == {20}


def test_a_day_is_read_again_after_rows_were_deleted(tmp_path: Path) -> None:
    """A deletion vector changes neither the name nor the size of the file."""
    rows, config = _write_days(tmp_path), _config_of_days(tmp_path)
    first, counts = _built(config)
    assert counts["gone"] == 10
    _delete(tmp_path, rows)
    second, counts = _built(config)
    assert counts == _built(_config_of_days(tmp_path, "fresh"))[1]
    assert "gone" not in counts
    assert second.workflow.version != first.workflow.version
    assert [second.features[day].rows for day in DAYS] == [20, 30, 30]


def test_a_deletion_vector_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_deltalake(path, pa.table({"key": [1, 2]}))
    vector = _deletion_vector(tmp_path / "vector.bin", [1])
    (tmp_path / "vector.bin").write_bytes(b"\x01")
    _edit_log(path, ["deletionVectors"], add={"deletionVector": vector})
    with pytest.raises(DataError, match=r"deletion vectors of the Delta table cannot be read") as refused:
        read(path, key="int")
    assert "REORG TABLE" in refused.value.remedy


@pytest.mark.parametrize(
    "features, changes, problem",
    [
        (["fancy"], {}, "cannot be read: .*fancy"),
        (
            ["columnMapping"],
            {"metaData": {"configuration": {"delta.columnMapping.mode": "name"}}},
            "columnMapping|has delta.columnMapping.mode|cannot be read",
        ),
    ],
)
def test_tables_with_other_features_are_refused(
    tmp_path: Path, features: list[str], changes: dict[str, Any], problem: str
) -> None:
    write_deltalake(tmp_path / "t", pa.table({"key": [1]}))
    _edit_log(tmp_path / "t", features, **changes)
    with pytest.raises(DataError, match=problem):
        files_at(f"{tmp_path}/t")


def test_a_table_of_attributes_may_be_a_delta_table(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "users", pa.table({"key": [1, 2], "name": ["a", "b"]}))
    config: Config = cases.write_config(tmp_path)
    table = table_of(tmp_path / "users", key="int", name="string")
    rows = read_attribute_table(config, table, "key", "users", DAYS[0])
    assert rows.to_pydict() == {"key": [1, 2], "name": ["a", "b"]}
    write_deltalake(tmp_path / "users", pa.table({"key": [2], "name": ["b"]}), mode="append")
    with pytest.raises(DataError, match="3 rows have 2 different values of key"):
        read_attribute_table(config, table, "key", "users", DAYS[0])
