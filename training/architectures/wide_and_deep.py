"""Wide & Deep (Cheng et al. 2016, arXiv:1606.07792): a linear model and an MLP whose logits are added.

    P(click) = σ(w_wideᵀ[x, φ(x)] + w_deepᵀ a^(l_f) + b)    (equation 3)
    a^(l+1) = ReLU(W^(l) a^(l) + b^(l))                     (equation 2; a^(0) has the inputs)

φ(x) contains the crosses (products) of two id features (equation 1). A cross has a weight for each bucket,
and a hash of the two ids of a row selects the bucket. Crosses belong only to the wide part, as in the paper.
The setting `crosses` lists them. Crosses that build_features computes with `hashed_cross` are ordinary
features. The wide part and the MLP both use them.

Notation: B rows, D dense features, C features that are ids, W columns of ids (a list of ids takes several
columns), E embedding_dim, P crosses.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.architecture_settings.wide_and_deep import Crosses, Settings, require_known
from training.embeddings.counter_rng import hash_numbers
from training.models.click_model import ClickModel
from training.models.factorization import FactorizedMLP, FeatureSides, Part, Side, positions_by_side
from training.models.inputs import Inputs
from training.models.layers import FactorizedLinear, LinearPart, in_float32, linear, mlp
from training.settings.shared_settings import FtrlSettings

_ALL = slice(None)


class WidePart(LinearPart):
    """A linear part that also has a weight for each bucket of each cross.

    A cross is a pair of features that each have a single id per row. A hash of the two ids of a row selects
    one of the cross's buckets. In `weights`, the weights of the dense features come first, and then the
    weights of the buckets.

    Attributes:
        left, right: (P,) int64, the positions of each cross's two features among the features with one id.
        sizes, starts: (P,) int64, the number of buckets of each cross, and the position of its first bucket
            in `weights`.
        reads_ids: whether `forward` needs the raw ids, not only looked-up vectors. This is true if there are
            crosses, because the bucket of a cross is a hash of two ids.
    """

    left: Tensor
    right: Tensor
    sizes: Tensor
    starts: Tensor

    def __init__(self, inputs: Inputs, ftrl: FtrlSettings | None, crosses: Sequence[Crosses]) -> None:
        super().__init__(inputs, ftrl)
        products = [(cross, left, right) for cross in crosses for left in cross.left for right in cross.right]
        single = list(inputs.names)[: inputs.num_embedded - len(inputs.list_lengths)]
        require_known(crosses, single)
        self.reads_ids = bool(products)
        sizes = [cross.buckets for cross, _, _ in products]
        starts = list(accumulate(sizes, initial=inputs.num_dense))
        self.weights = nn.Parameter(torch.zeros(starts[-1]))
        for name, values in (
            ("left", [single.index(left) for _, left, _ in products]),
            ("right", [single.index(right) for _, _, right in products]),
            ("sizes", sizes),
            ("starts", starts[:-1]),
        ):
            self.register_buffer(name, torch.tensor(values, dtype=torch.int64), persistent=False)

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns the logits, shape (B,), which include the weights of crosses."""
        logits = super().forward(dense, categorical)
        if not self.reads_ids:
            return logits
        keys = self.left_key(categorical) + self.right_key(categorical)  # (B, P)
        return logits + self.product_sum(keys)

    def left_key(self, categorical: Tensor, products: Tensor | slice = _ALL) -> Tensor:
        """Returns the number that the left id adds to the key of each cross, (B, n) int64.

        The key of a cross in a row is `left_key` + `right_key`. Different pairs of ids have different keys,
        if the ids are below 2³¹. `products` selects n of the crosses.
        """
        return categorical.long()[:, self.left[products]] * 2**31

    def right_key(self, categorical: Tensor, products: Tensor | slice = _ALL) -> Tensor:
        """Returns the number that a cross's second id adds to its key, (B, n) int64; see `left_key`."""
        return categorical.long()[:, self.right[products]]

    def product_sum(self, keys: Tensor, products: Tensor | slice = _ALL) -> Tensor:
        """Looks up the weight of each of n crosses by its key; returns the sum of these weights.

        `keys` has the shape (…, n). The result has the shape (…).
        """
        positions = self.starts[products] + hash_numbers(keys) % self.sizes[products]
        return functional.embedding(positions, self.weights.unsqueeze(1)).sum(dim=(-2, -1))

    def factorize(self, sides: FeatureSides, dtype: torch.dtype) -> FactorizedWidePart:
        """Returns the wide part divided into float32 computations per user, per item and per pair."""
        return FactorizedWidePart(self, sides)


class FactorizedWidePart(FactorizedLinear):
    """The factorization of the wide part.

    A side means either the users or the items. The weights of crosses within a side are looked up once per
    row of that side. The weights of the P' crosses between the sides are looked up for each pair of user and
    item.

    For R rows of a side, `side_part` returns two tensors. The first, (R,), is the sum of the logit's terms
    that depend on this side only. The second, (R, P') int64, has the numbers that the side's ids add to the
    keys of the P' crosses.
    """

    def __init__(self, model: WidePart, sides: FeatureSides) -> None:
        super().__init__(model, sides)
        self._wide = model
        embedded = [side is Side.USER for side in sides.embedded]
        is_user = torch.tensor(embedded, dtype=torch.bool, device=model.left.device)
        left, right = is_user[model.left], is_user[model.right]  # (P,)
        self._within = {
            Side.USER: (left & right).nonzero()[:, 0],
            Side.ITEM: (~left & ~right).nonzero()[:, 0],
        }
        self._between = (left ^ right).nonzero()[:, 0]  # (P',)
        self._left_is_user = left[self._between]

    def side_part(self, side: Side, dense: Tensor, categorical: Tensor) -> Part:
        """See `Factorization.side_part`."""
        wide, within = self._wide, self._within[side]
        (linear_sum,) = super().side_part(side, dense, categorical)
        keys = wide.left_key(categorical, within) + wide.right_key(categorical, within)
        return linear_sum + wide.product_sum(keys, within), self._key_share(side, categorical)

    def _key_share(self, side: Side, categorical: Tensor) -> Tensor:
        left = self._wide.left_key(categorical, self._between)
        right = self._wide.right_key(categorical, self._between)
        takes_left = self._left_is_user if side is Side.USER else ~self._left_is_user
        return torch.where(takes_left, left, right)

    def pair_logits(self, users: Part, items: Part) -> Tensor:
        """See `Factorization.pair_logits`."""
        logits = super().pair_logits(users, items)
        if len(self._between):
            logits = logits + self._wide.product_sum(users[1].unsqueeze(1) + items[1], self._between)
        return logits


class WideAndDeep(ClickModel):
    """The sum of a linear part and an MLP over all embeddings and the dense features."""

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        super().__init__()
        self.wide = WidePart(inputs, settings.wide_ftrl, settings.crosses)
        self.embedding = inputs.table(settings.embedding_dim)
        self.embedding.init_uniform()
        width = inputs.num_embedded * settings.embedding_dim + inputs.num_dense
        self.deep = mlp([width, *settings.deep], settings.dropout)
        self.logit = linear(settings.deep[-1], 1)

    def embed(self, categorical: Tensor) -> list[Tensor]:
        """Returns the wide part's weights (B, C, 1) and the vectors (B, C, E) of `categorical` (B, W)."""
        return [*self.wide.embed(categorical), self.embedding(categorical)]

    def forward_dense(self, dense: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """Returns the logits (B,) without crosses, from `dense` (B, D) and the result of `embed`."""
        *wide_weights, embedded = vectors
        return self.wide.forward_dense(dense, wide_weights) + self._deep_logits(dense, embedded)

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns the logits, shape (B,), with crosses, from `dense` (B, D) and `categorical` (B, W)."""
        return self.wide(dense, categorical) + self._deep_logits(dense, self.embedding(categorical))

    def _deep_logits(self, dense: Tensor, vectors: Tensor) -> Tensor:
        """Returns the MLP's logits, shape (B,), from `dense` (B, D) and `vectors` (B, C, E)."""
        columns = torch.cat([vectors.flatten(1), dense], dim=1)  # (B, C * E + D)
        return in_float32(self.logit, self.deep(columns)).squeeze(1)

    def factorize(self, sides: FeatureSides, dtype: torch.dtype) -> FactorizedWideAndDeep:
        """Returns this model divided into computations per user, per item and per pair.

        The wide part is always computed in float32.
        """
        return FactorizedWideAndDeep(self, sides, dtype)


class FactorizedWideAndDeep:
    """The factorization of Wide & Deep.

    For R rows of a side (users or items), `side_part` returns three tensors. The first two are the same as in
    `FactorizedWidePart`. The third, (R, H), is what the side's columns add to the H outputs of the MLP's
    first layer.
    """

    def __init__(self, model: WideAndDeep, sides: FeatureSides, dtype: torch.dtype) -> None:
        self._model = model
        self._wide = model.wide.factorize(sides, dtype)
        dim = model.embedding.weight.shape[1]
        column_sides = [side for side in sides.embedded for _ in range(dim)] + list(sides.dense)
        self._columns = positions_by_side(column_sides)
        self._deep = FactorizedMLP(model.deep, model.logit, self._columns, dtype)

    def side_part(self, side: Side, dense: Tensor, categorical: Tensor) -> Part:
        """See `Factorization.side_part`."""
        columns = torch.cat([self._model.embedding(categorical).flatten(1), dense], dim=1)
        share = self._deep.share(side, columns[:, self._columns[side]])
        return *self._wide.side_part(side, dense, categorical), share

    def pair_logits(self, users: Part, items: Part) -> Tensor:
        """See `Factorization.pair_logits`."""
        wide = self._wide.pair_logits(users[:2], items[:2])
        return wide + self._deep.outputs(users[2], items[2], None)


def build(settings: Settings, inputs: Inputs) -> WideAndDeep:
    """Builds the model from its settings."""
    return WideAndDeep(settings, inputs)
