"""The contenders of the scoring benchmark, and checks that their results agree.

Our contenders are score_lists and score_rows. The peers score joined rows, which contain the features of a
user and of an item.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession

from benchmarks.peers import joined_map_in_pandas, joined_pandas_udf, joined_predict_batch_udf
from benchmarks.scoring_world import Data
from scoring.requests import ListRequest, ModelRequest
from scoring.rows.file_splits import divide_rows
from scoring.spark.score_frames import divide_split, score_lists, score_split
from spark.profile import read_properties
from spark.session import build_session
from storage.feature_spec import FeatureSpec

ROOT = Path(__file__).resolve().parent.parent
JOINED: Mapping[str, Callable[[DataFrame, FeatureSpec, str, str], DataFrame]] = {
    "pandas_udf": joined_pandas_udf.score,
    "predict_batch_udf": joined_predict_batch_udf.score,
    "map_in_pandas": joined_map_in_pandas.score,
}
K = 10
FILE_ROWS = 1_000_000
# The largest difference between scores of equal weights. bf16 and int8 keep 8 bits of a number.
CLOSE = {"fp32": 1e-5, "bf16": 0.02, "int8": 0.02}


class Unequal(Exception):
    """An error: contenders gave different results, so their times cannot be compared."""


@dataclass(frozen=True)
class Contender:
    """A contender of the benchmark. `frame` returns a frame with the contender's results for the given data.

    `run` computes all rows of this frame and discards them.
    """

    frame: Callable[[Data], DataFrame]

    def run(self, data: Data) -> None:
        self.frame(data).write.format("noop").mode("overwrite").save()


def open_session(cores: int, folder: str, more: Mapping[str, str] | None = None) -> SparkSession:
    """Opens a Spark session on local[cores] with the local profile.

    Its Python workers can import the benchmarks and their architectures.

    Args:
        cores: number of cores.
        folder: a folder for Spark's files.
        more: settings that are added to those of the profile.
    """
    # Workers must be able to import benchmarks.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = read_properties(ROOT / "conf/spark/local.conf") | {
        "spark.master": f"local[{cores}]",
        "spark.python.daemon.module": "benchmarks.scoring_daemon",
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        **(more or {}),
    }
    spark = build_session("benchmark scoring", settings)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def request_of(path: str, precision: str = "fp32", **changed: Any) -> ModelRequest | None:
    """Returns the request to score with a model on the CPU in this precision.

    Returns None if this version of Nightrank can score only in float32.

    Args:
        path: folder of the model.
        precision: `fp32` or `bf16`.
        changed: other fields of the request.
    """
    request = replace(ModelRequest(path, "cpu", None), **changed)
    if precision == "fp32":
        return request
    known = {field.name for field in fields(ModelRequest)}
    values: dict[str, Any] = {"precision": precision}
    return replace(request, **values) if "precision" in known else None


def lists(spark: SparkSession, spec: FeatureSpec, items: str, model: ModelRequest) -> Contender:
    """Returns score_lists as a contender, which reads users with candidates and returns K rows per user."""
    request = ListRequest(model, (items,), (), K)
    return Contender(lambda data: score_lists(spark.read.parquet(*data.users), spec, request))


def joined(spark: SparkSession, spec: FeatureSpec, name: str, model: str, precision: str) -> Contender:
    """Returns the peer `name` as a contender, which reads joined rows and scores them without ranking."""
    score = JOINED[name]
    return Contender(lambda data: score(spark.read.parquet(*data.joined_files), spec, model, precision))


@dataclass(frozen=True)
class Rows:
    """The contender score_rows. It reads the files of joined rows and writes files with probabilities."""

    spark: SparkSession
    model: ModelRequest

    def run(self, data: Data) -> None:
        folder = tempfile.mkdtemp(prefix="nightrank-scores-")
        try:
            tasks = divide_split(self.spark, data.joined, self.model, FILE_ROWS)
            score_split(self.spark, tasks, self.model, folder, FILE_ROWS)
        finally:
            shutil.rmtree(folder)

    def scored(self, data: Data) -> pd.DataFrame:
        """Returns one row for each joined row, with the columns row_id and probability."""
        folder = tempfile.mkdtemp(prefix="nightrank-scores-")
        try:
            tasks = divide_rows(data.joined, 2, FILE_ROWS)
            score_split(self.spark, tasks, self.model, folder, FILE_ROWS)
            return self.spark.read.parquet(folder).toPandas()
        finally:
            shutil.rmtree(folder)


def require_equal_rows(name: str, actual: pd.DataFrame, expected: pd.DataFrame, close: float) -> None:
    """Raises Unequal if two frames have different pairs (user_key, item_index) or probabilities.

    Probabilities may differ by at most `close`. `actual` contains the rows of the contender `name`.
    """
    keys = ["user_key", "item_index"]
    both = expected.merge(actual, on=keys, suffixes=("", "_found"), validate="one_to_one")
    if not len(both) == len(actual) == len(expected):
        raise Unequal(
            f"{name} scored {len(actual)} pairs, {len(both)} of them among the {len(expected)} expected pairs"
        )
    apart = (both.probability - both.probability_found).abs().max()
    if not apart <= close:
        raise Unequal(
            f"{name}: its probabilities are up to {apart} from the expected ones, only {close} are allowed"
        )


def require_equal_lists(name: str, lists: pd.DataFrame, expected: pd.DataFrame, close: float) -> None:
    """Raises Unequal if the lists are not the K best items of each user.

    Args:
        name: name of the contender, used in the message.
        lists: the contender's lists, with the columns user_id, position, item_id and score.
        expected: all pairs of a user and a candidate, with the columns user_key, item_id and probability.
        close: largest allowed difference of a score. Items whose scores differ by at most `close` may be
            swapped.
    """
    best = expected.sort_values(["user_key", "probability", "item_id"], ascending=[True, False, True])
    best["position"] = best.groupby("user_key").cumcount() + 1
    best = best[best.position <= K]
    actual = lists.rename(columns={"user_id": "user_key"})
    places = best.merge(actual, on=["user_key", "position"], validate="one_to_one")
    listed_pairs = expected.merge(actual, on=["user_key", "item_id"], validate="one_to_one")
    if not len(places) == len(listed_pairs) == len(actual) == len(best):
        raise Unequal(
            f"{name}: its lists have {len(actual)} rows, {len(listed_pairs)} of them expected pairs; "
            f"{len(best)} rows were expected"
        )
    apart = max(
        (places.probability - places.score).abs().max(),
        (listed_pairs.probability - listed_pairs.score).abs().max(),
    )
    if not apart <= close:
        raise Unequal(
            f"{name}: its scores differ from those of joined rows by up to {apart}, only {close} are allowed"
        )
