"""SASRec (W.-C. Kang, J. McAuley, Self-Attentive Sequential Recommendation, ICDM 2018).

The user's vector is the output of self-attention blocks for the most recent item of the user's history. The
item's vector is its row in the table from which the history's vectors come (section III-C, shared item
embedding). Two terms extend the paper's model: a bias, and the vectors of other features.

    x_p = √E · M[s_p] + P[p],   F = LN(block_n(… block_1(Dropout(x))))     (equations 1 to 8)
    u = F_0 + Σ vectors of other features of the user
    v = M[item] + Σ vectors of other features of the item and the context
    logit = ⟨u, v⟩ + b                                                     (equation 9)

s_p is the item at place p of the history, counted from the most recent one. For an empty history, F_0 is a
learned vector. A dense feature's vector is the value times a learned vector.

The paper trains all places of a user's sequence at once. Here each row of the log is one example with its own
history, so the examples are the same, and the loader may shuffle rows. The history is encoded once for a row
and its drawn negatives.

Notation: B rows, S distinct histories, D dense features, W columns of ids, L places, E embedding_dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from conf.errors import ConfigError
from storage.feature_spec import PAD_ID
from training.models.factorization import FeatureSides, Part, Side, vector_products
from training.models.inputs import Inputs
from training.models.layers import in_float32
from training.models.sequence import AttentionBlock, SequenceDropout, distinct_sequences
from training.settings import Features
from training.settings.sasrec import Settings, check

_DEVIATION = 0.02  # of first weights, as in BERT4Rec (Sun et al. 2019, section 4.3)


@dataclass(frozen=True)
class _Layout:
    """Where the features are in the inputs of the model.

    Attributes:
        item: index of the item's feature among the features that are ids.
        history: index of the history's feature among them.
        columns: the columns of the history in the categorical matrix.
        cardinalities: number of rows of each feature in the table. The history has none but the padding row,
            because its items have the rows of the item's feature.
    """

    item: int
    history: int
    columns: slice
    cardinalities: list[int]

    @classmethod
    def of(cls, settings: Settings, inputs: Inputs) -> _Layout:
        """Returns the layout. Raises ConfigError if the settings do not fit the features."""
        names, num_single = list(inputs.names), inputs.num_embedded - len(inputs.list_lengths)
        by_name = zip(names, inputs.embedded_scopes, strict=True)
        pairs = [name for name, scope in by_name if scope == "pair"]
        pairs += ["a dense feature"] if "pair" in inputs.dense_scopes else []
        check(settings, Features(ids=names[:num_single], lists=names[num_single:], pairs=pairs))
        item, history = names.index(settings.item), names.index(settings.history)
        scopes = inputs.embedded_scopes[item], inputs.embedded_scopes[history]
        if scopes != ("item", "user"):
            raise ConfigError(
                f"the scopes of {settings.item} and {settings.history} are {scopes[0]} and {scopes[1]}, but "
                "architecture sasrec needs the scopes item and user",
                f"list {settings.item} in scopes.item, and {settings.history} in scopes.user",
            )
        cardinalities = list(inputs.cardinalities)
        if cardinalities[item] != cardinalities[history]:
            raise ConfigError(
                f"{settings.item} has {cardinalities[item]} ids, but {settings.history} has "
                f"{cardinalities[history]}, so they do not have the same vocabulary",
                "give `categorify` the same `share` in the groups of both features, and `counts: false` in "
                "the group of the history",
            )
        cardinalities[history] = 1
        place = history - num_single
        first = num_single + sum(inputs.list_lengths[:place])
        return cls(item, history, slice(first, first + inputs.list_lengths[place]), cardinalities)


class SASRec(nn.Module):
    """Self-attention over the user's history. Items of rows and of histories share the table's rows."""

    user_dense: Tensor
    user_embedded: Tensor

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        super().__init__()
        dim, self._layout = settings.embedding_dim, _Layout.of(settings, inputs)
        places = self._layout.columns.stop - self._layout.columns.start
        self.embedding = inputs.tables.table(
            self._layout.cardinalities, dim, inputs.list_lengths, inputs.pooling, inputs.names, by_ftrl=False
        )
        self.embedding.init_normal(_DEVIATION)
        self.places = nn.Parameter(torch.empty(places, dim).normal_(std=_DEVIATION))
        self.no_history = nn.Parameter(torch.empty(dim).normal_(std=_DEVIATION))
        self.dense_vectors = nn.Parameter(torch.empty(inputs.num_dense, dim).normal_(std=_DEVIATION))
        self.dropout = SequenceDropout(settings.dropout, places)
        self.blocks = nn.ModuleList(
            AttentionBlock(dim, settings.heads, settings.dropout, places) for _ in range(settings.blocks)
        )
        self.norm = nn.LayerNorm(dim)
        self.bias = nn.Parameter(torch.zeros(()))
        for name, scopes in (("user_dense", inputs.dense_scopes), ("user_embedded", inputs.embedded_scopes)):
            of_user = torch.tensor([scope == "user" for scope in scopes], dtype=torch.float32)
            self.register_buffer(name, of_user, persistent=False)

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns the logits (B,) from `dense` (B, D) float32 and `categorical` (B, W) int."""
        histories, others = self._separate(categorical)
        users = self._encode_rows(histories) + self._side(dense, others, user=True)
        return (users * self._side(dense, others, user=False)).sum(dim=1) + self.bias

    def user_vectors(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns user vectors (B, E) float32. Only columns of user features influence them."""
        histories, others = self._separate(categorical)
        encoded = self._encode_rows(histories) if self.training else self._encode(histories, None)
        return encoded + self._side(dense, others, user=True)

    def item_vectors(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns item vectors (B, E) float32. Only columns of item and context features influence them."""
        return self._side(dense, self._separate(categorical)[1], user=False)

    def factorize(self, sides: FeatureSides, dtype: torch.dtype) -> FactorizedSASRec:
        """Returns the factorization. Products are computed in float32."""
        return FactorizedSASRec(self)

    def _separate(self, categorical: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the histories (B, L), and the vectors (B, C, E) of all features but the history."""
        columns = self._layout.columns
        others = categorical.clone()
        others[:, columns] = PAD_ID
        return categorical[:, columns], self.embedding(others)

    def _side(self, dense: Tensor, embedded: Tensor, *, user: bool) -> Tensor:
        """Returns the sum (B, E) of the vectors of the features of one side, without the history."""
        of_dense = self.user_dense if user else 1 - self.user_dense
        of_ids = self.user_embedded if user else 1 - self.user_embedded
        return dense @ (self.dense_vectors * of_dense.unsqueeze(1)) + torch.einsum(
            "bce,c->be", embedded, of_ids
        )

    def _encode_rows(self, histories: Tensor) -> Tensor:
        """Returns F_0, (B, E) float32. Equal histories of consecutive rows are encoded once."""
        first_rows, group = distinct_sequences(histories, self.dropout.shard_starts if self.training else ())
        return self._encode(histories[first_rows], first_rows)[group]

    def _encode(self, histories: Tensor, first_rows: Tensor | None) -> Tensor:
        """Returns F_0, (S, E) float32, for S histories.

        Args:
            histories: (S, L) ids.
            first_rows: (S,), the first row of each history in the batch; None if they are not trained.
        """
        is_item = histories != PAD_ID
        longest = max(int(is_item.sum(dim=1).max()) if len(histories) else 0, 1)
        histories, is_item = histories[:, :longest], is_item[:, :longest]
        vectors = self.embedding.feature_vectors(histories[is_item], self._layout.item)
        dim = vectors.shape[1]
        values = vectors.new_zeros(*histories.shape, dim).masked_scatter(
            is_item.unsqueeze(2), vectors * math.sqrt(dim)
        )
        values = self.dropout(values + self.places[:longest], first_rows)
        for number, block in enumerate(self.blocks, start=1):
            outputs = 1 if number == len(self.blocks) else longest
            values = block(values, is_item, first_rows, outputs)
        encoded = in_float32(self.norm, values[:, 0])
        return torch.where(is_item[:, :1], encoded, self.no_history)


class FactorizedSASRec:
    """The factorization of SASRec: the user's vector and the item's vector, each (R, E) float32."""

    def __init__(self, model: SASRec) -> None:
        self._model = model

    def side_part(self, side: Side, dense: Tensor, categorical: Tensor) -> Part:
        """See `Factorization.side_part`."""
        vectors = self._model.user_vectors if side is Side.USER else self._model.item_vectors
        return (vectors(dense, categorical),)

    def pair_logits(self, users: Part, items: Part) -> Tensor:
        """See `Factorization.pair_logits`."""
        products = vector_products(users[0].unsqueeze(1), items[0].unsqueeze(2))
        return products.squeeze(2) + self._model.bias


def build(settings: Settings, inputs: Inputs) -> SASRec:
    """Builds the model. Raises ConfigError if the settings do not fit the features."""
    return SASRec(settings, inputs)
