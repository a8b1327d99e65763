"""The format, the separator, the header and the days of files that nobody has described."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from conf.errors import ConfigError, DataError
from conf.names import with_date
from etl.inference.sample import TableSample, read_sample
from etl.inference.table_files import find_table
from etl.raw.files import find_files

ROWS = [(f"u{row % 7}", f"i{row % 5}", 1_700_000_000 + row) for row in range(60)]


def _sample(path: Path) -> TableSample:
    return read_sample(find_table(str(path)))


@pytest.mark.parametrize("separator", ["\t", ",", ";", "|", " "])
@pytest.mark.parametrize("names", [None, ("user", "item", "time")])
def test_a_separator_and_a_header_are_recognised(
    tmp_path: Path, separator: str, names: tuple[str, ...] | None
) -> None:
    path = tmp_path / "log.txt"
    lines = [*([names] if names else []), *ROWS]
    path.write_text("".join(separator.join(map(str, line)) + "\n" for line in lines))
    sample = _sample(path)
    assert (sample.format, sample.separator) == ("csv" if names else "tsv", separator)
    assert sample.rows.column_names == list(names or ("c1", "c2", "c3"))
    assert sample.rows.to_pandas().astype(str).to_numpy().tolist() == [[*map(str, row)] for row in ROWS]
    assert sample.is_whole


def test_a_header_over_texts_only_is_recognised_unless_it_could_be_a_row(tmp_path: Path) -> None:
    named, unnamed = tmp_path / "named.csv", tmp_path / "unnamed.csv"
    named.write_text("user,genre\n" + "".join(f"anna,{genre}\n" for genre in ("rock", "jazz") * 10))
    unnamed.write_text("".join(f"anna,{genre}\n" for genre in ("rock", "jazz") * 10))
    assert _sample(named).has_names
    assert not _sample(unnamed).has_names


def test_names_with_digits_over_numbers_are_a_header(tmp_path: Path) -> None:
    path = tmp_path / "users.csv"
    path.write_text("user_id,feat0,feat1\n" + "".join(f"{row},{row % 2},{row % 3}\n" for row in range(30)))
    assert _sample(path).rows.column_names == ["user_id", "feat0", "feat1"]


@pytest.mark.parametrize(
    "lines, names",
    [
        ([",user,item", *(f"{row},u{row % 7},i{row % 5}" for row in range(60))], ["user", "item"]),
        (['"","user","item"', *(f'"{row}","u{row % 7}","{row % 5}"' for row in range(60))], ["user", "item"]),
        (["user,stars,", *(f"u{row % 7},{row % 5}," for row in range(60))], ["user", "stars"]),
    ],
)
def test_columns_without_a_name_are_left_out(tmp_path: Path, lines: list[str], names: list[str]) -> None:
    """Such as the index that pandas and R write, or the end of lines that end with a separator."""
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lines) + "\n")
    sample = _sample(path)
    assert sample.has_names
    assert sample.rows.column_names == names
    assert sample.rows.num_rows == 60


@pytest.mark.parametrize(
    "line", [",u1,view", "u1,,view", "u1,view,"], ids=["first", "between", "last of several values"]
)
def test_a_first_row_with_an_empty_field_is_no_header(tmp_path: Path, line: str) -> None:
    place = line.split(",").index("")
    rows = [[f"u{row % 7}", ("view", "buy")[row % 2]] for row in range(60)]
    for number, row in enumerate(rows):
        row.insert(place, str(number) if number % 3 else "")
    path = tmp_path / "log.csv"
    path.write_text("\n".join([line, *map(",".join, rows)]) + "\n")
    sample = _sample(path)
    assert not sample.has_names
    assert sample.rows.num_rows == 61


def test_names_that_occur_twice_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user,item,item\n" + "".join(f"u{row},i{row},{row}\n" for row in range(30)))
    with pytest.raises(DataError, match=r"log\.csv has more than one column named 'item'"):
        _sample(path)


def test_quoted_fields_keep_their_separators(tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    pd.DataFrame({"item": range(30), "title": ['Tea, "green"'] * 30}).to_csv(path, index=False)
    sample = _sample(path)
    assert set(sample.rows.column("title").to_pylist()) == {'Tea, "green"'}


def test_lines_with_other_numbers_of_fields_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user,item\n" + "1,2\n" * 40 + "1,2,3\n4\n" + "5,6\n")
    assert _sample(path).rows.num_rows == 41


def test_compressed_json_lines_have_the_values_of_nested_objects(tmp_path: Path) -> None:
    path = tmp_path / "log.json.gz"
    rows = [{"user": {"id": row}, "tags": ["a"], "item": f"i{row}"} for row in range(20)]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    sample = _sample(path)
    assert sample.format == "jsonl"
    assert sample.rows.column("user.id").to_pylist() == list(range(20))


def test_values_that_are_nested_too_deeply_are_an_error(tmp_path: Path) -> None:
    levels = 100_000
    path = tmp_path / "log.jsonl"
    path.write_text('{"a":' * levels + "1" + "}" * levels)
    with pytest.raises(DataError, match=r"log\.jsonl has a line whose JSON values are nested too deeply"):
        _sample(path)


@pytest.mark.parametrize("form", ["parquet", "orc"])
def test_files_with_types_keep_them(tmp_path: Path, form: str) -> None:
    frame = pd.DataFrame(ROWS, columns=["user", "item", "time"])
    path = tmp_path / f"log.{form}"
    frame.to_parquet(path) if form == "parquet" else frame.to_orc(path)
    sample = _sample(path)
    assert sample.format == form
    assert sample.rows.to_pandas().equals(frame)


@pytest.mark.parametrize("header", ["user;price;cost\n", ""])
def test_a_comma_between_digits_does_not_divide_lines_with_semicolons(tmp_path: Path, header: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(header + "".join(f"u{row};{row},50;{row},25\n" for row in range(60)))
    sample = _sample(path)
    assert (sample.separator, sample.rows.num_columns, sample.rows.num_rows) == (";", 3, 60)
    assert sample.has_names == bool(header)


LONG = pd.DataFrame({"user": [f"u{row % 7}" for row in range(400)], "time": range(1_000, 1_400)})


def _write(form: str, path: Path) -> None:
    """Writes LONG. The lines of text files have 8 or about 30 bytes."""
    if form in ("csv", "tsv"):
        LONG.to_csv(path, index=False, sep="," if form == "csv" else "\t", header=form == "csv")
    elif form == "jsonl":
        LONG.to_json(path, orient="records", lines=True)
    elif form == "parquet":
        rows = pa.Table.from_pandas(LONG)
        with pq.ParquetWriter(path, rows.schema) as writer:
            writer.write_table(rows, row_group_size=60)
            writer.write_table(rows[:0])  # a row group without rows, as some programs write it
    else:
        orc.write_table(pa.Table.from_pandas(LONG), path, stripe_size=1, batch_size=60)


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet", "orc"])
@pytest.mark.parametrize("first, last", [(100, 20), (100, 390), (1_000, 20)])
def test_the_end_of_a_long_file_is_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, first: int, last: int
) -> None:
    """The last rows have the last day of a log that is sorted by time. No row is read twice."""
    line = 27 if form == "jsonl" else 8
    monkeypatch.setattr("etl.inference.sample._FIRST_BYTES", first * line)
    monkeypatch.setattr("etl.inference.sample._LAST_BYTES", last * line)
    monkeypatch.setattr("etl.inference.sample._FIRST_ROWS", first)
    monkeypatch.setattr("etl.inference.sample._LAST_ROWS", last)
    path = tmp_path / f"log.{form}"
    _write(form, path)
    sample = _sample(path)
    times = [int(time) for time in sample.rows.columns[1].to_pylist()]
    assert times == sorted(set(times))
    assert (times[0], times[-1]) == (1_000, 1_399)
    assert sample.is_whole == (first == 1_000)
    if first == 100 and last == 20:
        assert len(times) < 300


def test_the_end_of_the_last_of_several_files_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etl.inference.sample._LAST_BYTES", 80)
    for name in ("a", "b"):
        _write("csv", tmp_path / f"{name}.csv")
    times = _sample(tmp_path).rows.column("time").to_pylist()
    assert times[:400] == [str(time) for time in LONG["time"]]
    assert times[400:] == [str(time) for time in range(1_390, 1_400)]


@pytest.mark.parametrize("form", ["csv", "csv.gz", "jsonl", "parquet", "orc"])
def test_files_between_the_first_and_the_last_are_read(tmp_path: Path, form: str) -> None:
    for name in "abcde":
        _write(form.removesuffix(".gz"), tmp_path / f"{name}.{form}")
    sample = _sample(tmp_path)
    last = 40 if form in ("parquet", "orc") else len(LONG)  # the rows of the last row group or stripe
    counts = zip("abcde", [len(LONG)] * 4 + [last], strict=True)
    assert sample.parts == tuple((str(tmp_path / f"{name}.{form}"), rows) for name, rows in counts)
    assert sample.rows.num_rows == 4 * len(LONG) + last
    assert (sample.is_whole, sample.all_rows) == (last == len(LONG), 5 * len(LONG))


def test_files_between_have_their_own_headers(tmp_path: Path) -> None:
    """The order of columns may change, and columns may be added. A file without a column is left out."""
    for name, text in (
        ("1", "user,item\nu1,i1\nu2,i2\n"),
        ("2", "price,item,user\n9,i3,u3\n"),
        ("3", "item,price\ni4,9\n"),
        ("4", "item,user\ni5,u5\n"),
    ):
        (tmp_path / f"{name}.csv").write_text(text)
    sample = _sample(tmp_path)
    assert sample.rows.to_pydict() == {"user": ["u1", "u2", "u3", "u5"], "item": ["i1", "i2", "i3", "i5"]}
    assert not sample.is_whole


@pytest.mark.parametrize("form", ["csv", "csv.gz", "jsonl", "parquet"])
def test_empty_files_at_the_start_and_the_end_are_skipped(tmp_path: Path, form: str) -> None:
    for name in ("1", "2"):
        _write(form.removesuffix(".gz"), tmp_path / f"{name}.{form}")  # pandas compresses by the name
    for name in ("0", "3"):
        (tmp_path / f"{name}.{form}").write_bytes(gzip.compress(b"") if form == "csv.gz" else b"")
    times = [int(time) for time in _sample(tmp_path / f"*.{form}").rows.column("time").to_pylist()]
    assert times[:400] == LONG["time"].tolist()
    assert len(times) > 400
    assert times[-1] == 1_399


def test_days_in_names_become_a_part_of_the_path(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        folder = tmp_path / f"dt=2026-01-0{day}"
        folder.mkdir()
        for part in ("a", "b"):
            (folder / f"part-{part}.csv").write_text("user,item\n1,2\n")
    found = find_table(str(tmp_path))
    assert found.pattern == f"{tmp_path}/dt={{date}}/*.csv"
    assert found.days == ("2026-01-01", "2026-01-02", "2026-01-03")
    assert len(found.files) == 6


@pytest.mark.parametrize(
    "names, pattern",
    [
        ("events_{}.csv", "events_{date:%Y%m%d}.csv"),
        ("dt={}/part-0.csv", "dt={date:%Y%m%d}/part-0.csv"),
        ("{}T000000_events.csv", "{date:%Y%m%d}T000000_events.csv"),
    ],
)
def test_days_of_digits_become_a_part_of_the_path(tmp_path: Path, names: str, pattern: str) -> None:
    _files(tmp_path, [names.format(f"202603{day:02d}") for day in (1, 2, 31)])
    table = find_table(str(tmp_path))
    assert (table.pattern, table.days) == (
        f"{tmp_path}/{pattern}",
        ("2026-03-01", "2026-03-02", "2026-03-31"),
    )
    assert sorted(with_date(table.pattern, day) for day in table.days) == list(table.files)


@pytest.mark.parametrize(
    "names, pattern",
    [
        ("log.{}.csv", "log.{date:%Y_%m_%d}.csv"),
        ("{}/events.csv", "{date:%Y/%m/%d}/events.csv"),
        ("year={}/events.csv", "year={date:%Y}/month={date:%m}/day={date:%d}/events.csv"),
    ],
)
def test_parts_of_days_are_recognised(tmp_path: Path, names: str, pattern: str) -> None:
    between = {"log.{}.csv": "_", "{}/events.csv": "/"}.get(names)
    days = [
        f"2026{between}01{between}{day:02d}" if between else f"2026/month=01/day={day:02d}" for day in (1, 2)
    ]
    _files(tmp_path, [names.format(day) for day in days])
    table = find_table(str(tmp_path))
    assert (table.pattern, table.days) == (f"{tmp_path}/{pattern}", ("2026-01-01", "2026-01-02"))
    assert find_table(table.pattern) == table
    assert sorted(with_date(table.pattern, day) for day in table.days) == list(table.files)


@pytest.mark.parametrize(
    "names, pattern",
    [
        ("events-{}-{:02d}.csv", "events-{date}-*.csv"),
        ("dt={}/hour={:02d}/part-0.csv", "dt={date}/hour=*/part-0.csv"),
        ("{}T{:02d}0000Z/part.csv", "{date}T*Z/part.csv"),
    ],
)
def test_hours_behind_the_day_become_a_wildcard(tmp_path: Path, names: str, pattern: str) -> None:
    days = ("2026-03-30", "2026-03-31", "2026-04-01")
    _files(tmp_path, [names.format(day, hour) for day in days for hour in (0, 6, 12, 18)])
    table = find_table(str(tmp_path))
    assert (table.pattern, table.days) == (f"{tmp_path}/{pattern}", days)
    found = [file for day in days for file in find_files(with_date(table.pattern, day), "csv")]
    assert found == list(table.files)


def test_files_of_two_tables_by_day_are_refused(tmp_path: Path) -> None:
    _files(tmp_path, [f"log-2026-03-0{day}{of}.csv" for day in (1, 2) for of in ("", "-items")])
    with pytest.raises(ConfigError, match=r"differ by more than a date: \['.*log-\{date\}-items\.csv'"):
        find_table(str(tmp_path))


def test_numbers_that_are_no_days_stay_in_names(tmp_path: Path) -> None:
    _files(tmp_path, ["part-20261301.csv", "part-20261399.csv"])
    assert find_table(str(tmp_path)).pattern == f"{tmp_path}/*.csv"


def _files(folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("user,item\n1,2\n")


def test_a_folder_with_several_tables_is_refused(tmp_path: Path) -> None:
    (tmp_path / "users.csv").write_text("user\n1\n")
    (tmp_path / "log.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match="several tables"):
        find_table(str(tmp_path))


def test_what_is_no_table_is_refused_with_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear reader\nthis is\nno table of anything at all\n")
    with pytest.raises(DataError, match="Dear reader"):
        _sample(path)
    with pytest.raises(ConfigError, match="no file"):
        find_table(str(tmp_path / "missing.csv"))


def test_a_header_with_one_name_fewer_than_fields_is_refused(tmp_path: Path) -> None:
    """As write.table of R writes it by default. A file without names may have a short first line."""
    path = tmp_path / "log.txt"
    lines = [f'"{row}","u{row % 7}","i{row % 5}",{row % 3}' for row in range(60)]
    path.write_text("\n".join(['"user","item","stars"', *lines]) + "\n")
    with pytest.raises(
        DataError, match="the first line has 3 names, but the other lines have 4 fields"
    ) as caught:
        _sample(path)
    assert "row.names = FALSE" in caught.value.remedy
    path.write_text("\n".join(["\t".join(["u1", "i1"]), *("\t".join(map(str, row)) for row in ROWS)]) + "\n")
    assert not _sample(path).has_names


def test_quoted_fields_without_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("".join(f'{row},"tea, green",{row % 3}\n' for row in range(30)))
    with pytest.raises(DataError, match="no column names"):
        _sample(path)
