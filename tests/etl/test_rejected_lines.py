"""Errors about rejected rows show file, line and value, and a remedy for the most frequent reason."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from conf.errors import DataError
from conf.types import Config
from tests.etl import cases
from tests.etl.tasks_here import TasksHere

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]
GOOD = {"click": "1", "ts": "1767225600", "user": "u1", "item": "i1", "n": "7"}
COLUMNS = [
    {"name": "label", "source": "click", "type": "int"},
    {"name": "ts", "type": "int"},
    {"name": "user", "type": "string"},
    {"name": "item", "type": "string"},
    {"name": "n", "type": "int"},
]
TEXT_LABEL = [{**COLUMNS[0], "type": "string"}, *COLUMNS[1:]]
TIME = {"event_time": {"column": "ts"}}


def no_session() -> SparkSession:
    raise AssertionError("the error must come before a session starts")


def write_log(folder: Path, form: str, log: dict[str, Any], values: dict[str, str], **more: Any) -> Config:
    """Three days with three rows each. The last row of the second day is spoiled by `values`."""
    end = "," if form == "csv" else "\t"
    for day in DAYS:
        header = [end.join(GOOD)] if form == "csv" else []
        rows = [GOOD, GOOD, {**GOOD, **values} if day == DAYS[1] else GOOD]
        lines = [*header, *(end.join(row.values()) for row in rows)]
        (folder / f"raw/dt={day}").mkdir(parents=True)
        (folder / f"raw/dt={day}/a.txt").write_bytes("".join(f"{line}\n" for line in lines).encode("latin-1"))
    changes = {
        "log": {
            "path": "{data}/dt={date}/*",
            "format": form,
            "columns": COLUMNS,
            "label": {"column": "label"},
            **log,
        },
        "features": [{"columns": ["n"], "kind": "dense", "ops": [{"fill": {"value": 0}}, "normalize"]}],
        "scopes": {},
        "split": {"by": "day", "train_days": 1, "validation_days": 1, "test_days": 1},
        "quality": {"max_bad_share": 0.1},
    }
    return cases.write_config(folder, changes, more)


@pytest.mark.parametrize(
    "log, values, problem, remedy",
    [
        (
            {},
            {"click": "view"},
            "label has the value 'view', which is not an integer",
            "such as 'view' cannot be",
        ),
        (
            {"columns": TEXT_LABEL},
            {"click": "view"},
            "label has the value 'view', which is not 0 or 1",
            "list the events that are clicks in log.label.positive",
        ),
        (
            {"columns": TEXT_LABEL, "label": {"column": "label", "positive_at_least": 2}},
            {"click": "view"},
            "label has the value 'view', which is not a number",
            "a string such as 'view' cannot be a label",
        ),
        (
            {},
            {"click": "5"},
            "label has the value '5', which is not 0 or 1",
            "positive_at_least to the smallest value",
        ),
        ({}, {"click": ""}, "label has no value", "give every row a label in label"),
        (
            TIME,
            {"ts": "2026-01-02 00:01:49"},
            "ts has the value '2026-01-02 00:01:49'",
            "declare the column as a time: `type: timestamp` reads ISO 8601",
        ),
        (TIME, {"ts": ""}, "ts has no value", "give every row a time in ts, or remove log.event_time"),
        (TIME, {"ts": "1" * 18}, "exceeds 64 bits after conversion to µs", "correct log.event_time.unit"),
        ({}, {"n": "NULL"}, "n has the value 'NULL'", 'add "NULL" to log.null_values if it stands for null'),
        ({}, {"n": "\\N"}, "n has the value '\\\\N'", 'add "\\\\N" to log.null_values'),
        ({}, {"n": "1.5"}, "n has the value '1.5'", "give n the type float or string in log.columns"),
        (
            {"decimal_separator": ","},
            {"n": "1.5"},
            "n has the value '1.5'",
            "write the numbers of n with a decimal comma, or remove `decimal_separator` from the section log",
        ),
        ({}, {"user": ""}, "user has no value", "give every row an id in user"),
        ({}, {"user": "u\x07"}, "user has the value 'u\\x07', which is not an id", "correct the ids in user"),
        ({}, {"item": "caf\xe9"}, "is not UTF-8 text", "iconv -f LATIN1 -t UTF-8"),
        ({}, {"item": "a,b\tc"}, "has 6 fields separated by", "or correct log.separator"),
    ],
)
@pytest.mark.parametrize("form", ["csv", "tsv"])
def test_the_remedy_fits_the_most_frequent_reason(
    tmp_path: Path, form: str, log: dict[str, Any], values: dict[str, str], problem: str, remedy: str
) -> None:
    config = write_log(tmp_path, form, log, values)
    with pytest.raises(DataError) as caught:
        cases.run_build(TasksHere(1, no_session), config, DAYS[-1])
    line = 4 if form == "csv" else 3
    place = f"{tmp_path}/raw/dt={DAYS[1]}/a.txt: line {line}"
    assert place in caught.value.problem
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy
    assert f"{config.lake}/quarantine" in caught.value.remedy


def test_a_decimal_comma_names_its_setting(tmp_path: Path) -> None:
    config = write_log(tmp_path, "tsv", {}, {"n": "1,5"})
    with pytest.raises(DataError, match="n has the value '1,5'") as caught:
        cases.run_build(TasksHere(1, no_session), config, DAYS[-1])
    assert 'set `decimal_separator: ","` in the section log' in caught.value.remedy


def test_different_values_of_the_reason_are_shown_and_a_wrong_separator_is_named(tmp_path: Path) -> None:
    config = write_log(tmp_path, "tsv", {"separator": "|"}, {})
    with pytest.raises(DataError) as caught:
        cases.run_build(TasksHere(1, no_session), config, DAYS[-1])
    assert 'set `separator: "\\t"` in the section log' in caught.value.remedy
    folder = tmp_path / "more"
    config = write_log(folder, "csv", {}, {"click": "view"})
    raw = folder / f"raw/dt={DAYS[1]}/a.txt"
    raw.write_text(raw.read_text() + "cart,1,u,i,1\nview,1,u,i,1\n1,x,u,i,1\n")
    with pytest.raises(DataError, match="values of these rows: 'view', 'cart'"):
        cases.run_build(TasksHere(1, no_session), config, DAYS[-1])


USERS = {"path": "{data}/users/*", "format": "csv", "columns": [{"name": "user", "type": "string"}]}
AGE = {"name": "age", "type": "int"}


@pytest.mark.parametrize(
    "name, data, problem, remedy",
    [
        (
            "b.csv",
            "user,age\nu1,20\nu2,1985.5\n",
            "line 3: age has the value '1985.5'",
            "type float or string",
        ),
        (
            "b.csv.gz",
            "user,age\nu1,20\nu2,x\n",
            "line 3: age has the value 'x'",
            'add "x" to users.null_values',
        ),
        ("b.csv", "user,age\nu1,20,1\n", "line 2 has 3 fields", "write as many fields as the header has"),
        ("b.csv", "user,age\nu\x01,20\n", "line 2: user has the value 'u\\x01'", "correct the ids in user"),
        ("b.csv", "user,years\nu1,20\n", "has the header 'user,years'", "same header"),
    ],
)
@pytest.mark.parametrize("path", ["{data}/users/*", "{data}/users/{date}/*"])
def test_tables_are_checked_before_the_log_is_parsed(
    tmp_path: Path, path: str, name: str, data: str, problem: str, remedy: str
) -> None:
    users = {**USERS, "path": path, "columns": [*USERS["columns"], AGE]}
    config = write_log(tmp_path, "csv", {}, {"n": "x"}, users=users)
    for day in DAYS:
        folder = tmp_path / "raw" / path.removeprefix("{data}/").removesuffix("/*").format(date=day)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "a.csv").write_text("user,age\nu0,17.0\n")
        if "{date}" not in path or day == DAYS[1]:
            (folder / name).write_bytes(
                gzip.compress(data.encode()) if name.endswith(".gz") else data.encode()
            )
    with pytest.raises(DataError) as caught:
        cases.run_build(TasksHere(1, no_session), config, DAYS[-1])
    assert f"{name}" in caught.value.problem
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize(
    "rows, problem",
    [
        (
            {"user": ["u1", "u2"], "age": ["20", "old"]},
            "row 2: age has the value 'old', which is not an integer",
        ),
        (
            {"user": ["u1", "u2"], "age": [20.0, 20.5]},
            "row 2: age has the value '20.5', which is not an integer",
        ),
        ({"user": ["u1"], "years": [20]}, r"has no columns \['age'\]; its columns are \['user', 'years'\]"),
    ],
)
def test_parquet_tables_are_checked_before_the_log_is_parsed(
    tmp_path: Path, rows: dict[str, list[Any]], problem: str
) -> None:
    columns = [*USERS["columns"], AGE]
    users = {**USERS, "format": "parquet", "columns": columns}
    config = write_log(tmp_path, "csv", {}, {"n": "x"}, users=users)
    (tmp_path / "raw/users").mkdir()
    pd.DataFrame({"user": ["u0", "u3"], "age": [20, None]}).to_parquet(tmp_path / "raw/users/a.parquet")
    pd.DataFrame(rows).to_parquet(tmp_path / "raw/users/b.parquet")
    with pytest.raises(DataError, match=rf"users/b\.parquet:? .*{problem}|b\.parquet {problem}"):
        cases.run_build(TasksHere(1, no_session), config, DAYS[-1])


def test_many_long_rows_after_the_head_are_left_to_the_reader(tmp_path: Path) -> None:
    """Only the first rows are checked: the reader finds a bad value in the last row, after the log was read."""
    users = {**USERS, "columns": [*USERS["columns"], AGE]}
    config = write_log(tmp_path, "csv", {}, {}, users=users)
    (tmp_path / "raw/users").mkdir()
    rows = "".join(f"u{index},{index}\n" for index in range(150))
    (tmp_path / "raw/users/a.csv").write_text(f"user,age\n{rows}u,x\n")
    (tmp_path / "raw/users/empty.csv").write_text("user,age\n")
    with pytest.raises(DataError, match=r"a\.csv: 1 row does not parse; the first is line 152: age has the"):
        cases.run_build(TasksHere(1, no_session), config, DAYS[-1])
