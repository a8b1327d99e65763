"""Models over sequences: features, factorization, dropout, gradients, learning, warm start, refused settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conf.errors import ConfigError
from conf.types import Keys, ModelConfig
from storage import file_io
from storage.feature_spec import PAD_ID, FeatureSpec
from storage.paths import LakePaths
from tests.training.architectures import small_spec, variant
from tests.training.feature_rows import random_rows
from tests.training.feature_tables import make_config, publish_all
from tests.training.sequence_models import (
    ITEMS,
    PLAIN,
    RICH,
    config,
    inputs_of,
    markov_rows,
    randomised,
)
from training.checkpoints import open_trained, save_trained
from training.collectives import LocalCollectives
from training.embeddings.table import tables_of
from training.loop.run import train_in_process, warm_start
from training.loop.train_step import Trainer
from training.loop.training_plan import make_plan
from training.models import build_model
from training.models.factorization import FeatureSides, Side
from training.models.sequence import LengthGroups, SequenceDropout, distinct_sequences
from training.settings import Features, check_model, with_item

ORDERED = ["sasrec", "hstu", "bert4rec"]
ONE_BIAS = ["sasrec", "hstu"]  # the others have a bias for each item
ARCHITECTURES = [*ORDERED, "mult_vae"]
OVER_HISTORIES = [*ARCHITECTURES, "din"]
TWO_ITEMS = replace(
    PLAIN,
    features=(*(replace(PLAIN.features[0], name=name) for name in ("sku", "parent")), PLAIN.features[1]),
)
UNSHARED = replace(PLAIN, features=(PLAIN.features[0], replace(PLAIN.features[1], cardinality=9)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_other_features_add_their_vectors_to_their_side(architecture: str) -> None:
    model = randomised(architecture, RICH)
    dense, categorical = inputs_of(RICH, 20, seed=2)
    table, names = model.embedding.block_rows(), ["user_id", "item_id", "genres", "history"]
    vectors = dict(zip(names, table, strict=True))
    with torch.no_grad():
        logits = model(dense, categorical)
        history_only = model.encode(categorical[:, 5:], None)
        user = history_only + vectors["user_id"][categorical[:, 0]] + dense[:, :1] * model.dense_vectors[0]
        item = vectors["item_id"][categorical[:, 1]] + dense[:, 1:] @ model.dense_vectors[1:]
        genres = categorical[:, 2:5]
        for row in range(20):
            ids = genres[row][genres[row] != PAD_ID]
            if len(ids):
                item[row] += vectors["genres"][ids].mean(dim=0)
        of_items = (
            model.bias.expand(ITEMS) if architecture in ONE_BIAS else model.item_bias.block_rows()[1][:, 0]
        )
        biases = of_items[categorical[:, 1]]
    torch.testing.assert_close(logits, (user * item).sum(dim=1) + biases, rtol=1e-4, atol=1e-4)
    of_history = ITEMS if architecture == "mult_vae" else 1  # otherwise the history has the item's rows
    assert [len(rows) for rows in table] == [7, ITEMS, 9, of_history]


@pytest.mark.parametrize("spec", [PLAIN, RICH], ids=["plain", "rich"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_factorization_and_vectors_give_the_logits_of_joined_rows(
    architecture: str, spec: FeatureSpec
) -> None:
    model = randomised(architecture, spec)
    dense, categorical = inputs_of(spec, 6, seed=4)
    item_columns = [0] if spec is PLAIN else [1, 2, 3, 4]
    item_dense = [] if spec is PLAIN else [1, 2]
    users, items = categorical.clone(), torch.zeros_like(categorical)
    users[:, item_columns] = 0
    items[:, item_columns] = categorical[:, item_columns]
    dense_users, dense_items = dense.clone(), torch.zeros_like(dense)
    dense_users[:, item_dense] = 0
    dense_items[:, item_dense] = dense[:, item_dense]
    factorization = model.factorize(FeatureSides.of(spec), torch.float32)
    with torch.no_grad():
        user_part = factorization.side_part(Side.USER, dense_users, users)
        item_part = factorization.side_part(Side.ITEM, dense_items, items)
        logits = factorization.pair_logits(user_part, tuple(part.unsqueeze(0) for part in item_part))
        products = model.user_vectors(dense_users, users) @ model.item_vectors(dense_items, items).t()
        constant = model.bias if architecture in ONE_BIAS else 0.0
        torch.testing.assert_close(products + constant, logits, rtol=1e-4, atol=1e-4)
        for u in range(6):
            joined = model((dense_users[u] + dense_items), users[u] + items)
            torch.testing.assert_close(logits[u], joined, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", OVER_HISTORIES)
def test_a_row_of_one_history_is_encoded_as_in_a_batch_of_others(architecture: str) -> None:
    model = randomised(architecture, PLAIN)
    dense, categorical = inputs_of(PLAIN, 12, seed=5)
    repeated = categorical.repeat_interleave(3, dim=0)
    with torch.no_grad():
        together = model(dense.repeat_interleave(3, dim=0), repeated)
        alone = torch.cat([model(dense[:1], categorical[row : row + 1]) for row in range(12)])
    torch.testing.assert_close(together, alone.repeat_interleave(3), rtol=1e-5, atol=1e-5)


def test_groups_of_equal_consecutive_sequences() -> None:
    sequences = torch.tensor([[1, 2], [1, 2], [3, 0], [1, 2], [1, 2], [1, 2]])
    first, group = distinct_sequences(sequences, starts=[0, 4])
    assert first.tolist() == [0, 2, 3, 4]
    assert group.tolist() == [0, 0, 1, 2, 3, 3]


def test_sequences_are_encoded_with_the_places_of_their_group_and_keep_their_order() -> None:
    draw = np.random.default_rng(3)
    lengths = draw.integers(0, 51, 200)
    sequences = torch.tensor(np.arange(50) < lengths[:, None]).long() * 7
    vectors = torch.tensor(draw.normal(size=(200, 50, 4)))
    is_item = sequences != PAD_ID
    computed = []

    def encode(
        vectors: torch.Tensor,
        is_item: torch.Tensor,
        first_rows: torch.Tensor | None,
        ages: torch.Tensor | None,
    ) -> torch.Tensor:
        computed.append(is_item.shape)
        assert first_rows is not None
        assert ages is not None
        assert ages.shape == is_item.shape
        sums = (vectors * is_item.unsqueeze(2)).sum(dim=1)
        return torch.cat([sums, first_rows.unsqueeze(1), (ages * is_item).sum(dim=1, keepdim=True)], dim=1)

    groups = LengthGroups.of(sequences)
    encoded = groups.encode(
        vectors[:, : groups.longest],
        is_item[:, : groups.longest],
        torch.arange(200),
        encode,
        torch.arange(50).expand(200, 50) + torch.arange(200).unsqueeze(1),
    )
    expected = (vectors * is_item.unsqueeze(2)).sum(dim=1)
    torch.testing.assert_close(encoded[:, :4], expected)
    assert encoded[:, 4].tolist() == list(range(200))
    sums = [sum(range(row, row + length)) for row, length in enumerate(lengths)]
    assert encoded[:, 5].tolist() == sums
    assert [places for _, places in computed] == [7, 13, 25, 50]
    assert sum(count for count, _ in computed) == 200


@pytest.mark.parametrize("lengths, longest", [([0, 0], 7), ([3, 12], 13), ([50], 50), ([], 1)])
def test_no_place_is_computed_that_no_sequence_needs(lengths: list[int], longest: int) -> None:
    sequences = (torch.arange(50) < torch.tensor(lengths, dtype=torch.int64).unsqueeze(1)).long()
    assert LengthGroups.of(sequences).longest == longest


def test_groups_of_lengths_draw_different_masks_that_do_not_depend_on_the_number_of_ranks() -> None:
    """The generator of a shard goes on from group to group, whichever other shards the rank has."""

    def masks(shards: range, rows: list[int], first_rows: list[int]) -> list[torch.Tensor]:
        dropout = SequenceDropout(0.5)
        dropout.draw_mask("key", shards, rows)
        return [
            dropout(torch.ones(len(first_rows), places, 8), torch.tensor(first_rows)) for places in (2, 5)
        ]

    whole = masks(range(2), [3, 2], [0, 2, 4])
    parts = [masks(range(1), [3], [0, 2]), masks(range(1, 2), [2], [1])]
    for group, together in enumerate(whole):
        assert torch.equal(torch.cat([part[group] for part in parts]), together)
    assert not torch.equal(whole[0], whole[1][:, :2])


def test_masks_of_dropout_do_not_depend_on_the_number_of_ranks() -> None:
    """Four shards on one rank get the masks of two shards on each of two ranks."""
    values, rows = torch.ones(7, 3, 5), [4, 0, 6, 2]
    first_rows = torch.tensor([0, 2, 4, 5, 6, 9, 10])  # groups begin in the shards 0, 0, 2, 2, 2, 2, 3
    whole = SequenceDropout(0.5)
    whole.draw_mask("key", range(4), rows)
    expected = whole(values, first_rows)
    parts = []
    for shards, own, taken in ((range(2), rows[:2], slice(0, 2)), (range(2, 4), rows[2:], slice(2, 7))):
        dropout = SequenceDropout(0.5)
        dropout.draw_mask("key", shards, own)
        parts.append(dropout(values[taken], first_rows[taken] - (0 if shards.start == 0 else 4)))
    assert torch.equal(torch.cat(parts), expected)
    assert set(expected.unique().tolist()) == {0.0, 2.0}
    whole.eval()
    assert torch.equal(whole(values, first_rows), values)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_weight_gets_a_gradient_and_padding_none(architecture: str) -> None:
    model = randomised(architecture, RICH, dropout=0.2).train()
    dense, categorical = inputs_of(RICH, 300, seed=6)
    model(dense, categorical).square().mean().backward()
    touched = {name: set(table.take_gradient().rows.tolist()) for name, table in tables_of(model).items()}
    pads = {7 + ITEMS + PAD_ID, 7 + ITEMS + 9 + PAD_ID}  # of the lists `genres` and `history`
    of_history = ITEMS if architecture == "mult_vae" else 1
    assert touched.pop("embedding.weight") == set(range(7 + ITEMS + 9 + of_history)) - pads
    assert list(touched.values()) == ([] if architecture in ONE_BIAS else [set(range(1, 1 + ITEMS))])
    for name, parameter in model.named_parameters():
        if name not in tables_of(model):
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name


def auc_of_next_items(model: dict[str, Any], folder: Path) -> float:
    """The AUC of a validation day after a training on rows of `markov_rows`."""
    torch.set_num_threads(1)
    days = {"train": {"2026-01-02": markov_rows(6_000, 1)}, "validation": {"2026-01-03": markov_rows(800, 2)}}
    lake = LakePaths(str(folder))
    dataset = publish_all(lake, "2026-01-04", PLAIN, days)
    train = {
        "num_ranks": 1,
        "num_shards": 4,
        "device": "cpu",
        "global_batch_size": 128,
        "epochs": 4,
        "learning_rate": 0.003,
        "embedding_learning_rate": 0.01,
        "embeddings": {"optimizer": "lazy_adam"},
        "baselines": [],
    }
    plan = make_plan(make_config(lake, model=model, train=train), lake, dataset)
    return float(train_in_process(plan)["metrics"]["validation"]["auc"])


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ORDERED)
def test_it_learns_which_item_follows_the_last_one(tmp_path: Path, architecture: str) -> None:
    model = config(architecture).model_dump()
    assert auc_of_next_items(model, tmp_path) > 0.9  # the true order reaches 0.94


@pytest.mark.slow
def test_a_linear_model_does_not_learn_which_item_follows(tmp_path: Path) -> None:
    assert auc_of_next_items({"architecture": "logistic_regression"}, tmp_path) < 0.6


@pytest.mark.parametrize("architecture", OVER_HISTORIES)
def test_warm_start_keeps_the_items_of_a_grown_vocabulary(tmp_path: Path, architecture: str) -> None:
    old, new = (
        small_spec(architecture, ids=7),
        replace(small_spec(architecture, ids=9), workflow_version="w2"),
    )
    parent, child = (
        Trainer(
            build_model(variant(architecture), spec, seed),
            make_config(LakePaths("unused"), model={"architecture": "dlrm"}).train,
            LocalCollectives(),
        )
        for seed, spec in enumerate((old, new))
    )
    fresh = child.model.embedding.weight.detach().clone()
    save_trained(str(tmp_path), parent, {"feature_spec": old.to_json()}, LocalCollectives())
    warm_start(child, new, *open_trained(str(tmp_path)))
    rows, kept = child.model.embedding.weight.detach(), parent.model.embedding.weight.detach()
    assert torch.equal(rows[:12], kept[:12])  # 5 ids of C0, 7 items
    assert torch.equal(rows[12:14], fresh[12:14])
    of_history = len(kept) - 12
    assert torch.equal(rows[14 : 14 + of_history], kept[12:])
    assert torch.equal(rows[14 + of_history :], fresh[14 + of_history :])
    dense, categorical = random_rows(old, 20, seed=0).tensors(32)
    with torch.no_grad():
        assert torch.equal(child.model.eval()(dense, categorical), parent.model.eval()(dense, categorical))


@pytest.mark.parametrize(
    "changed, spec, message",
    [
        (
            {"item": "film"},
            PLAIN,
            r"model.item='film' is not a feature of kind categorical; .* \['item_id'\]",
        ),
        ({"history": "genres_"}, RICH, r"model.history='genres_' is not a feature of kind multi_hot"),
        ({}, UNSHARED, r"item_id has 12 ids, but history has 9, .* same vocabulary"),
        ({"item": "user_id"}, RICH, r"the scopes of user_id and history are user and user"),
        (
            {},
            TWO_ITEMS,
            r"model.item is null, but several features have .*: \['sku', 'parent'\](.|\n)*set model.item",
        ),
    ],
)
@pytest.mark.parametrize("architecture", OVER_HISTORIES)
def test_settings_that_do_not_fit_are_refused(
    architecture: str, changed: dict[str, Any], spec: FeatureSpec, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model(config(architecture, **changed), spec)


@pytest.mark.parametrize("architecture", OVER_HISTORIES)
def test_the_item_is_by_default_the_feature_of_the_items_key(architecture: str) -> None:
    """Its name does not matter."""
    model = ModelConfig.model_validate({"architecture": architecture})
    features = Features(ids=["colour", "sku"], lists=["history"], items=["sku"])
    check_model(model, features)
    assert with_item(model, ["sku"]).settings["item"] == "sku"
    assert with_item(config(architecture, item="colour"), ["sku"]).settings["item"] == "colour"
    with pytest.raises(
        ConfigError, match=r"model.item is null, but no feature .*\n.*one of \['colour', 'sku'\]"
    ):
        check_model(model, replace(features, items=[]))
    for check in (
        lambda: check_model(model, replace(features, items=["sku", "colour"])),
        lambda: with_item(model, ["sku", "colour"]),
    ):
        with pytest.raises(
            ConfigError, match=r"several features have the ids of the items: \['sku', 'colour'\]"
        ):
            check()
    with pytest.raises(ConfigError, match=r"model.item='film' is not a feature of kind categorical"):
        check_model(config(architecture, item="film"), features)


def test_a_model_without_histories_needs_no_item() -> None:
    model = ModelConfig(architecture="logistic_regression")
    assert with_item(model, ["sku", "colour"]) is model


def test_a_training_names_the_feature_of_the_items_key(tmp_path: Path) -> None:
    """Of two features with equal numbers of ids, also in a baseline. model.json has the name."""
    spec = TWO_ITEMS
    lake = LakePaths(str(tmp_path))
    days = {
        "train": {"2026-01-02": random_rows(spec, 64, 1)},
        "validation": {"2026-01-03": random_rows(spec, 64, 2)},
    }
    dataset = publish_all(lake, "2026-01-04", spec, days)
    chains = [{"inputs": [name], "outputs": [name], "steps": []} for name in ("sku", "parent", "history")]
    file_io.replace_json(f"{lake.workflow('w1')}/workflow.json", {"chains": chains})
    sections = {
        "model": config("din").model_dump(),
        "train": {"global_batch_size": 32, "num_shards": 4, "num_ranks": 1, "baselines": ["din"]},
    }
    job = make_config(lake, **sections)
    with pytest.raises(ConfigError, match="several features have the ids of the items"):
        train_in_process(make_plan(job, lake, dataset))  # nothing says which one is the item
    keyed = job.model_copy(update={"keys": Keys(user="user", item="parent")})
    description = train_in_process(make_plan(keyed, lake, dataset))
    assert description["model"]["item"] == "parent"
    assert description["baselines"]["din"]["validation"]["rows"] == 64


@pytest.mark.parametrize("architecture", ORDERED)
def test_heads_of_unequal_width_are_refused(architecture: str) -> None:
    with pytest.raises(ConfigError, match=r"heads=3 is not a divisor of embedding_dim=8"):
        config(architecture, heads=3)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_feature_of_the_pair_is_refused_before_a_job_runs(architecture: str) -> None:
    model = ModelConfig.model_validate({"architecture": architecture})
    check_model(model, Features(ids=["item_id"], lists=["history"], items=["item_id"]))
    with pytest.raises(ConfigError, match=rf"{architecture} cannot use the features \['match'\]"):
        check_model(model, Features(["match"], ["item_id"], ["history"], ["match"], ["item_id"]))
    with pytest.raises(ConfigError, match=r"model.history='history' is not a feature of kind multi_hot"):
        check_model(model, Features(ids=["item_id"]))
