"""A workflow whose rows have weights, read from a lake, trains on a frame without weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import nightrank
from nightrank.workflow import fitted_workflow, learned_by
from spark.workers import LocalWorkers
from tests.etl import cases
from tests.etl.test_event_labels import DAYS, shop, write_days


def test_rows_of_a_frame_have_the_weight_1(tmp_path: Path) -> None:
    write_days(tmp_path)
    config = shop(tmp_path, quality={"max_bad_share": 0.9})
    cases.run_build(LocalWorkers(2, lambda: pytest.fail("a session")), config, DAYS[3])
    workflow = nightrank.open(config.lake).workflow()
    assert workflow.spec.weight == "weight"
    learned = learned_by(workflow)
    without = fitted_workflow(replace(learned, spec=replace(learned.spec, weight=None)))
    rng = np.random.default_rng(3)
    rows: Any = pd.DataFrame(
        {
            "user": [f"u{n}" for n in rng.integers(0, 15, 600)],
            "item": [f"i{n}" for n in rng.integers(0, 12, 600)],
            "price": rng.gamma(2.0, 5.0, 600),
            "label": rng.integers(0, 2, 600),
        }
    )
    model: dict[str, Any] = {
        "architecture": "dlrm",
        "embedding_dim": 8,
        "bottom_mlp": [8, 8],
        "top_mlp": [16],
    }
    train: dict[str, Any] = {"global_batch_size": 128, "num_shards": 4, "device": "cpu"}
    predicted = [
        nightrank.train(used, rows, model=model, train=train).score(rows) for used in (workflow, without)
    ]
    np.testing.assert_array_equal(*predicted)
    assert np.ptp(predicted[0]) > 0
