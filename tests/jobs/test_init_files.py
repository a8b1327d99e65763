"""`init` reads files and tables as other programs write them: exports, indices, hashes, months, long files."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from conf.errors import ConfigError, DataError
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


def test_times_after_today_do_not_decide_the_run_date(shop: Path) -> None:
    rows = pd.concat([pd.read_csv(f"events_{day}.csv") for day in DAYS], ignore_index=True)
    rows.loc[[5, 900], "time"] = ["2037-01-01 03:14:07", "2199-06-01 00:00:00"]
    rows.to_csv("log.csv", index=False)
    assert new_config(Wishes("log.csv"), Questions(ask=False)).run_date == DAYS[-1]
    rows.assign(time="2199-06-01 00:00:00").to_csv("log.csv", index=False)
    assert new_config(Wishes("log.csv"), Questions(ask=False)).run_date == f"{datetime.now(UTC):%Y-%m-%d}"


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
    assert "if these rows are added to the log after the run." in Path("shop.yaml").read_text()
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


def test_a_time_in_an_unknown_notation_is_questioned_with_a_pattern(shop: Path) -> None:
    for day in DAYS:
        rows = pd.read_csv(f"events_{day}.csv")
        rows["time"] = pd.to_datetime(rows["time"]).dt.strftime("%d %B %Y, %H:%M")
        rows.to_csv(f"events_{day}.csv", index=False)
    questions = Questions(ask=False)
    new_config(Wishes("events_*.csv"), questions)
    assert "such as {type: timestamp, format: '%d %B %Y %H:%M'}" in questions.open[0]


N = 300
RNG = np.random.default_rng(4)
USERS, ITEMS = RNG.integers(0, 40, N), RNG.integers(0, 30, N)
TIMES = pd.Timestamp("2026-03-22") + pd.to_timedelta(np.sort(RNG.integers(0, 8 * 86_400, N)), unit="s")


def _ga4() -> pd.DataFrame:
    """Returns events of Google Analytics 4. Views of pages have no item."""
    events = pd.DataFrame({"event_timestamp": TIMES.astype("datetime64[us]").astype(np.int64)})
    events["event_name"] = RNG.choice(["page_view", "view_item", "purchase"], N)
    events["user_pseudo_id"] = [f"{user + 700_000}.{1_700_000_000 + user}" for user in USERS]
    events["device_category"] = RNG.choice(["mobile", "desktop"], N)
    events["ga_session_id"] = 1_700_000_000 + USERS * 10
    events["item_id"] = np.where(events["event_name"] == "page_view", None, [f"SKU_{item}" for item in ITEMS])
    return events


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_events_of_google_analytics_have_a_user_and_an_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The ids of users look like numbers with decimals, and only a part of the rows has an item."""
    monkeypatch.chdir(tmp_path)
    events = _ga4()
    if form == "csv":
        events.to_csv("ga4.csv", index=False)
    else:
        events.to_json("ga4.jsonl", orient="records", lines=True)
    questions = Questions(ask=False)
    chosen = new_config(Wishes(f"ga4.{form}"), questions)
    assert chosen.sections["keys"] == {"user": "user_pseudo_id", "item": "item_id"}
    assert "quality" not in chosen.sections
    (question,) = questions.open
    assert question.startswith(
        "Do rows with the events ['page_view'] have an item in another column than item_id?"
    )
    Path("ga4.yaml").write_text(init.yaml_of(chosen, ()))
    config = load_config("ga4.yaml")
    assert config.log.type_of("user_pseudo_id") == "string"
    assert config.log.label.event_weights == {"view_item": 0.1, "purchase": 1.0}
    named = Questions(ask=False)
    wishes = Wishes(f"ga4.{form}", user="user_pseudo_id", item="item_id")
    assert new_config(wishes, named).sections["log"] == chosen.sections["log"]
    assert named.open == []


def test_ids_and_times_that_parquet_stores_as_floats_are_integers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pandas stores integers as floats if other rows have none; prices stay floats."""
    monkeypatch.chdir(tmp_path)
    log = pd.DataFrame({"user_id": np.where(USERS < 4, np.nan, USERS * 1.0), "item": ITEMS})
    log["at"] = TIMES.astype("datetime64[s]").astype(np.int64) * 1.0
    log.loc[7, "at"] = np.nan
    log.assign(item_price=ITEMS * 1.5).to_parquet("log.parquet")
    chosen = new_config(Wishes("log.parquet"), Questions(ask=False))
    assert chosen.sections["keys"]["user"] == "user_id"
    assert chosen.sections["log"]["event_time"] == {"column": "at", "unit": "s"}
    types = {column.name: column.type for column in chosen.tables["log"].columns}
    assert (types["user_id"], types["at"], types["item_price"]) == ("int", "int", "float")
    Path("log.yaml").write_text(init.yaml_of(chosen, ()))
    assert check_config.main(["--config", "log.yaml", "--run-date", chosen.run_date]) == 0


def test_json_fields_with_points_in_their_names_are_refused(tmp_path: Path) -> None:
    """As in `pandas.json_normalize`. If no used column has such a name, the file can be read."""
    path = tmp_path / "log.jsonl"
    log = pd.DataFrame({"user": USERS, "item": ITEMS, "at": TIMES.astype(str), "utm.source": ITEMS + 500})
    log.to_json(path, orient="records", lines=True)
    chosen = new_config(Wishes(str(path)), Questions(ask=False)).sections
    assert [column["name"] for column in chosen["log"]["columns"]] == ["user", "item", "at"]
    log.rename(columns={"user": "user.id"}).to_json(path, orient="records", lines=True)
    with pytest.raises(DataError, match=r"the name of the field 'user\.id' contains a dot") as caught:
        new_config(Wishes(str(path)), Questions(ask=False))
    assert caught.value.remedy.endswith("log.jsonl > nested_log.jsonl`")


@pytest.mark.processes
def test_arrays_of_objects_are_named_with_a_command(tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    pairs = zip(USERS.tolist(), ITEMS.tolist(), strict=True)
    orders = [{"user": {"id": user}, "at": 5, "lines": [{"product_id": item}]} for user, item in pairs]
    path.write_text("".join(f"{json.dumps(order)}\n" for order in [*orders, {"user": {"id": 7}, "at": 5}]))
    with pytest.raises(ConfigError, match=r"user\.id is the user; lines has arrays of objects") as caught:
        new_config(Wishes(str(path)), Questions(ask=False))
    _, program, _ = caught.value.remedy.split("'")
    if (jq := shutil.which("jq")) is not None:
        rows = subprocess.run([jq, "-c", program, path], capture_output=True, check=True).stdout
        path.write_bytes(rows)
        keys = new_config(Wishes(str(path)), Questions(ask=False)).sections["keys"]
        assert (len(rows.splitlines()), keys) == (N, {"user": "user_id", "item": "product_id"})


def test_an_item_that_other_rows_lack_is_questioned(tmp_path: Path) -> None:
    """If the events do not say which rows have no item, these rows are quarantined."""
    events = _ga4().drop(columns="event_name")
    events.to_csv(tmp_path / "log.csv", index=False)
    questions = Questions(ask=False)
    chosen = new_config(Wishes(str(tmp_path / "log.csv")), questions)
    missing = events["item_id"].isna().mean()
    assert chosen.sections["quality"] == {"max_bad_share": round(1.5 * missing, 2)}
    assert questions.open[0].startswith(
        f"Does item_id have the item of each row? It was taken, but {missing:.1%} of the rows have no value of it"
    )


def test_keys_with_unusual_names_are_questioned(tmp_path: Path) -> None:
    path = str(tmp_path / "log.csv")
    log = pd.DataFrame({"session_id": USERS + 500, "item": ITEMS, "at": TIMES})

    def questions_about(frame: pd.DataFrame, **wishes: str) -> list[str]:
        frame.to_csv(path, index=False)
        questions = Questions(ask=False)
        new_config(Wishes(path, **wishes), questions)
        return [question for question in questions.open if question.startswith("Does ")]

    (question,) = questions_about(log)
    assert question == (
        "Does session_id have the user of each row? It was taken, but no column has a more usual name for the user. "
        "If another column has the user, pass it as --user"
    )
    (question,) = questions_about(log.rename(columns={"session_id": "Bonnummer"}))
    assert "Bonnummer have the user of each row? It was taken, but only because its name says" in question
    (question,) = questions_about(log.rename(columns={"session_id": "user", "item": "ding_nr"}))
    assert "ding_nr have the item of each row? It was taken, but only because its name says" in question
    assert questions_about(log, user="session_id") == []
    assert questions_about(log.rename(columns={"session_id": "user"})) == []


def test_orders_of_shopify_belong_to_e_mail_addresses(tmp_path: Path) -> None:
    """Only the first line of an order has the order's id, and the newest order comes first."""
    path = str(tmp_path / "orders.csv")
    is_first = np.arange(N) % 2 == 0
    orders = pd.DataFrame({"Name": [f"#{1000 + row // 2}" for row in range(N)]})
    orders["Email"] = [f"u{user}@mail.example" for user in USERS.repeat(2)[:N]]
    orders["Created at"] = TIMES.strftime("%Y-%m-%d %H:%M:%S +0100")
    orders["Lineitem quantity"] = RNG.integers(1, 4, N)
    orders["Lineitem sku"] = [f"SNK-{item}" for item in ITEMS]
    orders["Id"] = pd.array(np.where(is_first, 5 * 10**12 + np.arange(N), None), dtype="Int64")
    orders[::-1].to_csv(path, index=False)
    chosen = new_config(Wishes(path), Questions(ask=False)).sections
    assert chosen["keys"] == {"user": "Email", "item": "Lineitem_sku"}
    assert chosen["log"]["event_time"] == {"column": "Created_at"}
    questions = Questions(ask=False)
    keys = new_config(Wishes(path, user="Id"), questions).sections["keys"]
    assert "rows_without_user" not in keys
    assert "but nearly every row has another value" in questions.open[0]
    orders.drop(columns="Email").to_csv(path, index=False)
    with pytest.raises(ConfigError, match="looks like the user of a row"):
        new_config(Wishes(path), Questions(ask=False))


@pytest.mark.parametrize(
    "answer, positive, weights",
    [
        ("1", ["click"], {"impression": 1.0, "click": 1.0}),
        ("2", ["click"], None),
        ("3", ["click", "dwell"], None),
    ],
    ids=["left out", "not clicked", "clicked"],
)
def test_other_events_of_a_log_of_impressions_are_asked_about(
    tmp_path: Path, answer: str, positive: list[str], weights: dict[str, float] | None
) -> None:
    """By default, rows of other events are neither clicks nor shown items."""
    events = pd.DataFrame({"user": USERS, "item": ITEMS, "at": TIMES, "seconds": 0.0})
    events["event"] = RNG.permutation(["impression"] * 200 + ["click"] * 70 + ["dwell"] * 30)
    # Among impressions and clicks, only clicks have other values, so this column follows from the click.
    events.loc[events["event"] != "impression", "seconds"] = RNG.uniform(1, 9, 100).round(2)
    events.to_csv(tmp_path / "log.csv", index=False)
    wishes = Wishes(str(tmp_path / "log.csv"))
    asked = Questions(ask=True, _input=io.StringIO(f"{answer}\n"), _output=io.StringIO())
    label = new_config(wishes, asked).sections["log"]["label"]
    assert label == {"column": "event", "positive": positive, **({"weights": weights} if weights else {})}
    if weights:
        silent = Questions(ask=False)
        chosen = new_config(wishes, silent)
        assert chosen.sections["log"]["label"] == label
        assert [name for _, name, _ in chosen.left_out] == ["seconds"]
        assert (
            "What do the events ['dwell'] mean? nothing: such rows are left out was taken" in silent.open[0]
        )
