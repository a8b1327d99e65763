"""The vectors of the source `als` without Spark: implicit ALS as Spark MLlib computes it, on the CPU.

MLlib solves the normal equations of one user or item at a time; here torch solves them in batches. The
initial vectors are those of MLlib (`first_vectors`). As in MLlib, the normal equations are in float64, and
vectors are stored as float32 between the iterations. So the results differ from MLlib's only by rounding
errors.

Let c_ui be `alpha` times the number of clicks of user u on item i, Y the matrix of the item vectors y_i, λ
the setting `regularization`, and n_u the number of items that user u clicked. The vector x_u of user u solves
(Y. Hu, Y. Koren, C. Volinsky, ICDM 2008, equation 4; λ n_u as in Y. Zhou et al., Large-scale Parallel
Collaborative Filtering for the Netflix Prize, AAIM 2008)

    (YᵀY + Σ_i c_ui y_i y_iᵀ + λ n_u I) x_u = Σ_i (1 + c_ui) y_i

MLlib draws the initial user vectors with Spark's generator XORShiftRandom: a xorshift generator of 64 bits
(G. Marsaglia, Xorshift RNGs, JSS 8(14), 2003). Its first state is computed from the seed by MurmurHash3. Like
java.util.Random, `normals` uses the polar method of Marsaglia, which rejects some pairs of numbers. One step
of the generator is a linear function of the state's bits. So n steps are one multiplication by a matrix of
bits, for which `_table` stores 8 times 256 numbers. `_states` uses such tables: it repeatedly doubles an
array of consecutive states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from conf.errors import DataError
from scoring.candidates.source_settings import AlsParameters

# Maximum number of elements (64 MiB) of an array that contains the normal equations of a batch.
_BATCH_ELEMENTS = 1 << 23
# Constants of Spark's random generator.
_MASK_32, _MASK_64 = (1 << 32) - 1, (1 << 64) - 1
_ARRAY_SEED = 0x3C074A61  # seed that scala.util.hashing.MurmurHash3 uses for arrays
_BYTE_SWAP = 0x9E3775CD9E3775CD  # multiplier of scala.util.hashing.byteswap64
_STEPS = 4  # number of the generator's steps for one pair of uniform numbers
_MOST_PAIRS = 1 << 20  # maximum number of pairs drawn at once: 32 MiB of states

Vectors = NDArray[np.float32]
Words = NDArray[np.uint64]


@dataclass(frozen=True)
class _Side:
    """A sparse matrix of clicks with R rows and C stored elements: users by items, or items by users.

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
        """Builds the matrix from C stored elements. `rows` has their row numbers, from 0 without gaps."""
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
        users: (C,) the user number of each of C pairs. Users are numbered from 0 without gaps.
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
    """Solves the normal equations for the vectors of all rows, given the vectors of all columns.

    Returns (R, rank) float32.
    """
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
                "the equations for the vector of a user or an item have no unique solution",
                "raise `regularization` of the source `als`, or lower its `alpha`",
            )
        solved[rows] = torch.cholesky_solve(vectors[:, :, None], factor)[:, :, 0].float()
    return solved


def _batches(side: _Side, rank: int) -> Iterator[tuple[Tensor, int]]:
    """Yields each batch of rows, with the number of clicks of its longest row.

    Shorter rows are padded, so each batch consists of rows with similar numbers of clicks.
    """
    lengths = (side.starts[1:] - side.starts[:-1]).numpy()
    order = np.argsort(lengths, kind="stable")
    in_order = lengths[order]
    first = 0
    while first < len(order):
        shortest = max(int(in_order[first]), 1)
        # In a batch, the longest row has at most twice as many clicks as the shortest row. _BATCH_ELEMENTS
        # limits the number of rows.
        last = int(np.searchsorted(in_order, 2 * shortest, side="right"))
        most = max(1, _BATCH_ELEMENTS // rank // max(2 * shortest, rank))
        last = min(last, first + most)
        yield torch.from_numpy(order[first:last]), int(in_order[last - 1])
        first = last


# The code below draws the initial vectors as MLlib does.


def first_vectors(numbers: int, blocks: int, rank: int, seed: int) -> NDArray[np.float32]:
    """Returns the initial vectors of MLlib's implicit ALS, (numbers, rank); their Euclidean norm is 1.

    Row r belongs to the user with the number r + 1. MLlib puts the user with the number m into block m modulo
    `blocks`, and draws the vectors of a block in the order of these numbers.

    Args:
        numbers: number of users.
        blocks: number of blocks.
        rank: number of elements of a vector.
        seed: the seed of ALS.
    """
    of_users = _next_long(seed)
    vectors = np.empty((numbers, rank), np.float32)
    for block in range(blocks):
        rows = np.arange(numbers)[(np.arange(numbers) + 1) % blocks == block]
        drawn = normals(_byte_swap(of_users ^ block), len(rows) * rank).astype(np.float32)
        block_vectors = drawn.reshape(len(rows), rank)
        norms = np.sqrt((block_vectors.astype(np.float64) ** 2).sum(axis=1)).astype(np.float32)
        vectors[rows] = block_vectors * (np.float32(1) / norms)[:, None]
    return vectors


def normals(seed: int, count: int) -> NDArray[np.float64]:
    """Returns the first numbers that nextGaussian() of XORShiftRandom returns for a seed, (count,)."""
    state = _hashed(seed)
    parts: list[NDArray[np.float64]] = []
    left = count
    while left > 0:
        # The polar method accepts a pair of uniform numbers with probability π/4.
        pairs = min(int(left / 2 / 0.78) + 16, _MOST_PAIRS)
        states = _states(state, _STEPS * pairs)
        state = int(states[-1])
        drawn = _polar(states.reshape(pairs, _STEPS))
        parts.append(drawn)
        left -= len(drawn)
    return np.concatenate([np.zeros(0), *parts])[:count]


def _polar(states: Words) -> NDArray[np.float64]:
    """Returns two normally distributed numbers for each accepted pair of uniform numbers.

    Args:
        states: (pairs, 4) consecutive states of the generator.
    """
    first = states[:, ::2] & np.uint64((1 << 26) - 1)
    second = states[:, 1::2] & np.uint64((1 << 27) - 1)
    uniform = ((first << np.uint64(27)) + second).astype(np.float64) * 2.0**-53
    pair = 2 * uniform - 1
    square = pair[:, 0] * pair[:, 0] + pair[:, 1] * pair[:, 1]
    accepted = (square < 1) & (square != 0)
    pair, square = pair[accepted], square[accepted]
    return (pair * np.sqrt(-2 * np.log(square) / square)[:, None]).ravel()


def _states(state: int, count: int) -> Words:
    """Returns the `count` states of Spark's random generator that follow `state`."""
    states = np.array([_step(state)], np.uint64)
    # matrix[bit] is the state that the generator reaches in len(states) steps from a state with only this
    # bit.
    matrix = np.array([_step(1 << bit) for bit in range(64)], np.uint64)
    while len(states) < count:
        table = _table(matrix)
        states = np.concatenate([states, _jump(table, states[: count - len(states)])])
        matrix = _jump(table, matrix)
    return states


def _table(matrix: Words) -> Words:
    """Returns the table, (8, 256), with which `_jump` multiplies states by a bit matrix.

    The element [b, v] is the product of the matrix and a state whose byte b is v and whose other bytes are 0.
    """
    table = np.zeros((8, 256), np.uint64)
    values = np.arange(256)
    for byte in range(8):
        for bit in range(8):
            table[byte, (values >> bit) & 1 == 1] ^= matrix[8 * byte + bit]
    return table


def _jump(table: Words, states: Words) -> Words:
    """Multiplies states of the random generator by the bit matrix from which `_table` made `table`."""
    jumped = np.zeros(len(states), np.uint64)
    of_bytes = states.astype("<u8").view(np.uint8).reshape(-1, 8)
    for byte in range(8):
        jumped ^= table[byte][of_bytes[:, byte]]
    return jumped


def _step(state: int) -> int:
    """Returns the state of Spark's random generator that follows `state`."""
    state ^= (state << 21) & _MASK_64
    state ^= state >> 35
    return state ^ (state << 4) & _MASK_64


def _next_long(seed: int) -> int:
    """Returns the first number that nextLong() returns for a seed, as the 64 bits of a signed number."""
    states = _states(_hashed(seed), 2).tolist()
    high, low = (_signed(state & _MASK_32) for state in states)
    return ((high << 32) + low) & _MASK_64


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def _byte_swap(value: int) -> int:
    """Returns scala.util.hashing.byteswap64 of 64 bits."""
    product = (value & _MASK_64) * _BYTE_SWAP & _MASK_64
    reversed_bytes = int.from_bytes(product.to_bytes(8, "little"), "big")
    return reversed_bytes * _BYTE_SWAP & _MASK_64


def _hashed(seed: int) -> int:
    """Returns the first state of the generator for a seed: XORShiftRandom.hashSeed."""
    data = (seed & _MASK_64).to_bytes(8, "big")
    low = _murmur(data, _ARRAY_SEED)
    return _murmur(data, low) << 32 | low


def _murmur(data: bytes, seed: int) -> int:
    """Returns the MurmurHash3 (32 bits) of 8 bytes, as scala.util.hashing.MurmurHash3.bytesHash."""
    value = seed
    for start in (0, 4):
        word = int.from_bytes(data[start : start + 4], "little") * 0xCC9E2D51 & _MASK_32
        word = (word << 15 | word >> 17) & _MASK_32
        value ^= word * 0x1B873593 & _MASK_32
        value = (value << 13 | value >> 19) & _MASK_32
        value = (value * 5 + 0xE6546B64) & _MASK_32
    value ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        value ^= value >> shift
        value = value * factor & _MASK_32
    return value ^ value >> 16
