"""Hit rate, NDCG and coverage against a plain Python computation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pyspark.sql import SparkSession

from scoring.evaluation.list_relevance import coverage, measure_lists

K = 4


def test_measures_equal_plain_python(spark: SparkSession) -> None:
    draw = np.random.default_rng(9)
    items = [f"i{index}" for index in range(9)]
    listed = {
        f"u{index}": draw.choice(items, size=1 + index % K, replace=False).tolist() for index in range(20)
    }
    wanted = {
        f"u{index}": set(draw.choice(items, size=1 + index % 6, replace=False).tolist())
        for index in range(5, 25)
    }
    warm = {f"u{index}" for index in range(0, 25, 2)} | {"never seen again"}
    lists = [
        (user, place, item) for user, user_rows in listed.items() for place, item in enumerate(user_rows, 1)
    ]
    clicks = [(user, item) for user, user_rows in wanted.items() for item in sorted(user_rows)]
    lists_frame = spark.createDataFrame(lists, "user_key string, position int, item_key string").repartition(
        3
    )
    actual = measure_lists(
        lists_frame,
        spark.createDataFrame(clicks, "user_key string, item_key string"),
        spark.createDataFrame([(user,) for user in sorted(warm)], "user_key string"),
        K,
    )
    for group in (True, False):
        users = [user for user in listed if user in wanted and (user in warm) is group]
        hits = {user: [item in wanted[user] for item in listed[user]] for user in users}
        ndcg = [
            sum(1 / math.log2(place + 1) for place, hit in enumerate(hits[user], 1) if hit)
            / sum(1 / math.log2(place + 1) for place in range(1, min(K, len(wanted[user])) + 1))
            for user in users
        ]
        assert actual[group].users == len(users) > 0
        assert actual[group].hit_rate == sum(map(any, hits.values())) / len(users)
        assert actual[group].ndcg == pytest.approx(np.mean(ndcg), abs=1e-12)
    assert coverage(lists_frame, 12) == len({item for _, _, item in lists}) / 12


def test_a_group_without_users_has_no_rates(spark: SparkSession) -> None:
    lists = spark.createDataFrame([("a", 1, "x")], "user_key string, position int, item_key string")
    clicks = spark.createDataFrame([("a", "x")], "user_key string, item_key string")
    actual = measure_lists(lists, clicks, spark.createDataFrame([("a",)], "user_key string"), K)
    assert (actual[True].users, actual[True].hit_rate, actual[True].ndcg) == (1, 1.0, 1.0)
    assert (actual[False].users, actual[False].hit_rate, actual[False].ndcg) == (0, None, None)
