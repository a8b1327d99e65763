"""Features that are lists of ids in scoring: items, users and context with lists, against NumPy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from conf.types import ModelConfig
from scoring.model.predictor import load_predictor, model_inputs
from scoring.requests import ListRequest, ModelRequest
from scoring.rows.score_batch import inputs_by_column, score_batch
from storage.feature_spec import Feature, FeatureSpec
from tests.scoring.reference_scores import make_recommender
from training.checkpoints import save_model
from training.models import build_model

SPEC = FeatureSpec(
    features=(
        Feature("tags", "multi_hot", "list<int32>", "item", 9),
        Feature("price", "dense", "float32", "item"),
        Feature("who", "categorical", "int32", "user", 12),
        Feature("history", "multi_hot", "list<int32>", "user", 20),
        Feature("campaigns", "multi_hot", "list<int32>", "context", 6),
    ),
    key_columns=("row_id", "user_key", "item_key"),
    workflow_version="w1",
)
MULTI_HOT = {"pooling": "mean", "max_length": 2, "lengths": {"history": 4}}
CONTEXT: tuple[tuple[str, Any], ...] = (("campaigns", (3, 5, 4)),)
LIST = pa.list_(pa.int32())
USERS, ITEMS = 11, 7


def tables() -> tuple[pa.Table, pa.Table]:
    """Users and items, some of whose lists are empty and some longer than the model takes."""
    draw = np.random.default_rng(3)

    def lists(count: int, cardinality: int, most: int) -> pa.Array:
        drawn = [draw.integers(1, cardinality, number % (most + 1)).tolist() for number in range(count)]
        return pa.array(drawn, LIST)

    users = {
        "user_key": [f"u{index:02d}" for index in range(USERS)],
        "who": pa.array(range(1, USERS + 1), pa.int32()),
        "history": lists(USERS, 20, 6),
        "candidates": pa.nulls(USERS, LIST),
        "excluded": pa.nulls(USERS, LIST),
    }
    items = {
        "item_index": pa.array(range(ITEMS), pa.int32()),
        "item_key": [f"i{index}" for index in range(ITEMS)],
        "tags": lists(ITEMS, 9, 3),
        "price": pa.array(draw.normal(size=ITEMS).astype(np.float32)),
    }
    return pa.table(users), pa.table(items)


def write_model(folder: Path) -> dict[str, np.ndarray]:
    """A logistic regression with random weights, those of padding rows included; returns its weights."""
    config = ModelConfig.model_validate({"architecture": "logistic_regression", "multi_hot": MULTI_HOT})
    model = build_model(config, SPEC)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    description = {
        "version": "m1",
        "architecture": config.architecture,
        "model": config.model_dump(),
        "feature_spec": SPEC.to_json(),
    }
    save_model(str(folder), model, description)
    return {name: value.numpy().astype(np.float64) for name, value in model.state_dict().items()}


def probability(state: dict[str, np.ndarray], user: dict[str, Any], item: dict[str, Any]) -> float:
    """In the table one id comes first, then the lists in the spec's order: who, tags, history, campaigns."""
    column = state["embedding.weight"][:, 0]
    logit = float(state["bias"]) + column[user["who"]] + state["weights"][0] * item["price"]
    for start, ids in ((12, item["tags"][:2]), (12 + 9, user["history"][:4]), (12 + 9 + 20, [3, 5])):
        logit += np.mean([column[start + index] for index in ids]) if ids else 0.0
    return 1 / (1 + np.exp(-logit))


@pytest.fixture(scope="module")
def probabilities(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, np.ndarray]:
    """The model's folder, and what NumPy says of each user and item (U, N)."""
    folder = tmp_path_factory.mktemp("model")
    state = write_model(folder)
    users, items = tables()
    actual = [[probability(state, user, item) for item in items.to_pylist()] for user in users.to_pylist()]
    return str(folder), np.array(actual)


def test_top_lists_equal_numpy(probabilities: tuple[str, np.ndarray], tmp_path: Path) -> None:
    path, expected = probabilities
    users, items = tables()
    pq.write_table(items.slice(0, 3), tmp_path / "a.parquet")
    pq.write_table(items.slice(3), tmp_path / "b.parquet")
    files = (str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet"))
    request = ListRequest(ModelRequest(path, "cpu", 5), files, CONTEXT, ITEMS)
    recommender = make_recommender(request)
    actual = [
        row
        for batch in users.to_batches(max_chunksize=4)
        for lists in recommender.recommend(batch)
        for row in lists.to_pylist()
    ]
    assert len(actual) == USERS * ITEMS
    for row in actual:
        score = expected[int(row["user_id"][1:]), int(row["item_id"][1:])]
        assert row["score"] == pytest.approx(score, abs=1e-6)
    for user in range(USERS):
        user_rows = [int(row["item_id"][1:]) for row in actual if row["user_id"] == f"u{user:02d}"]
        assert user_rows == np.argsort(-expected[user], kind="stable").tolist()
    assert expected.std() > 0.05


def test_rows_equal_numpy(probabilities: tuple[str, np.ndarray]) -> None:
    path, expected = probabilities
    users, items = tables()
    user, item = np.repeat(np.arange(USERS), ITEMS), np.tile(np.arange(ITEMS), USERS)
    pairs = {name: users.column(name).take(pa.array(user)).combine_chunks() for name in ("who", "history")}
    pairs |= {name: items.column(name).take(pa.array(item)).combine_chunks() for name in ("tags", "price")}
    pairs["campaigns"] = pa.array([[3, 5, 4]] * len(user), LIST)
    pairs["row_id"] = pa.array(range(len(user)))
    batch = pa.RecordBatch.from_pydict(pairs)
    predictor = load_predictor(ModelRequest(path, "cpu", 10), None, 1)
    for part, rows in ((batch, expected.ravel()), (batch.slice(20, 30), expected.ravel()[20:50])):
        scored = score_batch(predictor, part, ["row_id"])
        np.testing.assert_allclose(scored.column("probability").to_numpy(), rows, atol=1e-6)


def test_inputs_by_column_are_the_models_inputs(probabilities: tuple[str, np.ndarray]) -> None:
    """What goes to a GPU, where the model takes it as it takes the other."""
    path, _ = probabilities
    users, items = tables()
    pairs = users.take(pa.array(range(ITEMS)))
    rows = pa.table({**{name: pairs.column(name) for name in ("who", "history")},
                     **{name: items.column(name) for name in ("tags", "price")},
                     "campaigns": pa.array([[3, 5, 4], None, [], [1], [2, 2], [5], [4]], LIST)})  # fmt: skip
    columns = {feature.name: rows.column(feature.name) for feature in SPEC.features}
    predictor = load_predictor(ModelRequest(path, "cpu", 10), None, 1)
    actual = inputs_by_column(columns, SPEC, predictor.multi_hot, ITEMS)
    expected = model_inputs(columns, SPEC, predictor.multi_hot, ITEMS)
    assert [tensor.dtype for tensor in actual] == [torch.float32, torch.int32]
    for mine, other in zip(actual, expected, strict=True):
        assert torch.equal(mine.to(other.dtype), other)
    assert torch.equal(predictor.probabilities(*actual), predictor.probabilities(*expected))


def test_another_context_list_gives_other_scores(
    probabilities: tuple[str, np.ndarray], tmp_path: Path
) -> None:
    path, _ = probabilities
    users, items = tables()
    pq.write_table(items, tmp_path / "a.parquet")
    request = ListRequest(ModelRequest(path, "cpu", None), (str(tmp_path / "a.parquet"),), CONTEXT, 1)
    changed = replace(request, context=(("campaigns", ()),))
    scores = [
        next(make_recommender(list_request).recommend(users.to_batches()[0])).column("score")[0]
        for list_request in (request, changed)
    ]
    assert abs(scores[0].as_py() - scores[1].as_py()) > 1e-3
