"""SASRec (W.-C. Kang, J. McAuley, Self-Attentive Sequential Recommendation, ICDM 2018).

The encoded history is the output of self-attention blocks for the most recent item of the user's history. The
item's vector and the vectors of the history are rows of the same table (section III-C, shared item
embedding). Two terms extend the paper's model: a bias, and the vectors of other features
(training/models/sequence_model.py).

    x_p = √E · M[s_p] + P[p],   F = LN(block_n(… block_1(Dropout(x))))     (equations 1 to 8)
    logit = ⟨F_0, M[item]⟩ + b                                             (equation 9)

M[i] is the vector of item i, P[p] the vector of position p, and s_p the item at position p of the history.
The most recent item is at position 0. For an empty history, F_0 is a learned vector.

In the paper, a training example contains a user's sequence, and the model predicts the next item at each
position. Here each row of the log is one example with its own history. Both methods give the same examples.
If a batch contains the rows of a user together (`train.shuffle=users`), successive histories share items.
Then a model with one block computes keys and values once for all rows that share an item (`Timelines` in
training/models/sequence.py). The same item has different positions in different rows, because positions are
counted from the most recent item. But keys and values are linear functions of the sum of an item's vector and
a position's vector, so both terms can be computed separately. A second block cannot share anything: its
inputs are the outputs of the first block, which depend on the positions.

Notation: B rows, S distinct histories, E embedding_dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from storage.feature_spec import PAD_ID
from training.architecture_settings.sasrec import Settings
from training.models.inputs import Inputs
from training.models.layers import in_float32
from training.models.sequence import CausalBlock, SequenceDropout, Timelines
from training.models.sequence_model import SequenceModel, first_vectors, sequence_layout


class SASRec(SequenceModel):
    """Causal self-attention over the user's history."""

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        layout, dim = sequence_layout("sasrec", settings, inputs), settings.embedding_dim
        super().__init__(layout, dim, inputs)
        self.places = first_vectors(layout.length, dim)
        self.no_history = first_vectors(dim)
        self._add_features(inputs)
        self.dropout = SequenceDropout(settings.dropout)
        self.blocks = nn.ModuleList(
            CausalBlock(dim, settings.heads, settings.dropout) for _ in range(settings.blocks)
        )
        self.norm = nn.LayerNorm(dim)
        self.bias = nn.Parameter(torch.zeros(()))

    def encode(self, histories: Tensor, first_rows: Tensor | None) -> Tensor:
        """See `SequenceModel.encode`."""
        if first_rows is not None and self.training and self.shares_histories and len(self.blocks) == 1:
            return self._encode_timelines(histories, first_rows)
        return self.encode_by_length(histories, first_rows, self._encode_places)

    def _encode_timelines(self, histories: Tensor, first_rows: Tensor) -> Tensor:
        """Returns the encoded histories, F_0, (S, E) float32. Items that histories share are encoded once.

        Dropout sets elements of √E · M[s_p] to 0. For an item that several histories share, these are the
        same elements in all of them. Dropout does not change P[p].
        """
        timelines = Timelines.of(histories, first_rows, self.dropout.shard_starts)
        dim, (tiles, _, width) = self.embedding.dim, timelines.distances.shape
        vectors = self.embedding.feature_vectors(timelines.items, self.layout.item) * math.sqrt(dim)
        vectors = self.dropout(vectors, timelines.first_rows)
        items = vectors.new_zeros(tiles * width, dim).index_copy(0, timelines.places, vectors)
        # The backward pass of functional.embedding is faster than that of indexing.
        newest = functional.embedding(timelines.newest, items) + self.places[0]
        (block,) = self.blocks
        assert isinstance(block, CausalBlock)
        values = block.forward_timelines(
            newest, items.view(tiles, width, dim), self.places, timelines, first_rows
        )
        is_item = histories[:, :1] != PAD_ID
        return torch.where(is_item, in_float32(self.norm, values), self.no_history)

    def _encode_places(
        self, vectors: Tensor, is_item: Tensor, first_rows: Tensor | None, ages: Tensor | None
    ) -> Tensor:
        """Returns the encoded histories, F_0, (S, E) float32; see `LengthGroups.encode`."""
        _, longest, dim = vectors.shape
        values = self.dropout(vectors * math.sqrt(dim) + self.places[:longest], first_rows)
        for number, block in enumerate(self.blocks, start=1):
            outputs = 1 if number == len(self.blocks) else longest
            values = block(values, is_item, first_rows, outputs)
        encoded = in_float32(self.norm, values[:, 0])
        return torch.where(is_item[:, :1], encoded, self.no_history)

    def item_biases(self, categorical: Tensor) -> Tensor:
        """Returns the bias of the logits, which is the same for all items, (B,)."""
        return self.bias.expand(categorical.shape[0])


def build(settings: Settings, inputs: Inputs) -> SASRec:
    """Builds the model. Raises ConfigError if the settings do not fit the features."""
    return SASRec(settings, inputs)
