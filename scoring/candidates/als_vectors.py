"""The vectors of the source `als` without Spark: implicit ALS as Spark MLlib computes it, on the CPU.

MLlib solves the normal equations of one user or item at a time; here torch solves them in batches. The
initial vectors are those of MLlib (mllib_random.py). As in MLlib, the normal equations are in float64, and
vectors are stored as float32 between the iterations. So the results differ from MLlib's only by rounding
errors.

c_ui is alpha times the number of clicks of user u on item i, and 1 + c_ui is the confidence of these clicks.
Y are the item vectors, and n_u is the number of items that user u clicked. The vector of user u solves (Y.
Hu, Y. Koren, C. Volinsky, ICDM 2008, equation 4; λ n_u as in Y. Zhou et al., Large-scale Parallel
Collaborative Filtering for the Netflix Prize, AAIM 2008)

    (YᵀY + Σ_i c_ui y_i y_iᵀ + λ n_u I) x_u = Σ_i (1 + c_ui) y_i
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from conf.errors import DataError
from scoring.candidates.mllib_random import first_vectors
from scoring.candidates.parameters import AlsParameters

# Maximum number of elements of each array of a batch of normal equations: 64 MiB.
_BATCH_ELEMENTS = 1 << 23

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class _Side:
    """A sparse matrix of clicks with R rows: users by items, or items by users.

    Attributes:
        starts: (R + 1,) int64, the index of the first click of each row.
        others: (C,) int64, the item number (or user number) of each click.
        clicks: (C,) float64, the number of clicks, or the sum of their weights.
    """

    starts: Tensor
    others: Tensor
    clicks: Tensor

    @staticmethod
    def of(rows: NDArray[np.int64], others: NDArray[np.int64], clicks: NDArray[np.float32]) -> _Side:
        """Builds the matrix from C pairs. `rows` has the row of each pair, numbered from 0 without gaps."""
        order = np.lexsort((others, rows))
        lengths = np.bincount(rows)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        return _Side(
            torch.from_numpy(starts),
            torch.from_numpy(others[order]),
            torch.from_numpy(clicks[order].astype(np.float64)),
        )


def fit_vectors(
    users: NDArray[np.int64],
    items: NDArray[np.int64],
    clicks: NDArray[np.float32],
    config: AlsParameters,
    blocks: int,
) -> tuple[Vectors, Vectors]:
    """Returns the vectors of all users and of all items.

    Args:
        users: (C,) the user number of each pair. Users are numbered from 0 without gaps.
        items: (C,) the item number of each pair. Items are numbered from 0 without gaps. Pairs are distinct.
        clicks: (C,) the number of clicks, or the sum of their weights.
        config: the settings of the source.
        blocks: number of blocks over which MLlib distributes users.

    Raises:
        DataError: normal equations have no unique solution in float64.
    """
    by_user, by_item = _Side.of(users, items, clicks), _Side.of(items, users, clicks)
    of_users = torch.from_numpy(first_vectors(len(by_user.starts) - 1, blocks, config.rank, config.seed))
    of_items = torch.zeros((len(by_item.starts) - 1, config.rank))
    for _ in range(config.iterations):
        of_items = _solved(by_item, of_users, config)
        of_users = _solved(by_user, of_items, config)
    return of_users.numpy(), of_items.numpy()


@torch.inference_mode()
def _solved(side: _Side, of_others: Tensor, config: AlsParameters) -> Tensor:
    """Solves for the vectors of all rows, (R, k) float32, given the vectors of the columns."""
    factors = of_others.double()  # (O, k)
    gram = factors.T @ factors
    solved = torch.empty((len(side.starts) - 1, config.rank))
    for rows, width in _batches(side, config.rank):
        begin = side.starts[rows]
        length = side.starts[rows + 1] - begin
        matrices = gram.repeat(len(rows), 1, 1)  # (B, k, k)
        vectors = torch.zeros((len(rows), config.rank), dtype=torch.float64)
        positive = torch.zeros(len(rows), dtype=torch.int64)
        step = max(1, _BATCH_ELEMENTS // config.rank // len(rows))
        for first in range(0, width, step):
            place = torch.arange(first, min(first + step, width))
            inside = place < length[:, None]  # (B, P)
            index = torch.where(inside, begin[:, None] + place, 0)
            clicks = torch.where(inside, side.clicks[index], 0.0)
            confidence = config.alpha * clicks.abs()
            is_positive = clicks > 0
            others = factors[side.others[index]]  # (B, P, k)
            matrices.baddbmm_((others * confidence[:, :, None]).transpose(1, 2), others)
            preference = torch.where(is_positive, 1.0 + confidence, 0.0)
            vectors += (preference[:, None] @ others)[:, 0]
            positive += is_positive.sum(dim=1)
        penalty = config.regularization * positive.double()
        matrices.diagonal(dim1=1, dim2=2).add_(penalty[:, None])
        factor, failed = torch.linalg.cholesky_ex(matrices)
        if failed.any():
            raise DataError(
                f"source als: with regularization={config.regularization:g} and alpha={config.alpha:g}, "
                "the vector of a user or an item is not determined",
                "raise `regularization` of the source `als`, or lower its `alpha`",
            )
        solved[rows] = torch.cholesky_solve(vectors[:, :, None], factor)[:, :, 0].float()
    return solved


def _batches(side: _Side, rank: int) -> Iterator[tuple[Tensor, int]]:
    """Yields pairs of a batch of rows and the number of clicks of its longest row.

    Shorter rows are padded, so each batch consists of rows with similar numbers of clicks.
    """
    lengths = (side.starts[1:] - side.starts[:-1]).numpy()
    order = np.argsort(lengths, kind="stable")
    in_order = lengths[order]
    first = 0
    while first < len(order):
        shortest = max(int(in_order[first]), 1)
        # In a batch, the longest row has at most twice as many clicks as the shortest row. The number of rows
        # depends on the memory allows.
        last = int(np.searchsorted(in_order, 2 * shortest, side="right"))
        most = max(1, _BATCH_ELEMENTS // rank // max(2 * shortest, rank))
        last = min(last, first + most)
        yield torch.from_numpy(order[first:last]), int(in_order[last - 1])
        first = last
