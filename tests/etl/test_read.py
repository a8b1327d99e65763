"""Raw files to typed rows: csv and parquet, and hostile text, against the oracle."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from conf.errors import DataError
from conf.raw_types import SEPARATORS
from conf.types import Config
from etl.raw.files import require_raw
from etl.text.parse_block import file_layout, plain
from etl.workflow.feature_plan import plan_of
from tests.etl import cases, raw_oracle
from tests.etl.log_rows import bad_rows, good_rows, read_log
from tests.etl.text_blocks import parse_text

DAY = "2026-01-01"

SMALL: dict[str, Any] = {
    "log": {
        "path": "{data}/*",
        "format": "csv",
        "separator": ",",
        "columns": [
            {"name": "clicked", "type": "float", "source": "Clicked or not"},
            {"name": "when", "type": "int"},
            {"name": "who", "type": "int"},
            {"name": "what", "type": "string"},
            {"name": "price", "type": "float"},
        ],
        "label": {"column": "clicked", "positive_at_least": 3},
        "event_time": {"column": "when", "unit": "ms"},
    },
    "keys": {"user": "who", "item": "what"},
    "features": [{"columns": ["what"], "kind": "categorical", "ops": ["categorify"]}],
    "scopes": {},
    "split": {"by": "fraction"},
}
HEADER = ["price", "unused", "what", "who", "when", "Clicked or not"]


def _read(spark: SparkSession, config: Config) -> tuple[DataFrame, list[Path]]:
    raw = require_raw(config, config.log, DAY)
    return read_log(spark, config, raw), [Path(path) for path in raw.paths]


def _assert_equals_oracle(rows: DataFrame, config: Config, paths: list[Path]) -> pd.DataFrame:
    """Compares good and bad rows with the oracle's, and returns the good ones."""
    # toPandas() would convert integers to floats in columns with nulls.
    collected = pd.DataFrame(rows.collect(), columns=rows.columns, dtype=object).sort_values(
        "row_id", ignore_index=True
    )
    good, bad = raw_oracle.parse_log(config, paths)
    kept = collected[collected["_reason"].isna()].reset_index(drop=True)
    assert kept["row_id"].tolist() == good["row_id"].tolist()
    keys = [name for name in ("user_key", "item_key", "event_time") if name in good]
    for name in ["label", *keys, *config.log.names]:
        actual = [None if pd.isna(value) else value for value in kept[name]]
        assert actual == [None if pd.isna(value) else value for value in good[name]], name
    dropped = collected[collected["_reason"].notna()]
    for ours, theirs in (
        ("row_id", "row_id"),
        ("_line_number", "line_number"),
        ("_reason", "reason"),
        ("_line", "line"),
    ):
        assert dropped[ours].tolist() == bad[theirs].tolist(), ours
    return kept


def test_csv_with_header_in_another_order_and_quotes(spark: SparkSession, tmp_path: Path) -> None:
    config = cases.write_config(tmp_path, SMALL)
    (tmp_path / "raw").mkdir()
    rows = [
        ["1.5", "x", "a, with a comma", "7", "1000", "3"],
        ["", "x", 'a "quoted" word', "-1", "1001", "2.5"],
        [".5", "", " blanks stay ", "7", "1002", "5"],
        ["1", "x", "", "7", "1003", "5"],
        ["1", "x", "no time", "7", "", "5"],
        ["1", "x", "no label", "7", "1004", ""],
        ["1", "x", "time is a word", "7", "noon", "1"],
        ["1", "x", "time is beyond 64 bits in µs", "7", str(2**62), "1"],
        ["1", "x", "日本", "9", "1005", "1"],
        ["too", "few"],
        ["1", "x", "too many", "9", "1005", "1", "more"],
    ]
    for name, part in (("a.csv", rows[:5]), ("b.csv", rows[5:])):
        encoding, end = ("utf-8-sig", "\r\n") if name == "a.csv" else ("utf-8", "\n")
        with (tmp_path / "raw" / name).open("w", newline="", encoding=encoding) as file:
            csv.writer(file, lineterminator=end).writerows([HEADER, *part])
    read, paths = _read(spark, config)
    kept = _assert_equals_oracle(read, config, paths)
    assert kept["what"].tolist() == ["a, with a comma", 'a "quoted" word', " blanks stay ", "日本"]
    assert kept["label"].tolist() == [1.0, 0.0, 1.0, 0.0]
    assert kept["event_time"].tolist() == [1_000_000, 1_001_000, 1_002_000, 1_005_000]
    assert kept["user_key"].tolist() == ["7", "-1", "7", "9"]


def test_csv_without_a_column_names_it(spark: SparkSession, tmp_path: Path) -> None:
    config = cases.write_config(tmp_path, SMALL)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.csv").write_text("when,who,what,price\n1,2,3,4\n")
    with pytest.raises(DataError, match=r"a\.csv has no columns \['Clicked or not'\]") as caught:
        _read(spark, config)
    assert "(`source`, or `name`" in caught.value.remedy


@pytest.mark.parametrize("engine", ["sql", "arrow"])
def test_csv_without_optional_columns_has_nulls(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    columns = [
        {**column, "optional": column["name"] in ("price", "n", "where")}
        for column in [
            *SMALL["log"]["columns"],
            {"name": "n", "type": "int"},
            {"name": "where", "type": "string"},
        ]
    ]
    log = {**SMALL["log"], "columns": columns}
    config = cases.write_config(tmp_path, SMALL, {"log": log, "workflow": {"engine": engine}})
    (tmp_path / "raw").mkdir()
    for name in "ab":
        lines = ["where,what,when,Clicked or not,who", "x,i,1000,3,7", "y,i,1000,3", "z,i,noon,3,7"]
        (tmp_path / f"raw/{name}.csv").write_text("\n".join(lines) + "\n")
    read, paths = _read(spark, config)
    rows = read.orderBy("row_id").collect()
    assert [row["_reason"] for row in rows] == [None, "field_count", "integer:when"] * 2
    assert [(row["where"], row["price"], row["n"]) for row in good_rows(read).collect()] == [
        ("x", None, None)
    ] * 2
    if engine == "sql":
        return
    # The scan pass, which reads text without Spark.
    parsed = parse_text(
        paths[0].read_bytes(),
        file_layout(plan_of(config), tuple(map(str, paths))),
        config.log.names,
        header=True,
    )
    assert {name: plain(parsed.columns[name]).to_pylist() for name in config.log.names} == {
        "clicked": [3.0],
        "when": [1000],
        "who": [7],
        "what": ["i"],
        "price": [None],
        "n": [None],
        "where": ["x"],
    }
    assert parsed.rejected == {2: "field_count", 3: "integer:when"}


def test_csv_without_an_optional_column_in_one_file_has_nulls_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = [{**column, "optional": column["name"] == "price"} for column in SMALL["log"]["columns"]]
    config = cases.write_config(tmp_path, SMALL, {"log": {**SMALL["log"], "columns": columns}})
    (tmp_path / "raw").mkdir()
    line = "2.5,x,film,7,1000,5"
    (tmp_path / "raw/a.csv").write_text(f"{','.join(HEADER)}\n{line}\n")
    (tmp_path / "raw/b.csv").write_text(f"{','.join(HEADER[1:])}\n{line.partition(',')[2]}\n")
    rows, _ = _read(spark, config)
    assert [row["price"] for row in rows.orderBy("row_id").collect()] == [2.5, None]


def test_row_ids_count_headers_of_csv_and_rows_of_parquet(spark: SparkSession, tmp_path: Path) -> None:
    names = [column.get("source", column["name"]) for column in SMALL["log"]["columns"]]
    ids = {}
    for form in ("csv", "parquet"):
        folder = tmp_path / form
        (folder / "raw").mkdir(parents=True)
        for name in "ab":
            rows = pd.DataFrame([(3.0, 1, 7, "i", 0.5), (1.0, 2, 8, "i", 0.5)], columns=names)
            path = folder / f"raw/{name}.{form}"
            rows.to_csv(path, index=False) if form == "csv" else rows.to_parquet(path)
        log = {**SMALL["log"], "format": form, "separator": None}
        read, _ = _read(spark, cases.write_config(folder, SMALL, {"log": log}))
        found = read.orderBy("row_id").select("row_id", "_line_number").collect()
        ids[form] = [tuple(row) for row in found]
    assert ids == {"csv": [(1, 2), (2, 3), (4, 2), (5, 3)], "parquet": [(0, 1), (1, 2), (2, 1), (3, 2)]}


def test_csv_files_of_two_layouts_are_read_by_their_own_headers(spark: SparkSession, tmp_path: Path) -> None:
    config = cases.write_config(tmp_path, SMALL)
    (tmp_path / "raw").mkdir()
    line = ["2.5", "x", "film", "7", "1000", "5"]
    for name, order in (("a", 1), ("b", -1)):
        text = f"{','.join(HEADER[::order])}\n{','.join(line[::order])}\n"
        (tmp_path / f"raw/{name}.csv").write_text(text)
    rows, _ = _read(spark, config)
    found = [(row["price"], row["what"], row["who"], row["label"]) for row in rows.collect()]
    assert found == [(2.5, "film", 7, 1.0)] * 2


def test_parquet_rows_are_numbered_and_checked(spark: SparkSession, tmp_path: Path) -> None:
    log = {**SMALL["log"], "format": "parquet", "separator": None, "path": "{data}/*/*.parquet"}
    config = cases.write_config(tmp_path, SMALL, {"log": log})
    for folder in "xy":
        (tmp_path / "raw" / folder).mkdir(parents=True)
    columns: dict[str, list[Any]] = {
        "Clicked or not": [5.0, 1.0, None, 3.0],
        "when": [1, 2, 3, None],
        "who": [7.0, 7.5, 8.0, 9.0],
        "what": ["a", "b", "", "日本"],
        "price": ["1.5", None, "2", "3"],
        "unused": [1, 2, 3, 4],
    }
    pq.write_table(pa.table(columns).slice(0, 2), tmp_path / "raw/x/a.parquet")
    pq.write_table(pa.table(columns).slice(2), tmp_path / "raw/x/b.parquet")
    last = {**{name: values[:1] * 2 for name, values in columns.items()}, "price": ["Infinity", "cheap"]}
    pq.write_table(pa.table(last), tmp_path / "raw/y/a.parquet")
    read, _ = _read(spark, config)
    kept = good_rows(read).toPandas()
    assert kept["row_id"].tolist() == [0]
    assert kept[["when", "user_key", "item_key", "label", "event_time"]].to_dict("records") == [
        {"when": 1, "user_key": "7", "item_key": "a", "label": 1.0, "event_time": 1000}
    ]
    bad = bad_rows(read).orderBy("row_id").collect()
    assert [(row["row_id"], row["line_number"], row["reason"]) for row in bad] == [
        (1, 2, "integer:who"),
        (2, 1, "label:clicked"),
        (3, 2, "missing_time:when"),
        (4, 1, "number:price"),
        (5, 2, "number:price"),
    ]
    named = [Path(row["source_file"]).relative_to(tmp_path / "raw") for row in bad]
    assert [str(path) for path in named] == [
        "x/a.parquet",
        "x/b.parquet",
        "x/b.parquet",
        *["y/a.parquet"] * 2,
    ]
    assert json.loads(bad[0]["line"])["who"] == 7.5


def test_parquet_without_a_column_names_it(spark: SparkSession, tmp_path: Path) -> None:
    config = cases.write_config(
        tmp_path, SMALL, {"log": {**SMALL["log"], "format": "parquet", "separator": None}}
    )
    (tmp_path / "raw").mkdir()
    pq.write_table(pa.table({"when": [1]}), tmp_path / "raw/a.parquet")
    with pytest.raises(DataError, match="price"):
        _read(spark, config)


def test_paths_with_blanks_and_other_scripts(spark: SparkSession, tmp_path: Path) -> None:
    config = cases.write_config(tmp_path, {"data": str(tmp_path / "my däta 100%"), "log": cases.LOG["log"]})
    folder = tmp_path / f"my däta 100%/dt={DAY}"
    paths = cases.write_day(folder, cases.make_lines(DAY, 20, 3))
    read, _ = _read(spark, config)
    _assert_equals_oracle(read, config, paths)
    named = {
        Path(row["source_file"]).name for row in bad_rows(read).select("source_file").distinct().collect()
    }
    assert named <= {path.name for path in paths}


def test_invalid_utf8_rejects_only_its_row(spark: SparkSession, tmp_path: Path) -> None:
    config = cases.write_config(tmp_path, {"split": {"by": "fraction"}})
    folder = tmp_path / f"raw/dt={DAY}"
    folder.mkdir(parents=True)
    good = "1\t1\t1\t1\t1\t1\t1\tu\ti\tc\tc\tc\t1\n"
    (folder / "a.tsv").write_bytes(good.encode() + good.replace("u", "ü").encode("latin-1") + good.encode())
    read, _ = _read(spark, config)
    assert sorted(good_rows(read).toPandas()["row_id"]) == [0, 2]
    (bad,) = bad_rows(read).collect()
    assert (bad["row_id"], bad["line_number"], bad["reason"]) == (1, 2, "not_utf8")
    assert "\ufffd" in bad["line"]


TOKENS = st.one_of(
    st.sampled_from(cases.INTEGERS),
    st.sampled_from(
        ["1d", "0x1p3", "NaN", "Infinity", "1e400", "1_0", "+.5e-3", "٣", "12 ", "1.", ".", "-", "e5"]
    ),
    st.text(st.characters(exclude_characters="\r\n\t", exclude_categories=["Cs"]), max_size=4),
)


@settings(max_examples=4, deadline=None, derandomize=True, database=None)
@given(
    rows=st.lists(st.lists(TOKENS, min_size=13, max_size=13), min_size=60, max_size=120),
    cut=st.integers(0, 60),
)
def test_any_text_is_parsed_or_quarantined(spark: SparkSession, rows: list[list[str]], cut: int) -> None:
    with TemporaryDirectory() as name:
        config = cases.write_config(Path(name), {"split": {"by": "fraction"}})
        folder = Path(name) / f"raw/dt={DAY}"
        folder.mkdir(parents=True)
        lines = ["\t".join([str(index % 2), *row[1:]]) for index, row in enumerate(rows)]
        (folder / "a.tsv").write_text("".join(f"{line}\n" for line in lines[:cut]), encoding="utf-8")
        (folder / "b.tsv").write_text("".join(f"{line}\n" for line in lines[cut:]), encoding="utf-8")
        read, paths = _read(spark, config)
        _assert_equals_oracle(read, config, paths)


@pytest.mark.parametrize("engine", ["sql", "arrow"])
@pytest.mark.parametrize("layout", ["csv", "tsv"])
@pytest.mark.parametrize("separator", SEPARATORS)
def test_every_separator_that_is_allowed(
    spark: SparkSession, tmp_path: Path, separator: str, layout: str, engine: str
) -> None:
    log = {**SMALL["log"], "format": layout, "separator": separator}
    config = cases.write_config(tmp_path, SMALL, {"log": log, "workflow": {"engine": engine}})
    (tmp_path / "raw").mkdir()
    # The value is an id, which must not have a control character.
    others = "".join(other for other in SEPARATORS if other != separator and other.isprintable())
    rows = [
        ["3", "1000", "7", f"a{others}b", "1.5"],
        ["1", "1001", "-8", "", ".5"],
        ["5", "", "9", "no_time", "1"],
    ]
    rows += [["2", "1002", "9", "too", "few"][:4], ["2", "1003", "x", "no_number", "1"]]
    names = [f'"{column.source_name}"' for column in config.log.columns]
    header = [names] if layout == "csv" else []
    lines = [separator.join(row) for row in (*header, *rows)]
    if layout == "csv":
        lines.append(separator.join(["4", "1004", "10", f'"quoted {separator} and ""more"""', "2"]))
    (tmp_path / "raw/a.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    read, paths = _read(spark, config)
    kept = _assert_equals_oracle(read, config, paths)
    # An id with a control character is quarantined.
    more = [f'quoted {separator} and "more"'] if layout == "csv" and separator.isprintable() else []
    assert kept["what"].tolist() == [f"a{others}b", *more]  # the row without an item is bad


def test_parquet_columns_may_have_dots_in_the_file(spark: SparkSession, tmp_path: Path) -> None:
    columns = [
        {**column, "source": f"a.{column['name']}"} if column["name"] != "clicked" else column
        for column in SMALL["log"]["columns"]
    ]
    log = {**SMALL["log"], "format": "parquet", "separator": None, "columns": columns}
    config = cases.write_config(tmp_path, SMALL, {"log": log})
    (tmp_path / "raw").mkdir()
    values = {
        "Clicked or not": [5.0],
        "a.when": [1],
        "a.who": [7],
        "a.what": ["x"],
        "a.price": [3.5e38],
        "a": [1],
    }
    pq.write_table(pa.table(values), tmp_path / "raw/a.parquet")
    read, _ = _read(spark, config)
    (bad,) = bad_rows(read).collect()
    assert bad["reason"] == "number:price", "beyond float32"
    assert json.loads(bad["line"])["a.what"] == "x"
