"""Negatives that are drawn in training: which items, their features, the rows around them, and the losses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import ValidationError

from conf.errors import ConfigError, DataError
from conf.names import days_since_epoch
from conf.types import ModelConfig, MultiHot, Reading, Train, TrainNegatives
from storage.feature_spec import FeatureSpec
from tests.training.choices import ITEMS, SPEC, USERS, Choices, choices, genres_of, write_days
from tests.training.feature_tables import write_file
from tests.training.ranks_in_threads import on_ranks
from training.collectives import ALONE, Collectives
from training.data import negative_sampler
from training.data.batch import Batch, DrawnItems
from training.data.item_catalogue import ItemCatalogue, read_catalogue
from training.data.loader import Loader
from training.data.negative_sampler import NegativeSampler
from training.data.row_keys import hash_keys, mix, uniform
from training.data.sharding import DataFile, plan_shards, row_groups, shards_of_rank
from training.loop import forward
from training.loop.forward import read_loss
from training.loop.train_step import Trainer
from training.models import build_model
from training.native.library import AVX2, AVX512, BEST, EVERYWHERE
from training.settings.check_settings import require_no_pair_features

SHARDS, BATCH, DRAWS = 4, 64, 5
MULTI_HOT = MultiHot(max_length=4)
CPU = torch.device("cpu")
FIRST_DAY = days_since_epoch("2026-01-01")


@pytest.fixture(scope="module")
def days() -> list[Choices]:
    return [choices(500, seed=number, day=number) for number in range(3)]


@pytest.fixture(scope="module")
def files(days: list[Choices], tmp_path_factory: pytest.TempPathFactory) -> list[DataFile]:
    return write_days(tmp_path_factory.mktemp("choices"), days)


def catalogue_of(
    files: list[DataFile], earlier: list[DataFile] | None = None, collectives: Collectives = ALONE
) -> ItemCatalogue:
    return read_catalogue(files, earlier or [], SPEC, MULTI_HOT, Reading(), collectives, CPU)


def without_choices(catalogue: ItemCatalogue) -> ItemCatalogue:
    return replace(catalogue, pairs=catalogue.pairs[:1] * 0 - 1, first_days=catalogue.first_days[:1])


def loader_of(files: list[DataFile], rank: int = 0, ranks: int = 1) -> Loader:
    plan = plan_shards([group.rows for group in row_groups(files)], SHARDS, BATCH)
    shards = shards_of_rank(SHARDS, rank, ranks)
    return Loader(files, plan, shards, SPEC, 3, MULTI_HOT, reading=Reading(pool_rows=1), with_row_keys=True)


def sampler_of(
    catalogue: ItemCatalogue, ranks: int = 1, draws: int = DRAWS, popularity: float = 0.0, seed: int = 7
) -> NegativeSampler:
    settings = TrainNegatives(per_positive=draws, popularity=popularity)
    return NegativeSampler(catalogue, settings, seed, SPEC, MULTI_HOT, SHARDS // ranks)


def groups_of(batch: Batch) -> Iterator[list[tuple[object, ...]]]:
    """Each group of a batch, as the values of its rows: (label, weight, dense, categorical)."""
    for start in range(0, len(batch.labels), batch.group):
        rows = slice(start, start + batch.group)
        yield [
            (label, weight, tuple(dense), tuple(ids))
            for label, weight, dense, ids in zip(
                batch.labels[rows].tolist(),
                batch.weights[rows].tolist(),
                batch.dense[rows].tolist(),
                batch.categorical[rows].tolist(),
                strict=True,
            )
        ]


def expanded(files: list[DataFile], sampler: NegativeSampler, epochs: int = 1) -> Iterator[Batch]:
    return (sampler.expand(batch) for batch in loader_of(files).batches(epochs))


def real_groups(files: list[DataFile], sampler: NegativeSampler, epochs: int = 1) -> list[list]:
    every = (group for batch in expanded(files, sampler, epochs) for group in groups_of(batch))
    return [group for group in every if group[0][1] > 0]


def day_of(row: tuple) -> int:
    """The day of a row of a positive or of a drawn item: prices rise by 1 a day."""
    return int(row[2][1])


def test_every_positive_row_is_used_once_an_epoch_and_no_other_row(
    days: list[Choices], files: list[DataFile]
) -> None:
    groups = real_groups(files, sampler_of(catalogue_of(files)))
    expected = Counter(
        tuple(row)
        for day in days
        for row, label in zip(day.rows.dense.tolist(), day.rows.labels, strict=True)
        if label
    )
    assert Counter(group[0][2] for group in groups) == expected
    assert all(group[0][0] == 1 and {row[0] for row in group[1:]} == {0.0} for group in groups)
    assert all(len(group) == 1 + DRAWS for group in groups)


def test_a_drawn_item_has_its_features_of_the_rows_day_and_all_else_of_the_row(
    days: list[Choices], files: list[DataFile]
) -> None:
    last_price = [
        {int(item): price for item, price in zip(day.items, day.rows.dense[:, 1].tolist(), strict=True)}
        for day in days
    ]
    groups = real_groups(files, sampler_of(catalogue_of(files)))
    for group in groups:
        (_, _, dense, ids), day = group[0], day_of(group[0])
        for _, _, other_dense, other_ids in group[1:]:
            item = other_ids[1] - 3
            genres = genres_of(item)[:4]
            assert other_dense == (dense[0], last_price[day][item], dense[2])
            assert other_ids == (ids[0], other_ids[1], *genres, *[0] * (4 - len(genres)))


def test_no_item_is_drawn_that_the_user_chose_by_then_but_one_chosen_later_is(
    days: list[Choices], files: list[DataFile]
) -> None:
    chosen: dict[tuple[int, int], int] = {}
    for number, day in enumerate(days):
        for user, item, label in zip(day.users, day.items, day.rows.labels, strict=True):
            if label:
                chosen.setdefault((int(user), int(item)), number)
    drawn_before_chosen = 0
    for group in real_groups(files, sampler_of(catalogue_of(files)), epochs=4):
        for _, weight, _, ids in group[1:]:
            first = chosen.get((ids[0] - 3, ids[1] - 3), len(days))
            assert weight == 0 or first > day_of(group[0])
            drawn_before_chosen += weight > 0 and first < len(days)
    assert drawn_before_chosen  # rejecting them would use rows of the future


def test_pairs_of_earlier_train_days_count_although_the_model_is_not_trained_on_them(
    days: list[Choices], files: list[DataFile]
) -> None:
    new = [file for file in files if file.dt == "2026-01-03"]
    earlier = [file for file in files if file.dt != "2026-01-03"]
    known = {
        (int(user), int(item))
        for day in days
        for user, item, label in zip(day.users, day.items, day.rows.labels, strict=True)
        if label
    }

    def drawn(catalogue: ItemCatalogue) -> set[tuple[int, int]]:
        groups = real_groups(new, sampler_of(catalogue), epochs=4)
        return {(row[3][0] - 3, row[3][1] - 3) for group in groups for row in group[1:] if row[1]}

    assert not drawn(catalogue_of(new, earlier)) & known
    assert drawn(catalogue_of(new)) & known


def test_draws_differ_by_epoch_and_seed_and_repeat_otherwise(files: list[DataFile]) -> None:
    catalogue = catalogue_of(files)

    def items_by_row(seed: int, epoch: int) -> dict[tuple, tuple]:
        sampler = sampler_of(catalogue, seed=seed)
        batches = loader_of(files).batches(epoch + 1, epoch * loader_of(files).plan.steps)
        groups = (group for batch in batches for group in groups_of(sampler.expand(batch)))
        return {group[0][2]: tuple(row[3][1] for row in group[1:]) for group in groups if group[0][1]}

    first, second, other = items_by_row(7, 0), items_by_row(7, 1), items_by_row(8, 0)
    assert first == items_by_row(7, 0)
    assert first.keys() == second.keys() == other.keys()
    for changed in (second, other):
        same = sum(first[row] == changed[row] for row in first)
        assert same < 0.05 * len(first)


def test_draws_of_a_row_and_of_equal_row_ids_on_two_days_are_independent(
    days: list[Choices], tmp_path: Path
) -> None:
    """Two draws are equal as often as independent uniform draws, for users who chose nothing."""
    day = days[0]
    later = replace(day, rows=replace(day.rows, dense=day.rows.dense + np.float32([0, 1, 0])))
    files = write_days(tmp_path, [day, later], file_rows=500)
    groups = real_groups(files, sampler_of(without_choices(catalogue_of(files))))
    drawn = {
        number: {
            group[0][2][2]: [row[3][1] for row in group[1:]] for group in groups if day_of(group[0]) == number
        }
        for number in (0, 1)
    }
    assert drawn[0].keys() == drawn[1].keys()
    both = np.array([drawn[0][hour] + drawn[1][hour] for hour in drawn[0]])  # (rows, 2 * draws)
    share = 1 / len(np.unique(day.items))
    for left, right in combinations(range(2 * DRAWS), 2):
        equal = (both[:, left] == both[:, right]).mean()
        assert abs(equal - share) < 5 * math.sqrt(share / len(both)), (left, right)


def test_padding_rows_have_no_negatives_and_weights_sum_to_the_positive_rows(
    days: list[Choices], files: list[DataFile]
) -> None:
    catalogue = catalogue_of(files)
    positives = sum(float(day.rows.labels.sum()) for day in days)
    assert sum(batch.global_weight for batch in expanded(files, sampler_of(catalogue))) == pytest.approx(
        positives
    )
    batch = next(loader_of(files).batches())
    weights = batch.weights.clone()
    weights[: len(weights) // 2] = 0
    padded = sampler_of(catalogue).expand(replace(batch, weights=weights, labels=batch.labels * 0 + 1))
    assert len(padded.labels) == (1 + DRAWS) * int(weights.sum())


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_together_draw_what_one_rank_draws(files: list[DataFile], ranks: int) -> None:
    alone = list(expanded(files, sampler_of(catalogue_of(files))))

    def run(collectives: Collectives) -> list[Batch]:
        sampler = sampler_of(catalogue_of(files, collectives=collectives), ranks)
        return [sampler.expand(batch) for batch in loader_of(files, collectives.rank, ranks).batches()]

    of_ranks = on_ranks(ranks, run)
    for step, expected in enumerate(alone):
        parts = [batches[step] for batches in of_ranks]
        shard_rows = [rows * (part.weights.sum() > 0) for part in parts for rows in part.shard_rows or ()]
        assert shard_rows == expected.shard_rows
        real = [group for part in parts for group in groups_of(part) if group[0][1]]
        assert real == [group for group in groups_of(expected) if group[0][1]]
        assert {part.global_weight for part in parts} == {expected.global_weight}


@pytest.mark.parametrize("popularity", [0.0, 0.75])
def test_items_are_drawn_by_their_clicks_of_the_day(
    days: list[Choices], files: list[DataFile], popularity: float
) -> None:
    """Of users who chose nothing, so that no draw is rejected."""
    catalogue = without_choices(catalogue_of(files))
    groups = real_groups(files, sampler_of(catalogue, popularity=popularity, draws=40))
    for number, day in enumerate(days):
        clicks = {int(item): float(day.rows.labels[day.items == item].sum()) for item in day.items}
        weights = {item: count**popularity for item, count in clicks.items()}
        drawn = Counter(row[3][1] - 3 for group in groups if day_of(group[0]) == number for row in group[1:])
        total = sum(drawn.values())
        for item, weight in weights.items():
            share = weight / sum(weights.values())
            assert abs(drawn[item] / total - share) < 5 * math.sqrt(share * (1 - share) / total) + 1e-12


def test_a_user_who_chose_everything_gets_negatives_of_weight_zero(tmp_path: Path) -> None:
    day = choices(300, seed=1, day=0)
    day.rows.labels[:] = 1
    everything = replace(day.rows, keys=(["u1"] * 300, day.rows.keys[1]))
    files = write_days(tmp_path, [replace(day, rows=everything)])
    for group in real_groups(files, sampler_of(catalogue_of(files))):
        assert [row[1] for row in group] == [1, *[0] * DRAWS]


def test_a_batch_without_a_positive_row_has_one_group_of_weight_zero(files: list[DataFile]) -> None:
    batch = next(loader_of(files).batches())
    empty = sampler_of(catalogue_of(files)).expand(replace(batch, labels=batch.labels * 0))
    assert empty.weights.tolist() == [0] * (1 + DRAWS)
    for name in ("bce", "bpr", "softmax"):
        assert float(read_loss(name)(torch.ones(1 + DRAWS), empty)) == 0


def test_hashes_are_those_of_the_paper() -> None:
    """The first outputs of SplitMix64 with seed 1234567, as published with its reference implementation."""
    seed, step = 1234567, 0x9E3779B97F4A7C15
    states = [(seed + step * number + 2**63) % 2**64 - 2**63 for number in range(3)]
    outputs = [value % 2**64 for value in mix(torch.tensor(states)).tolist()]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    shares = uniform(mix(torch.arange(100_000)))
    assert float(shares.min()) >= 0
    assert float(shares.max()) < 1
    assert abs(float(shares.mean()) - 0.5) < 0.005


def group_batch(weights: list[list[float]], log_draw: list[list[float]]) -> Batch:
    labels = torch.tensor([[1.0, *[0.0] * (len(row) - 1)] for row in weights])
    return Batch(
        torch.zeros(labels.numel(), 0),
        torch.zeros(labels.numel(), 0),
        labels.flatten(),
        torch.tensor(weights).flatten(),
        global_weight=4,
        group=labels.shape[1],
        log_draw=torch.tensor(log_draw).flatten(),
    )


def test_losses_are_those_of_the_papers() -> None:
    logits = np.array([[0.5, -1.0, 2.0], [1.5, 0.2, -0.3], [0.1, 0.2, 0.3]])
    weights = [[1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]
    shares = np.array([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]])
    batch = group_batch(weights, np.log(shares).tolist())

    def sigmoid(value: float) -> float:
        return 1 / (1 + math.exp(-value))

    bce = bpr = softmax = 0.0
    for row, weight, share in zip(logits, weights, shares, strict=True):
        for index, value in enumerate(row):
            bce -= weight[index] * math.log(sigmoid(value) if index == 0 else 1 - sigmoid(value))
        if weight[0]:
            bpr -= sum(weight[n] * math.log(sigmoid(row[0] - row[n])) for n in (1, 2))
            kept = [n for n in range(3) if weight[n]]
            terms = {n: math.exp(row[n]) / share[n] for n in kept}
            softmax -= math.log(terms[0] / sum(terms.values()))
    values = torch.tensor(logits, dtype=torch.float32).flatten()
    assert float(read_loss("bce")(values, batch)) == pytest.approx(bce / (4 * 3), rel=1e-5)
    assert float(read_loss("bpr")(values, batch)) == pytest.approx(bpr / (4 * 2), rel=1e-5)
    assert float(read_loss("softmax")(values, batch)) == pytest.approx(softmax / 4, rel=1e-5)


@pytest.mark.parametrize("loss", ["bce", "bpr", "softmax"])
def test_every_loss_raises_positives_above_negatives(loss: str, tmp_path: Path) -> None:
    """Users choose items of their own parity. After training, such items score higher than the others."""
    day = choices(2000, seed=5, day=0)
    day.rows.labels[:] = (day.users + day.items) % 2 == 0
    day.rows.dense[:] = 0
    files = write_days(tmp_path, [day], file_rows=2000)
    train = Train(
        num_ranks=1,
        num_shards=SHARDS,
        global_batch_size=256,
        loss=loss,
        negatives=TrainNegatives(per_positive=DRAWS),
    )
    model = build_model(ModelConfig.model_validate(DLRM), SPEC, seed=1)
    trainer = Trainer(model.train(), train, ALONE, sampler_of(catalogue_of(files)))
    plan = plan_shards([2000], SHARDS, 256)
    loader = Loader(files, plan, range(SHARDS), SPEC, 3, MULTI_HOT, with_row_keys=True)
    for batch in loader.batches(12):
        trainer.step(batch, 1.0)
    model.eval()
    users, items = np.meshgrid(np.arange(12), np.arange(12), indexing="ij")
    lists = [(genres_of(int(item)) + [0] * 4)[:4] for item in items.flatten()]
    ids = torch.tensor(np.column_stack([users.flatten() + 3, items.flatten() + 3, lists]))
    with torch.no_grad():
        scores = model(torch.zeros(len(ids), 3), ids).numpy()
    same = ((users + items) % 2 == 0).flatten()
    better = (scores[same][:, None] > scores[~same]).mean()
    assert better > 0.9


DEEPFM = {
    "architecture": "deepfm",
    "embedding_dim": 8,
    "deep": [16],
    "dropout": 0.2,
    "multi_hot": {"max_length": 4},
}
DLRM = {
    "architecture": "dlrm",
    "embedding_dim": 8,
    "bottom_mlp": [8, 8],
    "top_mlp": [16],
    "multi_hot": {"max_length": 4},
}


def test_two_ranks_train_like_one(files: list[DataFile]) -> None:
    """With dropout, whose masks must follow the rows of a shard, however many they are."""
    settings = {"num_shards": SHARDS, "global_batch_size": BATCH, "loss": "softmax", "negatives": {}}
    model = build_model(ModelConfig.model_validate(DEEPFM), SPEC, seed=1)

    def run(collectives: Collectives) -> list[float]:
        train = Train.model_validate({**settings, "num_ranks": collectives.size})
        catalogue = catalogue_of(files, collectives=collectives)
        trainer = Trainer(
            deepcopy(model).train(), train, collectives, sampler_of(catalogue, collectives.size)
        )
        loader = loader_of(files, collectives.rank, collectives.size)
        return [float(trainer.step(batch, 1.0)) for batch in loader.batches(2)]

    (alone,) = on_ranks(1, run)
    for losses in on_ranks(2, run):
        np.testing.assert_allclose(losses, alone, rtol=2e-4)
    assert len({round(loss, 5) for loss in alone}) > len(alone) / 2


def test_ranks_without_a_positive_row_update_the_table_rows_that_one_rank_updates(tmp_path: Path) -> None:
    """Such a rank looks up the rows of one group of weight zero, so these rows have the gradient zero."""
    files = write_days(tmp_path, [choices(500, seed=1, day=0, like=0.03)])
    settings = {"num_shards": SHARDS, "global_batch_size": BATCH, "loss": "bce", "negatives": {}}
    embeddings = {"optimizer": "lazy_adam", "placement": "replicated"}

    def run(collectives: Collectives) -> tuple[torch.Tensor, torch.Tensor, int]:
        train = Train.model_validate({**settings, "embeddings": embeddings, "num_ranks": collectives.size})
        sampler = sampler_of(catalogue_of(files, collectives=collectives), collectives.size)
        model = build_model(ModelConfig.model_validate(DLRM), SPEC, 1, train.embeddings, collectives)
        trainer = Trainer(model.train(), train, collectives, sampler)
        without = 0
        for batch in loader_of(files, collectives.rank, collectives.size).batches():
            without += not (batch.labels * batch.weights).any()
            trainer.step(batch, 1.0)
        state = trainer.state()
        names = ("model.embedding.weight", "lazy_adam.updates.embedding.weight")
        weight, updates = (state[name] for name in names)
        assert isinstance(weight, torch.Tensor)
        assert isinstance(updates, torch.Tensor)
        return weight.detach(), updates, without

    ((weight, updates, rarely),) = on_ranks(1, run)
    of_ranks = on_ranks(SHARDS, run)
    assert sum(without for *_, without in of_ranks) > SHARDS * rarely
    for other_weight, other_updates, _ in of_ranks:
        torch.testing.assert_close(other_weight, weight, rtol=1e-3, atol=1e-4)
        assert torch.equal(other_updates, updates)


@pytest.mark.parametrize(
    "train, message",
    [
        ({"loss": "bpr"}, "needs the section negatives"),
        ({"negatives": {}, "compile": True}, "set compile=false"),
        ({"negatives": {}, "cuda_graphs": True}, "set cuda_graphs=false"),
        ({"negatives": {"popularity": -1}}, "greater than or equal to 0"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(train: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Train.model_validate(train)


def test_features_of_a_pair_and_a_log_without_negatives_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"\['distance'\][\s\S]*remove train.negatives"):
        require_no_pair_features(["distance"])
    require_no_pair_features([])


def test_a_table_without_keys_and_one_without_positives_are_refused(tmp_path: Path) -> None:
    day = choices(50, seed=1, day=0, like=0.0)
    with pytest.raises(DataError, match="no train row has label 1"):
        catalogue_of(write_days(tmp_path / "a", [day]))
    spec = replace(SPEC, key_columns=("row_id",))
    path = tmp_path / "b/part.parquet"
    write_file(path, spec, replace(day.rows, keys=()))
    with pytest.raises(DataError, match=r"lacks the columns \['user_key', 'item_key'\]"):
        catalogue_of([DataFile(str(path), 50, dt="2026-01-01")])


SEPARATE = FeatureSpec(
    tuple(feature for feature in SPEC.features if feature.scope != "context"), SPEC.key_columns, "w1"
)
TWO_TOWER = {
    "architecture": "two_tower",
    "embedding_dim": 8,
    "user_tower": [8],
    "item_tower": [8],
    "dropout": 0.0,
    "multi_hot": {"max_length": 4},
}


def steps_of(
    files: list[DataFile], model: torch.nn.Module, loss: str, *, of_vectors: bool, collectives: Collectives
) -> list[float]:
    """The losses of a training whose features depend on the user or the item alone."""
    ranks, multi_hot = collectives.size, MULTI_HOT
    catalogue = read_catalogue(files, [], SEPARATE, multi_hot, Reading(), collectives, CPU)
    sampler = NegativeSampler(
        *(catalogue, TrainNegatives(per_positive=DRAWS), 7, SEPARATE, multi_hot, SHARDS // ranks),
        of_vectors=of_vectors,
    )
    settings = {"num_shards": SHARDS, "global_batch_size": BATCH, "loss": loss, "negatives": {}}
    train = Train.model_validate({**settings, "num_ranks": ranks})
    trainer = Trainer(deepcopy(model).train(), train, collectives, sampler)
    plan = plan_shards([group.rows for group in row_groups(files)], SHARDS, BATCH)
    shards = shards_of_rank(SHARDS, collectives.rank, ranks)
    loader = Loader(files, plan, shards, SEPARATE, 3, multi_hot, with_row_keys=True)
    return [float(trainer.step(batch, 1.0)) for batch in loader.batches(2)]


@pytest.mark.parametrize("items_per_draw", [None, 0, 128])
@pytest.mark.parametrize("loss", ["softmax", "bpr"])
def test_products_with_the_different_items_of_a_step_train_as_rows_of_negatives_do(
    files: list[DataFile], loss: str, items_per_draw: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By compiled code (None), a vector for each draw, or one product of matrices."""
    if items_per_draw is not None:
        monkeypatch.setattr(forward, "is_compiled", lambda *_: False)
        monkeypatch.setattr(forward, "_ITEMS_PER_DRAW", items_per_draw)
    model = build_model(ModelConfig.model_validate(TWO_TOWER), SEPARATE, seed=1)
    by_rows = steps_of(files, model, loss, of_vectors=False, collectives=ALONE)
    by_vectors = steps_of(files, model, loss, of_vectors=True, collectives=ALONE)
    np.testing.assert_allclose(by_vectors, by_rows, rtol=1e-4)
    assert by_rows[-1] < by_rows[0]
    for losses in on_ranks(
        2, lambda collectives: steps_of(files, model, loss, of_vectors=True, collectives=collectives)
    ):
        np.testing.assert_allclose(losses, by_rows, rtol=2e-4)


def test_a_batch_of_vectors_has_each_drawn_item_once_and_each_positive_row_once(
    files: list[DataFile],
) -> None:
    catalogue = read_catalogue(files, [], SEPARATE, MULTI_HOT, Reading(), ALONE, CPU)
    settings = TrainNegatives(per_positive=DRAWS)
    by_rows, by_vectors = (
        NegativeSampler(catalogue, settings, 7, SEPARATE, MULTI_HOT, SHARDS, of_vectors=of_vectors)
        for of_vectors in (False, True)
    )
    plan = plan_shards([group.rows for group in row_groups(files)], SHARDS, BATCH)
    loader = Loader(files, plan, range(SHARDS), SEPARATE, 3, MULTI_HOT, with_row_keys=True)
    user_ids, item_ids = [0], slice(1, 6)  # columns of `user`; of `item` and `genres`
    for batch in loader.batches():
        rows, drawn = by_rows.expand(batch), by_vectors.expand(batch)
        assert isinstance(drawn.items, DrawnItems)
        group = rows.group
        assert torch.equal(drawn.categorical[:, user_ids], rows.categorical[::group, user_ids])
        assert torch.equal(
            drawn.items.categorical[drawn.items.index.flatten(), item_ids], rows.categorical[:, item_ids]
        )
        assert torch.equal(drawn.items.dense[drawn.items.index.flatten(), 1], rows.dense[:, 1])
        assert not drawn.items.categorical[:, user_ids].any()
        drawn_index = drawn.items.index[:, 1:]
        assert len(drawn.items.categorical) == len(drawn.labels) // group + len(drawn_index.unique())
        for name in ("labels", "weights", "log_draw", "global_weight", "group"):
            assert np.array_equal(getattr(drawn, name), getattr(rows, name)), name


def test_a_feature_of_the_context_needs_rows_of_negatives(files: list[DataFile]) -> None:
    catalogue, settings = catalogue_of(files), TrainNegatives(per_positive=DRAWS)
    sampler = NegativeSampler(catalogue, settings, 7, SPEC, MULTI_HOT, SHARDS, of_vectors=True)
    (batch, *_) = loader_of(files).batches()
    assert sampler.expand(batch).items is None


@pytest.mark.parametrize("instructions", [BEST, EVERYWHERE, AVX2, AVX512])
@hypothesis_settings(max_examples=40, deadline=None)
@given(
    users=st.integers(0, 20),
    group=st.integers(1, 30),
    items=st.integers(1, 40),
    dim=st.integers(1, 150),
    threads=st.integers(1, 3),
)
def test_the_compiled_products_of_any_shape(
    instructions: int, users: int, group: int, items: int, dim: int, threads: int
) -> None:
    """They and their gradients are those of NumPy in double precision, with any number of threads."""
    random = np.random.default_rng(users + 100 * group + 10_000 * dim)
    user_vectors, item_vectors, gradient = (
        torch.from_numpy(random.normal(size=shape).astype(np.float32))
        for shape in ((users, dim), (items, dim), (users, group))
    )
    index = torch.from_numpy(random.integers(0, items, (users, group)))
    drawn = (user_vectors, item_vectors, index)
    with (
        mock.patch.object(forward, "_PRODUCTS_OF_A_THREAD", 1),
        mock.patch("torch.get_num_threads", return_value=threads),
    ):
        products = forward.compiled_products(*drawn, instructions)
        gradients = forward.compiled_products_backward(*drawn, gradient, instructions)
    with mock.patch("torch.get_num_threads", return_value=1):
        alone = forward.compiled_products_backward(*drawn, gradient, instructions)
    assert all(torch.equal(one, other) for one, other in zip(gradients, alone, strict=True))
    u, v, g = (tensor.double().numpy() for tensor in (user_vectors, item_vectors, gradient))
    taken = v[index.numpy()]  # (users, group, dim)
    of_items = np.zeros_like(v)
    np.add.at(of_items, index.numpy(), g[:, :, None] * u[:, None])
    tolerance = {"rtol": 1e-4, "atol": 1e-3}
    np.testing.assert_allclose(products, np.einsum("pe,pge->pg", u, taken), **tolerance)
    np.testing.assert_allclose(gradients[0], np.einsum("pg,pge->pe", g, taken), **tolerance)
    np.testing.assert_allclose(gradients[1], of_items, **tolerance)


def test_products_and_gradients_do_not_depend_on_the_way_they_are_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of vectors whose rows are not adjacent in memory."""
    generator = torch.Generator().manual_seed(1)
    wide = [torch.randn(rows, 16, generator=generator) for rows in (6, 9)]
    index = torch.randint(0, 9, (6, 4), generator=generator)

    def computed() -> list[torch.Tensor]:
        users, items = (vectors[:, ::2].detach().requires_grad_() for vectors in wide)
        products = forward.sampled_products(users, items, index)
        return [products, *torch.autograd.grad(products.square().sum(), [users, items])]

    compiled = computed()
    monkeypatch.setattr(forward, "is_compiled", lambda *_: False)
    for items_per_draw in (0, 128):
        monkeypatch.setattr(forward, "_ITEMS_PER_DRAW", items_per_draw)
        for one, other in zip(computed(), compiled, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_mixed_precision_and_other_types_are_not_compiled() -> None:
    vectors = torch.ones(3, 4)
    assert forward.is_compiled(vectors, vectors)
    assert not forward.is_compiled(vectors.double(), vectors.double())
    with torch.autocast("cpu", torch.bfloat16):
        assert not forward.is_compiled(vectors, vectors)


@pytest.mark.parametrize("bits", [1, 5, 26])
def test_chosen_pairs_are_those_of_the_catalogue(
    files: list[DataFile], days: list[Choices], bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many pairs share a flag, and only from the first day on which the user chose the item."""
    monkeypatch.setattr(negative_sampler, "_MOST_FLAG_BITS", bits)
    catalogue = catalogue_of(files)
    first: dict[tuple[int, int], int] = {}
    for number, day in enumerate(days):
        for user, item, label in zip(day.users, day.items, day.rows.labels, strict=True):
            if label:
                first.setdefault((int(user), int(item)), number)
    users, item_keys = (
        torch.from_numpy(hash_keys(pa.chunked_array([[f"{kind}{key}" for key in range(count)]])))
        for kind, count in (("u", USERS), ("i", ITEMS))
    )
    of_item = {key: number for number, key in enumerate(item_keys.tolist())}
    items = [of_item[int(key)] for key in catalogue.items]
    places = torch.arange(len(items)).expand(USERS, -1)
    for day in range(3):
        days_of = torch.full((USERS, 1), FIRST_DAY + day)
        found = negative_sampler.ChosenPairs(catalogue).find(users[:, None], places, days_of)
        expected = [[first.get((user, item), 9) <= day for item in items] for user in range(USERS)]
        assert found.tolist() == expected


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.sampled_from([31, 1_000]))
def test_distinct_places_are_counted_or_sorted(places: list[int], end: int) -> None:
    drawn = torch.tensor([places, places[::-1]])
    distinct, index = negative_sampler._distinct(drawn, end)
    expected, expected_index = drawn.unique(return_inverse=True)
    assert torch.equal(distinct, expected)
    assert torch.equal(index, expected_index)


@pytest.mark.parametrize("popularity", [0.0, 0.75])
@pytest.mark.parametrize("threads", [1, 3])
def test_compiled_draws_are_those_of_torch(
    files: list[DataFile], popularity: float, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit. Some users have chosen nearly all items, so that some draws are repeated, and some rejected."""
    catalogue = catalogue_of(files)
    sampler = sampler_of(catalogue, draws=40, popularity=popularity)
    monkeypatch.setattr(negative_sampler, "_DRAWS_OF_A_THREAD", 1)
    with mock.patch("torch.get_num_threads", return_value=threads):
        compiled = list(expanded(files, sampler))
    monkeypatch.setattr(negative_sampler, "library", lambda: None)
    by_torch = list(expanded(files, sampler))
    for one, other in zip(compiled, by_torch, strict=True):
        for name in ("dense", "categorical", "weights", "log_draw"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name
    rejected = sum(int((batch.weights == 0).sum()) for batch in compiled)
    assert 0 < rejected < sum(batch.weights.numel() for batch in compiled) / 4
