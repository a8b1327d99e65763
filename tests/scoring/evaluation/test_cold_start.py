"""Users and items that are new to the model: which ones they are."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from conf.types import Config
from scoring.evaluation.list_facts import users_and_items
from storage import file_io
from storage.feature_spec import OOV_ID, Feature, FeatureSpec, dumps
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.scoring.scoring_lake import RUN_DATE, write_table

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
    lake = LakePaths(config.lake)
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
