"""Scores joined rows with predict_batch_udf (pyspark.ml.functions), Spark's interface for models.

A joined row contains the features of a user and of an item. NVIDIA's examples use predict_batch_udf too. It
converts each column to a NumPy array, and our function stacks these arrays. We chose batches of 2,048 rows,
one model per worker process, and one parameter per column. The alternative is one parameter with an array
column, but then each row is copied separately.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

import numpy as np
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from benchmarks.peers.joined_pandas_udf import STEP_ROWS, load, predict
from storage.feature_spec import FeatureSpec


def score(rows: DataFrame, spec: FeatureSpec, model: str, precision: str) -> DataFrame:
    """Returns one row for each joined row, with the columns user_key, item_index and probability."""
    dense = len(spec.dense)
    names = [feature.name for feature in (*spec.dense, *spec.categorical)]

    def make_predict_fn() -> Callable[..., Any]:
        loaded = load(model)

        def run(*columns: Any) -> Any:
            of_dense, of_ids = np.stack(columns[:dense], axis=1), np.stack(columns[dense:], axis=1)
            return predict(loaded, of_dense, of_ids, precision)

        # predict_batch_udf counts the parameters to find the number of columns.
        places = [Parameter(name, Parameter.POSITIONAL_ONLY) for name in names]
        run.__signature__ = Signature(places)  # type: ignore[attr-defined]
        return run

    udf = predict_batch_udf(make_predict_fn, return_type=T.FloatType(), batch_size=STEP_ROWS)
    return rows.select("user_key", "item_index", udf(*names).alias("probability"))
