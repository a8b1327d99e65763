"""Ids that training replaces by OOV_ID: which ones, against a NumPy oracle, and what a model learns from it."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from pydantic import ValidationError

from conf.errors import ConfigError
from conf.names import days_since_epoch
from conf.types import Config, MultiHot, Reading, Train, TrainNegatives
from jobs.checks import check_training
from storage.feature_spec import OOV_ID
from storage.paths import LakePaths
from tests.training.choices import ITEMS, SPEC, USERS, Choices, choices, write_days
from tests.training.feature_tables import make_config, publish_all
from tests.training.ranks_in_threads import on_ranks
from training.checkpoints import load_model
from training.collectives import ALONE, Collectives
from training.data.batch import Batch, CatalogueItems
from training.data.item_catalogue import ItemCatalogue, read_catalogue
from training.data.item_comparison import ItemComparison
from training.data.loader import Loader
from training.data.negative_sampler import NegativeSampler
from training.data.sharding import DataFile, plan_shards, row_groups, shards_of_rank
from training.data.unknown_ids import RowsWithUnknownIds, UnknownIds
from training.loop.run import train_in_process
from training.loop.training_plan import TrainPlan, make_plan
from training.models.inputs import id_columns

SHARDS, BATCH, DRAWS, SEED = 6, 60, 4, 11
MULTI_HOT = MultiHot(max_length=4)
CPU = torch.device("cpu")
SHARES = {"user": 0.25, "item": 0.4, "genres": 0.5}
WIDTH = 6  # user, item, and four genres
SHARE_OF_COLUMN = [SHARES["user"], SHARES["item"], *[SHARES["genres"]] * 4]


def splitmix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Steele et al. 2014, section 5, in unsigned arithmetic."""
    with np.errstate(over="ignore"):
        state = values + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return state ^ (state >> np.uint64(31))


def oracle_keys(numbers: Any, days: Any, epoch: int, seed: int = SEED) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        day = splitmix(np.asarray(days, np.int64).view(np.uint64))
        key = splitmix(np.asarray(numbers, np.int64).view(np.uint64) + day)
        key = splitmix(key + np.uint64(epoch))
        return splitmix(key + np.uint64(seed + int.from_bytes(b"unknown", "big")))


def oracle_replaced(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """(…, WIDTH): whether the id in each column is replaced, if it is the id of a value."""
    columns = splitmix(np.arange(WIDTH, dtype=np.uint64))
    with np.errstate(over="ignore"):
        bits = splitmix(keys[..., None] + columns) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53 < np.array(SHARE_OF_COLUMN)


def replaced(ids: NDArray[np.int32], keys: NDArray[np.uint64]) -> NDArray[np.int32]:
    return np.where(oracle_replaced(keys) & (ids >= 3), OOV_ID, ids).astype(np.int32)


def keys_of(batch: Batch) -> NDArray[np.uint64]:
    assert batch.row_keys is not None
    columns = batch.row_keys.numpy().astype(np.int64)
    row_ids = (columns[:, 0] & 0xFFFFFFFF) | (columns[:, 1] << 32)
    return oracle_keys(row_ids, columns[:, 6], batch.epoch)


@pytest.fixture(scope="module")
def days() -> list[Choices]:
    return [choices(400, seed=number, day=number) for number in range(2)]


@pytest.fixture(scope="module")
def files(days: list[Choices], tmp_path_factory: pytest.TempPathFactory) -> list[DataFile]:
    return write_days(tmp_path_factory.mktemp("choices"), days)


def loader_of(files: list[DataFile], rank: int = 0, ranks: int = 1) -> Loader:
    plan = plan_shards([group.rows for group in row_groups(files)], SHARDS, BATCH)
    shards = shards_of_rank(SHARDS, rank, ranks)
    return Loader(files, plan, shards, SPEC, 3, MULTI_HOT, reading=Reading(pool_rows=1), with_row_keys=True)


def unknown_ids(seed: int = SEED) -> UnknownIds:
    return UnknownIds.of(SHARES, seed, id_columns(SPEC, MULTI_HOT), CPU)


def catalogue_of(files: list[DataFile], collectives: Collectives = ALONE) -> ItemCatalogue:
    return read_catalogue(files, [], SPEC, MULTI_HOT, Reading(), collectives, CPU)


def sampler_of(catalogue: ItemCatalogue, unknown: UnknownIds | None, ranks: int = 1) -> NegativeSampler:
    settings = TrainNegatives(per_positive=DRAWS)
    return NegativeSampler(catalogue, settings, SEED, SPEC, MULTI_HOT, SHARDS // ranks, unknown)


def test_the_ids_of_rows_are_replaced_as_the_oracle_says_and_nothing_else(files: list[DataFile]) -> None:
    rows = RowsWithUnknownIds(unknown_ids())
    counted, known = np.zeros(WIDTH), np.zeros(WIDTH)
    for batch in loader_of(files).batches(3):
        changed = rows.expand(batch)
        before, after = batch.categorical.numpy(), changed.categorical.numpy()
        assert_array_equal(after, replaced(before, keys_of(batch)))
        real = batch.weights.numpy() > 0
        counted += (after != before)[real].sum(axis=0)
        known += (before >= 3)[real].sum(axis=0)
        assert changed.row_keys is None
        for name in ("dense", "labels", "weights"):
            assert getattr(changed, name) is getattr(batch, name)
    deviations = np.sqrt(known * np.array(SHARE_OF_COLUMN) * (1 - np.array(SHARE_OF_COLUMN)))
    assert (np.abs(counted - known * SHARE_OF_COLUMN) < 4 * deviations + 1).all()


def test_other_ids_are_replaced_in_another_epoch_and_with_another_seed(files: list[DataFile]) -> None:
    batch = next(loader_of(files).batches())
    first = RowsWithUnknownIds(unknown_ids()).expand(batch).categorical
    for other in (
        RowsWithUnknownIds(unknown_ids()).expand(replace(batch, epoch=1)).categorical,
        RowsWithUnknownIds(unknown_ids(SEED + 1)).expand(batch).categorical,
    ):
        assert 0.2 < float((first[:, :2] != other[:, :2]).double().mean()) < 0.6


def test_reserved_ids_stay_and_a_share_of_zero_changes_nothing() -> None:
    ids = torch.tensor([[0, 1, 2, 0, 1, 2]] * 500, dtype=torch.int32)
    keys = torch.arange(500)
    assert torch.equal(unknown_ids().replace(ids, keys), ids)
    none = UnknownIds.of({"item": 0.0}, SEED, id_columns(SPEC, MULTI_HOT), CPU)
    assert torch.equal(none.replace(ids + 3, keys), ids + 3)
    assert torch.equal(unknown_ids().only([]).replace(ids + 3, keys), ids + 3)


def test_drawn_items_are_those_without_replacement_and_are_replaced_apart(files: list[DataFile]) -> None:
    catalogue, unknown = catalogue_of(files), unknown_ids()
    plain = sampler_of(catalogue, None)
    rows = RowsWithUnknownIds(unknown, sampler_of(catalogue, unknown))
    for batch in loader_of(files).batches(2):
        before, after = plain.expand(batch), rows.expand(batch)
        positive = ((batch.labels == 1) & (batch.weights > 0)).numpy()
        if not positive.any():
            continue
        keys = keys_of(batch)[positive]
        with np.errstate(over="ignore"):
            of_draws = splitmix(keys[:, None] + np.arange(1, DRAWS + 1, dtype=np.uint64))
        groups = before.categorical.numpy().reshape(len(keys), 1 + DRAWS, WIDTH)
        expected = groups.copy()
        expected[:, 0] = replaced(groups[:, 0], keys)
        expected[:, 1:] = replaced(groups[:, 1:], of_draws)
        expected[:, 1:, 0] = expected[:, :1, 0]  # the user of a drawn item is that of the row
        assert_array_equal(after.categorical.numpy().reshape(expected.shape), expected)
        for name in ("dense", "labels", "weights", "log_draw"):
            assert torch.equal(getattr(after, name), getattr(before, name))
        assert after.shard_rows == before.shard_rows


def test_items_of_the_full_softmax_are_replaced_by_item_day_and_epoch(files: list[DataFile]) -> None:
    catalogue = catalogue_of(files)
    train = Train(num_ranks=1, num_shards=SHARDS, global_batch_size=BATCH, loss="full_softmax")
    plain = ItemComparison(catalogue, train, SPEC, MULTI_HOT, SHARDS)
    changed = ItemComparison(catalogue, train, SPEC, MULTI_HOT, SHARDS, unknown_ids())
    batch = next(loader_of(files).batches())
    day_of_item = np.repeat(catalogue.days.numpy(), np.diff(catalogue.starts.numpy()))
    for epoch in (0, 3):
        before, after = (of.expand(replace(batch, epoch=epoch)).items for of in (plain, changed))
        assert isinstance(before, CatalogueItems)
        assert isinstance(after, CatalogueItems)
        keys = oracle_keys(catalogue.items.numpy(), day_of_item, epoch)
        assert_array_equal(after.categorical.numpy(), replaced(before.categorical.numpy(), keys))
        assert torch.equal(after.own, before.own)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_together_replace_what_one_rank_replaces(files: list[DataFile], ranks: int) -> None:
    def run(collectives: Collectives) -> list[Batch]:
        unknown = unknown_ids()
        sampler = sampler_of(catalogue_of(files, collectives), unknown, collectives.size)
        rows = RowsWithUnknownIds(unknown, sampler)
        loader = loader_of(files, collectives.rank, collectives.size)
        return [rows.expand(batch) for batch in loader.batches(2)]

    (alone,) = on_ranks(1, run)
    of_ranks = on_ranks(ranks, run)
    for step, expected in enumerate(alone):
        parts = [batches[step] for batches in of_ranks]
        together = torch.cat([part.categorical[part.weights > 0] for part in parts])
        assert torch.equal(together, expected.categorical[expected.weights > 0])


def test_resumed_batches_are_those_of_an_uninterrupted_training(files: list[DataFile]) -> None:
    rows, loader = RowsWithUnknownIds(unknown_ids()), loader_of(files)
    first = loader.plan.steps + 3
    whole = [rows.expand(batch).categorical for batch in loader.batches(2)]
    resumed = [rows.expand(batch).categorical for batch in loader_of(files).batches(2, first)]
    assert len(resumed) == len(whole) - first > 0
    for actual, expected in zip(resumed, islice(whole, first, None), strict=True):
        assert torch.equal(actual, expected)


DLRM = {
    "architecture": "dlrm",
    "embedding_dim": 8,
    "bottom_mlp": [8, 8],
    "top_mlp": [16],
    "multi_hot": {"max_length": 4},
}


def liked_genres(rows: int, seed: int) -> Choices:
    """Rows whose label follows from the genres of the item, which its id says too."""
    day = choices(rows, seed, day=0)
    day.rows.dense[:] = 0
    likes = (day.items % 4 > 0) & (day.items % 6 < 3)
    day.rows.labels[:] = np.random.default_rng(seed).random(rows) < np.where(likes, 0.8, 0.2)
    return day


def plan_of(folder: Path, **train: Any) -> TrainPlan:
    lake = LakePaths(str(folder))
    days = {"train": "2026-01-02", "validation": "2026-01-03", "test": "2026-01-04"}
    splits = {
        split: {dt: liked_genres(3000 if split == "train" else 600, seed).rows}
        for seed, (split, dt) in enumerate(days.items())
    }
    dataset = publish_all(lake, "2026-01-04", SPEC, splits)
    settings = {"global_batch_size": 60, "num_shards": SHARDS, "num_ranks": 1, "epochs": 3, **train}
    return make_plan(make_config(lake, model=DLRM, train=settings), lake, dataset)


def log_loss(plan: TrainPlan, rows: Choices, *, items_known: bool) -> float:
    """The log loss of the trained model, computed here, with the ids of items or without them."""
    dense, ids = rows.rows.tensors(4)
    if not items_known:
        ids[:, 1] = OOV_ID
    model = load_model(plan.model_path, CPU).model.eval()
    with torch.no_grad():
        probability = torch.sigmoid(model(dense, ids)).double().numpy().clip(1e-7, 1 - 1e-7)
    labels = rows.rows.labels
    return float(-np.mean(labels * np.log(probability) + (1 - labels) * np.log(1 - probability)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[float, tuple[TrainPlan, dict[str, Any]]]:
    """Trainings with a share of unknown items, and without."""
    torch.set_num_threads(1)
    results = {}
    for share in (0.0, 0.3):
        plan = plan_of(tmp_path_factory.mktemp("lake"), unknown_share={"item": share} if share else {})
        results[share] = plan, train_in_process(plan)
    return results


def test_a_model_learns_to_score_items_that_it_does_not_know(trained: dict[float, Any]) -> None:
    rows = liked_genres(600, seed=2)
    unknown = {share: log_loss(plan, rows, items_known=False) for share, (plan, _) in trained.items()}
    known = {share: log_loss(plan, rows, items_known=True) for share, (plan, _) in trained.items()}
    assert unknown[0.3] < unknown[0.0] - 0.04
    assert abs(known[0.3] - known[0.0]) < 0.02


def test_the_test_split_is_measured_with_the_ids_of_its_rows(trained: dict[float, Any]) -> None:
    plan, description = trained[0.3]
    with_ids = log_loss(plan, liked_genres(600, seed=2), items_known=True)
    assert description["metrics"]["test"]["log_loss"] == pytest.approx(with_ids, rel=1e-5)


def test_only_trainings_with_a_share_train_the_row_of_unknown_values(trained: dict[float, Any]) -> None:
    """No row of these splits has an unknown item."""
    first = {
        share: load_model(plan.model_path, CPU).model.state_dict()["embedding.weight"]
        for share, (plan, _) in trained.items()
    }
    item = USERS + 3 + OOV_ID
    rows = {share: weights[item] for share, weights in first.items()}
    assert first[0.0].shape == first[0.3].shape == (USERS + 3 + ITEMS + 3 + 9, 8)
    assert not torch.equal(rows[0.0], rows[0.3])


def config(features: list[dict[str, Any]] | None = None, **changed: Any) -> Config:
    columns = [{"name": name, "type": "string"} for name in ("user", "item", "shop", "place")]
    values = {
        "name": "tiny",
        "lake": "lake",
        "log": {
            "path": "{lake}/raw/{date}",
            "format": "tsv",
            "columns": [{"name": "label", "type": "int"}, *columns],
            "label": {"column": "label"},
        },
        "keys": {"user": "user", "item": "item"},
        "features": features
        or [
            {"columns": ["user", "item"], "kind": "categorical", "ops": [{"categorify": {}}]},
            {"columns": ["shop"], "kind": "categorical", "ops": [{"categorify": {"oov_buckets": 4}}]},
            {"columns": ["place"], "kind": "categorical", "ops": [{"hash_bucket": {"buckets": 9}}]},
        ],
        "scopes": {"user": ["user"], "item": ["item", "shop", "place"]},
        "model": {"architecture": "logistic_regression"},
        "split": {"by": "day"},
        **changed,
    }
    return Config.model_validate(values)


def test_features_without_one_id_for_unknown_values_are_refused(tmp_path: Path) -> None:
    check_training(config(train={"unknown_share": {"user": 0.1, "item": 0.1}}))
    for name in ("shop", "place", "label", "usr"):
        with pytest.raises(ConfigError, match=rf"unknown_share names \['{name}'\][\s\S]*'user', 'item'"):
            check_training(config(train={"unknown_share": {name: 0.1}}))
    with pytest.raises(ConfigError, match=r"unknown_share names \['price'\]"):
        plan_of(tmp_path, unknown_share={"price": 0.1})


def test_a_log_without_users_and_items_and_a_share_of_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="`keys` is missing"):
        check_training(config(keys=None, train={"unknown_share": {"user": 0.1}}))
    with pytest.raises(ConfigError, match=r"train.shuffle=users .* `keys` is missing"):
        check_training(config(keys=None, train={"shuffle": "users"}))
    for share in (1.0, -0.1):
        with pytest.raises(ValidationError, match="unknown_share"):
            config(train={"unknown_share": {"user": share}})


def test_the_day_is_part_of_the_draw(files: list[DataFile]) -> None:
    """The same row ids of two days are replaced independently."""
    first, second = (days_since_epoch(day) for day in ("2026-01-01", "2026-01-02"))
    rows = np.arange(400)
    keys = [oracle_replaced(oracle_keys(rows, np.full(400, day), 0)) for day in (first, second)]
    actual = [
        unknown_ids().replace(
            torch.full((400, WIDTH), 5, dtype=torch.int32),
            unknown_ids().keys(torch.arange(400), torch.full((400,), day), 0),
        )
        for day in (first, second)
    ]
    for expected, ids in zip(keys, actual, strict=True):
        assert_array_equal(ids.numpy() == OOV_ID, expected)
    assert 0.2 < float((actual[0][:, :2] != actual[1][:, :2]).double().mean()) < 0.6
