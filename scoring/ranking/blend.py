"""Computes the blend on a device: combines the logits of pairs with the sources' scores of the items."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from conf.errors import DataError
from scoring.ranking.pairs import Indices
from scoring.requests import BlendRequest

_AGAIN = "run build_candidates again, with score.blend: auto"
_ITEM_BITS = 32


@dataclass(frozen=True)
class Blend:
    """The weights of a blend of the model and S sources (BlendRequest), on the device.

    Attributes:
        intercept: the constant term.
        logit: the weight of the model's logit.
        weights: (S,) float32, the weight of each source's score.
        absent: (S,) float32, the term that each source adds for an item that it did not propose.
    """

    intercept: float
    logit: float
    weights: Tensor
    absent: Tensor

    @classmethod
    def of(cls, request: BlendRequest, device: torch.device) -> Blend:
        """Returns the blend of a request."""
        weights, absent = (
            torch.tensor(values, dtype=torch.float32, device=device)
            for values in (request.weights, request.absent)
        )
        return cls(request.intercept, request.logit, weights, absent)

    def scores(self, logits: Tensor, source_scores: Tensor) -> Tensor:
        """Returns the scores of the blend, float32, in the shape of `logits`.

        Args:
            logits: (T, I) logits of pairs.
            source_scores: (T, I, S) scores of the sources; NaN if the source did not propose the item.
        """
        parts = torch.where(source_scores.isnan(), self.absent, source_scores * self.weights)
        return self.intercept + self.logit * logits + parts.sum(dim=-1)


@dataclass(frozen=True)
class SourceScores:
    """The scores that S sources gave to the candidates of the users of one batch.

    Attributes:
        starts: (U + 1,) index of the first candidate of each user; the last number is P.
        items: (P,) int64, the item index of each candidate.
        scores: (P, S) float32, NaN where the source did not propose the item.
    """

    starts: Indices
    items: Indices
    scores: NDArray[np.float32]

    @classmethod
    def of(
        cls, users: pa.Array, candidates: pa.ListArray, scores: pa.ListArray, sources: int
    ) -> SourceScores:
        """Reads the column source_scores of a batch of candidates.

        Args:
            users: the keys of the users.
            candidates: the item indices of each user.
            scores: for each user, a flat list with `sources` numbers per candidate.
            sources: S, the number of sources.

        Raises:
            DataError: a user has no list, or the number of scores is wrong. The message names the user.
        """
        lengths, numbers = (
            lists.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False)
            for lists in (candidates, scores)
        )
        wrong = np.flatnonzero((lengths < 0) | (numbers != lengths * sources))
        if len(wrong):
            user = int(wrong[0])
            raise DataError(
                f"user {users[user]} has {lengths[user]} candidates and {numbers[user]} scores of sources, "
                f"but there are {sources} sources",
                _AGAIN,
            )
        flat = np.array(scores.flatten())  # torch needs a writable copy
        items = candidates.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
        return cls(np.concatenate([[0], np.cumsum(lengths)]), items, flat.reshape(-1, sources))

    def block(self, users: slice) -> NDArray[np.float32]:
        """Returns the scores (P, S) of the candidates of consecutive users."""
        return self.scores[self.starts[users.start] : self.starts[users.stop]]

    def of_items(self, users: slice, items: Indices) -> NDArray[np.float32]:
        """Returns the scores (U, K, S) of K candidates of each of U consecutive users.

        Args:
            users: the users.
            items: (U, K) item indices. The scores of an item that is not a candidate are undefined.
        """
        lengths = np.diff(self.starts[users.start : users.stop + 1])
        block, scores = slice(self.starts[users.start], self.starts[users.stop]), self.block(users)
        if not len(scores):
            return np.full((*items.shape, self.scores.shape[1]), np.nan, np.float32)
        keys = np.repeat(np.arange(len(lengths)), lengths) << _ITEM_BITS | self.items[block]
        order = np.argsort(keys)
        wanted = np.arange(len(lengths))[:, None] << _ITEM_BITS | items
        place = np.searchsorted(keys, wanted, sorter=order).clip(max=len(keys) - 1)
        return scores[order[place]]
