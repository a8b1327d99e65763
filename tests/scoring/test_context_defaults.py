"""The default context of lists: the most frequent values of the train rows, against pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from conf.errors import ConfigError
from conf.types import Config
from etl.build import BuildResult
from scoring.model.context_features import TrainingRows, encode_context, encoded_context, raw_context
from scoring.model.model_info import ModelInfo
from spark.workers import LocalWorkers
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.etl import cases

DAYS = [f"2026-01-0{day}" for day in range(1, 6)]
TRAIN = DAYS[:3]
COLUMNS = ["label", "user", "item", "device", "hour", "note", "page", "slot", "price", "loyal", "shown"]
NUMBERS = {"slot": 7, "price": 1.5, "loyal": 1, "shown": 1_767_225_600_000_000}
SHOP: dict[str, Any] = {
    "name": "shop",
    "log": {
        "path": "{data}/{date}.csv",
        "format": "csv",
        "columns": [
            {"name": "label", "type": "int"},
            *({"name": name, "type": "string"} for name in ("user", "item", "device")),
            {"name": "hour", "type": "int"},
            {"name": "note", "type": "string"},
            {"name": "page", "type": "string"},
            {"name": "slot", "type": "int"},
            {"name": "price", "type": "float"},
            {"name": "loyal", "type": "bool"},
            {"name": "shown", "type": "timestamp"},
        ],
        "label": {"column": "label"},
    },
    "keys": {"user": "user", "item": "item"},
    "features": [
        {"columns": ["user", "item", "device", "note", "page"], "kind": "categorical", "ops": ["categorify"]},
        {"columns": ["hour"], "kind": "dense", "ops": ["fill_median", "normalize"]},
        {"columns": ["slot", "loyal"], "kind": "categorical", "ops": ["categorify"]},
        {"columns": ["price"], "kind": "categorical", "ops": [{"bucketize": {"boundaries": [1, 2, 3]}}]},
        {"columns": ["shown"], "kind": "categorical", "ops": [{"hash_bucket": {"buckets": 10}}]},
    ],
    "scopes": {"user": ["user"], "item": ["item"], "context": ["device", "hour", "note", "page", *NUMBERS]},
    "split": {"by": "day", "train_days": 3, "validation_days": 1, "test_days": 1},
    "quality": {"max_bad_share": 0.5},
}


def rows_of(day: int) -> pd.DataFrame:
    """On train days, most rows are of a mobile at 19; later, and together, of a tablet at 3. Notes are null."""
    rng = np.random.default_rng(day)
    device, hour = ("mobile", 19) if DAYS[day] in TRAIN else ("tablet", 3)
    rows = 60 if DAYS[day] in TRAIN else 400
    others = rng.random(rows) < 0.5
    return pd.DataFrame(
        {
            "label": rng.integers(0, 2, rows),
            "user": [f"u{user}" for user in rng.integers(0, 9, rows)],
            "item": [f"i{item}" for item in rng.integers(0, 7, rows)],
            "device": np.where(others, rng.choice(["desktop", "tv", ""], rows), device),
            "hour": np.where(others, rng.integers(0, 24, rows), hour),
            "note": "",
            "page": "long " * 60,  # the profiles have only its first 200 characters
            # Numbers that categorical features read. 9 has more rows than each of the texts 7 and 07.
            "slot": rng.choice(["7", "07", "9"], rows, p=[0.3, 0.3, 0.4]),
            "price": rng.choice(["1.5", "1.50", "2"], rows, p=[0.3, 0.3, 0.4]),
            "loyal": rng.choice(["true", "false"], rows, p=[0.7, 0.3]),
            "shown": rng.choice(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"], rows, p=[0.8, 0.2]),
        }
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, BuildResult]:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "raw").mkdir()
    for day, date in enumerate(DAYS):
        rows_of(day).to_csv(folder / f"raw/{date}.csv", index=False, columns=COLUMNS)
    config = cases.write_config(folder, SHOP)
    return config, cases.run_build(LocalWorkers(1, lambda: pytest.fail("a session")), config, DAYS[-1])


def changed(config: Config, **context: Any) -> RunContext:
    score = config.score.model_copy(update={"context": context})
    return RunContext("test", config.model_copy(update={"score": score}), DAYS[-1])


def test_columns_without_a_value_have_that_of_most_train_rows(built: tuple[Config, BuildResult]) -> None:
    config, result = built
    model = ModelInfo("", "m1", result.workflow.spec, {})
    train = pd.concat([rows_of(DAYS.index(day)) for day in TRAIN])
    every = pd.concat([rows_of(day) for day in range(len(DAYS))])
    expected = {"device": train[train.device != ""].device.mode()[0], "hour": int(train.hour.mode()[0])}
    assert expected == {"device": "mobile", "hour": 19}
    expected |= {name: train[name].astype(float).mode()[0] for name in ("slot", "price")}
    expected |= {"loyal": train.loyal.mode()[0] == "true"}
    expected |= {"shown": int(pd.Timestamp(train.shown.mode()[0]).timestamp() * 1e6)}
    assert {name: expected[name] for name in NUMBERS} == NUMBERS
    assert (every.device.mode()[0], every.hour.mode()[0]) == ("tablet", 3)  # later days have other values
    assert raw_context(changed(config, note="x", page="p"), model) == {**expected, "note": "x", "page": "p"}
    assert raw_context(changed(config, hour=7, note="x", page="p"), model) == {
        **expected,
        "hour": 7,
        "note": "x",
        "page": "p",
    }
    encoded = encoded_context(changed(config, note="x", page="p"), model)
    lake = LakePaths(config.lake)
    assert encoded == encode_context(lake, model, {**expected, "note": "x", "page": "p"})
    assert encoded != encode_context(
        lake, model, {**expected, "device": "tablet", "hour": 3, "note": "x", "page": "p"}
    )


def test_a_column_without_any_value_and_a_date_without_a_dataset_have_no_default(
    built: tuple[Config, BuildResult],
) -> None:
    config, result = built
    model, lake = ModelInfo("", "m1", result.workflow.spec, {}), LakePaths(config.lake)
    with pytest.raises(ConfigError, match=r"columns without a value: \['note', 'page'\]"):
        encoded_context(changed(config), model)
    with pytest.raises(ConfigError, match=r"columns without a value: \['device', 'hour', 'loyal', 'note', "):
        encode_context(lake, model, {}, TrainingRows(config.name, "2026-01-04"))
    with pytest.raises(ConfigError, match=r"other names: \['weather'\]"):
        encoded_context(changed(config, note="x", page="p", weather="rain"), model)
