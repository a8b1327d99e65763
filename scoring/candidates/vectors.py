"""Exact retrieval in a worker: all items' vectors on the device once, users against them in blocks, the n best kept.

Nothing is approximate: every user meets every item. The matrix of products exists a block at a time, and the best of the blocks
so far are merged with those of the next, so memory grows with neither users nor items beyond the items' vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from conf.errors import ConfigError, DataError
from scoring.inputs.requests import CANDIDATES, EXCLUDED, RetrievalRequest
from scoring.model.predictor import Predictor
from scoring.ranking.pairs import Side, context_side, side_of
from scoring.ranking.recommender import read_items
from scoring.ranking.top_k import NO_CANDIDATE, ranking_keys, split_keys, top_keys
from storage.feature_spec import USER_KEY
from training.models.two_tower import TwoTower

LISTED = pa.schema([(USER_KEY, pa.string()), (CANDIDATES, pa.list_(pa.int32()))])

# Products of a block: on a CPU they and what is made of them stay near the cores, on a GPU they keep it busy.
_CPU_PLACES = 1 << 20
_GPU_PLACES = 1 << 25
_BLOCK_USERS = 256
# The first block of items fills the lists, in multiples of their length; each further one is twice as wide, so that
# about as many items enter a list from each.
_FIRST_BLOCKS = 4
# Items whose features are on the device at once.
_STEP_ITEMS = 8_192


@dataclass(frozen=True)
class Retriever:
    """A two-tower model with all items' vectors beside it.

    Attributes:
        vectors: (N, E) float32 on the device, by item index.
        context: tonight's context features, a side of one row on the CPU.
        places: products that may be on the device at once.
    """

    predictor: Predictor
    towers: TwoTower
    vectors: Tensor
    context: Side
    n: int
    places: int

    @torch.inference_mode()
    def retrieve(self, users: pa.RecordBatch) -> pa.RecordBatch:
        """The nearest items of each user, in the order of the users: a batch of LISTED; n items, or all that are not excluded.

        Args:
            users: user_key, the user features, excluded.

        Raises:
            DataError: a product is NaN, or excluded indices are out of range; names the user.
        """
        predictor, keys = self.predictor, users.column(USER_KEY)
        side = side_of(pa.Table.from_batches([users]), predictor.spec, predictor.multi_hot, "user").plus(
            self.context
        )
        parts = []
        for first in range(0, users.num_rows, _BLOCK_USERS):
            rows = slice(first, first + _BLOCK_USERS)
            vectors = self.towers.user_vectors(
                side.dense[rows].to(predictor.device), side.categorical[rows].to(predictor.device)
            )
            barred = self._excluded(users.column(EXCLUDED).slice(first, _BLOCK_USERS), keys[first:])
            parts.append(self._best(vectors, barred, keys[first:]).cpu())
        lengths = np.concatenate([[0], *((part != NO_CANDIDATE).sum(dim=1).numpy() for part in parts)])
        values = [split_keys(part[part != NO_CANDIDATE])[1].int().numpy() for part in parts]
        found = pa.array(np.concatenate([np.zeros(0, np.int32), *values]))
        lists = pa.ListArray.from_arrays(pa.array(np.cumsum(lengths).astype(np.int32)), found)
        return pa.RecordBatch.from_arrays([keys, lists], schema=LISTED)

    def _best(self, vectors: Tensor, barred: tuple[Tensor, Tensor], users: pa.Array) -> Tensor:
        """(U, n) ranking keys of the nearest items of (U, E) vectors; NO_CANDIDATE where there are fewer."""
        best = torch.full((len(vectors), self.n), NO_CANDIDATE, dtype=torch.int64, device=vectors.device)
        row, item = barred
        first, width = 0, min(_FIRST_BLOCKS * self.n, self._width(len(vectors)))
        while first < len(self.vectors):
            block = self.vectors[first : first + width]
            products = vectors @ block.T  # (U, width)
            if products.sum().isnan():
                self._require_numbers(products, first, users)
            # What is below the last of a full list cannot enter it; what equals that may, by its index.
            last = split_keys(best[:, -1:])[0]
            better = products >= last.where(best[:, -1:] != NO_CANDIDATE, -torch.inf)
            here = (item >= first) & (item < first + len(block))
            better[row[here], item[here] - first] = False
            best = top_keys(torch.cat([best, _keys_of(products, better, first)], dim=1), self.n)
            first, width = first + len(block), min(2 * width, self._width(len(vectors)))
        return best

    def _width(self, users: int) -> int:
        return max(1, self.places // max(users, 1))

    def _require_numbers(self, products: Tensor, first: int, users: pa.Array) -> None:
        wrong = products.isnan()
        if wrong.any():
            user, place = wrong.nonzero()[0].tolist()
            raise DataError(
                f"retriever {self.predictor.version} gives user {users[user]} and the item of index {first + place} "
                "a product that is NaN",
                "look for NaN or infinite features of this user and item, or a diverged model; train again",
            )

    def _excluded(self, lists: pa.ListArray, users: pa.Array) -> tuple[Tensor, Tensor]:
        """(rows, item indices) of what is excluded, one entry a pair, on the device."""
        lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
        row = np.repeat(np.arange(len(lists)), lengths)
        item = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
        wrong = np.flatnonzero((item < 0) | (item >= len(self.vectors)))
        if len(wrong):
            raise DataError(
                f"an excluded index of user {users[int(row[wrong[0]])]} is {item[wrong[0]]}, there are "
                f"{len(self.vectors)} candidate items",
                "exclusions and candidate_items belong to different runs: run build_candidates again",
            )
        device = self.vectors.device
        return torch.from_numpy(row).to(device), torch.from_numpy(item).to(device)


def _keys_of(products: Tensor, chosen: Tensor, first: int) -> Tensor:
    """(U, most chosen of a row) ranking keys of the chosen places of (U, width); NO_CANDIDATE behind them.

    Few are chosen once a user's list has filled, so keys are made of these alone.
    """
    row, column = chosen.nonzero(as_tuple=True)
    counts = chosen.sum(dim=1)
    place = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    keys = torch.full((len(chosen), int(counts.max())), NO_CANDIDATE, dtype=torch.int64, device=row.device)
    keys[row, place] = ranking_keys(products[row, column], column + first)
    return keys


def load_retriever(request: RetrievalRequest, predictor: Predictor) -> Retriever:
    """Reads the items and computes their vectors.

    Args:
        request: what to read.
        predictor: of `request.model`.

    Raises:
        ConfigError: the model has no towers, or a context value is missing.
    """
    towers = predictor.model
    if not isinstance(towers, TwoTower):
        raise ConfigError(
            f"model {predictor.version} is a {type(towers).__name__}, which has no vectors to retrieve by",
            "give the source retrieval a model of architecture two_tower and train it",
        )
    items = read_items(request.item_files, predictor, dict(request.context)).side
    vectors = torch.cat(list(_item_vectors(towers, items, predictor.device)))
    context = context_side(dict(request.context), predictor.spec, predictor.multi_hot)
    places = _GPU_PLACES if predictor.device.type == "cuda" else _CPU_PLACES
    return Retriever(predictor, towers, vectors, context, request.n, places)


@torch.inference_mode()
def _item_vectors(towers: TwoTower, items: Side, device: torch.device) -> Iterator[Tensor]:
    """(N, E) in steps of `_STEP_ITEMS`; one step without rows where there are no items."""
    for first in range(0, max(len(items.dense), 1), _STEP_ITEMS):
        rows = slice(first, first + _STEP_ITEMS)
        yield towers.item_vectors(items.dense[rows].to(device), items.categorical[rows].to(device))
