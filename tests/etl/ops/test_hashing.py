"""The hash of every bucket and fold: the oracle, published vectors, Spark and the arrow engine agree."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from etl.ops.xxhash64 import xxhash64, xxhash64_of_draws, xxhash64_of_longs
from tests.etl.ops import hashing

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=120)


@pytest.mark.parametrize(
    "data, seed, digest",
    [
        # From the documentation and test suites of xxHash and of its bindings.
        (b"", 0, 0xEF46DB3751D8E999),
        (b"a", 0, 0xD24EC4F1A98C6E5B),
        (b"abc", 0, 0x44BC2CF5AD770999),
        (b"xxhash", 0, 0x32DD38952C4BC720),
        (b"xxhash", 20141025, 0xB559B98D844E0635),
        (b"Nobody inspects the spammish repetition", 0, 0xFBCEA83C8A378BF1),
    ],
)
def test_the_oracle_gives_published_digests(data: bytes, seed: int, digest: int) -> None:
    assert hashing.xxh64(data, seed) == digest


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(texts=st.lists(st.none() | TEXT, max_size=30), skipped=st.integers(0, 5))
def test_arrays_of_texts_hash_as_the_oracle_does(texts: list[str | None], skipped: int) -> None:
    # A slice: its buffers begin before its first value.
    array = pa.array(texts, pa.string())[skipped:]
    expected = [42 if text is None else hashing.of_text(text) for text in texts[skipped:]]
    assert xxhash64(array).tolist() == expected


def test_spark_hashes_texts_and_integers_as_the_oracle_does(spark: SparkSession) -> None:
    # Lengths around the algorithm's steps of 4, 8 and 32 bytes; characters of 1 to 4 bytes.
    texts = ["", *("ab日😀é"[n % 5] * n for n in range(1, 70)), "x" * 1000]
    integers = [0, 1, -1, 42, 2**31, -(2**31), 2**63 - 1, -(2**63), 12345678901]
    rows = [(text, integers[n % len(integers)]) for n, text in enumerate(texts)]
    frame = spark.createDataFrame(rows, "text string, integer long")
    collected = frame.select("text", "integer", F.xxhash64("text"), F.xxhash64("integer")).collect()
    assert len(collected) == len(rows)
    for text, integer, of_text, of_integer in collected:
        assert (of_text, of_integer) == (hashing.of_text(text), hashing.of_integer(integer))


def test_integers_and_draws_hash_as_in_spark(spark: SparkSession) -> None:
    """`F.lit` makes integers of 32 bits of small seeds, and integers of 64 bits of large seeds."""
    row_ids = np.array([0, 1, 42, 2**31, 2**40 + 3, 2**63 - 1, 12345678901])
    frame = spark.createDataFrame([(row_id,) for row_id in row_ids.tolist()], "row_id long")
    draws = frame.withColumn("draw", F.explode(F.sequence(F.lit(1), F.lit(4))))
    seeds = [0, 5, 2**31 - 1, 2**31, 2**63 - 1]
    hashed = [F.xxhash64("row_id", "draw", F.lit(seed)).alias(f"of{seed}") for seed in seeds]
    collected = draws.select("row_id", "draw", *hashed).collect()
    for seed in seeds:
        expected = {(row["row_id"], row["draw"]): row[f"of{seed}"] for row in collected}
        hashes = xxhash64_of_draws(row_ids, 4, seed)
        assert {
            (row_id, draw + 1): int(hashes[place, draw])
            for place, row_id in enumerate(row_ids.tolist())
            for draw in range(4)
        } == expected
    assert xxhash64_of_longs(row_ids).tolist() == [hashing.of_integer(row_id) for row_id in row_ids.tolist()]


def test_draws_of_many_rows_are_hashed_in_blocks() -> None:
    row_ids = np.arange(70_000) * 3
    hashes = xxhash64_of_draws(row_ids, 2, 9)
    for start in (0, 2**15 - 1, 2**15, 69_999):
        assert (hashes[start] == xxhash64_of_draws(row_ids[start : start + 1], 2, 9)[0]).all()
    assert len(np.unique(hashes)) == hashes.size
