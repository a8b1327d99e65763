"""Scores (user, item) pairs, and blends the scores with those of the sources of candidates.

Most models have a user part, which depends on the user alone, and an item part, which depends on the item and
the context. Both parts are computed only once; only their interaction is computed for each pair. If a model
has no factorization into parts (training/models/factorization.py), the complete model runs on the joined
input row of each pair.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from conf.errors import DataError
from scoring.model.predictor import Predictor
from scoring.ranking.pairs import Indices, read_items, side_of
from scoring.ranking.pairs import SideInputs as SideInputs
from scoring.requests import BlendRequest, ListRequest
from training.device import product_dtype
from training.models.factorization import (
    Factorizable,
    Factorization,
    FeatureSides,
    ItemScores,
    Part,
    SharesItems,
    Side,
)

log = logging.getLogger("nightrank.scoring")

# Number of users that are scored against the same items in one step. With this number, the step reads the
# items from memory once for all users, and its data fit into a cache.
_TILE_USERS = 16

# Minimum number of items for `ItemScores`. `ItemScores` first computes some values for each user. With fewer
# items, computing these values takes more time than they save later.
_LEAST_SHARED = 64

# Maximum size of item parts that stay in memory: a number of bytes on a CPU, and 1 / _GPU_KEPT_SHARE of the
# free memory of a GPU.
_CPU_KEPT_BYTES = 2**30
_GPU_KEPT_SHARE = 2


@dataclass(frozen=True)
class JoinedRows:
    """A substitute with the interface of a factorization, for models that have none.

    In a factorization, the model computes the part of a user or item from this user or item alone. Here the
    part is the unchanged input row. The input of a pair is the sum of the user's row and the item's row.
    """

    predictor: Predictor

    def side_part(self, side: Side, dense: Tensor, categorical: Tensor) -> Part:
        """Returns the inputs (dense, categorical) of users or items unchanged."""
        return dense, categorical

    def pair_logits(self, users: Part, items: Part) -> Tensor:
        """Runs the complete model on the input of each pair, and returns the logits.

        The shapes are those of `Factorization.pair_logits`.
        """
        dense, categorical = (user.unsqueeze(1) + item for user, item in zip(users, items, strict=True))
        logits = self.predictor.logits(dense.flatten(0, 1), categorical.flatten(0, 1))
        return logits.view(dense.shape[:2])


def factorization_of(predictor: Predictor) -> Factorization:
    """Returns the model's factorization into user and item parts; JoinedRows if the model has none."""
    model = predictor.model
    if isinstance(model, Factorizable):
        dtype = product_dtype(predictor.precision)
        return model.factorize(FeatureSides.of(predictor.spec), dtype)
    return JoinedRows(predictor)


class ItemParts:
    """The item parts: the values that the model computes from each item and the context, without the user.

    If the parts of all items need at most `kept_bytes` bytes, they are computed once and stay in memory.
    Otherwise each use of the parts computes them again.

    Args:
        factorization: the factorization of the predictor's model.
        inputs: the model inputs of N items, on the device.
        predictor: the loaded model. The size of its micro-batch limits the memory that a computation needs.
        kept_bytes: maximum number of bytes of stored parts.
    """

    def __init__(
        self, factorization: Factorization, inputs: SideInputs, predictor: Predictor, kept_bytes: int
    ) -> None:
        self._factorization, self._inputs = factorization, inputs
        self.count = len(inputs.dense)
        sample = self._compute(inputs.part(slice(0, 1)))
        item_bytes = sum(tensor.numel() * tensor.element_size() for tensor in sample)
        self._kept: Part | None = None
        if self.count * item_bytes <= kept_bytes:
            self._kept = self._compute_all(sample, predictor)
        else:
            log.info(
                "the item parts of the model need too much memory (%d items, %d bytes each, limit %d "
                "bytes), so they are computed again for each block of users",
                self.count,
                item_bytes,
                kept_bytes,
            )

    def _compute_all(self, sample: Part, predictor: Predictor) -> Part:
        """Computes the parts of all items.

        Args:
            sample: the part of one item, which shows the widths and dtypes of the tensors.
            predictor: the loaded model.
        """
        parts = tuple(tensor.new_empty(self.count, *tensor.shape[1:]) for tensor in sample)

        def fill(rows: slice) -> None:
            for whole, part in zip(parts, self._compute(self._inputs.part(rows)), strict=True):
                whole[rows] = part

        predictor.micro_batch.over(self.count, fill)
        return parts

    def _compute(self, inputs: SideInputs) -> Part:
        return self._factorization.side_part(Side.ITEM, inputs.dense, inputs.categorical)

    @property
    def kept(self) -> bool:
        """Returns whether the values that the model computed from all items stay in memory."""
        return self._kept is not None

    def consecutive(self, items: slice) -> Part:
        """Returns the parts of I consecutive items: a tuple of tensors of shape (1, I, …)."""
        if self._kept is None:
            return tuple(tensor.unsqueeze(0) for tensor in self._compute(self._inputs.part(items)))
        return tuple(tensor[items].unsqueeze(0) for tensor in self._kept)

    def gather(self, items: Tensor) -> Part:
        """Returns the parts of the items with the indices (T, I): a tuple of tensors of shape (T, I, …)."""
        flat = items.flatten()
        if self._kept is None:
            parts = self._compute(self._inputs.rows(flat))
        else:
            parts = tuple(tensor.index_select(0, flat) for tensor in self._kept)
        return tuple(tensor.view(*items.shape, *tensor.shape[1:]) for tensor in parts)

    def shared(self, most_bytes: int) -> ItemScores | None:
        """Returns an object that scores all items for a block of users at once.

        Returns None if the factorization cannot prepare items.
        """
        kept, factorization = self._kept, self._factorization
        if kept is None or not isinstance(factorization, SharesItems) or len(kept[0]) < _LEAST_SHARED:
            return None
        if any(part.device.type != "cpu" or part.dtype != torch.float32 for part in kept):
            return None
        return factorization.share_items(kept, most_bytes)


class PairScorer:
    """Computes the logits of (user, item) pairs.

    Args:
        predictor: the model and its device.
        items: the model inputs of the items, on the device, with the context features filled in.
        kept_bytes: maximum number of bytes of item parts that stay in memory (see ItemParts). None chooses a
            limit that suits the device.
    """

    @torch.inference_mode()
    def __init__(self, predictor: Predictor, items: SideInputs, kept_bytes: int | None = None) -> None:
        self._predictor = predictor
        self._factorization = factorization_of(predictor)
        limit = kept_limit(predictor.device) if kept_bytes is None else kept_bytes
        self._items = ItemParts(self._factorization, items, predictor, limit)
        self._shared = self._items.shared(limit)

    @property
    def keeps_items(self) -> bool:
        """Returns whether the parts of all items stay in memory. If not, each use computes them again."""
        return self._items.kept

    @torch.inference_mode()
    def user_parts(self, inputs: SideInputs) -> Part:
        """Returns the user parts: the values that the model computes from each user, without the items.

        The result is a tuple of tensors of shape (U, …).
        """
        return self._predictor.micro_batch.within_memory(lambda rows: self._user_parts(inputs, rows))

    def _user_parts(self, inputs: SideInputs, rows: int) -> Part:
        chunks = [inputs.part(slice(start, start + rows)) for start in range(0, len(inputs.dense), rows)]
        parts = [self._factorization.side_part(Side.USER, chunk.dense, chunk.categorical) for chunk in chunks]
        return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))

    @torch.inference_mode()
    def consecutive_logits(self, users: Part, items: slice) -> Tensor:
        """Returns the float32 logits of U users with I consecutive items, shape (U, I).

        All ranges of items use the same method, because two methods differ by rounding, and logits of equal
        items must be equal.
        """
        if self._shared is not None:
            return self._shared.logits(users, items)
        return self._predictor.micro_batch.within_memory(
            lambda rows: self._consecutive_logits(users, items, rows)
        )

    def _consecutive_logits(self, users: Part, items: slice, rows: int) -> Tensor:
        num_users, num_items = len(users[0]), items.stop - items.start
        logits = torch.empty(num_users, num_items, dtype=torch.float32, device=users[0].device)
        width = min(num_items, max(rows // min(num_users, _TILE_USERS), 1))
        height = max(rows // width, 1)
        for first in range(0, num_items, width):
            last = min(first + width, num_items)
            item_parts = self._items.consecutive(slice(items.start + first, items.start + last))
            for start in range(0, num_users, height):
                user_parts = tuple(tensor[start : start + height] for tensor in users)
                of_pairs = self._factorization.pair_logits(user_parts, item_parts)
                logits[start : start + height, first:last] = of_pairs
        return logits

    @torch.inference_mode()
    def list_logits(self, users: Part, which: Tensor, items: Tensor) -> Tensor:
        """Returns the float32 logits of T lists of I items each, shape (T, I).

        Args:
            users: the user parts, as user_parts() returns them.
            which: (T,) for each list, the index of its user in `users`.
            items: (T, I) item indices.
        """
        return self._predictor.micro_batch.within_memory(
            lambda rows: self._list_logits(users, which, items, rows)
        )

    def _list_logits(self, users: Part, which: Tensor, items: Tensor, rows: int) -> Tensor:
        logits = torch.empty(items.shape, dtype=torch.float32, device=items.device)
        width = min(items.shape[1], rows)
        height = max(rows // width, 1)
        for start in range(0, len(items), height):
            lists = slice(start, start + height)
            user_parts = tuple(tensor.index_select(0, which[lists]) for tensor in users)
            for first in range(0, items.shape[1], width):
                columns = slice(first, first + width)
                item_parts = self._items.gather(items[lists, columns])
                logits[lists, columns] = self._factorization.pair_logits(user_parts, item_parts)
        return logits


def kept_limit(device: torch.device) -> int:
    """Returns the maximum number of bytes of item parts that stay in memory.

    The maximum is 1 GiB on a CPU, and half of the free memory on a GPU.
    """
    if device.type != "cuda":
        return _CPU_KEPT_BYTES
    return torch.cuda.mem_get_info(device)[0] // _GPU_KEPT_SHARE


# The code below computes the probabilities of a sample of (user, item) pairs.
#
# The features come from the same tables that the lists are computed from.


def score_sample(
    predictor: Predictor, users: pa.Table, request: ListRequest, items: int
) -> NDArray[np.float32]:
    """Returns the probabilities of pairs: each user is paired with the same items.

    The indices of these items are equally spaced between the first and the last item.

    Args:
        predictor: the loaded model.
        users: the features of scope `user`, one row per user.
        request: names the files of the items, and contains the values of the context features.
        items: number of items for each user. If there are fewer candidate items (N), all N are used.

    Returns:
        A float32 array of shape (U * min(items, N),). It has all probabilities of the first user, then those
        of the second user, and so on.
    """
    all_items = read_items(request.item_files, predictor, dict(request.context))
    count = min(items, len(all_items.keys))
    chosen = torch.from_numpy(np.linspace(0, len(all_items.keys) - 1, count).round().astype(np.int64))
    side = side_of(users, predictor.spec, predictor.multi_hot, "user")
    user = torch.arange(users.num_rows).repeat_interleave(count)
    pairs = side.rows(user).plus(all_items.side.rows(chosen.repeat(users.num_rows)))
    scored: NDArray[np.float32] = predictor.probabilities(pairs.dense, pairs.categorical).numpy()
    return scored


# The code below computes the blend on a device: combines the logits of pairs with the sources' scores of the
# items.

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
        starts: (U + 1,) index of the first candidate of each user; the last element is P, the number of all
            candidates.
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
                f"user {users[user]} has {lengths[user]} candidates and {numbers[user]} scores, "
                f"but needs {sources} scores for each candidate, one from each source",
                _AGAIN,
            )
        flat = np.array(scores.flatten())  # torch needs a writable copy
        items = candidates.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
        return cls(np.concatenate([[0], np.cumsum(lengths)]), items, flat.reshape(-1, sources))

    def block(self, users: slice) -> NDArray[np.float32]:
        """Returns the scores (P, S) that S sources gave to the P candidates of consecutive users."""
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
