"""Batches by count, with row groups that are made up: any sizes, ranks, shards, pools and places to begin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.types import Reading
from tests.training.feature_rows import make_spec
from training.data import loader as loading
from training.data.batch import Batch
from training.data.columns import Columns
from training.data.loader import Loader
from training.data.sharding import DataFile, RowGroup, plan_shards, row_groups, shards_of_rank

SPEC = make_spec(2, [2**31 - 1, 50], lists=[9])
_TENSORS = ("dense", "categorical", "labels", "weights")
LENGTH = 32  # of lists, unless a configuration says otherwise


@dataclass(frozen=True)
class Case:
    files: tuple[tuple[int, ...], ...]
    shards: int
    shard_rows: int
    ranks: int
    seed: int | None
    pool_rows: int
    read_ahead_mib: int = 1

    @property
    def rows(self) -> int:
        return sum(map(sum, self.files))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    ranks, per_rank = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    groups = st.lists(st.integers(1, 150), min_size=1, max_size=3).map(tuple)
    return Case(
        tuple(draw(st.lists(groups, min_size=1, max_size=4))),
        ranks * per_rank,
        draw(st.integers(1, 9)),
        ranks,
        draw(st.none() | st.integers(0, 2**31)),
        draw(st.sampled_from([1, 64, 100_000])),
    )


@pytest.fixture(autouse=True)
def nothing_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row groups are not in files, so none can be read ahead with others."""

    def nothing(*_: object) -> Iterator[None]:
        yield from ()

    monkeypatch.setattr("training.data.row_groups.read_together", nothing)


def made_up(group: RowGroup, *_: object, check_ids: bool = True) -> Columns:
    """Columns that number all rows of all files: each file's path says where its rows begin."""
    first = int(group.file.path) + sum(group.file.row_groups[: group.index])
    number = np.arange(first, first + group.rows)
    return Columns(
        (number % 2).astype(np.float32),
        [number.astype(np.float32), -number.astype(np.float32)],
        [
            number.astype(np.int32),
            (number % 50).astype(np.int32),
            np.repeat(number[:, None] % 9, LENGTH, axis=1).astype(np.int32),
        ],
    )


def loader_of(case: Case, rank: int, ranks: int) -> Loader:
    starts = np.cumsum([0, *map(sum, case.files)])
    files = [
        DataFile(str(start), sum(groups), groups) for start, groups in zip(starts, case.files, strict=False)
    ]
    plan = plan_shards(
        [group.rows for group in row_groups(files)], case.shards, case.shards * case.shard_rows
    )
    reading = Reading(pool_rows=case.pool_rows, read_ahead_mib=case.read_ahead_mib)
    shards = shards_of_rank(case.shards, rank, ranks)
    with mock.patch.object(loading, "require_all_intact"):  # there are no files
        return Loader(files, plan, shards, SPEC, case.seed, reading=reading)


def batches(case: Case, rank: int = 0, ranks: int = 1, epochs: int = 2, first_step: int = 0) -> list[Batch]:
    with mock.patch.object(loading, "read_columns", made_up):
        return list(loader_of(case, rank, ranks).batches(epochs, first_step))


def same(actual: Sequence[Batch], expected: Sequence[Batch]) -> bool:
    """Whether rows and weights are equal to the bit."""
    return len(actual) == len(expected) and all(
        torch.equal(getattr(a, name), getattr(b, name)) and a.global_weight == b.global_weight
        for a, b in zip(actual, expected, strict=True)
        for name in _TENSORS
    )


def beside_each_other(parts: Sequence[Batch]) -> Batch:
    return Batch(
        *(torch.cat([getattr(part, name) for part in parts]) for name in _TENSORS), parts[0].global_weight
    )


def numbers(batches: Sequence[Batch]) -> Iterator[int]:
    """The rows of batches, each held against what its other columns say."""
    for batch in batches:
        real = batch.weights > 0
        number = batch.categorical[real, 0]
        assert torch.equal(batch.dense[real, 0], number.float())
        assert torch.equal(batch.dense[real, 1], -number.float())
        assert torch.equal(batch.labels[real], (number % 2).float())
        assert torch.equal(batch.categorical[real, 1], number % 50)
        assert torch.equal(batch.categorical[real, 2:], (number % 9)[:, None].expand(-1, LENGTH))
        for padding in (batch.dense, batch.categorical, batch.labels):
            assert not padding[~real].any()
        yield from number.tolist()


@given(cases())
@settings(max_examples=25, deadline=None)
def test_every_row_comes_once_an_epoch_and_steps_are_equal(case: Case) -> None:
    together = [batches(case, rank, case.ranks) for rank in range(case.ranks)]
    assert len({len(batches_of_rank) for batches_of_rank in together}) == 1
    steps = len(together[0]) // 2
    for epoch in range(2):
        numbers_of_ranks = [
            list(numbers(batches_of_rank[epoch * steps : (epoch + 1) * steps]))
            for batches_of_rank in together
        ]
        assert sorted(number for of_rank in numbers_of_ranks for number in of_rank) == list(range(case.rows))
    for parts in zip(*together, strict=True):
        assert sum(int(part.weights.sum()) for part in parts) == parts[0].global_weight


@given(cases())
@settings(max_examples=25, deadline=None)
def test_batches_do_not_depend_on_the_number_of_ranks(case: Case) -> None:
    together = [batches(case, rank, case.ranks) for rank in range(case.ranks)]
    assert same([beside_each_other(parts) for parts in zip(*together, strict=True)], batches(case))


@given(cases(), st.floats(0, 1))
@settings(max_examples=25, deadline=None)
def test_what_is_resumed_is_what_would_have_come(case: Case, share: float) -> None:
    whole = batches(case)
    step = round(share * len(whole))
    assert same(batches(case, first_step=step), whole[step:])


@given(cases())
@settings(max_examples=20, deadline=None)
def test_without_a_seed_a_shard_keeps_its_order_and_with_one_it_depends_on_seed_and_epoch(case: Case) -> None:
    in_order = batches(case)
    if case.seed is None:
        for shard in range(case.shards):
            rows = slice(shard * case.shard_rows, (shard + 1) * case.shard_rows)
            ids = [
                batch.categorical[rows, 0][batch.weights[rows] > 0]
                for batch in in_order[: len(in_order) // 2]
            ]
            assert torch.equal(torch.cat(ids), torch.cat(ids).sort().values)
    assert same(in_order, batches(case))


CASE = Case(((400, 400), (800,), (350, 450)), 4, 8, 1, 0, pool_rows=1)


def test_epochs_and_seeds_differ_and_rows_travel_far() -> None:
    first, second = (list(numbers(part)) for part in (batches(CASE)[:75], batches(CASE)[75:]))
    other = list(numbers(batches(Case(**{**vars(CASE), "seed": 1}), epochs=1)))
    assert sorted(first) == sorted(second) == sorted(other)
    assert len({tuple(first), tuple(second), tuple(other)}) == 3
    travelled = [abs(place - number) for place, number in enumerate(first)]
    assert np.median(travelled) > 200


def test_a_resumed_epoch_reads_no_row_group_before_its_place() -> None:
    asked = []

    def note(group: RowGroup, *_: object, check_ids: bool = True) -> Columns:
        asked.append(int(group.file.path))
        return made_up(group)

    in_order = Case(**{**vars(CASE), "seed": None, "shards": 1, "shard_rows": 32})
    with mock.patch.object(loading, "read_columns", note):
        list(loader_of(in_order, 0, 1).batches(first_step=60))  # of 75; row 1920 of 2400
    assert sorted(asked) == [1600, 1600]


def test_a_row_group_is_read_once_while_pools_need_it() -> None:
    asked = []

    def note(group: RowGroup, *_: object, check_ids: bool = True) -> Columns:
        asked.append((group.file.path, group.index))
        return made_up(group)

    one_group = Case(((2400,),), 4, 8, 1, 0, pool_rows=1)
    with mock.patch.object(loading, "read_columns", note):
        list(loader_of(one_group, 0, 1).batches(epochs=3))
    assert asked == [("0", 0)]


def test_batches_of_a_pool_share_its_memory_and_may_be_kept() -> None:
    with mock.patch.object(loading, "read_columns", made_up):
        stream = loader_of(CASE, 0, 1).batches()
        first, second = next(stream), next(stream)
        assert first.dense.untyped_storage().data_ptr() == second.dense.untyped_storage().data_ptr()
        kept = first.categorical.clone()
        rest = list(stream)
    assert torch.equal(first.categorical, kept)
    assert sorted(numbers([first, second, *rest])) == list(range(2400))


def test_a_consumer_that_lets_go_needs_few_pools() -> None:
    created_pools = []
    pools = loading.Pools

    def note(*arguments: int, pinned: bool) -> loading.Pools:
        created_pools.append(pools(*arguments, pinned=pinned))
        return created_pools[-1]

    with (
        mock.patch.object(loading, "read_columns", made_up),
        mock.patch.object(loading, "Pools", note),
        loading.Prefetch(loader_of(CASE, 0, 1).batches(epochs=5)) as ahead,
    ):
        seen = sum(1 for _ in ahead)
    assert seen == 5 * 75
    assert (
        created_pools[0].created <= 2 + -(-10 // created_pools[0].steps) + 1
    )  # 8 batches wait, the thread and the consumer hold one each


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_batches_on_a_gpu_are_those_of_the_cpu() -> None:
    """With work queued on the device, so that copies, and memory that is used again, must wait for it."""
    device = torch.device("cuda")
    with mock.patch.object(loading, "read_columns", made_up):
        loader = loader_of(CASE, 0, 1)
        loader._device = device
        copied = []
        for batch in loader.batches(epochs=3):
            torch.cuda._sleep(1_000_000)
            moved = batch.to(device)
            assert moved.dense.is_cuda
            copied.append(Batch(*(getattr(moved, name).clone() for name in _TENSORS), moved.global_weight))
    assert same([batch.to(torch.device("cpu")) for batch in copied], batches(CASE, epochs=3))
