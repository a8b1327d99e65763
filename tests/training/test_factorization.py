"""A factorization returns the model's logit of the joined row for each (user, item) pair."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conf.types import ModelConfig, Scope
from storage.feature_spec import PAD_ID, Feature, FeatureSpec
from tests.training.architectures import VARIANTS, small_spec, variant
from tests.training.numpy_models import Network
from training.architectures.dcn_v2 import cross_input_sides
from training.models import build_model, known_architectures
from training.models.factorization import (
    Factorizable,
    FeatureSides,
    Side,
    common_side,
    positions_by_side,
    vector_products,
)
from training.models.inputs import id_columns
from training.models.interaction import interaction_columns

USERS, ITEMS = 5, 7
MULTI_HOT = {"pooling": "mean", "max_length": 3}

# Retrieval runs its towers once each. As a ranker it is scored on joined rows (tests/scoring/ranking).
RETRIEVER = "two_tower"
RANKERS = [name for name in VARIANTS if not name.startswith(RETRIEVER)]

# Models that the variants of all tests do not include.
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

# Features of the user's and the item's side: dense, of one id, lists of ids. The item's first dense feature
# and its first list are of the context.
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
    """A model with random weights, also of padding rows and biases; Wide & Deep has all kinds of products."""
    config = variant(name) if name in VARIANTS else ModelConfig.model_validate(MORE[name])
    changed: dict[str, Any] = {"multi_hot": MULTI_HOT}
    single = [feature.name for feature in spec.categorical]
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
    """Random dense (R, D) and categorical (R, W) of one side, with zeros in the columns of the other side."""
    draw = np.random.default_rng([rows, user])
    dense = draw.normal(size=(rows, len(spec.dense))).astype(np.float32)
    dense[:, [(feature.scope == "user") != user for feature in spec.dense]] = 0
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
def logits_of(
    model: nn.Module,
    spec: FeatureSpec,
    users: tuple[Tensor, Tensor],
    items: tuple[Tensor, Tensor],
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (U, I): factorized with one list for all users, with one list per user, and of joined rows."""
    assert isinstance(model, Factorizable)
    factorization = model.factorize(FeatureSides.of(spec), dtype)
    user_part = factorization.side_part(Side.USER, *users)
    item_part = factorization.side_part(Side.ITEM, *items)
    shared = factorization.pair_logits(user_part, tuple(tensor.unsqueeze(0) for tensor in item_part))
    # (U, I), another order for each user
    order = (torch.arange(USERS).unsqueeze(1) + torch.arange(ITEMS)) % ITEMS
    by_user = factorization.pair_logits(user_part, tuple(tensor[order] for tensor in item_part))
    assert shared.dtype == by_user.dtype == torch.float32
    rows = [(user.unsqueeze(1) + item).flatten(0, 1) for user, item in zip(users, items, strict=True)]
    return shared, torch.empty_like(by_user).scatter_(1, order, by_user), model(*rows).view(USERS, ITEMS)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [*RANKERS, *MORE])
def test_a_factorization_equals_the_joined_rows(name: str, shape: str) -> None:
    spec = make_spec(shape)
    model, config = make_model(name, spec)
    users, items = side_rows(spec, config, True, USERS), side_rows(spec, config, False, ITEMS)
    shared, by_user, joined = logits_of(model, spec, users, items)
    for logits in (shared, by_user):
        torch.testing.assert_close(logits, joined, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(torch.sigmoid(logits), torch.sigmoid(joined), atol=1e-5, rtol=0)
    if SHAPES[shape][1] != (0, 0, 0):
        assert joined.std(dim=1).mean() > 1e-2  # items make a difference


@pytest.mark.parametrize(
    "name",
    ["dlrm", "deepfm", "deepfm_weighted", "dcn_v2_full", "dcn_v2_low_rank", "logistic_regression", "neumf"],
)
def test_a_factorization_equals_the_equations_in_numpy(name: str) -> None:
    spec = make_spec("everything on both sides")
    model, config = make_model(name, spec)
    users, items = side_rows(spec, config, True, USERS), side_rows(spec, config, False, ITEMS)
    shared, _, _ = logits_of(model, spec, users, items)
    state = {key: value.numpy().astype(np.float64) for key, value in model.state_dict().items()}
    settings = {"cross_layers": 2, "cross_rank": None, "structure": "stacked", **config.settings}
    scopes = [feature.scope for feature in spec.dense], [feature.scope for feature in spec.embedded]
    network = Network(state, spec.cardinalities, "mean", settings, scopes)
    for user in range(USERS):
        for item in range(ITEMS):
            dense, categorical = (
                (user_rows[user] + item_rows[item]).numpy()
                for user_rows, item_rows in zip(users, items, strict=True)
            )
            ids = [
                [int(id_) for id_ in categorical[place] if feature.kind != "multi_hot" or id_ != PAD_ID]
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
    users, items = side_rows(spec, config, True, USERS), side_rows(spec, config, False, ITEMS)
    shared, by_user, joined = logits_of(model, spec, users, items, dtype)
    for logits in (shared, by_user):
        error = (torch.sigmoid(logits) - torch.sigmoid(joined)).abs().max()
        assert error < bound
    if config.architecture != "logistic_regression":
        assert not torch.equal(shared, joined)


def test_every_architecture_that_ranks_has_a_factorization() -> None:
    spec = make_spec("no dense")
    over_histories = {"sasrec", "hstu", "bert4rec", "din", "mult_vae"}
    for name in set(known_architectures()) - {RETRIEVER} - over_histories:
        model = build_model(ModelConfig.model_validate({"architecture": name}), spec)
        assert isinstance(model, Factorizable), name
    for name in over_histories:
        assert isinstance(build_model(variant(name), small_spec(name)), Factorizable), name


def test_vector_products_equal_numpy_for_one_list_and_for_a_list_a_user() -> None:
    draw = np.random.default_rng(0)
    users = draw.normal(size=(3, 2, 4)).astype(np.float32)
    for num_items in (
        5,
        40,
    ):  # few items are multiplied in one batched product, many one user after the other
        items = draw.normal(size=(3, num_items, 6, 4)).astype(np.float32)
        by_user = vector_products(torch.from_numpy(users), torch.from_numpy(items))
        expected = np.einsum("upe,uiqe->uiqp", users, items).reshape(3, num_items, 12)
        np.testing.assert_allclose(by_user.numpy(), expected, atol=1e-5)
        shared = vector_products(torch.from_numpy(users), torch.from_numpy(items[:1]))
        expected = np.einsum("upe,iqe->uiqp", users, items[0]).reshape(3, num_items, 12)
        np.testing.assert_allclose(shared.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", ["dense of users", "dense of items", "dense alone"])
@pytest.mark.parametrize("name", sorted({*RANKERS, *MORE} - {"wide_and_deep", "wide_and_deep_without_ftrl"}))
def test_parts_stay_on_the_device_of_the_model(name: str, shape: str, dtype: torch.dtype) -> None:
    """The device `meta` refuses tensors of other devices. Wide & Deep reads values, which `meta` has not."""
    single = tuple(feature for feature in make_spec(shape).features if feature.kind != "multi_hot")
    mixed = (
        *single,
        Feature("more", "dense", "float32", "user"),
        Feature("other", "dense", "float32", "item"),
    )
    for features in (single, mixed):
        spec = FeatureSpec(features, ("row_id",), "w1")
        model, config = make_model(name, spec)
        model = model.to("meta")
        assert isinstance(model, Factorizable)
        with torch.inference_mode():
            factorization = model.factorize(FeatureSides.of(spec), dtype)
            user_part, item_part = (
                factorization.side_part(
                    side, *(tensor.to("meta") for tensor in side_rows(spec, config, side is Side.USER, rows))
                )
                for side, rows in ((Side.USER, USERS), (Side.ITEM, ITEMS))
            )
            logits = factorization.pair_logits(user_part, tuple(tensor.unsqueeze(0) for tensor in item_part))
        assert (logits.shape, logits.device.type, logits.dtype) == ((USERS, ITEMS), "meta", torch.float32)


def test_sides_of_several_inputs() -> None:
    assert common_side([Side.USER, Side.USER]) is Side.USER
    assert common_side([Side.ITEM]) is Side.ITEM
    assert common_side([Side.USER, Side.ITEM]) is Side.PAIR
    positions = positions_by_side([Side.ITEM, Side.USER, Side.ITEM])
    assert positions == {Side.USER: [1], Side.ITEM: [0, 2], Side.PAIR: []}


@pytest.mark.parametrize("first_width", [0, 3])
@pytest.mark.parametrize("num_vectors", range(1, 6))
def test_interaction_columns_are_those_of_the_named_pairs(num_vectors: int, first_width: int) -> None:
    """Names every column of the interaction and compares the names of each side's columns, in their order."""
    names = [f"v0[{number}]" for number in range(first_width)]
    names += [f"{row}.{column}" for row in range(num_vectors) for column in range(row)]
    others = [Side.USER, Side.ITEM]
    for sides in product([*others, Side.PAIR], *[others] * (num_vectors - 1)):
        columns = interaction_columns(sides, first_width)
        assert sorted(column for side in Side for column in columns[side]) == list(range(len(names)))
        users, items = positions_by_side(sides)[Side.USER], positions_by_side(sides)[Side.ITEM]
        for side, vectors in ((Side.USER, users), (Side.ITEM, items)):
            expected = names[:first_width] if sides[0] is side else []
            expected = expected + [f"{row}.{column}" for row in vectors for column in vectors if column < row]
            assert [names[column] for column in columns[side]] == expected
        expected = [f"{max(item, user)}.{min(item, user)}" for item in items for user in users]
        if sides[0] is Side.PAIR:
            expected += [*names[:first_width], *(f"{vector}.0" for vector in (*users, *items))]
        assert [names[column] for column in columns[Side.PAIR]] == expected


def test_sides_of_the_columns_of_a_cross_network() -> None:
    user, item, pair = Side.USER, Side.ITEM, Side.PAIR
    mixed, of_user = FeatureSides((user, item), (item, user)), FeatureSides((user, user), (item,))
    assert cross_input_sides(mixed, 2, None) == [user, item, item, item, user, user]
    assert cross_input_sides(mixed, 1, 3) == [pair, pair, pair, item, user]
    assert cross_input_sides(of_user, 1, 3) == [user, user, user, item]
