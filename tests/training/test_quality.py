"""The quality of every architecture on a small generated world.

It is measured as the share of (best AUC - 0.5) that a model reaches on a day it has not seen.
benchmarks/quality.py measures the presets on the whole log. Here a smaller log is drawn, and encoded without
Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray

from conf.types import Generate
from etl.synthetic.click_probability import FEATURES, MISSING, STEPS, auc_of_counts
from etl.synthetic.impressions import DrawnImpressions, draw_impressions, world_of_day
from storage.dataset import Dataset
from storage.feature_spec import NULL_ID, OOV_ID, Feature, FeatureSpec
from storage.paths import LakePaths
from tests.training.feature_rows import Rows
from tests.training.feature_tables import make_config, publish_all
from training.loop.run import train_in_process
from training.loop.training_plan import make_plan

pytestmark = pytest.mark.slow

RUN_DATE = "2026-01-05"
DAYS = {
    "train": ("2026-01-01", "2026-01-02", "2026-01-03"),
    "validation": ("2026-01-04",),
    "test": (RUN_DATE,),
}
WORLD = Generate(rows_per_day=20_000, users=800, items=200)
FIRST_ID = 3
DENSE = [column for column in FEATURES if column.kind == "integer"]
IDS = [column for column in FEATURES if column.kind != "integer"]
# Seeds move a share by about 0.01.
FLOORS = {
    "dlrm_small": 0.80,
    "dcn_v2_small": 0.75,
    "wide_and_deep_generated": 0.80,
    "deepfm_small": 0.70,
}


def draw(day: str) -> DrawnImpressions:
    on = date.fromisoformat(day)
    rng = np.random.default_rng([WORLD.seed, on.toordinal()])
    return draw_impressions(world_of_day(WORLD, on), rng, WORLD.rows_per_day, (0.0, 1.0), 0.02)


def encoded(days: dict[str, DrawnImpressions]) -> tuple[FeatureSpec, dict[str, Rows]]:
    """The rows as build_features encodes them: ids from the train days, dense values by their moments."""
    train = [days[day] for day in DAYS["train"]]
    known = {c.name: np.unique(np.concatenate([day.values[c.name] for day in train])) for c in IDS}
    known = {name: ids[ids != MISSING] for name, ids in known.items()}
    logs = {c.name: np.concatenate([_log(day.values[c.name]) for day in train]) for c in DENSE}
    dense = [Feature(c.criteo, "dense", "float32", "pair") for c in DENSE]
    ids = [Feature(c.criteo, "categorical", "int32", "pair", FIRST_ID + len(known[c.name])) for c in IDS]
    rows = {
        name: Rows(
            day.labels.astype(np.float32),
            np.stack(
                [(_log(day.values[c.name]) - logs[c.name].mean()) / logs[c.name].std() for c in DENSE], axis=1
            ).astype(np.float32),
            np.stack([_ids(day.values[c.name], known[c.name]) for c in IDS], axis=1).astype(np.int32),
        )
        for name, day in days.items()
    }
    return FeatureSpec((*dense, *ids), ("row_id",), "w1"), rows


def _log(values: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.log1p(np.maximum(values, 0))


def _ids(values: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.int64]:
    place = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.where(values == MISSING, NULL_ID, np.where(known[place] == values, FIRST_ID + place, OOV_ID))


@dataclass(frozen=True)
class World:
    """A lake with the encoded rows, its dataset, and the AUC of the true probabilities on the test day."""

    lake: LakePaths
    dataset: Dataset
    best: float


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    torch.set_num_threads(1)
    lake = LakePaths(str(tmp_path_factory.mktemp("quality")))
    days = {day: draw(day) for days_of_split in DAYS.values() for day in days_of_split}
    outcomes = np.bincount(days[RUN_DATE].labels * STEPS + days[RUN_DATE].steps, minlength=2 * STEPS)
    best = auc_of_counts(outcomes.reshape(2, STEPS))
    assert best is not None
    spec, rows = encoded(days)
    splits = {split: {day: rows[day] for day in days_of_split} for split, days_of_split in DAYS.items()}
    return World(lake, publish_all(lake, RUN_DATE, spec, splits, file_rows=10_000), best)


def share_of_best(world: World, name: str, model: dict[str, Any]) -> float:
    """The share of the test day's best AUC that a model reaches."""
    train = {
        "num_ranks": 1,
        "num_shards": 4,
        "device": "cpu",
        "global_batch_size": 512,
        "epochs": 2,
        "embedding_learning_rate": 0.05 if name == "deepfm_small" else 0.15,
        "l2": 2e-4 if name == "deepfm_small" else 0.0,
        "baselines": [],
    }
    plan = make_plan(make_config(world.lake, model=model, train=train), world.lake, world.dataset)
    auc = train_in_process(plan)["metrics"]["test"]["auc"]
    return float((auc - 0.5) / (world.best - 0.5))


@pytest.mark.parametrize("name", FLOORS)
def test_each_preset_reaches_its_share(world: World, name: str) -> None:
    model = yaml.safe_load(Path(f"conf/models/{name}.yaml").read_text())
    assert share_of_best(world, name, model) > FLOORS[name]


def test_a_linear_model_stays_below_four_fifths(world: World) -> None:
    share = share_of_best(world, "logistic_regression", {"architecture": "logistic_regression"})
    assert 0.4 < share < 0.8
