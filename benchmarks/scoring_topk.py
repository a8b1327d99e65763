"""Makes the input of row_number in the top-k benchmark: pairs of users and items that already have a score.

The score is a hash of ids, computed by NumPy. score_lists computes the same scores with a model
(benchmarks/architectures/null.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from benchmarks.architectures.null import FIRST_FACTOR, LAST_FACTOR, MODULUS
from benchmarks.peers.row_number_window import top
from benchmarks.scoring_contenders import Contender, K
from benchmarks.scoring_world import Data
from scoring.requests import CANDIDATES
from storage.feature_spec import ITEM_KEY, USER_KEY, FeatureSpec


def scored_pairs(data: Data, spec: FeatureSpec, items: str) -> pd.DataFrame:
    """Returns one row for each pair, with the columns user_key, item_id and probability."""
    frames = [_scored(path, spec, items).to_pandas() for path in data.users]
    return pd.concat(frames, ignore_index=True).rename(
        columns={"user_id": "user_key", "score": "probability"}
    )


def window(spark: SparkSession, spec: FeatureSpec, items: str) -> Contender:
    """Returns row_number over a window as a contender, which reads the files from `pair_files`."""

    def frame(data: Data) -> Any:
        return top(spark.read.parquet(*pair_files(data, spec, items)), K)

    return Contender(frame)


def pair_files(data: Data, spec: FeatureSpec, items: str) -> list[str]:
    """Returns the paths of files of pairs, one for each file of users. Writes files that do not exist.

    The columns are user_id, item_id and score.
    """
    paths = []
    for place, users in enumerate(data.users):
        path = Path(users).with_name(f"pairs-{place}.parquet")
        if not path.exists():
            scratch = path.with_suffix(".partial")
            pq.write_table(_scored(users, spec, items), scratch, compression="zstd")
            scratch.rename(path)
        paths.append(str(path))
    return paths


def _scored(path: str, spec: FeatureSpec, items: str) -> pa.Table:
    first, last = (spec.categorical[place].name for place in (0, -1))
    known = pq.read_table(items, columns=[ITEM_KEY, last])
    users = pq.read_table(path, columns=[USER_KEY, first, CANDIDATES])
    lists = users.column(CANDIDATES).combine_chunks()
    item = lists.flatten().to_numpy()
    user = np.repeat(np.arange(len(users)), lists.value_lengths().to_numpy())
    score = probability(users.column(first).to_numpy()[user], known.column(last).to_numpy()[item])
    keys = users.column(USER_KEY).take(pa.array(user)), known.column(ITEM_KEY).take(pa.array(item))
    return pa.table({"user_id": keys[0], "item_id": keys[1], "score": pa.array(score)})


def probability(first: NDArray[np.int32], last: NDArray[np.int32]) -> NDArray[np.float32]:
    """Returns the probabilities that the architecture `null` with `returns: hash` computes for these ids.

    Args:
        first: the first id of each pair's user.
        last: the last id of each pair's item.
    """
    mixed = (first.astype(np.int64) * FIRST_FACTOR + last.astype(np.int64) * LAST_FACTOR) % MODULUS
    logits = torch.from_numpy(mixed).float() * (8 / MODULUS) - 4
    probabilities: NDArray[np.float32] = torch.sigmoid(logits).numpy()
    return probabilities
