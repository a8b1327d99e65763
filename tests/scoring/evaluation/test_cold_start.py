"""Users and items that are new to the model: which ones they are, and their figures against plain Python."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from conf.types import Config
from scoring.evaluation.cold_start import cold_start_facts, measure_cold_start, users_and_items
from storage import file_io
from storage.feature_spec import OOV_ID, Feature, FeatureSpec, dumps
from storage.paths import Lake
from storage.run_context import RunContext
from tests.scoring.scoring_lake import RUN_DATE, write_table

K = 4
SPEC = FeatureSpec(
    (
        Feature("user", "categorical", "int32", "user", 9),
        Feature("age", "dense", "float32", "user"),
        Feature("item", "categorical", "int32", "item", 9),
        Feature("price", "dense", "float32", "item"),
    ),
    ("row_id", "user_key", "item_key"),
    "w1",
)


def config_of(root: Path, ops: list[object]) -> Config:
    columns = [{"name": name, "type": "string"} for name in ("user", "item")]
    numbers = [{"name": name, "type": "float"} for name in ("label", "age", "price")]
    return Config.model_validate(
        {
            "name": "toy",
            "lake": str(root),
            "log": {
                "path": "{lake}/raw/dt={date}/clicks.tsv",
                "format": "tsv",
                "columns": [*columns, *numbers],
                "label": {"column": "label"},
            },
            "keys": {"user": "user", "item": "item"},
            "features": [
                {"columns": ["age", "price"], "kind": "dense", "ops": ["normalize"]},
                {"columns": ["user", "item"], "kind": "categorical", "ops": ops},
            ],
            "scopes": {"user": ["user", "age"], "item": ["item", "price"]},
            "split": {"by": "day"},
            "model": {"architecture": "logistic_regression"},
        }
    )


def publish(config: Config) -> None:
    """Users a to f and items x to z. The model knows users with an id above OOV_ID."""
    lake = Lake(config.lake)
    file_io.replace_text(lake.feature_spec("w1"), dumps(SPEC))
    ids = pa.array([3, OOV_ID, 4, 1, 5, OOV_ID], pa.int32())
    users = pa.table({"user_key": list("abcdef"), "user": ids, "age": pa.array([0.5] * 6, pa.float32())})
    ids = pa.array([OOV_ID, 3, 4], pa.int32())
    items = pa.table({"item_key": list("xyz"), "item": ids, "price": pa.array([0.5] * 3, pa.float32())})
    write_table(lake.users("w1").partition(RUN_DATE), users)
    write_table(lake.items("w1").partition(RUN_DATE), items)


def new_keys(spark: SparkSession, config: Config) -> tuple[dict[str, bool], dict[str, bool]]:
    """Whether each user and item is new. Users a, b and c and items x and y have train rows."""
    train = spark.createDataFrame([("a", "x"), ("b", "y"), ("c", "y")], "user_key string, item_key string")
    users, items = users_and_items(RunContext("test", config, RUN_DATE, _spark=spark), "w1", train)
    of_users = {row["user_key"]: row["new"] for row in users.collect()}
    return of_users, {row["item_key"]: row["new"] for row in items.collect()}


def test_keys_are_new_if_their_feature_has_the_id_of_unknown_values(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also keys with train rows, such as b and x; null, the id of d, is a value that the model knows."""
    config = config_of(tmp_path, ["categorify"])
    publish(config)
    users, items = new_keys(spark, config)
    assert sorted(user for user, new in users.items() if new) == ["b", "f"]
    assert sorted(users) == list("abcdef")
    assert items == {"x": True, "y": False, "z": False}


@pytest.mark.parametrize("ops", [[{"categorify": {"oov_buckets": 2}}], [{"hash_bucket": {"buckets": 6}}]])
def test_keys_are_new_if_they_have_no_train_row_and_no_feature_tells(
    spark: SparkSession, tmp_path: Path, ops: list[object]
) -> None:
    config = config_of(tmp_path, ops)
    publish(config)
    users, items = new_keys(spark, config)
    assert sorted(user for user, new in users.items() if new) == ["d", "e", "f"]
    assert items == {"x": False, "y": False, "z": True}


def ndcg(listed: list[str], wanted: set[str]) -> float:
    gain = sum(1 / math.log2(place + 1) for place, item in enumerate(listed, 1) if item in wanted)
    return gain / sum(1 / math.log2(place + 1) for place in range(1, min(K, len(wanted)) + 1))


def test_figures_equal_plain_python(spark: SparkSession) -> None:
    draw = np.random.default_rng(4)
    items = [f"i{index}" for index in range(9)]
    new_items, new_users = {"i2", "i5", "i8"}, {f"u{index}" for index in range(0, 30, 3)}
    listed = {f"u{index}": draw.choice(items, size=K, replace=False).tolist() for index in range(24)}
    wanted = {
        f"u{index}": set(draw.choice([*items, "later"], size=1 + index % 3, replace=False).tolist())
        for index in range(4, 30)
    }
    rows = [(user, place, item) for user, entries in listed.items() for place, item in enumerate(entries, 1)]
    clicks = [(user, item) for user, clicked in wanted.items() for item in sorted(clicked)]
    lists = spark.createDataFrame(rows, "user_key string, position int, item_key string")
    positives = spark.createDataFrame(clicks, "user_key string, item_key string")
    users = spark.createDataFrame(
        [(f"u{i}", f"u{i}" in new_users) for i in range(24)], "user_key string, new boolean"
    )
    known = spark.createDataFrame(
        [(item, item in new_items) for item in items], "item_key string, new boolean"
    )
    measured = measure_cold_start(lists, positives, users, known, K)
    facts = cold_start_facts({"lists": measured}, lists, positives, known)

    groups = {
        "new_users": {user: wanted[user] for user in listed if user in wanted and user in new_users},
        "known_users": {user: wanted[user] for user in listed if user in wanted and user not in new_users},
        "new_items": {
            user: wanted[user] & new_items for user in listed if user in wanted and wanted[user] & new_items
        },
    }
    for name, positives_of in groups.items():
        assert facts[name]["users"] == len(positives_of) > 2
        hits = [bool(set(listed[user]) & clicked) for user, clicked in positives_of.items()]
        assert 0 < np.mean(hits) < 1
        assert facts[name]["lists"]["hit_rate"] == pytest.approx(np.mean(hits))
        expected = np.mean([ndcg(listed[user], clicked) for user, clicked in positives_of.items()])
        assert facts[name]["lists"]["ndcg"] == pytest.approx(expected, abs=1e-12)
    entries = pd.Series([item for _, _, item in rows])
    of_items = pd.Series([item for _, item in clicks if item != "later"])
    assert facts["new_items"]["items"] == 3
    assert facts["new_items"]["position_share"] == pytest.approx(entries.isin(new_items).mean())
    assert facts["new_items"]["click_share"] == pytest.approx(of_items.isin(new_items).mean())


def test_groups_without_users_have_no_rates(spark: SparkSession) -> None:
    lists = spark.createDataFrame([("a", 1, "x")], "user_key string, position int, item_key string")
    clicks = spark.createDataFrame([("a", "x")], "user_key string, item_key string")
    users = spark.createDataFrame([("a", False)], "user_key string, new boolean")
    items = spark.createDataFrame([("x", False)], "item_key string, new boolean")
    facts = cold_start_facts(
        {"lists": measure_cold_start(lists, clicks, users, items, K)}, lists, clicks, items
    )
    nothing = {"users": 0, "lists": {"hit_rate": None, "ndcg": None}}
    assert facts["new_users"] == nothing
    assert facts["known_users"] == {"users": 1, "lists": {"hit_rate": 1.0, "ndcg": 1.0}}
    assert facts["new_items"] == {**nothing, "items": 0, "position_share": 0.0, "click_share": 0.0}
