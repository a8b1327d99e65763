"""The base classes of models that encode the user's history and compare the result with the item's vector.

    u = encoded history + Σ vectors of other features of the user
    v = M[item] + Σ vectors of other features of the item and the context
    logit = ⟨u, v⟩ + bias

Except in Mult-VAE, M is the table that also has the vectors of the history's items. A dense feature's vector
is the value times a learned vector. Each row of the log is one example with its own history, so the loader
may shuffle rows. The history is encoded once for a row and its drawn negatives.

Notation: B rows, S distinct histories, D dense features, W columns of ids, L positions, E embedding_dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from training.models.factorization import FeatureSides, Part, Side, vector_products
from training.models.history import HistoryModel, Layout
from training.models.inputs import Inputs
from training.models.sequence import Encode, LengthGroups, SequenceDropout, distinct_sequences
from training.settings.shared_settings import HistorySettings, refuse_pairs

_DEVIATION = 0.02  # standard deviation of initial vectors, as in BERT4Rec (section 4.3)


class SequenceModel(HistoryModel, ABC):
    """A model that compares an encoded history with the item's vector.

    A subclass calls `_add_features` and sets `dropout` when it creates its layers.

    Attributes:
        shares_histories: whether rows of a user follow each other in batches. If so, a training run may
            encode the items that successive histories share only once.
    """

    shares_histories = False
    user_dense: Tensor
    user_embedded: Tensor
    dropout: SequenceDropout

    def __init__(self, layout: Layout, dim: int, inputs: Inputs) -> None:
        """Creates the embedding table."""
        super().__init__(layout, dim, inputs, _DEVIATION)

    def _add_features(self, inputs: Inputs, ages: str | None = None) -> None:
        """Creates the vectors of dense features, and stores the side of each feature.

        Args:
            inputs: the inputs of the model.
            ages: name of the feature with the ages of the history's items, which has no vectors.
        """
        self.dense_vectors = first_vectors(inputs.num_dense, self.embedding.dim)
        for name, scopes in (("user_dense", inputs.dense_scopes), ("user_embedded", inputs.embedded_scopes)):
            of_user = torch.tensor([scope == "user" for scope in scopes], dtype=torch.float32)
            self.register_buffer(name, of_user, persistent=False)
        self._num_single = inputs.num_embedded - len(inputs.list_lengths)
        # The id features of the user, then those of the item and context, without the history and the ages.
        self._ids_of_sides: tuple[list[int], list[int]] = ([], [])
        for feature, scope in enumerate(inputs.embedded_scopes):
            if feature != self.layout.history and inputs.names[feature] != ages:
                self._ids_of_sides[scope != "user"].append(feature)

    @abstractmethod
    def encode(self, histories: Tensor, first_rows: Tensor | None) -> Tensor:
        """Returns the encoded histories (S, E) float32.

        Args:
            histories: (S, L) ids or, if the model reads ages, (S, 2 L): the ids of the items, then the ids of
                their ages.
            first_rows: (S,), the first row of each history in the batch; None outside of training.
        """

    def encode_by_length(
        self, histories: Tensor, first_rows: Tensor | None, encode: Encode, ages: Tensor | None = None
    ) -> Tensor:
        """Encodes histories in groups of similar lengths; see `encode` and `LengthGroups.encode`.

        All vectors are looked up at once, because all ranks must do the same number of lookups in a table.
        """
        groups = LengthGroups.of(histories)
        vectors, is_item = self.history_vectors(histories[:, : groups.longest])
        return groups.encode(vectors, is_item, first_rows, encode, ages)

    @abstractmethod
    def item_biases(self, categorical: Tensor) -> Tensor:
        """Returns the biases (B,) float32 of the logits. Only columns of item features influence them."""

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns the logits (B,) from `dense` (B, D) float32 and `categorical` (B, W) int."""
        histories, others = self.separate(categorical)
        user, item = self._sides(dense, others).unbind(1)
        return ((self._encode_rows(histories) + user) * item).sum(dim=1) + self.item_biases(categorical)

    def user_vectors(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns user vectors (B, E) float32. Only columns of user features influence them."""
        return self.user_part(dense, categorical)

    def item_vectors(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns item vectors (B, E) float32. Only columns of item and context features influence them."""
        return self.item_part(dense, categorical)

    def user_part(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns the user's vector u (B, E): the encoded history plus vectors of other user features."""
        histories = self.histories(categorical)
        encoded = self._encode_rows(histories) if self.training else self.encode(histories, None)
        if not dense.shape[1] and not self._ids_of_sides[0]:
            return encoded
        return encoded + self._side(dense, categorical, 0)

    def item_part(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns the item's vector v (B, E): the sum of the vectors of the item's and context features."""
        return self._side(dense, categorical, 1)

    def factorize(self, sides: FeatureSides, dtype: torch.dtype) -> FactorizedSequenceModel:
        """Returns this model divided into computations per user, per item and per pair.

        Products are computed in float32.
        """
        return FactorizedSequenceModel(self)

    def _encode_rows(self, histories: Tensor) -> Tensor:
        """Returns the encoded histories (B, E) float32.

        Equal histories of consecutive rows are encoded once.
        """
        first_rows, group = distinct_sequences(histories, self.dropout.shard_starts if self.training else ())
        return self.encode(histories[first_rows], first_rows)[group]

    def _side(self, dense: Tensor, categorical: Tensor, side: int) -> Tensor:
        """Returns the sum of the vectors of the features of one side, (B, E), without the history.

        If the side has only one feature, and this feature has one id per row, only its vectors are looked up.
        """
        features = self._ids_of_sides[side]
        if not dense.shape[1] and len(features) == 1 and features[0] < self._num_single:
            return self.embedding.feature_vectors(categorical[:, features[0]], features[0])
        return self._sides(dense, self.separate(categorical)[1], slice(side, side + 1)).squeeze(1)

    def _sides(self, dense: Tensor, embedded: Tensor, sides: slice = slice(2)) -> Tensor:
        """Returns the sums of the vectors of the features of each side, (B, sides, E), without the history.

        Side 0 is the user, side 1 the item and the context. The sums are float32 even under mixed precision,
        because the logit is a sum of their products.
        """
        with torch.autocast(embedded.device.type, enabled=False):
            of_ids = torch.stack([self.user_embedded, 1 - self.user_embedded])[sides]  # (sides, C)
            sums = of_ids @ embedded
            if not dense.shape[1]:
                return sums
            of_dense = torch.stack([self.user_dense, 1 - self.user_dense])[sides]  # (sides, D)
            vectors = of_dense.unsqueeze(2) * self.dense_vectors  # (sides, D, E)
            return sums + (dense @ vectors.transpose(0, 1).flatten(1)).unflatten(1, (len(of_ids), -1))


def sequence_layout(
    architecture: str, settings: HistorySettings, inputs: Inputs, *, shared: bool = True
) -> Layout:
    """Returns the layout. Raises ConfigError if the settings do not fit the features.

    `shared` says whether the items of histories use the table rows of the item's feature, and have no rows of
    their own.
    """
    by_name = zip(inputs.names, inputs.embedded_scopes, strict=True)
    pairs = [name for name, scope in by_name if scope == "pair"]
    pairs += ["a dense feature"] if "pair" in inputs.dense_scopes else []
    refuse_pairs(architecture, pairs)
    return Layout.of(architecture, settings, inputs, shared=shared)


class FactorizedSequenceModel:
    """The factorization of a `SequenceModel`. Users have vectors (R, E); items also have biases (R,).

    All of them are float32.
    """

    def __init__(self, model: SequenceModel) -> None:
        self._model = model

    def side_part(self, side: Side, dense: Tensor, categorical: Tensor) -> Part:
        """See `Factorization.side_part`."""
        model = self._model
        if side is Side.USER:
            return (model.user_part(dense, categorical),)
        return model.item_part(dense, categorical), model.item_biases(categorical)

    def pair_logits(self, users: Part, items: Part) -> Tensor:
        """See `Factorization.pair_logits`."""
        return vector_products(users[0].unsqueeze(1), items[0].unsqueeze(2)).squeeze(2) + items[1]


class BiasedSequenceModel(SequenceModel):
    """A model over the user's history that has a bias for each item.

    A subclass calls `_add_item_biases` when it creates its layers.
    """

    def _add_item_biases(self, inputs: Inputs) -> None:
        """Creates a bias for each item. The biases are zero at first."""
        layout = self.layout
        # Only rows of the item's feature are read. The table has one row for each other feature, because the
        # code that saves and loads tables finds rows by the index of the feature.
        biases = [1] * inputs.num_embedded
        biases[layout.item] = layout.cardinalities[layout.item]
        self.item_bias = inputs.tables.table(
            biases, 1, inputs.list_lengths, inputs.pooling, inputs.names, by_ftrl=False
        )

    def item_biases(self, categorical: Tensor) -> Tensor:
        """Returns the bias of each row's item, (B,) float32."""
        return self.item_bias.feature_vectors(categorical[:, self.layout.item], self.layout.item).squeeze(1)

    def user_vectors(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns user vectors (B, E + 1) float32. The last number is 1, the factor of the item's bias."""
        vectors = self.user_part(dense, categorical)
        return torch.cat([vectors, vectors.new_ones(vectors.shape[0], 1)], dim=1)

    def item_vectors(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns item vectors (B, E + 1) float32. The last number is the item's bias."""
        biases = self.item_biases(categorical).unsqueeze(1)
        return torch.cat([self.item_part(dense, categorical), biases], dim=1)


def first_vectors(*shape: int) -> nn.Parameter:
    """Returns a parameter with random numbers drawn from N(0, 0.02²)."""
    return nn.Parameter(torch.empty(*shape).normal_(std=_DEVIATION))
