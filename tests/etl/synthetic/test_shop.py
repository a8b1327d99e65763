"""The export of the invented shop: the same files for the same seed, new days only, and a signal."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from jobs import shop_example
from jobs.new_config.configuration import new_config
from jobs.new_config.log_columns import Wishes
from jobs.new_config.questions import Questions


def write(folder: Path, *options: str) -> int:
    return shop_example.main([str(folder), "--users", "80", *options])


def events(folder: Path) -> pd.DataFrame:
    return pd.concat(pd.read_csv(path) for path in sorted(folder.glob("events_*.csv")))


def test_more_days_add_files_and_leave_the_others_alone(tmp_path: Path) -> None:
    assert write(tmp_path / "a", "--days", "2") == 0
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "a").iterdir()}
    assert set(before) == {"users.csv", "items.csv", "events_2026-01-01.csv", "events_2026-01-02.csv"}
    assert write(tmp_path / "a", "--days", "3") == 0
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "a").iterdir()}
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"events_2026-01-03.csv"}
    assert write(tmp_path / "b", "--days", "3") == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()} == {
        name: content for name, (content, _) in after.items()
    }
    assert write(tmp_path / "c", "--days", "3", "--seed", "2") == 0
    assert (tmp_path / "c/items.csv").read_bytes() != after["items.csv"][0]


def test_the_events_are_of_their_day_and_of_the_tables(tmp_path: Path) -> None:
    write(tmp_path, "--days", "2")
    users, items = pd.read_csv(tmp_path / "users.csv"), pd.read_csv(tmp_path / "items.csv")
    for path in tmp_path.glob("events_*.csv"):
        of_day = pd.read_csv(path)
        assert set(of_day.time.str[:10]) == {path.stem.removeprefix("events_")}
        assert of_day.time.is_monotonic_increasing
    log = events(tmp_path)
    assert set(log.user) <= set(users.user)
    assert set(log.item) <= set(items.item)
    assert set(log.event) == {"view", "cart", "purchase"}
    assert items.title.str.contains('"').any()
    assert items.title.str.contains(",").all()
    assert not all(title.isascii() for title in items.title)


def test_users_have_tastes_and_items_go_together(tmp_path: Path) -> None:
    """Half of a user's views are in one category of eight; and after an item, one item is viewed far more often."""
    write(tmp_path, "--days", "6", "--users", "200")
    log = events(tmp_path).merge(pd.read_csv(tmp_path / "items.csv"), on="item")
    views = log[log.event == "view"].sort_values(["user", "time"])
    shares = views.groupby("user").category.agg(lambda names: names.value_counts(normalize=True).iloc[0])
    assert shares.mean() > 0.4
    following = views.groupby("user").item.shift(-1)
    pairs = pd.DataFrame({"item": views.item, "next": following}).dropna()
    most = pairs.groupby("item").next.agg(lambda items: items.value_counts(normalize=True).iloc[0])
    assert most.mean() > 0.25


def test_init_configures_it_without_a_question(tmp_path: Path) -> None:
    write(tmp_path, "--days", "5")
    questions = Questions(ask=False)
    wishes = Wishes(
        str(tmp_path / "events_*.csv"), users=str(tmp_path / "users.csv"), items=str(tmp_path / "items.csv")
    )
    config = new_config(wishes, questions)
    assert questions.open == []
    assert (config.sections["items"]["title"], config.sections["items"]["image"]) == ("title", "image")
    assert config.run_date == "2026-01-05"


@pytest.mark.parametrize("options", [["--days", "0"], ["--users", "0"]])
def test_a_shop_without_days_or_users_is_refused(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert shop_example.main([str(tmp_path / "shop"), *options]) == 2
    assert "must be at least 1" in capsys.readouterr().err
    assert not (tmp_path / "shop").exists()


def test_a_folder_that_cannot_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert shop_example.main([str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_the_summary_names_the_days(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "--days", "2")
    summary = json.loads(capsys.readouterr().out)
    assert (summary["first_day"], summary["last_day"]) == ("2026-01-01", "2026-01-02")
