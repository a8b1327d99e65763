"""The rows and reasons of a parsed block equal those of the oracle, for any text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.raw_types import SEPARATORS
from conf.types import Config
from etl.text.parse_block import FileLayout, columns_to_parse, file_layout, plain, unify
from etl.text.scan_pass import ValueCounter
from etl.workflow.feature_plan import plan_of
from tests.etl import cases, raw_oracle
from tests.etl.text_blocks import parse_text

pytestmark = pytest.mark.slow

FIELD = st.one_of(
    st.sampled_from(
        [
            "",
            "0",
            "1",
            "7",
            "-3",
            "+7",
            "007",
            " 1",
            "1.5",
            "7.0",
            "1e3",
            "0x1F",
            "nan",
            "é",
            '"q"',
            '"',
            "99999",
        ]
    ),
    st.integers(-(2**64), 2**64).map(str),
    st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]), max_size=4),
)
ROWS = st.lists(st.lists(FIELD, min_size=11, max_size=14), min_size=1, max_size=25)
MANY = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return cases.write_config(tmp_path_factory.mktemp("parse"))


def _layout(config: Config) -> FileLayout:
    return file_layout(plan_of(config), ("a.tsv",))


def _rows(config: Config, block: bytes) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    """(good rows by column, (line from 1, reason) of the others)."""
    layout = _layout(config)
    names = [column.name for column in config.log.columns]
    parsed = parse_text(block, layout, columns_to_parse(layout, names), header=False)
    columns = {name: plain(array).to_pylist() for name, array in parsed.columns.items()}
    good = [
        {"line_number": int(line) + 1, **{name: values[row] for name, values in columns.items()}}
        for row, line in enumerate(parsed.row_lines)
    ]
    return good, [(line + 1, reason) for line, reason in parsed.rejected.pairs()]


@MANY
@given(rows=ROWS)
def test_rows_and_reasons_are_the_oracles(
    config: Config, tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]
) -> None:
    block = "".join("\t".join(row) + "\n" for row in rows).encode()
    path = tmp_path_factory.mktemp("block") / "a.tsv"
    path.write_bytes(block)
    expected, bad = raw_oracle.parse_log(config, [path])
    good, reasons = _rows(config, block)
    assert [row["line_number"] for row in good] == expected["line_number"].tolist()
    for name in [*(column.name for column in config.log.columns), "label", "user_key", "item_key"]:
        values = [row[name] for row in good]
        assert values == [None if value != value else value for value in expected[name].tolist()], name
    assert reasons == list(zip(bad["line_number"].tolist(), bad["reason"].tolist(), strict=True))


def test_lines_of_all_kinds_in_one_block(config: Config) -> None:
    good = "1\t1\t2\t3\t4\t5\t0.5\tu\ti\ta\tb\tc\t9"
    lines = [good, "", good, "a\tb", good + "\t", "\t" * 12, good.replace("1\t1", "1\tx", 1), good]
    rows, reasons = _rows(config, ("\n".join(lines)).encode())
    assert [row["line_number"] for row in rows] == [1, 3, 8]
    assert reasons == [
        (2, "field_count"),
        (4, "field_count"),
        (5, "field_count"),
        (6, "label:label"),
        (7, "integer:I1"),
    ]


@MANY
@given(blocks=st.lists(ROWS, min_size=2, max_size=4))
def test_blocks_of_one_file_split_are_unified(config: Config, blocks: list[list[list[str]]]) -> None:
    layout, names = _layout(config), [column.name for column in config.log.columns]
    # Every block has a malformed integer, which must not be in a dictionary of numbers.
    common = ["1\t1\t2\t3\t4\t5\t0.5\tu\ti\ta\tb\tc\t9", "0\tx\t2\t3\t4\t5\t0.5\tu\ti\ta\tb\tc\t9"]
    parsed = [
        parse_text(
            "".join(line + "\n" for line in [*common, *("\t".join(row) for row in rows)]).encode(),
            layout,
            columns_to_parse(layout, names),
            header=False,
        )
        for rows in blocks
    ]
    for name in names[1:]:  # `label` is the derived column
        parts = [block.columns[name] for block in parsed]
        values = [value for part in parts for value in plain(part).to_pylist()]
        assert plain(unify(parts)).to_pylist() == values
        counter = ValueCounter()
        for part in parts:
            counter.add(part)
        distinct, counts = counter.result()
        counted: Counter[str | None] = Counter()
        for value, count in zip(distinct.to_pylist(), counts.tolist(), strict=True):
            counted[value] += count
        assert counted == Counter(pa.array(values, parts[0].dictionary.type).cast(pa.string()).to_pylist())


def test_null_values_are_null_in_every_column_and_are_counted(config: Config) -> None:
    nulls = ["\\N", "NULL", "-1"]
    log = config.log.model_copy(update={"null_values": ["", *nulls]})
    other = config.model_copy(update={"log": log})
    lines = [f"1\t{text}\t2\t3\t4\t5\t{text}\tu\ti\t{text}\tb\tc\t9\n" for text in (*nulls, "", "7", "7.0")]
    layout, names = _layout(other), [column.name for column in config.log.columns]
    parsed = parse_text("".join(lines).encode(), layout, names, header=False)
    assert not parsed.rejected
    known: dict[str, list[Any]] = {"I1": [7, 7], "X": [7.0, 7.0], "C1": ["7", "7.0"]}
    for name, values in known.items():
        assert plain(parsed.columns[name]).to_pylist() == [None] * 4 + values
        counter = ValueCounter()
        counter.add(parsed.columns[name], parsed.counts[name])
        distinct, counts = counter.result()
        assert pc.sum(pc.if_else(pc.is_null(distinct), counts, 0)).as_py() == 4, name
        assert counts.sum() == len(lines), name
    refused = parse_text(lines[0].encode(), _layout(config), names, header=False)
    assert refused.rejected == {0: "integer:I1"}


def test_invalid_utf8_rejects_only_its_line(config: Config) -> None:
    good = b"1\t1\t2\t3\t4\t5\t0.5\tu\ti\ta\tb\tc\t9\n"
    rows, reasons = _rows(config, good + good.replace(b"u", b"\xff") + good)
    assert [row["line_number"] for row in rows] == [1, 3]
    assert reasons == [(2, "not_utf8")]


@pytest.mark.parametrize("separator", SEPARATORS)
def test_every_separator_that_is_allowed(config: Config, separator: str) -> None:
    by_tab = "1\t1\t-2\t3\t4\t5\t0.5\tu\ti\ta_b\tb\t\t9\n1\tx\n"
    other = config.model_copy(update={"log": config.log.model_copy(update={"separator": separator})})
    assert _rows(other, by_tab.replace("\t", separator).encode()) == _rows(config, by_tab.encode())


def _with_raw_names(folder: Path, unit: str, keep: str) -> Config:
    """Ratings in the column `label`, and times in the column `event_time`."""
    columns = [{**column, "type": "int"} for column in cases.LOG["log"]["columns"]]
    changes = {
        "log": {
            **cases.LOG["log"],
            "columns": [*columns[:1], {"name": "event_time", "type": "int"}, *columns[2:]],
            "label": {"column": "label", "positive_at_least": 4},
            "event_time": {"column": "event_time", "unit": unit},
        },
        "prepare": [{"filter": {"keep": keep}}],
        "features": [{"columns": ["N"], "kind": "dense", "ops": [{"fill": {"value": 0}}]}],
        "scopes": {},
    }
    return cases.write_config(folder, changes)


@pytest.mark.parametrize(
    "keep, kept",
    [("label != 3", [0, 1, 3]), ("event_time >= 1001", [1, 2, 3]), ("label + event_time == 1004", [0])],
)
def test_filters_read_raw_columns_with_the_names_of_internal_columns(
    tmp_path: Path, keep: str, kept: list[int]
) -> None:
    config = _with_raw_names(tmp_path, "s", keep)
    ratings, times = [4, 5, 3, 2], [1000, 1001, 1002, 1003]
    lines = [f"{rating}\t{time}\t1\t1\t1\t1\t1\t1\t1\n" for rating, time in zip(ratings, times, strict=True)]
    names = ("label", "event_time")
    parsed = parse_text(
        "".join(lines).encode(), _layout(config), columns_to_parse(_layout(config), names), False
    )
    assert parsed.row_lines.tolist() == kept
    assert parsed.columns["label"].to_pylist() == [float(ratings[row] >= 4) for row in kept]
    assert parsed.columns["event_time"].to_pylist() == [times[row] * 1_000_000 for row in kept]


def test_times_in_microseconds_are_counted_like_other_values(tmp_path: Path) -> None:
    """The internal column with the times, which has no dictionary, replaces the raw column."""
    config = _with_raw_names(tmp_path, "us", "label > 0")
    lines = "".join(f"4\t{time}\t1\t1\t1\t1\t1\t1\t1\n" for time in (7, 5, 7))
    layout = _layout(config)
    parsed = parse_text(lines.encode(), layout, columns_to_parse(layout, ["event_time"]), header=False)
    counter = ValueCounter()
    counter.add(parsed.columns["event_time"], parsed.counts.get("event_time"))
    values, counts = counter.result()
    assert dict(zip(values.to_pylist(), counts.tolist(), strict=True)) == {"7": 2, "5": 1}
