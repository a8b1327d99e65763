"""The planner of tables: each row is on one rank or on all, and ranks have similar costs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import ConfigError
from conf.train_types import Embeddings
from tests.checked_device import checked_device
from training.embeddings.placement import Placement, Router, TableShape, describe, plan_placement

KINDS = ("auto", "replicated", "table_wise", "row_wise")


@st.composite
def shapes(draw: Any) -> TableShape:
    cardinalities = draw(st.lists(st.integers(0, 300), max_size=8))
    lookups = [draw(st.integers(1, 9)) for _ in cardinalities]
    return TableShape(tuple(cardinalities), draw(st.integers(1, 64)), tuple(lookups))


def make_settings(placement: str, **changed: Any) -> Embeddings:
    return Embeddings.model_validate({"placement": placement, "replicated_max_bytes": 500, **changed})


def rows_held(placement: Placement, rank: int) -> list[tuple[int, int]]:
    """(feature, row) in the order of a rank's matrix, read off its blocks."""
    rows: list[tuple[int, int]] = []
    for block in placement.blocks(rank):
        assert block.place == len(rows)
        rows += [(block.feature, block.first + block.step * index) for index in range(block.rows)]
    assert len(rows) == placement.rows_of(rank)
    return rows


@given(shapes(), st.integers(1, 5), st.sampled_from(KINDS))
@settings(deadline=None, max_examples=60)
def test_every_row_has_one_home_and_is_written_once(shape: TableShape, ranks: int, kind: str) -> None:
    placement = plan_placement(shape, ranks, make_settings(kind))
    assert plan_placement(shape, ranks, make_settings(kind)) == placement
    every = {(feature, row) for feature, rows in enumerate(shape.cardinalities) for row in range(rows)}
    written: list[tuple[int, int]] = []
    for rank in range(ranks):
        held = rows_held(placement, rank)
        assert len(held) == len(set(held))
        for feature, placed in enumerate(placement.features):
            if placed.kind == "replicated":
                assert {row for row in every if row[0] == feature} <= set(held)
        for block in placement.blocks(rank):
            block_rows = [(block.feature, block.first + block.step * index) for index in range(block.rows)]
            written += block_rows if block.written else []
    assert sorted(written) == sorted(every)
    if ranks == 1:
        assert not placement.exchanges


@given(shapes(), st.integers(2, 5), st.sampled_from(KINDS))
@settings(deadline=None, max_examples=40)
def test_keys_lead_to_the_row_of_the_owner_and_back(shape: TableShape, ranks: int, kind: str) -> None:
    placement = plan_placement(shape, ranks, make_settings(kind))
    pairs = [(feature, row) for feature, rows in enumerate(shape.cardinalities) for row in range(rows)]
    if not pairs:
        return
    features, ids = torch.tensor(pairs).T
    routers = [Router(placement, rank) for rank in range(ranks)]
    keys = routers[0].keys(ids, features)
    assert int(keys.max()) < routers[0].end
    owners, rows = keys // routers[0].span, keys % routers[0].span
    held = [rows_held(placement, rank) for rank in range(ranks)]
    for pair, owner, row in zip(pairs, owners.tolist(), rows.tolist(), strict=True):
        for rank in range(ranks) if owner == ranks else [owner]:
            assert held[rank][row] == pair
    for router, block_rows in zip(routers, held, strict=True):
        rows = router.unsharded_rows(torch.arange(len(block_rows)))
        assert [pairs[row] for row in rows.tolist()] == block_rows
    twice = torch.cat([keys, keys[: len(keys) // 2]])
    groups, counts = routers[0].group(twice)
    assert counts == [int((owners == owner).sum()) for owner in range(ranks + 1)]
    assert torch.equal(groups.keys, keys.sort().values)
    with checked_device() as (device, checks):
        there, counts_there = routers[0].to(device).group(twice.to(device))
        assert (counts_there, sum(checks.waits.values())) == (counts, 1)
        for name in ("keys", "order", "starts"):
            assert torch.equal(getattr(there, name).cpu(), getattr(groups, name))


@given(shapes(), st.integers(2, 5))
@settings(deadline=None, max_examples=60)
def test_no_rank_bears_more_than_the_mean_and_the_costliest_feature(shape: TableShape, ranks: int) -> None:
    placement = plan_placement(shape, ranks, make_settings("table_wise"))
    total, lookups = max(sum(shape.feature_bytes), 1), max(sum(shape.lookups), 1)
    cost = [
        size / total + count / lookups for size, count in zip(shape.feature_bytes, shape.lookups, strict=True)
    ]
    borne = [
        sum(cost[feature] for feature, placed in enumerate(placement.features) if placed.rank == rank)
        for rank in range(ranks)
    ]
    assert max(borne) <= sum(cost) / ranks + max(cost, default=0) + 1e-9


@given(shapes(), st.integers(2, 5))
@settings(deadline=None, max_examples=60)
def test_rows_that_are_spread_balance_to_a_row_a_feature(shape: TableShape, ranks: int) -> None:
    placement = plan_placement(shape, ranks, make_settings("row_wise"))
    held = [placement.rows_of(rank) for rank in range(ranks)]
    assert max(held) - min(held) <= len(shape.cardinalities)
    hottest = [rank for rank in range(ranks) for block in placement.blocks(rank) if block.first == 0]
    assert max(map(hottest.count, range(ranks))) <= -(-len(shape.cardinalities) // ranks)


def test_auto_replicates_the_small_spreads_the_large_and_gives_away_the_others() -> None:
    shape = TableShape((10, 10_000, 900, 800, 700, 600), 8, (1, 1, 1, 5, 1, 1))
    kinds = [feature.kind for feature in plan_placement(shape, 4, make_settings("auto")).features]
    assert kinds == ["replicated", "row_wise", *["table_wise"] * 4]
    tight = plan_placement(shape, 4, make_settings("auto", rank_max_bytes=26_200))
    assert max(tight.rows_of(rank) for rank in range(4)) * 8 <= 26_200
    assert [feature.kind for feature in tight.features].count("row_wise") > 1
    with pytest.raises(ConfigError, match=r"a rank would hold 2\d{4} bytes .*rank_max_bytes=26000"):
        plan_placement(shape, 4, make_settings("auto", rank_max_bytes=26_000))
    with pytest.raises(ConfigError, match="placement=replicated, 4 ranks, 13010 rows of 8 bytes"):
        plan_placement(shape, 4, make_settings("replicated", rank_max_bytes=50_000))
    with pytest.raises(ConfigError, match="a rank would hold 104080 bytes"):
        plan_placement(shape, 1, make_settings("auto", rank_max_bytes=50_000))


def test_the_plan_reads_as_a_table() -> None:
    shape = TableShape((10, 10_000, 90), 1024, (1, 1, 4))
    placement = plan_placement(shape, 2, make_settings("auto", replicated_max_bytes=20_000))
    assert describe(placement, shape, ["hour", "item", "tags"]).splitlines() == [
        "feature         rows        MiB  lookups  held by",
        "hour              10       0.01        1  every rank",
        "item           10000       9.77        1  by rows, the first on rank 0",
        "tags              90       0.09        4  rank 0",
        "rank 0          5100       4.98      5.0",
        "rank 1          5010       4.89      1.0",
    ]
