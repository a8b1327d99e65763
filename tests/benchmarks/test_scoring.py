"""Tests of the scoring benchmark: its data and models, the agreement of peers and ours, and a small complete
run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from pyspark.sql import SparkSession

from benchmarks.architectures.null import Null, Settings
from benchmarks.scoring import ratios_of, verdict
from benchmarks.scoring_contenders import (
    JOINED,
    K,
    Rows,
    Unequal,
    joined,
    lists,
    request_of,
    require_equal_lists,
    require_equal_rows,
)
from benchmarks.scoring_scaling import growth
from benchmarks.scoring_topk import pair_files, probability, scored_pairs, window
from benchmarks.scoring_world import Data, make_data, make_items, make_model, make_spec, read_inputs
from scoring.model.predictor import load_predictor
from storage.feature_spec import FeatureSpec
from training.models.factorization import Side

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
USERS, CANDIDATES, ITEMS = 9, 20, 40


@pytest.fixture(scope="module")
def spec() -> FeatureSpec:
    return make_spec(30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scoring")


@pytest.fixture(scope="module")
def items(folder: Path, spec: FeatureSpec) -> str:
    return make_items(folder, spec, ITEMS)


@pytest.fixture(scope="module")
def data(folder: Path, spec: FeatureSpec, items: str) -> Data:
    return make_data(folder, spec, items, USERS, CANDIDATES, joined=True)


@pytest.fixture(scope="module")
def expected(folder: Path, spec: FeatureSpec, data: Data, items: str) -> pd.DataFrame:
    """user_key, item_index, item_id and probability of all pairs, by the model without Spark."""
    request = request_of(make_model(folder, "dlrm", spec))
    assert request is not None
    probabilities = load_predictor(request, None, 1).probabilities(*read_inputs(data.joined, spec))
    rows = pd.concat(pd.read_parquet(path, columns=["user_key", "item_index"]) for path in data.joined_files)
    rows = rows.assign(probability=probabilities.numpy())
    return rows.assign(item_id=[f"i{index:07d}" for index in rows.item_index])


def test_joined_rows_are_users_times_their_candidates(data: Data, items: str, spec: FeatureSpec) -> None:
    users = pd.concat(pd.read_parquet(path) for path in data.users)
    pairs = users.explode("candidates").rename(columns={"candidates": "item_index"})
    both = pairs.merge(pd.read_parquet(items), on="item_index", validate="many_to_one")
    joined_rows = pd.concat(pd.read_parquet(path) for path in data.joined_files)
    assert (
        len(joined_rows)
        == data.pairs
        == USERS * CANDIDATES
        == joined_rows.groupby(["user_key", "item_index"]).ngroups
    )
    assert joined_rows.row_id.tolist() == list(range(data.pairs))
    by = ["user_key", "item_index"]
    names = [*by, *(feature.name for feature in spec.features)]
    left, right = (frame[names].sort_values(by).to_numpy().tolist() for frame in (joined_rows, both))
    assert left == right
    assert [group.rows for group in data.joined] == [pq.read_metadata(p).num_rows for p in data.joined_files]


def test_half_the_columns_of_ids_are_the_users(spec: FeatureSpec) -> None:
    scopes = [feature.scope for feature in spec.categorical]
    assert scopes == ["user"] * 13 + ["item"] * 13
    assert {feature.scope for feature in spec.dense} == {"user"}


@pytest.mark.large
def test_every_contender_gives_the_models_scores(
    spark: SparkSession, spec: FeatureSpec, folder: Path, items: str, data: Data, expected: pd.DataFrame
) -> None:
    path = make_model(folder, "dlrm", spec)
    for name in JOINED:
        require_equal_rows(name, joined(spark, spec, name, path, "fp32").frame(data).toPandas(), expected[
            ["user_key", "item_index", "probability"]], 1e-6)  # fmt: skip
    request = request_of(path)
    assert request is not None
    ours = lists(spark, spec, items, request)
    require_equal_lists("ours", ours.frame(data).toPandas(), expected, 1e-6)
    scored = Rows(spark, request).scored(data).sort_values("row_id")
    np.testing.assert_allclose(scored.probability, expected.probability, atol=1e-6)
    assert expected.probability.std() > 1e-3


def test_a_peer_in_bf16_differs_a_little(
    spark: SparkSession, spec: FeatureSpec, folder: Path, data: Data, expected: pd.DataFrame
) -> None:
    path = make_model(folder, "dlrm", spec)
    actual = joined(spark, spec, "map_in_pandas", path, "bf16").frame(data).toPandas()
    wanted = expected[["user_key", "item_index", "probability"]]
    require_equal_rows("bf16", actual, wanted, 0.02)
    with pytest.raises(Unequal, match=r"1e-07 are allowed"):
        require_equal_rows("bf16", actual, wanted, 1e-7)


def test_the_window_ranks_the_pairs_that_the_hash_scores(
    spark: SparkSession, spec: FeatureSpec, items: str, data: Data
) -> None:
    pairs = scored_pairs(data, spec, items)
    assert len(pairs) == data.pairs
    assert 50 < pairs.probability.nunique() < data.pairs  # there are ties
    ranked = window(spark, spec, items).frame(data).toPandas()
    assert len(ranked) == USERS * K
    require_equal_lists("row_number", ranked, pairs, 0.0)
    assert len(pair_files(data, spec, items)) == len(data.users)


def test_the_null_model_gives_zero_or_the_hash_also_factorized() -> None:
    draw = torch.Generator().manual_seed(0)
    users, items = (
        torch.randint(0, 50, (5, 26), generator=draw),
        torch.randint(0, 50, (7, 26), generator=draw),
    )
    users[:, 13:], items[:, :13] = 0, 0
    user, item = torch.arange(5).repeat_interleave(7), torch.arange(7).repeat(5)
    rows = users[user] + items[item]
    dense = torch.zeros(35, 13)
    by_numpy = probability(rows[:, 0].int().numpy(), rows[:, -1].int().numpy())
    for settings, wanted in ((Settings(), np.full(35, 0.5)), (Settings(returns="hash"), by_numpy)):
        model = Null(settings)
        np.testing.assert_array_equal(torch.sigmoid(model(dense, rows)).numpy(), wanted.astype(np.float32))
        factorization = model.factorize(None, torch.float32)
        user_part = factorization.side_part(Side.USER, dense[:5], users)
        item_part = factorization.side_part(Side.ITEM, dense[:7], items)
        logits = factorization.pair_logits(user_part, tuple(tensor[None] for tensor in item_part))
        torch.testing.assert_close(logits.flatten(), model(dense, rows))


def best_of(expected: pd.DataFrame) -> pd.DataFrame:
    best = (
        expected.sort_values(["user_key", "probability"], ascending=[True, False]).groupby("user_key").head(K)
    )
    best = best.assign(position=best.groupby("user_key").cumcount() + 1)
    return best.rename(columns={"user_key": "user_id", "probability": "score"})[
        ["user_id", "position", "item_id", "score"]
    ]


def test_lists_that_are_not_the_best_are_noticed(expected: pd.DataFrame) -> None:
    best = best_of(expected)
    require_equal_lists("ours", best, expected, 0.0)
    swapped = best.assign(
        item_id=best.item_id.where(best.position > 2, best.groupby("user_id").item_id.shift(-1))
    )
    swapped.loc[swapped.position == 2, "item_id"] = best[best.position == 1].item_id.to_numpy()
    with pytest.raises(Unequal, match="ours: its scores differ"):
        require_equal_lists("ours", swapped, expected, 1e-9)
    moved = best.assign(score=best.score + 2e-5)
    with pytest.raises(Unequal, match="ours: its scores differ"):
        require_equal_lists("ours", moved, expected, 1e-5)
    with pytest.raises(
        Unequal, match=r"lists have 89 rows, 89 of them expected pairs; 90 rows were expected"
    ):
        require_equal_lists("ours", best[1:], expected, 1.0)


def test_rows_that_are_missing_or_moved_are_noticed(expected: pd.DataFrame) -> None:
    wanted = expected[["user_key", "item_index", "probability"]]
    require_equal_rows("peer", wanted, wanted, 0.0)
    with pytest.raises(Unequal, match="peer scored 179 pairs"):
        require_equal_rows("peer", wanted[1:], wanted, 1.0)
    with pytest.raises(Unequal, match="peer: its probabilities are up to"):
        require_equal_rows("peer", wanted.assign(probability=wanted.probability + 2e-5), wanted, 1e-5)
    with pytest.raises(Unequal, match="up to nan"):
        require_equal_rows("peer", wanted.assign(probability=np.nan), wanted, 1e-5)


def test_ratios_are_ours_over_the_best_of_the_others() -> None:
    pairs = {"ours_fp32": 60.0, "ours_bf16": 90.0, "pandas_udf_fp32": 20.0, "map_in_pandas_fp32": 30.0}
    pairs |= {"ours_rows": 48.0, "bare_model": 50.0, "ours_fp32_null": 500.0, "pandas_udf_fp32_null": 100.0}
    ratios = ratios_of({name: {"pairs_per_s": rate} for name, rate in pairs.items()})
    expected = {"joined_fp32": 2.0, "bf16_over_joined_fp32": 3.0, "null_model": 5.0, "bare_model": 0.96}
    assert {name: ratio for name, ratio in ratios.items() if ratio is not None} == expected
    assert verdict("bare_model", ratios["bare_model"]) == "bare_model: 0.960, target 0.97: MISSED"
    assert verdict("joined_fp32", 0.5) == (
        "joined_fp32: 0.500 (the peer is 2.00 times as fast), target 2.0: MISSED"
    )
    assert verdict("joined_bf16", None) == "joined_bf16: not measured"


def size(pairs: int, seconds: float, gib: float) -> dict[str, Any]:
    micro = seconds / pairs * 1e6
    return {"microseconds_a_pair": micro, "cpu_microseconds_a_pair": micro, "peak_pss_gib": gib}


def test_growth_compares_each_size_with_the_one_before() -> None:
    ratios = growth({"a": size(100, 1.0, 2.0), "b": size(200, 2.0, 2.0), "c": size(400, 8.0, 3.0)})
    assert len(ratios) == 6
    assert ratios["seconds_a_pair b/a"] == ratios["peak_pss b/a"] == pytest.approx(1.0)
    assert ratios["cpu_a_pair c/b"] == pytest.approx(2.0)
    assert ratios["peak_pss c/b"] == pytest.approx(1.5)


@pytest.mark.large
def test_the_benchmark_ends_in_one_json_line(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks/scoring.py"), "--quick", "--users", "4"]
    command += ["--candidates", "20", "--items", "30", "--most-rows", "40", "--only", "rows", "null"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["benchmark"] == "scoring"
    assert summary["ratios"]["bare_model"] > 0
    assert summary["ratios"]["null_model"] > 0
    assert summary["ratios"]["joined_fp32"] is None
    assert "joined_fp32: not measured" in done.stdout
    assert set(summary["targets"]) <= set(summary["ratios"])
