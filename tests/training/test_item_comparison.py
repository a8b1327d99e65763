"""Batches of the losses over item vectors, by brute force, and trainings with these losses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from conf.errors import ConfigError
from conf.types import ModelConfig, MultiHot, Reading, Train
from tests.training.choices import ITEMS, SPEC, USERS, Choices, choices, genres_of, write_days
from tests.training.ranks_in_threads import on_ranks
from training.collectives import ALONE, Collectives
from training.data.batch import Batch, BatchItems, CatalogueItems
from training.data.item_catalogue import read_catalogue
from training.data.item_comparison import ItemComparison
from training.data.loader import Loader
from training.data.sharding import DataFile, plan_shards, row_groups, shards_of_rank
from training.loop.train_step import Trainer
from training.models import build_model
from training.models.factorization import VectorModel

SHARDS, BATCH = 4, 64
LOSSES = ("full_softmax", "in_batch_softmax")
MULTI_HOT = MultiHot(max_length=4)
TWO_TOWER = {
    "architecture": "two_tower",
    "embedding_dim": 8,
    "user_tower": [16],
    "item_tower": [12],
    "output_dim": 6,
    "dropout": 0.2,
    "multi_hot": {"max_length": 4},
}


@pytest.fixture(scope="module")
def days() -> list[Choices]:
    return [choices(400, seed=number, day=number) for number in range(3)]


@pytest.fixture(scope="module")
def files(days: list[Choices], tmp_path_factory: pytest.TempPathFactory) -> list[DataFile]:
    return write_days(tmp_path_factory.mktemp("choices"), days)


def settings(loss: str, **changed: Any) -> Train:
    base = {"num_ranks": 1, "num_shards": SHARDS, "global_batch_size": BATCH, "loss": loss}
    return Train.model_validate({**base, **changed})


def loader_of(files: list[DataFile], rank: int = 0, ranks: int = 1) -> Loader:
    plan = plan_shards([group.rows for group in row_groups(files)], SHARDS, BATCH)
    shards = shards_of_rank(SHARDS, rank, ranks)
    return Loader(files, plan, shards, SPEC, 3, MULTI_HOT, reading=Reading(pool_rows=1), with_row_keys=True)


def comparison_of(files: list[DataFile], train: Train, collectives: Collectives = ALONE) -> ItemComparison:
    catalogue = read_catalogue(files, [], SPEC, MULTI_HOT, Reading(), collectives, torch.device("cpu"))
    return ItemComparison(catalogue, train, SPEC, MULTI_HOT, SHARDS // collectives.size)


def expanded(files: list[DataFile], loss: str) -> Iterator[Batch]:
    comparison = comparison_of(files, settings(loss))
    return (comparison.expand(batch) for batch in loader_of(files).batches())


def item_row(item: int, price: float) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """The features of an item, with zeros in all other columns."""
    genres = genres_of(item)[:4]
    return (0.0, price, 0.0), (0, item + 3, *genres, *[0] * (4 - len(genres)))


def rows_of(dense: torch.Tensor, categorical: torch.Tensor) -> list[tuple[tuple, tuple]]:
    pairs = zip(dense.tolist(), categorical.tolist(), strict=True)
    return [(tuple(numbers), tuple(ids)) for numbers, ids in pairs]


@pytest.mark.parametrize("loss", LOSSES)
def test_every_positive_row_is_used_once_and_no_other_row(
    days: list[Choices], files: list[DataFile], loss: str
) -> None:
    batches = list(expanded(files, loss))
    used = [row for batch in batches for row in batch.dense[batch.weights > 0].tolist()]
    expected = [
        row.tolist()
        for day in days
        for row, label in zip(day.rows.dense, day.rows.labels, strict=True)
        if label
    ]
    assert sorted(used) == sorted(expected)
    assert {batch.group for batch in batches} == {1}
    assert sum(batch.global_weight for batch in batches) == pytest.approx(len(expected))


def test_a_row_is_compared_with_all_items_of_its_day_with_their_features_of_that_day(
    days: list[Choices], files: list[DataFile]
) -> None:
    last_price = [
        {int(item): price for item, price in zip(day.items, day.rows.dense[:, 1].tolist(), strict=True)}
        for day in days
    ]
    for batch in expanded(files, "full_softmax"):
        compared = batch.items
        assert isinstance(compared, CatalogueItems)
        rows = rows_of(compared.dense, compared.categorical)
        for number, prices in enumerate(last_price):
            of_day = rows[compared.starts[number] : compared.starts[number + 1]]
            assert sorted(of_day) == sorted(item_row(item, price) for item, price in prices.items())
        for own, dense, ids in zip(
            compared.own.tolist(), batch.dense.tolist(), batch.categorical.tolist(), strict=True
        ):
            day = int(dense[1])
            assert compared.starts[day] <= own < compared.starts[day + 1]
            assert rows[own] == item_row(ids[1] - 3, last_price[day][ids[1] - 3])


def test_a_batchs_items_have_their_own_features_and_their_share_of_the_positive_rows(
    days: list[Choices], files: list[DataFile]
) -> None:
    clicks = np.zeros(ITEMS)
    for day in days:
        np.add.at(clicks, day.items, day.rows.labels)
    for batch in expanded(files, "in_batch_softmax"):
        compared = batch.items
        assert isinstance(compared, BatchItems)
        items = batch.categorical[:, 1].numpy() - 3
        prices = batch.dense[:, 1].tolist()
        expected = [item_row(int(item), price) for item, price in zip(items, prices, strict=True)]
        assert rows_of(compared.dense, compared.categorical) == expected
        shares = np.log(clicks[items] / clicks.sum())
        assert_allclose(compared.log_shares.numpy(), shares, rtol=1e-5)
        keys = compared.keys.numpy()
        assert_array_equal(keys[:, None] == keys, items[:, None] == items)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("placement", ["replicated", "row_wise"])
def test_two_ranks_train_like_one(files: list[DataFile], loss: str, placement: str) -> None:
    """With dropout in both towers, L2, and table rows on all ranks or spread over them."""
    embeddings = {"placement": placement}

    def run(collectives: Collectives) -> tuple[list[float], dict[str, torch.Tensor]]:
        train = settings(loss, num_ranks=collectives.size, l2=0.01, embeddings=embeddings)
        config = ModelConfig.model_validate(TWO_TOWER)
        model = build_model(config, SPEC, 1, train.embeddings, collectives)
        trainer = Trainer(model.train(), train, collectives, comparison_of(files, train, collectives))
        loader = loader_of(files, collectives.rank, collectives.size)
        losses = [float(trainer.step(batch, 1.0)) for batch in loader.batches(2)]
        tables = {id(table.weight) for table in model.modules() if hasattr(table, "placement")}
        dense = {name: value for name, value in model.named_parameters() if id(value) not in tables}
        return losses, {name: value.detach() for name, value in dense.items()}

    ((alone, weights),) = on_ranks(1, run)
    assert len({round(value, 4) for value in alone}) > len(alone) / 2
    for losses, of_rank in on_ranks(2, run):
        assert_allclose(losses, alone, rtol=2e-4)
        assert weights.keys() == of_rank.keys()
        for name, value in weights.items():
            if name not in ("bias", "item.out.bias"):  # these cancel, so their gradients are only rounding
                torch.testing.assert_close(of_rank[name], value, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_resumed_training_equals_an_uninterrupted_one(files: list[DataFile], loss: str) -> None:
    train = settings(loss, l2=0.001, embeddings={"optimizer": "lazy_adam"})

    def trainer(seed: int) -> Trainer:
        model = build_model(ModelConfig.model_validate(TWO_TOWER), SPEC, seed)
        return Trainer(model.train(), train, ALONE, comparison_of(files, train))

    whole, resumed = trainer(1), trainer(2)
    losses, saved = [], {}
    for step, batch in enumerate(islice(loader_of(files).batches(), 7)):
        if step == 3:
            saved = {name: value.clone() for name, value in whole.state().items()}
        losses.append(float(whole.step(batch, 1.0)))
    resumed.load_state(saved)
    assert [float(resumed.step(batch, 1.0)) for batch in islice(loader_of(files).batches(1, 3), 4)] == losses[
        3:
    ]
    for name, value in whole.state().items():
        assert torch.equal(resumed.state()[name], value), name


@pytest.mark.parametrize("loss", LOSSES)
def test_a_trained_model_prefers_the_items_that_users_choose(loss: str, tmp_path: Path) -> None:
    """Users choose items of their own parity, so such items must have larger products with their vectors."""
    day = choices(2000, seed=5, day=0)
    day.rows.labels[:] = (day.users + day.items) % 2 == 0
    day.rows.dense[:] = 0
    files = write_days(tmp_path, [day], file_rows=2000)
    train = settings(loss, global_batch_size=256)
    model = build_model(ModelConfig.model_validate(TWO_TOWER | {"dropout": 0.0}), SPEC, seed=1)
    trainer = Trainer(model.train(), train, ALONE, comparison_of(files, train))
    plan = plan_shards([2000], SHARDS, 256)
    for batch in Loader(files, plan, range(SHARDS), SPEC, 3, MULTI_HOT, with_row_keys=True).batches(8):
        trainer.step(batch, 1.0)
    assert isinstance(model.eval(), VectorModel)
    users = torch.zeros(USERS, 6, dtype=torch.int64)
    users[:, 0] = torch.arange(USERS) + 3
    items = torch.tensor([item_row(item, 0.0)[1] for item in range(ITEMS)])
    with torch.no_grad():
        products = (
            model.user_vectors(torch.zeros(USERS, 3), users)
            @ model.item_vectors(torch.zeros(ITEMS, 3), items).t()
        )
    same = (np.arange(USERS)[:, None] + np.arange(ITEMS)) % 2 == 0
    scores = products.numpy()
    better = np.mean([(scores[u][same[u]][:, None] > scores[u][~same[u]]).mean() for u in range(USERS)])
    assert better > 0.9


@pytest.mark.parametrize("loss", LOSSES)
def test_a_batch_without_a_positive_row_has_the_loss_zero(files: list[DataFile], loss: str) -> None:
    train = settings(loss)
    model = build_model(ModelConfig.model_validate(TWO_TOWER), SPEC, 1).train()
    trainer = Trainer(model, train, ALONE, comparison_of(files, train))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = next(loader_of(files).batches())
    assert float(trainer.step(replace(batch, labels=batch.labels * 0), 1.0)) == 0
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=1e-7)


def test_more_items_than_allowed_are_refused(files: list[DataFile], days: list[Choices]) -> None:
    count = sum(len(set(day.items.tolist())) for day in days)
    comparison_of(files, settings("full_softmax", max_softmax_items=count))
    with pytest.raises(ConfigError, match=rf"{count} items in each step.*allows {count - 1}"):
        comparison_of(files, settings("full_softmax", max_softmax_items=count - 1))
