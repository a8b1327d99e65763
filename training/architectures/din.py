"""DIN, the Deep Interest Network (Zhou et al., KDD 2018, arXiv:1706.06978): target attention over a history.

The vectors of the items in the user's history are pooled with weights that depend on the item of the row. An
MLP computes the logit from the pooled vector, the vectors of all other features, and the dense features.

    v_U = Σ_j a(e_j, v) e_j                                                          (equation 3)
    logit = MLP([v_U, vectors of other features, dense features])                    (section 4.1)

v is the vector of the row's item, and e_j the vector of an item of the history. The function a, the
activation unit, is an MLP over [v, e_j, v - e_j, v ⊙ e_j]. The weights do not add up to 1 (section 4.3: the
softmax is left out), so their sum can express how strong the user's interest in the item is. The vector of an
empty history is 0. Both MLPs use PReLU. Their default widths are those of figure 2 of the paper.

Differences from the paper, which docs/decisions/sequence-models.md#0052 explains:

* The inputs of `a` are those of the authors' program (github.com/zhougr1993/DeepInterestNetwork). In the
  paper, the inputs are v, e_j and their outer product. The program also applies a softmax to the weights. The
  paper and this module do not.
* The activation is PReLU. The paper proposes Dice, and compares it with PReLU (section 5.3).
* The paper's mini-batch aware regularization (section 5.2) is not implemented; `train.l2` is similar.

Notation: B rows, D dense features, C features that are ids, W columns of ids, L the number of positions of a
padded history, E embedding_dim, H the width of the first hidden layer of the activation unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.architecture_settings.din import Settings
from training.models.click_model import ClickModel
from training.models.factorization import FactorizedMLP, FeatureSides, Part, Side, positions_by_side
from training.models.history import HistoryModel, Layout
from training.models.inputs import Inputs
from training.models.layers import in_float32, linear, mlp
from training.models.sequence import distinct_sequences

_DEVIATION = 0.1  # standard deviation of initial vectors


class ActivationUnit(nn.Module):
    """Pools the vectors of a history with weights that depend on an item.

    W [v, e, v - e, v ⊙ e] = (W_v + W_d) v + (W_e - W_d + W_p diag(v)) e. So the first layer multiplies the
    vectors of the history once, by a matrix that depends on the item, and [v, e, v - e, v ⊙ e] is never
    built.

    Args:
        dim: E.
        widths: widths of the hidden layers.
        calls_per_row: L, because the layers run once for each position of a row's history.
    """

    def __init__(self, dim: int, widths: Sequence[int], calls_per_row: int) -> None:
        super().__init__()
        self.calls_per_row = calls_per_row
        self.hidden = mlp([4 * dim, *widths], prelu=True)
        self.weight = linear(widths[-1], 1)
        # Before training, the weights are about 1. So v_U is about the sum of the vectors, as in the paper's
        # base model.
        nn.init.ones_(self.weight.bias)

    def forward(self, histories: Tensor, items: Tensor) -> Tensor:
        """Returns v_U of each pair of a user and an item, (U, I, E).

        Args:
            histories: (U, L, E), the vectors of the items of histories, zeros at padding. A zero vector adds
                nothing to the sum, so padding needs no mask.
            items: the vectors of items. (1, I, E) if all users have the same items, and (U, I, E) if the
                items differ between users.
        """
        users, places, dim = histories.shape
        num_items = items.shape[1]
        layers = list(self.hidden)
        first = layers[0]
        assert isinstance(first, nn.Linear)
        of_item, of_history, of_difference, of_product = first.weight.split(dim, dim=1)  # (H, E) each
        matrices = of_history - of_difference + of_product * items.unsqueeze(2)  # (1|U, I, H, E)
        columns = matrices.flatten(1, 2).transpose(1, 2)  # (1|U, E, I * H)
        # In an exported model, each row has its own item.
        one_matrix = not torch.compiler.is_exporting() and len(columns) == 1
        sums = histories @ (columns[0] if one_matrix else columns)  # (U, L, I * H)
        constants = functional.linear(items, of_item + of_difference, first.bias)  # (1|U, I, H)
        values = sums.view(users, places, num_items, -1) + constants.unsqueeze(1)  # (U, L, I, H)
        values = values.flatten(0, 2)
        for layer in (*layers[1:], self.weight):
            values = layer(values)
        weights = values.view(users, places, num_items)
        return weights.transpose(1, 2) @ histories


class DIN(HistoryModel, ClickModel):
    """Target attention over the user's history, then an MLP."""

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        layout, dim = Layout.of("din", settings, inputs), settings.embedding_dim
        super().__init__(layout, dim, inputs, _DEVIATION)
        self.attention = ActivationUnit(dim, settings.attention, layout.length)
        width = inputs.num_embedded * dim + inputs.num_dense
        self.deep = mlp([width, *settings.deep], settings.dropout, prelu=True)
        self.logit = linear(settings.deep[-1], 1)

    def embed(self, categorical: Tensor) -> list[Tensor]:
        """Returns the vectors (B, C, E) of `categorical` (B, W), and the vectors of history items (B, L, E).

        In the first tensor, the vector of the history is zero.
        """
        histories, vectors = self.separate(categorical)
        first_rows, group = distinct_sequences(histories)
        return [vectors, self.history_vectors(histories[first_rows])[0][group]]

    def forward_dense(self, dense: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """Returns the logits (B,) from `dense` (B, D) float32 and the result of `embed`."""
        embedded, histories = vectors
        position = self.layout.history
        item = embedded[:, self.layout.item : self.layout.item + 1]  # (B, 1, E)
        pooled = self.attention(histories, item).to(embedded.dtype)  # (B, 1, E)
        fields = torch.cat([embedded[:, :position], pooled, embedded[:, position + 1 :]], dim=1)
        hidden = self.deep(torch.cat([fields.flatten(1), dense], dim=1))
        return in_float32(self.logit, hidden).squeeze(1)

    def factorize(self, sides: FeatureSides, dtype: torch.dtype) -> FactorizedDIN:
        """Returns this model divided into computations per user, per item and per pair."""
        return FactorizedDIN(self, sides, dtype)


class FactorizedDIN:
    """The factorization of DIN.

    For R rows of a side (users or items), `side_part` returns two tensors. The first, (R, H'), has the terms
    of the side's features in the H' outputs of the MLP's first layer. For users, the second tensor contains
    the vectors (R, L, E) of the items of the histories. For items, it contains the items' vectors (R, E). The
    history is pooled for each pair of user and item.
    """

    def __init__(self, model: DIN, sides: FeatureSides, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype
        self._unit = deepcopy(model.attention).to(dtype)
        feature_sides = list(sides.embedded)
        feature_sides[model.layout.history] = Side.PAIR  # the history is pooled for each user and item
        self._embedded, self._dense = positions_by_side(feature_sides), positions_by_side(sides.dense)
        by_column = [side for side in feature_sides for _ in range(model.embedding.dim)]
        columns = positions_by_side([*by_column, *sides.dense])
        self._deep = FactorizedMLP(model.deep, model.logit, columns, dtype)

    def side_part(self, side: Side, dense: Tensor, categorical: Tensor) -> Part:
        """See `Factorization.side_part`."""
        model = self._model
        histories, vectors = model.separate(categorical)
        inputs = [vectors[:, self._embedded[side]].flatten(1), dense[:, self._dense[side]]]
        share = self._deep.share(side, torch.cat(inputs, dim=1))
        if side is Side.USER:
            return share, model.history_vectors(histories)[0].to(self._dtype)
        return share, vectors[:, model.layout.item].to(self._dtype)

    def pair_logits(self, users: Part, items: Part) -> Tensor:
        """See `Factorization.pair_logits`."""
        return self._deep.outputs(users[0], items[0], self._unit(users[1], items[1]))


def build(settings: Settings, inputs: Inputs) -> DIN:
    """Builds the model. Raises ConfigError if the settings do not fit the features."""
    return DIN(settings, inputs)
