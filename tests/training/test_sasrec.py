"""SASRec against a forward pass in NumPy. test_sequence_models.py has the tests of all models over sequences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from storage.feature_spec import PAD_ID
from tests.training.sequence_models import ITEMS, PLAIN, inputs_of, norm, randomised


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
    model = randomised("sasrec", PLAIN, heads=heads)
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
