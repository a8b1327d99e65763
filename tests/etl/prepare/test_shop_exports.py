"""conf/datasets/shop.yaml: a shop's exports in all formats give the same features, without a JVM."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest

from conf.errors import ConfigError, DataError
from conf.load import load_config
from conf.types import Config
from etl.build import BuildResult
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths, Partition
from tests.etl import cases
from tests.etl.prepare.small_shop import no_session
from tests.etl.tasks_here import TasksHere

Features = dict[str, list[dict[str, Any]]]

ROOT = Path(__file__).parents[3]
SHOP = ROOT / "conf/datasets/shop.yaml"
DAYS = [f"2026-11-{day:02}" for day in range(1, 7)]
FIRST, SECOND = DAYS[4], DAYS[5]
BROKEN = (7, 20, 33)  # indices of the rows of a day whose CSV line is broken, and that have no user elsewhere
SMALL = [
    "split.train_days=3",
    "split.min_train_days=1",
    "history.days=3",
    "quality.max_bad_share=0.2",
    "output.row_group_rows=64",
]


def clicks_of(day: str) -> pd.DataFrame:
    """The rows of a day, ordered by time. The first has no user, as the header of a CSV file has none."""
    draw = random.Random(day)
    at = np.sort(np.array([draw.randrange(80_000) for _ in range(120)]))
    rows = pd.DataFrame(
        {
            "ts": pd.Timestamp(day) + pd.to_timedelta(at, "s"),
            "session": [f"{day}-{second // 3_000}" for second in at],
            "user": [draw.choice([*(f"u{n}" for n in range(12)), None]) for _ in at],
            "item": [f"sku-{min(int(draw.paretovariate(0.6)), 30):03}" for _ in at],
            "price": [draw.choice([9.99, 24.5, np.nan]) for _ in at],
            "category": [draw.choice(["shoes", "books"]) for _ in at],
            "device": [draw.choice(["mobile", "desktop", None]) for _ in at],
            "event": [draw.choice(["view"] * 6 + ["cart", "purchase", "newsletter_opened"]) for _ in at],
        }
    )
    rows = pd.concat([rows.iloc[:1], rows, rows.iloc[50:52]], ignore_index=True)  # and two are written twice
    rows["ts"] = rows["ts"].astype("datetime64[us]")
    rows.loc[[0, *BROKEN], "user"] = None
    return rows


def users() -> pd.DataFrame:
    """Users, of whom some have no year of birth, so that pandas stores the others as floats."""
    draw = random.Random(3)
    return pd.DataFrame(
        {
            "user": [f"u{n}" for n in range(2, 14)],
            "country": [draw.choice(["DE", "PL"]) for _ in range(12)],
            "birth_year": [draw.choice([1985.0, 1990.0, np.nan]) for _ in range(12)],
            "newsletter": [draw.random() < 0.5 for _ in range(12)],
            "signup": [f"2025-{1 + n % 12:02}-17" for n in range(12)],
        }
    )


def items() -> pd.DataFrame:
    """Items, with quotes, separators and an apostrophe in their titles."""
    return pd.DataFrame(
        {
            "item": [f"sku-{n:03}" for n in range(2, 31)],
            "category": [["shoes", "books"][n % 2] for n in range(29)],
            "brand": [None if n % 5 == 0 else f"brand{n % 3}" for n in range(29)],
            "list_price": [5.5 + n for n in range(29)],
            "title": [f'The "nice", cheap; shoe\'s no. {n}' for n in range(29)],
        }
    )


def as_csv(rows: pd.DataFrame, path: Path) -> None:
    """Writes what an export writes: times as texts, True and False, 1985.0, and broken lines."""
    if "ts" not in rows:
        rows.to_csv(path, index=False)
        return
    lines = rows.assign(ts=rows["ts"].dt.strftime("%Y-%m-%d %H:%M:%S")).to_csv(index=False).splitlines()
    del lines[1]  # the header has its place
    short, long, quoted = BROKEN
    lines[short] = lines[short].rsplit(",", 2)[0]
    lines[long] += ",more"
    lines[quoted] = lines[quoted].replace("sku", 's"ku')
    path.write_text("\n".join(lines) + "\n")


def as_polars(rows: pd.DataFrame) -> pl.DataFrame:
    return pl.from_pandas(rows, nan_to_null=True)


def as_duckdb(rows: pd.DataFrame, path: Path) -> None:
    """Writes Parquet with DuckDB, which stores the signup as a date."""
    day = ", signup::DATE AS signup" if "signup" in rows else ""
    others = "* EXCLUDE (signup)" if day else "*"
    duckdb.sql(f"COPY (SELECT {others}{day} FROM rows) TO '{path}' (FORMAT parquet)")


WRITERS: dict[str, tuple[str, Callable[[pd.DataFrame, Path], object]]] = {
    "csv": ("csv", as_csv),
    "pandas parquet": ("parquet", lambda rows, path: rows.to_parquet(path, index=False)),
    "polars parquet": ("parquet", lambda rows, path: as_polars(rows).write_parquet(path)),
    "duckdb parquet": ("parquet", as_duckdb),
    "pandas jsonl": ("jsonl", lambda rows, path: _pandas_json(rows, path)),
    "polars jsonl": ("jsonl", lambda rows, path: as_polars(rows).write_ndjson(path)),
}


def _pandas_json(rows: pd.DataFrame, path: Path) -> None:
    rows.to_json(path, orient="records", lines=True, date_format="iso", date_unit="s")


def shop(folder: Path, writer: str, *more: str) -> Config:
    """Writes the exports of a shop, and returns the configuration that reads them."""
    name, write = WRITERS[writer]
    (folder / name).mkdir(parents=True)
    for day in DAYS:
        rows = clicks_of(day)
        write(rows, folder / (f"csv/clicks_{day}.csv" if name == "csv" else f"{name}/{day}.{name}"))
    for table, rows in (("users", users()), ("items", items())):
        write(rows, folder / f"{table}.{name}")
    return config_of(folder, name, *more)


def config_of(folder: Path, name: str, *more: str) -> Config:
    file = {"csv": SHOP, "parquet": SHOP.with_name("shop_parquet.yaml"), "jsonl": SHOP}[name]
    paths = []
    if name == "jsonl":
        paths = [f"{section}.format=jsonl" for section in ("log", "users", "items")]
        paths += [f"{table}.path={{data}}/{table}.jsonl" for table in ("users", "items")]
        paths += ["log.path={data}/jsonl/{date}.jsonl"]
    places = [f"data={folder}", f"lake={folder}/lake", "name=shop"]
    return load_config(str(file), [*places, *paths, *SMALL, *more])


def built(config: Config, run_date: str) -> BuildResult:
    """Runs build_features without a Spark session: an attempt to start one fails."""
    return cases.run_build(TasksHere(2, no_session), config, run_date)


def rows_of(partition: Partition) -> list[dict[str, Any]]:
    """The rows of a partition, in the order of row ids."""
    paths = data_files(partition, read_manifest(partition))
    rows = [row for path in paths for row in pq.read_table(path, partitioning=None).to_pylist()]
    return sorted(rows, key=lambda row: int(row["row_id"]))


def two_nights(config: Config) -> dict[str, list[dict[str, Any]]]:
    """The rows of all feature partitions of two nights."""
    rows: Features = {}
    for run_date in (FIRST, SECOND):
        result = built(config, run_date)
        of_version = LakePaths(config.lake).features(result.workflow.version)
        rows |= {f"{run_date}: {dt}": rows_of(of_version.partition(dt)) for dt in result.features}
    return rows


@pytest.fixture(scope="module")
def of_csv(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, dict[str, list[dict[str, Any]]]]:
    """The configuration and the features of the CSV files."""
    config = shop(tmp_path_factory.mktemp("shop"), "csv")
    return config, two_nights(config)


def test_the_features_of_csv_are_those_of_the_rows(of_csv: tuple[Config, Features]) -> None:
    """Labels, weights and dates against pandas."""
    config, features = of_csv
    day = f"{FIRST}: {FIRST}"
    good = clicks_of(FIRST).iloc[1:].dropna(subset=["user"])
    good = good[good["event"] != "newsletter_opened"]
    clicks = [row for row in features[day] if row["label"] == 1]
    assert len(clicks) == len(good) > 80
    weights = good["event"].map({"view": 0.1, "cart": 0.5, "purchase": 1.0})
    assert [row["weight"] for row in clicks] == pytest.approx(weights.tolist())
    assert len(features[day]) > 2 * len(clicks), "there are drawn rows"
    quarantine = rows_of(LakePaths(config.lake).quarantine.partition(FIRST))
    reasons = [row["reason"] for row in quarantine if row["reason"] != "missing_key:user"]
    assert reasons == ["field_count", "field_count", "quote"]


@pytest.mark.parametrize("writer", [name for name in WRITERS if name != "csv"])
def test_files_of_all_writers_have_equal_features(
    of_csv: tuple[Config, Features], tmp_path: Path, writer: str
) -> None:
    features = two_nights(shop(tmp_path, writer))
    assert features.keys() == of_csv[1].keys()
    for partition, rows in features.items():
        assert rows == of_csv[1][partition], partition


# How a file of the exports changes, and what the message of the error must name.
CSV_FAULTS: dict[str, tuple[str, str, str, list[str]]] = {
    "half a year": ("users.csv", "1985.0", "1985.5", ["birth_year", "'1985.5'", "float or string"]),
    "a word": ("users.csv", "1985.0", "unknown", ["birth_year", '"unknown" to users.null_values']),
    "maybe": ("users.csv", "True", "maybe", ["newsletter", "'maybe'", "true, t, yes"]),
    "other date": ("users.csv", "2025-03-17", "17.03.2025", ["signup", "'17.03.2025'", '"%d.%m.%Y"']),
    "no date": ("users.csv", "2025-03-17", "2025-02-31", ["signup", "'2025-02-31'", "correct the file"]),
    "time": ("users.csv", "2025-03-17", "2025-03-17 00:00:00", ["signup", "give signup the type timestamp"]),
    "two rows": ("users.csv", "u3,", "u2,", ["user='u2'", "line 2", "line 3", "exactly one row"]),
    "comma": ("items.csv", ",7.5,", ',"7,5",', ["list_price", "'7,5'", "decimal point"]),
    "line break": ("items.csv", "cheap;", "cheap\n;", ["line 2", "double quotes", "line breaks"]),
    "new name": (f"csv/clicks_{DAYS[2]}.csv", "device", "device_type", ["['device']", "optional: true"]),
}


@pytest.mark.parametrize("fault", CSV_FAULTS)
def test_a_fault_of_an_export_is_named_with_a_remedy(tmp_path: Path, fault: str) -> None:
    name, old, new, shown = CSV_FAULTS[fault]
    config = shop(tmp_path, "csv")
    text = (tmp_path / name).read_text()
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new, 1))
    with pytest.raises(DataError) as caught:
        built(config, FIRST)
    for part in (str(tmp_path / name), *shown):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "setting, shown",
    [
        ("log.time_zone=Europe/Berln", "'Europe/Berln' is not the name of a time zone"),
        ("log.label.weights={view: -0.1}", "log.label.weights.view=-0.1: a weight must be from"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, setting: str, shown: str) -> None:
    with pytest.raises(ConfigError, match=shown):
        config_of(tmp_path, "csv", setting)


def test_a_time_of_another_notation_is_quarantined_and_its_format_proposed(tmp_path: Path) -> None:
    config = shop(tmp_path, "csv")
    path = tmp_path / f"csv/clicks_{DAYS[2]}.csv"
    path.write_text(path.read_text().replace("2026-11-03 ", "03.11.2026 "))
    with pytest.raises(DataError) as caught:
        built(config, FIRST)
    for part in (str(path), "timestamp:ts", '"%d.%m.%Y %H:%M:%S"'):
        assert part in str(caught.value)


def test_texts_in_parquet_are_times_of_the_time_zone(of_csv: tuple[Config, Features], tmp_path: Path) -> None:
    config = shop(tmp_path, "pandas parquet")
    for day in DAYS:
        path = tmp_path / f"parquet/{day}.parquet"
        rows = pd.read_parquet(path)
        rows.assign(ts=rows["ts"].dt.strftime("%Y-%m-%d %H:%M:%S")).to_parquet(path)
    for partition, rows_of_day in two_nights(config).items():
        assert rows_of_day == of_csv[1][partition], partition


def test_a_table_of_users_without_rows_is_named(tmp_path: Path) -> None:
    config = shop(tmp_path, "pandas parquet")
    path = tmp_path / "users.parquet"
    pd.read_parquet(path).iloc[:0].to_parquet(path)
    with pytest.raises(DataError, match="birth_year: the column is null") as caught:
        built(config, FIRST)
    assert "check that this table has rows" in caught.value.remedy


def test_the_reason_of_a_boolean_is_the_same_in_all_formats(tmp_path: Path) -> None:
    config = shop(tmp_path, "pandas parquet")
    path = tmp_path / "users.parquet"
    pd.read_parquet(path).assign(newsletter="maybe").to_parquet(path)
    with pytest.raises(DataError, match="newsletter has the value 'maybe', which is not one of true"):
        built(config, FIRST)


def test_the_header_of_csv_files_may_change_from_one_day_to_another(
    of_csv: tuple[Config, Features], tmp_path: Path
) -> None:
    """On one day the shop exports one more column, before all others."""
    config = shop(tmp_path, "csv")
    path = tmp_path / f"csv/clicks_{DAYS[2]}.csv"
    header, *lines = path.read_text().splitlines()
    front = ["coupon," + header, *("SALE," + line for line in lines)]
    path.write_text("\n".join(front) + "\n")
    for partition, rows in two_nights(config).items():
        assert rows == of_csv[1][partition], partition


def test_a_csv_file_may_lack_an_optional_column(tmp_path: Path) -> None:
    columns: list[dict[str, object]] = [
        {"name": name, "type": "timestamp" if name == "ts" else "string"}
        for name in ("ts", "session", "user", "item", "event")
    ]
    columns.append({"name": "device", "type": "string", "optional": True})
    config = shop(tmp_path, "csv", f"log.columns={json.dumps(columns)}")
    path = tmp_path / f"csv/clicks_{DAYS[2]}.csv"
    path.write_text(path.read_text().replace("device", "device_type", 1))
    result = built(config, FIRST)
    features = LakePaths(config.lake).features(result.workflow.version)
    of_day = {day: {row["device"] for row in rows_of(features.partition(day))} for day in DAYS[1:3]}
    assert len(of_day[DAYS[2]]) == 1 < len(of_day[DAYS[1]])
