"""Rows of erased users are left out of the log and counted, by both engines, up to the day of the erasure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from conf.types import Config
from etl.passes import passes_of
from etl.raw.erased_users import (
    ERASED,
    ErasedList,
    ErasedUsers,
    LineFields,
    add_erased,
    digest_of_user,
    has_erased_field,
    list_or_new,
    read_erased,
)
from etl.raw.file_splits import read_blocks, split_files
from etl.raw.files import require_raw
from etl.raw.text_values import integer_text, integers
from etl.text.parse_block import columns_to_parse, layout_of_days
from etl.workflow.feature_plan import plan_of
from spark.choose_workers import SparkWorkers
from storage.format_versions import ERASED_USERS
from storage.paths import LakePaths
from tests.etl import cases
from tests.etl.text.test_two_passes import GROUPS
from tests.etl.text_blocks import parse_text

DAY, NEXT_DAY = "2026-01-01", "2026-01-02"
USER, LONGER = "user 3", "user 33"


def _line(user: str, label: str = "1", first: str = "2") -> str:
    return "\t".join([label, first, *[""] * 5, user, "item 1", *[""] * 4])


def _write(folder: Path, day: str) -> list[str]:
    """A file of one block: rows of both users, good and rejected, between other lines."""
    lines = [
        _line(USER),
        _line(LONGER),
        _line(USER, label="2"),
        _line(LONGER, label="2"),
        _line(USER, first="x"),
        f"too few\t{USER}",
        f"too few\t{LONGER}",
        _line("a", first="x"),
        _line("b"),
    ]
    folder = folder / f"raw/dt={day}"
    folder.mkdir(parents=True)
    (folder / "a.tsv").write_text("".join(f"{line}\r\n" for line in lines))
    return lines


def _expected(lines: list[str]) -> list[str | None]:
    """The reasons of these lines if USER is erased."""
    rejected = {3: "label:label", 6: "field_count", 7: "integer:I1"}
    return [ERASED if USER in line.split("\t") else rejected.get(index) for index, line in enumerate(lines)]


@pytest.fixture
def log(tmp_path: Path) -> tuple[Config, list[str]]:
    """A log of two days, and the lines of each; USER is erased through DAY."""
    config = cases.write_config(tmp_path, GROUPS)
    lines = _write(tmp_path, DAY)
    _write(tmp_path, NEXT_DAY)
    lake = LakePaths(config.lake)
    add_erased(lake, list_or_new(lake), [USER], DAY)
    return config, lines


def _reasons_of_text(config: Config, day: str, lines: int) -> list[str | None]:
    raw = require_raw(config, config.log, day)
    layout = layout_of_days(plan_of(config), [raw])
    [file_split] = split_files(raw.paths)
    [block] = read_blocks(file_split)
    names = columns_to_parse(layout, [])
    parsed = parse_text(block, layout, names, False, layout.erased.get(file_split.path))
    reasons = dict(parsed.rejected)
    assert set(reasons).isdisjoint(parsed.row_lines.tolist())
    return [reasons.get(line) for line in range(lines)]


def test_text_is_read_without_the_rows_of_erased_users(log: tuple[Config, list[str]]) -> None:
    config, lines = log
    assert _reasons_of_text(config, DAY, len(lines)) == _expected(lines)
    assert ERASED not in _reasons_of_text(config, NEXT_DAY, len(lines))


@pytest.mark.parametrize("engine", ["arrow", "sql"])
def test_clusters_read_the_log_without_the_rows_of_erased_users(
    spark: SparkSession, log: tuple[Config, list[str]], engine: Any
) -> None:
    config, lines = log
    config = config.model_copy(
        update={
            "workflow": config.workflow.model_copy(update={"engine": engine}),
            "quality": config.quality.model_copy(update={"max_bad_share": 1}),
        }
    )
    lake = LakePaths(config.lake)
    days = [require_raw(config, config.log, day) for day in (DAY, NEXT_DAY)]
    passes = passes_of(SparkWorkers(spark), plan_of(config), lake)
    counts = passes.scan_days(days)[DAY]
    assert (counts.rows_in, counts.good, counts.bad, counts.dropped[ERASED]) == (9, 2, 3, 4)
    quarantine = cases.read_rows(lake.quarantine.partition(DAY))
    assert quarantine["line_number"].tolist() == [4, 7, 8]
    assert not [line for line in quarantine["line"] if USER in line.split("\t")]
    if engine == "sql":
        row_ids = [
            cases.read_rows(lake.prepared(config.name).partition(raw.dt))["row_id"].tolist() for raw in days
        ]
        good = [
            [
                line
                for line, reason in enumerate(_reasons_of_text(config, raw.dt, len(lines)))
                if reason is None
            ]
            for raw in days
        ]
        assert row_ids == good
        assert good == [[1, 8], [0, 1, 8]]


def test_a_log_that_is_one_table_is_always_read_without_them(log: tuple[Config, list[str]]) -> None:
    config, lines = log
    whole = config.model_copy(update={"split": config.split.model_copy(update={"by": "fraction"})})
    assert _reasons_of_text(whole, NEXT_DAY, len(lines)) == _expected(lines)


def test_the_list_has_digests_only_and_keeps_the_later_day(tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path))
    assert read_erased(lake) is None
    first = add_erased(lake, list_or_new(lake), [USER], NEXT_DAY)
    add_erased(lake, list_or_new(lake), [USER, "other"], DAY)
    known = read_erased(lake)
    assert known == ErasedList(first.salt, {first.digest(USER): NEXT_DAY, first.digest("other"): DAY})
    text = (tmp_path / "erasures/users.json").read_text()
    assert USER not in text
    assert f'"format_version": {ERASED_USERS.version}' in text
    assert known.of_day("2026-01-03") is None
    later = known.of_day(NEXT_DAY)
    assert later is not None
    assert (later.has(USER), later.has("other"), later.has(LONGER)) == (True, False, False)
    assert list_or_new(LakePaths(str(tmp_path / "second"))).salt != first.salt


@pytest.mark.parametrize(
    "line, expected",
    [
        ('{"user": "user 7", "item": "a", broken', True),
        ('{"user": 17, "item": ["a", "b"]', False),
        ('{"user": "user 70", "item": "a", broken', False),
        ('{"seen": {"by": ["x", "user 7"]}, broken', True),
        ('{"item": "user 7"}', False),  # a whole object: its reader knows the user
    ],
)
def test_a_broken_json_line_is_left_out_if_it_has_the_id(line: str, expected: bool) -> None:
    erased = ErasedUsers("salt", frozenset({digest_of_user("salt", "user 7")}))
    assert has_erased_field(line, LineFields("\t"), erased) == expected


@pytest.mark.parametrize(
    "user, line, of_texts, of_integers",
    [
        ("Doe, Ann", '2026-01-04,"Doe, Ann",i1,oops', True, True),
        ("Doe, Ann", '"Doe, Ann"\r', True, True),
        ("Doe, Ann", '"Doe, Ann","no end', True, True),
        ("Doe, Ann", '2026-01-04,"x ""Doe, Ann""",i1', False, False),
        ('u"1', '2026-01-04,"u""1",i1,oops', True, True),
        ('"1"', '2026-01-04,"1",i1', True, True),  # a format without quotes
        ("7", "2026-01-04,7.0,i1,oops", False, True),
        ("7", '2026-01-04,"+007",i1,oops', False, True),
        ("7", "2026-01-04,7.5,70,0.7", False, False),
        ("7", '{"user": 7.0, broken', False, True),
    ],
)
def test_ids_are_found_in_rejected_lines_as_readers_read_them(
    user: str, line: str, of_texts: bool, of_integers: bool
) -> None:
    erased = ErasedUsers("salt", frozenset({digest_of_user("salt", user)}))
    assert has_erased_field(line, LineFields(","), erased) == of_texts
    assert has_erased_field(line, LineFields(",", integers=True), erased) == of_integers


def test_ids_may_have_the_decimal_separator_of_the_log() -> None:
    assert "1234" in LineFields(";", integers=True, decimal_separator=",").ids("a;1.234,0;b")
    assert "1234" not in LineFields(";", integers=True).ids("a;1.234,0;b")


def test_the_list_has_integers_that_ids_are_in_another_form(tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path))
    known = add_erased(lake, list_or_new(lake), ["007", "8", "u9", "7.5"], DAY)
    assert read_erased(lake) == known
    assert known.integers == {known.digest("7"): DAY}
    exact, numbers = known.of_day(DAY), known.of_day(DAY, as_integers=True)
    assert exact is not None
    assert numbers is not None
    texts = ["007", "7", "07", "8", "08", "u9", "7.5", "9"]
    assert [exact.has(text) for text in texts] == [True, False, False, True, False, True, True, False]
    assert [numbers.has(text) for text in texts] == [True, True, True, True, True, True, True, False]
    assert known.of_day(NEXT_DAY, as_integers=True) is None


def test_integers_of_single_texts_are_those_of_arrays() -> None:
    texts = [
        "7",
        "007",
        "7.0",
        "7.",
        "-0",
        "+5",
        "7.5",
        "",
        "x",
        "\u0667",
        "7\n",
        str(2**63),
        str(-(2**63)),
        "9" * 20,
    ]
    of_arrays = [None if number is None else str(number) for number in integers(pa.array(texts)).to_pylist()]
    assert [integer_text(text) for text in texts] == of_arrays
