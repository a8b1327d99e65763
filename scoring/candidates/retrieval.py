"""Finds the n items whose vectors have the largest dot products with the user's vector (the nearest items).

Exact search compares every user with every item. The vectors of all items are on the device. The device
computes the dot products of one block of consecutive items at a time (item_vectors.py). So with more items,
the vectors need more memory, but the dot products do not.

Approximate search compares a user with the items of some clusters. The centroid of a cluster is the mean of
its item vectors. The dot product of a centroid and a user's vector is therefore the mean of the dot products
of the cluster's items. The search compares a user with all centroids. Then it compares the user with the
items of the `probes` clusters that have the largest dot products. This method is the inverted file of the
library faiss (Jégou, Douze and Schmid 2011, Product Quantization for Nearest Neighbor Search, section IV).
Vectors are not quantized, so scores are not rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from conf.errors import ConfigError, DataError
from scoring.candidates.item_vectors import (
    MICRO_BATCH_USERS,
    TopItems,
    batch_of_lists,
    scores_in_a_block,
)
from scoring.candidates.pairs_of_lists import pairs_of
from scoring.model.predictor import Predictor
from scoring.ranking.pairs import SideInputs, context_side, read_items, side_of
from scoring.ranking.top_k import NO_CANDIDATE, ranking_keys, top_keys
from scoring.requests import CLUSTER, EXCLUDED, ITEM_INDEX, VECTOR, RetrievalRequest
from storage.feature_spec import USER_KEY
from storage.file_digests import open_file
from storage.read_parquet import concat_parts
from training.models.factorization import VectorModel

# Number of items whose features are on the device at the same time.
_BATCH_ITEMS = 8_192
# faiss returns this index in place of a missing item.
_MISSING = -1
# The search requests more than n items, because excluded items are removed later. The number of additional
# items is at most this factor times n.
_MOST_SPARE = 4
# For fewer users than this number, faiss computes each dot product separately. For more users, faiss uses a
# matrix product, whose last bits depend on the number of users. This number is so large that faiss never uses
# a matrix product.
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
        """Builds the inverted file of N items.

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

        If the searched clusters have fewer items, the index -1 fills the end of the row. A user's result does
        not depend on the other users.

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


@dataclass(frozen=True)
class Retriever:
    """Finds the nearest items of users, with a model and the vectors of all items.

    Attributes:
        predictor: the model on its device.
        towers: the same model as `predictor.model`, with the type VectorModel.
        vectors: (N, E) float32 on the device: one vector of length E for each item index.
        context: one row of model inputs, with the run's values of the context features, on the CPU.
        n: number of items to retrieve for a user.
        max_products: maximum number of dot products in the device's memory at the same time.
        approximate: the clusters of the items; None for exact search.
    """

    predictor: Predictor
    towers: VectorModel
    vectors: Tensor
    context: SideInputs
    n: int
    max_products: int
    approximate: ApproximateSearch | None = None

    @torch.inference_mode()
    def retrieve(self, users: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the nearest items of each user, as a batch with the schema LISTED.

        The users keep their order. A list has n items, or all items that are not excluded if these are fewer.

        Args:
            users: a batch with one row per user: user_key, the user features, and excluded.

        Raises:
            DataError: a dot product is NaN, a vector is not finite (approximate search), or an index in
                `excluded` is out of range. The message names the user.
        """
        predictor, keys = self.predictor, users.column(USER_KEY)
        side = side_of(pa.Table.from_batches([users]), predictor.spec, predictor.multi_hot, "user").plus(
            self.context
        )
        parts = []
        for first in range(0, users.num_rows, MICRO_BATCH_USERS):
            rows = slice(first, first + MICRO_BATCH_USERS)
            vectors = self.towers.user_vectors(
                side.dense[rows].to(predictor.device), side.categorical[rows].to(predictor.device)
            )
            of_block = keys.slice(first, MICRO_BATCH_USERS)
            excluded = self._excluded(users.column(EXCLUDED).slice(first, MICRO_BATCH_USERS), of_block)
            parts.append(
                self._exact(vectors, excluded, of_block)
                if self.approximate is None
                else self._approximate(self.approximate, vectors, excluded, of_block)
            )
        return batch_of_lists(keys, parts)

    def _exact(self, vectors: Tensor, excluded: tuple[Tensor, Tensor], users: pa.Array) -> Tensor:
        """Returns the ranking keys of the best items of U users by exact search, (U, n)."""
        top = TopItems(self._scorer, len(self.vectors), self.n, max_scores=self.max_products)
        return top.best(partial(self._products, vectors), excluded, users)

    def _approximate(
        self, search: ApproximateSearch, vectors: Tensor, excluded: tuple[Tensor, Tensor], users: pa.Array
    ) -> Tensor:
        """Returns the ranking keys of the items that approximate search finds for U users, (U, n).

        Users with fewer than n items after the search get the items of the exact search.

        Raises:
            DataError: the vector of a user is not finite.
        """
        wrong = (~vectors.isfinite().all(dim=1)).nonzero()
        if len(wrong):
            raise not_finite(self._scorer, f"user {users[int(wrong[0])]}")
        row, item = excluded
        best = search.best(vectors.cpu(), (row.cpu(), item.cpu()), self.n).to(vectors.device)
        short = (best[:, -1] == NO_CANDIDATE).nonzero().flatten()
        if len(short):
            place = torch.full((len(best),), -1, device=vectors.device)
            place[short] = torch.arange(len(short), device=vectors.device)
            of_short = place[row] >= 0
            pairs = (place[row[of_short]], item[of_short])
            best[short] = self._exact(vectors[short], pairs, users.take(pa.array(short.cpu().numpy())))
        return best

    @property
    def _scorer(self) -> str:
        return f"retriever {self.predictor.version}"

    def _products(self, vectors: Tensor, first: int, last: int) -> Tensor:
        """Returns the dot products of user vectors (U, E) with the item vectors [first, last)."""
        return vectors @ self.vectors[first:last].T

    def _excluded(self, lists: pa.ListArray, users: pa.Array) -> tuple[Tensor, Tensor]:
        """Returns the excluded pairs as two tensors on the device: the row indices, and the item indices.

        A row index is the position of the user in `lists`.

        Raises:
            DataError: an item index is out of range. The message names the user.
        """
        row, item = pairs_of(lists)
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


def load_retriever(request: RetrievalRequest, predictor: Predictor) -> Retriever:
    """Reads the item vectors and clusters if the request names their files; otherwise computes the vectors.

    Args:
        request: names the model, the files of the items, and the files of their clusters.
        predictor: the loaded model `request.model`.

    Raises:
        ConfigError: the model has no vectors of users and items, or a context value is missing.
    """
    towers = predictor.model
    if not isinstance(towers, VectorModel):
        raise ConfigError(
            f"model {predictor.version} is a {type(towers).__name__}, which has no vectors for retrieval",
            "set `model` of the source `retrieval` to a model with the methods user_vectors and "
            "item_vectors, such as two_tower, and run train_retriever",
        )
    approximate = None
    if request.cluster_files:
        rows, clusters = read_clusters(request.cluster_files)
        approximate = ApproximateSearch.of(rows, clusters, request.probes, torch.get_num_threads())
        vectors = torch.from_numpy(rows).to(predictor.device)
    else:
        items = read_items(request.item_files, predictor, dict(request.context)).side
        vectors = torch.cat(list(_item_vectors(towers, items, predictor.device)))
    context = context_side(dict(request.context), predictor.spec, predictor.multi_hot)
    most = scores_in_a_block(predictor.device)
    return Retriever(predictor, towers, vectors, context, request.n, most, approximate)


def cluster_items(request: RetrievalRequest, predictor: Predictor) -> Iterator[pa.RecordBatch]:
    """Yields all items with their vectors and clusters, with the schema CLUSTERED.

    Args:
        request: names the model and the files of the items.
        predictor: the loaded model `request.model`.

    Raises:
        ConfigError: as `load_retriever`.
        DataError: the vector of an item is not finite.
    """
    vectors = load_retriever(replace(request, cluster_files=()), predictor).vectors
    return cluster_batches(vectors.cpu().numpy(), f"retriever {predictor.version}")


@torch.inference_mode()
def _item_vectors(towers: VectorModel, items: SideInputs, device: torch.device) -> Iterator[Tensor]:
    """Yields the item vectors (N, E) in batches of `_BATCH_ITEMS` rows.

    If there are no items, yields one empty batch.
    """
    for first in range(0, max(len(items.dense), 1), _BATCH_ITEMS):
        rows = slice(first, first + _BATCH_ITEMS)
        yield towers.item_vectors(items.dense[rows].to(device), items.categorical[rows].to(device))


# The code below divides item vectors into clusters by k-means, for approximate search.
#
# The library faiss computes the clusters in one thread with fixed seeds. So the same vectors give the
# same clusters on processors of the same kind.

CLUSTERED = pa.schema([(ITEM_INDEX, pa.int32()), (CLUSTER, pa.int32()), (VECTOR, pa.list_(pa.float32()))])

# The number of clusters is about this factor times √items. With more clusters, a search of the same duration
# misses fewer of the nearest items, but k-means takes longer (benchmarks/retrieval.py).
_CLUSTERS_PER_ROOT = 2
_ITERATIONS = 10
# k-means uses at most this number of items per cluster, drawn at random.
_SAMPLE_PER_CLUSTER = 40
_SEED = 1
_BATCH_ELEMENTS = 1 << 22  # 16 MiB of vectors


def number_of_clusters(items: int) -> int:
    """Returns the number of clusters for N items: the power of two nearest to 2 √N, at most N."""
    if items < 2:
        return items
    return min(items, int(2 ** round(np.log2(_CLUSTERS_PER_ROOT * np.sqrt(items)))))


def clusters_of(vectors: NDArray[np.float32]) -> NDArray[np.int32]:
    """Returns the cluster of each item, (N,), numbered from 0 without gaps.

    Args:
        vectors: (N, E) finite item vectors; N is at least 1.
    """
    faiss = load_faiss()
    with faiss_threads(1):
        means = faiss.Kmeans(
            vectors.shape[1],
            number_of_clusters(len(vectors)),
            niter=_ITERATIONS,
            seed=_SEED,
            min_points_per_centroid=1,  # avoids a warning of faiss about few items per cluster
            max_points_per_centroid=_SAMPLE_PER_CLUSTER,
        )
        means.train(vectors)
        _, nearest = faiss.knn(vectors, means.centroids, 1)
    _, numbered = np.unique(nearest[:, 0], return_inverse=True)  # gives no number to clusters without items
    return numbered.astype(np.int32)


def cluster_batches(vectors: NDArray[np.float32], scorer: str) -> Iterator[pa.RecordBatch]:
    """Yields the items with their clusters and vectors, with the schema CLUSTERED.

    Args:
        vectors: (N, E) item vectors, in the order of the item indices.
        scorer: the model that computed the vectors, for error messages, such as `retriever 1a2b`.

    Raises:
        DataError: a vector has NaN or infinite elements. The message names the item.
    """
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise not_finite(scorer, f"the item with index {int(np.flatnonzero(~finite)[0])}")
    if not len(vectors):
        return
    clusters = clusters_of(vectors)
    step = max(1, _BATCH_ELEMENTS // vectors.shape[1])
    for first in range(0, len(vectors), step):
        rows = vectors[first : first + step]
        offsets = pa.array(np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1])
        columns = [
            pa.array(np.arange(first, first + len(rows), dtype=np.int32)),
            pa.array(clusters[first : first + step]),
            pa.ListArray.from_arrays(offsets, pa.array(rows.ravel())),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=CLUSTERED)


def read_clusters(files: tuple[str, ...]) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Reads the rows of `cluster_batches`: the vectors (N, E) and the clusters (N,), by item index.

    Args:
        files: paths of the Parquet files.

    Raises:
        DataError: the item indices are not 0, 1, 2, …
    """
    tables = []
    for path in files:
        with open_file(path) as source:
            tables.append(pq.read_table(source, schema=CLUSTERED))
    table = concat_parts(tables)
    index = table.column(ITEM_INDEX).to_numpy()
    order = np.argsort(index)
    if not np.array_equal(index[order], np.arange(len(index))):
        raise DataError(
            f"{files[0]}: the values of item_index are not 0, 1, 2 and so on", "run build_candidates again"
        )
    flat = table.column(VECTOR).combine_chunks().flatten().to_numpy()
    return flat.reshape(len(index), -1)[order], table.column(CLUSTER).to_numpy()[order]


def not_finite(scorer: str, owner: str) -> DataError:
    """Returns the error for a vector with NaN or infinite elements.

    Args:
        scorer: the model that computed the vector.
        owner: names the user or the item of the vector.
    """
    return DataError(
        f"{scorer}: the vector of {owner} has NaN or infinite elements",
        "look for NaN or infinite features of this user or item; if there are none, train the model again",
    )


def load_faiss() -> Any:
    """Returns the module faiss.

    Only workers that search approximately load it, because loading takes time.
    """
    import faiss

    return faiss


@contextmanager
def faiss_threads(threads: int) -> Iterator[None]:
    """Sets the number of faiss's threads during a `with` block, and then restores the previous number."""
    faiss = load_faiss()
    previous = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(previous)
