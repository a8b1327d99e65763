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

from training.embeddings.counter_rng import scattered
from training.models.factorization import Part, Sides, SplitMLP
from training.models.inputs import Inputs
from training.models.layers import LinearPart, LinearSplit, in_float32, linear, mlp
from training.settings.ftrl import FtrlSettings
from training.settings.wide_and_deep import Crosses, Settings, require_known

_ALL = slice(None)


class WidePart(LinearPart):
    """A linear part with a weight for each bucket of each product; `weights` holds those of dense features first."""

    def __init__(self, inputs: Inputs, ftrl: FtrlSettings | None, crosses: Sequence[Crosses]) -> None:
        super().__init__(inputs, ftrl)
        pairs = [(each, left, right) for each in crosses for left in each.left for right in each.right]
        single = list(inputs.names)[: inputs.num_embedded - len(inputs.list_lengths)]
        require_known(crosses, single)
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
        keys = self.left_key(categorical) + self.right_key(categorical)  # (B, P)
        return found + self.crossed(keys)

    def left_key(self, categorical: Tensor, products: Tensor | slice = _ALL) -> Tensor:
        """(B, n) int64 what the left ids add to the number of each of these products' pairs; ids are below 2³¹."""
        return categorical.long()[:, self.left[products]] * 2**31

    def right_key(self, categorical: Tensor, products: Tensor | slice = _ALL) -> Tensor:
        """As `left_key`; the sum of both is a number of its own for each pair of ids."""
        return categorical.long()[:, self.right[products]]

    def crossed(self, keys: Tensor, products: Tensor | slice = _ALL) -> Tensor:
        """(…) the weights of pairs (…, n) of these products, added up."""
        places = self.starts[products] + scattered(keys) % self.sizes[products]
        return functional.embedding(places, self.weights.unsqueeze(1)).sum(dim=(-2, -1))

    def split(self, sides: Sides, dtype: torch.dtype) -> SplitWidePart:
        """In float32 whatever `dtype` is."""
        return SplitWidePart(self, sides)


class SplitWidePart(LinearSplit):
    """The linear part cut by side: products of features of one side are looked up once, those of both sides for each pair.

    Parts: (R,) the side's sum; (R, P') int64 its share of the number of each pair that both sides have an id of.
    """

    def __init__(self, model: WidePart, sides: Sides) -> None:
        super().__init__(model, sides)
        self._wide = model
        features = torch.tensor(sides.features, dtype=torch.bool, device=model.left.device)
        left, right = features[model.left], features[model.right]  # (P,) whether it is the user's
        self._within = {True: (left & right).nonzero()[:, 0], False: (~left & ~right).nonzero()[:, 0]}
        self._both = (left ^ right).nonzero()[:, 0]  # (P',)
        self._left_is_users = left[self._both]

    def user_part(self, dense: Tensor, categorical: Tensor) -> Part:
        (found,) = super().user_part(dense, categorical)
        return found + self._inner(categorical, side=True), self._share(categorical, side=True)

    def item_part(self, dense: Tensor, categorical: Tensor) -> Part:
        (found,) = super().item_part(dense, categorical)
        return found + self._inner(categorical, side=False), self._share(categorical, side=False)

    def _inner(self, categorical: Tensor, *, side: bool) -> Tensor:
        wide, inner = self._wide, self._within[side]
        return wide.crossed(wide.left_key(categorical, inner) + wide.right_key(categorical, inner), inner)

    def _share(self, categorical: Tensor, *, side: bool) -> Tensor:
        left = self._wide.left_key(categorical, self._both)
        right = self._wide.right_key(categorical, self._both)
        return torch.where(self._left_is_users == side, left, right)

    def pair_part(self, users: Part, items: Part) -> Tensor:
        found = super().pair_part(users, items)
        if len(self._both):
            found = found + self._wide.crossed(users[1].unsqueeze(1) + items[1], self._both)
        return found


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

    def split(self, sides: Sides, dtype: torch.dtype) -> SplitWideAndDeep:
        """The wide part is float32 whatever `dtype` is."""
        return SplitWideAndDeep(self, sides, dtype)


class SplitWideAndDeep:
    """Parts: those of the wide part, and (R, H) the side's share of the MLP's first layer."""

    def __init__(self, model: WideAndDeep, sides: Sides, dtype: torch.dtype) -> None:
        self._model = model
        self._wide = model.wide.split(sides, dtype)
        dim = model.embedding.weight.shape[1]
        held = [each for each in sides.features for _ in range(dim)] + list(sides.dense)
        self._columns = {side: Sides.places(held, side) for side in (True, False)}
        self._deep = SplitMLP(model.deep, model.logit, self._columns[True], self._columns[False], (), dtype)

    def user_part(self, dense: Tensor, categorical: Tensor) -> Part:
        share = self._deep.user_share(self._input(dense, categorical)[:, self._columns[True]])
        return *self._wide.user_part(dense, categorical), share

    def item_part(self, dense: Tensor, categorical: Tensor) -> Part:
        share = self._deep.item_share(self._input(dense, categorical)[:, self._columns[False]])
        return *self._wide.item_part(dense, categorical), share

    def _input(self, dense: Tensor, categorical: Tensor) -> Tensor:
        return torch.cat([self._model.embedding(categorical).flatten(1), dense], dim=1)

    def pair_part(self, users: Part, items: Part) -> Tensor:
        wide = self._wide.pair_part(users[:2], items[:2])
        return wide + self._deep.outputs(users[2], items[2], None)


def build(settings: Settings, inputs: Inputs) -> WideAndDeep:
    return WideAndDeep(settings, inputs)
