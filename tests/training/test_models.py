"""Architectures against forward passes written in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from conf.errors import ConfigError
from conf.types import ModelConfig
from tests.training.feature_tables import make_spec, random_rows
from training.models import build_model, known_architectures

SMALL = ModelConfig(architecture="dlrm", embedding_dim=4, bottom_mlp=[8, 4], top_mlp=[6, 5])


def numpy_dlrm(state: dict[str, NDArray], dense: NDArray, ids: NDArray, cardinalities: list[int]) -> NDArray:
    """DLRM row by row, pair by pair."""

    def mlp(values: NDArray, prefix: str) -> NDArray:
        layers = sorted({int(name.split(".")[1]) for name in state if name.startswith(f"{prefix}.")})
        for layer in layers:
            values = np.maximum(
                state[f"{prefix}.{layer}.weight"] @ values + state[f"{prefix}.{layer}.bias"], 0
            )
        return values

    logits = []
    for row in range(len(dense)):
        vectors = []
        if dense.shape[1]:
            vectors.append(mlp(dense[row], "bottom"))
        for column in range(len(cardinalities)):
            vectors.append(state["embedding.weight"][sum(cardinalities[:column]) + ids[row, column]])
        pairs = [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)]
        first = vectors[0] if dense.shape[1] or not pairs else np.zeros(0)
        top = mlp(np.concatenate([first, pairs]), "top")
        logits.append(float((state["logit.weight"] @ top + state["logit.bias"])[0]))
    return np.array(logits)


@pytest.mark.parametrize(
    "num_dense, cardinalities", [(3, [5, 7, 4]), (0, [5, 7, 4]), (3, []), (0, [6]), (1, [3])]
)
def test_dlrm_equals_numpy(num_dense: int, cardinalities: list[int]) -> None:
    spec = make_spec(num_dense, cardinalities)
    rows = random_rows(spec, 9, seed=1)
    model = build_model(SMALL, spec, seed=3)
    state = {name: value.numpy().astype(np.float64) for name, value in model.state_dict().items()}
    with torch.no_grad():
        found = model(torch.from_numpy(rows.dense), torch.from_numpy(rows.categorical).long())
    assert found.shape == (9,)
    assert found.dtype == torch.float32
    expected = numpy_dlrm(state, rows.dense.astype(np.float64), rows.categorical, cardinalities)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_dense, cardinalities", [(3, [5, 7]), (0, [5]), (3, [])])
def test_logistic_regression_is_linear(num_dense: int, cardinalities: list[int]) -> None:
    spec = make_spec(num_dense, cardinalities)
    rows = random_rows(spec, 9, seed=1)
    model = build_model(ModelConfig(architecture="logistic_regression"), spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
        found = model(torch.from_numpy(rows.dense), torch.from_numpy(rows.categorical).long()).numpy()
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    starts = np.cumsum([0, *cardinalities])
    expected = state["bias"] + rows.dense @ state["weights"]
    for column in range(len(cardinalities)):
        expected = expected + state["embedding.weight"][starts[column] + rows.categorical[:, column], 0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_initialisation_is_the_papers() -> None:
    spec = make_spec(512, [10_000, 16])
    config = ModelConfig(architecture="dlrm", embedding_dim=256, bottom_mlp=[512, 256], top_mlp=[64])
    model = build_model(config, spec)
    large, small = model.embedding.columns()
    assert float(large.abs().max()) <= 1 / 100
    assert float(large.std()) == pytest.approx(1 / 100 / 3**0.5, rel=0.02)
    assert float(small.abs().max()) <= 1 / 4
    first = model.bottom[0]
    assert float(first.weight.detach().std()) == pytest.approx((2 / 1024) ** 0.5, rel=0.02)
    assert float(first.bias.detach().std()) == pytest.approx((1 / 512) ** 0.5, rel=0.15)


def test_seed_decides_the_weights_and_leaves_the_callers_generator_alone() -> None:
    spec = make_spec(2, [5])
    torch.manual_seed(99)
    before = torch.get_rng_state()
    one, same, other = (build_model(SMALL, spec, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["embedding.weight"], other["embedding.weight"])


def test_unknown_architectures_and_layers_that_do_not_fit_are_named() -> None:
    assert {"dlrm", "logistic_regression"} <= set(known_architectures())
    with pytest.raises(ConfigError, match=r"architecture='dcn' does not exist; known: \[.*'dlrm'"):
        build_model(ModelConfig(architecture="dcn"), make_spec(1, [3]))
    with pytest.raises(ConfigError, match=r"bottom_mlp=\[8, 5\] must end in embedding_dim=4"):
        build_model(ModelConfig(architecture="dlrm", embedding_dim=4, bottom_mlp=[8, 5]), make_spec(1, [3]))
    with pytest.raises(ConfigError, match="no features"):
        build_model(SMALL, make_spec(0, []))
