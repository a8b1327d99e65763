"""The two-tower model: the logit is the dot product of a user vector and an item vector, plus a bias.

    logit = ⟨u(user features, context), v(item features)⟩ + b

Each tower is an MLP over the embeddings and dense features of its side, as in P. Covington et al., Deep
Neural Networks for YouTube Recommendations (RecSys 2016, section 3). As in X. Yi et al.,
Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations (RecSys 2019, figure 1), the
item tower reads features of the item as well as its id. `train.loss: in_batch_softmax` trains the model as Yi
et al. do, where the negatives of a row are the items of the other rows of the batch. With `train.loss: bce`
and without `train.negatives`, the negative examples are items that were shown but not clicked.

b is the same for all pairs, so the dot product and the probability order items equally. A single matrix
product computes the scores of all items for many users. Features of the context belong to the user's tower,
because they are the same for all items.

Notation: B rows, D dense features, C features that are ids, W columns of ids (a list of ids takes several
columns), O output_dim.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from training.architecture_settings.two_tower import Settings, require_sides
from training.models.click_model import ClickModel
from training.models.inputs import Inputs
from training.models.layers import in_float32, linear, mlp

_USER_SIDE = ("user", "context")


class Tower(nn.Module):
    """An MLP over the features of one side: either the user and the context, or the item.

    A tower without features returns the same vector for all rows.

    Args:
        settings: the settings of the model.
        hidden: widths of the hidden layers.
        dense, embedded: positions of the side's features among all dense features, and among all features
            that are ids.
        of_items: whether this is the tower of the item.
    """

    dense: Tensor
    embedded: Tensor

    def __init__(
        self, settings: Settings, hidden: list[int], dense: list[int], embedded: list[int], *, of_items: bool
    ) -> None:
        super().__init__()
        self.register_buffer("dense", torch.tensor(dense, dtype=torch.int64), persistent=False)
        self.register_buffer("embedded", torch.tensor(embedded, dtype=torch.int64), persistent=False)
        width = len(dense) + len(embedded) * settings.embedding_dim
        self.hidden = mlp([width, *hidden], settings.dropout, _layer, of_items=of_items)
        self.out = linear(hidden[-1], settings.output_dim)

    def forward(self, dense: Tensor, vectors: Tensor) -> Tensor:
        """Returns the tower's vectors (B, O) float32.

        Args:
            dense: (B, D), all dense features.
            vectors: (B, C, E), the vectors of all features that are ids.
        """
        embedded = vectors.index_select(1, self.embedded).flatten(1)
        columns = torch.cat([dense.index_select(1, self.dense), embedded], dim=1)
        return in_float32(self.out, self.hidden(columns))


class TwoTower(ClickModel):
    """Two towers over one table of embeddings."""

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        super().__init__()
        self.embedding = inputs.table(settings.embedding_dim)
        self.embedding.init_uniform()
        user, item = (
            (_positions(inputs.dense_scopes, scopes), _positions(inputs.embedded_scopes, scopes))
            for scopes in (_USER_SIDE, ("item",))
        )
        self.user = Tower(settings, settings.user_tower, *user, of_items=False)
        self.item = Tower(settings, settings.item_tower, *item, of_items=True)
        self.bias = nn.Parameter(torch.zeros(()))

    def embed(self, categorical: Tensor) -> list[Tensor]:
        """Returns a list with one tensor, the vectors (B, C, E) of `categorical` (B, W) int64."""
        return [self.embedding(categorical)]

    def forward_dense(self, dense: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """Returns the logits (B,) from `dense` (B, D) and `vectors`, a list with one tensor (B, C, E)."""
        # (B, O), float32 in mixed precision too
        products = self.user(dense, vectors[0]) * self.item(dense, vectors[0])
        return products.sum(dim=1) + self.bias

    def user_vectors(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns user vectors (B, O) float32. Only columns of user and context features influence them."""
        vectors: Tensor = self.user(dense, self.embedding(categorical))
        return vectors

    def item_vectors(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns item vectors (B, O) float32. Only columns of item features influence them."""
        vectors: Tensor = self.item(dense, self.embedding(categorical))
        return vectors


def build(settings: Settings, inputs: Inputs) -> TwoTower:
    """Builds the model. Raises ConfigError if a feature belongs to no tower."""
    require_sides(len(_positions([*inputs.dense_scopes, *inputs.embedded_scopes], ("pair",))))
    return TwoTower(settings, inputs)


def _positions(scopes: Sequence[str], wanted: Sequence[str]) -> list[int]:
    return [position for position, scope in enumerate(scopes) if scope in wanted]


def _layer(width_in: int, width_out: int) -> nn.Linear:
    """Returns a layer as `layers.linear` does. The layer of a tower without features has only biases."""
    if width_in:
        return linear(width_in, width_out)
    # Without inputs, there are no weights to initialise, and torch would warn about that.
    with warnings.catch_warnings(action="ignore"):
        return nn.Linear(0, width_out)
