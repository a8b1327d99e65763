"""Layers that several architectures share: the MLP, its dropout, and the linear part.

Notation: B rows, D dense features, C features made of ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import pairwise

import torch
from torch import Tensor, nn

from training.models.factorization import Part, Sides
from training.models.inputs import Inputs
from training.settings.ftrl import FtrlSettings


def linear(width_in: int, width_out: int, *, bias: bool = True) -> nn.Linear:
    """Weights N(0, 2 / (in + out)) (Glorot and Bengio 2010, AISTATS, section 4.2.1), biases zero."""
    layer = nn.Linear(width_in, width_out, bias=bias)
    nn.init.xavier_normal_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def mlp(
    widths: Sequence[int], dropout: float = 0.0, layer: Callable[[int, int], nn.Linear] = linear
) -> nn.Sequential:
    """Linear layers from width to width, each followed by ReLU and, above 0, dropout; `layer` makes them."""
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(widths):
        layers += [layer(width_in, width_out), nn.ReLU()]
        if dropout:
            layers.append(Dropout(dropout, width_out))
    return nn.Sequential(*layers)


class Dropout(nn.Module):
    """Dropout (Srivastava et al. 2014, JMLR 15) whose masks depend on seed, step and logical shard, not on who draws them.

    So N ranks train as one does, and a resumed training as one that was never stopped. `Trainer` calls `begin` before
    every step. While a model is evaluated nothing is dropped; values kept in training are scaled by 1 / (1 - share).
    Masks are drawn ahead of the forward pass, into memory that stays where it is, so that the pass itself draws nothing
    and may be compiled or recorded.

    Args:
        share: of the values, that are dropped.
        width: values a row.
    """

    mask: Tensor

    def __init__(self, share: float, width: int) -> None:
        super().__init__()
        self.share = share
        self.register_buffer("mask", torch.ones(1, width), persistent=False)

    def begin(self, key: str, shards: range, rows: int) -> None:
        """Draws what the next step multiplies by: 0, or 1 / (1 - share).

        Args:
            key: names seed, step and layer.
            shards: the logical shards whose rows the next batch holds, in equal parts and this order.
            rows: of the next batch.
        """
        if len(self.mask) != rows:
            self.mask = self.mask.new_empty(rows, self.mask.shape[1])
        for shard, part in zip(shards, self.mask.tensor_split(len(shards)), strict=True):
            digest = sha256(f"{key}/{shard}".encode()).digest()
            generator = torch.Generator(part.device).manual_seed(int.from_bytes(digest[:7]))
            part.bernoulli_(1 - self.share, generator=generator)
        self.mask /= 1 - self.share

    def forward(self, values: Tensor) -> Tensor:
        """(B, width) values, some of them 0 in training."""
        return values * self.mask if self.training else values


def in_float32(layer: nn.Module, values: Tensor) -> Tensor:
    """A layer's output outside of mixed precision.

    Every model's last layer is computed so: rounding a logit between 1 and 2 to bf16 alone moves it by up to 0.004.
    """
    with torch.autocast(values.device.type, enabled=False):
        return layer(values.float())


def ftrl_parts(model: nn.Module) -> dict[str, tuple[LinearPart, FtrlSettings]]:
    """The linear parts of a model that FTRL trains, by name."""
    found = {name: each for name, each in model.named_modules() if isinstance(each, LinearPart)}
    return {name: (part, part.ftrl) for name, part in found.items() if part.ftrl is not None}


class LinearPart(nn.Module):
    """logit = bias + Σ weight of each id + dense · weights, starting at zero; a list's weights are pooled.

    Args:
        ftrl: trains these weights by FTRL; without it they are trained as everything else.
    """

    def __init__(self, inputs: Inputs, ftrl: FtrlSettings | None = None) -> None:
        super().__init__()
        self.embedding = inputs.table(1, by_ftrl=ftrl is not None)
        self.weights = nn.Parameter(torch.zeros(inputs.num_dense))
        self.bias = nn.Parameter(torch.zeros(()))
        self.ftrl = ftrl

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Logits (B,) of dense (B, D) float32 and categorical (B, W) int64."""
        of_dense = (dense * self.weights).sum(
            dim=1
        )  # a product of matrices would be rounded in mixed precision
        return self.bias + self.embedding(categorical).sum(dim=(1, 2)) + of_dense

    def split(self, sides: Sides, dtype: torch.dtype) -> LinearSplit:
        """A sum of the sides' own sums, in float32 whatever `dtype` is."""
        return LinearSplit(self, sides)


class LinearSplit:
    """A linear part cut by side: one number a user, the bias in it, and one an item."""

    def __init__(self, model: LinearPart, sides: Sides) -> None:
        self._model = model
        self._features = {side: Sides.places(sides.features, side) for side in (True, False)}

    def user_part(self, dense: Tensor, categorical: Tensor) -> Part:
        """((R,) float32,)."""
        return (self._model.bias + self._sum(dense, categorical, side=True),)

    def item_part(self, dense: Tensor, categorical: Tensor) -> Part:
        """((R,) float32,)."""
        return (self._sum(dense, categorical, side=False),)

    def _sum(self, dense: Tensor, categorical: Tensor, *, side: bool) -> Tensor:
        of_ids = self._model.embedding(categorical)[:, self._features[side]].sum(dim=(1, 2))
        return of_ids + (dense * self._model.weights[: dense.shape[1]]).sum(dim=1)

    def pair_part(self, users: Part, items: Part) -> Tensor:
        """(U, I) of (U,) and (1|U, I)."""
        return users[0].unsqueeze(1) + items[0]
