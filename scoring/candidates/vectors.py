"""Exact retrieval in a worker: all items' vectors on the device once, users against them in blocks, the n best kept.

Nothing is approximate: every user meets every item. The matrix of products exists a block at a time, and the best of the blocks
so far are merged with those of the next, so memory grows with neither users nor items beyond the items' vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from conf.errors import ConfigError, DataError
from conf.feature_spec import USER_KEY
from scoring.candidates.retrieval import RetrievalRequest
from scoring.contract import CANDIDATES, EXCLUDED
from scoring.pairs import Side, context_side, side_of
from scoring.predictor import Predictor, predictor_of_process
from scoring.recommender import read_items
from scoring.topk import NO_CANDIDATE, ranking_keys, split_keys, top_keys
from training.models.two_tower import TwoTower

LISTED = pa.schema([(USER_KEY, pa.string()), (CANDIDATES, pa.list_(pa.int32()))])

# Products of a block: on a CPU they stay in the cache that all cores share, on a GPU they keep it busy.
_CPU_PLACES = 1 << 19
_GPU_PLACES = 1 << 25
_BLOCK_USERS = 256


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
        """(U, min(n, N)) ranking keys of the nearest items of (U, E) vectors; NO_CANDIDATE where there are fewer."""
        number = len(vectors)
        best = torch.empty((number, 0), dtype=torch.int64, device=vectors.device)
        width = max(1, self.places // max(number, 1))
        row, item = barred
        for first in range(0, len(self.vectors), width):
            block = self.vectors[first : first + width]
            products = vectors @ block.T  # (U, width)
            if products.isnan().any():
                user, place = products.isnan().nonzero()[0].tolist()
                raise DataError(
                    f"retriever {self.predictor.version} gives user {users[user]} and the item of index {first + place} "
                    "a product that is NaN",
                    "look for NaN or infinite features of this user and item, or a diverged model; train again",
                )
            index = torch.arange(first, first + len(block), device=block.device).expand(number, -1)
            keys = ranking_keys(products.flatten(), index.flatten()).view(number, len(block))
            here = (item >= first) & (item < first + len(block))
            keys[row[here], item[here] - first] = NO_CANDIDATE
            best = top_keys(torch.cat([best, top_keys(keys, self.n)], dim=1), self.n)
        return best

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


@lru_cache(maxsize=1)
def retriever_of_process(request: RetrievalRequest, gpu: int | None, threads: int) -> Retriever:
    """The retriever of this process, made when the first batch asks for it: items are read and embedded once.

    Raises:
        ConfigError: the model has no towers, or a context value is missing.
    """
    predictor = predictor_of_process(request.model, gpu, threads)
    towers = predictor.model
    if not isinstance(towers, TwoTower):
        raise ConfigError(
            f"model {predictor.version} is a {type(towers).__name__}, which has no vectors to retrieve by",
            "give the source retrieval a model of architecture two_tower and train it",
        )
    items = read_items(request.item_files, predictor, dict(request.context)).side
    vectors = torch.cat(list(_item_vectors(towers, items, predictor)))
    context = context_side(dict(request.context), predictor.spec, predictor.multi_hot)
    places = _GPU_PLACES if predictor.device.type == "cuda" else _CPU_PLACES
    return Retriever(predictor, towers, vectors, context, request.n, places)


@torch.inference_mode()
def _item_vectors(towers: TwoTower, items: Side, predictor: Predictor) -> Iterator[Tensor]:
    """(N, E) in steps of `step_rows`."""
    for first in range(0, len(items.dense), predictor.step_rows):
        rows = slice(first, first + predictor.step_rows)
        yield towers.item_vectors(
            items.dense[rows].to(predictor.device), items.categorical[rows].to(predictor.device)
        )
