"""Loads the item vectors of the sources `ease` and `als` in a worker, and makes candidate lists from them.

`TopItems` finds the n items with the highest scores; retrieval.py uses it, too. The elements of the vectors
of `ease` and `als` are rounded to so few bits that every sum of products is exact. Therefore the batch size,
the device and its order of additions do not change the lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from conf.errors import DataError
from scoring.candidates.pairs_of_lists import pairs_of
from scoring.ranking.top_k import NO_CANDIDATE, ranking_keys, split_keys, top_keys
from scoring.requests import EXCLUDED, HISTORY, ITEM_INDEX, LISTED, VECTOR, ItemVectorsRequest
from storage.feature_spec import USER_KEY
from storage.file_digests import open_file
from training.device import choose_device

# The code below finds, for each user, the n items with the highest scores among the items that are not
# excluded.
#
# TopItems computes the scores of one block of consecutive items at a time. Then it merges the best items
# of the block with the best items of the earlier blocks. The result is exact and does not depend on the
# size of the blocks.

# A function of (first, last) that returns the float32 scores of the items from `first` to `last` - 1, for the
# U users of a micro-batch: (U, last - first).
BlockScores = Callable[[int, int], Tensor]

# Number of scores in a block. On a CPU, a block and its ranking keys fit into the caches. On a GPU, a block
# is large enough to keep the device busy.
_CPU_SCORES = 1 << 20
_GPU_SCORES = 1 << 25
# Width of the first block of items, in multiples of n. Each further block is twice as wide as the previous
# one, so each block replaces about the same number of items in a list.
_FIRST_BLOCKS = 4
# Number of users whose lists are computed together.
MICRO_BATCH_USERS = 256
_NO_KEYS = torch.empty(0, dtype=torch.int64)


def scores_in_a_block(device: torch.device) -> int:
    """Returns the number of scores that a device should compute at a time."""
    return _GPU_SCORES if device.type == "cuda" else _CPU_SCORES


@dataclass(frozen=True)
class TopItems:
    """Selects the best items for users.

    Attributes:
        scorer: name of the model or source that computes the scores, for error messages, such as `retriever
            1a2b`.
        num_items: number of items N. The item numbers below are 0 … N - 1.
        n: maximum number of items in a list.
        max_scores: maximum number of scores in the device's memory at the same time.
    """

    scorer: str
    num_items: int
    n: int
    max_scores: int

    def best(
        self, scores_of: BlockScores, excluded: tuple[Tensor, Tensor], users: Sequence[object] | pa.Array
    ) -> Tensor:
        """Returns the ranking keys of the n best items of each user, shape (U, n), on the scores' device.

        If a user has fewer items, NO_CANDIDATE fills the end of the row. A ranking key combines the score and
        the item number (scoring/ranking/top_k.py): items with equal scores are ordered by their number.

        Args:
            scores_of: computes the scores of a block of items.
            excluded: row numbers and item numbers of the excluded pairs, on the scores' device.
            users: the keys of the U users, for error messages.

        Raises:
            DataError: a score is NaN. The message names the user and the item.
        """
        row, item = excluded
        best = torch.full((len(users), self.n), NO_CANDIDATE, dtype=torch.int64, device=row.device)
        first, width = 0, min(_FIRST_BLOCKS * self.n, self._width(len(users)))
        while first < self.num_items:
            last = min(first + width, self.num_items)
            scores = scores_of(first, last)  # (U, last - first)
            if scores.sum().isnan():
                self._require_numbers(scores, first, users)
            # An item with a lower score than the last item of a full list cannot enter the list. An item with
            # an equal score may enter it, if its number is smaller.
            lowest = split_keys(best[:, -1:])[0]
            better = scores >= lowest.where(best[:, -1:] != NO_CANDIDATE, -torch.inf)
            in_block = (item >= first) & (item < last)
            better[row[in_block], item[in_block] - first] = False
            best = top_keys(torch.cat([best, _keys_of(scores, better, first)], dim=1), self.n)
            first, width = last, min(2 * width, self._width(len(users)))
        return best

    def _width(self, users: int) -> int:
        """Returns the number of items whose scores for `users` users are computed together."""
        return max(1, self.max_scores // max(users, 1))

    def _require_numbers(self, scores: Tensor, first: int, users: Sequence[object] | pa.Array) -> None:
        """Raises DataError if a score is NaN. The message names the user and the item."""
        wrong = scores.isnan()
        if wrong.any():
            user, column = wrong.nonzero()[0].tolist()
            raise DataError(
                f"{self.scorer}: the dot product of user {users[user]} and "
                f"the item with index {first + column} is NaN",
                "look for NaN or infinite features of this user and item; if there are none, train the model "
                "again",
            )


def batch_of_lists(
    users: pa.Array, parts: Sequence[Tensor], items: NDArray[np.int32] | None = None
) -> pa.RecordBatch:
    """Returns the lists of users and the scores of their items, as a batch with the schema LISTED.

    Args:
        users: the keys of the users.
        parts: the ranking keys that TopItems.best returned, for consecutive micro-batches of the users.
        items: (N,) the item index of each item number; None if each item number is an item index.
    """
    parts = [part.cpu() for part in parts]
    lengths = np.concatenate([[0], *((part != NO_CANDIDATE).sum(dim=1).numpy() for part in parts)])
    scores, numbers = split_keys(torch.cat([_NO_KEYS, *(part[part != NO_CANDIDATE] for part in parts)]))
    values = numbers.int().numpy()
    listed = pa.array(values if items is None else items[values], pa.int32())
    offsets = pa.array(np.cumsum(lengths).astype(np.int32))
    columns = [pa.ListArray.from_arrays(offsets, column) for column in (listed, pa.array(scores.numpy()))]
    return pa.RecordBatch.from_arrays([users, *columns], schema=LISTED)


def _keys_of(scores: Tensor, chosen: Tensor, first: int) -> Tensor:
    """Returns the ranking keys of some cells of a matrix of scores.

    Only the cells that `chosen` marks get a key. When the lists of the users are full, few cells are marked,
    so few keys are computed. Row u of the result has the keys of the marked cells in row u. The result is as
    wide as the largest number of marked cells in a row, and NO_CANDIDATE fills shorter rows.

    Args:
        scores: (U, width) scores of users and items.
        chosen: (U, width) bool.
        first: the item number of the first column.
    """
    row, column = chosen.nonzero(as_tuple=True)
    counts = chosen.sum(dim=1)
    position = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    keys = torch.full((len(chosen), int(counts.max())), NO_CANDIDATE, dtype=torch.int64, device=row.device)
    keys[row, position] = ranking_keys(scores[row, column], column + first)
    return keys


# A worker keeps two tables: a job has at most two sources with item vectors, and their tasks may alternate.
_TABLES_KEPT = 2
_LOADING = Lock()  # several threads of this process may load a table at once
# Maximum number of bits of a rounded element. The sum of 1024 products of two rounded elements has at most 50
# bits, and a float64 has 53.
_FACTOR_BITS = 20


@dataclass(frozen=True)
class ItemVectors:
    """The vectors of the items that have clicks.

    Attributes:
        items: (M,) int32: the item indices, ascending. The number of an item is its position in this array.
        vectors: (M, E) float32 on the device, in the order of `items`.
        n: maximum number of items in a list.
        max_scores: maximum number of scores in the device's memory at the same time.
    """

    items: NDArray[np.int32]
    vectors: Tensor
    n: int
    max_scores: int

    @torch.inference_mode()
    def ease_lists(self, users: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the lists of the source `ease`, with the schema LISTED.

        A user's score of item j is the sum of B_ij over the user's items i (ease.py).

        Args:
            users: a batch with one row per user: user_key; history, the indices of the clicked items; and
                excluded. All items of the histories are in `items`.
        """
        step = min(MICRO_BATCH_USERS, max(1, self.max_scores // max(len(self.items), 1)))
        parts = []
        for first in range(0, users.num_rows, step):
            block = users.slice(first, step)
            row, item = pairs_of(block.column(HISTORY))
            numbers, _ = self._numbers(item)
            starts = np.searchsorted(row, np.arange(block.num_rows))
            device = self.vectors.device
            scores = torch.nn.functional.embedding_bag(  # (U, M)
                torch.from_numpy(numbers).to(device),
                self.vectors,
                torch.from_numpy(starts).to(device),
                mode="sum",
            )
            parts.append(self._best("source ease", block, partial(_columns, scores)))
        return batch_of_lists(users.column(USER_KEY), parts, self.items)

    @torch.inference_mode()
    def als_lists(self, users: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the lists of the source `als`, with the schema LISTED.

        A user's score of an item is the dot product of their vectors, which `rounded` has rounded before.
        Scores are float32.

        Args:
            users: a batch with one row per user: user_key; vector, E float32 values; and excluded.

        Raises:
            DataError: a vector has NaN or infinite elements. The message names the user.
        """
        items = self._rounded_vectors.T  # (E, M)
        parts = []
        for first in range(0, users.num_rows, MICRO_BATCH_USERS):
            block = users.slice(first, MICRO_BATCH_USERS)
            flat = block.column(VECTOR).flatten().to_numpy(zero_copy_only=False)
            vectors = torch.from_numpy(flat.reshape(block.num_rows, -1).copy())  # (U, E)
            wrong = (~vectors.isfinite().all(dim=1)).nonzero()
            if len(wrong):
                raise not_finite(f"user {block.column(USER_KEY)[int(wrong[0])]}")
            products = partial(_products, rounded(vectors, by_row=True).to(items.device), items)
            parts.append(self._best("source als", block, products))
        return batch_of_lists(users.column(USER_KEY), parts, self.items)

    @cached_property
    def _rounded_vectors(self) -> Tensor:
        """Returns `rounded(vectors)`, computed once for all batches of users."""
        return rounded(self.vectors)

    def _best(self, scorer: str, users: pa.RecordBatch, scores_of: partial[Tensor]) -> Tensor:
        """Returns the ranking keys of the best items of a micro-batch of users."""
        row, item = pairs_of(users.column(EXCLUDED))
        numbers, has_vector = self._numbers(item)
        device = self.vectors.device
        pairs = (
            torch.from_numpy(row[has_vector]).to(device),
            torch.from_numpy(numbers[has_vector]).to(device),
        )
        top = TopItems(scorer, len(self.items), self.n, self.max_scores)
        return top.best(scores_of, pairs, users.column(USER_KEY))

    def _numbers(self, item_index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Returns the number of each item index, and whether the item has a vector.

        If an item has no vector, its number has no meaning.
        """
        numbers = np.searchsorted(self.items, item_index).astype(np.int64)
        numbers[numbers == len(self.items)] = 0
        return numbers, self.items[numbers] == item_index


def rounded(vectors: Tensor, by_row: bool = False) -> Tensor:
    """Rounds vectors to multiples of a power of two, so that all elements have at most 20 bits.

    Args:
        vectors: (R, E) float32.
        by_row: whether each row has its own power of two, chosen for the row's largest element. Otherwise one
            power is chosen for the largest element of all rows.
    """
    exact = vectors.double()
    largest = exact.abs().amax(dim=1, keepdim=True) if by_row else exact.abs().max()
    _, exponent = torch.frexp(largest)
    unit = torch.ldexp(torch.ones_like(largest), exponent - _FACTOR_BITS)
    return (exact / unit).round() * unit


def not_finite(owner: str) -> DataError:
    """Returns the error for a vector with NaN or infinite elements. `owner` names the user or item."""
    return DataError(
        f"source als: the vector of {owner} has NaN or infinite elements",
        "raise `regularization` of the source `als`, or lower its `alpha`",
    )


def load_item_vectors(request: ItemVectorsRequest, gpu: int | None, threads: int) -> ItemVectors:
    """Reads the table of item vectors onto the device, and sets torch's number of CPU threads.

    The two latest tables stay in the memory of the process, until `free_item_vectors` is called.

    Args:
        request: names the files of the table.
        gpu: index of the GPU that Spark assigned to the task; None for the first GPU.
        threads: number of CPU threads that torch may use.

    Raises:
        ConfigError: the requested device does not exist.
        DataError: a vector has NaN or infinite elements. The message names the item.
    """
    torch.set_num_threads(threads)
    with _LOADING:
        return _load(request, gpu)


def free_item_vectors() -> None:
    """Frees the tables that `load_item_vectors` kept."""
    _load.cache_clear()


@lru_cache(maxsize=_TABLES_KEPT)
def _load(request: ItemVectorsRequest, gpu: int | None) -> ItemVectors:
    device = choose_device(request.device, gpu, "score.device")
    tables = []
    for path in request.files:
        with open_file(path) as source:
            tables.append(pq.read_table(source, columns=[ITEM_INDEX, VECTOR]))
    indices = np.concatenate([table.column(ITEM_INDEX).to_numpy() for table in tables])
    order = np.argsort(indices)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    chunks = (chunk for table in tables for chunk in table.column(VECTOR).chunks)
    width = next(len(chunk[0]) for chunk in chunks if len(chunk))  # at least one file has rows
    vectors = np.empty((len(order), width), np.float32)
    row = 0
    while tables:  # frees each table as soon as it is copied
        for chunk in tables.pop(0).column(VECTOR).chunks:
            values = chunk.flatten().to_numpy(zero_copy_only=False)
            vectors[place[row : row + len(chunk)]] = values.reshape(len(chunk), width)
            row += len(chunk)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise not_finite(f"the item with index {indices[order][int(np.flatnonzero(~finite)[0])]}")
    items = indices[order].astype(np.int32)
    return ItemVectors(items, torch.from_numpy(vectors).to(device), request.n, scores_in_a_block(device))


def _columns(scores: Tensor, first: int, last: int) -> Tensor:
    """Returns the columns [first, last) of a matrix of scores."""
    return scores[:, first:last]


def _products(users: Tensor, items: Tensor, first: int, last: int) -> Tensor:
    """Returns the products of user vectors (U, E) and the columns [first, last) of items (E, M)."""
    return (users @ items[:, first:last]).float()
