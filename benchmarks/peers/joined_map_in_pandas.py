"""Scores joined rows with mapInPandas.

A joined row contains the features of a user and of an item. Our function receives pandas frames of these
rows, and returns pandas frames with the keys and the probability of each row. The settings are those of
joined_pandas_udf.py: one model per worker process, and micro-batches of 2,048 rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pandas as pd
from pyspark.sql import DataFrame

from benchmarks.peers.joined_pandas_udf import load, predict
from storage.feature_spec import FeatureSpec


def score(rows: DataFrame, spec: FeatureSpec, model: str, precision: str) -> DataFrame:
    """Returns one row for each joined row, with the columns user_key, item_index and probability."""
    dense = [feature.name for feature in spec.dense]
    ids = [feature.name for feature in spec.categorical]

    def run(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        loaded = load(model)
        for frame in frames:
            probability = predict(loaded, frame[dense].to_numpy(), frame[ids].to_numpy(), precision)
            yield frame[["user_key", "item_index"]].assign(probability=probability)

    wanted = rows.select("user_key", "item_index", *dense, *ids)
    return wanted.mapInPandas(run, "user_key string, item_index int, probability float")
