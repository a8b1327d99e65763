"""`init` reads files and tables as other programs write them: indices, hashes, months, long files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from conf.errors import ConfigError
from conf.load import load_config
from jobs import check_config, init
from jobs.new_config.configuration import new_config
from jobs.new_config.log_columns import Wishes
from jobs.new_config.questions import Questions
from tests.jobs.test_init import DAYS, shop_log


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shop_log(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _init(*arguments: str) -> int:
    return init.main(["events_*.csv", "--yes", "--name", "shop", *arguments])


def test_the_index_of_pandas_is_ignored(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`to_csv` writes an index without a name, and check reads all rows by the names of the others."""
    rows = pd.concat([pd.read_csv(shop / f"events_{day}.csv") for day in DAYS])
    rows.to_csv("log.csv")
    assert init.main(["log.csv", "--yes", "--name", "shop"]) == 0
    config = load_config("shop.yaml")
    assert (config.log.format, config.log.names) == ("csv", ["time", "user", "item", "event"])
    capsys.readouterr()
    assert check_config.main(["--config", "shop.yaml", "--run-date", DAYS[-1]]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["rows_in"], summary["rows_out"]) == (len(rows), len(rows))


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_the_run_date_is_the_last_day_of_a_long_file(
    shop: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """Only the start of a compressed file is read, and the choices say so."""
    monkeypatch.setattr("etl.inference.sample._FIRST_BYTES", 20_000)
    monkeypatch.setattr("etl.inference.sample._LAST_BYTES", 5_000)
    pd.concat([pd.read_csv(shop / f"events_{day}.csv") for day in DAYS]).to_csv(f"log.{ending}", index=False)
    config = new_config(Wishes(f"log.{ending}"), Questions(ask=False))
    reasons = [reason for choice, reason in config.reasons if choice == f"run date: {config.run_date}"]
    if ending == "csv":
        assert (config.run_date, reasons) == (DAYS[-1], [])
    else:
        assert config.run_date < DAYS[-1]
        assert "only the start of such a file is read" in reasons[0]


def test_columns_of_tables_may_have_the_names_of_internal_columns(shop: Path) -> None:
    items = pd.read_csv("items.csv")
    for place, name in enumerate(("label", "weight", "split", "item_index", "history")):
        items[name] = [f"{name} {row % (2 + place)}" for row in range(len(items))]
    items.to_csv("items.csv", index=False)
    assert _init("--items", "items.csv") == 0
    config = load_config("shop.yaml")
    assert config.items is not None
    names = {column.source: column.name for column in config.items.columns if column.source}
    assert (names["label"], names["weight"], names["item_index"]) == ("label_2", "weight_2", "item_index_2")
    assert {"label_2", "weight_2", "item_index_2"} <= set(config.scopes.item)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_ids_beyond_63_bits_are_texts(shop: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    """Hashes are often unsigned; check reads each of them, and a table of users is joined by them."""
    rows = pd.concat([pd.read_csv(shop / f"events_{day}.csv") for day in DAYS])
    rows["user"] = (rows["user"].str[1:].astype(np.uint64) + 1) * np.uint64((1 << 64) // 61)
    users = pd.DataFrame({"user": rows["user"].unique()}).assign(country=["DE", "PL"] * 30)
    if form == "jsonl":
        rows.to_json("log.jsonl", orient="records", lines=True)
    else:
        rows.to_parquet("log.parquet")
    users.to_csv("users.csv", index=False)
    assert init.main([f"log.{form}", "--users", "users.csv", "--yes", "--name", "shop"]) == 0
    config = load_config("shop.yaml")
    assert config.log.type_of("user") == "string"
    capsys.readouterr()
    assert check_config.main(["--config", "shop.yaml", "--run-date", DAYS[-1]]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["rejected"] == 0


@pytest.mark.parametrize("of_log", [True, False])
def test_ids_that_pandas_wrote_as_floats_are_named(shop: Path, of_log: bool) -> None:
    rows = pd.concat([pd.read_csv(shop / f"events_{day}.csv") for day in DAYS])
    rows["user"] = rows["user"].str[1:].astype(int) + 1000
    users = pd.DataFrame({"user": np.sort(rows["user"].unique()), "country": ["DE", "PL"] * 30})
    changed = rows if of_log else users
    changed["user"] = changed["user"].astype(float)
    rows.to_csv("log.csv", index=False)
    users.to_csv("users.csv", index=False)
    with pytest.raises(
        ConfigError, match=r"'user' of users\.csv has ids such as '1\d+(\.0)?', but"
    ) as caught:
        new_config(Wishes("log.csv", users="users.csv", user="user"), Questions(ask=False))
    assert "astype('Int64')" in caught.value.remedy


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_several_rows_of_an_item_are_refused_before_the_run(
    shop: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """A run refuses such a table, and so do init and check, which read only its first rows."""
    items = pd.read_csv("items.csv")
    assert _init("--items", "items.csv") == 0
    twice = pd.concat([items, items]).sort_values("sku")
    twice.to_csv("items.csv", index=False)
    if form == "parquet":
        twice.to_parquet("items.parquet")
    assert _init("--items", f"items.{form}", "--force") == 3
    assert f"items.{form}: more than one of the first rows has item='sku-000'" in capsys.readouterr().err
    if form == "csv":
        assert check_config.main(["--config", "shop.yaml", "--run-date", DAYS[-1]]) == 3
        assert "keep exactly one row for each value of item" in capsys.readouterr().err


def test_texts_of_several_genres_in_parquet_files_are_lists(shop: Path) -> None:
    items = pd.read_csv("items.csv")
    items["genres"] = ["Action|Comedy", "Drama", "Drama|War", None] * (len(items) // 4)
    items.to_parquet("items.parquet")
    assert _init("--items", "items.parquet") == 0
    config = load_config("shop.yaml")
    assert config.items is not None
    assert config.items.types["genres"] == "strings"


@pytest.mark.parametrize(
    "days, seen",
    [
        ([f"2025-0{month}-01" for month in range(1, 8)], "7 of the 182 days"),
        (["2026-01-05", "2026-01-06", "2026-01-07", "2026-01-08", "2026-01-09", "2026-01-12", "2026-01-13"],
         "7 of the 9 days"),
    ],
)  # fmt: skip
def test_files_that_are_not_daily_are_one_table(shop: Path, days: list[str], seen: str) -> None:
    """Months and weekdays: no run by day finds the files of each run date and of the day before."""
    for old, new in zip(DAYS[::-1], days[::-1], strict=True):
        rows = pd.read_csv(shop / f"events_{old}.csv")
        rows["time"] = new + rows["time"].str[10:]
        (shop / f"events_{old}.csv").unlink()
        rows.to_csv(shop / f"sales_{new}.csv", index=False)
    assert init.main(["sales_*.csv", "--yes", "--name", "shop"]) == 0
    config = load_config("shop.yaml")
    assert (config.log.path, config.split.by) == ("{data}/sales_*.csv", "fraction")
    chosen = new_config(Wishes("sales_*.csv"), Questions(ask=False))
    assert chosen.run_date == days[-1]
    assert any(seen in reason for _, reason in chosen.reasons)
    assert check_config.main(["--config", "shop.yaml", "--run-date", days[-1]]) == 0


def test_a_log_by_day_may_lack_a_day(shop: Path) -> None:
    """The run date is the last day after a day with files, because a run measures both of them."""
    (shop / f"events_{DAYS[-2]}.csv").unlink()
    chosen = new_config(Wishes("events_*.csv"), Questions(ask=False))
    assert (chosen.sections["split"]["by"], chosen.run_date) == ("day", DAYS[-3])
    assert _init() == 0
    assert check_config.main(["--config", "shop.yaml", "--run-date", DAYS[-3]]) == 0
