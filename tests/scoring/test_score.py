"""Scoring through Spark: the lists and probabilities that leave do not depend on how Spark cuts the rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import DataError, raised_in
from scoring.ranking.list_summary import summarize_lists
from scoring.spark.score_frames import score_lists, score_rows
from spark.rows import table_of
from tests.scoring.reference_scores import CONTEXT, SPEC, ReferenceScores

K = 5


def users_frame(
    spark: SparkSession, reference: ReferenceScores, candidates: list[list[int] | None] | None = None
) -> DataFrame:
    """A frame of users with candidates."""
    listed = candidates or [None] * len(reference.users)
    rows = [
        (key, int(who), float(age), items, None)
        for (key, who, age), items in zip(reference.users.itertuples(index=False), listed, strict=True)
    ]
    schema = "user_key string, who int, age float, candidates array<int>, excluded array<int>"
    return spark.createDataFrame(rows, schema)


def sorted_lists(lists: DataFrame) -> pd.DataFrame:
    """Lists by user and position."""
    return lists.orderBy("user_id", "position").toPandas()


@pytest.fixture
def arrow_rows(spark: SparkSession) -> object:
    """Sets rows per Arrow batch for one test."""
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = str(spark.conf.get(key))
    yield lambda rows: spark.conf.set(key, rows)
    spark.conf.set(key, before)


@pytest.mark.parametrize("partitions, batch_rows", [(1, 10_000), (3, 4), (7, 1)])
def test_lists_do_not_depend_on_partitions_or_batches(
    spark: SparkSession, reference: ReferenceScores, arrow_rows: object, partitions: int, batch_rows: int
) -> None:
    arrow_rows(batch_rows)  # type: ignore[operator]
    users = users_frame(spark, reference).repartition(partitions, F.xxhash64("user_key"))
    actual = sorted_lists(score_lists(users, SPEC, reference.request))
    expected = reference.expected(K)
    assert actual[["user_id", "position", "item_id"]].to_numpy().tolist() == (
        expected[["user_key", "position", "item_key"]].to_numpy().tolist()
    )
    np.testing.assert_allclose(actual.score, expected.score, atol=1e-6)
    assert actual.dtypes.astype(str).tolist() == ["object", "int32", "object", "float32", "object"]
    assert set(actual.reason) == {"ranked"}


def test_users_without_candidates_have_no_rows_and_are_counted(
    spark: SparkSession, reference: ReferenceScores
) -> None:
    candidates: list[list[int] | None] = [[], [7], [3, 4, 5], *([None] * 34)]
    lists = score_lists(users_frame(spark, reference, candidates), SPEC, reference.request)
    facts = summarize_lists(lists, K, users=len(reference.users), items=len(reference.items))
    small = summarize_lists(table_of(lists), K, users=len(reference.users), items=len(reference.items))
    assert small == facts
    actual = sorted_lists(lists)
    assert facts["rows"] == len(actual) == 0 + 1 + 3 + 34 * K
    assert (facts["users"], facts["users_without"], facts["users_with_fewer"]) == (37, 1, 3)
    assert facts["items_recommended"] == actual.item_id.nunique()
    assert facts["coverage"] == actual.item_id.nunique() / 23
    counts, _ = np.histogram(actual.score.astype(float), bins=facts["score_histogram"]["edges"])
    assert facts["score_histogram"]["counts"] == counts.tolist()


def test_nan_comes_back_as_a_data_error_that_names_user_and_item(
    spark: SparkSession, reference: ReferenceScores
) -> None:
    users = users_frame(spark, reference).withColumn(
        "age", F.when(F.col("user_key") == "u007", float("nan")).otherwise(F.col("age")).cast("float")
    )
    with pytest.raises(PySparkException) as caught:
        score_lists(users, SPEC, reference.request).collect()
    raised = raised_in(str(caught.value))
    assert isinstance(raised, DataError)
    assert "user u007 with item i000 as NaN" in raised.problem
    assert raised.remedy.startswith("look for NaN")


def pairs_frame(spark: SparkSession, reference: ReferenceScores) -> DataFrame:
    """A frame of all pairs of user and item."""
    pairs = reference.users.merge(reference.items, how="cross").assign(**CONTEXT).reset_index(names="row_id")
    return spark.createDataFrame(pairs).select(
        "row_id",
        *(
            F.col(feature.name).cast("int" if feature.kind == "categorical" else "float")
            for feature in SPEC.features
        ),
    )


@pytest.mark.parametrize("partitions, batch_rows, double", [(1, 10_000, False), (4, 17, True)])
def test_rows_have_the_probability_numpy_gives_them(
    spark: SparkSession,
    reference: ReferenceScores,
    arrow_rows: object,
    partitions: int,
    batch_rows: int,
    double: bool,
) -> None:
    arrow_rows(batch_rows)  # type: ignore[operator]
    rows = pairs_frame(spark, reference).repartition(partitions)
    scored = score_rows(rows, SPEC, reference.request.model, ["row_id"], double=double)
    actual = scored.toPandas().sort_values("row_id")
    assert actual.row_id.tolist() == list(range(37 * 23))
    assert actual.probability.dtype == ("float64" if double else "float32")
    np.testing.assert_allclose(actual.probability, reference.probabilities.ravel(), atol=1e-6)


def test_a_nan_row_is_named_by_what_is_kept_of_it(spark: SparkSession, reference: ReferenceScores) -> None:
    rows = pairs_frame(spark, reference).withColumn(
        "price", F.when(F.col("row_id") == 77, float("nan")).otherwise(0.0).cast("float")
    )
    with pytest.raises(PySparkException) as caught:
        score_rows(rows, SPEC, reference.request.model, ["row_id"]).collect()
    raised = raised_in(str(caught.value))
    assert isinstance(raised, DataError)
    assert "{'row_id': 77}" in raised.problem
