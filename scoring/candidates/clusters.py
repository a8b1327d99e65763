"""Divides item vectors into clusters by k-means, for approximate search (retrieval.py).

The library faiss computes the clusters in one thread with fixed seeds. So the same vectors give the same
clusters on processors of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from conf.errors import DataError
from scoring.requests import CLUSTER, ITEM_INDEX, VECTOR
from storage.file_digests import open_file
from storage.read_parquet import concat_parts

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
            min_points_per_centroid=1,  # with fewer items per cluster, faiss only warns
            max_points_per_centroid=_SAMPLE_PER_CLUSTER,
        )
        means.train(vectors)
        _, nearest = faiss.knn(vectors, means.centroids, 1)
    _, numbered = np.unique(nearest[:, 0], return_inverse=True)  # clusters without items are dropped
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
            f"{files[0]}: item_index does not count from 0 in steps of 1", "run build_candidates again"
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
        "look for NaN or infinite features of this user or item, or a diverged model; train again",
    )


def load_faiss() -> Any:
    """Returns the module faiss.

    Only workers that search approximately load it, because loading takes time.
    """
    import faiss

    return faiss


@contextmanager
def faiss_threads(threads: int) -> Iterator[None]:
    """Sets the number of threads of faiss, and afterwards sets the previous number again."""
    faiss = load_faiss()
    previous = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(previous)
