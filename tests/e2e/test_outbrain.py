"""The Outbrain-shaped log from generator to MAP@12, by the real jobs: Wide & Deep on two Horovod ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from conf.load import load_config
from conf.types import Config
from jobs.build_features import run as build_features
from jobs.evaluate_model import run as evaluate_model
from jobs.generate_clicks import run as generate_clicks
from jobs.train_model import run as train_model
from metrics import map_at_k
from storage.dataset import read_dataset, read_spec
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths
from storage.run_context import RunContext

ROOT = Path(__file__).parents[2]
FIRST, RUN_DATE = "2026-01-01", "2026-01-05"
SMALL = [
    "generate.days=5",
    "generate.rows_per_day=12000",
    "generate.users=1000",
    "generate.items=300",
    "generate.missing_share=0",
    "generate.malformed_share=0",
    "split.train_days=3",
    "train.global_batch_size=512",
    "train.epochs=2",
    "train.device=cpu",
    "score.device=cpu",
]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """The configuration with another lake."""
    lake = tmp_path_factory.mktemp("outbrain")
    return load_config(str(ROOT / "conf/datasets/outbrain.yaml"), [f"lake={lake}", *SMALL])


@pytest.fixture(scope="module")
def evaluated(config: Config, compiling: SparkSession) -> dict[str, Any]:
    """The facts of evaluate_model."""
    generate_clicks(RunContext("generate_clicks", config, FIRST, open_session=lambda _: compiling))
    build_features(RunContext("build_features", config, RUN_DATE, open_session=lambda _: compiling))
    train_model(RunContext("train_model", config, RUN_DATE, open_session=lambda _: compiling))
    return evaluate_model(
        RunContext("evaluate_model", config, RUN_DATE, open_session=lambda _: compiling)
    ).facts


def raw_rows(config: Config, dt: str) -> pd.DataFrame:
    """The raw rows of a day."""
    partition = LakePaths(config.lake).raw.partition(dt)
    files = data_files(partition, read_manifest(partition))
    return pd.concat([pd.read_csv(path) for path in files], ignore_index=True)


def test_wide_and_deep_ranks_ads_better_than_chance_and_popularity(
    evaluated: dict[str, Any], config: Config
) -> None:
    """MAP of these displays is about 0.75 at best, 0.50 by chance, and 0.56 by clicks in training."""
    ranking = evaluated["challenger_ranking"]
    raw = read_manifest(LakePaths(config.lake).raw.partition(RUN_DATE)).facts
    assert ranking["k"] == 12
    assert ranking["groups"] == raw["displays"]
    clicks = (
        pd.concat([raw_rows(config, f"2026-01-0{day}") for day in (1, 2, 3)])
        .groupby("ad_id")["clicked"]
        .sum()
    )
    test = raw_rows(config, RUN_DATE)
    popular = map_at_k(test["clicked"], test["ad_id"].map(clicks).fillna(0), test["display_id"], 12)
    assert ranking["map"] > raw["random_map_at_12"] + 0.10
    assert ranking["map"] > popular + 0.03
    assert ranking["map"] <= raw["best_map_at_12"]
    assert ranking["map"] < ranking["ndcg"] < 1


def test_features_are_those_of_the_published_recipe(evaluated: dict[str, Any], config: Config) -> None:
    lake = LakePaths(config.lake)
    spec = read_spec(lake, read_dataset(lake, RUN_DATE).workflow_version)
    assert [len(spec.dense), len(spec.categorical), len(spec.multi_hot)] == [13, 13, 3]
    assert spec.key_columns == ("row_id", "user_key", "item_key", "group_key", "event_time")
