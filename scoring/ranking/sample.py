"""Probabilities of a sample of (user, item) pairs, from the tables that lists are computed from."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from scoring.inputs.requests import ListRequest
from scoring.model.predictor import Predictor
from scoring.ranking.candidate_items import read_items
from scoring.ranking.pairs import side_of


def score_sample(
    predictor: Predictor, users: pa.Table, request: ListRequest, items: int
) -> NDArray[np.float32]:
    """The probabilities of each user with the same `items` items, whose indices are equally spaced.

    Args:
        predictor: the loaded model.
        users: the features of scope `user`, one row per user.
        request: names the items and the context.
        items: number of items for each user. If there are fewer candidate items (N), all N are used.

    Returns:
        (U * min(items, N),) float32, the probabilities of one user after the other.
    """
    all_items = read_items(request.item_files, predictor, dict(request.context))
    count = min(items, len(all_items.keys))
    chosen = torch.from_numpy(np.linspace(0, len(all_items.keys) - 1, count).round().astype(np.int64))
    side = side_of(users, predictor.spec, predictor.multi_hot, "user")
    user = torch.arange(users.num_rows).repeat_interleave(count)
    pairs = side.rows(user).plus(all_items.side.rows(chosen.repeat(users.num_rows)))
    scored: NDArray[np.float32] = predictor.probabilities(pairs.dense, pairs.categorical).numpy()
    return scored
