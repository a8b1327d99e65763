"""Types of raw columns: times, dates, booleans, decimals and lists, against Python's own modules."""

from __future__ import annotations

import decimal
import json
import math
import random
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import fastavro
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import orc
from pydantic import ValidationError
from pyspark.sql import SparkSession

from conf.errors import ConfigError, DataError
from conf.load import load_config
from conf.plugins import READER
from conf.raw_types import Column, EventTime, RawTable, operator_type
from conf.types import Config, ItemsTable
from etl.build import BuildResult
from etl.raw import time_text
from etl.raw.files import RawFiles, require_raw
from etl.raw.layout_digest import layout_digest
from etl.raw.rejected_lines import RejectedLine, description, remedy
from etl.raw.row_rules import bounds_of_day, count_misdated, time_rule
from etl.raw.text_values import typed_column
from etl.readers.arrow_values import can_hold, stored_values
from etl.readers.base import reader_of
from etl.readers.text import TextReader
from etl.spark.raw_frames import read_attributes
from etl.text import parse_block
from etl.text.parse_block import file_layout, plain
from etl.text.scan_pass import columns_to_parse
from etl.workflow.feature_plan import plan_of
from etl.workflow.raw_values import column_types, raw_values
from storage.feature_spec import FLOAT32_MAX
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths
from tests.etl import cases
from tests.etl.log_rows import read_log, rows_of_log
from tests.etl.tasks_here import TasksHere
from tests.etl.text_blocks import parse_text

MANY = settings(max_examples=60, deadline=None, derandomize=True, database=None)
EPOCH = datetime(1970, 1, 1)
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Africa/Monrovia",
]
ISO_FORM = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]{1,9}))?)?(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)


def microseconds(local: datetime) -> int:
    return (local - EPOCH) // timedelta(microseconds=1)


def instant_of(local: datetime, zone: str) -> int:
    """The µs since 1970-01-01 UTC: the first of two instants, and past the gap for a time that does not exist."""
    offset = ZoneInfo(zone).utcoffset(local.replace(fold=0))
    assert offset is not None
    return microseconds(local) - offset // timedelta(microseconds=1)


def iso_instant(text: str, zone: str) -> int | None:
    """What the documented form means, by Python's datetime and zoneinfo."""
    match = ISO_FORM.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    micros = int((match[7] or "").ljust(9, "0")) // 1000
    try:
        local = datetime(year, month, day, hour, minute, second, micros)
        if match[8] is None:
            return instant_of(local, zone)
        digits = match[8][1:].replace(":", "").ljust(4, "0")
        if match[8] == "Z":
            return microseconds(local)
        hours, minutes = int(digits[:2]), int(digits[2:])
        if hours > 23 or minutes > 59:
            return None
        offset = (hours * 60 + minutes) * 60_000_000
        return microseconds(local) + (offset if match[8][0] == "-" else -offset)
    except ValueError:
        return None


def timestamps(texts: list[str | None], pattern: str = "iso", zone: str = "UTC") -> list[int | None]:
    return list(time_text.timestamps(pa.array(texts, pa.string()), pattern, zone).to_pylist())


HOSTILE = [
    *[
        "2016-12-31T23:59:60Z",
        "0000-01-01T00:00:00Z",
        "-001-01-01",
        "10000-01-01",
        "2026-02-29",
        "2024-02-29",
    ],
    *["1900-02-29", "2000-02-29T12:00", "2026-04-31", "2026-00-10", "2026-13-01", "2026-01-00"],
    *["2038-01-19T03:14:08Z", "2038-01-19 03:14:07", "9999-12-31T23:59:59.999999999", "0001-01-01"],
    *[
        "2026-01-31T13:45:00+14:00",
        "2026-01-31T13:45:00-1400",
        "2026-01-31T13:45:00+14",
        "2026-01-31T13:45+23:59",
    ],
    *[
        "2026-01-31T13:45:00+24:00",
        "2026-01-31T13:45:00+0260",
        "2026-01-31T13:45:00-00:00",
        "2026-01-31T13:45:00+2",
    ],
    *[
        "2026-01-31T24:00:00",
        "2026-01-31T23:60",
        "2026-01-31T",
        "2026-01-31 ",
        " 2026-01-31",
        "2026-01-31T13",
    ],
    *["2026-01-31T13Z", "2026-01-31T13:45:00.", "2026-01-31T13:45:00.1234567890", "2026-01-31T13:45:00,5Z"],
    *[
        "2026-01-31T13:45.5",
        "2026-01-31t13:45:00",
        "2026-01-31T13:45:00z",
        "2026-01-31T13:45:00 Z",
        "20260131",
    ],
    *[
        "2026-1-31",
        "2026-01-31T1:45:00",
        "2026/01/31",
        "٢٠٢٦-01-31",
        "2026-01-31T13:45:00\0",
        "2026-01-31\0",
        "x",
    ],
    *["", "2026-01-31T13:45:00Z trailing", "2026-01-31T13:45:00" + "0" * 80, "é" * 40, "1767225600"],
    *["2026-01-31T13:45:00.999999999-12:34", "1969-12-31T23:59:59.9999999Z", "2026-01-31T13:45:00\u2009Z"],
]
MARKS = st.sampled_from([*"0123456789", *"-:TZ+., z/", "é", "\0"])


def iso_texts() -> st.SearchStrategy[str]:
    moments = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
    ends = st.sampled_from(["", "Z", "+02:00", "-0330", "+14", "+25:00"])
    fractions = st.sampled_from(["", ".5", ".123456", ",123456789", "."])
    kinds = ["%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d"]
    valid = st.builds(
        lambda moment, kind, fraction, end: (
            moment.strftime(kind.replace("%Y", f"{moment.year:04d}"))
            + (fraction if kind.endswith("S") else "")
            + end
        ),
        moments,
        st.sampled_from(kinds),
        fractions,
        ends,
    )
    spoiled = st.builds(
        lambda text, place, mark: text[: place % len(text)] + mark + text[place % len(text) + 1 :],
        valid,
        st.integers(0, 40),
        MARKS,
    )
    return st.one_of(valid, spoiled, st.text(max_size=30), st.sampled_from(HOSTILE))


@MANY
@given(texts=st.lists(st.one_of(st.none(), iso_texts()), max_size=40), zone=st.sampled_from(ZONES))
def test_iso_times_are_those_of_datetime_and_zoneinfo(texts: list[str | None], zone: str) -> None:
    expected = [None if text is None else iso_instant(text, zone) for text in texts]
    assert timestamps(texts, zone=zone) == expected
    assert [timestamps([text], zone=zone)[0] for text in texts] == expected  # Arrow's parser, for some


def test_hostile_texts_are_no_times_or_right() -> None:
    expected = [iso_instant(text, "Europe/Berlin") for text in HOSTILE]
    assert timestamps([*HOSTILE], zone="Europe/Berlin") == expected
    assert sum(value is None for value in expected) > 30
    assert sum(value is not None for value in expected) > 12
    rejected = dict(zip(HOSTILE, expected, strict=True))
    assert rejected["2016-12-31T23:59:60Z"] is None
    assert rejected["0000-01-01T00:00:00Z"] is None
    assert rejected["2038-01-19T03:14:08Z"] == 2**31 * 10**6
    assert rejected["1969-12-31T23:59:59.9999999Z"] == -1  # rounded down


def test_the_fast_and_the_careful_parser_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(7)
    days = ["2026-01-31", "0000-01-01", "0001-01-01", "9999-12-31", "2024-02-29", "2023-02-29", "2026-1-31"]
    hours = [
        "00:00:00",
        "23:59:59",
        "24:00:00",
        "12",
        "12:30",
        "23:59:60",
        "1:2:3",
        "120000",
        "1230",
        "12:30:1",
    ]
    ends = [
        "",
        "",
        ".1",
        ".123456",
        ".1234567",
        "Z",
        "+02:00",
        "-1400",
        "+02",
        ".5Z",
        "+24:00",
        "+0260",
        "z",
        "+2",
    ]
    texts = [
        draw.choice(days)
        + (draw.choice("T ") + draw.choice(hours) + draw.choice(ends) if draw.random() < 0.9 else "")
        for _ in range(6000)
    ]
    fast = [time_text._plain_iso(pa.array([text]), "Europe/Berlin") for text in texts]
    monkeypatch.setattr(time_text, "_plain_iso", lambda text, zone: None)
    careful = timestamps([*texts], zone="Europe/Berlin")
    pairs = [
        (values[0].as_py(), slow) for values, slow in zip(fast, careful, strict=True) if values is not None
    ]
    assert len(pairs) > 100
    assert all(quick == slow for quick, slow in pairs)


PATTERNS = [
    "%d/%m/%Y %H:%M:%S",
    "%Y%m%d%H%M%S",
    "%m/%d/%y %I:%M %p",
    "%d/%b/%Y:%H:%M:%S %z",
    "%A, %d %B %Y %H:%M:%S.%f",
    "%Y.%m.%d %H h %M %% %S",
]


@MANY
@given(
    moments=st.lists(st.datetimes(datetime(1970, 1, 1), datetime(2068, 12, 30)), min_size=1, max_size=20),
    pattern=st.sampled_from(PATTERNS),
    hours=st.integers(-14, 14),
)
def test_patterns_read_what_strptime_reads(moments: list[datetime], pattern: str, hours: int) -> None:
    zone = timezone(timedelta(hours=hours))
    texts = [moment.replace(tzinfo=zone).strftime(pattern) for moment in moments]
    # strptime, too, reads one digit where a number has two, except for the year.
    unpadded = [re.sub(r"(?<![0-9])0([0-9])(?![0-9])", r"\1", text) for text in texts if "%y" not in pattern]
    expected = []
    for text in (*texts, *unpadded):
        parsed = datetime.strptime(text, pattern)
        offset = parsed.utcoffset() if parsed.tzinfo else None
        local = parsed.replace(tzinfo=None)
        expected.append(
            microseconds(local) - offset // timedelta(microseconds=1)
            if offset is not None
            else instant_of(local, "Europe/Berlin")
        )
    assert timestamps([*texts, *unpadded], pattern, "Europe/Berlin") == expected
    rest = [f"{text}{end}" for text in texts for end in (" ", "0x", "\0", "Z")]
    assert timestamps(rest, pattern) == [None] * len(rest)


def test_names_of_months_and_halves_of_the_day_have_any_case() -> None:
    texts = ["1/JAN/2026:00:00:00 +0000", "01/jan/2026:00:00:00 Z", "01/Jän/2026:00:00:00 Z", "01/Ja"]
    assert timestamps([*texts], "%d/%b/%Y:%H:%M:%S %z") == [1_767_225_600_000_000] * 2 + [None] * 2
    halves = ["1/1/26 12:00 AM", "1/1/26 12:00 pm", "1/1/26 13:00 pm", "1/1/26 0:00 am"]
    assert timestamps([*halves], "%m/%d/%y %I:%M %p") == [
        1_767_225_600_000_000,
        1_767_268_800_000_000,
        None,
        None,
    ]


def test_a_repeated_hour_is_the_first_and_a_missing_hour_moves_forward() -> None:
    hour = 3_600_000_000
    first = microseconds(datetime(2026, 10, 25, 0, 30))  # 02:30 summer time
    assert timestamps(["2026-10-25 02:30:00"], zone="Europe/Berlin") == [first]
    assert timestamps(["2026-10-25 02:30:00+01:00"], zone="Europe/Berlin") == [first + hour]
    skipped = microseconds(datetime(2026, 3, 29, 1, 30))  # 02:30 does not exist: 03:30 summer time
    assert timestamps(["2026-03-29 02:30:00", "2026-03-29 03:30:00"], zone="Europe/Berlin") == [skipped] * 2
    assert timestamps(["2026-03-29 01:59:59"], zone="Europe/Berlin") == [skipped - hour // 2 - 1_000_000]
    # Clocks skip midnight, by half an hour, or a whole day.
    assert timestamps(["2018-11-04 00:00:00"], zone="America/Sao_Paulo") == [
        microseconds(datetime(2018, 11, 4, 3))
    ]
    assert timestamps(["2026-10-04 02:10:00"], zone="Australia/Lord_Howe") == [
        instant_of(datetime(2026, 10, 4, 2, 10), "Australia/Lord_Howe")
    ]
    assert timestamps(["2011-12-30 12:00:00"], zone="Pacific/Apia") == [
        instant_of(datetime(2011, 12, 30, 12), "Pacific/Apia")
    ]


@pytest.mark.slow
def test_local_times_of_every_zone_are_those_of_zoneinfo() -> None:
    draw = random.Random(11)
    for zone in sorted(available_timezones()):
        moments = [EPOCH + timedelta(seconds=draw.randrange(-4 * 10**9, 4 * 10**9)) for _ in range(20)]
        local = np.array([microseconds(moment) for moment in moments])
        expected = [instant_of(moment, zone) for moment in moments]
        assert time_text.instants(local, zone).tolist() == expected, zone


@MANY
@given(
    zone=st.sampled_from(sorted(available_timezones())),
    year=st.integers(1900, 2099),
    seed=st.integers(0, 10**6),
)
def test_days_with_a_change_of_clocks_are_exact(zone: str, year: int, seed: int) -> None:
    start = datetime(year, 1, 1)
    offsets = [ZoneInfo(zone).utcoffset(start + timedelta(days=day)) for day in range(366)]
    changed = [day for day in range(365) if offsets[day] != offsets[day + 1]]
    draw = random.Random(seed)
    moments = [
        start + timedelta(days=day, seconds=draw.randrange(86_400), microseconds=draw.randrange(10**6))
        for day in changed
        for _ in range(20)
    ]
    local = np.array([microseconds(moment) for moment in moments], np.int64)
    assert time_text.instants(local, zone).tolist() == [instant_of(moment, zone) for moment in moments]


@MANY
@given(days=st.lists(st.dates(), max_size=20))
def test_dates_are_days_since_1970(days: list[date]) -> None:
    expected = [(day - EPOCH.date()).days for day in days]
    texts = pa.array([day.isoformat() for day in days], pa.string())
    assert time_text.dates(texts, "iso").to_pylist() == expected
    german = pa.array([f"{day.day}.{day.month}.{day.year:04d}" for day in days], pa.string())
    assert time_text.dates(german, "%d.%m.%Y").to_pylist() == expected
    wrong = pa.array([f"{day.isoformat()}T00:00:00" for day in days], pa.string())
    assert time_text.dates(wrong, "iso").to_pylist() == [None] * len(days)


def typed(texts: list[str | None], kind: str, nulls: tuple[str, ...] = ("",), **more: Any) -> tuple[Any, Any]:
    column = Column.model_validate({"name": "c", "type": kind, **more})
    values, reasons = typed_column(pa.array(texts, pa.string()), column, nulls)
    return values.to_pylist(), None if reasons is None else reasons.to_pylist()


DECIMALS = st.one_of(
    st.decimals(allow_nan=False, allow_infinity=False, places=12).map(lambda number: f"{number:f}"),
    st.integers(-(10**40), 10**40).map(str),
    st.from_regex(r"\A[+-]?[0-9]{0,20}[.]?[0-9]{0,22}\Z"),
    st.sampled_from(
        ["1e5", "NaN", "inf", " 1", "1,5", "٣", ".", "+", "0.1", "9007199254740993", "1_0", "0x1"]
    ),
)


@MANY
@given(texts=st.lists(DECIMALS, min_size=1, max_size=20))
def test_decimals_are_the_nearest_doubles(texts: list[str]) -> None:
    def nearest(text: str) -> float | None:
        digits = re.sub("[^0-9]", "", text)
        if not re.fullmatch(r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)", text) or len(digits) > 38:
            return None
        value = float(decimal.Decimal(text))
        return value if abs(value) <= FLOAT32_MAX else None

    expected = [nearest(text) if text else None for text in texts]
    values, reasons = typed([*texts], "decimal")
    assert values == expected
    wrong = [
        None if not text or value is not None else "decimal:c"
        for text, value in zip(texts, expected, strict=True)
    ]
    assert (reasons or [None] * len(texts)) == wrong


COMMAS = {
    "12,50": 12.5, "1.234,50": 1234.5, "-,5": -0.5, "7": 7.0, "1.234.567,": 1234567.0, "2,5e3": 2500.0,
    "12.5": None, "1.234": None, "12.34,5": None, "1,2,3": None, ",": None, "x,5": None, "1.2345,6": None,
}  # fmt: skip


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl"])
def test_decimal_commas_are_read_and_ambiguous_points_rejected(tmp_path: Path, form: str) -> None:
    lines = {
        "csv": ["key;n", *(f"k;{text}" for text in COMMAS)],
        "tsv": [f"k;{text}" for text in COMMAS],
        "jsonl": [json.dumps({"key": "k", "n": text}) for text in COMMAS],
    }[form]
    (tmp_path / "t.txt").write_text("\n".join(lines) + "\n")
    section = {"path": str(tmp_path / "t.txt"), "format": form, "decimal_separator": ","}
    section |= {} if form == "jsonl" else {"separator": ";"}
    columns = [{"name": "key", "type": "string"}, {"name": "n", "type": "float"}]
    table = RawTable.model_validate({**section, "columns": columns})
    reader = reader_of(form).open(table, (str(tmp_path / "t.txt"),))
    (block,) = (block for one in reader.splits() for block in reader.blocks(one, ["key"]))
    numbers = block.columns["n"].to_pylist()
    of_json = {"12.5": 12.5, "1.234": 1.234} if form == "jsonl" else {}
    expected = [*{**COMMAS, **of_json}.values()]
    assert numbers == expected
    rejected = {index for index, value in enumerate(expected) if value is None}
    assert dict(block.malformed.pairs()) == dict.fromkeys(rejected, "number:n")


def test_booleans_have_ten_texts_in_any_case() -> None:
    true, false = ["true", "T", "Yes", "y", "1", "TRUE"], ["false", "F", "nO", "N", "0"]
    assert typed([*true, *false, "", None], "bool") == ([1] * 6 + [0] * 5 + [None] * 2, None)
    wrong = ["on", "2", "1.0", " true", "truе", "ＴＲＵＥ", "yeſ"]
    assert typed([*wrong], "bool") == ([None] * len(wrong), ["boolean:c"] * len(wrong))


def test_lists_drop_empty_elements_and_an_empty_field_is_null() -> None:
    assert typed(["a|b", "a||b|", "|", "", None, "a,b", "é"], "list<string>") == (
        [["a", "b"], ["a", "b"], [], None, None, ["a,b"], ["é"]],
        None,
    )
    assert typed(["3, 4", "5", "x"], "list<string>", separator=", ") == ([["3", "4"], ["5"], ["x"]], None)
    assert typed(["3|4||", "+5|7.0", "-", "NULL", "||"], "list<int>", ("", "NULL")) == (
        [[3, 4], [5, 7], None, None, []],
        [None, None, "list:c", None, None],
    )
    big = str(2**63)
    assert typed(["1 2", f"1 {big}", "1.5", ""], "list<int>", separator=" ") == (
        [[1, 2], None, None, None],
        [None, "list:c", "list:c", None],
    )
    sliced = pa.array(["zz", "1|x", "2|3", None, "4"]).slice(1)
    values, reasons = typed_column(sliced, Column(name="c", type="list<int>"), [""])
    assert values.to_pylist() == [None, [2, 3], None, [4]]
    assert reasons is not None
    assert reasons.to_pylist() == ["list:c", None, None, None]


@pytest.mark.parametrize(
    "column, problem",
    [
        ({"type": "int", "format": "%d.%m.%Y"}, "`format` says how times are written, but the type is int"),
        ({"type": "date", "format": "%d.%m.%Y %H"}, "reads more than a date"),
        (
            {"type": "string", "separator": "|"},
            "`separator` divides the elements of a list, but the type is string",
        ),
        ({"type": "list<int>", "separator": "1"}, "without letters, digits"),
        ({"type": "list<int>", "separator": ""}, "has 1 to 8 characters"),
        ({"type": "timestamp", "format": "%d.%m."}, "the format has no year"),
        ({"type": "timestamp", "format": "%Y-%m-%d %Q"}, "'%Q'.*are not known"),
        ({"type": "timestamp", "format": "%Y-%m-%d %"}, "are not known|percent sign"),
        ({"type": "timestamp", "format": "%Y-%m-%d %y"}, "contains the year more than once"),
        ({"type": "timestamp", "format": "%Y-%m-%d %I"}, "must be used together"),
        ({"type": "timestamp", "format": "%Y年%m%d"}, "only printable ASCII"),
        ({"type": "timestamp", "format": "%H:%M"}, "the format has no year"),
        ({"type": "time", "format": "%d.%m.%Y %H"}, "reads more than a time of day"),
        ({"type": "time", "format": "%M:%S"}, "the format has no hour"),
        ({"type": "datetime"}, "type"),
    ],
)
def test_settings_that_mean_nothing_are_refused(column: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Column.model_validate({"name": "c", **column})


@pytest.mark.parametrize(
    "table, problem",
    [
        ({"format": "parquet", "separator": ","}, "separator divides the fields of text files"),
        (
            {"format": "parquet", "null_values": ["NULL"]},
            "null_values are strings that stand for null in text files",
        ),
        ({"format": "orc", "decimal_separator": ","}, "whose files do not store numbers as text"),
        ({"format": "tsv", "separator": ",", "decimal_separator": ","}, "are both a comma"),
        ({"format": "tsv", "path": "a/{date:%Y%j}.tsv"}, "is not a notation of a day: write %Y, %m and %d"),
        ({"format": "tsv", "path": "a/{date:%Y}/{date:%m}.tsv"}, "contains a date without %d"),
        ({"format": "tsv", "time_zone": "Berlin"}, "'Berlin' is not the name of a time zone"),
        ({"format": "tsv", "time_zone": "../Europe/Berlin"}, "is not the name of a time zone"),
        ({"format": "tsv", "time_zone": "localtime"}, "is not the name of a time zone"),
        ({"format": "tsv", "time_zone": "right/UTC"}, "is not the name of a time zone"),
        ({"format": "tsv", "time_zone": ""}, "is not the name of a time zone"),
        (
            {"format": "tsv", "columns": [{"name": "c", "type": "list<int>", "separator": "\t"}]},
            "contains the separator of the fields",
        ),
    ],
)
def test_tables_refuse_what_their_format_cannot_mean(table: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        RawTable.model_validate({"path": "x", "columns": [{"name": "c", "type": "int"}], **table})


@pytest.mark.parametrize(
    "section, problem",
    [
        (
            {"label": {"column": "genres"}},
            "log.label names the column 'genres', which has the type list<string>",
        ),
        ({"label": {"column": "at"}}, "log.label names the column 'at', which has the type timestamp"),
        ({"event_time": {"column": "member"}}, "log.event_time names the column 'member', .* the type bool"),
        (
            {"event_time": {"column": "at", "time_of_day": "born"}},
            "log.event_time.column names the column 'at', which has the type timestamp: give it the type date",
        ),
        (
            {"event_time": {"column": "born", "time_of_day": "member"}},
            "log.event_time.time_of_day names the column 'member', which has the type bool",
        ),
    ],
)
def test_labels_and_times_have_types_that_can_mean_them(
    tmp_path: Path, section: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        typed_log(tmp_path, **section)


def test_every_format_has_a_description() -> None:
    key = RawTable.model_json_schema()["properties"]["format"]
    assert key["enum"] == [*READER.built_in()]
    assert all(f"`{name}`: " in key["description"] for name in READER.built_in())


# A log with every type ------------------------------------------------------------------------------------


def no_session() -> SparkSession:
    raise AssertionError("no session may start")


COLUMNS: list[dict[str, Any]] = [
    {"name": "clicked", "type": "bool"},
    {"name": "at", "type": "timestamp"},
    {"name": "born", "type": "date", "format": "%d.%m.%Y"},
    {"name": "price", "type": "decimal"},
    {"name": "member", "type": "bool"},
    {"name": "genres", "type": "list<string>"},
    {"name": "codes", "type": "list<int>", "separator": " "},
    {"name": "user", "type": "string"},
    {"name": "item", "type": "string"},
]
DAYS = ["2026-03-28", "2026-03-29", "2026-03-30", "2026-03-31"]
CHAIN = [
    {"columns": ["born", "price"], "kind": "dense", "ops": [{"fill": {"value": 0}}, "normalize"]},
    {"columns": ["member"], "kind": "categorical", "ops": ["categorify"]},
    {"columns": ["user", "item"], "kind": "categorical", "ops": [{"categorify": {"min_count": 1}}]},
]
SPLIT = {"by": "day", "train_days": 2, "validation_days": 1, "test_days": 1, "min_train_days": 1}


def typed_log(folder: Path, form: str = "csv", **log: Any) -> Config:
    section = {
        "path": "{data}/dt={date}/*",
        "format": form,
        "columns": COLUMNS,
        "label": {"column": "clicked"},
        "event_time": {"column": "at"},
        "time_zone": "Europe/Berlin",
        **log,
    }
    changes = {
        "log": section,
        "features": [*CHAIN, {"columns": ["genres", "codes"], "kind": "multi_hot", "ops": ["categorify"]}],
        "scopes": {"user": ["user"], "item": ["item"]},
        "split": SPLIT,
    }
    return cases.write_config(folder, changes)


def log_lines(day: str, rows: int, seed: int) -> list[str]:
    """Rows of one local day, some of them with values that are not of the declared types."""
    draw = random.Random(seed)
    start = datetime.fromisoformat(day)
    lines = []
    for number in range(rows):
        moment = start + timedelta(seconds=draw.randrange(86_400), milliseconds=draw.randrange(1000))
        fields = [
            draw.choice(["true", "false", "T", "no", "1", "0"]),
            moment.isoformat(sep=draw.choice(" T")),
            draw.choice(["1.2.1980", "29.02.2000", "31.12.1969", ""]),
            draw.choice(["19.99", "0.1", "-3", ""]),
            draw.choice(["yes", "NO", ""]),
            draw.choice(["drama|war", "drama", "|", "", "a||b"]),
            draw.choice(["1 2 3", "7", "", "007 +7"]),
            f"u{draw.randrange(9)}",
            f"i{draw.randrange(7)}",
        ]
        spoiled = {
            3: (0, "maybe"),
            5: (1, "yesterday"),
            7: (2, "2000-01-01"),
            9: (3, "1e3"),
            11: (4, "on"),
            13: (6, "1 x"),
        }
        if number in spoiled:
            place, text = spoiled[number]
            fields[place] = text
        lines.append("\t".join(fields))
    return lines


def write_log(folder: Path, form: str) -> None:
    for seed, day in enumerate(DAYS):
        lines = log_lines(day, 80, seed)
        if form == "csv":
            names = [column["name"] for column in COLUMNS]
            lines = [",".join(fields) for fields in (names, *(line.split("\t") for line in lines))]
        (folder / f"raw/dt={day}").mkdir(parents=True)
        (folder / f"raw/dt={day}/a.{form}").write_text(
            "".join(f"{line}\n" for line in lines), encoding="utf-8"
        )


def of_the_passes(config: Config, raw: RawFiles) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    layout = file_layout(plan_of(config), raw.paths)
    [path] = raw.paths
    block = parse_text(
        Path(path).read_bytes(),
        layout,
        columns_to_parse(layout, config.log.names),
        header=config.log.format == "csv",
    )
    columns = {name: plain(array).to_pylist() for name, array in block.columns.items()}
    return (
        [
            {"_line_number": int(line) + 1, **{name: values[row] for name, values in columns.items()}}
            for row, line in enumerate(block.row_lines)
        ],
        [(line + 1, reason) for line, reason in block.rejected.pairs()],
    )


@pytest.mark.parametrize("form", ["csv", "tsv"])
def test_both_roads_read_the_same_rows_of_every_type(spark: SparkSession, tmp_path: Path, form: str) -> None:
    write_log(tmp_path, form)
    config = typed_log(tmp_path, form)
    reasons = set()
    for day in DAYS:
        raw = require_raw(config, config.log, day)
        good, bad = of_the_passes(config, raw)
        rows = read_log(spark, config, raw).orderBy("row_id").collect()
        names = ["_line_number", "label", "user_key", "item_key", "event_time", *config.log.names]
        assert [{name: row[name] for name in names} for row in rows if row["_reason"] is None] == [
            {name: row[name] for name in names} for row in good
        ]
        assert [(row["_line_number"], row["_reason"]) for row in rows if row["_reason"]] == bad
        reasons |= {reason for _, reason in bad}
        assert len(good) == 74
        bounds = bounds_of_day(config, day)
        assert bounds is not None
        times = np.array([row["event_time"] for row in good])
        assert count_misdated(times, bounds).rows == 0
        assert all(row["event_time"] == row["at"] for row in good)
    kinds = ["boolean:clicked", "boolean:member", "date:born", "decimal:price", "list:codes", "timestamp:at"]
    assert sorted(reasons) == kinds


def test_values_of_every_type_are_what_operators_see(tmp_path: Path) -> None:
    config = typed_log(tmp_path, "tsv")
    layout = file_layout(plan_of(config), ("a.tsv",))
    text = "yes\t2026-03-29 03:00:00\t2.1.1970\t0.1\tn\tb|a\t1 2\tu\ti\n"
    block = parse_text(text.encode(), layout, columns_to_parse(layout, config.log.names), header=False)
    values = {name: plain(array).to_pylist()[0] for name, array in block.columns.items()}
    assert values == {
        "clicked": 1,
        "at": microseconds(datetime(2026, 3, 29, 1)),
        "born": 1,
        "price": 0.1,
        "member": 0,
        "genres": ["b", "a"],
        "codes": [1, 2],
        "user": "u",
        "item": "i",
        "label": 1.0,
        "user_key": "u",
        "item_key": "i",
        "event_time": microseconds(datetime(2026, 3, 29, 1)),
    }
    kinds = {column.name: operator_type(column) for column in config.log.columns}
    assert kinds == {
        "clicked": "int",
        "at": "int",
        "born": "int",
        "price": "float",
        "member": "int",
        "genres": "strings",
        "codes": "ints",
        "user": "string",
        "item": "string",
    }
    assert config.log.types == kinds


def test_an_optional_column_of_lists_is_null_where_files_lack_it(tmp_path: Path) -> None:
    columns = [*COLUMNS, {"name": "tags", "type": "list<string>", "optional": True}]
    columns.append({"name": "seen", "type": "timestamp", "optional": True})
    config = typed_log(tmp_path, columns=columns)
    write_log(tmp_path, "csv")
    path = str(tmp_path / f"raw/dt={DAYS[0]}/a.csv")
    reader = TextReader.open(config.log, (path,))
    [block] = reader.blocks(reader.splits()[0], config.log.names)
    assert block.columns["tags"].type == pa.list_(pa.string())
    assert block.columns["tags"].null_count == len(block.row_lines) == 80
    assert plain(block.columns["seen"]).null_count == 80


def test_saved_blocks_keep_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    config = typed_log(tmp_path)
    write_log(tmp_path, "csv")
    raw = require_raw(config, config.log, DAYS[0])
    layout = file_layout(plan_of(config), raw.paths)
    wanted = columns_to_parse(layout, config.log.names)
    block = parse_text(Path(raw.paths[0]).read_bytes(), layout, wanted, header=True)
    parse_block.save("x", block)
    loaded = parse_block.load(parse_block.SavedBlock("x"), {"genres", "codes"})
    assert loaded is not None
    assert loaded.columns["genres"].to_pylist() == block.columns["genres"].to_pylist()
    assert loaded.columns["codes"].to_pylist() == block.columns["codes"].to_pylist()


def old_log(folder: Path) -> Config:
    """The log of `write_log` with the types of earlier releases: integers, floats and texts."""
    kinds = {"clicked": "int", "at": "int", "born": "int", "price": "float", "member": "int"}
    columns = [{"name": column["name"], "type": kinds.get(column["name"], "string")} for column in COLUMNS]
    ops = [{"split_list": {"separator": "|"}}, "categorify"]
    changes = {
        "log": {
            "path": "{data}/dt={date}/*",
            "format": "tsv",
            "columns": columns,
            "label": {"column": "clicked"},
            "event_time": {"column": "at", "unit": "us"},
        },
        "features": [
            *CHAIN,
            {"columns": ["genres"], "kind": "multi_hot", "ops": ops},
            {
                "columns": ["codes"],
                "kind": "multi_hot",
                "ops": [{"split_list": {"separator": " "}}, "categorify"],
            },
        ],
        "scopes": {"user": ["user"], "item": ["item"]},
        "split": SPLIT,
        "quality": {"max_misdated_share": 1.0},
    }
    return cases.write_config(folder, changes)


def features_of(config: Config, built: BuildResult) -> dict[str, list[dict[str, Any]]]:
    lake = LakePaths(config.lake)
    tables = {}
    for dt in built.features:
        partition = lake.features(built.workflow.version).partition(dt)
        files = [
            pq.read_table(path, partitioning=None) for path in data_files(partition, read_manifest(partition))
        ]
        tables[dt] = pa.concat_tables(files).drop_columns(["row_id"]).to_pylist()
    return tables


def test_features_are_those_of_the_same_log_in_integers_and_texts(
    spark: SparkSession, tmp_path: Path
) -> None:
    typed_folder, old_folder = tmp_path / "typed", tmp_path / "old"
    for folder in (typed_folder, old_folder):
        folder.mkdir()
    write_log(typed_folder, "tsv")
    config = typed_log(typed_folder, "tsv")
    for day in DAYS:
        good, _ = of_the_passes(config, require_raw(config, config.log, day))
        texts = [
            "\t".join(
                ""
                if row[name] is None
                else "|".join(row[name])
                if name == "genres"
                else " ".join(map(str, row[name]))
                if name == "codes"
                else str(row[name])
                for name in config.log.names
            )
            for row in good
        ]
        # A list without elements is not null, which only its separator shows.
        texts = [
            re.sub(r"\t\t(?=[^\t]*\t[^\t]*\t[^\t]*$)", "\t|\t", text) if row["genres"] == [] else text
            for text, row in zip(texts, good, strict=True)
        ]
        (old_folder / f"raw/dt={day}").mkdir(parents=True)
        (old_folder / f"raw/dt={day}/a.tsv").write_text(
            "".join(f"{text}\n" for text in texts), encoding="utf-8"
        )
    reference = old_log(old_folder)
    ours = features_of(config, cases.run_build(spark, config, DAYS[-1]))
    theirs = features_of(reference, cases.run_build(spark, reference, DAYS[-1]))

    def in_order(rows: list[dict[str, Any]]) -> list[str]:
        return sorted(str(row) for row in rows)

    assert {dt: in_order(rows) for dt, rows in ours.items()} == {
        dt: in_order(rows) for dt, rows in theirs.items()
    }
    assert {len(row["genres"]) for row in ours[DAYS[0]] if row["genres"] is not None} == {0, 1, 2}
    assert len(ours) == 4


def test_the_engine_sql_computes_the_same_features(spark: SparkSession, tmp_path: Path) -> None:
    """Tasks parse the text, so that the engine knows every type."""
    write_log(tmp_path, "csv")
    found = {}
    for engine in ("arrow", "sql"):
        config = typed_log(tmp_path)
        config = config.model_copy(
            update={
                "workflow": config.workflow.model_copy(update={"engine": engine}),
                "lake": str(tmp_path / engine),
            }
        )
        of_days = features_of(config, cases.run_build(spark, config, DAYS[-1]))
        found[engine] = {dt: sorted(map(str, rows)) for dt, rows in of_days.items()}
    assert found["sql"] == found["arrow"]
    assert len(found["sql"]) == 4


def test_a_table_of_items_may_have_lists_and_times(spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path, "csv")
    (tmp_path / "raw/items.csv").write_text("item;kinds;since\ni1;a|b;29.3.2026 02:30\ni2;;1.7.2026 00:00\n")
    items = {
        "path": "{data}/items.csv",
        "format": "csv",
        "separator": ";",
        "time_zone": "Europe/Berlin",
        "columns": [
            {"name": "item", "type": "string"},
            {"name": "kinds", "type": "list<string>"},
            {"name": "since", "type": "timestamp", "format": "%d.%m.%Y %H:%M"},
        ],
    }
    config = typed_log(tmp_path)
    config = config.model_copy(update={"items": ItemsTable.model_validate(items)})
    assert config.items is not None
    rows = read_attributes(spark, config, config.items, "item", "items", DAYS[0], "item").orderBy("item")
    assert [tuple(row) for row in rows.collect()] == [
        ("i1", ["a", "b"], microseconds(datetime(2026, 3, 29, 1, 30))),
        ("i2", None, microseconds(datetime(2026, 6, 30, 22))),
    ]
    (tmp_path / "raw/items.csv").write_text("item;kinds;since\ni1;a|b;29.3.2026 02:30\ni2;;yesterday\n")
    problem = r"items.csv: 1 row does not parse; the first is line 3: since has the value 'yesterday'"
    with pytest.raises(DataError, match=problem) as caught:
        read_attributes(spark, config, config.items, "item", "items", DAYS[0], "item")
    assert "correct `format` of since in items.columns" in caught.value.remedy


# Times of a log -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ZONES)
def test_the_rule_of_dates(zone: str) -> None:
    rule = time_rule(EventTime(column="x"), "date", zone)
    days = [
        0,
        1,
        -1,
        20_541,
        20_540,
        17_839,
        17_840,
        20_730,
        time_text.FIRST_DAY,
        time_text.LAST_DAY,
        10**7,
        None,
    ]
    values = pa.array(days, pa.int64())
    missing, beyond = ([bool(value) for value in check.rejects(values).to_pylist()] for check in rule.checks)
    assert missing == [day is None for day in days]
    last = time_text.LAST_DAY
    assert beyond == [day is not None and not time_text.FIRST_DAY <= day <= last for day in days]
    assert any(beyond)
    modern = [place for place, day in enumerate(days) if day is not None and abs(day) < 10**5]
    computed = rule.compute(values).to_pylist()
    expected = [instant_of(EPOCH + timedelta(days=days[place] or 0), zone) for place in modern]
    assert [computed[place] for place in modern] == expected


CLOCKS = ["iso", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M:%S %p", "%H%M%S", "%H.%M.%S"]


@MANY
@given(times=st.lists(st.times(), max_size=20), pattern=st.sampled_from(CLOCKS))
def test_times_of_day_are_those_of_strptime(times: list[time], pattern: str) -> None:
    texts = [one.isoformat() if pattern == "iso" else one.strftime(pattern) for one in times]
    read = time_text.times_of_day(pa.array([*texts, None], pa.string()), pattern).to_pylist()
    parsed = [
        time.fromisoformat(text) if pattern == "iso" else datetime.strptime(text, pattern).time()
        for text in texts
    ]
    assert read == [*(microseconds(datetime.combine(EPOCH, one)) for one in parsed), None]


def test_other_texts_are_no_times_of_day() -> None:
    texts = ["24:00", "9:05", "09:60", "09:05:60", "09:05Z", "2026-01-31T09:05", "0905", "", "é"]
    assert time_text.times_of_day(pa.array(texts), "iso").null_count == len(texts)
    assert time_text.times_of_day(pa.array(["9:05", "09:05 "]), "%H:%M").to_pylist() == [32_700_000_000, None]


def clock_log(folder: Path, form: str, zone: str, rows: pd.DataFrame) -> pa.Table:
    """Writes a log with the columns `day` and `clock` of `rows`, and returns the rows that are read."""
    path = folder / f"raw/dt={DAYS[0]}/a.{form}"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = rows.assign(user="u", item="i")[["day", "clock", "user", "item"]]
    stored = pa.table({**{name: pa.array(rows[name], pa.string()) for name in ("user", "item")}})
    stored = stored.append_column("day", pa.array(rows["day"], pa.date32()))
    stored = stored.append_column("clock", pa.array(rows["clock"], pa.time64("us")))
    texts = rows.assign(
        day=[f"{one:%d.%m.%Y}" for one in rows["day"]],
        clock=["" if one is None else f"{one:%I:%M:%S.%f %p}" for one in rows["clock"]],
    )
    if form in ("csv", "tsv"):
        texts.to_csv(path, index=False, header=form == "csv", sep="," if form == "csv" else "\t")
    elif form == "jsonl":
        texts.to_json(path, orient="records", lines=True)
    elif form == "parquet":
        pq.write_table(stored, path)
    elif form == "orc":  # it has no type for times of day
        as_texts = pa.array([one and one.isoformat() for one in rows["clock"]], pa.string())
        orc.write_table(stored.drop(["clock"]).append_column("clock", as_texts), path)
    else:
        kinds: dict[str, Any] = {
            "day": {"type": "int", "logicalType": "date"},
            "user": "string",
            "item": "string",
        }
        kinds["clock"] = ["null", {"type": "long", "logicalType": "time-micros"}]
        schema = {"type": "record", "name": "r", "fields": [{"name": k, "type": v} for k, v in kinds.items()]}
        with path.open("wb") as file:
            fastavro.writer(file, schema, stored.to_pylist())
    is_text = form in ("csv", "tsv", "jsonl")
    columns = [
        {"name": "day", "type": "date", **({"format": "%d.%m.%Y"} if is_text else {})},
        {"name": "clock", "type": "time", **({"format": "%I:%M:%S.%f %p"} if is_text else {})},
        {"name": "user", "type": "string"},
        {"name": "item", "type": "string"},
    ]
    log = {
        "path": "{data}/dt={date}/*",
        "format": form,
        "columns": columns,
        "time_zone": zone,
        "event_time": {"column": "day", "time_of_day": "clock"},
        "label": {},
    }
    features = [{"columns": ["user"], "kind": "categorical", "ops": ["categorify"]}]
    config = cases.write_config(
        folder, {"log": log, "features": features, "scopes": {}, "keys": {"user": "user", "item": "item"}}
    )
    return rows_of_log(config, require_raw(config, config.log, DAYS[0]))


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet", "orc", "avro"])
@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(
    moments=st.lists(
        st.one_of(
            st.datetimes(datetime(1990, 1, 1), datetime(2037, 1, 1)),
            st.datetimes(datetime(2026, 3, 29, 1), datetime(2026, 3, 29, 4)),  # clocks go forward in Berlin
            st.datetimes(datetime(2026, 10, 25, 1), datetime(2026, 10, 25, 4)),  # clocks go back
        ),
        min_size=1,
        max_size=20,
    ),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu"]),
)
def test_dates_and_times_of_day_in_two_columns_are_the_times_of_pandas(
    tmp_path_factory: pytest.TempPathFactory, form: str, moments: list[datetime], zone: str
) -> None:
    rows = pd.DataFrame({"day": [one.date() for one in moments], "clock": [one.time() for one in moments]})
    read = clock_log(tmp_path_factory.mktemp("clock"), form, zone, rows)
    local = pd.to_datetime(
        rows["day"].astype(str) + " " + rows["clock"].map(time.isoformat), format="ISO8601"
    )
    first = np.ones(len(rows), bool)  # the first of two instants is the one of summer time
    expected = local.dt.tz_localize(zone, ambiguous=first, nonexistent=pd.Timedelta("1h"))
    micros = expected.dt.tz_convert("UTC").dt.tz_localize(None).astype("datetime64[us]").astype(np.int64)
    assert read["event_time"].to_pylist() == micros.tolist()
    assert read["_reason"].null_count == len(rows)


def test_rows_without_a_time_of_day_are_rejected(tmp_path: Path) -> None:
    rows = pd.DataFrame({"day": [date(2026, 1, 1)] * 3, "clock": [time(9, 5), None, time(9, 6)]})
    assert clock_log(tmp_path, "jsonl", "UTC", rows)["_reason"].to_pylist() == [
        None,
        "missing_time:clock",
        None,
    ]
    path = tmp_path / f"raw/dt={DAYS[0]}/a.jsonl"
    path.write_text(path.read_text().replace("09:06:00.000000 AM", "nine"))
    config = load_config(str(tmp_path / "config.yaml"))
    raw = require_raw(config, config.log, DAYS[0])
    assert rows_of_log(config, raw)["_reason"].to_pylist() == [None, "missing_time:clock", "time:clock"]
    row = RejectedLine(str(path), 3, "time:clock", path.read_text().splitlines()[2])
    assert "clock has the value 'nine', which is not a time of day of the format" in description(
        config.log, row
    )
    assert remedy(config.log, "log", row).startswith("correct `format` of clock in log.columns")


@pytest.mark.parametrize(
    "zone, day, hours",
    [
        ("Europe/Berlin", "2026-03-29", 23),
        ("Europe/Berlin", "2026-10-25", 25),
        ("Europe/Berlin", "2026-03-30", 24),
        ("America/Sao_Paulo", "2018-11-04", 23),
        ("UTC", "2026-03-29", 24),
    ],
)
def test_a_day_is_that_of_the_time_zone(tmp_path: Path, zone: str, day: str, hours: int) -> None:
    config = typed_log(tmp_path, time_zone=zone)
    bounds = bounds_of_day(config, day)
    assert bounds is not None
    midnight = datetime.fromisoformat(day)
    assert bounds[0] == instant_of(midnight, zone)
    assert bounds[1] - bounds[0] == hours * 3_600_000_000
    inside = np.array([bounds[0], bounds[1] - 1])
    assert count_misdated(inside, bounds).rows == 0
    assert count_misdated(np.array([bounds[0] - 1, bounds[1]]), bounds).rows == 2


def test_a_log_of_another_time_zone_is_refused_and_the_error_names_the_zone(tmp_path: Path) -> None:
    write_log(tmp_path, "csv")
    config = typed_log(tmp_path, time_zone="Pacific/Auckland")
    strict = config.quality.model_copy(update={"max_misdated_share": 0.2})
    config = config.model_copy(update={"quality": strict})
    for day in DAYS:  # times that say that they are UTC
        path = tmp_path / f"raw/dt={day}/a.csv"
        path.write_text(re.sub(r"(:[0-9.]+),", r"\1Z,", path.read_text()))
    with pytest.raises(DataError, match="event_time outside of this day in Pacific/Auckland") as caught:
        cases.run_build(TasksHere(1, no_session), config, DAYS[-1])
    assert "correct log.time_zone, which is Pacific/Auckland" in caught.value.remedy


@pytest.mark.parametrize(
    "place, value, problem, remedy",
    [
        (
            "at",
            "31/01/2026",
            "at has the value '31/01/2026', which is not a timestamp in ISO 8601",
            "set `format` of at",
        ),
        ("born", "2000-01-01", "which is not a date of the format '%d.%m.%Y'", "correct `format` of born"),
        (
            "price",
            "1e3",
            "which is not a decimal of at most 38 digits",
            "give price the type float or string",
        ),
        ("member", "on", "which is not one of true, t, yes", "give member the type string"),
        (
            "codes",
            "1 x",
            "which has an element that is not an integer",
            "the type list<string>, or correct its",
        ),
    ],
)
def test_errors_say_what_is_wrong_with_a_value(
    tmp_path: Path, place: str, value: str, problem: str, remedy: str
) -> None:
    names = [column["name"] for column in COLUMNS]
    for day in DAYS:
        row = dict(zip(names, log_lines(day, 1, 1)[0].split("\t"), strict=True)) | {place: value}
        (tmp_path / f"raw/dt={day}").mkdir(parents=True)
        lines = [",".join(names), ",".join(row.values())]
        (tmp_path / f"raw/dt={day}/a.csv").write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(DataError) as caught:
        cases.run_build(TasksHere(1, no_session), typed_log(tmp_path), DAYS[-1])
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


# Other formats --------------------------------------------------------------------------------------------


def test_parquet_files_of_every_type_are_read(tmp_path: Path) -> None:
    moments = [datetime(2026, 3, 28, 12, 0, 0, 5), datetime(2026, 3, 28, 1), None]
    table = pa.table(
        {
            "clicked": pa.array([True, False, True]),
            "at": pa.array(moments, pa.timestamp("us")),
            "born": pa.array([date(1970, 1, 2), None, date(1969, 12, 31)]),
            "price": pa.array([decimal.Decimal("0.10"), decimal.Decimal("-3.00"), None]),
            "member": pa.array([1, 0, 2], pa.int8()),
            "genres": pa.array([["a", "", None, "b"], None, []], pa.list_(pa.string())),
            "codes": pa.array([[1, None, 3], None, []], pa.list_(pa.int32())),
            "user": ["u", "u", "v"],
            "item": ["i", "j", "i"],
        }
    )
    folder = tmp_path / f"raw/dt={DAYS[0]}"
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "a.parquet")
    columns = [{**column, "separator": None, "format": "iso"} for column in COLUMNS]
    config = typed_log(tmp_path, "parquet", columns=columns)
    raw = require_raw(config, config.log, DAYS[0])
    rows = rows_of_log(config, raw).to_pylist()
    wanted = ["clicked", "at", "born", "price", "member", "genres", "codes", "event_time", "_reason"]
    noon = instant_of(datetime(2026, 3, 28, 12, 0, 0, 5), "Europe/Berlin")
    night = instant_of(datetime(2026, 3, 28, 1), "Europe/Berlin")
    assert [[row[name] for name in wanted] for row in rows] == [
        [1, noon, 1, 0.1, 1, ["a", "b"], [1, 3], noon, None],
        [0, night, None, -3.0, 0, None, None, night, None],
        [None] * 8 + ["boolean:member"],
    ]
    read = pq.read_table(folder / "a.parquet")
    for column in config.log.columns[:7]:
        stored = read.column(column.name).combine_chunks()
        assert can_hold(column, stored.type)
        values, reasons = stored_values(stored, column, "Europe/Berlin")
        good = [row[column.name] for row in rows[:2]]  # the columns of a rejected row are null
        assert values.to_pylist()[:2] == good, column.name
        assert (reasons is None) == (column.name != "member")
        assert str(values.type) == {"genres": "list<item: string>", "codes": "list<item: int64>"}.get(
            column.name, "double" if column.name == "price" else "int64"
        )


@pytest.mark.parametrize(
    "kind, values, expected",
    [
        ("timestamp", pa.array([-1, 1999, None], pa.timestamp("ns", "UTC")), [-1, 1, None]),
        ("timestamp", pa.array([2**60, -1], pa.timestamp("ms", "UTC")), [None, -1000]),
        ("timestamp", pa.array([2**62, 0], pa.timestamp("us")), [None, -3_600_000_000]),
        ("timestamp", pa.array(["1970-01-01", "x"]), [-3_600_000_000, None]),
        ("timestamp", pa.array(["1970-01-01T00:00Z"] * 2).dictionary_encode(), [0, 0]),
        ("time", pa.array([1_999, -1, None], pa.time64("ns")), [1, None, None]),
        ("time", pa.array([49_500_000, 86_400_000], pa.time32("ms")), [49_500_000_000, None]),
        ("time", pa.array(["13:45", "24:00"]), [49_500_000_000, None]),
        ("bool", pa.array([1.0, 0.5, math.nan]), [1, None, None]),
        ("bool", pa.array(["yes", "?"]), [1, None]),
        ("date", pa.array([date(1969, 12, 31)]), [-1]),
        ("date", pa.array([86_400_000], pa.date64()), [1]),
        ("decimal", pa.array([decimal.Decimal("0.3")], pa.decimal128(38, 37)), [0.3]),
        ("decimal", pa.array([True, None]), [1.0, None]),
        ("list<string>", pa.array([["a", ""], None], pa.large_list(pa.large_string())), [["a"], None]),
        ("list<string>", pa.array(["a|b"], pa.large_string()), [["a", "b"]]),
        ("list<int>", pa.nulls(2), [None, None]),
    ],
)
def test_stored_values_have_the_declared_type(kind: Any, values: pa.Array, expected: list[Any]) -> None:
    column = Column(name="c", type=kind)
    assert can_hold(column, values.type)
    assert stored_values(values, column, "Europe/Berlin")[0].to_pylist() == expected


@pytest.mark.parametrize(
    "kind, stored",
    [
        ("timestamp", pa.int64()),
        ("timestamp", pa.date32()),
        ("date", pa.timestamp("us")),
        ("time", pa.timestamp("us")),
        ("bool", pa.date32()),
        ("list<int>", pa.list_(pa.uint64())),
        ("list<int>", pa.list_(pa.string())),
        ("list<string>", pa.list_(pa.int64())),
    ],
)
def test_other_stored_types_are_not_held(kind: Any, stored: pa.DataType) -> None:
    assert not can_hold(Column(name="c", type=kind), stored)


@pytest.mark.parametrize(
    "name, values, problem, value",
    [
        ("at", pa.array(["1970-01-01T02:00:00+01:00"]), None, 3_600_000_000),
        ("born", pa.array([1]), "int64, which cannot be read as `type: date`", None),
        ("born", pa.array([EPOCH], pa.timestamp("us")), None, 0),
        ("member", pa.array(["yes"]), None, 1),
        ("genres", pa.array([[1]]), None, ["1"]),
        ("codes", pa.array([["x"]]), "cannot be read as `type: list<int>`", None),
        ("codes", pa.array([1]), "int64, which cannot be read as `type: list<int>`", None),
    ],
)
def test_parquet_types_are_read_as_the_declared_type_or_refused(
    tmp_path: Path, name: str, values: pa.Array, problem: str | None, value: Any
) -> None:
    columns = [
        {"name": "label", "type": "int"},
        {"name": "user", "type": "string"},
        {"name": "item", "type": "string"},
    ]
    columns.append(next(dict(column) for column in COLUMNS if column["name"] == name) | {"format": "iso"})
    folder = tmp_path / "raw/dt=2026-01-01"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"label": [1], "user": ["u"], "item": ["i"], name: values}), folder / "a.parquet")
    log = {
        "path": "{data}/dt={date}/*",
        "format": "parquet",
        "columns": columns,
        "label": {"column": "label"},
    }
    features = [{"columns": ["user"], "kind": "categorical", "ops": ["categorify"]}]
    config = cases.write_config(tmp_path, {"log": log, "features": features, "scopes": {}})
    raw = require_raw(config, config.log, "2026-01-01")
    if problem is None:
        assert rows_of_log(config, raw)[name].to_pylist() == [value]
        return
    with pytest.raises((ConfigError, DataError), match=problem):
        rows_of_log(config, raw)


def test_frames_of_callers_may_have_times_and_dates() -> None:
    moment = datetime(2026, 1, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    rows = pa.table(
        {
            "at": pa.array([moment], pa.timestamp("ns", "Europe/Berlin")),
            "born": pa.array([date(1970, 1, 3)]),
            "naive": pa.array([EPOCH], pa.timestamp("us")),
            "clock": pa.array([time(13, 45)]),
        }
    )
    types: dict[str, Any] = {"at": "int", "born": "int", "clock": "int"}
    assert column_types(rows, [*types], {}) == types
    values = raw_values(rows, types)
    assert values["clock"].to_pylist() == [49_500_000_000]
    assert values["at"].to_pylist() == [1_767_265_200_000_000]
    assert values["born"].to_pylist() == [2]
    with pytest.raises(DataError, match="without a time zone"):
        raw_values(rows, {"naive": "int"})


# Stored days ----------------------------------------------------------------------------------------------


def digest_log(folder: Path, column: dict[str, Any], **log: Any) -> str:
    columns = [
        {"name": "label", "type": "int"},
        {"name": "user", "type": "string"},
        {"name": "item", "type": "string"},
        {"name": "c", "type": "string", **column},
    ]
    section = {"path": "{data}/*", "format": "csv", "columns": columns, "label": {"column": "label"}, **log}
    features = [{"columns": ["user"], "kind": "categorical", "ops": ["categorify"]}]
    changes = {"log": section, "features": features, "scopes": {}, "split": {"by": "fraction"}}
    return layout_digest(cases.write_config(folder, changes))


def test_days_of_earlier_releases_stay_valid(tmp_path: Path) -> None:
    # The digests that the release before computed of these two configurations.
    assert digest_log(tmp_path, {}) == "dbeedfb43fa83dba"
    timed = digest_log(tmp_path, {"type": "int", "source": "time"}, event_time={"column": "c", "unit": "ms"})
    assert timed == "1c50c488a72bcedd"
    assert digest_log(tmp_path, {}, time_zone="UTC") == digest_log(tmp_path, {})


def test_each_new_setting_makes_stored_days_obsolete(tmp_path: Path) -> None:
    settings_of_columns: list[Callable[[], str]] = [
        lambda: digest_log(tmp_path, {}),
        lambda: digest_log(tmp_path, {}, time_zone="Europe/Berlin"),
        lambda: digest_log(tmp_path, {}, decimal_separator=","),
        lambda: digest_log(tmp_path, {"type": "timestamp"}),
        lambda: digest_log(tmp_path, {"type": "timestamp", "format": "%d.%m.%Y"}),
        lambda: digest_log(tmp_path, {"type": "date", "format": "%d.%m.%Y"}),
        lambda: digest_log(tmp_path, {"type": "list<string>"}),
        lambda: digest_log(tmp_path, {"type": "list<string>", "separator": ";"}),
    ]
    digests = [digest() for digest in settings_of_columns]
    assert len(set(digests)) == len(digests)
    written_out = digest_log(tmp_path, {"type": "list<string>", "separator": "|"})
    assert written_out == digest_log(tmp_path, {"type": "list<string>"})
