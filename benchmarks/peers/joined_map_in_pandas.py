"""Joined rows through mapInPandas: a pandas frame in, a pandas frame out, with the row's keys beside its probability.

What was chosen for it: as in joined_pandas_udf.py (a model a worker process, steps of 2,048 rows).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pandas as pd
from pyspark.sql import DataFrame

from benchmarks.peers.joined_pandas_udf import load, predict
from storage.feature_spec import FeatureSpec


def score(rows: DataFrame, spec: FeatureSpec, model: str, precision: str) -> DataFrame:
    """user_key, item_index and probability of each row."""
    dense = [each.name for each in spec.dense]
    ids = [each.name for each in spec.categorical]

    def run(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        loaded = load(model)
        for frame in frames:
            found = predict(loaded, frame[dense].to_numpy(), frame[ids].to_numpy(), precision)
            yield frame[["user_key", "item_index"]].assign(probability=found)

    wanted = rows.select("user_key", "item_index", *dense, *ids)
    return wanted.mapInPandas(run, "user_key string, item_index int, probability float")
