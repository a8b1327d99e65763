"""The output of show.py for a user against the tables it reads, and its errors for users without a list."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from conf.errors import DataError
from etl.latest.item_titles import ItemTitle
from jobs import show
from reporting.inspect.user_list import described, find, page
from storage import file_io
from storage.manifest import read_manifest
from storage.paths import LakePaths
from storage.publish import publish_facts
from tests.conftest import ROOT
from tests.delivery.conftest import PublishedRuns
from tests.rewritten import accept_rewritten
from tests.scoring.reference_scores import SPEC
from tests.scoring.scoring_lake import DAYS, RUN_DATE, WORKFLOW, feature_rows


@pytest.fixture
def config(runs: PublishedRuns, tmp_path: Path) -> Path:
    """A configuration file of the lake."""
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(runs.config_of().model_dump(mode="json")))
    return path


def test_the_list_and_its_features_are_those_of_the_tables(runs: PublishedRuns) -> None:
    lists, reference = runs.lists, runs.reference
    user = "u004"
    actual = find(runs.lake, RUN_DATE, user)
    user_rows = lists[lists.user_id == user].sort_values("position")
    columns = ["position", "item_id", "score", "reason"]
    assert pd.DataFrame(actual.entries)[columns].to_numpy().tolist() == user_rows[columns].to_numpy().tolist()
    of_user = reference.users.set_index("user_key").loc[user]
    assert actual.user_features == {
        feature.name: pytest.approx(of_user[feature.name]) for feature in SPEC.scoped("user")
    }
    items = reference.items.set_index("item_key")
    assert actual.item_features == {
        item: {feature.name: pytest.approx(items.loc[item, feature.name]) for feature in SPEC.scoped("item")}
        for item in user_rows.item_id
    }
    rows = pd.concat([feature_rows(reference, day).to_pandas() for day in range(len(DAYS))])
    seen = rows[rows.user_key == user].groupby("item_key").label.agg(["sum", "count"])
    assert actual.history is not None
    assert actual.history.items == {
        item: (int(row["sum"]), int(row["count"])) for item, row in seen.iterrows()
    }


def test_titles_stand_beside_the_items_and_fit_into_a_line(runs: PublishedRuns) -> None:
    user_list = find(runs.lake, RUN_DATE, "u004")
    assert "  title  " not in page(user_list, {})
    items = [entry["item_id"] for entry in user_list.entries]
    clicked = [item for item, _, _ in user_list.history.most_clicked(10)] if user_list.history else []
    titles = {item: ItemTitle(f"Title of {item}") for item in (*items, *clicked)}
    titles[items[0]] = ItemTitle("A very\nlong title \x1b[31m " * 9)
    entries = [{**entry, "title": titles[entry["item_id"]].title} for entry in user_list.entries]
    shown = page(replace(user_list, titles=titles, entries=entries), {})
    assert "#  item  title" in shown
    assert f"{items[1]}  Title of {items[1]} " in shown
    assert all(f"{item}  Title of {item} " in shown for item in clicked if item != items[0])
    assert "A very long title" in shown
    assert "\x1b" not in shown
    assert max(map(len, shown.split("Item features")[0].splitlines()[-8:])) < 140


def test_a_refit_is_named_with_its_champion(runs: PublishedRuns) -> None:
    user_list = find(runs.lake, RUN_DATE, "u004")
    facts = {**user_list.facts, "model_version": "r1", "refit_of": "m1"}
    assert "  model r1 (refit of m1), workflow" in page(replace(user_list, facts=facts), {})


def test_the_page_names_model_workflow_scores_and_reasons(
    runs: PublishedRuns, config: Path, capsys: Any
) -> None:
    code = show.main(["--config", str(config), "--date", RUN_DATE, "--user", "u004"])
    printed = capsys.readouterr().out
    assert code == 0
    facts = read_manifest(runs.lake.recommendations.partition(RUN_DATE)).facts
    assert f"model m1, workflow {WORKFLOW}, scored {facts['scored_at']}" in printed
    user_rows = runs.lists[runs.lists.user_id == "u004"]
    for row in user_rows.itertuples():
        assert f"{row.position}  {row.item_id}  {row.score:.6f}  {row.reason}" in printed
    closing = json.loads(printed.splitlines()[-1])
    assert [entry["item_id"] for entry in closing["list"]] == user_rows.sort_values(
        "position"
    ).item_id.tolist()
    assert (closing["user"], closing["model_version"]) == ("u004", "m1")


@pytest.mark.parametrize("options, has_json", [([], False), (["--json"], True)])
def test_a_terminal_gets_the_table_and_json_only_on_request(
    runs: PublishedRuns,
    config: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    has_json: bool,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert show.main(["--config", str(config), "--date", RUN_DATE, "--user", "u004", *options]) == 0
    printed = capsys.readouterr().out
    assert "List (" in printed
    assert printed.splitlines()[-1].startswith("{") == has_json


def test_ids_are_shown_as_the_values_they_stand_for() -> None:
    names = {"who": {7: "ada"}, "tags": {5: "red", 6: "blue"}}
    features = {"who": 7, "tags": [6, 5, 2], "hash": 7, "age": 0.123456789, "none": None}
    assert (
        described(features, names)
        == "who=ada, tags=[blue, red, (unknown or rare)], hash=7, age=0.123457, none=None"
    )
    assert described({"who": 1}, names) == "who=(null)"
    assert described({"who": 9}, names) == "who=id 9"


@pytest.mark.parametrize(
    "user, date, message",
    [
        ("nobody", RUN_DATE, "user 'nobody' is unknown on 2026-01-05: users/w1 has 37 other users"),
        ("u004", "2026-02-01", "recommendations has no published partition dt=2026-02-01"),
    ],
)
def test_no_list_is_an_error_that_says_why(
    config: Path, capsys: Any, user: str, date: str, message: str
) -> None:
    assert show.main(["--config", str(config), "--date", date, "--user", user]) == 3
    assert message in capsys.readouterr().err


def test_a_user_without_candidates_is_told_from_an_unknown_one(runs: PublishedRuns, tmp_path: Path) -> None:
    """The user's list is removed from a copy of the lake; the candidates still have the user."""
    lake = copied(runs, tmp_path)
    drop_rows(lake, "recommendations", "user_id", "u004")
    with pytest.raises(DataError, match=r"user 'u004' has \d+ candidates on 2026-01-05, but no list"):
        find(lake, RUN_DATE, "u004")
    partition = lake.candidates(WORKFLOW).partition(RUN_DATE)
    for entry in read_manifest(partition).files:
        path = partition.file(entry.path)
        frame = pd.read_parquet(path)
        mine = frame.user_key == "u004"
        frame.loc[mine, "excluded"] = pd.Series([list(range(23))] * int(mine.sum()), index=frame.index[mine])
        frame.to_parquet(path)
    accept_rewritten(partition)
    with pytest.raises(
        DataError, match="'u004' is known on 2026-01-05, but has no candidates: all 23 items are excluded"
    ):
        find(lake, RUN_DATE, "u004")


def test_lists_that_were_held_back_point_to_the_last_good_ones(runs: PublishedRuns, tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path))
    excesses = [{"figure": "churn", "setting": "max_churn", "value": 0.9, "limit": 0.5}]
    facts = {"held_back": True, "before": "2026-01-04", "excesses": excesses}
    publish_facts(lake.list_changes.partition(RUN_DATE), inputs={}, facts=facts)
    with pytest.raises(
        DataError, match=r"not published: they exceed the limits \['max_churn'\][\s\S]*--date 2026-01-04"
    ):
        find(lake, RUN_DATE, "u004")


def test_it_starts_no_spark(config: Path) -> None:
    """Its process asks for no JVM: one without Java answers."""
    job = [sys.executable, "jobs/show.py", "--config", str(config), "--date", RUN_DATE, "--user", "u004"]
    environment = {"PATH": "/nowhere", "JAVA_HOME": "/nowhere", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        job, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["user"] == "u004"


def test_the_page_stands_without_history(runs: PublishedRuns) -> None:
    actual = find(runs.lake, RUN_DATE, "u004")
    without = type(actual)(**{**vars(actual), "history": None})
    assert "the dataset of this date no longer exists" in page(without, {})


def copied(runs: PublishedRuns, folder: Path) -> LakePaths:
    """A copy of the lake."""
    import shutil

    shutil.copytree(runs.lake.root, folder / "lake")
    return LakePaths(str(folder / "lake"))


def drop_rows(lake: LakePaths, table: str, column: str, value: str) -> None:
    """Deletes the rows of a table that have this value."""
    partition = getattr(lake, table).partition(RUN_DATE)
    assert file_io.exists(partition.path)
    for entry in read_manifest(partition).files:
        path = partition.file(entry.path)
        frame = pd.read_parquet(path)
        frame[frame[column] != value].to_parquet(path)
    accept_rewritten(partition)
