"""Dots of pairs against NumPy, and their gradients against autograd's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from training.interaction import PairDots


def _vectors(rows: int, count: int, dim: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, count, dim, generator=generator).requires_grad_()


@pytest.mark.parametrize("rows, count, dim", [(5, 4, 3), (1, 2, 8), (3, 1, 4), (0, 3, 2), (64, 27, 16)])
def test_each_pair_once_and_its_gradient(rows: int, count: int, dim: int) -> None:
    vectors = _vectors(rows, count, dim)
    values = vectors.detach().double().numpy()
    found = PairDots(count)(vectors)
    pairs = [(i, j) for i in range(count) for j in range(i)]
    expected = [(values[:, i] * values[:, j]).sum(1) for i, j in pairs]
    shape = (rows, count * (count - 1) // 2)
    np.testing.assert_allclose(
        found.detach().numpy(), np.stack(expected, 1) if expected else np.zeros(shape), rtol=1e-5, atol=1e-5
    )
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    [gradient] = torch.autograd.grad((found * weights).sum(), vectors)
    written_out = torch.zeros(())
    for place, (i, j) in enumerate(pairs):
        written_out = written_out + ((vectors[:, i] * vectors[:, j]).sum(1) * weights[:, place]).sum()
    if shape[1]:
        [of_autograd] = torch.autograd.grad(written_out, vectors)
        torch.testing.assert_close(gradient, of_autograd, rtol=1e-5, atol=1e-5)
    else:
        assert not gradient.any()


def test_under_autocast_both_passes_multiply_in_16_bits() -> None:
    vectors = _vectors(32, 9, 16)
    weights = torch.randn(32, 36, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        found = PairDots(9)(vectors)
    assert found.dtype == torch.bfloat16
    [gradient] = torch.autograd.grad((found.float() * weights).sum(), vectors)
    assert gradient.dtype == torch.float32
    [exact] = torch.autograd.grad((PairDots(9)(vectors) * weights).sum(), vectors)
    torch.testing.assert_close(gradient, exact, rtol=0.02, atol=0.1)


def test_the_compiler_takes_the_plain_form() -> None:
    vectors = _vectors(8, 5, 4)
    layer = PairDots(5)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(vectors), layer(vectors))
