"""HSTU against a forward pass in NumPy, with and without ages; refused settings of ages.

test_sequence_models.py has the tests of all models over sequences, test_timelines.py those of shared histories.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from conf.errors import ConfigError
from conf.types import ModelConfig
from storage.feature_spec import PAD_ID, Feature, FeatureSpec
from tests.training.sequence_models import ITEMS, PLACES, PLAIN, config, inputs_of, norm, randomised
from tests.training.test_timelines import draw_masks, histories_of
from training.models import build_model
from training.settings import Features, check_model

NUM_AGES = 7
AGES = Feature("ages", "multi_hot", "list<int32>", "user", NUM_AGES)
AGED = replace(PLAIN, features=(*PLAIN.features, AGES))
READS_AGES = {
    "ages": "ages",
    "multi_hot": {"lengths": {"history": PLACES, "ages": PLACES}, "max_length": 3},
}


def silu(x: NDArray) -> NDArray:
    return x / (1 + np.exp(-x))


def attention_norm(x: NDArray, state: dict[str, NDArray], name: str) -> NDArray:
    """Layer normalization with the constant 1 / L², because weights are divided by L."""
    centred = x - x.mean()
    return (
        centred / np.sqrt((centred**2).mean() + PLACES**-2) * state[f"{name}.weight"] + state[f"{name}.bias"]
    )


def encoded(
    state: dict[str, NDArray], items: list[int], ages: list[int], rows: NDArray, blocks: int, heads: int
) -> NDArray:
    """Equations 1 to 3 of the paper for one history, oldest item first, with every place computed.

    Args:
        ages: the id of the age of each item; empty if the model reads no ages.
        rows: (items, E) the table's rows of the item's feature.
    """
    if not items:
        return state["no_history"]
    dim, length = rows.shape[1], len(items)
    x, width = [np.sqrt(dim) * rows[item] for item in items], dim // heads
    for b in range(blocks):
        name, y = f"blocks.{b}", []
        normed = [norm(vector, state, f"{name}.norm") for vector in x]
        u, v, q, k = (
            [silu(state[f"{name}.{part}.weight"] @ vector) for vector in normed]
            for part in ("gate", "value", "query", "key")
        )
        for t in range(length):
            pooled = np.zeros(dim)
            for head in range(heads):
                part = slice(head * width, (head + 1) * width)
                for s in range(t + 1):
                    bias = state[f"{name}.distance_bias"][t - s]
                    if ages:
                        bias = bias + state[f"{name}.age_bias"][ages[t], ages[s]]
                    pooled[part] += silu(q[t][part] @ k[s][part] + bias) / PLACES * v[s][part]
            gated = attention_norm(pooled, state, f"{name}.attention_norm") * u[t]
            y.append(x[t] + state[f"{name}.out.weight"] @ gated + state[f"{name}.out.bias"])
        x = y
    return norm(x[-1], state, "norm")


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("spec, settings", [(PLAIN, {}), (AGED, READS_AGES)], ids=["order", "ages"])
def test_logits_equal_the_papers_equations(spec: FeatureSpec, settings: dict[str, Any], heads: int) -> None:
    model = randomised("hstu", spec, heads=heads, **settings)
    state = {key: value.numpy().astype(np.float64) for key, value in model.state_dict().items()}
    rng = np.random.default_rng(1)
    dense, categorical = inputs_of(PLAIN, 25, seed=1)
    of_rows = [[int(id_) for id_ in row if id_ != PAD_ID] for row in categorical[:, 1:]]
    ages = torch.zeros(25, PLACES, dtype=torch.int64)
    if settings:
        ages = torch.from_numpy(rng.integers(1, NUM_AGES, (25, PLACES))) * (categorical[:, 1:] != PAD_ID)
        categorical = torch.cat([categorical, ages], dim=1)
    rows, expected = state["embedding.weight"][:ITEMS], []
    for item, history, own in zip(categorical[:, 0].tolist(), of_rows, ages.tolist(), strict=True):
        oldest_first = own[: len(history)][::-1] if settings else []
        u = encoded(state, history[::-1], oldest_first, rows, 2, heads)
        expected.append(u @ rows[item] + state["bias"])
    with torch.no_grad():
        logits = model(dense, categorical)
        one_by_one = torch.cat([model(dense[:1], categorical[row : row + 1]) for row in range(25)])
    assert np.std(expected) > 0.1
    assert [] in of_rows  # one user has no history
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(one_by_one, logits, rtol=1e-5, atol=1e-5)


def test_no_place_sees_a_newer_item_or_padding() -> None:
    """The outputs stay equal to the bit."""
    block = randomised("hstu", AGED, **READS_AGES).blocks[0]
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(1, PLACES, 8, generator=generator)
    ages = torch.randint(1, NUM_AGES, (1, PLACES), generator=generator)
    is_item = torch.arange(PLACES).unsqueeze(0) < PLACES - 1
    for changed_place in range(PLACES):
        changed, changed_ages = values.clone(), ages.clone()
        changed[0, changed_place] += 1
        changed_ages[0, changed_place] = 1 + ages[0, changed_place] % (NUM_AGES - 1)
        with torch.no_grad():
            before = block(values, is_item, None, PLACES, ages)
            after = block(changed, is_item, None, PLACES, changed_ages)
        equal = (before[0] == after[0]).all(dim=1).tolist()
        if changed_place == PLACES - 1:  # padding
            assert all(equal[:-1])
        else:
            assert equal == [place > changed_place for place in range(PLACES)]


def test_ages_of_shared_histories_are_those_of_rows_alone() -> None:
    """Logits and gradients, with ages that differ between the rows of a timeline."""
    histories = histories_of(30, 9, seed=2)
    rng = np.random.default_rng(2)
    ages = rng.integers(1, NUM_AGES, histories.shape) * (histories != PAD_ID)
    items = rng.integers(1, ITEMS, (len(histories), 1))
    categorical = torch.from_numpy(np.concatenate([items, histories, ages], axis=1))
    model = randomised("hstu", AGED, blocks=1, heads=2, **READS_AGES).train()
    results = []
    for shared in (False, True):
        model.zero_grad()
        model.shares_histories = shared
        draw_masks(model, range(2), [40, len(categorical) - 40])
        logits = model(torch.zeros(len(categorical), 0), categorical)
        (logits * torch.linspace(-1, 1, len(logits))).sum().backward()
        model.embedding.take_gradient()
        gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
        results.append({"logits": logits.detach(), **gradients})
    alone, of_timelines = results
    assert "blocks.0.age_bias" in alone
    for name, value in alone.items():
        torch.testing.assert_close(of_timelines[name], value, rtol=1e-4, atol=1e-4, msg=name)


def test_ages_change_logits_and_their_biases_are_trained() -> None:
    """The feature `ages` has no vectors: it changes nothing but the weights of attention."""
    model = randomised("hstu", AGED, **READS_AGES).train()
    draw_masks(model, range(1), [20])
    dense, categorical = inputs_of(PLAIN, 20, seed=6)
    ages = torch.from_numpy(np.random.default_rng(3).integers(1, NUM_AGES, (20, PLACES)))
    assert len(model.embedding.weight) == ITEMS + 2  # the items, and padding of both lists
    first = model(dense, torch.cat([categorical, ages], dim=1))
    other = model(dense, torch.cat([categorical, 1 + ages % (NUM_AGES - 1)], dim=1))
    lengths = (categorical[:, 1:] != PAD_ID).sum(dim=1)
    assert torch.equal(first[lengths == 0], other[lengths == 0])
    assert not torch.isclose(first[lengths > 0], other[lengths > 0]).any()
    first.square().mean().backward()
    for block in model.blocks:
        assert block.age_bias.grad.abs().max() > 0


@pytest.mark.parametrize(
    "settings, spec, message",
    [
        (
            READS_AGES,
            replace(AGED, features=(*PLAIN.features, replace(AGES, scope="item"))),
            "the scope of ages is item, .*needs the scope user",
        ),
        (
            {"ages": "ages"},
            AGED,
            f"ages have the length 3, but lists of the history have the length {PLACES}(.|\n)*the same length",
        ),
    ],
)
def test_ages_that_do_not_fit_the_history_are_refused(
    settings: dict[str, Any], spec: FeatureSpec, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model(config("hstu", **settings), spec)


def test_ages_that_are_no_feature_are_refused_before_a_job_runs() -> None:
    model = ModelConfig.model_validate({"architecture": "hstu", "ages": "ages"})
    check_model(model, Features(ids=["item_id"], lists=["history", "ages"], items=["item_id"]))
    with pytest.raises(ConfigError, match=r"model.ages='ages' is not a feature of kind multi_hot"):
        check_model(model, Features(ids=["item_id"], lists=["history"], items=["item_id"]))
