"""Scores users against items: user and item parts run once each, and only interactions run per pair.

If a model has no factorization (training/models/factorization.py), the complete model runs on the joined row
of each pair.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from scoring.model.predictor import Predictor
from scoring.ranking.pairs import Side as SideInputs
from training.device.precision import HALVES
from training.models.factorization import Factorizable, Factorization, FeatureSides, Part, Side

log = logging.getLogger("nightrank.scoring")

# Number of users that are scored against the same items in one step. The items are read from memory only once
# for all these users, and the data of the step still fit into a cache.
_TILE_USERS = 16

# The computed parts of all items are kept if they take at most this many bytes on a CPU, or at most
# 1 / _GPU_KEPT_SHARE of a GPU's free memory.
_CPU_KEPT_BYTES = 2**30
_GPU_KEPT_SHARE = 2


@dataclass(frozen=True)
class JoinedRows:
    """Replaces the factorization of a model that has none.

    The part of a user or an item is only its input row. The sum of both rows is the input of the pair.
    """

    predictor: Predictor

    def side_part(self, side: Side, dense: Tensor, categorical: Tensor) -> Part:
        """Returns (dense, categorical) unchanged."""
        return dense, categorical

    def pair_logits(self, users: Part, items: Part) -> Tensor:
        """Runs the complete model on the input of each pair; shapes as in `Factorization.pair_logits`."""
        dense, categorical = (user.unsqueeze(1) + item for user, item in zip(users, items, strict=True))
        logits = self.predictor.logits(dense.flatten(0, 1), categorical.flatten(0, 1))
        return logits.view(dense.shape[:2])


def factorization_of(predictor: Predictor) -> Factorization:
    """The model's factorization, or JoinedRows if it has none."""
    model = predictor.model
    if isinstance(model, Factorizable):
        dtype = HALVES.get(predictor.precision, torch.float32)
        return model.factorize(FeatureSides.of(predictor.spec), dtype)
    return JoinedRows(predictor)


class ItemParts:
    """The parts of the items. The part of an item is what the model computes from this item alone.

    Parts are computed once and kept if the parts of all items fit into memory. Otherwise they are computed at
    each use.

    Args:
        factorization: the factorization of the predictor's model.
        inputs: the model inputs of N items, on the device.
        predictor: the loaded model. Its micro-batch keeps computations within the device's memory.
        kept_bytes: the parts of all items are kept if they take at most this many bytes.
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
                "the computed parts of %d items have %d bytes each, in all more than the limit of %d bytes: "
                "they are computed again for each block of users",
                self.count,
                item_bytes,
                kept_bytes,
            )

    def _compute_all(self, sample: Part, predictor: Predictor) -> Part:
        """Computes the parts of all items. `sample` has the parts of a few items, for widths and dtypes."""
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
        """Whether the parts of all items are kept."""
        return self._kept is not None

    def consecutive(self, items: slice) -> Part:
        """The parts of I consecutive items: tensors (1, I, …)."""
        if self._kept is None:
            return tuple(tensor.unsqueeze(0) for tensor in self._compute(self._inputs.part(items)))
        return tuple(tensor[items].unsqueeze(0) for tensor in self._kept)

    def gather(self, items: Tensor) -> Part:
        """The parts of the items with these indices (T, I): tensors (T, I, …)."""
        flat = items.flatten()
        if self._kept is None:
            parts = self._compute(self._inputs.rows(flat))
        else:
            parts = tuple(tensor.index_select(0, flat) for tensor in self._kept)
        return tuple(tensor.view(*items.shape, *tensor.shape[1:]) for tensor in parts)


class PairScorer:
    """Computes the click probabilities of users × items.

    Args:
        predictor: the model and its device.
        items: the model inputs of the items, on the device, with the context features filled in.
        kept_bytes: the parts of all items are kept if they take at most this many bytes. None chooses a limit
            that suits the device.
    """

    @torch.inference_mode()
    def __init__(self, predictor: Predictor, items: SideInputs, kept_bytes: int | None = None) -> None:
        self._predictor = predictor
        self._factorization = factorization_of(predictor)
        limit = kept_limit(predictor.device) if kept_bytes is None else kept_bytes
        self._items = ItemParts(self._factorization, items, predictor, limit)

    @property
    def keeps_items(self) -> bool:
        """Whether the parts of all items are kept. If not, they are computed at each use."""
        return self._items.kept

    @torch.inference_mode()
    def user_parts(self, inputs: SideInputs) -> Part:
        """The parts of U users, which the model computes from each user alone: tensors (U, …)."""
        return self._predictor.micro_batch.within_memory(lambda rows: self._user_parts(inputs, rows))

    def _user_parts(self, inputs: SideInputs, rows: int) -> Part:
        chunks = [inputs.part(slice(start, start + rows)) for start in range(0, len(inputs.dense), rows)]
        parts = [self._factorization.side_part(Side.USER, chunk.dense, chunk.categorical) for chunk in chunks]
        return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))

    @torch.inference_mode()
    def score_consecutive(self, users: Part, items: slice) -> Tensor:
        """(U, I) float32 probabilities of U users with each of I consecutive items."""
        return self._predictor.micro_batch.within_memory(
            lambda rows: self._score_consecutive(users, items, rows)
        )

    def _score_consecutive(self, users: Part, items: slice, rows: int) -> Tensor:
        num_users, num_items = len(users[0]), items.stop - items.start
        scores = torch.empty(num_users, num_items, dtype=torch.float32, device=users[0].device)
        width = min(num_items, max(rows // min(num_users, _TILE_USERS), 1))
        height = max(rows // width, 1)
        for first in range(0, num_items, width):
            last = min(first + width, num_items)
            item_parts = self._items.consecutive(slice(items.start + first, items.start + last))
            for start in range(0, num_users, height):
                user_parts = tuple(tensor[start : start + height] for tensor in users)
                logits = self._factorization.pair_logits(user_parts, item_parts)
                scores[start : start + height, first:last] = logits
        return scores.sigmoid_()

    @torch.inference_mode()
    def score_lists(self, users: Part, which: Tensor, items: Tensor) -> Tensor:
        """(T, I) float32 probabilities of T lists of I items each.

        Args:
            users: the parts of the users, as user_parts() returns them.
            which: (T,) the index in `users` of each list's user.
            items: (T, I) indices of items.
        """
        return self._predictor.micro_batch.within_memory(
            lambda rows: self._score_lists(users, which, items, rows)
        )

    def _score_lists(self, users: Part, which: Tensor, items: Tensor, rows: int) -> Tensor:
        scores = torch.empty(items.shape, dtype=torch.float32, device=items.device)
        width = min(items.shape[1], rows)
        height = max(rows // width, 1)
        for start in range(0, len(items), height):
            lists = slice(start, start + height)
            user_parts = tuple(tensor.index_select(0, which[lists]) for tensor in users)
            for first in range(0, items.shape[1], width):
                columns = slice(first, first + width)
                item_parts = self._items.gather(items[lists, columns])
                scores[lists, columns] = self._factorization.pair_logits(user_parts, item_parts)
        return scores.sigmoid_()


def kept_limit(device: torch.device) -> int:
    """The maximum size of kept item parts in bytes: 1 GiB on a CPU, half of a GPU's free memory."""
    if device.type != "cuda":
        return _CPU_KEPT_BYTES
    return torch.cuda.mem_get_info(device)[0] // _GPU_KEPT_SHARE
