"""Layers that several architectures share: the MLP, its dropout, and the linear part.

Notation: B rows, D dense features, C features made of ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from conf.types import PositiveInt
from training.inputs import Inputs
from training.optimizers.ftrl import FtrlSettings

HiddenWidths = Annotated[list[PositiveInt], Field(min_length=1)]
DropShare = Annotated[float, Field(ge=0, lt=1)]


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
            layers.append(Dropout(dropout))
    return nn.Sequential(*layers)


class Dropout(nn.Module):
    """Dropout (Srivastava et al. 2014, JMLR 15) whose masks depend on seed, step and logical shard, not on who draws them.

    So N ranks train as one does, and a resumed training as one that was never stopped. `Trainer` calls `begin` before
    every step. While a model is evaluated nothing is dropped; values kept in training are scaled by 1 / (1 - share).
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self._key = ""
        self._shards = range(1)

    def begin(self, key: str, shards: range) -> None:
        """Sets what the next masks follow from.

        Args:
            key: names seed, step and layer.
            shards: the logical shards whose rows the next batch holds, in equal parts and this order.
        """
        self._key, self._shards = key, shards

    def forward(self, values: Tensor) -> Tensor:
        """(B, …) values, some of them 0 in training."""
        if not self.training:
            return values
        mask = torch.empty_like(values)
        for shard, part in zip(self._shards, mask.tensor_split(len(self._shards)), strict=True):
            digest = sha256(f"{self._key}/{shard}".encode()).digest()
            generator = torch.Generator(values.device).manual_seed(int.from_bytes(digest[:7]))
            part.bernoulli_(1 - self.share, generator=generator)
        return values * mask / (1 - self.share)


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
        return self.bias + self.embedding(categorical).sum(dim=(1, 2)) + dense @ self.weights
