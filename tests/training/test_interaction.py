"""DLRM's interaction and dots of pairs against NumPy, and their gradients against those of autograd."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from training.models import interaction
from training.models.interaction import PairDots, interact
from training.native.library import AVX2, AVX512, BEST, EVERYWHERE

CASES = [(5, 4, 3), (1, 2, 8), (3, 1, 4), (0, 3, 2), (67, 26, 16)]


def _drawn(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).requires_grad_()


def _written_out(bottom: Tensor | None, embedded: Tensor) -> Tensor:
    vectors = list(embedded.unbind(1))
    if bottom is not None:
        vectors.insert(0, bottom)
    dots = [(vectors[i] * vectors[j]).sum(1, keepdim=True) for i in range(len(vectors)) for j in range(i)]
    return torch.cat([embedded.new_empty(len(embedded), 0) if bottom is None else bottom, *dots], dim=1)


@pytest.mark.parametrize("rows, count, dim", CASES)
def test_each_pair_once(rows: int, count: int, dim: int) -> None:
    vectors = _drawn(rows, count, dim)
    values = vectors.detach().double().numpy()
    expected = [(values[:, i] * values[:, j]).sum(1) for i in range(count) for j in range(i)]
    nothing = np.zeros((rows, 0))
    result = PairDots(count)(vectors).detach().numpy()
    np.testing.assert_allclose(result, np.stack(expected, 1) if expected else nothing, rtol=1e-5, atol=1e-5)


def test_training_after_scoring_in_one_process() -> None:
    """The first call is under inference mode, with numbers that no other test uses, so nothing is cached."""
    with torch.inference_mode():
        PairDots(11)
        interact(None, torch.ones(2, 11, 3))
    vectors = _drawn(2, 11, 3)
    PairDots(11)(vectors).sum().backward()
    interact(None, vectors).sum().backward()
    others = vectors.detach().sum(1, keepdim=True) - vectors.detach()
    torch.testing.assert_close(vectors.grad, 2 * others)


@pytest.mark.parametrize("with_bottom", [True, False])
@pytest.mark.parametrize("tile", [None, 2**20, 200, 1], ids=lambda numbers: f"tiles of {numbers}")
@pytest.mark.parametrize("rows, count, dim", CASES)
def test_the_interaction_and_its_gradients(
    monkeypatch: pytest.MonkeyPatch, rows: int, count: int, dim: int, tile: int | None, with_bottom: bool
) -> None:
    """Compiled (None), or by torch with tiles of any size, of which the last may be smaller."""
    if tile is not None:
        monkeypatch.setattr(interaction, "library", lambda: None)
        monkeypatch.setattr(interaction, "_TILE_NUMBERS", tile)
    embedded = _drawn(rows, count, dim)
    bottom = _drawn(rows, dim) if with_bottom else None
    inputs = [embedded] if bottom is None else [embedded, bottom]
    result, expected = interact(bottom, embedded), _written_out(bottom, embedded)
    torch.testing.assert_close(result, expected)
    weights = _drawn(*result.shape).detach()
    if result.requires_grad and result.shape[1]:
        gradients = torch.autograd.grad((result * weights).sum(), inputs)
        of_autograd = torch.autograd.grad((expected * weights).sum(), inputs, allow_unused=True)
        for mine, other in zip(gradients, of_autograd, strict=True):
            torch.testing.assert_close(mine, torch.zeros_like(mine) if other is None else other)


@pytest.mark.parametrize("instructions", [BEST, EVERYWHERE, AVX2, AVX512])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(0, 40),
    count=st.integers(0, 70),
    dim=st.integers(1, 40),
    with_bottom=st.booleans(),
    threads=st.integers(1, 3),
)
def test_the_compiled_interaction_of_any_shape(
    instructions: int, rows: int, count: int, dim: int, with_bottom: bool, threads: int
) -> None:
    """With each processor's instructions and several threads, it is that of NumPy in double precision."""
    assume(count or with_bottom)
    generator = torch.Generator().manual_seed(rows + 100 * count + 10_000 * dim)
    bottom = torch.randn(rows, dim if with_bottom else 0, generator=generator)
    embedded = torch.randn(rows, count, dim, generator=generator)
    with (
        patch.multiple(interaction, _PRODUCTS_OF_A_THREAD=1),
        patch("torch.get_num_threads", lambda: threads),
    ):
        result = interaction.compiled_interaction(bottom, embedded, instructions)
        gradient = torch.randn(result.shape, generator=generator)
        gradients = interaction.compiled_interaction_backward(bottom, embedded, gradient, instructions)
    first = bottom.double().numpy()
    vectors = np.concatenate([first[:, None]] * with_bottom + [embedded.double().numpy()], axis=1)
    dots = vectors @ vectors.transpose(0, 2, 1)
    row, column = np.tril_indices(vectors.shape[1], -1)
    np.testing.assert_allclose(result, np.concatenate([first, dots[:, row, column]], 1), rtol=1e-4, atol=1e-4)
    of_pairs = np.zeros_like(dots)
    of_pairs[:, row, column] = of_pairs[:, column, row] = gradient[:, first.shape[1] :]
    expected = of_pairs @ vectors
    if with_bottom:
        expected[:, 0] += gradient[:, :dim].numpy()
        np.testing.assert_allclose(gradients[0], expected[:, 0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gradients[1], expected[:, int(with_bottom) :], rtol=1e-4, atol=1e-4)


def test_inputs_with_gaps_give_the_same() -> None:
    bottom, embedded = _drawn(9, 8).detach(), _drawn(9, 5, 8).detach()
    gradient = _drawn(9, 23).detach()
    apart = [torch.stack([tensor, tensor], -1)[..., 0] for tensor in (bottom, embedded, gradient)]
    assert not any(tensor.is_contiguous() for tensor in apart)
    assert torch.equal(interact(*apart[:2]), interact(bottom, embedded))
    mine = interaction.tiled_interaction_backward(*apart)
    for one, other in zip(
        mine, interaction.tiled_interaction_backward(bottom, embedded, gradient), strict=True
    ):
        assert torch.equal(one, other)


def test_other_types_than_float32_are_not_compiled() -> None:
    embedded = _drawn(4, 3, 2).detach().double()
    result = interact(None, embedded)
    assert result.dtype == torch.float64
    torch.testing.assert_close(result, _written_out(None, embedded))
    with pytest.raises(TypeError, match="float64"):
        interaction.compiled_interaction(embedded[:, 0], embedded)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 0.02), (torch.float16, 0.003)])
def test_under_autocast_both_passes_multiply_in_16_bits(dtype: torch.dtype, tolerance: float) -> None:
    bottom, embedded = _drawn(32, 16), _drawn(32, 9, 16)
    with torch.autocast("cpu", dtype):
        result = interact(bottom, embedded)
    assert result.dtype == dtype
    exact = interact(bottom, embedded)
    assert not torch.equal(result.float(), exact)
    torch.testing.assert_close(result.float(), exact, rtol=tolerance, atol=5 * tolerance)
    weights = _drawn(*exact.shape).detach()
    gradients = torch.autograd.grad((result.float() * weights).sum(), [bottom, embedded])
    expected = torch.autograd.grad((exact * weights).sum(), [bottom, embedded])
    for mine, other in zip(gradients, expected, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=10 * tolerance)


def test_the_bottom_may_be_16_bits_already() -> None:
    """As an MLP under autocast leaves it."""
    bottom = _drawn(8, 4).detach().bfloat16().requires_grad_()
    embedded = _drawn(8, 3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        result = interact(bottom, embedded)
    gradients = torch.autograd.grad(result.float().sum(), [bottom, embedded])
    assert [gradient.dtype for gradient in gradients] == [torch.bfloat16, torch.float32]


def test_the_compiler_takes_it_as_one_operator() -> None:
    bottom, embedded = _drawn(8, 4), _drawn(8, 5, 4)
    compiled = torch.compile(interact, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(bottom, embedded), interact(bottom, embedded))
    gradients = torch.autograd.grad(compiled(bottom, embedded).square().sum(), [bottom, embedded])
    expected = torch.autograd.grad(interact(bottom, embedded).square().sum(), [bottom, embedded])
    for mine, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, other)


def test_torch_approves_of_the_operator() -> None:
    """Its shapes, its declared effects and its gradients, as torch checks them itself."""
    torch.library.opcheck(
        interaction.tiled_interaction, (_drawn(6, 4), _drawn(6, 3, 4), torch.float32), raise_exception=True
    )
