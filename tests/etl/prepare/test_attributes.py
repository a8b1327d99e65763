"""Tables of users and items that are read and joined in this process equal those of Spark frames."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from conf.errors import DataError, NightrankError
from conf.types import Config, RawTable
from etl.latest.latest_features import keyed_attributes, keyed_table
from etl.prepare.attributes import join_attributes, read_attribute_table
from etl.readers import text
from etl.spark import raw_frames
from etl.spark.raw_frames import read_attributes
from etl.workflow.feature_plan import plan_of
from spark.rows import Rows
from tests.etl import cases

DAY = "2026-01-01"
COLUMNS = [
    {"name": "user", "type": "string"},
    {"name": "age", "type": "int"},
    {"name": "height", "type": "float"},
    {"name": "town", "type": "string"},
]
TOWNS = ["", "Köln", '"a,b"', "NULL", '"say ""hi"""', "x", "日本"]


def plain_rows(rows: Rows) -> list[tuple[Any, ...]]:
    """The rows as sorted tuples; a test fails if a value or its type differs."""
    found = rows.to_pylist() if isinstance(rows, pa.Table) else [row.asDict() for row in rows.collect()]
    return sorted((tuple(row.values()) for row in found), key=repr)


def config_of(folder: Path, form: str = "csv", **table: Any) -> tuple[Config, RawTable]:
    """A configuration with a table of users, whose files are all files of the folder `raw/users`."""
    users = {"path": "{data}/users/*", "format": form, "separator": ",", "columns": COLUMNS, **table}
    config = cases.write_config(folder, {"users": users})
    (folder / "raw/users").mkdir(parents=True, exist_ok=True)
    assert config.users is not None
    return config, config.users


def write(folder: Path, name: str, lines: Sequence[str], end: str = "\n") -> None:
    data = "".join(line + end for line in lines).encode()
    (folder / "raw/users" / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


def both(
    spark: SparkSession, config: Config, table: RawTable, key: str | list[str], id_column: str | None = None
) -> pa.Table:
    """Reads a table on both roads, compares the rows, and returns them."""
    here = read_attribute_table(config, table, key, "users", DAY, id_column)
    frame = read_attributes(spark, config, table, key, "users", DAY, id_column)
    assert plain_rows(here) == plain_rows(frame)
    assert here.column_names == frame.columns
    return here


@pytest.mark.parametrize("null_values", [[""], ["", "NULL", "x"]])
@pytest.mark.parametrize("form", ["csv", "tsv"])
def test_rows_are_those_of_spark(
    spark: SparkSession, tmp_path: Path, form: str, null_values: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "FILE_SPLIT_BYTES", 300)  # several splits for each file
    config, table = config_of(tmp_path, form, null_values=null_values)
    draw = random.Random(form)
    towns = TOWNS if form == "csv" else [town for town in TOWNS if '"' not in town]
    lines = [
        f"u{number},{draw.choice(['', '7', '007', '+7', str(2**62)])},"
        f"{draw.choice(['', '1', '-0.0', '1e3', '7.'])},{draw.choice(towns)}"
        for number in range(90)
    ]
    draw.shuffle(lines)
    header = ["user,age,height,town"] if form == "csv" else []
    for name, part, end in (("a", lines[:50], "\r\n"), ("b.gz", lines[50:60], "\n"), ("c", lines[60:], "\n")):
        write(tmp_path, name, [*header, *part], end)
    rows = both(spark, config, table, "user", "user")
    assert len(rows) == 90
    assert rows["user"].to_pylist() == [line.split(",")[0] for line in lines], "the order of the files"
    assert 0 < rows["town"].null_count < 90


def test_columns_that_files_lack_are_null_and_a_header_alone_is_no_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    optional = [*COLUMNS, {"name": "more", "type": "float", "optional": True}]
    config, table = config_of(tmp_path, columns=optional)
    write(tmp_path, "a", ["town,height,age,user,other"])
    empty = both(spark, config, table, "user", "user")
    assert (len(empty), empty.column_names) == (0, ["user", "age", "height", "town", "more"])
    write(tmp_path, "b", ["town,height,age,user,other", "x,1.5,3,u1,y"])
    rows = both(spark, config, table, "user", "user")
    expected = {"user": "u1", "age": 3, "height": 1.5, "town": "x", "more": None}
    assert rows.to_pylist() == [expected]


@pytest.mark.parametrize("numbers, valid", [(["7", "8"], True), (["7", "07"], False), (["7", "+7"], False)])
def test_keys_of_numbers_are_compared_as_numbers(
    spark: SparkSession, tmp_path: Path, numbers: list[str], valid: bool
) -> None:
    config, table = config_of(tmp_path)
    write(tmp_path, "a", ["user,age,height,town", *(f"u{n},{n},1,x" for n in numbers)])
    if valid:
        assert len(both(spark, config, table, "age")) == 2
    else:
        assert "2 rows have 1 different values of age" in str(errors(spark, config, table, "age"))


def test_several_columns_can_be_the_key(spark: SparkSession, tmp_path: Path) -> None:
    config, table = config_of(tmp_path)
    write(tmp_path, "a", ["user,age,height,town", "u1,1,0.0,x", "u1,2,0.0,x", "u2,1,0.0,x", "u2,1,1.0,x"])
    assert len(both(spark, config, table, ["user", "age", "height"])) == 4
    error = errors(spark, config, table, ["user", "age"])
    assert "the first value that is null or occurs twice is user='u2', age=1" in error.problem


def errors(
    spark: SparkSession, config: Config, table: RawTable, key: str | list[str], id_column: str | None = None
) -> NightrankError:
    """The error of both roads."""
    caught = []
    for read in (read_attribute_table, lambda *arguments: read_attributes(spark, *arguments)):
        with pytest.raises(NightrankError) as raised:
            read(config, table, key, "users", DAY, id_column)
        caught.append(raised.value)
    here, there = caught
    assert (type(here), here.problem, here.remedy) == (type(there), there.problem, there.remedy)
    return here


@pytest.mark.parametrize(
    "lines, problem",
    [
        (["u1,1,1,x", "u2,old,1,x", "u3,1,1"], "2 rows do not parse; the first is line 3: age has the value"),
        (["u1,1,1,x", "u2,1,1", "u3,old,1,x"], "2 rows do not parse; the first is line 3 has 3 fields"),
        (["u1,1,tall,x", "u2,old,tall,x"], "2 rows do not parse; the first is line 2: height has the value"),
        (["u1,old,tall,x"], "1 row does not parse; the first is line 2: age has the value 'old'"),
        (['u1,1,1,"x'], "1 row does not parse; the first is line 2 breaks the rule for double quotes"),
        (["u1,1,1,x", "u\x1b,1,1,x"], "1 row does not parse; the first is line 3: user has the value"),
        (["u\x1b,old,1,x"], "1 row does not parse; the first is line 2: age has the value"),
        (["u1,1,1,x", "u2,2,1,x", "u1,3,1,y", "u1,3,1,y"], "5 rows have 3 different values of user"),
        (["u1,1,1,x", ",2,1,x"], "3 rows have 2 different values of user; the first value that is null"),
        ([",2,1,x", "b,1,1,x", "b,1,1,x", ",1,1,x"], "5 rows have 2 different values of user"),
        (["\uffee,2,1,x", "\uffee,1,1,x", "\U0001f600,1,1,x", "\U0001f600,1,1,x"], "is user='\uffee'"),
    ],
)
@pytest.mark.parametrize("split_bytes", [24, 1 << 20])
def test_errors_are_those_of_spark(
    spark: SparkSession,
    tmp_path: Path,
    lines: list[str],
    problem: str,
    split_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text, "FILE_SPLIT_BYTES", split_bytes)
    config, table = config_of(tmp_path)
    write(tmp_path, "a", ["user,age,height,town", *lines])
    write(tmp_path, "b", ["user,age,height,town", "last,1,1,x"])
    assert problem in errors(spark, config, table, "user", "user").problem


def test_the_first_bad_row_is_that_of_the_first_file(spark: SparkSession, tmp_path: Path) -> None:
    config, table = config_of(tmp_path)
    for name in ("b", "a"):
        write(tmp_path, name, ["user,age,height,town", "u1,old,1,x", "u2,1", "u3,1,1,x"])
    error = errors(spark, config, table, "user", "user")
    assert "users/a: 4 rows do not parse; the first is line 2" in error.problem
    for path in (tmp_path / "raw/users").iterdir():
        path.unlink()
    assert "no raw file at" in errors(spark, config, table, "user").problem


def test_what_is_no_id_may_be_any_text(spark: SparkSession, tmp_path: Path) -> None:
    config, table = config_of(tmp_path)
    write(tmp_path, "a", ["user,age,height,town", "u\x1b,1,1,x"])
    assert len(both(spark, config, table, "user")) == 1
    assert "is not an id" in errors(spark, config, table, "user", "user").problem


def joined_by_spark(spark: SparkSession, rows: pa.Table, attributes: pa.Table, key: str) -> list[Any]:
    """The join of Spark, which compares a text and an integer as integers."""
    frames = [
        spark.createDataFrame(
            [tuple(row.values()) for row in table.to_pylist()],
            ", ".join(f"{field.name} {_spark_type(field.type)}" for field in table.schema),
        )
        for table in (rows, attributes)
    ]
    return plain_rows(frames[0].join(frames[1], key, "left").select(*rows.column_names, "age", "tags"))


def _spark_type(kind: pa.DataType) -> str:
    of_values = kind.value_type if pa.types.is_dictionary(kind) else kind
    names = {pa.int64(): "bigint", pa.string(): "string", pa.list_(pa.string()): "array<string>"}
    return names[of_values]


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize(
    "of_rows, of_table", [("string", "string"), ("int", "int"), ("string", "int"), ("int", "string")]
)
def test_a_join_is_that_of_spark(spark: SparkSession, encoded: bool, of_rows: str, of_table: str) -> None:
    draw = random.Random(f"{of_rows} {of_table}")
    types = {"string": pa.string(), "int": pa.int64()}

    def keys(values: list[Any], kind: str) -> pa.Array:
        array = pa.array(values, pa.int64()).cast(types[kind])
        return array.dictionary_encode() if encoded else array

    chunks = [[draw.choice([None, *range(12)]) for _ in range(size)] for size in (50, 0, 3)]
    names = [keys(chunk, of_rows) for chunk in chunks]
    rows = pa.table({"user": pa.chunked_array(names), "n": pa.array(range(53))})
    known = list(range(0, 20, 2))
    draw.shuffle(known)
    attributes = pa.table(
        {
            "age": pa.array([None if value == 4 else value for value in known], pa.int64()),
            "user": keys(known, of_table),
            "tags": pa.array([None if value == 2 else [str(value), "x"] for value in known]),
        }
    )
    joined = join_attributes(rows, attributes, "user")
    assert joined.column_names == ["user", "n", "age", "tags"]
    assert joined["n"].to_pylist() == list(range(53)), "rows keep their order"
    assert joined.select(["user", "n"]).equals(rows)
    assert plain_rows(joined) == joined_by_spark(spark, rows, attributes, "user")
    assert 0 < joined["age"].null_count < 53


def test_a_join_keeps_dictionaries_and_ignores_texts_that_are_no_integers() -> None:
    town = pa.array(["x", "y", "x"]).dictionary_encode()
    attributes = pa.table({"user": ["1", "no number", "2"], "town": town})
    joined = join_attributes(pa.table({"user": [2, None, 7, 1]}), attributes, "user")
    assert joined["town"].type == town.type
    assert joined["town"].to_pylist() == ["x", None, None, "x"]
    shared = pa.chunked_array(
        [pa.array(["no number", "1"]).dictionary_encode()] * 2 + [pa.array(["1"]).dictionary_encode()]
    )
    assert join_attributes(pa.table({"user": shared}), attributes, "user")["town"].to_pylist() == list(
        "yxyxx"
    )
    twice = pa.table({"user": ["1", "01"], "town": ["x", "y"]})
    with pytest.raises(DataError, match="writes the integer 1 in several ways"):
        join_attributes(pa.table({"user": [2]}), twice, "user")
    assert join_attributes(pa.table({"user": pa.array([], pa.int64())}), attributes, "user").num_rows == 0


def mixed(folder: Path, of_log: str, of_table: str, users: Sequence[str]) -> Config:
    """A log and a table of users whose ids have the types `of_log` and `of_table`; `age` is the line."""
    log = {**cases.LOG["log"]}
    log["columns"] = [
        {**column, "type": of_log} if column["name"] == "user" else column for column in log["columns"]
    ]
    columns = [{"name": "user", "type": of_table}, {"name": "age", "type": "int"}]
    table = {"path": "{data}/users.csv", "format": "csv", "columns": columns}
    (folder / "raw").mkdir()
    lines = [f"{user},{number}\n" for number, user in enumerate(users)]
    (folder / "raw/users.csv").write_text("user,age\n" + "".join(lines))
    return cases.write_config(folder, {"log": log, "users": table, "scopes": {}})


@pytest.mark.parametrize("road", ["table", "frame"])
@pytest.mark.parametrize(
    "of_log, of_table, users, expected",
    [
        # A text that is no key of the log stays as it is. The log has no key 9.
        (
            "int",
            "string",
            ["00001", "x1", "+3.0", "9"],
            {"1": (1, 0), "x1": (None, 1), "3": (3, 2), "9": (9, 3), "2": (2, None)},
        ),
        # The log has two texts for 1, and the table has no 2.
        (
            "string",
            "int",
            ["1", "3", "9"],
            {"001": ("001", 0), "1": ("1", 0), "03": ("03", 1), "9": ("9", 2), "002": ("002", None)},
        ),
        ("string", "string", ["1", "03"], {"1": ("1", 0), "03": ("03", 1), "001": ("001", None)}),
    ],
)
def test_users_have_the_ids_of_the_log_if_the_table_has_another_type(
    spark: SparkSession,
    tmp_path: Path,
    road: str,
    of_log: str,
    of_table: str,
    users: list[str],
    expected: dict[str, tuple[Any, int | None]],
) -> None:
    plan = plan_of(mixed(tmp_path, of_log, of_table, users))
    assert plan.columns["user"] == of_log
    log = pa.table({"user_key": [user for user in expected if user not in ("x1", "9")]})
    if road == "table":
        keyed = keyed_table(plan, DAY, "users", log)
        assert isinstance(keyed.rows, pa.Table)
        rows = keyed.rows.to_pylist()
    else:
        keyed = keyed_attributes(spark, plan, DAY, "users", log)
        rows = [row.asDict() for row in keyed.rows.collect()]  # type: ignore[union-attr]
    assert {row["user_key"]: (row["user"], row["age"]) for row in rows} == expected
    assert len(rows) == len(expected)
    missing = keyed.count_missing()
    keyed.release()
    assert (missing.in_log, missing.without_row) == (len(log), 1)


@pytest.mark.parametrize("road", ["table", "frame", "join"])
def test_two_texts_for_the_same_integer_are_refused(spark: SparkSession, tmp_path: Path, road: str) -> None:
    config = mixed(tmp_path, "int", "string", ["7", "x", "07"])
    assert config.users is not None
    attributes = read_attributes(spark, config, config.users, "user", "users", DAY, "user")
    rows = spark.createDataFrame([(7,)], "user bigint")
    roads: dict[str, Callable[[], object]] = {
        "table": lambda: keyed_table(plan_of(config), DAY, "users"),
        "frame": lambda: keyed_attributes(spark, plan_of(config), DAY, "users"),
        "join": lambda: raw_frames.join_attributes(config, rows, attributes, config.users, "user"),
    }
    with pytest.raises(DataError, match="column user writes the integer 7 in several ways"):
        roads[road]()
