"""Keyed tables of several columns need one pass over the rows, and equal those of pandas."""

from __future__ import annotations

import random
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from etl.fit.row_statistics import keyed_tables
from etl.operators.target_encoding import TargetEncoding

ROWS = 200


def test_all_columns_of_an_operator_share_one_pass(spark: SparkSession) -> None:
    draw = random.Random(5)
    rows = [
        (number, float(draw.random() < 0.3), draw.choice(["x", "y", "z", None]), draw.choice(["k", None]))
        for number in range(ROWS)
    ]
    passes = spark.sparkContext.accumulator(0)

    def counted(row: tuple[Any, ...]) -> tuple[Any, ...]:
        passes.add(1)
        return row

    schema = "row_id bigint, label double, a string, b string"
    frame = spark.createDataFrame(spark.sparkContext.parallelize(rows, 3).map(counted), schema)
    operator = TargetEncoding(folds=2)
    with keyed_tables(frame, operator, [[F.col("a")], [F.col("b")], [F.col("a"), F.col("b")]]) as keyed:
        tables = [keyed.table(number).toPandas() for number in range(3)]
    assert passes.value == ROWS

    log = pd.DataFrame(rows, columns=["row_id", "label", "a", "b"])
    for name, table in zip("ab", tables, strict=False):
        statistics = table.set_index("key")[["sum", "count"]].sort_index()
        expected = log.groupby(name)["label"].agg(["sum", "count"])
        pd.testing.assert_frame_equal(statistics, expected, check_names=False, check_dtype=False)
    both = log.dropna(subset=["a", "b"], how="all").groupby(["a", "b"], dropna=False)["label"].count()
    assert sorted(tables[2]["count"]) == sorted(both)
    assert keyed.facts["prior"] == log["label"].sum() / ROWS
