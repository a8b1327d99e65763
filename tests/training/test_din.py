"""DIN: its equations, its parts per user, item and pair, its padding, and what target attention can learn.

test_sequence_models.py and test_architectures.py have the tests that it shares with other models.
"""

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
from storage.paths import LakePaths
from tests.training.feature_rows import Rows
from tests.training.feature_tables import make_config, publish_all
from tests.training.numpy_models import Network
from tests.training.sequence_models import ITEMS, PLACES, PLAIN, RICH, config, inputs_of, randomised
from training.embeddings.table import tables_of
from training.loop.forward import DensePart
from training.loop.run import train_in_process
from training.loop.training_plan import make_plan
from training.models import build_model
from training.models.factorization import FeatureSides, Side
from training.settings import Features, check_model

PAIR = replace(RICH, features=(*RICH.features, Feature("match", "dense", "float32", "pair")))


def logits_in_numpy(model: Any, spec: FeatureSpec, dense: torch.Tensor, categorical: torch.Tensor) -> NDArray:
    """The equations of the paper for each row, one item of the history after the other."""
    state = {key: value.numpy().astype(np.float64) for key, value in model.state_dict().items()}
    names = [feature.name for feature in spec.embedded]
    settings = {"item": names.index("item_id"), "history": names.index("history")}
    cardinalities = [1 if name == "history" else n for name, n in zip(names, spec.cardinalities, strict=True)]
    network = Network(state, cardinalities, "mean", settings)
    num_single = len(spec.categorical)
    widths = [1] * num_single + [PLACES if name == "history" else 3 for name in names[num_single:]]
    logits = []
    for numbers, row in zip(dense.numpy().astype(np.float64), categorical.numpy(), strict=True):
        parts = np.split(row, np.cumsum(widths)[:-1])
        ids = [
            [id_ for id_ in part if position < num_single or id_ != PAD_ID]
            for position, part in enumerate(parts)
        ]
        logits.append(network.logit("din", numbers, ids))
    return np.array(logits)


@pytest.mark.parametrize("spec", [PLAIN, RICH, PAIR], ids=["plain", "rich", "pair"])
def test_logits_equal_the_papers_equations(spec: FeatureSpec) -> None:
    model = randomised("din", spec)
    dense, categorical = inputs_of(spec, 25, seed=1)
    with torch.no_grad():
        logits = model(dense, categorical)
    expected = logits_in_numpy(model, spec, dense, categorical)
    assert np.std(expected) > 0.1
    assert any(not history.any() for history in categorical[:, -PLACES:])  # one user has no history
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "dtype, bound", [(torch.float32, 1e-4), (torch.bfloat16, 0.5), (torch.float16, 0.05)]
)
@pytest.mark.parametrize("spec", [PLAIN, RICH], ids=["plain", "rich"])
def test_parts_of_users_items_and_pairs_give_the_papers_logits(
    spec: FeatureSpec, dtype: torch.dtype, bound: float
) -> None:
    model = randomised("din", spec)
    dense, categorical = inputs_of(spec, 6, seed=4)
    item_columns, item_dense = ([0], []) if spec is PLAIN else ([1, 2, 3, 4], [1, 2])
    users, items = categorical.clone(), torch.zeros_like(categorical)
    users[:, item_columns] = 0
    items[:, item_columns] = categorical[:, item_columns]
    dense_users, dense_items = dense.clone(), torch.zeros_like(dense)
    dense_users[:, item_dense] = 0
    dense_items[:, item_dense] = dense[:, item_dense]
    factorization = model.factorize(FeatureSides.of(spec), dtype)
    order = torch.tensor([[(user + item) % 6 for item in range(6)] for user in range(6)])
    with torch.no_grad():
        user_part = factorization.side_part(Side.USER, dense_users, users)
        item_part = factorization.side_part(Side.ITEM, dense_items, items)
        shared = factorization.pair_logits(user_part, tuple(part.unsqueeze(0) for part in item_part))
        by_user = factorization.pair_logits(user_part, tuple(part[order] for part in item_part))
    assert shared.dtype == by_user.dtype == torch.float32
    for user in range(6):
        joined = dense_users[user] + dense_items, users[user] + items
        expected = logits_in_numpy(model, spec, *joined)
        np.testing.assert_allclose(shared[user], expected, atol=bound, rtol=1e-4)
        np.testing.assert_allclose(by_user[user], expected[order[user]], atol=bound, rtol=1e-4)


def test_padding_says_nothing_whatever_its_rows_hold() -> None:
    model = randomised("din", PLAIN)
    dense, categorical = inputs_of(PLAIN, 20, seed=7)
    categorical[:, 0] = categorical[:, 0].clamp(min=1)  # id 0 of the item is not padding
    with torch.no_grad():
        before = model(dense, categorical)
        for rows in model.embedding.block_rows():
            rows[PAD_ID] = 1e6
        torch.testing.assert_close(model(dense, categorical), before)


def test_every_weight_gets_a_gradient_and_padding_none() -> None:
    model = randomised("din", RICH).train()
    dense, categorical = inputs_of(RICH, 300, seed=6)
    model(dense, categorical).square().mean().backward()
    (table,) = tables_of(model).values()
    pads = {7 + ITEMS + PAD_ID, 7 + ITEMS + 9 + PAD_ID}  # of the lists `genres` and `history`
    assert set(table.take_gradient().rows.tolist()) == set(range(7 + ITEMS + 9 + 1)) - pads
    for name, parameter in model.named_parameters():
        if name != "embedding.weight":
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name


def test_the_history_is_summed_at_first() -> None:
    """The first weights are near 1, so a training starts like the paper's base model."""
    model: Any = build_model(config("din", embedding_dim=16, attention=[36]), PLAIN, 1)
    _, categorical = inputs_of(PLAIN, 50, seed=3)
    with torch.no_grad():
        vectors, histories = model.embed(categorical)
        pooled = model.attention(histories, vectors[:, :1]).squeeze(1)
    torch.testing.assert_close(pooled, histories.sum(dim=1), rtol=0, atol=0.2)
    assert histories.sum(dim=1).abs().max() > 0.4


def test_the_dense_part_is_a_function_of_vectors_of_fixed_shapes() -> None:
    model = randomised("din", RICH)
    dense, categorical = inputs_of(RICH, 8, seed=2)
    categorical[:, -PLACES + 1 :] = PAD_ID  # histories of at most one item
    vectors = model.embed(categorical)
    assert [tuple(part.shape) for part in vectors] == [(8, 4, 8), (8, PLACES, 8)]
    with torch.no_grad():
        compiled = torch.compile(DensePart(model), backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(dense, *vectors), model(dense, categorical))


def repeated_rows(count: int, seed: int) -> Rows:
    """Clicks are likely if the item is in the history, wherever it is there."""
    rng = np.random.default_rng(seed)
    histories = [(3 + rng.choice(ITEMS - 3, 4, replace=False)).tolist() for _ in range(count)]
    items = rng.integers(3, ITEMS, count)
    known = np.array([item in history for item, history in zip(items, histories, strict=True)])
    labels = (rng.random(count) < np.where(known, 0.9, 0.1)).astype(np.float32)
    return Rows(labels, np.zeros((count, 0), np.float32), items[:, None].astype(np.int32), (histories,))


@pytest.mark.slow
def test_attention_learns_what_the_mlp_alone_does_not(tmp_path: Path) -> None:
    """The MLP has one hidden unit, so what an item has in common with a history is left to the weights."""
    torch.set_num_threads(1)
    lake = LakePaths(str(tmp_path))
    days = {
        "train": {"2026-01-02": repeated_rows(8_000, 1)},
        "validation": {"2026-01-03": repeated_rows(800, 2)},
    }
    dataset = publish_all(lake, "2026-01-04", PLAIN, days)
    train = {
        "num_ranks": 1,
        "num_shards": 4,
        "device": "cpu",
        "global_batch_size": 128,
        "epochs": 6,
        "learning_rate": 0.003,
        "embedding_learning_rate": 0.01,
        "embeddings": {"optimizer": "lazy_adam"},
        "baselines": ["logistic_regression"],
    }
    model = config("din", deep=[1], attention=[16]).model_dump()
    description = train_in_process(make_plan(make_config(lake, model=model, train=train), lake, dataset))
    assert description["baselines"]["logistic_regression"]["validation"]["auc"] < 0.6
    assert description["metrics"]["validation"]["auc"] > 0.85  # the true probabilities reach 0.90


def test_features_of_the_pair_are_allowed_and_a_history_is_needed() -> None:
    model = ModelConfig.model_validate({"architecture": "din"})
    check_model(model, Features(ids=["item_id"], lists=["history"], pairs=["match"], items=["item_id"]))
    with pytest.raises(ConfigError, match=r"model.history='history' is not a feature of kind multi_hot"):
        check_model(model, Features(ids=["item_id"]))
