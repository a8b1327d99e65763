"""Wide & Deep (Cheng et al. 2016, arXiv:1606.07792): a linear model and an MLP whose logits are added.

    P(click) = σ(w_wideᵀ[x, φ(x)] + w_deepᵀ a^(l_f) + b)        (equation 3)
    a^(l+1) = ReLU(W^(l) a^(l) + b^(l))                         (equation 2; a^(0) holds the embeddings and dense features)

φ(x), the products of features (equation 1), are the wide part's alone, as in the paper: the setting `crosses` names them. Made in
build_features by `hashed_cross` they would be features like any other, and both parts would see them.

Notation: B rows, D dense features, C features made of ids, W columns of ids, E embedding_dim, P products.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional

from conf.errors import ConfigError
from conf.types import Names, PositiveInt, Strict
from training.embedding.counters import scattered
from training.inputs import Inputs
from training.layers import DropShare, HiddenWidths, LinearPart, in_float32, linear, mlp
from training.optimizers.ftrl import FtrlSettings


class Crosses(Strict):
    """The products of every feature of `left` with every one of `right`: features of one id, by name.

    `buckets`: weights of a product. The weight of a pair of ids is found by a hash of both, so that an id keeps its weights
    when its vocabulary grows.
    """

    left: Names
    right: Names
    buckets: PositiveInt = 2048


class Settings(Strict):
    """`deep` names the hidden widths in order; the layer to one logit is implied. `dropout`: share of their outputs dropped.

    `wide_ftrl` trains the wide part by FTRL, as the paper does (section 3.3), at rates of its own; null trains it by the
    optimisers of the deep part, at the rates of the section `train`. `crosses` are the products of features that it has.
    """

    embedding_dim: PositiveInt = 16
    deep: HiddenWidths = [1024, 1024, 1024, 1024, 1024]
    dropout: DropShare = 0.0
    wide_ftrl: FtrlSettings | None = FtrlSettings()
    crosses: list[Crosses] = []


class WidePart(LinearPart):
    """A linear part with a weight for each bucket of each product; `weights` holds those of dense features first."""

    def __init__(self, inputs: Inputs, ftrl: FtrlSettings | None, crosses: Sequence[Crosses]) -> None:
        super().__init__(inputs, ftrl)
        pairs = [(each, left, right) for each in crosses for left in each.left for right in each.right]
        single = list(inputs.names)[: inputs.num_embedded - len(inputs.list_lengths)]
        unknown = sorted({name for _, *names in pairs for name in names} - set(single))
        if unknown:
            raise ConfigError(
                f"model.crosses names {unknown}; the features of one id are {single}",
                "name some of these, or leave out the crosses",
            )
        self.num_dense = inputs.num_dense
        self.reads_ids = bool(pairs)
        sizes = [each.buckets for each, _, _ in pairs]
        starts = list(accumulate(sizes, initial=inputs.num_dense))
        self.weights = nn.Parameter(torch.zeros(starts[-1]))
        for name, values in (
            ("left", [single.index(left) for _, left, _ in pairs]),
            ("right", [single.index(right) for _, _, right in pairs]),
            ("sizes", sizes),
            ("starts", starts[:-1]),
        ):
            self.register_buffer(name, torch.tensor(values, dtype=torch.int64), persistent=False)  # (P,)

    left: Tensor
    right: Tensor
    sizes: Tensor
    starts: Tensor

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Logits (B,) of dense (B, D) float32 and categorical (B, W) int64."""
        found = (
            self.bias + self.embedding(categorical).sum(dim=(1, 2)) + dense @ self.weights[: self.num_dense]
        )
        if not len(self.sizes):
            return found
        ids = categorical.long()
        pairs = (
            ids[:, self.left] * 2**31 + ids[:, self.right]
        )  # (B, P), a number for each pair: ids are below 2³¹
        places = self.starts + scattered(pairs) % self.sizes
        return found + functional.embedding(places, self.weights.unsqueeze(1)).sum(dim=(1, 2))


class WideAndDeep(nn.Module):
    """The linear part, and an MLP over all embeddings laid side by side with the dense features."""

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        super().__init__()
        self.wide = WidePart(inputs, settings.wide_ftrl, settings.crosses)
        self.embedding = inputs.table(settings.embedding_dim)
        self.embedding.init_uniform()
        width = inputs.num_embedded * settings.embedding_dim + inputs.num_dense
        self.deep = mlp([width, *settings.deep], settings.dropout)
        self.logit = linear(settings.deep[-1], 1)

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Logits (B,) of dense (B, D) float32 and categorical (B, W) int64."""
        vectors = self.embedding(categorical)  # (B, C, E)
        deep = self.deep(
            torch.cat([vectors.flatten(1), dense], dim=1)
        )  # (B, C * E + D) before the first layer
        return self.wide(dense, categorical) + in_float32(self.logit, deep).squeeze(1)


def build(settings: Settings, inputs: Inputs) -> WideAndDeep:
    return WideAndDeep(settings, inputs)
