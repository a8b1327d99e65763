"""Computes the probabilities of a sample of (user, item) pairs.

The features come from the same tables that the lists are computed from.
"""

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
    """Returns the probabilities of pairs: each user is paired with the same items.

    The indices of these items are equally spaced between the first and the last item.

    Args:
        predictor: the loaded model.
        users: the features of scope `user`, one row per user.
        request: names the files of the items, and has the values of the context features.
        items: number of items for each user. If there are fewer candidate items (N), all N are used.

    Returns:
        A float32 array of shape (U * min(items, N),). It has all probabilities of the first user, then those
        of the second user, and so on.
    """
    all_items = read_items(request.item_files, predictor, dict(request.context))
    count = min(items, len(all_items.keys))
    chosen = torch.from_numpy(np.linspace(0, len(all_items.keys) - 1, count).round().astype(np.int64))
    side = side_of(users, predictor.spec, predictor.multi_hot, "user")
    user = torch.arange(users.num_rows).repeat_interleave(count)
    pairs = side.rows(user).plus(all_items.side.rows(chosen.repeat(users.num_rows)))
    scored: NDArray[np.float32] = predictor.probabilities(pairs.dense, pairs.categorical).numpy()
    return scored
