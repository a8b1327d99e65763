"""Two towers: a vector of the user and a vector of the item, whose dot product is the logit.

    logit = ⟨u(user features, context), v(item features)⟩ + b

Each tower is an MLP over the embeddings and dense features of its side, as in P. Covington et al., Deep Neural Networks for YouTube
Recommendations (RecSys 2016, section 3), with features on the item's side too (X. Yi et al., Sampling-Bias-Corrected Neural Modeling
for Large Corpus Item Recommendations, RecSys 2019, figure 1). Unlike theirs it is trained as a model of clicks on the rows of the log, so
what it learns from is what was shown and not clicked; no item is drawn as a negative, and so no sampling is to be corrected for.

b is the same for all pairs, so items ordered by the dot product are ordered by the probability, and the nearest items of a user are
found by one product of matrices. Features of the context go with the user: they are the same for all items.

Notation: B rows, D dense features, C features made of ids, W columns of ids, O output_dim.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from training.models.inputs import Inputs
from training.models.layers import in_float32, linear, mlp
from training.settings.two_tower import Settings, require_sides

_USER_SIDE = ("user", "context")


class Tower(nn.Module):
    """An MLP over the features of one side. Without any it gives the same vector for all rows.

    Args:
        dense, embedded: places of the side's features among all dense ones and among all made of ids.
    """

    def __init__(self, settings: Settings, hidden: list[int], dense: list[int], embedded: list[int]) -> None:
        super().__init__()
        self.register_buffer("dense", torch.tensor(dense, dtype=torch.int64), persistent=False)
        self.register_buffer("embedded", torch.tensor(embedded, dtype=torch.int64), persistent=False)
        width = len(dense) + len(embedded) * settings.embedding_dim
        self.hidden = mlp([width, *hidden], settings.dropout, _layer)
        self.out = linear(hidden[-1], settings.output_dim)

    dense: Tensor
    embedded: Tensor

    def forward(self, dense: Tensor, vectors: Tensor) -> Tensor:
        """(B, O) float32 of all dense features (B, D) and the vectors of all others (B, C, E)."""
        own = vectors.index_select(1, self.embedded).flatten(1)
        return in_float32(self.out, self.hidden(torch.cat([dense.index_select(1, self.dense), own], dim=1)))


class TwoTower(nn.Module):
    """A tower a side over one table of embeddings."""

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        super().__init__()
        self.embedding = inputs.table(settings.embedding_dim)
        self.embedding.init_uniform()
        user, item = (
            (_places(inputs.dense_scopes, side), _places(inputs.embedded_scopes, side))
            for side in (_USER_SIDE, ("item",))
        )
        self.user = Tower(settings, settings.user_tower, *user)
        self.item = Tower(settings, settings.item_tower, *item)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Logits (B,) of dense (B, D) float32 and categorical (B, W) int64."""
        vectors = self.embedding(categorical)  # (B, C, E)
        products = self.user(dense, vectors) * self.item(
            dense, vectors
        )  # (B, O), float32 in mixed precision too
        return products.sum(dim=1) + self.bias

    def user_vectors(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """(B, O) float32; reads the features of the user and the context, whatever stands in the others' places."""
        vectors: Tensor = self.user(dense, self.embedding(categorical))
        return vectors

    def item_vectors(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """(B, O) float32; reads the features of the item, whatever stands in the others' places."""
        vectors: Tensor = self.item(dense, self.embedding(categorical))
        return vectors


def build(settings: Settings, inputs: Inputs) -> TwoTower:
    """The model of a configuration; ConfigError where a feature belongs to neither side."""
    require_sides(len(_places([*inputs.dense_scopes, *inputs.embedded_scopes], ("pair",))))
    return TwoTower(settings, inputs)


def _places(scopes: Sequence[str], side: Sequence[str]) -> list[int]:
    return [place for place, scope in enumerate(scopes) if scope in side]


def _layer(width_in: int, width_out: int) -> nn.Linear:
    """As layers.linear; a tower without features has biases alone, and nothing to draw."""
    if width_in:
        return linear(width_in, width_out)
    with warnings.catch_warnings(action="ignore"):  # torch says that it has no weight to initialise
        return nn.Linear(0, width_out)
