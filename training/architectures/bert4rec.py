"""BERT4Rec (F. Sun et al., BERT4Rec: Sequential Recommendation with BERT, CIKM 2019, arXiv:1904.06690).

The user's sequence is the history and, after the most recent item, a mask in place of the next item. Blocks
of bidirectional self-attention compute a vector for the mask. A layer transforms this vector. The logit is
the dot product of the result and the vector of the row's item, plus a bias. The item's vector and the vectors
of the history are rows of the same table (section 3.5). The vectors of other features extend the paper's
model (training/models/sequence_model.py).

    x_0 = mask + P[0],   x_p = M[s_p] + P[p]                               (section 3.4)
    H = block_n(… block_1(Dropout(x)))                                     (equations 1 to 6)
    logit = ⟨GELU(W_P H_0 + b_P), M[item]⟩ + b_O[item]                     (equation 7)

M has a row for each item, and P a row for each position. s_p is the item at position p of the history. The
most recent item is at position 1, and the mask at position 0. For an empty history, the sequence is the mask
alone. The inputs of the first block have dropout, as in BERT: the authors' program uses BERT's layers.

Only the end of the sequence is masked. The paper masks random positions of a user's sequence. In addition,
the paper trains on samples with a mask only at the end, because scoring uses such inputs (section 3.6). Here
every row of the log is such a sample, with the history before the row. We mask no random positions, for two
reasons. Negatives are drawn only for the item of a row, not for the items of its history. Also, each item of
a history is the item of an earlier row, where the model predicts it from the mask.

Notation: B rows, S distinct histories, E embedding_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.architecture_settings.bert4rec import Settings
from training.models.inputs import Inputs
from training.models.layers import in_float32, linear
from training.models.sequence import BidirectionalBlock, SequenceDropout
from training.models.sequence_model import BiasedSequenceModel, first_vectors, sequence_layout


class BERT4Rec(BiasedSequenceModel):
    """Bidirectional self-attention over the user's history and a mask."""

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        layout, dim = sequence_layout("bert4rec", settings, inputs), settings.embedding_dim
        places = layout.length + 1
        super().__init__(layout, dim, inputs)
        self.places = first_vectors(places, dim)
        self._add_item_biases(inputs)
        self.mask = first_vectors(dim)
        self._add_features(inputs)
        self.dropout = SequenceDropout(settings.dropout)
        self.blocks = nn.ModuleList(
            BidirectionalBlock(dim, settings.heads, settings.dropout) for _ in range(settings.blocks)
        )
        self.projection = linear(dim, dim)

    def encode(self, histories: Tensor, first_rows: Tensor | None) -> Tensor:
        """See `SequenceModel.encode`."""
        return self.encode_by_length(histories, first_rows, self._encode_places)

    def _encode_places(
        self, vectors: Tensor, is_item: Tensor, first_rows: Tensor | None, ages: Tensor | None
    ) -> Tensor:
        """Returns the encoded histories, GELU(W_P H_0 + b_P), (S, E) float32; see `LengthGroups.encode`."""
        count, longest, dim = vectors.shape
        values = torch.cat([self.mask.expand(count, 1, dim), vectors], dim=1)  # (S, P + 1, E)
        is_visible = torch.cat([is_item.new_ones(count, 1), is_item], dim=1)
        values = self.dropout(values + self.places[: longest + 1], first_rows)
        for number, block in enumerate(self.blocks, start=1):
            outputs = 1 if number == len(self.blocks) else longest + 1
            values = block(values, is_visible, first_rows, outputs)
        return functional.gelu(in_float32(self.projection, values[:, 0]))


def build(settings: Settings, inputs: Inputs) -> BERT4Rec:
    """Builds the model. Raises ConfigError if the settings do not fit the features."""
    return BERT4Rec(settings, inputs)
