"""Scores users against items on the device: parts of the model that hang on one side alone run once a user and once an item.

A model that does not split (training/models/factorization.py) has its rows assembled from both sides, for
each pair.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from scoring.model.predictor import Predictor
from scoring.ranking.pairs import Side
from training.device.precision import HALVES
from training.models.factorization import Part, Sides, Split, Splits

log = logging.getLogger("nightrank.scoring")

# Users who meet the same items at once: enough that items read from memory serve several, few enough for a
# cache.
_TILE_USERS = 16

# Parts of items are kept where they take no more than this, or than this share of a GPU's free memory.
_CPU_KEPT_BYTES = 2**30
_GPU_KEPT_SHARE = 2


@dataclass(frozen=True)
class JoinedRows:
    """The split of a model that has none: a part is the side's rows, a pair their sum."""

    predictor: Predictor

    def user_part(self, dense: Tensor, categorical: Tensor) -> Part:
        return dense, categorical

    def item_part(self, dense: Tensor, categorical: Tensor) -> Part:
        return dense, categorical

    def pair_part(self, users: Part, items: Part) -> Tensor:
        dense, categorical = (user.unsqueeze(1) + item for user, item in zip(users, items, strict=True))
        logits = self.predictor.logits(dense.flatten(0, 1), categorical.flatten(0, 1))
        return logits.view(dense.shape[:2])


def split_of(predictor: Predictor) -> Split:
    """The model's own split, or that of whole rows."""
    model = predictor.model
    if isinstance(model, Splits):
        return model.split(Sides.of(predictor.spec), HALVES.get(predictor.precision, torch.float32))
    return JoinedRows(predictor)


class ItemParts:
    """The items' part of the model: kept for all items where memory allows it, else computed when it is asked for.

    Args:
        side: N items on the device.
        kept_bytes: what all parts may take to be kept.
    """

    def __init__(self, split: Split, side: Side, predictor: Predictor, kept_bytes: int) -> None:
        self._split, self._side = split, side
        self.count = len(side.dense)
        sample = self._compute(side.part(slice(0, 1)))
        item_bytes = sum(each.numel() * each.element_size() for each in sample)
        self._kept: Part | None = None
        if self.count * item_bytes <= kept_bytes:
            self._kept = self._all(sample, predictor)
        else:
            log.info(
                "%d items of %d bytes each are more than the %d bytes kept for them: computed for each block of users",
                self.count,
                item_bytes,
                kept_bytes,
            )

    def _all(self, sample: Part, predictor: Predictor) -> Part:
        """The parts of all items, of the shapes that a sample has."""
        kept = tuple(each.new_empty(self.count, *each.shape[1:]) for each in sample)

        def fill(rows: slice) -> None:
            for whole, part in zip(kept, self._compute(self._side.part(rows)), strict=True):
                whole[rows] = part

        predictor.micro_batch.over(self.count, fill)
        return kept

    def _compute(self, side: Side) -> Part:
        return self._split.item_part(side.dense, side.categorical)

    @property
    def kept(self) -> bool:
        return self._kept is not None

    def shared(self, items: slice) -> Part:
        """Tensors (1, I, …) of consecutive items."""
        if self._kept is None:
            return tuple(each.unsqueeze(0) for each in self._compute(self._side.part(items)))
        return tuple(each[items].unsqueeze(0) for each in self._kept)

    def own(self, items: Tensor) -> Part:
        """Tensors (T, I, …) of items (T, I) by index."""
        flat = items.flatten()
        if self._kept is None:
            parts = self._compute(self._side.rows(flat))
        else:
            parts = tuple(each.index_select(0, flat) for each in self._kept)
        return tuple(each.view(*items.shape, *each.shape[1:]) for each in parts)


class Crossing:
    """Click probabilities of users × items.

    Args:
        items: on the device, context filled in.
        kept_bytes: what the items' parts may take to be kept; None lets the device decide.
    """

    @torch.inference_mode()
    def __init__(self, predictor: Predictor, items: Side, kept_bytes: int | None = None) -> None:
        self._predictor = predictor
        self._split = split_of(predictor)
        limit = kept_limit(predictor.device) if kept_bytes is None else kept_bytes
        self._items = ItemParts(self._split, items, predictor, limit)

    @property
    def keeps_items(self) -> bool:
        """Whether the items' part of the model is there, or computed whenever items are met."""
        return self._items.kept

    @torch.inference_mode()
    def users(self, side: Side) -> Part:
        """The users' part of the model: tensors (U, …)."""
        return self._predictor.micro_batch.within_memory(lambda rows: self._users(side, rows))

    def _users(self, side: Side, rows: int) -> Part:
        parts = [side.part(slice(start, start + rows)) for start in range(0, len(side.dense), rows)]
        found = [self._split.user_part(each.dense, each.categorical) for each in parts]
        return tuple(torch.cat(pieces) for pieces in zip(*found, strict=True))

    @torch.inference_mode()
    def with_all(self, users: Part, items: slice) -> Tensor:
        """(U, I) probabilities, float32, of users with each of some consecutive items."""
        return self._predictor.micro_batch.within_memory(lambda rows: self._with_all(users, items, rows))

    def _with_all(self, users: Part, items: slice, rows: int) -> Tensor:
        many, each = len(users[0]), items.stop - items.start
        scores = torch.empty(many, each, dtype=torch.float32, device=users[0].device)
        width = min(each, max(rows // min(many, _TILE_USERS), 1))
        height = max(rows // width, 1)
        for first in range(0, each, width):
            last = min(first + width, each)
            theirs = self._items.shared(slice(items.start + first, items.start + last))
            for start in range(0, many, height):
                some = tuple(part[start : start + height] for part in users)
                scores[start : start + height, first:last] = self._split.pair_part(some, theirs)
        return scores.sigmoid_()

    @torch.inference_mode()
    def with_own(self, users: Part, which: Tensor, items: Tensor) -> Tensor:
        """(T, I) probabilities, float32, of items (T, I), by index, for the users (T,), by place, they are candidates of."""
        return self._predictor.micro_batch.within_memory(
            lambda rows: self._with_own(users, which, items, rows)
        )

    def _with_own(self, users: Part, which: Tensor, items: Tensor, rows: int) -> Tensor:
        scores = torch.empty(items.shape, dtype=torch.float32, device=items.device)
        width = min(items.shape[1], rows)
        height = max(rows // width, 1)
        for start in range(0, len(items), height):
            part = slice(start, start + height)
            some = tuple(each.index_select(0, which[part]) for each in users)
            for first in range(0, items.shape[1], width):
                columns = slice(first, first + width)
                scores[part, columns] = self._split.pair_part(some, self._items.own(items[part, columns]))
        return scores.sigmoid_()


def kept_limit(device: torch.device) -> int:
    """Bytes that the parts of all items may take: 1 GiB on a CPU, half of a GPU's free memory."""
    if device.type != "cuda":
        return _CPU_KEPT_BYTES
    return torch.cuda.mem_get_info(device)[0] // _GPU_KEPT_SHARE
