"""Scores joined rows with a pandas_udf on iterators.

A joined row contains the features of a user and of an item. Spark's guide recommends this form of pandas_udf
for models, because a task loads the model only once. The function receives one column per feature and returns
a column of probabilities. We chose two settings. The model stays in the worker process between tasks. Rows go
through the model in micro-batches of 2,048 rows, which fit into a core's cache. Spark's batches may have
another size.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from pyspark.sql import DataFrame
from pyspark.sql.pandas.functions import pandas_udf

from storage.feature_spec import FeatureSpec

STEP_ROWS = 2_048


@lru_cache(maxsize=1)
def load(path: str) -> torch.nn.Module:
    from training.checkpoints import load_model

    torch.set_num_threads(1)
    return load_model(path, torch.device("cpu")).model


@torch.inference_mode()
def predict(model: torch.nn.Module, dense: Any, ids: Any, precision: str) -> Any:
    """Returns the probabilities (B,) float32 of B rows. `dense` (B, D) and `ids` (B, C) are NumPy arrays."""
    probabilities = []
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        for start in range(0, len(dense), STEP_ROWS):
            step = slice(start, start + STEP_ROWS)
            logits = model(torch.from_numpy(dense[step]), torch.from_numpy(ids[step]))
            probabilities.append(torch.sigmoid(logits.float()).numpy())
    return np.concatenate(probabilities) if probabilities else np.zeros(0, np.float32)


def score(rows: DataFrame, spec: FeatureSpec, model: str, precision: str) -> DataFrame:
    """Returns one row for each joined row, with the columns user_key, item_index and probability."""
    dense = len(spec.dense)

    def run(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.Series]:
        loaded = load(model)
        for columns in batches:
            of_dense = np.stack([column.to_numpy() for column in columns[:dense]], axis=1)
            of_ids = np.stack([column.to_numpy() for column in columns[dense:]], axis=1)
            yield pd.Series(predict(loaded, of_dense, of_ids, precision))

    run.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": Iterator[pd.Series]}
    as_udf = pandas_udf(run, "float")  # type: ignore[call-overload]
    names = [feature.name for feature in (*spec.dense, *spec.categorical)]
    return rows.select("user_key", "item_index", as_udf(*names).alias("probability"))
