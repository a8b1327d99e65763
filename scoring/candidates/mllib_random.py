"""Computes the random initial vectors of Spark MLlib's ALS in NumPy.

MLlib draws the initial user vectors with Spark's generator XORShiftRandom: a xorshift generator of 64 bits
(G. Marsaglia, Xorshift RNGs, JSS 8(14), 2003) whose seed is a MurmurHash3. As java.util.Random does,
`normals` uses the polar method of Marsaglia, which rejects some pairs of numbers.

One step of the generator is linear over bits. So a table of 8 times 256 numbers can represent any number of
steps. All states of a stream are computed in arrays that double in length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK_32, _MASK_64 = (1 << 32) - 1, (1 << 64) - 1
_ARRAY_SEED = 0x3C074A61  # seed that scala.util.hashing.MurmurHash3 uses for arrays
_BYTE_SWAP = 0x9E3775CD9E3775CD  # multiplier of scala.util.hashing.byteswap64
_STEPS = 4  # steps of the generator that draw one pair of uniform numbers
_MOST_PAIRS = 1 << 20  # pairs that are drawn together: 32 MiB of states

Words = NDArray[np.uint64]


def first_vectors(numbers: int, blocks: int, rank: int, seed: int) -> NDArray[np.float32]:
    """Returns the initial vectors of MLlib's implicit ALS, (numbers, rank); their Euclidean norm is 1.

    Row r belongs to the user with the number r + 1. MLlib distributes users over blocks by the remainder of
    their number, and draws the vectors of a block in the order of the numbers.

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
        # A pair is accepted with the probability π/4.
        pairs = min(int(left / 2 / 0.78) + 16, _MOST_PAIRS)
        states = _states(state, _STEPS * pairs)
        state = int(states[-1])
        drawn = _polar(states.reshape(pairs, _STEPS))
        parts.append(drawn)
        left -= len(drawn)
    return np.concatenate([np.zeros(0), *parts])[:count]


def _polar(states: Words) -> NDArray[np.float64]:
    """Returns two normal numbers for each accepted pair of uniform numbers.

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
    """Returns the `count` states of the generator that follow a state."""
    states = np.array([_step(state)], np.uint64)
    # matrix[bit] is the state that follows this bit after len(states) steps.
    matrix = np.array([_step(1 << bit) for bit in range(64)], np.uint64)
    while len(states) < count:
        table = _table(matrix)
        states = np.concatenate([states, _jump(table, states[: count - len(states)])])
        matrix = _jump(table, matrix)
    return states


def _table(matrix: Words) -> Words:
    """Returns the product of a matrix of bits with each value of each byte of a state, (8, 256)."""
    table = np.zeros((8, 256), np.uint64)
    values = np.arange(256)
    for byte in range(8):
        for bit in range(8):
            table[byte, (values >> bit) & 1 == 1] ^= matrix[8 * byte + bit]
    return table


def _jump(table: Words, states: Words) -> Words:
    """Multiplies states by the matrix that a table represents."""
    jumped = np.zeros(len(states), np.uint64)
    of_bytes = states.astype("<u8").view(np.uint8).reshape(-1, 8)
    for byte in range(8):
        jumped ^= table[byte][of_bytes[:, byte]]
    return jumped


def _step(state: int) -> int:
    """Returns the next state of the generator."""
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
