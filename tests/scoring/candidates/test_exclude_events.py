"""`candidates.exclude_events`: only items with one of these events are excluded for the user again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from pyspark.sql import SparkSession

from conf.errors import ConfigError
from conf.load import load_config
from jobs import build_candidates, build_features
from storage.dataset import read_dataset
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.etl.lakes.lakes import read_rows

DAYS = [f"2026-02-0{day}" for day in range(1, 5)]
WEIGHTS = {"view": 0.1, "cart": 0.5, "purchase": 1.0, "gift": 1.0}
EVENTS = [*WEIGHTS, "search"]


def write_log(folder: Path, **candidates: Any) -> Path:
    """Writes four days of events of ten users on twenty items, and a configuration."""
    draw = np.random.default_rng(3)
    for day in DAYS:
        rows = pd.DataFrame(
            {
                "at": [
                    f"{day} {hour:02}:{minute:02}:00" for hour, minute in draw.integers(0, [24, 60], (60, 2))
                ],
                "user": [f"u{number}" for number in draw.integers(0, 10, 60)],
                "item": [f"i{number}" for number in draw.integers(0, 20, 60)],
                "event": draw.choice(EVENTS, 60, p=[0.5, 0.2, 0.1, 0.1, 0.1]),
            }
        )
        rows.to_csv(folder / f"log_{day}.csv", index=False)
    columns = [
        {"name": "at", "type": "timestamp"},
        *({"name": name, "type": "string"} for name in ("user", "item", "event")),
    ]
    config = {
        "name": "events",
        "data": str(folder),
        "lake": str(folder / "lake"),
        "log": {
            "path": "{data}/log_{date}.csv",
            "format": "csv",
            "columns": columns,
            "label": {"column": "event", "positive": ["cart", "purchase", "gift"], "weights": WEIGHTS},
            "event_time": {"column": "at"},
        },
        "keys": {"user": "user", "item": "item"},
        "negatives": {"per_positive": 1},
        "features": [{"columns": ["user", "item"], "kind": "categorical", "ops": ["categorify"]}],
        "scopes": {"user": ["user"], "item": ["item"]},
        "split": {"by": "day", "train_days": 2, "validation_days": 1, "test_days": 1},
        "model": {"architecture": "logistic_regression"},
        "candidates": {"exclude_events": ["purchase", "gift"], **candidates},
        "score": {"k": 3},
    }
    (folder / "events.yaml").write_text(yaml.safe_dump(config))
    return folder / "events.yaml"


@pytest.mark.parametrize("in_process", [True, False])
def test_items_of_other_events_stay_candidates(spark: SparkSession, tmp_path: Path, in_process: bool) -> None:
    config = load_config(str(write_log(tmp_path)))
    assert config.repeats == "without_event"
    for job in (build_features, build_candidates):
        job.run(
            RunContext(job.__name__, config, DAYS[-1], in_process=in_process, open_session=lambda _: spark)
        )
    lake = LakePaths(config.lake)
    workflow = read_dataset(lake, DAYS[-1]).workflow_version
    keys = read_rows(lake.candidate_items(workflow).partition(DAYS[-1])).item_key
    users = read_rows(lake.candidates(workflow).partition(DAYS[-1])).set_index("user_key").excluded
    log = pd.concat([pd.read_csv(tmp_path / f"log_{day}.csv") for day in DAYS])
    bought = log[log.event.isin(["purchase", "gift"])].groupby("user").item.agg(set)
    assert sorted(users.index) == sorted(log.user.unique())
    for user, excluded in users.items():
        items = {keys[index] for index in (() if excluded is None else excluded)}
        assert items == bought.get(user, set()) & set(keys)
    assert users.dropna().map(len).sum() > 10


@pytest.mark.parametrize(
    "candidates, message",
    [
        ({"exclude_events": ["search"]}, r"\['search'\] are not among the events of log.label.weights"),
        ({"exclude_events": ["purchase"]}, r"the events \['gift'\] have the same weight"),
        ({"repeats": "all"}, "exclude_events and repeats=all contradict each other: remove one"),
        ({"exclude_clicked": []}, "exclude_events has no effect, because exclude_clicked is empty"),
        ({"exclude_events": []}, "candidates.exclude_events"),
    ],
)
def test_events_that_no_weight_distinguishes_are_refused(
    tmp_path: Path, candidates: dict[str, Any], message: str
) -> None:
    path = write_log(tmp_path, **candidates)
    with pytest.raises(ConfigError, match=message):
        load_config(str(path))


def test_events_need_weights(tmp_path: Path) -> None:
    config = yaml.safe_load(write_log(tmp_path).read_text())
    del config["log"]["label"]["weights"]
    (tmp_path / "events.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError, match=r"are not among the events of log\.label\.weights"):
        load_config(str(tmp_path / "events.yaml"))
