"""Mult-VAE (D. Liang et al., Variational Autoencoders for Collaborative Filtering, WWW 2018).

The user's history is a bag of items x, a vector with 1 for each of its distinct items and 0 elsewhere. An
encoder computes the mean and the variance of a latent variable z, and a decoder computes a vector of the user
from z. In scoring, z is its mean (sections 2.1 to 2.4):

    h = tanh(Dropout(x / ‖x‖₂) W + b),  μ, log σ² = encoder(h),  z = μ + σ ⊙ ε,  ε ~ N(0, I)
    π = softmax over all items j of ⟨decoder(z), M[j]⟩ + b[j]
    loss = -Σ_j y_j log π_j + β · KL(N(μ, diag σ²) ‖ N(0, I))                               (equation 6)

W has a row for each item. M is the matrix of the decoder's last layer. The rows of W and of M are rows of the
embedding table. Such a row has one number for each output of the first hidden layer. The decoder has the
hidden layers of the encoder in reverse order. All hidden layers have the activation tanh. During training, β
rises linearly from 0 to its final value (section 2.2.2). Vectors of other features extend the paper's model
(training/models/sequence_model.py).

Differences from the paper:

* The paper has one example per user, the bag x of all the user's items, and y = x. Here each row of the log
  is an example: x is the history of the row, and y is the history and the row's item. So the examples of a
  user are prefixes of the user's sequence, and no example contains a later click. Active users have more
  weight than in the paper, because they have more and longer examples.
* The row's item is never part of x. Otherwise the input would contain the item to be predicted. When lists
  are made, the input contains only past clicks. x has the same dropout as in the paper.
* A history has a maximum length (`multi_hot.lengths`), because the rows of a batch have a fixed width.
* With `train.loss: full_softmax`, the softmax is over the items of the row's day. Items of the history that
  are not items of this day, or that have a reserved id, are left out of y. `history_weight` is the weight of
  the items of the history in y. If `history_weight` is 0, y is the row's item alone, and other losses may be
  used.

Notation: B rows, S distinct histories, L the number of positions of a padded history, E width of the first
hidden layer, K latent_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from storage.feature_spec import NUM_RESERVED_IDS, PAD_ID
from training.architecture_settings.mult_vae import Settings
from training.models.click_model import Bags
from training.models.inputs import Inputs
from training.models.layers import in_float32, linear
from training.models.sequence import SequenceDropout, SequenceNoise, distinct_sequences
from training.models.sequence_model import BiasedSequenceModel, sequence_layout


class MultVAE(BiasedSequenceModel):
    """A variational autoencoder of the bag of the user's items."""

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        layout, width = sequence_layout("mult_vae", settings, inputs, shared=False), settings.hidden[0]
        super().__init__(layout, width, inputs)
        self._add_item_biases(inputs)
        self._add_features(inputs)
        self.dropout = SequenceDropout(settings.dropout)
        self.noise = SequenceNoise()
        self.input_bias = nn.Parameter(torch.zeros(width))
        self.encoder = tanh_layers(settings.hidden)
        self.posterior = linear(settings.hidden[-1], 2 * settings.latent_dim)
        self.decoder = tanh_layers([settings.latent_dim, *reversed(settings.hidden)])
        self._beta, self._anneal_share = settings.beta, settings.anneal_share
        self._history_weight = settings.history_weight
        self._divergences: Tensor | None = None

    def encode(self, histories: Tensor, first_rows: Tensor | None) -> Tensor:
        """Returns decoder(z), (S, E) float32. See `SequenceModel.encode`."""
        return self._autoencode(histories, first_rows)[0]

    def take_penalty(self, progress: float) -> Tensor:
        """Returns β · KL of each row, (B,) float32. See `PenalizedModel`."""
        divergences, self._divergences = self._divergences, None
        assert divergences is not None
        return divergences * annealed(self._beta, self._anneal_share, progress)

    def bags(self, categorical: Tensor, items: Tensor) -> Bags | None:
        """Returns the items of the rows' histories as further targets of the loss. See `BagModel`."""
        if not self._history_weight:
            return None
        layout = self.layout
        histories = categorical[:, layout.columns].long()
        vocabulary = layout.cardinalities[layout.item]
        weights = torch.zeros(len(histories), vocabulary, device=histories.device)
        weights.scatter_(1, histories, self._history_weight)
        weights[:, :NUM_RESERVED_IDS] = 0
        return Bags(weights, items[:, layout.item].long())

    def _encode_rows(self, histories: Tensor) -> Tensor:
        """Returns decoder(z) of each row, (B, E) float32.

        In training, also keeps the divergence of each row for `take_penalty`.
        """
        first_rows, group = distinct_sequences(histories, self.dropout.shard_starts if self.training else ())
        decoded, divergences = self._autoencode(histories[first_rows], first_rows)
        if self.training:
            self._divergences = divergences[group]
        return decoded[group]

    def _autoencode(self, histories: Tensor, first_rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns decoder(z), (S, E) float32, and the posterior's divergence from N(0, I), (S,) float32."""
        hidden = torch.tanh(self._input_sums(histories, first_rows) + self.input_bias)
        mean, log_variance = in_float32(self.posterior, self.encoder(hidden)).chunk(2, dim=1)  # (S, K) each
        divergences = (log_variance.exp() + mean.square() - 1 - log_variance).sum(dim=1) / 2
        latent = mean + self.noise(mean, first_rows) * (log_variance / 2).exp()
        return in_float32(self.decoder, latent), divergences

    def _input_sums(self, histories: Tensor, first_rows: Tensor | None) -> Tensor:
        """Returns the first layer's sums without bias, Dropout(x / ‖x‖₂) W, of histories, (S, E) float32."""
        ids = without_repeats(histories)
        is_item = ids != PAD_ID
        values = is_item / is_item.sum(dim=1, keepdim=True).clamp(min=1).sqrt()  # (S, L)
        values = self.dropout(values.unsqueeze(2), first_rows).squeeze(2)
        if torch.compiler.is_exporting():  # the shapes of tensors must not depend on ids
            vectors = self.embedding.feature_vectors(ids.flatten(), self.layout.history)
            return (vectors.view(*ids.shape, -1) * values.unsqueeze(2)).sum(dim=1)
        kept = values != 0
        vectors = self.embedding.feature_vectors(ids[kept], self.layout.history) * values[kept].unsqueeze(1)
        sums = vectors.new_zeros(len(ids), vectors.shape[1])
        return sums.index_add(0, kept.nonzero()[:, 0], vectors)


def tanh_layers(widths: Sequence[int]) -> nn.Sequential:
    """Returns a linear layer and tanh for each pair of successive widths."""
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(widths):
        layers += [linear(width_in, width_out), nn.Tanh()]
    return nn.Sequential(*layers)


def without_repeats(histories: Tensor) -> Tensor:
    """Returns the ids of each history (S, L) in ascending order, with PAD_ID instead of repeated ids."""
    ids = histories.sort(dim=1).values
    repeated = torch.zeros_like(ids, dtype=torch.bool)
    repeated[:, 1:] = ids[:, 1:] == ids[:, :-1]
    return ids.masked_fill(repeated, PAD_ID)


def annealed(beta: float, share: float, progress: float) -> float:
    """Returns the KL divergence's weight. It rises linearly to `beta` in the first `share` of the steps."""
    return beta * min(1.0, progress / share) if share else beta


def build(settings: Settings, inputs: Inputs) -> MultVAE:
    """Builds the model. Raises ConfigError if the settings do not fit the features."""
    return MultVAE(settings, inputs)
