"""`init` writes a configuration with which `check_config` and `nightly` run, for logs that nobody described."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from conf.errors import ConfigError, DataError
from conf.list_types import OutOfStock
from conf.load import load_config
from jobs import check_config, init
from jobs.new_config.configuration import blended_sources, new_config
from jobs.new_config.log_columns import Wishes
from jobs.new_config.questions import Questions
from jobs.new_config.tables import open_new_table, share_of_repeats
from storage.paths import LakePaths
from tests.processes import ROOT, environment
from tests.stages import run_retraining

DAYS = [f"2026-01-0{day}" for day in range(1, 8)]


def shop_log(folder: Path, *, header: bool = True) -> None:
    """Writes seven days of events, and tables of users and items."""
    rng = np.random.default_rng(3)
    users, items = [f"u{user:03d}" for user in range(60)], [f"sku-{item:03d}" for item in range(40)]
    for day in DAYS:
        rows = 400
        chosen = rng.integers(0, 60, rows)
        frame = pd.DataFrame(
            {
                "time": pd.to_datetime(day)
                + pd.to_timedelta(np.sort(rng.integers(0, 86_000, rows)), unit="s"),
                "user": [users[user] for user in chosen],
                "item": [items[item] for item in (chosen * 7 + rng.integers(0, 6, rows)) % 40],
                "event": rng.choice(["view", "cart", "purchase"], rows, p=[0.8, 0.15, 0.05]),
            }
        )
        frame.to_csv(folder / f"events_{day}.csv", index=False, header=header)
    pd.DataFrame({"user": users, "country": rng.choice(["DE", "PL"], 60)}).to_csv(
        folder / "users.csv", index=False
    )
    pd.DataFrame(
        {"sku": items, "price": rng.uniform(1, 90, 40).round(2), "title": [f"Thing {item}" for item in items]}
    ).to_csv(folder / "items.csv", index=False)


pytestmark = pytest.mark.processes
# The end of the question whether lists may contain items that the user chose on an earlier day.
NO_REPEATS = (
    "no: only items that are new to the user was taken; other possible answers: yes: candidates.repeats: all, "
    "yes, unless the user had one of the events ['purchase'] with it: candidates.exclude_events"
)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shop_log(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _init(*arguments: str) -> int:
    return init.main(["events_*.csv", "--yes", "--name", "shop", *arguments])


def test_a_shop_gets_lists_without_an_edit(shop: Path) -> None:
    assert _init("--users", "users.csv", "--items", "items.csv", "--out", "my.yaml") == 0
    config = load_config("my.yaml")
    assert config.keys is not None
    assert (config.keys.user, config.keys.item) == ("user", "item")
    assert config.log.path.endswith("events_{date}.csv")
    assert config.scopes.item == ["price", "item"]
    assert check_config.main(["--config", "my.yaml", "--run-date", DAYS[-1]]) == 0
    run_retraining(shop / "my.yaml", DAYS[-1], "train.epochs=1", "gate.replicates=100")
    lists = LakePaths(config.lake).recommendations.partition(DAYS[-1])
    assert len(pd.read_parquet(lists.path).user_id.unique()) == 60


def test_days_of_digits_in_names_of_files_are_days_of_the_log(shop: Path) -> None:
    for day in DAYS:
        (shop / f"events_{day}.csv").rename(shop / f"events_{day.replace('-', '')}.csv")
    assert _init() == 0
    config = load_config("shop.yaml")
    assert (config.log.path, config.split.by) == ("{data}/events_{date:%Y%m%d}.csv", "day")
    assert check_config.main(["--config", "shop.yaml", "--run-date", DAYS[-1]]) == 0


def test_the_file_says_what_was_left_out_and_is_not_replaced(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _init("--items", "items.csv") == 0
    text = (shop / "shop.yaml").read_text()
    assert "items.title, because it is the title of the item, which is only shown to people" in text
    config = load_config("shop.yaml")
    assert config.items is not None
    assert (config.items.title, config.items.image) == ("title", None)
    assert config.scopes.item == ["price", "item"]
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["run_date"] == DAYS[-1]
    [question] = summary["questions"]
    assert question.endswith("the item on an earlier day, too. May lists contain such items? " + NO_REPEATS)
    assert _init() == 2
    assert "exists already" in capsys.readouterr().err
    assert _init("--force") == 0
    assert "items.title" not in (shop / "shop.yaml").read_text()


def test_a_title_that_looks_like_a_list_is_a_text_and_pictures_are_found(shop: Path) -> None:
    items = pd.read_csv("items.csv")
    items["Product Name"] = [f"red shoe {row % 5}" for row in range(len(items))]
    items["imageUrl"] = "https://a.example/1.jpg"
    items.drop(columns="title").to_csv("items.csv", index=False)
    config = new_config(Wishes("events_*.csv", items="items.csv"), Questions(ask=False)).sections
    types = {column["name"]: column["type"] for column in config["items"]["columns"]}
    title, image = config["items"]["title"], config["items"]["image"]
    assert (types[title], types[image]) == ("string", "string")
    assert not {title, image} & {name for group in config["features"] for name in group["columns"]}


@pytest.mark.parametrize(
    "name", ["titel", "Nombre", "nom", "product_name", "商品名", "Título", "Наименование"]
)
def test_titles_have_names_of_other_languages(shop: Path, name: str) -> None:
    items = pd.read_csv("items.csv").rename(columns={"title": name})
    items.assign(zusatz=[f"a much longer text of item {row}" for row in range(40)]).to_csv(
        "items.csv", index=False
    )
    config = new_config(Wishes("events_*.csv", items="items.csv"), Questions(ask=False))
    columns = {column["name"]: column for column in config.sections["items"]["columns"]}
    title = columns[config.sections["items"]["title"]]
    assert (title.get("source", title["name"]), title["type"]) == (name, "string")
    assert (f"items.title: {name}", "by its name") in config.reasons


def test_titles_are_found_by_their_texts_or_said_to_be_missing(shop: Path) -> None:
    items = pd.read_csv("items.csv").rename(columns={"title": "xyz"})
    items["description"] = [f"a much longer text about the item {row}" for row in range(40)]
    items["code"] = [f"{row:08x}" for row in range(40)]
    items["group"] = ["warm shoes", "cold shoes"] * 20
    items.to_csv("items.csv", index=False)
    config = new_config(Wishes("events_*.csv", items="items.csv"), Questions(ask=False))
    assert config.sections["items"]["title"] == "xyz"
    assert ("items.title: xyz", "its values are long and distinct") in config.reasons
    short = items.drop(columns="xyz").assign(description=[f"large cake {row}" for row in range(40)])
    short.to_csv("items.csv", index=False)
    config = new_config(Wishes("events_*.csv", items="items.csv"), Questions(ask=False))
    assert config.sections["items"]["title"] == "description"
    items.drop(columns="xyz").to_csv("items.csv", index=False)
    config = new_config(Wishes("events_*.csv", items="items.csv"), Questions(ask=False))
    assert "title" not in config.sections["items"]
    assert ("no titles: lists show ids", "no column looks like names of items; set items.title") in (
        config.reasons
    )


def test_rows_of_anonymous_visitors_are_left_out_and_counted(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for day in DAYS:
        rows = pd.read_csv(f"events_{day}.csv")
        rows.loc[::4, "user"] = None
        rows.assign(session=[f"s{row % 90}" for row in range(len(rows))]).to_csv(
            f"events_{day}.csv", index=False
        )
    assert _init() == 0
    text = (shop / "shop.yaml").read_text()
    assert "# 25.0% of the rows read have no user. They are counted and left out" in text
    config = load_config("shop.yaml")
    assert config.keys is not None
    assert (config.keys.user, config.keys.rows_without_user) == ("user", "leave_out")
    capsys.readouterr()
    assert check_config.main(["--config", "shop.yaml", "--run-date", DAYS[-1]]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out.splitlines()[-1])["left_out"] == 700
    (shop / "shop.yaml").write_text(text.replace(", rows_without_user: leave_out", ""))
    assert check_config.main(["--config", "shop.yaml", "--run-date", DAYS[-1]]) == 3
    shown = capsys.readouterr()
    assert "100 of the first 400 rows of 2026-01-01 would be quarantined" in shown.err
    assert "set keys.rows_without_user: leave_out" in shown.err


@pytest.mark.parametrize(
    "values, entry",
    [
        ({"stock": [0, 3]}, {"stock": "stock"}),
        ({"Verfügbar": ["ja", "ausverkauft"]}, {"sold_out": ["ausverkauft"]}),
        ({"sold_out": ["true", "false"]}, {"stock": "sold_out", "sold_out": ["true"]}),
        ({"in_stock": [True, False]}, {"stock": "in_stock"}),
        ({"Discontinued": ["J", "N"]}, {"stock": "Discontinued", "sold_out": ["J"]}),
    ],
)
def test_a_column_of_stock_becomes_a_filter(
    shop: Path, values: dict[str, list[Any]], entry: dict[str, Any]
) -> None:
    ((name, pair),) = values.items()
    pd.read_csv("items.csv").assign(**{name: pair * 20}).to_csv("items.csv", index=False)
    assert _init("--items", "items.csv") == 0
    config = load_config("shop.yaml")
    (of_stock,) = config.candidates.filters
    assert isinstance(of_stock, OutOfStock)
    assert entry.items() <= of_stock.model_dump().items()
    assert of_stock.path == "{data}/items.csv"


def test_a_doubtful_column_of_stock_is_a_comment(shop: Path) -> None:
    items = pd.read_csv("items.csv").assign(stock=5)
    items.to_csv("items.csv", index=False)
    assert _init("--items", "items.csv") == 0
    assert load_config("shop.yaml").candidates.filters == []
    text = (shop / "shop.yaml").read_text()
    lines = text.splitlines()
    first = lines.index("#   filters:")
    assert "If stock says which items are out of stock" in lines[first - 1] + lines[first - 2]
    active = [line.removeprefix("# ") for line in lines[first : first + 2]]
    (shop / "shop.yaml").write_text("\n".join([*lines[:first], *active, *lines[first + 2 :]]))
    assert [one.filter for one in load_config("shop.yaml").candidates.filters] == ["out_of_stock"]


def test_prices_with_decimal_commas_become_numbers(shop: Path) -> None:
    items = pd.read_csv("items.csv")
    items["price"] = [f"{price:.2f}".replace(".", ",") for price in items["price"]]
    items.to_csv("items.csv", index=False, sep=";")
    assert _init("--items", "items.csv") == 0
    config = load_config("shop.yaml")
    assert config.items is not None
    assert (config.items.decimal_separator, config.items.separator) == (",", ";")
    assert {column.name: column.type for column in config.items.columns}["price"] == "float"
    assert check_config.main(["--config", "shop.yaml", "--run-date", DAYS[-1]]) == 0


def _receipts(folder: Path) -> None:
    """Writes receipts of a grocery with German names, and a list of its articles as Excel exports it."""
    rng = np.random.default_rng(5)
    for day in range(1, 6):
        receipts = pd.DataFrame(
            {
                "Bon": np.repeat([f"{day}{bon:04d}" for bon in range(80)], 3),
                "Kundenkarte": np.repeat([f"K{user:04d}" for user in rng.integers(0, 60, 80)], 3),
                "Datum": f"0{day}.03.2026",
                "Uhrzeit": np.repeat([f"{8 + bon // 8:02d}:{bon % 60:02d}:11" for bon in range(80)], 3),
                "Artikelnr": [f"{4000 + item:06d}" for item in rng.integers(0, 50, 240)],
                "Einzelpreis": [f"{price:.2f}".replace(".", ",") for price in rng.uniform(1, 30, 240)],
            }
        )
        receipts.loc[receipts.index % 4 == 0, "Kundenkarte"] = None
        receipts.to_csv(folder / f"Bons_2026030{day}.csv", sep=";", index=False, encoding="cp1252")
    items = pd.DataFrame(
        {
            "Artikelnr": [f"{4000 + item:06d}" for item in range(50)],
            "Bezeichnung": [f"{['Müsli', 'Käse', 'Öl'][item % 3]} Größe {item}" for item in range(50)],
            "Warengruppe": ["Kühl", "Trocken"] * 25,
            "Gewicht": [(item * 37) % 101 + 10 for item in range(50)],
        }
    )
    items.to_csv(folder / "Artikel.csv", sep=";", index=False, encoding="cp1252", lineterminator="\r\n")


def test_german_receipts_in_windows_1252_need_no_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _receipts(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert init.main(["Bons_*.csv", "--items", "Artikel.csv", "--yes"]) == 0
    config = load_config("bons.yaml")
    assert config.keys is not None
    assert config.items is not None
    assert (config.keys.user, config.keys.item) == ("Kundenkarte", "Artikelnr")
    assert (config.items.title, config.items.encoding) == ("Bezeichnung", "windows-1252")
    assert config.scopes.item == ["Warengruppe", "Gewicht", "Artikelnr"]
    assert config.log.event_time is not None
    assert config.log.event_time.columns == ["Datum", "Uhrzeit"]
    assert (config.log.type_of("Datum"), config.log.type_of("Uhrzeit")) == ("date", "time")
    assert "items.encoding: windows-1252" in capsys.readouterr().err
    assert check_config.main(["--config", "bons.yaml", "--run-date", "2026-03-05"]) == 0


@pytest.mark.parametrize("item, has_table", [("ding", True), ("ding_nr", False)])
def test_an_item_with_an_unknown_name_is_found(shop: Path, item: str, has_table: bool) -> None:
    """By the ids of the table of items, or by a name for ids."""
    for day in DAYS:
        rows = pd.read_csv(f"events_{day}.csv").rename(columns={"item": item})
        rows.assign(shelf=[f"shelf {row % 30}" for row in range(len(rows))]).to_csv(
            f"events_{day}.csv", index=False
        )
    wishes = Wishes("events_*.csv", items="items.csv" if has_table else None)
    config = new_config(wishes, Questions(ask=False))
    assert config.sections["keys"] == {"user": "user", "item": item}
    why = "its values are the ids of the table of items" if has_table else "its name says that it has ids"
    assert (f"item: {item}", why) in config.reasons


def test_the_ids_of_the_table_of_users_decide_against_a_name(shop: Path) -> None:
    for day in DAYS:
        rows = pd.read_csv(f"events_{day}.csv").rename(columns={"user": "holder"})
        rows.assign(basket_id=np.arange(len(rows)) // 4 + 500).to_csv(f"events_{day}.csv", index=False)
    pd.read_csv("users.csv").rename(columns={"user": "id"}).to_csv("users.csv", index=False)
    config = new_config(Wishes("events_*.csv", users="users.csv"), Questions(ask=False))
    assert config.sections["keys"] == {"user": "holder", "item": "item"}
    assert ("user: holder", "its values are the ids of the table of users") in config.reasons


def test_users_who_choose_items_again_may_get_them_in_lists(shop: Path) -> None:
    for day in DAYS:
        pd.read_csv(f"events_{day}.csv").drop(columns="event").to_csv(f"events_{day}.csv", index=False)
    silent = Questions(ask=False)
    assert "repeats" not in new_config(Wishes("events_*.csv"), silent).sections["candidates"]
    [question] = silent.open
    assert "the user chose the item on an earlier day, too. May lists contain such items?" in question
    assert question.endswith("other possible answers: yes: candidates.repeats: all")
    asked = Questions(ask=True, _input=io.StringIO("2\n"), _output=io.StringIO())
    config = new_config(Wishes("events_*.csv"), asked)
    assert config.sections["candidates"]["repeats"] == "all"
    (shop / "again.yaml").write_text(init.yaml_of(config, ()))
    assert load_config("again.yaml").repeats == "all"
    for number, day in enumerate(DAYS):  # a user never sees an item of an earlier day
        rows = pd.read_csv(f"events_{day}.csv")
        rows.assign(item=rows["item"] + f"-{number}").to_csv(f"events_{day}.csv", index=False)
    new_config(Wishes("events_*.csv"), silent)
    assert len(silent.open) == 1


@pytest.mark.parametrize(
    "answer, chosen",
    [("1", {}), ("2", {"repeats": "all"}), ("3", {"exclude_events": ["purchase"]})],
)
def test_only_bought_items_can_be_left_out_of_lists(shop: Path, answer: str, chosen: dict[str, Any]) -> None:
    for number, day in enumerate(DAYS):  # users view their items every day, but buy others every day
        rows = pd.read_csv(f"events_{day}.csv")
        bought = rows["event"] == "purchase"
        rows["item"] = rows["item"].where(~bought, rows["item"] + f"-{number}")
        rows.to_csv(f"events_{day}.csv", index=False)
    asked = Questions(ask=True, _input=io.StringIO(f"{answer}\n" * 9), _output=io.StringIO())
    candidates = new_config(Wishes("events_*.csv"), asked).sections["candidates"]
    assert {key: candidates[key] for key in ("repeats", "exclude_events") if key in candidates} == chosen
    assert "May lists contain such items?" in asked._output.getvalue()  # type: ignore[attr-defined]


def test_a_folder_with_a_vague_name_gets_the_name_of_its_files(shop: Path) -> None:
    folder = shop / "data"
    folder.mkdir()
    for day in DAYS:
        (shop / f"events_{day}.csv").rename(folder / f"clickstream-{day.replace('-', '')}.csv")
    config = new_config(Wishes(str(folder)), Questions(ask=False))
    assert config.sections["name"] == "clickstream"


@pytest.mark.parametrize("form", ["text", "date", "int", "stored"])
def test_the_share_of_repeats_is_that_of_pandas(tmp_path: Path, form: str) -> None:
    rng = np.random.default_rng(2)
    rows = pd.DataFrame({"user": rng.integers(0, 30, 500), "item": rng.integers(0, 40, 500)})
    rows["at"] = pd.Timestamp("1999-12-28") + pd.to_timedelta(rng.integers(0, 9 * 86_400, 500), unit="s")
    day = rows["at"].dt.normalize()
    later = day > day.groupby(rows["user"]).transform("min")
    repeated = day > day.groupby([rows["user"], rows["item"]]).transform("min")
    if form == "stored":
        rows.to_parquet(tmp_path / "log.parquet")
    else:
        texts = rows["at"].dt.strftime("%d.%m.%Y %H:%M:%S" if form == "text" else "%Y-%m-%d")
        seconds = (rows["at"] - pd.Timestamp(0)) // pd.Timedelta("1s")
        rows.assign(at=seconds if form == "int" else texts).to_csv(tmp_path / "log.csv", index=False)
    table = open_new_table(str(tmp_path / ("log.parquet" if form == "stored" else "log.csv")))
    user, item, time = (table.column(name).sampled for name in ("user", "item", "at"))
    assert share_of_repeats(user, item, time) == pytest.approx(repeated[later].mean(), abs=1e-12)
    chosen = rng.random(len(rows)) < 0.6
    choices, day = rows[chosen], day[chosen]
    later = day > day.groupby(choices["user"]).transform("min")
    repeated = day > day.groupby([choices["user"], choices["item"]]).transform("min")
    assert share_of_repeats(user, item, time, chosen) == pytest.approx(repeated[later].mean(), abs=1e-12)


def test_a_missing_item_is_named_with_the_user_that_was_found(shop: Path) -> None:
    for day in DAYS:
        pd.read_csv(f"events_{day}.csv").rename(columns={"item": "ding"}).to_csv(
            f"events_{day}.csv", index=False
        )
    with pytest.raises(ConfigError, match=r"looks like the item of a row.*; user is the user") as caught:
        new_config(Wishes("events_*.csv"), Questions(ask=False))
    assert caught.value.remedy == "name it: --item COLUMN, or pass the table of items with --items"


@pytest.mark.parametrize("item", [None, "product_id"])
def test_an_item_is_never_the_user(shop: Path, item: str | None) -> None:
    for day in DAYS:
        rows = pd.read_csv(f"events_{day}.csv").rename(columns={"user": "who", "item": "product_id"})
        rows.to_csv(f"events_{day}.csv", index=False)
    with pytest.raises(ConfigError, match=r"the user of a row.*; product_id is the item") as caught:
        new_config(Wishes("events_*.csv", item=item), Questions(ask=False))
    assert caught.value.remedy == "name it: --user COLUMN, or pass the table of users with --users"
    for wishes in ({"user": "who"}, {"users": "users.csv"}):
        config = new_config(Wishes("events_*.csv", item=item, **wishes), Questions(ask=False))
        assert config.sections["keys"] == {"user": "who", "item": "product_id"}


def test_a_log_with_a_click_and_only_one_key_is_asked_about(shop: Path) -> None:
    for day in DAYS:
        rows = pd.read_csv(f"events_{day}.csv").rename(columns={"user": "who", "item": "product_id"})
        rows.assign(event=(rows["event"] != "view") * 1).rename(columns={"event": "clicked"}).to_csv(
            f"events_{day}.csv", index=False
        )
    silent = Questions(ask=False)
    assert not new_config(Wishes("events_*.csv"), silent).has_lists
    assert silent.open[0].endswith(
        "product_id is the item. Without it, there are no lists: name it: --user COLUMN, or pass the table of "
        "users with --users"
    )


def test_an_array_of_json_is_named_with_a_command(shop: Path) -> None:
    (shop / "items.json").write_text('[\n {"sku": "sku-001"},\n {"sku": "sku-002"}\n]')
    with pytest.raises(DataError) as caught:
        new_config(Wishes("events_*.csv", items="items.json"), Questions(ask=False))
    assert "`jq -c '.[]' items.json > items.jsonl`" in caught.value.remedy


def test_other_columns_of_a_log_of_choices_are_named(shop: Path) -> None:
    for day in DAYS:
        pd.read_csv(f"events_{day}.csv").assign(price=1.5).to_csv(f"events_{day}.csv", index=False)
    assert _init() == 0
    text = (shop / "shop.yaml").read_text()
    assert "No feature: log.price, because this log has rows only of items that users chose" in text


def test_attributes_of_users_in_the_log_are_features_of_users(shop: Path) -> None:
    for day in DAYS:
        rows = pd.read_csv(f"events_{day}.csv")
        rows["land"] = rows["user"].str[-1].map(int).mod(3).map({0: "DE", 1: "PL", 2: "FR"})
        rows["size"] = rows["item"].str[-1].map(int).mod(2).map({0: "small", 1: "large"})
        rows["weather"] = np.random.default_rng(4).choice(["sun", "rain"], len(rows))
        rows.to_csv(f"events_{day}.csv", index=False)
    assert _init() == 0
    config = load_config("shop.yaml")
    assert (config.scopes.user, config.scopes.item, config.scopes.context) == (
        ["land", "history"],
        ["item"],
        [],
    )
    assert config.log.type_of("land") == "string"
    text = (shop / "shop.yaml").read_text()
    assert "No feature: log.size, because this log has rows only of items that users chose" in text
    assert check_config.main(["--config", "shop.yaml", "--run-date", DAYS[-1]]) == 0
    assert _init("--users", "users.csv", "--force") == 0
    assert load_config("shop.yaml").scopes.user == ["country", "history"]
    assert (
        "log.land, because attributes of users come from the table of users"
        in (shop / "shop.yaml").read_text()
    )


@pytest.mark.parametrize("wish", ["clock", "day"])
def test_either_column_may_be_named_as_the_time(shop: Path, wish: str) -> None:
    for day in DAYS:
        rows = pd.read_csv(f"events_{day}.csv").rename(columns={"time": "seen"})
        rows["day"], rows["clock"] = rows["seen"].str[:10], rows["seen"].str[11:]
        rows.to_csv(f"events_{day}.csv", index=False)
    assert _init() == 0
    assert load_config("shop.yaml").log.event_time.columns == ["seen"]  # type: ignore[union-attr]
    assert _init("--time", wish, "--force") == 0
    config = load_config("shop.yaml")
    assert config.log.event_time is not None
    assert config.log.event_time.columns == ["day", "clock"]
    assert check_config.main(["--config", "shop.yaml", "--run-date", DAYS[-1]]) == 0


def test_times_of_day_without_dates_are_named(shop: Path) -> None:
    for day in DAYS:
        rows = pd.read_csv(f"events_{day}.csv")
        rows.assign(time=rows["time"].str[11:]).to_csv(f"events_{day}.csv", index=False)
    assert "event_time" not in new_config(Wishes("events_*.csv"), Questions(ask=False)).sections["log"]
    with pytest.raises(ConfigError, match="--time time: the column has times of day such as"):
        new_config(Wishes("events_*.csv", time="time"), Questions(ask=False))


@pytest.mark.parametrize(
    "name, values, is_asked",
    [
        ("timestamp", "1767225600.123 1767225700.5", True),
        ("createdAt", "Monday Tuesday", True),
        ("watching_times", "0.25 1.5", False),
        ("birth_date", "May June", False),
    ],
)
def test_a_time_that_no_type_reads_is_questioned(shop: Path, name: str, values: str, is_asked: bool) -> None:
    for day in DAYS:
        rows = pd.read_csv(f"events_{day}.csv").drop(columns="time")
        rows.assign(**{name: values.split() * (len(rows) // 2)}).to_csv(f"events_{day}.csv", index=False)
    questions = Questions(ask=False)
    assert "event_time" not in new_config(Wishes("events_*.csv"), questions).sections["log"]
    asked = [text for text in questions.open if text.startswith(f"Does {name} have the time of each row?")]
    assert len(asked) == is_asked


@pytest.mark.parametrize("has_shown", [True, False], ids=["shown items", "only choices"])
def test_prices_that_vary_become_last_values_of_items(shop: Path, has_shown: bool) -> None:
    """Numbers that do not depend on the item stay what they were."""
    draw = np.random.default_rng(5)
    for day in DAYS:
        events = pd.read_csv(f"events_{day}.csv")
        listed = events["item"].str[-3:].astype(int) + 10
        events["price"] = (listed * draw.choice([1, 0.9], len(events))).round(2)
        events["seconds"] = draw.integers(0, 500, len(events))
        if has_shown:
            events["event"] = (events["event"] != "view").astype(int)
            events = events.rename(columns={"event": "clicked"})
        events.to_csv(f"events_{day}.csv", index=False)
    assert _init() == 0
    config = load_config("shop.yaml")
    assert config.last_values is not None
    assert config.last_values.columns == ["price"]
    assert config.scopes.item == ["last_price", "item"]
    assert config.scopes.context == (["seconds"] if has_shown else [])
    assert list(config.score.context) == config.scopes.context
    assert ("last_price" in config.log.names, "price" in config.log.names) == (False, True)
    assert check_config.main(["--config", "shop.yaml", "--run-date", DAYS[-1]]) == 0
    text = (shop / "shop.yaml").read_text()
    assert "log.price" not in text
    assert ("log.seconds" in text) != has_shown


def _shown(label: dict[str, Any]) -> None:
    """Replaces the events of the shop by shown items, of which a fifth are clicked."""
    draw = np.random.default_rng(6)
    ((name, (click, no_click)),) = label.items()
    for day in DAYS:
        events = pd.read_csv(f"events_{day}.csv")
        events[name] = np.where(events.pop("event") != "view", click, no_click)
        is_click = (events[name] == click).to_numpy()
        n = len(events)
        events["share"] = draw.integers(0, 2, n)
        events["watchingTime"] = draw.integers(0, 500, n)
        events["past_likes"] = draw.integers(0, 500, n)
        events["position"] = draw.integers(0, 9, n)
        events["aspect_ratio"] = draw.integers(0, 9, n) / 8
        events["seconds"] = np.where(is_click, draw.integers(0, 300, n), 0)
        events["reason"] = np.where(is_click & (draw.random(n) < 0.3), draw.choice(["menu", "home"], n), None)
        events["rare"] = np.where(draw.random(n) < 0.005, "b", "a")
        events.to_csv(f"events_{day}.csv", index=False)


@pytest.mark.parametrize(
    "label", [{"clicked": (1, 0)}, {"is_click": (True, False)}, {"event": ("click", "impression")}], ids=str
)
def test_what_follows_from_the_click_is_no_feature(shop: Path, label: dict[str, Any]) -> None:
    """By the names of columns, or because only clicks have other values than the most frequent one."""
    _shown(label)
    questions = Questions(ask=False)
    config = new_config(Wishes("events_*.csv"), questions)
    assert config.sections["scopes"]["context"] == ["past_likes", "position", "aspect_ratio", "rare"]
    assert [*config.sections["score"]["context"]] == ["past_likes", "position", "aspect_ratio", "rare"]
    left_out = {name: why for _, name, why in config.left_out}
    by_name = "its name says what users do with an item after they see it"
    assert [left_out["share"], left_out["watchingTime"]] == [by_name, by_name]
    assert left_out["seconds"].endswith(
        "of the clicks, but only 0.0% of the other rows, have unusual values of it"
    )
    assert set(left_out) == {"share", "watchingTime", "seconds", "reason"}
    declared = {column["name"] for column in config.sections["log"]["columns"]}
    assert not declared & set(left_out)
    assert questions.open == [
        "Are the values of share, watchingTime, seconds, reason known before the click? They seem to follow from "
        "it, so they are not features. If they are known before, add them to log.columns, features and scopes"
    ]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_values_of_the_context_have_the_types_of_their_columns(shop: Path, form: str) -> None:
    """Times have no value, because the default of `score.context` has one for them."""
    events = pd.concat([pd.read_csv(f"events_{day}.csv") for day in DAYS], ignore_index=True)
    n = len(events)
    events["clicked"] = (events.pop("event") != "view") * 1
    for name, values in {
        "logged_in": [True, True, False],
        "since": [pd.Timestamp("2026-01-01").date()] * 2 + [pd.Timestamp("2025-12-01").date()],
        "tags": [["b", "a"], ["b", "a"], ["c"]],
        "hour": [20, 20, 7],
        "wind": [1.5, 1.5, 2.0],
        "app": ["web", "web", "ios"],
    }.items():
        events[name] = (values * n)[:n]
    if form == "csv":
        events["logged_in"] = events["logged_in"].map({True: "t", False: "f"})
        events.assign(tags=events["tags"].str.join("|")).to_csv("log.csv", index=False)
    elif form == "jsonl":
        events.assign(since=events["since"].astype(str)).to_json("log.jsonl", orient="records", lines=True)
    else:
        events.to_parquet("log.parquet")
    assert init.main([f"log.{form}", "--yes", "--name", "log"]) == 0
    config = load_config("log.yaml")
    assert sorted(config.scopes.context) == ["app", "hour", "logged_in", "since", "tags", "wind"]
    expected = {"logged_in": 1, "tags": ["b", "a"], "hour": 20, "wind": 1.5, "app": "web"}
    assert config.score.context == expected


def test_addresses_of_users_are_declared_but_no_features(shop: Path) -> None:
    users = pd.read_csv("users.csv")
    users.assign(mail=users["user"] + "@shop.example").to_csv("users.csv", index=False)
    config = new_config(Wishes("events_*.csv", users="users.csv"), Questions(ask=False))
    assert {"name": "mail", "type": "string"} in config.sections["users"]["columns"]
    assert ("users", "mail", "it has e-mail addresses") in config.left_out


def test_several_shown_items_in_a_named_column_are_named(tmp_path: Path) -> None:
    path = tmp_path / "behaviors.tsv"
    rows = "".join(f"{row}\tU{row % 40}\tN1 N2\tN{row % 9}-0 N{row % 7}-1 N3-0\n" for row in range(200))
    path.write_text("id\tvisitor\thistory\timpressions\n" + rows)
    with pytest.raises(ConfigError, match=r"impressions .* has several shown items in one field, such as 'N"):
        new_config(Wishes(str(path)), Questions(ask=False))


def _news(folder: Path) -> None:
    """Writes displays and news in the layout of MIND: no header, several shown news in one field."""
    rng = np.random.default_rng(0)
    news = [f"N{number}" for number in range(60)]
    words = np.array(
        [
            "storm",
            "team",
            "market",
            "royal",
            "deal",
            "game",
            "house",
            "city",
            "star",
            "win",
            "vote",
            "plan",
            "week",
            "home",
        ]
    )
    with (folder / "news.tsv").open("w") as file:
        for row, name in enumerate(news):
            title = " ".join(rng.choice(words, 8)).capitalize()
            title = [f'"{title}"', f'"{title}', title][min(row % 20, 2)]  # quotes need not be balanced
            about = " ".join(rng.choice(words, 30))
            entities = json.dumps([{"Label": "A city, a state", "Confidence": 1.0}] * (row % 2))
            kind = ["sports", "finance", "lifestyle"][row % 3]
            address = f"https://news.example/{row}.html"
            file.write(f"{name}\t{kind}\t{kind}_{row % 5}\t{title}\t{about}\t{address}\t{entities}\t[]\n")
    before = {f"U{user}": list(rng.choice(news, user % 6, replace=False)) for user in range(40)}
    with (folder / "behaviors.tsv").open("w") as file:
        for row in range(300):
            user, at = f"U{rng.integers(40)}", pd.Timestamp("2019-11-09") + pd.Timedelta(minutes=31 * row)
            time = f"{at.month}/{at.day}/{at.year} {at.hour % 12 or 12}:{at:%M:%S %p}"
            shown = rng.choice(60, rng.integers(2, 12), replace=False)
            clicked = (shown % 3 == row % 3) & (rng.random(len(shown)) < 0.6)
            shows = " ".join(f"{news[one]}-{int(click)}" for one, click in zip(shown, clicked, strict=True))
            file.write(f"{row + 1}\t{user}\t{time}\t{' '.join(before[user])}\t{shows}\n")


def test_displays_of_several_items_in_one_field_get_a_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _news(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert init.main(["behaviors.tsv", "--items", "news.tsv", "--yes", "--name", "news"]) == 0
    shown = capsys.readouterr()
    summary = json.loads(shown.out.splitlines()[-1])
    assert summary["questions"] == []
    config = load_config("news.yaml")
    assert config.keys is not None
    assert config.items is not None
    assert config.log.event_time is not None
    assert config.keys.columns == ["user", "item", "display"]
    assert (config.log.format, config.log.label.column, config.log.event_time.column) == (
        "displays",
        "label",
        "time",
    )
    assert config.items.title == "c4"
    assert config.scopes.user == ["items_before", "user"]
    assert {"c2", "c3", "item"} <= set(config.scopes.item)
    assert not {"c7", "c8"} & set(config.scopes.item)
    lists = next(group for group in config.features if group.columns == ["items_before"])
    assert lists.ops == [{"categorify": {"min_count": 1, "share": "item", "counts": False}}]
    assert check_config.main(["--config", "news.yaml", "--run-date", summary["run_date"]]) == 0
    checked = json.loads(capsys.readouterr().out.splitlines()[-1])
    items = sum(len(line.split("\t")[4].split()) for line in Path("behaviors.tsv").read_text().splitlines())
    assert (checked["rows_in"], checked["rejected"]) == (items, 0)


def test_lists_of_displays(tmp_path: Path) -> None:
    _news(tmp_path)
    sections = new_config(
        Wishes(str(tmp_path / "behaviors.tsv"), items=str(tmp_path / "news.tsv")), Questions(ask=False)
    )
    (tmp_path / "news.yaml").write_text(
        init.yaml_of(sections, ()).replace(sections.sections["lake"], str(tmp_path / "lake"))
    )
    fast = ["--set", "train.epochs=1", "--set", "gate.replicates=100"]
    command = ["jobs/nightly.py", "--config", str(tmp_path / "news.yaml"), "--run-date", sections.run_date]
    done = subprocess.run(
        [sys.executable, *command, "--retrain", *fast],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lists = LakePaths(str(tmp_path / "lake")).recommendations.partition(sections.run_date)
    frame = pd.read_parquet(lists.path)
    assert set(frame.groupby("user_id").size()) == {10}
    lines = (tmp_path / "behaviors.tsv").read_text().splitlines()
    assert set(frame.user_id) == {line.split("\t")[1] for line in lines}


def test_an_id_of_very_many_rows_is_questioned(shop: Path) -> None:
    for day in DAYS:
        rows = pd.read_csv(f"events_{day}.csv")
        rows.loc[::3, "user"] = "unknown"
        rows.to_csv(f"events_{day}.csv", index=False)
    questions = Questions(ask=False)
    new_config(Wishes("events_*.csv"), questions)
    assert [text.split(";")[0] for text in questions.open if NO_REPEATS not in text] == [
        "Is 'unknown' a user? 34% of the rows have this user"
    ]


def test_rows_without_a_time_raise_the_limit_of_rejected_rows(shop: Path) -> None:
    for day in DAYS:
        rows = pd.read_csv(f"events_{day}.csv")
        rows.loc[::10, "time"] = None
        rows.to_csv(f"events_{day}.csv", index=False)
    assert _init() == 0
    assert load_config("shop.yaml").quality.max_bad_share == 0.15
    assert "10.0% of the rows read have no time. Such rows are not used" in (shop / "shop.yaml").read_text()
    assert check_config.main(["--config", "shop.yaml", "--run-date", DAYS[-1]]) == 0


def test_events_of_files_without_names_are_known_to_check(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for day in DAYS:
        rows = pd.read_csv(f"events_{day}.csv")
        rows.to_csv(f"events_{day}.csv", index=False, header=False)
    assert _init() == 0
    text = (shop / "shop.yaml").read_text()
    for name in ("event", "label"):
        (shop / "shop.yaml").write_text(
            text.replace("event, type", f"{name}, type").replace("column: event,", f"column: {name},")
        )
        capsys.readouterr()
        assert check_config.main(["--config", "shop.yaml", "--run-date", DAYS[-1]]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["unknown_events"] == []


def test_many_small_files_are_a_small_log(shop: Path) -> None:
    config = new_config(Wishes("events_*.csv"), Questions(ask=False)).sections
    # A batch has 512 rows of the log: four drawn rows stand beside each.
    assert (config["train"]["epochs"], config["train"]["global_batch_size"]) == (16, 2560)


def test_a_log_of_choices_gets_the_measured_settings(shop: Path) -> None:
    """Those of benchmarks/lists.yaml, except for numbers of rows."""
    chosen = new_config(Wishes("events_*.csv"), Questions(ask=False)).sections
    measured = yaml.safe_load((ROOT / "benchmarks/lists.yaml").read_text())
    assert {"item": "item", **chosen["model"]} == measured["model"]
    assert chosen["history"]["length"] == measured["history"]["length"]
    for key in ("epochs", "keep", "shuffle", "negatives", "loss", "learning_rate", "embedding_learning_rate"):
        assert chosen["train"][key] == measured["train"][key], key


def test_questions_are_asked_or_written(tmp_path: Path) -> None:
    answers = io.StringIO("nonsense\n2\n")
    asked = Questions(ask=True, _input=answers, _output=io.StringIO())
    assert asked.choose("Which?", ["a", "b"]) == "b"
    assert (
        Questions(ask=True, _input=io.StringIO(""), _output=io.StringIO()).choose("Which?", ["a", "b"]) == "a"
    )
    silent = Questions(ask=False)
    assert silent.choose("Which?", ["a", "b"]) == "a"
    assert silent.open == ["Which? a was taken; other possible answers: b"]


def _german(shop: Path) -> None:
    """Gives the events of the shop names that `init` does not know."""
    for day in DAYS:
        rows = pd.read_csv(shop / f"events_{day}.csv").rename(columns={"event": "ereignis"})
        rows["ereignis"] = rows["ereignis"].map({"view": "ansicht", "cart": "korb", "purchase": "kauf"})
        rows.to_csv(shop / f"events_{day}.csv", index=False)


def test_a_column_of_unknown_events_is_asked_for(shop: Path) -> None:
    _german(shop)
    silent = Questions(ask=False)
    assert "label" not in new_config(Wishes("events_*.csv"), silent).sections["log"]
    assert silent.open[0] == (
        "Which column says what the user did (viewed, bought)? no column: every row is a click was taken; "
        "other possible answers: ereignis"
    )
    asked = Questions(ask=True, _input=io.StringIO("2\n"), _output=io.StringIO())
    label = new_config(Wishes("events_*.csv"), asked).sections["log"]["label"]
    assert label["column"] == "ereignis"
    assert label["weights"] == {"ansicht": 1.0, "kauf": 1.0, "korb": 1.0}


def test_a_log_with_a_flag_and_a_rating_is_asked_about(shop: Path) -> None:
    for day in DAYS:
        rows = pd.read_csv(f"events_{day}.csv")
        rows["rating"], rows["purchased"] = np.arange(len(rows)) % 5 + 1, (rows["event"] == "purchase") * 1
        rows.drop(columns="event").to_csv(f"events_{day}.csv", index=False)
    silent = Questions(ask=False)
    assert new_config(Wishes("events_*.csv"), silent).sections["log"]["label"] == {"column": "purchased"}
    assert silent.open[0] == (
        "Which column says which rows are clicks? purchased was taken; other possible answers: rating"
    )
    asked = Questions(ask=True, _input=io.StringIO("rating\n"), _output=io.StringIO())
    label = new_config(Wishes("events_*.csv"), asked).sections["log"]["label"]
    assert label == {"column": "rating", "positive_at_least": 4.0}


def test_a_doubtful_column_of_events_is_asked_for(shop: Path) -> None:
    for day in DAYS:
        rows = pd.read_csv(f"events_{day}.csv").rename(columns={"event": "content_type"})
        rows["content_type"] = rows["content_type"].map(
            {"view": "a", "cart": "live stream", "purchase": "play"}
        )
        rows.to_csv(f"events_{day}.csv", index=False)
    silent = Questions(ask=False)
    label = new_config(Wishes("events_*.csv"), silent).sections["log"]["label"]
    assert label["positive"] == ["live stream", "play"]
    assert silent.open[0] == (
        "Does content_type say what the user did? If so, clicks are the events ['live stream', 'play'] of "
        "content_type, and rows with ['a'] are left out. yes was taken; other possible answers: no column: "
        "every row is a click"
    )
    asked = Questions(ask=True, _input=io.StringIO("2\n"), _output=io.StringIO())
    assert "label" not in new_config(Wishes("events_*.csv"), asked).sections["log"]


def test_a_text_as_label_has_events(shop: Path) -> None:
    _german(shop)
    silent = Questions(ask=False)
    sections = new_config(Wishes("events_*.csv", label="ereignis"), silent).sections
    assert sections["log"]["label"]["positive"] == ["ansicht", "kauf", "korb"]
    assert "history" in sections
    assert silent.open[0].startswith("Which events of ereignis are clicks?")
    with pytest.raises(ConfigError, match="--label user: the column has 60 different values"):
        new_config(Wishes("events_*.csv", label="user"), Questions(ask=False))


def test_check_names_events_that_no_row_has(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _init() == 0
    written = (shop / "shop.yaml").read_text()
    (shop / "shop.yaml").write_text(written.replace("purchase", "purchased"))
    capsys.readouterr()
    assert check_config.main(["--config", "shop.yaml", "--run-date", DAYS[-1]]) == 0
    shown = capsys.readouterr()
    assert "none of these rows has the events ['purchased'] of log.label" in shown.err + shown.out
    assert json.loads(shown.out.splitlines()[-1])["unknown_events"] == ["purchased"]


def test_without_a_header_the_names_are_roles(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    shop_log(tmp_path / "in", header=False)
    for table in ("users.csv", "items.csv"):
        (tmp_path / "in" / table).unlink()
    config = new_config(Wishes(str(tmp_path / "in"), name="plain"), Questions(ask=False))
    assert [column["name"] for column in config.sections["log"]["columns"]] == [
        "time",
        "user",
        "item",
        "event",
    ]
    assert config.sections["log"]["format"] == "tsv"
    assert yaml.safe_dump(config.sections)


def test_a_log_without_users_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "sums.csv"
    path.write_text("region,amount\n" + "north,1.5\nsouth,2.5\n" * 20)
    with pytest.raises(ConfigError, match="looks like the user or the item") as caught:
        new_config(Wishes(str(path)), Questions(ask=False))
    assert "--user COLUMN --item COLUMN" in caught.value.remedy


def test_a_table_of_something_else_is_refused(shop: Path) -> None:
    (shop / "other.csv").write_text("code,value\n" + "".join(f"x{row},{row}\n" for row in range(30)))
    with pytest.raises(ConfigError, match="has the values of the log's column 'item'"):
        new_config(Wishes("events_*.csv", items="other.csv"), Questions(ask=False))


def test_check_names_the_row_that_a_run_would_refuse(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _init() == 0
    day = shop / f"events_{DAYS[3]}.csv"
    lines = day.read_text().splitlines()
    day.write_text("\n".join([lines[0], *(f"never{line[19:]}" for line in lines[1:])]) + "\n")
    assert check_config.main(["--config", "shop.yaml", "--run-date", DAYS[-1]]) == 3
    shown = capsys.readouterr().err
    assert f"400 of the first 400 rows of {DAYS[3]} would be quarantined" in shown
    assert "line 2" in shown
    assert "'never'" in shown


def test_check_refuses_times_of_other_days(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _init() == 0
    (shop / f"events_{DAYS[3]}.csv").write_text((shop / f"events_{DAYS[2]}.csv").read_text())
    assert check_config.main(["--config", "shop.yaml", "--run-date", DAYS[-1]]) == 3
    assert f"400 of the first 400 valid rows of {DAYS[3]} have times on other days" in capsys.readouterr().err


def test_lists_of_a_log_of_choices_are_ranked_by_a_blend_if_it_is_better(shop: Path) -> None:
    """The inverse matrix of EASE grows with the square of the number of items."""
    for day in DAYS:
        pd.read_csv(f"events_{day}.csv").drop(columns="event").to_csv(f"events_{day}.csv", index=False)
    assert _init() == 0
    config = load_config("shop.yaml")
    assert (config.score.blend, config.candidates.retriever) == ("auto", None)
    names = ["retrieval", "item_knn", "ease", "popular"]
    assert [source.name for source in config.candidates.sources] == names
    assert {source.model_dump()["n"] for source in config.candidates.sources} == {300}
    assert [source["source"] for source in blended_sources(5_001, 50)] == [names[0], names[1], names[3]]
    assert {source["n"] for source in blended_sources(5_001, 50)} == {500}
