"""Finds the n items whose vectors have the largest dot products with the user's vector (the nearest items).

Retrieval is not approximate: every user is compared with every item. The vectors of all items are on the
device. The dot products of one block of consecutive items are computed at a time. Then the best items of the
block are merged with the best items of the earlier blocks. So if there are more items, only their vectors
need more memory.
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
from scoring.ranking.candidate_items import read_items
from scoring.ranking.pairs import Side, context_side, side_of
from scoring.ranking.top_k import NO_CANDIDATE, ranking_keys, split_keys, top_keys
from storage.feature_spec import USER_KEY
from training.models.two_tower import TwoTower

LISTED = pa.schema([(USER_KEY, pa.string()), (CANDIDATES, pa.list_(pa.int32()))])

# Number of products in a block. On a CPU, a block and its ranking keys fit into the caches. On a GPU, a block
# is large enough to keep the device busy.
_CPU_PRODUCTS = 1 << 20
_GPU_PRODUCTS = 1 << 25
_BLOCK_USERS = 256
# Width of the first block of items, in multiples of n. Each further block is twice as wide, so that about the
# same number of items enters a list from each block.
_FIRST_BLOCKS = 4
# Number of items whose features are on the device at the same time.
_BATCH_ITEMS = 8_192


@dataclass(frozen=True)
class Retriever:
    """A two-tower model and the vectors of all items, which finds the nearest items of users.

    Attributes:
        predictor: the model on its device.
        towers: the same model as `predictor.model`, with the type TwoTower.
        vectors: (N, E) float32 on the device: one vector of length E for each item index.
        context: the model inputs of the context features of the run, one row on the CPU.
        n: number of items to retrieve for a user.
        max_products: maximum number of dot products that are on the device at the same time.
    """

    predictor: Predictor
    towers: TwoTower
    vectors: Tensor
    context: Side
    n: int
    max_products: int

    @torch.inference_mode()
    def retrieve(self, users: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the nearest items of each user, as a batch with the schema LISTED.

        The users keep their order. A list has n items. It has fewer items if fewer than n items are not
        excluded.

        Args:
            users: a batch with one row per user: user_key, the user features, and excluded.

        Raises:
            DataError: a dot product is NaN, or an index in `excluded` is out of range. The message names the
                user.
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
            excluded = self._excluded(users.column(EXCLUDED).slice(first, _BLOCK_USERS), keys[first:])
            parts.append(self._best(vectors, excluded, keys[first:]).cpu())
        lengths = np.concatenate([[0], *((part != NO_CANDIDATE).sum(dim=1).numpy() for part in parts)])
        values = [split_keys(part[part != NO_CANDIDATE])[1].int().numpy() for part in parts]
        items = pa.array(np.concatenate([np.zeros(0, np.int32), *values]))
        lists = pa.ListArray.from_arrays(pa.array(np.cumsum(lengths).astype(np.int32)), items)
        return pa.RecordBatch.from_arrays([keys, lists], schema=LISTED)

    def _best(self, vectors: Tensor, excluded: tuple[Tensor, Tensor], users: pa.Array) -> Tensor:
        """Returns the ranking keys of the n nearest items of each user, shape (U, n).

        If a user has fewer items, NO_CANDIDATE fills the end of the row. A ranking key combines the dot
        product and the item index (scoring/ranking/top_k.py).

        Args:
            vectors: (U, E) user vectors.
            excluded: row indices and item indices of the excluded pairs, as `_excluded` returns them.
            users: the keys of the users, for error messages.
        """
        best = torch.full((len(vectors), self.n), NO_CANDIDATE, dtype=torch.int64, device=vectors.device)
        row, item = excluded
        first, width = 0, min(_FIRST_BLOCKS * self.n, self._width(len(vectors)))
        while first < len(self.vectors):
            block = self.vectors[first : first + width]
            products = vectors @ block.T  # (U, width)
            if products.sum().isnan():
                self._require_numbers(products, first, users)
            # An item with a smaller product than the last item of a full list cannot enter the list. An item
            # with an equal product may enter it, if its index is smaller.
            last = split_keys(best[:, -1:])[0]
            better = products >= last.where(best[:, -1:] != NO_CANDIDATE, -torch.inf)
            in_block = (item >= first) & (item < first + len(block))
            better[row[in_block], item[in_block] - first] = False
            best = top_keys(torch.cat([best, _keys_of(products, better, first)], dim=1), self.n)
            first, width = first + len(block), min(2 * width, self._width(len(vectors)))
        return best

    def _width(self, users: int) -> int:
        """Returns the number of items whose dot products with `users` users are computed together."""
        return max(1, self.max_products // max(users, 1))

    def _require_numbers(self, products: Tensor, first: int, users: pa.Array) -> None:
        """Raises DataError if a dot product is NaN. The message names the user and the item."""
        wrong = products.isnan()
        if wrong.any():
            user, column = wrong.nonzero()[0].tolist()
            raise DataError(
                f"retriever {self.predictor.version}: the dot product of user {users[user]} and "
                f"the item with index {first + column} is NaN",
                "look for NaN or infinite features of this user and item, or a diverged model; train again",
            )

    def _excluded(self, lists: pa.ListArray, users: pa.Array) -> tuple[Tensor, Tensor]:
        """Returns the excluded pairs as two tensors on the device: the row indices, and the item indices.

        A row index is the position of the user in `lists`.

        Raises:
            DataError: an item index is out of range. The message names the user.
        """
        lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
        row = np.repeat(np.arange(len(lists)), lengths)
        item = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
        wrong = np.flatnonzero((item < 0) | (item >= len(self.vectors)))
        if len(wrong):
            raise DataError(
                f"an excluded index of user {users[int(row[wrong[0]])]} is {item[wrong[0]]}, but there are "
                f"{len(self.vectors)} candidate items",
                "the exclusions and the table `candidate_items` belong to different runs: "
                "run build_candidates again",
            )
        device = self.vectors.device
        return torch.from_numpy(row).to(device), torch.from_numpy(item).to(device)


def _keys_of(products: Tensor, chosen: Tensor, first: int) -> Tensor:
    """Returns the ranking keys of some cells of a matrix of dot products.

    Only the cells that `chosen` marks get a key, because few cells are marked when the lists of the users are
    already full. Row u of the result has the keys of the marked cells in row u. The result is as wide as the
    largest number of marked cells in a row, and NO_CANDIDATE fills shorter rows.

    Args:
        products: (U, width) dot products of users and items.
        chosen: (U, width) bool.
        first: the item index of the first column.
    """
    row, column = chosen.nonzero(as_tuple=True)
    counts = chosen.sum(dim=1)
    position = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    keys = torch.full((len(chosen), int(counts.max())), NO_CANDIDATE, dtype=torch.int64, device=row.device)
    keys[row, position] = ranking_keys(products[row, column], column + first)
    return keys


def load_retriever(request: RetrievalRequest, predictor: Predictor) -> Retriever:
    """Reads the items and computes their vectors.

    Args:
        request: names the model and the files of the items.
        predictor: the loaded model `request.model`.

    Raises:
        ConfigError: the model is not a two-tower model, or a context value is missing.
    """
    towers = predictor.model
    if not isinstance(towers, TwoTower):
        raise ConfigError(
            f"model {predictor.version} is a {type(towers).__name__}, which has no vectors for retrieval",
            "set `model` of the source `retrieval` to a two_tower model, and run train_retriever",
        )
    items = read_items(request.item_files, predictor, dict(request.context)).side
    vectors = torch.cat(list(_item_vectors(towers, items, predictor.device)))
    context = context_side(dict(request.context), predictor.spec, predictor.multi_hot)
    max_products = _GPU_PRODUCTS if predictor.device.type == "cuda" else _CPU_PRODUCTS
    return Retriever(predictor, towers, vectors, context, request.n, max_products)


@torch.inference_mode()
def _item_vectors(towers: TwoTower, items: Side, device: torch.device) -> Iterator[Tensor]:
    """Yields the item vectors (N, E) in batches of `_BATCH_ITEMS` rows.

    If there are no items, yields one empty batch.
    """
    for first in range(0, max(len(items.dense), 1), _BATCH_ITEMS):
        rows = slice(first, first + _BATCH_ITEMS)
        yield towers.item_vectors(items.dense[rows].to(device), items.categorical[rows].to(device))
