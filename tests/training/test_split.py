"""A model's split says of every (user, item) pair what the model says of the joined row, and runs each side once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conf.types import ModelConfig, Scope
from storage.feature_spec import PAD_ID, Feature, FeatureSpec
from tests.training.architectures import VARIANTS, variant
from tests.training.numpy_models import Network
from training.models import build_model, known_architectures
from training.models.factorization import Sides, Splits, products
from training.models.inputs import id_columns

USERS, ITEMS = 5, 7
MULTI_HOT = {"pooling": "mean", "max_length": 3}

# What the variants of all tests do not have.
# Its towers are the split that retrieval uses; as a ranker it is scored on joined rows (tests/scoring/lists).
RETRIEVER = "two_tower"
RANKERS = [name for name in VARIANTS if not name.startswith(RETRIEVER)]

MORE: dict[str, dict[str, Any]] = {
    "dlrm_without_top": {"architecture": "dlrm", "embedding_dim": 4, "bottom_mlp": [6, 4]},
    "dcn_v2_one_layer": {"architecture": "dcn_v2", "embedding_dim": 4, "cross_layers": 1, "deep": [8]},
    "dcn_v2_parallel_with_bottom": {
        "architecture": "dcn_v2",
        "embedding_dim": 4,
        "cross_layers": 3,
        "cross_rank": 2,
        "bottom_mlp": [5],
        "structure": "parallel",
        "deep": [8],
    },
}

# How many features each side has: dense, of one id, lists of ids. The first dense feature and list of items are the context's.
SHAPES = {
    "everything on both sides": ((2, 3, 1), (2, 2, 1)),
    "dense of users": ((2, 2, 0), (0, 3, 1)),
    "dense of items": ((0, 3, 1), (2, 2, 0)),
    "no dense": ((0, 3, 0), (0, 2, 0)),
    "ids of items alone": ((2, 0, 0), (1, 2, 0)),
    "one feature each": ((0, 1, 0), (0, 1, 0)),
    "no users' features": ((0, 0, 0), (1, 2, 1)),
    "no items' features": ((1, 2, 1), (0, 0, 0)),
    "dense alone": ((1, 0, 0), (2, 0, 0)),
}


def make_spec(shape: str) -> FeatureSpec:
    """Sides and kinds interleave, so that a wrong order of columns cannot pass."""
    features = []
    kinds = (("dense", "float32", None), ("categorical", "int32", 9), ("multi_hot", "list<int32>", 11))
    for number in range(3):
        for side, counts in zip(("item", "user"), SHAPES[shape][::-1], strict=True):
            for (kind, dtype, cardinality), count in zip(kinds, counts, strict=True):
                of_context = side == "item" and number == 0 and kind != "categorical"
                scope: Scope = "context" if of_context else "user" if side == "user" else "item"
                if number < count:
                    name = f"{side}_{kind}_{number}"
                    features.append(Feature(name, kind, dtype, scope, cardinality))  # type: ignore[arg-type]
    return FeatureSpec(tuple(features), ("row_id",), "w1")


def make_model(name: str, spec: FeatureSpec) -> tuple[nn.Module, ModelConfig]:
    """With random weights, those of padding rows and biases included; Wide & Deep with products within and across the sides."""
    config = variant(name) if name in VARIANTS else ModelConfig.model_validate(MORE[name])
    changed: dict[str, Any] = {"multi_hot": MULTI_HOT}
    single = [each.name for each in spec.categorical]
    if config.architecture == "wide_and_deep" and single:
        changed["crosses"] = [{"left": single, "right": single[::-1], "buckets": 17}]
    config = ModelConfig.model_validate({**config.model_dump(), **changed})
    model = build_model(config, spec).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model, config


def side_rows(spec: FeatureSpec, config: ModelConfig, user: bool, rows: int) -> tuple[Tensor, Tensor]:
    """Random dense (R, D) and categorical (R, W) of one side, zeros in the other's places."""
    draw = np.random.default_rng([rows, user])
    dense = draw.normal(size=(rows, len(spec.dense))).astype(np.float32)
    dense[:, [(each.scope == "user") != user for each in spec.dense]] = 0
    columns = []
    for feature, place in id_columns(spec, config.multi_hot):
        width = place.stop - place.start
        ids = draw.integers(0, int(feature.cardinality or 0), (rows, width))
        if feature.kind == "multi_hot":
            ids[np.arange(width) >= draw.integers(0, width + 1, rows)[:, None]] = PAD_ID
        columns.append(ids if (feature.scope == "user") == user else np.zeros_like(ids))
    categorical = np.concatenate([np.zeros((rows, 0), np.int64), *columns], axis=1)
    return torch.from_numpy(dense), torch.from_numpy(categorical)


@torch.inference_mode()
def split_and_joined(
    model: nn.Module,
    spec: FeatureSpec,
    users: tuple[Tensor, Tensor],
    items: tuple[Tensor, Tensor],
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (U, I): by the split with shared items, by the split with each user's own, and of the joined rows."""
    assert isinstance(model, Splits)
    split = model.split(Sides.of(spec), dtype)
    user_part, item_part = split.user_part(*users), split.item_part(*items)
    shared = split.pair_part(user_part, tuple(each.unsqueeze(0) for each in item_part))
    place = (
        torch.arange(USERS).unsqueeze(1) + torch.arange(ITEMS)
    ) % ITEMS  # (U, I), another order for each user
    own = split.pair_part(user_part, tuple(each[place] for each in item_part))
    assert shared.dtype == own.dtype == torch.float32
    rows = [(user.unsqueeze(1) + item).flatten(0, 1) for user, item in zip(users, items, strict=True)]
    return shared, torch.empty_like(own).scatter_(1, place, own), model(*rows).view(USERS, ITEMS)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [*RANKERS, *MORE])
def test_a_split_equals_the_joined_rows(name: str, shape: str) -> None:
    spec = make_spec(shape)
    model, config = make_model(name, spec)
    users, items = (side_rows(spec, config, *each) for each in ((True, USERS), (False, ITEMS)))
    shared, own, joined = split_and_joined(model, spec, users, items)
    for found in (shared, own):
        torch.testing.assert_close(found, joined, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(torch.sigmoid(found), torch.sigmoid(joined), atol=1e-5, rtol=0)
    if SHAPES[shape][1] != (0, 0, 0):
        assert joined.std(dim=1).mean() > 1e-2  # items make a difference


@pytest.mark.parametrize("name", ["dlrm", "deepfm", "dcn_v2_full", "dcn_v2_low_rank", "logistic_regression"])
def test_a_split_equals_the_equations_in_numpy(name: str) -> None:
    spec = make_spec("everything on both sides")
    model, config = make_model(name, spec)
    users, items = (side_rows(spec, config, *each) for each in ((True, USERS), (False, ITEMS)))
    shared, _, _ = split_and_joined(model, spec, users, items)
    state = {key: value.numpy().astype(np.float64) for key, value in model.state_dict().items()}
    settings = {"cross_layers": 2, "cross_rank": None, "structure": "stacked", **config.settings}
    network = Network(state, spec.cardinalities, "mean", settings)
    for user in range(USERS):
        for item in range(ITEMS):
            dense, categorical = (
                (of_user[user] + of_item[item]).numpy() for of_user, of_item in zip(users, items, strict=True)
            )
            ids = [
                [int(each) for each in categorical[place] if feature.kind != "multi_hot" or each != PAD_ID]
                for feature, place in id_columns(spec, config.multi_hot)
            ]
            expected = network.logit(config.architecture, dense, ids)
            assert float(shared[user, item]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("dtype, bound", [(torch.bfloat16, 0.03), (torch.float16, 0.004)])
@pytest.mark.parametrize("name", RANKERS)
def test_half_precision_moves_probabilities_little(name: str, dtype: torch.dtype, bound: float) -> None:
    spec = make_spec("everything on both sides")
    model, config = make_model(name, spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)  # logits of about one, where a probability moves most
    users, items = (side_rows(spec, config, *each) for each in ((True, USERS), (False, ITEMS)))
    shared, own, joined = split_and_joined(model, spec, users, items, dtype)
    for found in (shared, own):
        error = (torch.sigmoid(found) - torch.sigmoid(joined)).abs().max()
        assert error < bound
    if config.architecture != "logistic_regression":
        assert not torch.equal(shared, joined)


def test_every_architecture_of_ours_that_ranks_splits() -> None:
    spec = make_spec("no dense")
    for name in known_architectures():
        if name == RETRIEVER:
            continue
        model = build_model(ModelConfig.model_validate({"architecture": name}), spec)
        assert isinstance(model, Splits), name


def test_products_are_those_of_numpy_for_shared_and_own_items() -> None:
    draw = np.random.default_rng(0)
    users = draw.normal(size=(3, 2, 4)).astype(np.float32)
    for many in (5, 40):  # few items are multiplied as a stack, many one user after the other
        items = draw.normal(size=(3, many, 6, 4)).astype(np.float32)
        own = products(torch.from_numpy(users), torch.from_numpy(items))
        expected = np.einsum("upe,uiqe->uiqp", users, items).reshape(3, many, 12)
        np.testing.assert_allclose(own.numpy(), expected, atol=1e-5)
        shared = products(torch.from_numpy(users), torch.from_numpy(items[:1]))
        expected = np.einsum("upe,iqe->uiqp", users, items[0]).reshape(3, many, 12)
        np.testing.assert_allclose(shared.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", ["dense of users", "dense of items", "dense alone"])
@pytest.mark.parametrize("name", sorted({*RANKERS, *MORE} - {"wide_and_deep", "wide_and_deep_without_ftrl"}))
def test_parts_stay_on_the_device_of_the_model(name: str, shape: str, dtype: torch.dtype) -> None:
    """The device `meta` refuses an operation with a tensor that is elsewhere; Wide & Deep's reads numbers, which are not there."""
    single = tuple(each for each in make_spec(shape).features if each.kind != "multi_hot")
    mixed = (
        *single,
        Feature("more", "dense", "float32", "user"),
        Feature("other", "dense", "float32", "item"),
    )
    for features in (single, mixed):
        spec = FeatureSpec(features, ("row_id",), "w1")
        model, config = make_model(name, spec)
        model = model.to("meta")
        assert isinstance(model, Splits)
        with torch.inference_mode():
            split = model.split(Sides.of(spec), dtype)
            users, items = (
                tuple(each.to("meta") for each in side_rows(spec, config, *side))
                for side in ((True, USERS), (False, ITEMS))
            )
            user_part, item_part = split.user_part(*users), split.item_part(*items)
            logits = split.pair_part(user_part, tuple(each.unsqueeze(0) for each in item_part))
        assert (logits.shape, logits.device.type, logits.dtype) == ((USERS, ITEMS), "meta", torch.float32)
