"""The plan of batches, tested by conservation: every row exactly once, whatever the ranks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import ConfigError
from training.data.sharding import plan_shards, shards_of_rank

file_rows = st.lists(st.integers(1, 60), max_size=12)
num_shards = st.sampled_from([1, 2, 3, 4, 6, 12, 16])


@given(file_rows, num_shards, st.integers(1, 7))
@settings(max_examples=300, deadline=None)
def test_every_row_is_in_exactly_one_shard(files: list[int], shards: int, shard_rows: int) -> None:
    plan = plan_shards(files, shards, shards * shard_rows)
    rows = Counter((p.group, row) for shard in plan.shards for p in shard for row in range(p.start, p.stop))
    assert rows == Counter((file, row) for file, count in enumerate(files) for row in range(count))
    assert len(plan.shards) == shards
    assert max(plan.sizes) - min(plan.sizes) <= 1


@given(file_rows, num_shards, st.integers(1, 7))
@settings(max_examples=300, deadline=None)
def test_steps_hold_all_rows_and_weights_add_up(files: list[int], shards: int, shard_rows: int) -> None:
    plan = plan_shards(files, shards, shards * shard_rows)
    weights = plan.weights
    assert sum(weights) == sum(files)
    assert all(0 < weight <= shards * shard_rows for weight in weights)
    assert all(weight == shards * shard_rows for weight in weights[:-1])  # padding only in the last batch


@given(num_shards, st.integers(1, 16))
@settings(deadline=None)
def test_ranks_own_all_shards_once_in_order(shards: int, ranks: int) -> None:
    """Also where they do not divide: an elastic training goes on with the ranks it has left."""
    if ranks > shards:
        with pytest.raises(ConfigError, match=f"num_shards={shards} is less than num_ranks={ranks}"):
            shards_of_rank(shards, 0, ranks)
    else:
        shares = [shards_of_rank(shards, rank, ranks) for rank in range(ranks)]
        assert [shard for share in shares for shard in share] == list(range(shards))
        assert max(map(len, shares)) - min(map(len, shares)) == (1 if shards % ranks else 0)


def test_a_batch_that_does_not_divide_is_named() -> None:
    with pytest.raises(ConfigError, match="global_batch_size=10 must be a multiple of num_shards=4"):
        plan_shards([100], 4, 10)


def test_fewer_rows_than_shards_leave_shards_empty() -> None:
    plan = plan_shards([3], 8, 16)
    assert plan.sizes == [0, 0, 1, 0, 0, 1, 0, 1]
    assert plan.steps == 1
    assert plan.weights[0] == 3
    assert plan_shards([], 8, 16).steps == 0
