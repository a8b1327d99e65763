"""`check_config` reads rows of files that are spread over each day, and says what they lack."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from jobs import check_config, init

pytestmark = pytest.mark.processes

DAYS = [f"2026-01-0{day}" for day in range(1, 6)]
HOURS = 20


@pytest.fixture
def hourly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five days of 20 files with 10 views each; a file in the middle of each day has other events, too."""
    rng = np.random.default_rng(5)
    for day in DAYS:
        (tmp_path / "log" / day).mkdir(parents=True)
        for hour in range(HOURS):
            times = pd.to_datetime(day) + pd.to_timedelta(hour * 3_600 + np.arange(10) * 60, unit="s")
            frame = pd.DataFrame(
                {
                    "time": times.strftime("%Y-%m-%dT%H:%M:%SZ"),
                    "user": [f"u{user}" for user in rng.integers(0, 25, 10)],
                    "item": [f"i{item}" for item in rng.integers(0, 25, 10)],
                    "event": ["view"] * 8 + (["refund", "purchase"] if hour == 10 else ["view"] * 2),
                }
            )
            frame.to_csv(tmp_path / "log" / day / f"{hour:02d}.csv", index=False)
    monkeypatch.chdir(tmp_path)
    assert init.main(["log", "--yes", "--name", "shop"]) == 0
    return tmp_path


def _check(name: str = "shop.yaml", **log: object) -> int:
    if log:
        config = yaml.safe_load(Path("shop.yaml").read_text())
        config["log"] |= log
        Path(name := "changed.yaml").write_text(yaml.safe_dump(config))
    return check_config.main(["--config", name, "--run-date", DAYS[-1]])


def test_init_finds_events_in_files_of_the_middle(hourly: Path) -> None:
    label = yaml.safe_load((hourly / "shop.yaml").read_text())["log"]["label"]
    assert sorted(label["positive"]) == ["purchase", "view"]


def test_events_that_are_left_out_are_counted(hourly: Path, capsys: pytest.CaptureFixture[str]) -> None:
    label = {"column": "event", "positive": ["purchase"], "weights": {"purchase": 1.0}}
    assert _check(label=label) == 0
    shown = capsys.readouterr().out
    summary = json.loads(shown.splitlines()[-1])
    assert (summary["files"], summary["files_read"]) == (100, 80)
    assert "16 of 20" in shown
    assert "rows of 80 of the 100 files of the log were read; a run reads all files" in shown
    views = summary["left_out"] - 5
    assert f"left out because log.label does not name their events: view ({views:,}), refund (5)" in shown


def test_the_last_file_of_a_day_is_read(hourly: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = hourly / "log" / DAYS[2] / f"{HOURS - 1:02d}.csv"
    path.write_text(path.read_text().replace("T", "Q"))
    assert _check() == 3
    assert f"10 of the first 160 rows of {DAYS[2]} would be quarantined" in capsys.readouterr().err


def test_a_run_date_without_rows_is_refused(hourly: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (hourly / "log" / DAYS[-1]).iterdir():
        path.unlink()
    path.write_text("time,user,item,event\n")
    assert _check() == 3
    assert f"the raw log of {DAYS[-1]} has no rows" in capsys.readouterr().err


def test_days_of_another_time_zone_have_a_remedy(hourly: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _check(time_zone="Asia/Tokyo") == 0
    shown = capsys.readouterr().out
    assert "have times on other days than their files in the time zone Asia/Tokyo" in shown
    assert "set log.time_zone, such as log.time_zone=America/New_York" in shown


def test_init_asks_for_the_zone_and_the_order_of_dates(
    hourly: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files of one day lack the rows that show the order of day and month."""
    capsys.readouterr()
    for path in hourly.glob("log/*/*.csv"):
        frame = pd.read_csv(path)
        times = pd.to_datetime(frame["time"]).dt.tz_convert("Asia/Tokyo") - pd.Timedelta("9h")
        frame["time"] = [time.isoformat() for time in times]
        frame.to_csv(path, index=False)
    assert init.main(["log", "--yes", "--name", "zone"]) == 0
    assert yaml.safe_load(Path("zone.yaml").read_text())["log"]["time_zone"] == "Asia/Tokyo"
    question = json.loads(capsys.readouterr().out.splitlines()[-1])["questions"][0]
    assert question.startswith("In which time zone do the days of the files begin?")
    one = pd.DataFrame({"when": ["02/01/2026 10:00", "02/01/2026 11:00"] * 60, "user": range(120), "item": 1})
    one.assign(user=one["user"] % 30, item=one.index % 40).to_csv("one.csv", index=False)
    assert init.main(["one.csv", "--yes"]) == 0
    question = json.loads(capsys.readouterr().out.splitlines()[-1])["questions"][0]
    assert "How are the times of when written" in question
    assert "%d/%m/%Y %H:%M was taken; other possible answers: %m/%d/%Y %H:%M" in question


@pytest.mark.parametrize("click", ["1", "x", "Y"])
def test_rows_without_a_value_of_the_label_are_not_clicked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], click: str
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.arange(400)
    frame = pd.DataFrame({"user_id": rows % 30, "item_id": rows * 7 % 40, "clicked": ""})
    frame.loc[rows % 5 == 0, "clicked"] = click
    frame.to_csv("log.csv", index=False)
    assert init.main(["log.csv", "--yes"]) == 0
    assert check_config.main(["--config", "log.yaml", "--run-date", DAYS[-1]]) == 0
    counts = capsys.readouterr().out.split(f"\n  {DAYS[-1]} ")[1].split("\n")[0].split()
    assert counts[2:] == ["400", "80", "0", "0", "0"]
