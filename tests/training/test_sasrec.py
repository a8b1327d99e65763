"""SASRec against a NumPy forward pass, and as any other architecture: trained, resumed, saved, on ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from conf.errors import ConfigError
from conf.types import ModelConfig
from storage.feature_spec import PAD_ID, Feature, FeatureSpec
from storage.paths import Lake
from tests.training.architectures import small_spec, variant
from tests.training.feature_tables import Rows, make_config, publish_all, random_rows
from training.checkpoints import open_trained, save_trained
from training.distributed.collectives import LocalCollectives
from training.loop.run import train_in_process
from training.loop.train_step import Trainer
from training.loop.training_plan import make_plan
from training.loop.warm_start import warm_start
from training.models import build_model, complete
from training.models.factorization import FeatureSides, Side
from training.models.sasrec import SASRec
from training.models.sequence import SequenceDropout, distinct_sequences

ITEMS, PLACES = 12, 6
PLAIN = FeatureSpec(
    (
        Feature("item_id", "categorical", "int32", "item", ITEMS),
        Feature("history", "multi_hot", "list<int32>", "user", ITEMS),
    ),
    ("row_id",),
    "w1",
)
RICH = FeatureSpec(
    (
        Feature("age", "dense", "float32", "user"),
        Feature("price", "dense", "float32", "item"),
        Feature("hour", "dense", "float32", "context"),
        Feature("user_id", "categorical", "int32", "user", 7),
        Feature("item_id", "categorical", "int32", "item", ITEMS),
        Feature("genres", "multi_hot", "list<int32>", "item", 9),
        Feature("history", "multi_hot", "list<int32>", "user", ITEMS),
    ),
    ("row_id",),
    "w1",
)
UNSHARED = replace(PLAIN, features=(PLAIN.features[0], replace(PLAIN.features[1], cardinality=9)))


def config(**changed: Any) -> ModelConfig:
    lists = {"lengths": {"history": PLACES}, "max_length": 3}
    settings = {"embedding_dim": 8, "blocks": 2, "heads": 2, "dropout": 0.0, **changed}
    return complete(ModelConfig.model_validate({"architecture": "sasrec", "multi_hot": lists, **settings}))


def inputs_of(spec: FeatureSpec, rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    columns = [rng.integers(0, f.cardinality, (rows, 1)) for f in spec.categorical]
    for feature in spec.multi_hot:
        width = PLACES if feature.name == "history" else 3
        ids = rng.integers(1, feature.cardinality, (rows, width))
        ids[np.arange(width) >= rng.integers(0, width + 1, rows)[:, None]] = PAD_ID
        columns.append(ids)
    dense = rng.normal(size=(rows, len(spec.dense))).astype(np.float32)
    return torch.from_numpy(dense), torch.from_numpy(np.concatenate(columns, axis=1))


def randomised(spec: FeatureSpec, seed: int = 3, **changed: Any) -> SASRec:
    model = build_model(config(**changed), spec, seed).eval()
    assert isinstance(model, SASRec)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model


def norm(x: NDArray, state: dict[str, NDArray], name: str) -> NDArray:
    centred = x - x.mean()
    scaled = centred / np.sqrt((centred**2).mean() + 1e-5)
    return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]


def encoded(state: dict[str, NDArray], items: list[int], rows: NDArray, blocks: int, heads: int) -> NDArray:
    """Equations 1 to 8 of the paper for one history, oldest item first, with every place computed.

    Args:
        rows: (items, E) the table's rows of the item's feature.
    """
    if not items:
        return state["no_history"]
    dim, length = rows.shape[1], len(items)
    x = [np.sqrt(dim) * rows[item] + state["places"][length - 1 - t] for t, item in enumerate(items)]
    width = dim // heads
    for b in range(blocks):
        name, y = f"blocks.{b}", []
        for t in range(length):
            attended = np.zeros(dim)
            for head in range(heads):
                part = slice(head * width, (head + 1) * width)
                q = (state[f"{name}.query.weight"] @ norm(x[t], state, f"{name}.attention_norm"))[part]
                keys = [(state[f"{name}.key.weight"] @ x[s])[part] for s in range(t + 1)]
                weights = np.exp([q @ k / np.sqrt(width) for k in keys])
                for s in range(t + 1):
                    value = (state[f"{name}.value.weight"] @ x[s])[part]
                    attended[part] += weights[s] / weights.sum() * value
            middle = x[t] + attended
            h = state[f"{name}.inner.weight"] @ norm(middle, state, f"{name}.mlp_norm")
            h = np.maximum(h + state[f"{name}.inner.bias"], 0)
            y.append(middle + state[f"{name}.outer.weight"] @ h + state[f"{name}.outer.bias"])
        x = y
    return norm(x[-1], state, "norm")


@pytest.mark.parametrize("heads", [1, 2])
def test_logits_equal_the_papers_equations(heads: int) -> None:
    model = randomised(PLAIN, heads=heads)
    state = {key: value.numpy().astype(np.float64) for key, value in model.state_dict().items()}
    dense, categorical = inputs_of(PLAIN, 25, seed=1)
    rows = state["embedding.weight"][:ITEMS]
    expected = []
    for item, *history in categorical.tolist():
        newest_first = [id_ for id_ in history if id_ != PAD_ID]
        u = encoded(state, newest_first[::-1], rows, 2, heads)
        expected.append(u @ rows[item] + state["bias"])
    with torch.no_grad():
        logits = model(dense, categorical)
    assert np.std(expected) > 0.1
    assert any(not history.any() for history in categorical[:, 1:])  # one user has no history
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_other_features_add_their_vectors_to_their_side() -> None:
    model = randomised(RICH)
    dense, categorical = inputs_of(RICH, 20, seed=2)
    table, names = model.embedding.block_rows(), ["user_id", "item_id", "genres", "history"]
    vectors = dict(zip(names, table, strict=True))
    with torch.no_grad():
        logits = model(dense, categorical)
        history_only = model._encode(categorical[:, 5:], None)
        user = history_only + vectors["user_id"][categorical[:, 0]] + dense[:, :1] * model.dense_vectors[0]
        item = vectors["item_id"][categorical[:, 1]] + dense[:, 1:] @ model.dense_vectors[1:]
        genres = categorical[:, 2:5]
        for row in range(20):
            ids = genres[row][genres[row] != PAD_ID]
            if len(ids):
                item[row] += vectors["genres"][ids].mean(dim=0)
    torch.testing.assert_close(logits, (user * item).sum(dim=1) + model.bias, rtol=1e-4, atol=1e-4)
    assert [len(rows) for rows in table] == [7, ITEMS, 9, 1]  # the history has no rows of its own


@pytest.mark.parametrize("spec", [PLAIN, RICH], ids=["plain", "rich"])
def test_a_factorization_gives_the_logits_of_joined_rows(spec: FeatureSpec) -> None:
    model = randomised(spec)
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
        for u in range(6):
            joined = model((dense_users[u] + dense_items), users[u] + items)
            torch.testing.assert_close(logits[u], joined, rtol=1e-4, atol=1e-4)


def test_a_row_of_one_history_is_encoded_as_in_a_batch_of_others() -> None:
    model = randomised(PLAIN)
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


def test_masks_of_dropout_do_not_depend_on_the_number_of_ranks() -> None:
    """Four shards on one rank get the masks of two shards on each of two ranks."""
    values, rows = torch.ones(7, 3, 5), [4, 0, 6, 2]
    first_rows = torch.tensor([0, 2, 4, 5, 6, 9, 10])  # groups begin in the shards 0, 0, 2, 2, 2, 2, 3
    whole = SequenceDropout(0.5, 4)
    whole.draw_mask("key", range(4), rows)
    expected = whole(values, first_rows)
    parts = []
    for shards, own, taken in ((range(2), rows[:2], slice(0, 2)), (range(2, 4), rows[2:], slice(2, 7))):
        dropout = SequenceDropout(0.5, 4)
        dropout.draw_mask("key", shards, own)
        parts.append(dropout(values[taken], first_rows[taken] - (0 if shards.start == 0 else 4)))
    assert torch.equal(torch.cat(parts), expected)
    assert set(expected.unique().tolist()) == {0.0, 2.0}
    whole.eval()
    assert torch.equal(whole(values, first_rows), values)


def test_every_weight_gets_a_gradient_and_padding_none() -> None:
    model = randomised(RICH, dropout=0.2).train()
    dense, categorical = inputs_of(RICH, 300, seed=6)
    model(dense, categorical).square().mean().backward()
    gradient = model.embedding.take_gradient()
    pads = {7 + ITEMS + PAD_ID, 7 + ITEMS + 9 + PAD_ID}  # of the lists `genres` and `history`
    assert set(gradient.rows.tolist()) == set(range(7 + ITEMS + 9 + 1)) - pads
    for name, parameter in model.named_parameters():
        if name != "embedding.weight":
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name


def markov_rows(count: int, seed: int) -> Rows:
    """Half of the rows are clicks: the next item is the successor of the last one. The others are random."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, PLACES, count)
    histories = [rng.integers(3, ITEMS, length).tolist() for length in lengths]
    labels = rng.integers(0, 2, count)
    successors = np.array([3 + (history[0] - 3 + 1) % (ITEMS - 3) for history in histories])
    items = np.where(labels == 1, successors, rng.integers(3, ITEMS, count))
    no_dense = np.zeros((count, 0), np.float32)
    return Rows(labels.astype(np.float32), no_dense, items[:, None].astype(np.int32), (histories,))


def test_it_learns_which_item_follows_the_last_one(tmp_path: Path) -> None:
    days = {"train": {"2026-01-02": markov_rows(6_000, 1)}, "validation": {"2026-01-03": markov_rows(800, 2)}}
    dataset = publish_all(Lake(str(tmp_path)), "2026-01-04", PLAIN, days)
    train = {
        "num_ranks": 1,
        "num_shards": 4,
        "device": "cpu",
        "global_batch_size": 128,
        "epochs": 4,
        "learning_rate": 0.003,
        "embedding_learning_rate": 0.01,
        "embeddings": {"optimizer": "lazy_adam"},
        "baselines": ["logistic_regression"],
    }
    lake = Lake(str(tmp_path))
    plan = make_plan(make_config(lake, model=config().model_dump(), train=train), lake, dataset)
    description = train_in_process(plan)
    assert description["baselines"]["logistic_regression"]["validation"]["auc"] < 0.6
    assert description["metrics"]["validation"]["auc"] > 0.9  # the true order reaches 0.94


def test_warm_start_keeps_the_items_of_a_grown_vocabulary(tmp_path: Path) -> None:
    old, new = small_spec("sasrec", ids=7), replace(small_spec("sasrec", ids=9), workflow_version="w2")
    parent, child = (
        Trainer(
            build_model(variant("sasrec"), spec, seed),
            make_config(Lake("unused"), model={"architecture": "dlrm"}).train,
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
    assert torch.equal(rows[14:], kept[12:])
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
        ({"heads": 3}, PLAIN, r"heads=3 is not a divisor of embedding_dim=8"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    changed: dict[str, Any], spec: FeatureSpec, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model(config(**changed), spec)
