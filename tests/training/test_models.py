"""Architectures against forward passes written in NumPy, their gradients, their initial weights."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from conf.errors import ConfigError
from conf.types import ModelConfig
from storage.feature_spec import PAD_ID
from tests.training.architectures import SEQUENCE_VARIANTS, VARIANTS, small_spec, variant
from tests.training.feature_rows import make_spec, random_rows
from tests.training.numpy_models import Network
from training.embeddings.table import tables_of
from training.models import build_model, complete, known_architectures
from training.settings import reads_scopes

SHAPES = [
    (3, [5, 7, 4], []),
    (0, [5, 7, 4], []),
    (3, [], []),
    (0, [6], []),
    (1, [3], []),
    (3, [5, 7], [6, 9]),
    (2, [], [8]),
    (0, [], [5, 4]),
    (0, [], [6]),
]
DEEP = sorted(set(VARIANTS) - {"logistic_regression"})
LENGTH = 4  # shorter than the longest lists of random_rows


def randomised(config: ModelConfig, shape: tuple[int, list[int], list[int]], seed: int = 3) -> nn.Module:
    """A model in evaluation mode none of whose weights is zero by design, the padding rows' included."""
    model = build_model(config, make_spec(shape[0], shape[1], lists=shape[2]), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.6)
    return model.eval()


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_logits_equal_numpy(name: str, shape: tuple[int, list[int], list[int]], pooling: str) -> None:
    config = complete(variant(name, multi_hot={"pooling": pooling, "max_length": LENGTH}))
    spec = make_spec(shape[0], shape[1], lists=shape[2])
    rows = random_rows(spec, 9, seed=1)
    model = randomised(config, shape)
    state = {key: value.numpy().astype(np.float64) for key, value in model.state_dict().items()}
    with torch.no_grad():
        logits = model(*rows.tensors(LENGTH))
    assert logits.shape == (9,)
    assert logits.dtype == torch.float32
    scopes = [feature.scope for feature in spec.dense], [feature.scope for feature in spec.embedded]
    network = Network(state, [*shape[1], *shape[2]], pooling, config.settings, scopes)
    expected = [
        network.logit(config.architecture, rows.dense[row].astype(np.float64), rows.ids(row, LENGTH))
        for row in range(len(rows))
    ]
    assert np.std(expected) > 0.001
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_weight_gets_a_gradient_and_padding_rows_none(name: str) -> None:
    spec = make_spec(3, [5, 7], lists=[6, 9])
    model = randomised(variant(name, multi_hot={"max_length": LENGTH}), (3, [5, 7], [6, 9])).train()
    rows = random_rows(spec, 400, seed=2)
    logits = model(*rows.tensors(LENGTH))
    functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(rows.labels)).backward()
    tables = tables_of(model)
    for key, parameter in model.named_parameters():
        if key in tables:
            touched = {int(row) for row in tables[key].take_gradient().rows}
            pads = {12 + PAD_ID, 18 + PAD_ID}  # where the two lists' rows begin
            assert touched == set(range(5 + 7 + 6 + 9)) - pads, key
        else:
            assert parameter.grad is not None, key
            assert parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize("name", VARIANTS)
def test_padding_says_nothing_whatever_its_row_holds(name: str) -> None:
    shape = (2, [5], [6])
    rows = random_rows(make_spec(2, [5], lists=[6]), 20, seed=4)
    logits = []
    for length in (5, 9):
        model = randomised(variant(name, multi_hot={"max_length": length}), shape)
        for table in tables_of(model).values():
            table.block_rows()[1][PAD_ID] = 1e6
        with torch.no_grad():
            logits.append(model(*rows.tensors(length)))
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-5, atol=1e-6)
    assert logits[0].abs().max() < 1e4


def test_initialisation_is_the_papers() -> None:
    spec = make_spec(512, [10_000, 16], lists=[400])
    config = ModelConfig.model_validate(
        {"architecture": "dlrm", "embedding_dim": 256, "bottom_mlp": [512, 256], "top_mlp": [64]}
    )
    model: Any = build_model(config, spec)
    large, small, listed = model.embedding.block_rows()
    assert float(large.abs().max()) <= 1 / 100
    assert float(large.std()) == pytest.approx(1 / 100 / 3**0.5, rel=0.02)
    assert float(small.abs().max()) <= 1 / 4
    assert not listed[PAD_ID].any()
    assert bool(large[PAD_ID].any())
    assert float(listed[1:].std()) == pytest.approx(1 / 20 / 3**0.5, rel=0.02)
    first = model.bottom[0]
    assert float(first.weight.detach().std()) == pytest.approx((2 / 1024) ** 0.5, rel=0.02)
    assert float(first.bias.detach().std()) == pytest.approx((1 / 512) ** 0.5, rel=0.15)


def test_deepfm_starts_with_small_products_of_vectors_and_dlrm_alone_with_random_biases() -> None:
    spec = make_spec(13, [20] * 20, lists=[30] * 6)
    rows = random_rows(spec, 2_000, seed=1)
    model: Any = build_model(variant("deepfm", embedding_dim=16), spec)
    dense, categorical = rows.tensors(32)
    with torch.no_grad():
        fields = torch.cat([dense.unsqueeze(2) * model.dense_vectors, model.embedding(categorical)], dim=1)
        products = torch.triu(fields @ fields.transpose(1, 2), diagonal=1).sum(dim=(1, 2))
    assert 0.02 < float(products.std()) < 0.3
    assert not any(table[PAD_ID].any() for table in model.embedding.block_rows()[20:])
    for name in DEEP:
        biases = [
            layer.bias
            for layer in build_model(variant(name), spec).modules()
            if isinstance(layer, nn.Linear) and layer.bias is not None
        ]
        assert all(bool(bias.any()) for bias in biases) == (name == "dlrm")
        assert any(bool(bias.any()) for bias in biases) == (name == "dlrm")


def test_deepfm_with_field_weights_starts_as_deepfm() -> None:
    spec = make_spec(3, [20, 9], lists=[30])
    dense, categorical = random_rows(spec, 50, seed=1).tensors(32)
    equal, weighted = (
        build_model(variant("deepfm", field_weights=trained), spec, seed=2) for trained in (False, True)
    )
    with torch.no_grad():
        torch.testing.assert_close(weighted(dense, categorical), equal(dense, categorical))


@pytest.mark.parametrize("name", DEEP)
def test_seed_decides_the_weights_and_leaves_the_callers_generator_alone(name: str) -> None:
    spec = make_spec(2, [5], lists=[7])
    torch.manual_seed(99)
    before = torch.get_rng_state()
    one, same, other = (build_model(variant(name), spec, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["embedding.weight"], other["embedding.weight"])


def test_every_architecture_is_tested_here() -> None:
    """Those of SEQUENCE_VARIANTS have their NumPy reference in a file of their own."""
    tested = {**VARIANTS, **SEQUENCE_VARIANTS}
    assert {settings["architecture"] for settings in tested.values()} == set(known_architectures())


def test_what_does_not_fit_the_features_is_named() -> None:
    with pytest.raises(ConfigError, match=r"bottom_mlp=\[8, 5\] must end in embedding_dim=8"):
        build_model(variant("dlrm", bottom_mlp=[8, 5]), make_spec(1, [3]))
    with pytest.raises(ConfigError, match="no features"):
        build_model(variant("dlrm"), make_spec(0, []))
    lengths = {"multi_hot": {"lengths": {"C0": 3}}}
    with pytest.raises(ConfigError, match=r"lengths names \['C0'\]; the features .* are \['L0'\]"):
        build_model(variant("dlrm", **lengths), make_spec(1, [3], lists=[5]))


def test_a_logit_of_two_towers_is_the_product_of_vectors_that_know_one_side_each() -> None:
    """Whatever stands in the other side's columns, and in the rows of its tables, a vector stays the same."""
    spec = make_spec(3, [5, 7, 4], lists=[6, 9])
    rows = random_rows(spec, 30, seed=6)
    model: Any = randomised(variant("two_tower", multi_hot={"max_length": LENGTH}), (3, [5, 7, 4], [6, 9]))
    dense, ids = rows.tensors(LENGTH)
    items = [1], [1, *range(3 + LENGTH, 3 + 2 * LENGTH)]  # I1, C1 and the columns of L1 are the item's
    user_dense, user_ids, item_dense, item_ids = dense.clone(), ids.clone(), dense.clone(), ids.clone()
    user_dense[:, items[0]], user_ids[:, items[1]] = 9.0, 0
    others = [
        sorted({*range(tensor.shape[1])} - {*columns})
        for tensor, columns in zip((dense, ids), items, strict=True)
    ]
    item_dense[:, others[0]], item_ids[:, others[1]] = -9.0, 0
    with torch.no_grad():
        u, v = model.user_vectors(user_dense, user_ids), model.item_vectors(item_dense, item_ids)
        logits = model(dense, ids)
    assert u.shape == v.shape == (30, 6)
    torch.testing.assert_close((u * v).sum(dim=1) + model.bias, logits)
    assert float(u.std()) > 0.01
    assert float(v.std()) > 0.01


def test_two_towers_refuse_features_of_neither_side() -> None:
    spec = make_spec(1, [3])
    pair = replace(spec, features=(*spec.features, replace(spec.features[0], name="I9", scope="pair")))
    with pytest.raises(ConfigError, match=r"two_tower cannot use features .* has 1 such feature"):
        build_model(variant("two_tower"), pair)


def test_threads_that_build_at_the_same_time_get_the_weights_of_their_seeds() -> None:
    config, spec = complete(variant("dlrm")), make_spec(3, [5, 7, 4])

    def weights(seed: int) -> list[torch.Tensor]:
        return list(build_model(config, spec, seed).state_dict().values())

    seeds = list(range(8)) * 4
    alone = [weights(seed) for seed in seeds]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            at_once = list(pool.map(weights, seeds))
    finally:
        sys.setswitchinterval(interval)
    for one, other in zip(alone, at_once, strict=True):
        assert all(torch.equal(left, right) for left, right in zip(one, other, strict=True))


@pytest.mark.parametrize("name", [*VARIANTS, *SEQUENCE_VARIANTS])
def test_scopes_change_the_logits_only_of_models_that_read_them(name: str) -> None:
    """A training may start from the weights of a model with other scopes only if they mean the same."""
    config, spec = complete(variant(name, multi_hot={"max_length": LENGTH})), small_spec(name)
    moved = [replace(one, scope="item") if one.name in {"I0", "C0"} else one for one in spec.features]
    first, second = build_model(config, spec, 3), build_model(config, replace(spec, features=tuple(moved)), 3)
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.normal_()
    shapes = [{key: value.shape for key, value in one.state_dict().items()} for one in (first, second)]
    if shapes[0] != shapes[1]:
        assert reads_scopes(config)
        return
    second.load_state_dict(first.state_dict())
    inputs = random_rows(spec, 9, seed=1).tensors(LENGTH)
    with torch.no_grad():
        same = torch.equal(first.eval()(*inputs), second.eval()(*inputs))
    assert same != reads_scopes(config)
