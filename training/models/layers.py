"""Layers that several architectures share: the MLP, its dropout, and the linear part.

Notation: B rows, D dense features, C features that are ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import pairwise

import torch
from torch import Tensor, nn

from training.models.click_model import ClickModel
from training.models.factorization import FeatureSides, Part, Side, positions_by_side
from training.models.inputs import Inputs
from training.settings.shared_settings import FtrlSettings


def linear(width_in: int, width_out: int, *, bias: bool = True) -> nn.Linear:
    """Returns a layer with weights N(0, 2 / (in + out)) (Glorot and Bengio 2010, AISTATS, section 4.2.1)."""
    layer = nn.Linear(width_in, width_out, bias=bias)
    nn.init.xavier_normal_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def mlp(
    widths: Sequence[int],
    dropout: float = 0.0,
    layer: Callable[[int, int], nn.Linear] = linear,
    *,
    of_items: bool = False,
    prelu: bool = False,
) -> nn.Sequential:
    """Returns an MLP: for each pair of successive widths a `layer`, ReLU and, if `dropout` > 0, dropout.

    Args:
        widths: the width of the inputs, then the widths of the layers.
        dropout: share of the outputs of a layer that is set to 0 in training.
        layer: creates a layer from its two widths.
        of_items: whether the inputs are features of items alone; see `Dropout`.
        prelu: whether to use PReLU in place of ReLU, with one slope per output (He et al. 2015, ICCV, section
            2.1).
    """
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(widths):
        layers += [layer(width_in, width_out), nn.PReLU(width_out) if prelu else nn.ReLU()]
        if dropout:
            layers.append(Dropout(dropout, width_out, of_items=of_items))
    return nn.Sequential(*layers)


class RandomLayer(nn.Module, ABC):
    """A layer whose random numbers are independent of the number of ranks.

    The random numbers depend on seed, step and logical shard. So training with N ranks uses the same numbers
    as training with one rank, and a resumed training run uses the same numbers as an uninterrupted one.
    `Trainer` calls `draw_mask` before every step.
    """

    of_items = False

    @abstractmethod
    def draw_mask(self, key: str, shards: range, rows: Sequence[int]) -> None:
        """Prepares the random numbers of the next step.

        Args:
            key: a string that contains seed, step and layer.
            shards: the logical shards of the next batch's rows, in the order of these rows.
            rows: for each of these shards, its number of rows in the next batch.
        """


class Dropout(RandomLayer):
    """Dropout (Srivastava et al. 2014, JMLR 15) with masks that are independent of the number of ranks.

    In evaluation, nothing is dropped. In training, the remaining values are scaled by 1 / (1 - share). Masks
    are drawn before the forward pass, into memory with a fixed address. The forward pass draws no random
    numbers, so it can be compiled or recorded.

    Args:
        share: the share of the values that are dropped.
        width: number of values per row.
        of_items: whether the values depend only on features of items. With `train.loss: full_softmax`, such
            values have one row for each item of the catalogue.
    """

    mask: Tensor

    def __init__(self, share: float, width: int, *, of_items: bool = False) -> None:
        super().__init__()
        self.share = share
        self.of_items = of_items
        self.register_buffer("mask", torch.ones(1, width), persistent=False)

    def draw_mask(self, key: str, shards: range, rows: Sequence[int]) -> None:
        """Draws the factors of the next step: 0, or 1 / (1 - share). See `RandomLayer.draw_mask`."""
        if len(self.mask) != sum(rows):
            self.mask = self.mask.new_empty(sum(rows), self.mask.shape[1])
        for shard, part in zip(shards, self.mask.split(list(rows)), strict=True):
            digest = sha256(f"{key}/{shard}".encode()).digest()
            generator = torch.Generator(part.device).manual_seed(int.from_bytes(digest[:7]))
            part.bernoulli_(1 - self.share, generator=generator)
        self.mask /= 1 - self.share

    def forward(self, values: Tensor) -> Tensor:
        """Returns the values (B, width); in training, some of them are set to 0."""
        return values * self.mask if self.training else values


def in_float32(layer: nn.Module, values: Tensor) -> Tensor:
    """Returns a layer's output, computed in float32 even under mixed precision.

    Every model uses this function for its last layer, because rounding a logit between 1 and 2 to bf16
    changes it by up to 0.004.
    """
    with torch.autocast(values.device.type, enabled=False):
        return layer(values.float())


def ftrl_parts(model: nn.Module) -> dict[str, tuple[LinearPart, FtrlSettings]]:
    """Returns, by name, those linear parts of a model that FTRL trains, and their FTRL settings."""
    parts = {name: module for name, module in model.named_modules() if isinstance(module, LinearPart)}
    return {name: (part, part.ftrl) for name, part in parts.items() if part.ftrl is not None}


class LinearPart(ClickModel):
    """A linear model: logit = bias + Σ weight of each id + dense · weights.

    All weights start at zero. The weights of the ids in a list are pooled into one weight.

    Args:
        ftrl: settings of FTRL, which then trains these weights. None means that the optimizers of the model's
            other parameters train them.
    """

    def __init__(self, inputs: Inputs, ftrl: FtrlSettings | None = None) -> None:
        super().__init__()
        self.embedding = inputs.table(1, by_ftrl=ftrl is not None)
        self.weights = nn.Parameter(torch.zeros(inputs.num_dense))
        self.bias = nn.Parameter(torch.zeros(()))
        self.ftrl = ftrl

    def embed(self, categorical: Tensor) -> list[Tensor]:
        """Returns a list with one tensor, the weights of ids (B, C, 1)."""
        return [self.embedding(categorical)]

    def forward_dense(self, dense: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """Returns the logits, shape (B,), from `dense` (B, D) float32 and the weights of ids in `vectors`.

        The first D numbers of `weights` are those of the dense features.
        """
        # In mixed precision, a matrix product would be rounded to 16 bits.
        dense_sum = (dense * self.weights[: dense.shape[1]]).sum(dim=1)
        return self.bias + vectors[0].sum(dim=(1, 2)) + dense_sum

    def factorize(self, sides: FeatureSides, dtype: torch.dtype) -> FactorizedLinear:
        """Returns the linear part divided into one sum per user and one per item, always in float32."""
        return FactorizedLinear(self, sides)


class FactorizedLinear:
    """The factorization of a linear part.

    For R rows of a side (users or items), `side_part` returns the sum of the side's weighted features, (R,)
    float32. The sum of a user includes the bias.
    """

    def __init__(self, model: LinearPart, sides: FeatureSides) -> None:
        self._model = model
        self._embedded = positions_by_side(sides.embedded)

    def side_part(self, side: Side, dense: Tensor, categorical: Tensor) -> Part:
        """Returns a tuple with the side's sum, (R,) float32. See `Factorization.side_part`."""
        model = self._model
        id_sum = model.embedding(categorical)[:, self._embedded[side]].sum(dim=(1, 2))
        total = id_sum + (dense * model.weights[: dense.shape[1]]).sum(dim=1)
        return (model.bias + total if side is Side.USER else total,)

    def pair_logits(self, users: Part, items: Part) -> Tensor:
        """Returns logits (U, I). A logit is the user's sum plus the item's sum.

        See `Factorization.pair_logits`.
        """
        return users[0].unsqueeze(1) + items[0]
