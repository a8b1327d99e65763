"""champion.py: what it shows, what it changes, and how it refuses. No Spark."""

from __future__ import annotations

import json
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from jobs import champion
from storage import file_io
from storage.paths import LakePaths
from tests.processes import fork_server
from training.registry import mlflow_mirror
from training.registry.champion_history import read_overrides
from training.registry.refits import Refit, record_refit
from training.registry.versions import ChampionDecision, champion_as_of, model_path, record_decision

NAME = "generated"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LakePaths:
    """Three runs: v1 first, v2 better, v3 kept out."""
    monkeypatch.setattr(mlflow_mirror, "set_aliases", lambda *_: None)
    lake_of_runs = LakePaths(str(tmp_path))
    between = {"difference": 0.0022, "low": 0.0008, "high": 0.0035, "confidence": 0.95, "replicates": 1000}
    decisions: list[tuple[str, str, str | None, bool, dict[str, Any]]] = [
        ("2026-01-05", "v1aaaa", None, True, {}),
        ("2026-01-06", "v2bbbb", "v1aaaa", True, {"auc": between}),
        ("2026-01-07", "v3cccc", "v2bbbb", False, {"auc": {**between, "low": -0.0061}}),
    ]
    for date, version, before, promoted, intervals in decisions:
        file_io.replace_json(f"{model_path(lake_of_runs, NAME, version)}/model.json", {"parent": before})
        after = version if promoted else before
        metrics = {"challenger": {"auc": 0.7612}}
        decision = ChampionDecision(
            version,
            before,
            promoted,
            after,
            f"reason of {version}",
            metrics,
            intervals,
            (),
            {"parent": before},
        )
        record_decision(lake_of_runs, NAME, date, decision)
    return lake_of_runs


def call(lake: LakePaths, run_date: str, *words: str) -> int:
    config = ["--config", "conf/datasets/generated.yaml", "--set", f"lake={lake.root}"]
    return champion.main([*config, "--run-date", run_date, "--by", "ada", *words])


def pin_in_a_process(root: str, version: str, start: Event) -> None:
    mlflow_mirror.set_aliases = lambda *_: None
    start.wait(60)
    assert call(LakePaths(root), "2026-01-08", "--pin", version, "--why", f"of {version}") == 0


@pytest.mark.processes
def test_eight_pins_at_once_leave_eight_records(lake: LakePaths) -> None:
    names = [f"w{number}aaaa" for number in range(8)]
    for version in names:
        file_io.replace_json(f"{model_path(lake, NAME, version)}/model.json", {"parent": None})
    with fork_server(__name__) as context:
        start = context.Event()
        processes = [
            context.Process(target=pin_in_a_process, args=(lake.root, version, start)) for version in names
        ]
        for process in processes:
            process.start()
        start.set()
        for process in processes:
            process.join(120)
        assert [process.exitcode for process in processes] == [0] * 8
    recorded = list(read_overrides(lake, NAME, "2026-01-08"))
    assert sorted(override.champion for override in recorded) == names
    assert sorted(override.why for override in recorded) == [f"of {version}" for version in names]


def test_the_history_says_who_serves_since_when_and_why(
    lake: LakePaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(lake, "2026-01-07") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "generated on 2026-01-07: v2bbbb serves."
    assert lines[1] == "  Champion since 2026-01-06. reason of v2bbbb"
    rows = [line.split() for line in lines if line.startswith("  2026")]
    assert rows[0] == ["2026-01-05", "promoted", "v1aaaa", "-", "0.7612", "-", "-", "v1aaaa"]
    gained = ["0.7612", "+0.0022", "+0.0008", "to", "+0.0035", "v2bbbb"]
    assert rows[1] == ["2026-01-06", "promoted", "v2bbbb", "v1aaaa", *gained]
    assert rows[2][:4] == ["2026-01-07", "kept", "out", "v3cccc"]
    assert max(map(len, lines[:-1])) <= 120
    summary = json.loads(lines[-1])
    assert (summary["job"], summary["champion"], summary["changed"]) == ("champion", "v2bbbb", False)


def test_a_date_sees_nothing_later(lake: LakePaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(lake, "2026-01-05") == 0
    text = capsys.readouterr().out
    assert "v1aaaa serves" in text
    assert "v2bbbb" not in text
    assert call(lake, "2026-01-04") == 0
    assert "nothing has been decided up to 2026-01-04" in capsys.readouterr().out


def test_a_rollback_is_told_and_stands_in_the_history(
    lake: LakePaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(lake, "2026-01-08", "--rollback", "--why", "clicks fell by half") == 0
    text = capsys.readouterr().out
    summary = json.loads(text.splitlines()[-1])
    assert (summary["champion"], summary["withdrawn"], summary["changed"]) == ("v1aaaa", ["v2bbbb"], True)
    assert "v2bbbb is out: rollback of 2026-01-08 by ada: clicks fell by half." in text
    assert "nightly --run-date 2026-01-08" in " ".join(text.split())
    assert call(lake, "2026-01-08", "--rollback", "--why", "again") == 0
    text = capsys.readouterr().out
    assert "Nothing was changed" in text
    assert text.count("ada: clicks fell by half") == 2  # above the table and in it
    assert champion_as_of(lake, NAME, "2026-01-07") == "v2bbbb"


def test_a_pin_is_shown_until_it_is_released(lake: LakePaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(lake, "2026-01-08", "--pin", "v1aa", "--why", "sale day") == 0
    text = capsys.readouterr().out
    assert "It is pinned: pin of 2026-01-08 by ada: sale day." in text
    assert json.loads(text.splitlines()[-1])["pinned"]
    assert call(lake, "2026-01-09", "--release", "--why", "over") == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["champion"], summary["pinned"]) == ("v1aaaa", False)


@pytest.mark.parametrize(
    "words, code, text",
    [
        (["--rollback"], 2, "a rollback needs a reason"),
        (
            ["--rollback", "--to", "v7777", "--why", "x"],
            3,
            "'v7777' is none of the champions up to 2026-01-08",
        ),
        (["--pin", "v7777", "--why", "x"], 3, "'v7777' is none of the complete models"),
    ],
)
def test_refusals_have_a_code_and_a_remedy(
    lake: LakePaths, capsys: pytest.CaptureFixture[str], words: list[str], code: int, text: str
) -> None:
    assert call(lake, "2026-01-08", *words) == code
    printed = capsys.readouterr().err
    assert text in printed
    assert "what to do" in printed
    assert champion_as_of(lake, NAME, "2026-01-08") == "v2bbbb"


def test_to_belongs_to_a_rollback(lake: LakePaths, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        call(lake, "2026-01-08", "--to", "v1aaaa")
    assert ended.value.code == 2
    assert "--to can be given only with --rollback" in capsys.readouterr().err


def test_a_refit_is_shown_while_it_serves(lake: LakePaths, capsys: pytest.CaptureFixture[str]) -> None:
    record_refit(lake, NAME, Refit("2026-01-06", "v2bbbb", "r2bbbb"))
    for refit, serving in (("true", "r2bbbb"), ("false", None)):
        assert call(lake, "2026-01-07", "--set", f"train.refit={refit}") == 0
        *lines, summary = capsys.readouterr().out.splitlines()
        assert lines[0] == "generated on 2026-01-07: v2bbbb serves."
        assert ("  Its refit r2bbbb makes the lists." in lines) == (serving is not None)
        rows = [line.split() for line in lines if line.startswith("  2026")]
        assert ["2026-01-06", "refit", "r2bbbb", "v2bbbb", "-", "-", "-", "v2bbbb"] in rows
        assert (json.loads(summary)["champion"], json.loads(summary)["refit"]) == ("v2bbbb", serving)
    words = ["--set", "train.refit=true", "--rollback", "--why", "clicks fell"]
    assert call(lake, "2026-01-08", *words) == 0
    summary = capsys.readouterr().out.splitlines()[-1]
    assert (json.loads(summary)["champion"], json.loads(summary)["refit"]) == ("v1aaaa", None)


def test_reasons_and_names_reach_the_terminal_without_control_characters(
    lake: LakePaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(lake, "2026-01-07", "--rollback", "--why", "bad \x1b[2Jlists") == 0
    assert call(lake, "2026-01-07") == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert r"bad \x1b[2Jlists" in text
