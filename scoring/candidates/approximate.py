"""Approximate search: finds items with large dot products in the clusters that are nearest to a user.

The centroid of a cluster is the mean of its item vectors. Its dot product with a user's vector is therefore
the mean dot product of the cluster's items. The search compares a user with all centroids. Then it compares
the user with the items of the `probes` clusters that have the largest dot products. This method is the
inverted file of the library faiss (Jégou, Douze and Schmid 2011, Product Quantization for Nearest Neighbor
Search, section IV) without quantization, so scores are not rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scoring.candidates.clusters import faiss_threads, load_faiss
from scoring.ranking.top_k import NO_CANDIDATE, ranking_keys, top_keys

# faiss returns this index in place of a missing item.
_MISSING = -1
# The search requests up to n times this number of additional items, because excluded items are removed later.
_MOST_SPARE = 4
# For fewer users than this, faiss computes each dot product alone. For more users, it uses a matrix product,
# whose last bits depend on the number of users.
_ONE_BY_ONE = 1 << 30


@dataclass(frozen=True)
class ApproximateSearch:
    """The clusters of the item vectors in memory.

    Attributes:
        index: the inverted file of faiss.
        threads: number of CPU threads that a search may use.
    """

    index: Any
    threads: int

    @classmethod
    def of(
        cls, vectors: NDArray[np.float32], clusters: NDArray[np.int32], probes: int, threads: int
    ) -> ApproximateSearch:
        """Returns the search over N items.

        Args:
            vectors: (N, E) item vectors, by item index; N is at least 1.
            clusters: (N,) the cluster of each item, numbered from 0 without gaps.
            probes: number of clusters to read for a user.
            threads: number of CPU threads that a search may use.
        """
        faiss = load_faiss()
        order = np.argsort(clusters, kind="stable")
        starts = np.searchsorted(clusters[order], np.arange(clusters.max() + 1))
        sizes = np.diff(np.append(starts, len(order)))
        sums = np.add.reduceat(vectors[order], starts, axis=0, dtype=np.float64)
        centroids = (sums / sizes[:, None]).astype(np.float32)
        coarse = faiss.IndexFlatIP(vectors.shape[1])
        coarse.add(centroids)
        index = faiss.IndexIVFFlat(coarse, vectors.shape[1], len(centroids), faiss.METRIC_INNER_PRODUCT)
        index.is_trained = True
        index.nprobe = min(probes, len(centroids))
        # faiss reads these arrays through pointers while add_core runs. The variables keep them alive.
        rows, places, lists = (
            np.ascontiguousarray(vectors),
            np.arange(len(vectors)),
            clusters.astype(np.int64),
        )
        index.add_core(len(rows), *(faiss.swig_ptr(array) for array in (rows, places, lists)))
        return cls(index, threads)

    def best(self, vectors: Tensor, excluded: tuple[Tensor, Tensor], n: int) -> Tensor:
        """Returns the ranking keys of up to n items of each user, (U, n) int64, as TopItems.best does.

        The search requests more than n items, because excluded items are removed from the result. If fewer
        than n items are left for a user, NO_CANDIDATE fills the end of the row.

        Args:
            vectors: (U, E) finite float32 user vectors on the CPU.
            excluded: row numbers and item indices of the excluded pairs.
            n: maximum number of items in a row.
        """
        row, item = (pairs.numpy() for pairs in excluded)
        most_excluded = int(np.bincount(row, minlength=1).max())
        scores, items = self.search(vectors.numpy(), n + min(most_excluded, _MOST_SPARE * n))
        size = self.index.ntotal
        pairs = np.arange(len(items))[:, None] * size + items
        usable = (items != _MISSING) & ~np.isin(pairs, row * size + item)
        flat = ranking_keys(torch.from_numpy(scores.ravel()), torch.from_numpy(items.clip(0).ravel()))
        keys = flat.view(items.shape).masked_fill_(~torch.from_numpy(usable), NO_CANDIDATE)
        return top_keys(keys, n)

    def search(
        self, vectors: NDArray[np.float32], count: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Returns the scores and the indices of `count` items of each user, (U, count), best first.

        If the clusters have fewer items, the index -1 fills the end of the row. A user's result does not
        depend on the other users.

        Args:
            vectors: (U, E) user vectors.
            count: number of items.
        """
        faiss = load_faiss()
        previous = faiss.cvar.distance_compute_blas_threshold
        faiss.cvar.distance_compute_blas_threshold = _ONE_BY_ONE
        try:
            with faiss_threads(self.threads):
                scores, items = self.index.search(np.ascontiguousarray(vectors), count)
        finally:
            faiss.cvar.distance_compute_blas_threshold = previous
        return scores, items
