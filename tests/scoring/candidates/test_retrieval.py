"""Retrieval by vectors against NumPy, for several block sizes, with exclusions and ties."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyspark.sql import SparkSession

from conf.errors import ConfigError, DataError
from conf.types import ModelConfig, MultiHot
from scoring.candidates.retrieval import Retriever, load_retriever
from scoring.candidates.retrieved import RetrievalRequest, retrieved_items
from scoring.model.predictor import Predictor, load_predictor
from scoring.ranking.pairs import context_side
from scoring.requests import ModelRequest
from storage.feature_spec import Feature, FeatureSpec
from tests.scoring.reference_scores import CONTEXT, SPEC, ReferenceScores, write_model
from tests.training.architectures import SEQUENCE_VARIANTS, VARIANTS, small_spec, variant
from tests.training.numpy_models import Network
from training.checkpoints import load_model
from training.models import build_model
from training.models.factorization import VectorModel
from training.settings import check_retriever

FEATURES = ["who", "age"]


def whole_numbers(rows: int, seed: int) -> torch.Tensor:
    """Vectors whose products are exact in float32 and often equal."""
    return torch.from_numpy(np.random.default_rng(seed).integers(-2, 3, (rows, 5)).astype(np.float32))


def retriever(users: torch.Tensor, items: torch.Tensor, n: int, places: int) -> Retriever:
    """One whose users' vectors are looked up by their feature `who`."""
    who = [feature.name for feature in SPEC.embedded].index("who")
    towers: Any = SimpleNamespace(user_vectors=lambda dense, ids: users[ids[:, who]])
    predictor = Predictor(torch.nn.Identity(), SPEC, MultiHot(), "m1", torch.device("cpu"), 64)
    context = context_side(CONTEXT, SPEC, MultiHot())
    return Retriever(predictor, towers, items, context, n, places)


def batch(excluded: list[list[int] | None]) -> pa.RecordBatch:
    """Users with these excluded items."""
    frame = {
        "user_key": pa.array([f"u{index}" for index in range(len(excluded))]),
        "who": pa.array(range(len(excluded)), pa.int32()),
        "age": pa.array([0.0] * len(excluded), pa.float32()),
        "excluded": pa.array(excluded, pa.list_(pa.int32())),
    }
    return pa.RecordBatch.from_arrays(list(frame.values()), names=list(frame))


@pytest.mark.parametrize("places", [1, 700, 10_000_000])
@pytest.mark.parametrize("n", [1, 7, 61, 90])
def test_the_nearest_items_are_those_of_numpy_whatever_the_blocks(n: int, places: int) -> None:
    users, items = whole_numbers(300, 1), whole_numbers(61, 2)
    draw = np.random.default_rng(3)
    excluded: list[list[int] | None] = [
        None if draw.random() < 0.3 else draw.permutation(61)[: draw.integers(0, 62)].tolist()
        for _ in range(300)
    ]
    excluded[7] = list(range(61))
    actual = retriever(users, items, n, places).retrieve(batch(excluded))
    assert actual.column("user_key").to_pylist() == [f"u{index}" for index in range(300)]
    products = users.numpy() @ items.numpy().T
    for user, listed in enumerate(actual.column("candidates").to_pylist()):
        order = np.lexsort((np.arange(61), -products[user]))
        assert listed == [item for item in order.tolist() if item not in (excluded[user] or [])][:n]
        assert actual.column("scores")[user].as_py() == products[user, listed].tolist()


@pytest.mark.parametrize("architecture", ["sasrec", "hstu", "bert4rec", "mult_vae", "two_tower"])
def test_a_model_over_histories_retrieves_the_items_with_its_best_logits(architecture: str) -> None:
    """two_tower has the history as a list of ids in its user tower."""
    ids, length = 15, 4
    spec = FeatureSpec(
        (
            Feature("item_id", "categorical", "int32", "item", ids),
            Feature("history", "multi_hot", "list<int32>", "user", ids),
        ),
        ("row_id",),
        "w1",
    )
    multi_hot = MultiHot(max_length=length)
    size = {"hidden": [8]} if architecture == "mult_vae" else {"embedding_dim": 8}
    config = ModelConfig.model_validate(
        {"architecture": architecture, **size, "multi_hot": multi_hot.model_dump()}
    )
    model: Any = build_model(config, spec, seed=1).eval()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():  # no bias is zero
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    draw = np.random.default_rng(2)
    histories = [draw.integers(3, ids, draw.integers(0, length + 1)).tolist() for _ in range(20)]
    items = torch.zeros(ids - 3, 1 + length, dtype=torch.int64)
    items[:, 0] = torch.arange(3, ids)
    dense = torch.zeros(len(items), 0)
    joined = items.repeat(len(histories), 1)
    for row, history in enumerate(histories):
        for place, item in enumerate(history):
            joined[row * len(items) : (row + 1) * len(items), 1 + place] = item
    with torch.no_grad():
        vectors = model.item_vectors(dense, items)
        logits = model(torch.zeros(len(joined), 0), joined).view(len(histories), len(items))
    predictor = Predictor(model, spec, multi_hot, "m1", torch.device("cpu"), 64)
    retrieving = Retriever(predictor, model, vectors, context_side({}, spec, multi_hot), 5, 40)
    frame = {
        "user_key": pa.array([f"u{index}" for index in range(len(histories))]),
        "history": pa.array(histories, pa.list_(pa.int32())),
        "excluded": pa.array([None] * len(histories), pa.list_(pa.int32())),
    }
    lists = retrieving.retrieve(pa.RecordBatch.from_arrays(list(frame.values()), names=list(frame)))
    best = logits.topk(5, dim=1).indices.tolist()
    assert lists.column("candidates").to_pylist() == best
    assert len({tuple(items) for items in best}) > 1  # they depend on the history


@pytest.mark.parametrize("name", [*VARIANTS, *SEQUENCE_VARIANTS])
def test_the_source_accepts_the_architectures_whose_models_have_vectors(name: str) -> None:
    if isinstance(build_model(variant(name), small_spec(name)), VectorModel):
        check_retriever(variant(name))
    else:
        with pytest.raises(ConfigError, match="has no vectors of users and items"):
            check_retriever(variant(name))


def test_a_batch_without_users_is_a_batch_without_rows() -> None:
    actual = retriever(whole_numbers(1, 1), whole_numbers(3, 2), 2, 10).retrieve(batch([None]).slice(0, 0))
    assert (actual.num_rows, actual.schema.names) == (0, ["user_key", "candidates", "scores"])


def test_without_items_every_list_is_empty() -> None:
    actual = retriever(whole_numbers(2, 1), whole_numbers(0, 2), 3, 10).retrieve(batch([None, []]))
    assert actual.column("candidates").to_pylist() == [[], []]


def test_what_cannot_be_ranked_or_excluded_names_the_user() -> None:
    users, items = whole_numbers(3, 1), whole_numbers(4, 2)
    with pytest.raises(DataError, match=r"excluded index of user u1 is 4, but there are 4 candidate items"):
        retriever(users, items, 2, 100).retrieve(batch([[0], [4], None]))
    items[2] = float("nan")
    with pytest.raises(DataError, match=r"m1: the dot product of user u0 and the item with index 2 is NaN"):
        retriever(users, items, 2, 100).retrieve(batch([[0], None, None]))


def test_spark_retrieves_what_numpy_finds_with_the_written_weights(
    spark: SparkSession, reference: ReferenceScores, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "towers", "two_tower", version="t1")
    n, draw = 9, np.random.default_rng(5)
    excluded = {
        user: sorted(draw.permutation(23)[: draw.integers(0, 20)].tolist())
        for user in reference.users.user_key
    }
    request = RetrievalRequest(
        ModelRequest(path, "cpu", 16), reference.request.item_files, tuple(CONTEXT.items()), n
    )
    rows: list[Any] = reference.users[["user_key", *FEATURES]].to_dict("records")
    rows = [{**row, "excluded": excluded[row["user_key"]]} for row in rows]
    schema = "user_key string, who int, age float, excluded array<int>"
    users = spark.createDataFrame(rows, schema)
    actual = {row.user_key: row.candidates for row in retrieved_items(users, FEATURES, request).collect()}

    state = {
        name: value.numpy().astype(np.float64)
        for name, value in load_model(path, torch.device("cpu")).model.state_dict().items()
    }
    scopes = [feature.scope for feature in SPEC.dense], [feature.scope for feature in SPEC.embedded]
    network = Network(state, SPEC.cardinalities, "mean", {}, scopes)

    def vectors(tower: str, rows: pd.DataFrame) -> np.ndarray:
        known = [
            {**{feature.name: 0 for feature in SPEC.features}, **CONTEXT, **row}
            for row in rows.to_dict("records")
        ]
        dense = [np.array([row[feature.name] for feature in SPEC.dense], np.float64) for row in known]
        ids = [[[int(row[feature.name])] for feature in SPEC.embedded] for row in known]
        return np.array([network.tower(tower, *feature) for feature in zip(dense, ids, strict=True)])

    products = vectors("user", reference.users) @ vectors("item", reference.items).T
    assert products.std() > 0.01
    assert sorted(actual) == sorted(reference.users.user_key)
    for user, user_rows in zip(reference.users.user_key, products, strict=True):
        allowed = [item for item in range(23) if item not in excluded[user]]
        best = sorted((user_rows[item] for item in allowed), reverse=True)[:n]
        assert len(set(actual[user])) == len(actual[user]) == len(best)
        assert set(actual[user]) <= set(allowed)
        np.testing.assert_allclose([user_rows[item] for item in actual[user]], best, atol=1e-5)


def test_a_model_without_towers_is_refused(reference: ReferenceScores) -> None:
    request = RetrievalRequest(
        reference.request.model, reference.request.item_files, tuple(CONTEXT.items()), 5
    )
    with pytest.raises(ConfigError, match=r"m1 is a LinearPart, which has no vectors"):
        load_retriever(request, load_predictor(request.model, None, 1))
