"""The source `ease`: proposes items that an item-to-item linear model predicts from the user's clicked items.

The model is EASE (H. Steck, Embarrassingly Shallow Autoencoders, WWW 2019). X is the matrix of clicks with
one row per user and one column per item: 1 if the user clicked the item, else 0. EASE finds the matrix B with
zeros on its diagonal that minimizes ||X - X B||² + λ ||B||². With the Gram matrix G = XᵀX and
P = (G + λ I)⁻¹, the solution is (equation 8)

    B_ij = -P_ij / P_jj for i ≠ j,    B_jj = 0

For each pair of items, Spark counts the users who clicked both items (the Gram matrix). For Arrow tables,
item_pairs.py counts them. One task, or this process, computes the weights B from this matrix. The job
publishes the weights as a table. A user's score of item j is the sum of B_ij over all items i that the user
clicked.

Counts are integers, and weights are rounded so that scores are exact. Therefore the lists do not depend on
how Spark partitions the rows. Only functions that compute weights import torch, so a driver with Spark does
not import it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from conf.errors import DataError, InfrastructureError
from conf.lazy_imports import F
from scoring.candidates.clicks import clicked_items
from scoring.candidates.exclusions import Exclusions
from scoring.candidates.lists_in_spark import (
    VectorStore,
    histories,
    lists_from_vectors,
    no_lists,
    with_exclusions,
)
from scoring.candidates.source_settings import EaseParameters
from scoring.requests import HISTORY, ITEM_INDEX, VECTOR, DeviceKind
from scoring.spark.score_frames import SCORING_IMPORTS, task_slot
from spark.choose_workers import cores_without_jvm
from spark.rows import Rows, count, persist, query, records, spark_types
from spark.tasks import map_batches
from storage.feature_spec import USER_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from torch import Tensor

OTHER, USERS = "other", "users"

Batches = Iterable[pa.RecordBatch]

WEIGHTS = pa.schema([(ITEM_INDEX, pa.int32()), (VECTOR, pa.list_(pa.float32()))])

# Weights are rounded to multiples of a unit. The unit is so large that the sum of an item's absolute weights
# is at most 2 ** _MOST_UNITS_BITS units. So float32, which represents all integers up to 2²⁴, represents each
# sum exactly.
_MOST_UNITS_BITS = 23
# Part of the message of the RuntimeError that torch raises when the CPU's memory runs out.
_CPU_OUT_OF_MEMORY = "can't allocate memory"
_BLOCK_ROWS = 256
_BATCH_ELEMENTS = 1 << 22  # 16 MiB of weights


def ease_items(
    config: EaseParameters, exclusions: Exclusions, rows: Rows, items: Rows, store: VectorStore
) -> Rows:
    """Returns, for each user with clicks, the n items with the highest scores that are not excluded.

    The result has the columns user_key, candidates and scores. Only items with clicks are proposed. If scores
    are equal, the smaller item index comes first. Users without clicks have no row.

    The function computes and publishes the weights before it returns.

    Args:
        config: the settings of the source, such as n.
        exclusions: the excluded items of each user.
        rows: rows with the columns user_key, item_key and label.
        items: rows with the columns item_index and item_key, one row per item.
        store: publishes the weights.

    Raises:
        DataError: more than `max_items` items have clicks, or `l2` is too small.
        InfrastructureError: the worker that computes the weights has too little memory.
    """
    clicked = persist(clicked_items(rows, items))
    indices = _items_with_clicks(clicked, config.max_items)
    if not len(indices):
        return no_lists(exclusions.users)
    weights = _weights(clicked, indices, config.l2, store.device)
    files = store.publish(config.name, weights, len(indices), len(indices))
    users = with_exclusions(exclusions.users, histories(clicked), HISTORY)
    return lists_from_vectors(users, HISTORY, files, config.n, store)


def _weights(clicked: Rows, items: np.ndarray, l2: float, device: DeviceKind) -> Rows:
    """Returns the item-item weights of EASE, one row per item: item_index, and vector (a weight per item)."""
    if not isinstance(clicked, pa.Table):
        weights_of = _weights_of(items, l2, device)
        pairs = item_pairs(clicked).repartition(1)
        return map_batches(pairs, weights_of, spark_types(WEIGHTS), SCORING_IMPORTS)
    import torch

    from scoring.candidates.item_pairs import pair_batches

    of_caller, cores = torch.get_num_threads(), cores_without_jvm() or 1
    try:
        batches = weight_batches(pair_batches(clicked), items, l2, device, None, cores)
        return pa.Table.from_batches(batches, WEIGHTS)
    finally:
        torch.set_num_threads(of_caller)


def item_pairs(clicked: DataFrame) -> DataFrame:
    """Returns the elements of the Gram matrix that are not zero, on and above its diagonal.

    The result has the columns item_index, other and users (int64): the number of users who clicked both
    items. item_index is at most `other`.

    Args:
        clicked: a frame with distinct rows of user_key and item_index.
    """
    others = clicked.select(USER_KEY, F.col(ITEM_INDEX).alias(OTHER))
    pairs = clicked.join(others, USER_KEY).where(F.col(ITEM_INDEX) <= F.col(OTHER))
    return pairs.groupBy(ITEM_INDEX, OTHER).agg(F.count(F.lit(1)).alias(USERS))


def _items_with_clicks(clicked: Rows, most: int) -> np.ndarray:
    """Returns the indices of the items with clicks, (M,) int32, ascending.

    Raises:
        DataError: there are more than `most` items.
    """
    distinct = query("SELECT DISTINCT item_index FROM {clicked}", clicked=clicked)
    number = count(distinct)
    if number > most:
        raise DataError(
            f"source ease: {number} items have clicks, but max_items is {most}; the weights of {number} "
            f"items need {16 * number**2 / 2**30:.1f} GiB of memory in one worker, and "
            f"{4 * number**2 / 2**30:.1f} GiB in each worker that makes lists",
            "raise `max_items` of the source `ease` if the workers have this memory; otherwise count fewer "
            "items with `candidates.active_days` or the source's `window_days`, or use the source `als`",
        )
    return np.array(sorted(row[ITEM_INDEX] for row in records(distinct)), np.int32)


def _weights_of(
    items: np.ndarray, l2: float, device: DeviceKind
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Returns a function for mapInArrow that computes the weights from the pairs of items of one task."""

    def weights(batches: Batches) -> Iterator[pa.RecordBatch]:
        yield from weight_batches(batches, items, l2, device, *task_slot())

    return weights


# The code below computes the weights with torch.


def gram_matrix(pairs: Iterable[pa.RecordBatch], items: NDArray[np.int32]) -> Tensor:
    """Returns the Gram matrix G (M, M), float64 on the CPU.

    Args:
        pairs: batches with the columns item_index, other and users: the number of users who clicked both
            items. Each unordered pair of items occurs at most once; an item also forms a pair with itself.
        items: (M,) the item indices, ascending.
    """
    import torch

    gram = torch.zeros((len(items), len(items)), dtype=torch.float64)
    cells = gram.numpy()
    for batch in pairs:
        row, column, users = (batch.column(index).to_numpy() for index in range(3))
        row, column = np.searchsorted(items, row), np.searchsorted(items, column)
        cells[row, column] = users
        cells[column, row] = users
    return gram


def ease_weights(gram: Tensor, l2: float) -> Tensor:
    """Returns the weights B (M, M), float32, on the device of the Gram matrix.

    The weights are rounded to multiples of a power of two. The power is large enough for a float32 to
    represent every sum of weights exactly. So scores are exact in any order of addition.

    Args:
        gram: (M, M) float64. The function overwrites it.
        l2: λ, greater than 0.

    Raises:
        DataError: λ is too small, so that G + λ I is not invertible in float64.
    """
    import torch

    gram.diagonal().add_(l2)
    factor, failed = torch.linalg.cholesky_ex(gram)
    if failed.item():
        raise DataError(
            f"source ease: with l2={l2:g}, the Gram matrix of {len(gram)} items cannot be inverted",
            "raise `l2` of the source `ease`",
        )
    weights = torch.cholesky_inverse(factor, out=gram)  # P
    del factor
    weights /= -weights.diagonal().clone()  # divides column j by -P_jj
    weights.fill_diagonal_(0.0)
    # The sums are computed in blocks, because `weights.abs()` of the complete matrix would double the memory.
    sums = torch.zeros(len(weights), dtype=torch.float64, device=weights.device)
    for block in weights.split(_BLOCK_ROWS):
        sums += block.abs().sum(dim=0)
    largest = float(sums.max())
    unit = 2.0 ** (math.ceil(math.log2(largest)) - _MOST_UNITS_BITS) if largest > 0 else 1.0
    return weights.div_(unit).round_().mul_(unit).float()


def weight_batches(
    pairs: Iterable[pa.RecordBatch],
    items: NDArray[np.int32],
    l2: float,
    device: DeviceKind,
    gpu: int | None,
    threads: int,
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of the weights B, with the schema WEIGHTS.

    Args:
        pairs, items: as in `gram_matrix`.
        l2: λ, greater than 0.
        device: the device for the inverse.
        gpu: index of the GPU that Spark assigned to the task; None for the first GPU.
        threads: number of CPU threads that torch may use.

    Raises:
        ConfigError: the requested device does not exist.
        DataError: λ is too small.
        InfrastructureError: there is too little memory.
    """
    import torch

    from training.device import choose_device

    torch.set_num_threads(threads)
    target = choose_device(device, gpu, "score.device")
    try:
        weights = ease_weights(gram_matrix(pairs, items).to(target), l2).cpu().numpy()
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or _CPU_OUT_OF_MEMORY in str(error):
            raise _too_large(len(items)) from error
        raise
    step = max(1, _BATCH_ELEMENTS // max(len(items), 1))
    for first in range(0, len(items), step):
        rows = weights[first : first + step]
        offsets = pa.array(np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1])
        vectors = pa.ListArray.from_arrays(offsets, pa.array(rows.ravel()))
        columns = [pa.array(items[first : first + step]), vectors]
        yield pa.RecordBatch.from_arrays(columns, schema=WEIGHTS)


def _too_large(items: int) -> InfrastructureError:
    """Returns the error for a matrix that does not fit into the memory of the worker."""
    return InfrastructureError(
        f"source ease: the weights of {items} items need {16 * items**2 / 2**30:.1f} GiB of memory in one "
        "worker, but the worker has less memory",
        "give the workers more memory, or use fewer items: set `candidates.active_days`, or `window_days` of "
        "the source `ease`",
    )
