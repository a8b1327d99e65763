"""Which model is champion when, and that MLflow hears of it."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from conf.errors import DataError
from storage import file_io
from storage.paths import LakePaths
from training.registry import mlflow_mirror
from training.registry.refits import Refit, record_refit
from training.registry.versions import (
    ChampionDecision,
    challenger_of,
    champion_as_of,
    code_version,
    record_decision,
    record_run,
    set_aliases,
)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """No MLflow: collects the aliases that would be set."""
    calls: list[dict[str, str]] = []
    monkeypatch.setattr(
        mlflow_mirror, "set_aliases", lambda lake, name, versions: calls.append(dict(versions))
    )
    return calls


def decide(
    lake: LakePaths, run_date: str, challenger: str, *, promoted: bool = True, before: str | None = None
) -> None:
    after = challenger if promoted else before
    record_decision(
        lake, "m", run_date, ChampionDecision(challenger, before, promoted, after, "because", {"auc": 0.7})
    )


def test_champion_of_each_date(tmp_path: Path, silent: list[dict[str, str]]) -> None:
    lake = LakePaths(str(tmp_path))
    assert champion_as_of(lake, "m", "2026-01-08") is None
    decide(lake, "2026-01-05", "v1")
    decide(lake, "2026-01-07", "v2", before="v1")
    decide(lake, "2026-01-08", "v3", promoted=False, before="v2")
    champions = {
        f"2026-01-0{day}": (
            champion_as_of(lake, "m", f"2026-01-0{day}", before=True),
            champion_as_of(lake, "m", f"2026-01-0{day}"),
        )
        for day in range(4, 10)
    }
    assert champions == {
        "2026-01-04": (None, None),
        "2026-01-05": (None, "v1"),
        "2026-01-06": ("v1", "v1"),
        "2026-01-07": ("v1", "v2"),
        "2026-01-08": ("v2", "v2"),
        "2026-01-09": ("v2", "v2"),
    }
    assert champion_as_of(lake, "other", "2026-01-09") is None


def test_a_backfill_changes_its_own_date_and_not_the_newest_alias(
    tmp_path: Path, silent: list[dict[str, str]]
) -> None:
    lake = LakePaths(str(tmp_path))
    decide(lake, "2026-01-05", "v1")
    decide(lake, "2026-01-07", "v2", before="v1")
    decide(lake, "2026-01-06", "v9", before="v1")
    assert champion_as_of(lake, "m", "2026-01-06") == "v9"
    assert champion_as_of(lake, "m", "2026-01-07") == "v2"
    assert silent == [
        {"champion": "v1", "challenger": "v1"},
        {"champion": "v2", "challenger": "v2"},
        {"champion": "v2"},
    ]


def test_a_rerun_writes_the_same_bytes(tmp_path: Path, silent: list[dict[str, str]]) -> None:
    lake = LakePaths(str(tmp_path))
    decide(lake, "2026-01-05", "v1")
    files = sorted(tmp_path.rglob("*.json"))
    before = [file.read_bytes() for file in files]
    decide(lake, "2026-01-05", "v1")
    assert sorted(tmp_path.rglob("*.json")) == files
    assert [file.read_bytes() for file in files] == before


def test_challenger_is_what_was_trained_for_the_date(tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path))
    with pytest.raises(DataError, match="no model was trained for 2026-01-05"):
        challenger_of(lake, "m", "2026-01-05")
    record_run(lake, "m", "2026-01-05", "v1")
    record_run(lake, "m", "2026-01-05", "v2")
    assert challenger_of(lake, "m", "2026-01-05") == "v2"


def test_code_version_is_stable_and_short() -> None:
    assert code_version() == code_version.__wrapped__()
    assert len(code_version()) == 16


def description(version: str) -> dict[str, Any]:
    measures = {"auc": 0.75, "log_loss": 0.5, "normalized_entropy": None, "rows": 10, "positives": 3}
    keys = dict.fromkeys(("workflow_version", "dataset_digest", "code_version"), "x")
    entry = {
        "step": 20,
        "epoch": 0,
        "loss": 0.6,
        "learning_rate": 0.1,
        "rows_per_s": 5,
        "loader_wait_share": 0.0,
    }
    return {
        **keys,
        "name": "m",
        "version": version,
        "run_date": "2026-01-05",
        "parent": None,
        "metrics": {"test": measures},
        "baselines": {"logistic_regression": {"test": measures}},
        "history": [entry, {**entry, "step": 40, "loss": 0.5}],
        "steps": 40,
        "seconds": 1.5,
    }


@pytest.mark.processes  # MLflow asks the system for its name
def test_mlflow_holds_the_run_its_history_and_the_aliases(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    lake = LakePaths(str(tmp_path))
    for version in ("v1", "v1", "v2"):
        mlflow_mirror.track_training(
            lake, description(version), {"train": {"seed": 3}, "model": {"top_mlp": [4]}}
        )
    decide(lake, "2026-01-05", "v1")
    client = MlflowClient(lake.mlflow_uri, lake.mlflow_uri)
    champion = client.get_model_version_by_alias("m", "champion")
    source = f"file://{tmp_path}/models/m/v1"
    assert champion.tags == {"nightrank.version": "v1", "nightrank.source": source}
    assert champion.source == source
    assert len(client.search_model_versions("name='m'")) == 2
    run = client.get_run(champion.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"train.seed": "3", "model.top_mlp": "[4]"}
    assert run.data.metrics["test.auc"] == 0.75
    assert run.data.metrics["baseline.logistic_regression.test.log_loss"] == 0.5
    assert "test.normalized_entropy" not in run.data.metrics
    history = client.get_metric_history(champion.run_id, "loss")
    assert [(metric.step, metric.value) for metric in history] == [(20, 0.6), (40, 0.5)]
    with closing(sqlite3.connect(f"{tmp_path}/mlflow.db")) as store:
        assert store.execute("select count(*) from runs").fetchone() == (2,)
    refit = {**description("r1"), "name": "m-refit", "refit_of": "v1", "metrics": {}, "baselines": {}}
    mlflow_mirror.track_training(lake, refit, {})
    record_refit(lake, "m", Refit("2026-01-05", "v1", "r1"))
    set_aliases(lake, "m")
    registered = client.get_registered_model("m-refit")
    version = client.get_model_version_by_alias("m-refit", "champion")
    assert set(registered.aliases) == {"champion"}  # the gate compares no refit, so none is a challenger
    assert version.tags["nightrank.version"] == "r1"
    assert client.get_run(version.run_id).data.tags["refit_of"] == "v1"
    assert client.get_model_version_by_alias("m", "champion").tags["nightrank.version"] == "v1"


def test_a_failing_mlflow_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(lake: LakePaths) -> None:
        raise ConnectionError("nobody there")

    monkeypatch.setattr(mlflow_mirror, "open_client", refuse)
    lake = LakePaths(str(tmp_path))
    mlflow_mirror.track_training(lake, description("v1"), {})
    decide(lake, "2026-01-05", "v1")
    mlflow_mirror.prepare(lake)
    deadline = time.monotonic() + 10
    while caplog.text.count("ConnectionError: nobody there") < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert caplog.text.count("ConnectionError: nobody there") == 3
    assert file_io.exists(f"{lake.models('m')}/promotions/dt=2026-01-05.json")
