"""Lists of models over histories, and of a two-tower model with one, against the logits of joined rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from scoring.model.predictor import row_bytes
from scoring.ranking.pair_scorer import PairScorer
from scoring.ranking.recommender import ListRanker
from scoring.requests import ListRequest, ModelRequest
from tests.scoring.ranking.test_recommender import batch_of, lists_of
from tests.scoring.ranking.test_user_major import K, assert_close_lists
from tests.scoring.reference_scores import make_recommender
from tests.training.architectures import SEQUENCE_VARIANTS, small_spec, variant
from training.checkpoints import save_model
from training.models import build_model

IDS, USERS, ITEMS, LENGTH = 30, 37, 23, 6
NAMES = [*SEQUENCE_VARIANTS, "two_tower"]
# The item is C1 and the history L0 (tests/training/architectures.py).
SPEC = small_spec("din", IDS)


def sides() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Users, some without a history and some with more items than a model reads; items."""
    draw = np.random.default_rng(3)
    users = pd.DataFrame(
        {
            "user_key": [f"u{index:03d}" for index in range(USERS)],
            "I0": draw.normal(size=USERS).astype(np.float32),
            "C0": draw.integers(0, 5, USERS).astype(np.int32),
            "L0": [draw.integers(1, IDS, index % 9).astype(np.int32).tolist() for index in range(USERS)],
        }
    )
    items = pd.DataFrame(
        {
            "item_index": np.arange(ITEMS, dtype=np.int32),
            "item_key": [f"i{index:03d}" for index in range(ITEMS)],
            "I1": draw.normal(size=ITEMS).astype(np.float32),
            "C1": np.arange(3, 3 + ITEMS, dtype=np.int32),
        }
    )
    return users, items


def recommender_of(name: str, folder: Path) -> ListRanker:
    config = variant(name, multi_hot={"max_length": LENGTH})
    model = build_model(config, SPEC)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    facts = {"version": "m1", "architecture": config.architecture, "model": config.model_dump()}
    save_model(str(folder / "model"), model, {**facts, "feature_spec": SPEC.to_json()})
    table = pa.Table.from_pandas(sides()[1], preserve_index=False)
    pq.write_table(table, folder / "items.parquet")
    model_request = ModelRequest(str(folder / "model"), "cpu", 40)
    return make_recommender(ListRequest(model_request, (str(folder / "items.parquet"),), (), K))


@torch.inference_mode()
def joined_probabilities(model: torch.nn.Module) -> np.ndarray:
    """(U, N) by the model's own pass over rows that pandas joined."""
    users, items = sides()
    pairs = users.merge(items, how="cross")
    histories = [[*items, *[0] * LENGTH][:LENGTH] for items in pairs.L0]
    ids = np.column_stack([pairs.C0, pairs.C1, np.array(histories)])
    logits = model(torch.tensor(pairs[["I0", "I1"]].to_numpy(np.float32)), torch.tensor(ids).long())
    return torch.sigmoid(logits).numpy().reshape(USERS, ITEMS)


@pytest.mark.parametrize("kept_bytes", [None, 0], ids=["kept", "computed again"])
@pytest.mark.parametrize("name", NAMES)
def test_lists_over_histories_equal_joined_rows(name: str, kept_bytes: int | None, tmp_path: Path) -> None:
    recommender = recommender_of(name, tmp_path)
    pair_scorer = PairScorer(recommender.predictor, recommender.items.side, kept_bytes)
    list_scorer = replace(recommender.list_scorer, pair_scorer=pair_scorer)
    recommender = replace(recommender, list_scorer=list_scorer)
    probabilities = joined_probabilities(recommender.predictor.model)
    draw = np.random.default_rng(4)
    sizes = [0, 1, 3, 9, 20, 23] * 6 + [12]
    candidates: list[list[int] | None] = [draw.permutation(ITEMS)[:size].tolist() for size in sizes]
    candidates[5] = candidates[6] = None
    actual = lists_of(recommender, batch_of(sides()[0], candidates))
    asked = [list(range(ITEMS)) if listed is None else listed for listed in candidates]
    assert_close_lists(actual, probabilities, asked)
    assert probabilities.std() > 0.02
    order = np.argsort(-probabilities, axis=1)
    assert len({tuple(items) for items in order.tolist()}) > 20  # the order depends on the user


def test_the_activation_unit_is_counted_once_per_place_of_the_history() -> None:
    """Three features have vectors: C0, C1 and L0."""
    config: Any = variant("din_dropout", multi_hot={"max_length": LENGTH})
    unit = (4 * 8 + 6) + (6 + 1)
    deep = (3 * 8 + 2 + 16) + (16 + 1)
    assert row_bytes(build_model(config, SPEC)) == 4 * (LENGTH * unit + deep + 2 * 3 * 8 + 3 * 3)
