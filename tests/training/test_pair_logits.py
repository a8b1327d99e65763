"""The compiled logits of pairs are those of NumPy, with each processor's instructions and any widths."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.models.factorization import DenseLayer, LayersAfterFirst
from training.models.shared_items import ItemInputs, PairLogits, UserBlock
from training.native.library import AVX2, AVX512, BEST, EVERYWHERE

INSTRUCTIONS = (BEST, EVERYWHERE, AVX2, AVX512)
Doubles = NDArray[np.float64]


def activated(values: Doubles, slopes: Tensor | None) -> Doubles:
    factor = 0.0 if slopes is None else slopes.numpy()
    return np.where(values > 0, values, values * factor)


def outputs(first: Doubles, mlp: LayersAfterFirst, *, ends_in_logit: bool) -> Doubles:
    """What an MLP gives for the sums of its first layer."""
    if not mlp.layers and ends_in_logit:
        return first[..., 0]
    values = activated(first, mlp.slopes)
    for number, layer in enumerate(mlp.layers):
        values = values @ layer.weight.double().numpy() + (0 if layer.bias is None else layer.bias.numpy())
        if not (ends_in_logit and number == len(mlp.layers) - 1):
            values = activated(values, layer.slopes)
    return values[..., 0] if ends_in_logit else values


def expected(
    items: ItemInputs, block: UserBlock, top: LayersAfterFirst, bottom: LayersAfterFirst | None
) -> Doubles:
    users, hidden = block.share.shape
    first = block.share.double().numpy()[:, None] + items.share.double().numpy()[None]
    if items.numbers is not None and block.table is not None:
        table = block.table.double().numpy().reshape(-1, users, hidden)
        first = first + table[items.numbers.numpy()].sum(1).transpose(1, 0, 2)
    if items.vectors is not None and block.matrix is not None:
        matrix = block.matrix.double().numpy().reshape(-1, users, hidden)
        first = first + np.einsum("ik,kuh->uih", items.vectors.double().numpy(), matrix)
    if bottom is not None:
        assert block.bottom_share is not None
        assert items.bottom_share is not None
        assert block.bottom is not None
        assert items.bottom is not None
        sums = block.bottom_share.double().numpy()[:, None] + items.bottom_share.double().numpy()[None]
        values = outputs(sums, bottom, ends_in_logit=False)
        first = first + np.einsum("uie,ieh->uih", values, items.bottom.double().numpy())
        first = first + np.einsum("uie,ueh->uih", values, block.bottom.double().numpy())
    return outputs(first, top, ends_in_logit=True)


class Draw:
    """Random inputs of a shape that follows from the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.numbers = np.random.default_rng(seed)
        self.users, self.items = self.width(1, 9), self.width(1, 30)
        self.layers = self.width(0, 3)
        self.hidden = self.width(1, 70) if self.layers else 1

    def width(self, least: int, most: int) -> int:
        return int(self.numbers.integers(least, most + 1))

    def tensor(self, *shape: int) -> Tensor:
        return torch.tensor(self.numbers.normal(size=shape) / 3, dtype=torch.float32)

    def maybe(self, *shape: int) -> Tensor | None:
        return self.tensor(*shape) if self.numbers.random() < 0.5 else None

    def mlp(self, first: int, widths: list[int]) -> LayersAfterFirst:
        layers = []
        for inputs, outputs in zip([first, *widths], widths, strict=False):
            layers.append(DenseLayer(self.tensor(inputs, outputs), self.maybe(outputs), self.maybe(outputs)))
        return LayersAfterFirst(self.maybe(first), layers)

    def problem(self) -> tuple[ItemInputs, UserBlock, LayersAfterFirst, LayersAfterFirst | None]:
        few, values, many = self.width(0, 4), self.width(1, 6), self.width(0, 20)
        numbers = torch.tensor(self.numbers.integers(0, values, (self.items, few)))
        widths = [self.width(1, 50) for _ in range(self.layers - 1)] + [1] * (self.layers > 0)
        top = self.mlp(self.hidden, widths)
        bottom, first, dim = None, self.width(1, 40), self.width(1, 20)
        if self.numbers.random() < 0.6:
            below = [self.width(1, 40) for _ in range(self.width(0, 1))]
            bottom = self.mlp(first, [*below, dim]) if self.width(0, 3) else self.mlp(dim, [])
            first = first if bottom.layers else dim
        width = self.users * self.hidden
        has_bottom = bottom is not None
        items = ItemInputs(
            self.tensor(self.items, self.hidden),
            numbers if few else None,
            self.tensor(self.items, many) if many else None,
            self.tensor(self.items, first) if has_bottom else None,
            self.tensor(self.items, dim, self.hidden) if has_bottom else None,
        )
        block = UserBlock(
            self.tensor(self.users, self.hidden),
            self.tensor(values, width) if few else None,
            self.tensor(many, width) if many else None,
            self.tensor(self.users, first) if has_bottom else None,
            self.tensor(self.users, dim, self.hidden) if has_bottom else None,
        )
        return items, block, top, bottom


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("seed", range(60))
def test_logits_are_those_of_numpy(seed: int, instructions: int) -> None:
    draw = Draw(seed)
    items, block, top, bottom = draw.problem()
    whole = torch.full((draw.users + 1, draw.items + 3), 7.0)
    logits = whole[:-1, 2:-1]  # rows that are not adjacent
    PairLogits(items, top, bottom, instructions).fill(logits, block, slice(0, draw.items))
    np.testing.assert_allclose(logits.numpy(), expected(items, block, top, bottom), rtol=2e-4, atol=2e-4)
    assert (whole[-1] == 7).all()
    assert (whole[:, :2] == 7).all()
    assert (whole[:, -1] == 7).all()


def large_problem() -> Draw:
    """The first draw with several users and items, and a bottom MLP."""
    draws = map(Draw, range(99))
    return next(Draw(d.seed) for d in draws if d.users > 2 and d.items > 9 and d.problem()[3] is not None)


def test_a_range_of_items_has_the_logits_of_its_items() -> None:
    draw = large_problem()
    items, block, top, bottom = draw.problem()
    pairs = PairLogits(items, top, bottom)
    every, some = torch.empty(draw.users, draw.items), torch.empty(draw.users, 5)
    pairs.fill(every, block, slice(0, draw.items))
    pairs.fill(some, block, slice(4, 9))
    torch.testing.assert_close(some, every[:, 4:9])


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("where", ["user", "item", "bottom"])
def test_nan_stays_nan(instructions: int, where: str) -> None:
    draw = large_problem()
    items, block, top, bottom = draw.problem()
    assert items.bottom_share is not None
    if where == "user":
        block.share[1, 0] = torch.nan
    else:
        (items.share if where == "item" else items.bottom_share)[3, 0] = torch.nan
    logits = torch.empty(draw.users, draw.items)
    PairLogits(items, top, bottom, instructions).fill(logits, block, slice(0, draw.items))
    wrong = logits.isnan()
    assert (wrong[1] if where == "user" else wrong[:, 3]).all()
    assert wrong.sum() == (draw.items if where == "user" else draw.users)


def test_tensors_of_another_type_or_shape_are_refused() -> None:
    draw = large_problem()
    items, block, top, bottom = draw.problem()
    doubles = UserBlock(block.share.double(), block.table, block.matrix, block.bottom_share, block.bottom)
    with pytest.raises(TypeError, match="float64"):
        PairLogits(items, top, bottom).fill(
            torch.empty(draw.users, draw.items), doubles, slice(0, draw.items)
        )
    with pytest.raises(ValueError, match="logits of the shape"):
        PairLogits(items, top, bottom).fill(torch.empty(draw.users, 5), block, slice(0, draw.items))
