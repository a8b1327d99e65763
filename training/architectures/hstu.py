"""HSTU (J. Zhai et al., Actions Speak Louder than Words, ICML 2024, arXiv:2402.17152).

The encoded history is the output of HSTU blocks (`PointwiseBlock` in training/models/sequence.py) for the
most recent item of the user's history. A block has no softmax and no MLP. The weight of an item does not
depend on the weights of other items. So the sum of the weights grows with the number of related items in the
history, and can express how strong an interest is. The order of the items has an effect only through a bias,
which depends on the distance between two items. If the setting `ages` names the feature with the ages of the
clicks, these ages add another bias.

    x_p = √E · M[s_p],   F = LN(block_n(… block_1(Dropout(x))))
    logit = ⟨F_0, M[item]⟩ + b

M[i] is the vector of item i, and s_p is the item at position p of the history. The most recent item is at
position 0. For an empty history, F_0 is a learned vector. The bias b and the vectors of other features
(training/models/sequence_model.py) extend the paper's model.

In the paper, a training example is one sequence of items and actions of a user. Here each row of the log is
one example with the history before it, as in the other sequence models (training/architectures/sasrec.py).
Vectors of items do not depend on their positions. If a batch contains the rows of a user together
(`train.shuffle=users`), successive histories share items. Then a model with one block encodes each shared
item only once (`Timelines`).

Notation: B rows, S distinct histories, E embedding_dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from storage.feature_spec import PAD_ID
from training.architecture_settings.hstu import Settings
from training.models.inputs import Inputs
from training.models.layers import in_float32
from training.models.sequence import PointwiseBlock, SequenceDropout, Timelines
from training.models.sequence_model import SequenceModel, first_vectors, sequence_layout


class HSTU(SequenceModel):
    """Gated pointwise attention over the user's history."""

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        layout, dim = sequence_layout("hstu", settings, inputs), settings.embedding_dim
        if settings.ages is not None:
            layout = layout.with_ages("hstu", settings.ages, inputs)
        super().__init__(layout, dim, inputs)
        self.no_history = first_vectors(dim)
        self._add_features(inputs, settings.ages)
        self.dropout = SequenceDropout(settings.dropout)
        self.blocks = nn.ModuleList(
            PointwiseBlock(dim, settings.heads, settings.dropout, layout.length, layout.num_ages)
            for _ in range(settings.blocks)
        )
        self.norm = nn.LayerNorm(dim)
        self.bias = nn.Parameter(torch.zeros(()))

    def encode(self, histories: Tensor, first_rows: Tensor | None) -> Tensor:
        """See `SequenceModel.encode`."""
        length = self.layout.length
        items, ages = histories[:, :length], histories[:, length:] if self.layout.ages else None
        if first_rows is not None and self.training and self.shares_histories and len(self.blocks) == 1:
            return self._encode_timelines(items, first_rows, ages)
        return self.encode_by_length(items, first_rows, self._encode_places, ages)

    def _encode_timelines(self, histories: Tensor, first_rows: Tensor, ages: Tensor | None) -> Tensor:
        """Returns the encoded histories, F_0, (S, E) float32. Items that histories share are encoded once.

        Dropout sets elements of √E · M[s_p] to 0. For an item that several histories share, these are the
        same elements in all of them.
        """
        timelines = Timelines.of(histories, first_rows, self.dropout.shard_starts)
        dim, (tiles, _, width) = self.embedding.dim, timelines.distances.shape
        vectors = self.embedding.feature_vectors(timelines.items, self.layout.item) * math.sqrt(dim)
        vectors = self.dropout(vectors, timelines.first_rows)
        items = vectors.new_zeros(tiles * width, dim).index_copy(0, timelines.places, vectors)
        # The backward pass of functional.embedding is faster than that of indexing.
        newest = functional.embedding(timelines.newest, items)
        (block,) = self.blocks
        assert isinstance(block, PointwiseBlock)
        values = block.forward_timelines(newest, items.view(tiles, width, dim), timelines, first_rows, ages)
        return torch.where(histories[:, :1] != PAD_ID, in_float32(self.norm, values), self.no_history)

    def _encode_places(
        self, vectors: Tensor, is_item: Tensor, first_rows: Tensor | None, ages: Tensor | None
    ) -> Tensor:
        """Returns the encoded histories, F_0, (S, E) float32; see `LengthGroups.encode`."""
        _, longest, dim = vectors.shape
        values = self.dropout(vectors * math.sqrt(dim), first_rows)
        for number, block in enumerate(self.blocks, start=1):
            outputs = 1 if number == len(self.blocks) else longest
            values = block(values, is_item, first_rows, outputs, ages)
        return torch.where(is_item[:, :1], in_float32(self.norm, values[:, 0]), self.no_history)

    def item_biases(self, categorical: Tensor) -> Tensor:
        """Returns the bias of the logits, which is the same for all items, (B,)."""
        return self.bias.expand(categorical.shape[0])


def build(settings: Settings, inputs: Inputs) -> HSTU:
    """Builds the model. Raises ConfigError if the settings do not fit the features."""
    return HSTU(settings, inputs)
