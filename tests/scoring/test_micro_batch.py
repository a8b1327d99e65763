"""Rows at once: halved where memory runs out, every row done once, and an error where one row is too many."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conf.errors import InfrastructureError
from scoring.model.predictor import MicroBatch, default_rows, row_bytes, rows_within
from scoring.ranking import recommender
from scoring.ranking.pair_scorer import kept_limit
from scoring.ranking.recommender import ListRanker
from tests.scoring.ranking.test_recommender import assert_same_lists, batch_of, lists_of
from tests.scoring.reference_scores import ReferenceScores, make_recommender


class Cramped(nn.Module):
    """A model on a device with memory for `most` rows at once. It counts rows and has no factorization."""

    def __init__(self, model: nn.Module, most: int, message: str = "out of memory") -> None:
        super().__init__()
        self.model, self.most, self.message = model, most, message
        self.scored = 0
        self.largest = 0

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """The logits, or an error for too many rows."""
        if len(dense) > self.most:
            raise torch.OutOfMemoryError(self.message)
        self.scored += len(dense)
        self.largest = max(self.largest, len(dense))
        return self.model(dense, categorical)


@pytest.mark.parametrize("total", [0, 1, 5, 64, 100])
def test_every_row_is_done_once_whatever_fits(total: int) -> None:
    done: list[int] = []

    def work(rows: slice) -> None:
        if rows.stop - rows.start > 3:
            raise torch.OutOfMemoryError("no")
        done.extend(range(rows.start, rows.stop))

    micro_batch = MicroBatch(50)
    micro_batch.over(total, work)
    assert done == list(range(total))
    assert micro_batch.rows == (50 if total <= 3 else 3)


def test_each_halving_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    micro_batch = MicroBatch(8)

    def work(rows: int) -> str:
        if rows > 2:
            raise torch.OutOfMemoryError("tried to allocate 20 MiB")
        return "done"

    with caplog.at_level(logging.WARNING, "nightrank.scoring"):
        assert micro_batch.within_memory(work) == "done"
        assert micro_batch.within_memory(work) == "done"
    assert [record.getMessage() for record in caplog.records] == [
        f"the device is out of memory; micro-batches now have {rows} rows (tried to allocate 20 MiB)"
        for rows in (4, 2)
    ]


def test_one_row_that_does_not_fit_is_an_infrastructure_error() -> None:
    def work(rows: int) -> None:
        raise torch.OutOfMemoryError("tried to allocate 20 GiB")

    with pytest.raises(InfrastructureError, match=r"score even one row: tried to allocate 20 GiB"):
        MicroBatch(8).within_memory(work)


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    def work(rows: int) -> None:
        raise RuntimeError("shapes do not match")

    micro_batch = MicroBatch(8)
    with pytest.raises(RuntimeError, match="shapes"):
        micro_batch.within_memory(work)
    assert micro_batch.rows == 8


def test_the_cpu_allocator_counts_as_a_lack_of_memory() -> None:
    def work(rows: int) -> Tensor:
        return torch.empty(2**58 if rows > 2 else rows, dtype=torch.uint8)

    micro_batch = MicroBatch(8)
    assert micro_batch.within_memory(work).shape == (2,)


@pytest.mark.parametrize(
    "free, a_row, rows", [(2**30, 2**10, 2**20), (2**40, 1, 2**20), (0, 4, 8_192), (3 * 2**26, 2**12, 2**15)]
)
def test_rows_at_first_are_a_power_of_two_that_fits(free: int, a_row: int, rows: int) -> None:
    assert rows_within(free, a_row) == rows


def test_a_gpu_starts_with_what_fits_a_quarter_of_its_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(1_000, 24)  # 4,096 bytes a row
    assert default_rows(model, torch.device("cpu")) == 1_024
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, 2**34))
    assert default_rows(model, torch.device("cuda", 0)) == 2**16
    assert kept_limit(torch.device("cuda", 0)) == 2**29


def test_bytes_of_a_row_count_layers_and_vectors(reference: ReferenceScores) -> None:
    model = make_recommender(reference.request).predictor.model
    assert row_bytes(model) == 4 * (2 * 4 * 1 + 4 * 4)  # a linear model: four features, one number each
    assert row_bytes(nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 1))) == 4 * (10 + 6 + 6 + 1)


def cramped(ranker: ListRanker, most: int, rows: int) -> tuple[ListRanker, Cramped]:
    """The recommender on a device with memory for `most` rows, and its model."""
    model = Cramped(ranker.predictor.model, most)
    predictor = replace(ranker.predictor, model=model, micro_batch=MicroBatch(rows))
    return ListRanker.of(predictor, ranker.items, ranker.k), model


@pytest.mark.parametrize("most", [1, 6, 50])
def test_lists_stay_the_same_when_memory_runs_out(reference: ReferenceScores, most: int) -> None:
    ranker = make_recommender(reference.request)
    candidates: list[list[int] | None] = [None, [3], [], [7, 2, 9, 0], None] * 7 + [None, [1]]
    users = batch_of(reference.users, candidates=candidates)
    squeezed, model = cramped(ranker, most, 400)
    assert_same_lists(lists_of(squeezed, users), lists_of(ranker, users))
    assert squeezed.predictor.micro_batch.rows <= most
    assert model.largest <= most


def failing(function: Callable[..., Any], times: float) -> Callable[..., Any]:
    """The function, of which the first calls fail because memory runs out."""
    calls = 0

    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls <= times:
            raise torch.OutOfMemoryError("tried to allocate 64 MiB")
        return function(*arguments, **options)

    return call


@pytest.mark.parametrize("step", ["top_keys", "ranking_keys", "to_device", "ResultCopy"])
def test_lists_stay_the_same_when_memory_runs_out_for_the_ranking(
    reference: ReferenceScores, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    ranker = make_recommender(reference.request)
    users = batch_of(reference.users)
    expected = lists_of(ranker, users)
    rows, places = ranker.predictor.micro_batch.rows, ranker._places
    monkeypatch.setattr(recommender, step, failing(getattr(recommender, step), 2))
    assert_same_lists(lists_of(ranker, users), expected)
    assert (ranker.predictor.micro_batch.rows, ranker._places) == (rows // 4, places // 4)


@pytest.mark.parametrize("step", ["top_keys", "to_device"])
def test_a_ranking_that_never_fits_is_an_infrastructure_error(
    reference: ReferenceScores, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    ranker = make_recommender(reference.request)
    monkeypatch.setattr(recommender, step, failing(getattr(recommender, step), float("inf")))
    with pytest.raises(InfrastructureError, match="tried to allocate 64 MiB"):
        lists_of(ranker, batch_of(reference.users))


def test_probabilities_of_rows_stay_the_same_when_memory_runs_out(reference: ReferenceScores) -> None:
    predictor = make_recommender(reference.request).predictor
    model = Cramped(predictor.model, 10)
    draw = torch.Generator().manual_seed(1)
    dense = torch.randn(95, len(predictor.spec.dense), generator=draw)
    categorical = torch.randint(0, 6, (95, len(predictor.spec.categorical)), generator=draw)
    actual = replace(predictor, model=model, micro_batch=MicroBatch(64)).probabilities(dense, categorical)
    torch.testing.assert_close(actual, predictor.probabilities(dense, categorical), atol=1e-6, rtol=0)
    assert (model.scored, model.largest) == (95, 8)


def test_no_memory_for_one_pair_ends_with_an_infrastructure_error(reference: ReferenceScores) -> None:
    squeezed, _ = cramped(make_recommender(reference.request), 0, 16)
    with pytest.raises(InfrastructureError, match="score even one row: out of memory"):
        lists_of(squeezed, batch_of(reference.users))
