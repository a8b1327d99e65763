"""`init` writes a configuration with which `check_config` and `nightly` run, for logs that nobody described."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from conf.errors import ConfigError
from conf.load import load_config
from jobs import check_config, init
from jobs.new_config.configuration import Wishes, new_config
from jobs.new_config.questions import Questions
from storage.paths import LakePaths
from tests.processes import ROOT, environment

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
    fast = ["--set", "train.epochs=1", "--set", "gate.replicates=100"]
    command = ["jobs/nightly.py", "--config", str(shop / "my.yaml"), "--run-date", DAYS[-1], "--retrain"]
    done = subprocess.run(
        [sys.executable, *command, *fast],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lists = LakePaths(config.lake).recommendations.partition(DAYS[-1])
    assert len(pd.read_parquet(lists.path).user_id.unique()) == 60


def test_the_file_says_what_was_left_out_and_is_not_replaced(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _init("--items", "items.csv") == 0
    text = (shop / "shop.yaml").read_text()
    assert "items.title, because people read it: it is the title of the item" in text
    config = load_config("shop.yaml")
    assert config.items is not None
    assert (config.items.title, config.items.image) == ("title", None)
    assert config.scopes.item == ["price", "item"]
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["run_date"], summary["questions"]) == (DAYS[-1], [])
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
    assert silent.open == ["Which? a was taken; possible are also: b"]


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
    assert silent.open == [
        "Which column says what the user did (viewed, bought)? no column: every row is a click was taken; "
        "possible are also: ereignis"
    ]
    asked = Questions(ask=True, _input=io.StringIO("2\n"), _output=io.StringIO())
    label = new_config(Wishes("events_*.csv"), asked).sections["log"]["label"]
    assert label["column"] == "ereignis"
    assert label["weights"] == {"ansicht": 1.0, "kauf": 1.0, "korb": 1.0}


def test_a_text_as_label_has_events(shop: Path) -> None:
    _german(shop)
    silent = Questions(ask=False)
    sections = new_config(Wishes("events_*.csv", label="ereignis"), silent).sections
    assert sections["log"]["label"]["positive"] == ["ansicht", "kauf", "korb"]
    assert "history" in sections
    assert silent.open[0].startswith("Which events of ereignis are clicks?")
    with pytest.raises(ConfigError, match="--label user: the column has 60 different texts"):
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
        "label",
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
