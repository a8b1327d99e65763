"""The position as a feature: the training learns its effect, and the lists are made for a fixed position."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from pyspark.sql import SparkSession

import nightrank
from conf.load import load_config
from conf.types import Config
from jobs.build_candidates import run as build_candidates
from jobs.build_features import run as build_features
from jobs.score_daily import run as score_daily
from storage.dataset import read_dataset
from storage.run_context import RunContext
from training.loop.run import train_in_process
from training.loop.training_plan import make_plan
from training.registry import mlflow_mirror
from training.registry.versions import ChampionDecision, record_decision, record_run

DAYS = [f"2026-01-0{day}" for day in (6, 7, 8, 9)]
RUN_DATE = DAYS[-1]
EXAMINED = {1: 1.0, 2: 0.6, 3: 0.4, 4: 0.25}  # probability that a user looks at the position
ATTRACTION = {f"{kind}{n}": share for kind, share in (("dull", 0.3), ("good", 0.6)) for n in range(6)}
COLUMNS = ("label", "user", "item", "position")

CONFIG: dict[str, Any] = {
    "name": "positions",
    "log": {
        "path": "{data}/{date}.tsv",
        "format": "tsv",
        "columns": [{"name": name, "type": "int" if name == "label" else "string"} for name in COLUMNS],
        "label": {"column": "label"},
    },
    "keys": {"user": "user", "item": "item"},
    "features": [
        {
            "columns": ["user", "item", "position"],
            "kind": "categorical",
            "ops": [{"categorify": {"min_count": 1}}],
        }
    ],
    "scopes": {"user": ["user"], "item": ["item"], "context": ["position"]},
    "split": {"by": "day", "train_days": 2, "min_train_days": 2},
    "model": {"architecture": "logistic_regression"},
    "train": {"num_ranks": 1, "global_batch_size": 128, "epochs": 5, "device": "cpu", "baselines": []},
    "candidates": {"exclude_clicked": []},
    "score": {"k": 4, "context": {"position": "1"}, "device": "cpu"},
}


def days_of_rows() -> Iterator[tuple[str, list[tuple[int, str, str, int]]]]:
    """Yields each day with rows of label, user, item and position.

    Dull items usually stand at position 1 and good ones at position 4, so dull items have more clicks.
    """
    draw = random.Random(8)
    for day in DAYS:
        rows = []
        for _ in range(5_000):
            item = draw.choice(list(ATTRACTION))
            usual = 1 if item.startswith("dull") else 4
            position = usual if draw.random() < 0.7 else draw.choice(list(EXAMINED))
            label = int(draw.random() < EXAMINED[position] * ATTRACTION[item])
            rows.append((label, f"u{draw.randrange(30)}", item, position))
        yield day, rows


def write_log(folder: Path) -> None:
    folder.mkdir()
    for day, rows in days_of_rows():
        lines = ["\t".join(map(str, row)) + "\n" for row in rows]
        (folder / f"{day}.tsv").write_text("".join(lines))


def lists_of(job: RunContext) -> pd.DataFrame:
    score_daily(job)
    lists: pd.DataFrame = nightrank.open(job.config.lake).recommendations(RUN_DATE).pandas()
    assert lists.groupby("user_id").size().tolist() == [4] * 30
    return lists


def built(folder: Path, spark: SparkSession | None = None, **sections: Any) -> RunContext:
    """The context of a run whose features are built."""
    values = {**CONFIG, "lake": str(folder / "lake"), "data": str(folder.parent / "raw"), **sections}
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    config: Config = load_config(str(folder / "config.yaml"))
    job = RunContext("test", config, RUN_DATE, open_session=lambda _: spark)
    build_features(job)
    return job


def trained(job: RunContext) -> RunContext:
    """Trains the champion and builds the candidates of a run whose features are built."""
    config = job.config
    description = train_in_process(make_plan(config, job.lake, read_dataset(job.lake, RUN_DATE)))
    version = description["version"]
    record_run(job.lake, config.name, RUN_DATE, version)
    record_decision(
        job.lake, config.name, RUN_DATE, ChampionDecision(version, None, True, version, "the first")
    )
    build_candidates(job)
    return job


def test_lists_are_made_for_a_fixed_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("prepare", "set_aliases"):
        monkeypatch.setattr(mlflow_mirror, name, lambda *_: None)
    torch.set_num_threads(1)
    write_log(tmp_path / "raw")
    job = trained(built(tmp_path / "with"))
    first = lists_of(job)
    assert first.item_id.str.startswith("good").all()

    champion = nightrank.open(job.config.lake).champion(RUN_DATE)
    pairs = first.rename(columns={"user_id": "user", "item_id": "item"})[["user", "item"]]
    by_position = {place: champion.score(pairs.assign(position=str(place))) for place in EXAMINED}
    np.testing.assert_allclose(first.score, by_position[1], atol=1e-6)
    means = [float(np.mean(scores)) for scores in by_position.values()]
    assert means == sorted(means, reverse=True)
    assert means[0] > 2 * means[-1]

    score = job.config.score.model_copy(update={"context": {"position": "4"}})
    last = lists_of(RunContext("test", job.config.model_copy(update={"score": score}), RUN_DATE))
    assert last[["user_id", "position", "item_id"]].equals(first[["user_id", "position", "item_id"]])
    np.testing.assert_allclose(last.score, by_position[4], atol=1e-6)

    without = built(
        tmp_path / "without",
        features=[{**CONFIG["features"][0], "columns": ["user", "item"]}],
        scopes={"user": ["user"], "item": ["item"]},
        score={"k": 4, "device": "cpu"},
    )
    assert lists_of(trained(without)).item_id.str.startswith("dull").all()
