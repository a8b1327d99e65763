"""BERT4Rec against a forward pass in NumPy. test_sequence_models.py has the tests of all models over sequences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from storage.feature_spec import PAD_ID
from tests.training.sequence_models import ITEMS, PLACES, PLAIN, inputs_of, norm, randomised


def gelu(x: NDArray) -> NDArray:
    """x Φ(x), where Φ is the distribution function of the standard normal distribution."""
    return np.array([value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in x])


def encoded(state: dict[str, NDArray], items: list[int], rows: NDArray, blocks: int, heads: int) -> NDArray:
    """Equations 1 to 6 of the paper and the first half of equation 7, for one history, oldest item first.

    Args:
        rows: (items, E) the table's rows of the item's feature.
    """
    dim = rows.shape[1]
    sequence = [*(rows[item] for item in items), state["mask"]]  # the mask comes after the history
    x = [vector + state["places"][len(sequence) - 1 - t] for t, vector in enumerate(sequence)]
    width = dim // heads
    for b in range(blocks):
        name, outputs = f"blocks.{b}", []
        for t in range(len(x)):
            parts = []
            for head in range(heads):
                own = slice(head * width, (head + 1) * width)
                q, ks, vs = (
                    [(state[f"{name}.{matrix}.weight"] @ vector)[own] for vector in vectors]
                    for matrix, vectors in (("query", [x[t]]), ("key", x), ("value", x))
                )
                weights = np.exp([q[0] @ k / np.sqrt(width) for k in ks])
                parts.append(sum(w * v for w, v in zip(weights / weights.sum(), vs, strict=True)))
            attended = state[f"{name}.out.weight"] @ np.concatenate(parts)
            a = norm(x[t] + attended, state, f"{name}.attention_norm")
            hidden = gelu(state[f"{name}.inner.weight"] @ a + state[f"{name}.inner.bias"])
            assert len(hidden) == 4 * dim
            outer = state[f"{name}.outer.weight"] @ hidden + state[f"{name}.outer.bias"]
            outputs.append(norm(a + outer, state, f"{name}.mlp_norm"))
        x = outputs
    return gelu(state["projection.weight"] @ x[-1] + state["projection.bias"])


@pytest.mark.parametrize("heads", [1, 2])
def test_logits_equal_the_papers_equations(heads: int) -> None:
    model = randomised("bert4rec", PLAIN, heads=heads)
    state = {key: value.numpy().astype(np.float64) for key, value in model.state_dict().items()}
    dense, categorical = inputs_of(PLAIN, 25, seed=1)
    rows, biases = state["embedding.weight"][:ITEMS], state["item_bias.weight"][:ITEMS, 0]
    expected = []
    for item, *history in categorical.tolist():
        newest_first = [id_ for id_ in history if id_ != PAD_ID]
        u = encoded(state, newest_first[::-1], rows, 2, heads)
        expected.append(u @ rows[item] + biases[item])
    with torch.no_grad():
        logits = model(dense, categorical)
    assert np.std(expected) > 0.1
    assert any(not history.any() for history in categorical[:, 1:])  # one user has no history
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_a_place_attends_to_newer_items_too() -> None:
    """The state of the oldest item after a block depends on the newest one, and the mask is attended to."""
    model = randomised("bert4rec", PLAIN)
    block, generator = model.blocks[0], torch.Generator().manual_seed(0)
    values = torch.randn(1, PLACES + 1, 8, generator=generator)
    is_visible = torch.ones(1, PLACES + 1, dtype=torch.bool)
    for changed_place in (0, 1):
        changed = values.clone()
        changed[0, changed_place] += 1
        with torch.no_grad():
            before, after = (block(inputs, is_visible, None, PLACES + 1) for inputs in (values, changed))
        assert float((before[0, -1] - after[0, -1]).abs().max()) > 1e-3


def test_padding_influences_no_place() -> None:
    model = randomised("bert4rec", PLAIN)
    values = torch.randn(1, PLACES + 1, 8, generator=torch.Generator().manual_seed(0))
    is_visible = torch.arange(PLACES + 1).unsqueeze(0) < 3
    changed = values.clone()
    changed[0, 3:] += 1
    with torch.no_grad():
        before, after = (model.blocks[0](inputs, is_visible, None, 3) for inputs in (values, changed))
    assert torch.equal(before, after)
