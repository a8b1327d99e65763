"""Computes XXH64 of strings or integers with NumPy, with the same results as Spark's `xxhash64` (seed 42).

The module implements the specification of XXH64 (Yann Collet, xxHash fast digest algorithm, section "XXH64
algorithm description"). Strings of equal length are hashed together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

SEED = 42
# Number of strings that are hashed together. Blocks of this size fit into the cache of the processor.
_BLOCK_ROWS = 2**15
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


def xxhash64(texts: pa.Array, seed: int = SEED) -> np.ndarray:
    """Returns the hash of the UTF-8 bytes of each of n strings, shape (n,), int64.

    The hash of null is `seed`, as in Spark.
    """
    texts = texts.cast(pa.large_binary())
    hashes = np.full(len(texts), seed, np.int64)
    if not len(texts):
        return hashes
    buffers = texts.buffers()
    offsets = np.frombuffer(buffers[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] is not None else np.zeros(0, np.uint8)
    lengths = np.diff(offsets)
    present = texts.is_valid().to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        for length in np.unique(lengths[present]):
            at = np.flatnonzero(present & (lengths == length))
            rows = data[offsets[at][:, None] + np.arange(length)[None, :]]  # (m, length)
            hashes[at] = _of_one_length(rows, int(length), np.uint64(seed)).view(np.int64)
    return hashes


def xxhash64_of_longs(numbers: np.ndarray, seed: int = SEED) -> np.ndarray:
    """Returns the hash of the 8 bytes (little endian) of each of n integers, shape (n,), int64."""
    words = np.ascontiguousarray(numbers, "<i8").view(np.uint64)
    with np.errstate(over="ignore"):
        return _of_long(words, np.full(1, seed, np.int64).view(np.uint64)).view(np.int64)


def xxhash64_of_draws(row_ids: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """Returns Spark's `xxhash64(row_id, draw, seed)` of n rows for each draw from 1 to `draws`.

    Spark uses the hash of a column as the seed of the hash of the next column. A row_id has 64 bits, and a
    draw has 32 bits. `seed` is hashed as 32 bits if it fits into them, as in `pyspark.sql.functions.lit`,
    otherwise as 64 bits.

    Args:
        row_ids: (n,) int64
        draws: number of draws, less than 2**31.
        seed: from 0 to 2**63 - 1.

    Returns:
        (n, draws) int64
    """
    hashes = np.empty((len(row_ids), draws), np.int64)
    of_seed = _of_int if seed < 2**31 else _of_long
    for start in range(0, len(row_ids), _BLOCK_ROWS):
        of_rows = xxhash64_of_longs(row_ids[start : start + _BLOCK_ROWS]).view(np.uint64)
        with np.errstate(over="ignore"):
            for draw in range(1, draws + 1):
                hashed = of_seed(np.uint64(seed), _of_int(np.uint64(draw), of_rows))
                hashes[start : start + _BLOCK_ROWS, draw - 1] = hashed.view(np.int64)
    return hashes


def _of_long(words: Any, seeds: np.ndarray) -> np.ndarray:
    """Returns the hash of each 64-bit integer, with a separate seed for each integer.

    `words` has the type uint64.
    """
    hashed = seeds + _P5 + np.uint64(8)
    return _mixed(_left(hashed ^ (_left(words * _P2, 31) * _P1), 27) * _P1 + _P4)


def _of_int(words: Any, seeds: np.ndarray) -> np.ndarray:
    """Returns the hash of each non-negative 32-bit integer, with a separate seed for each integer."""
    hashed = seeds + _P5 + np.uint64(4)
    return _mixed(_left(hashed ^ (words * _P1), 23) * _P2 + _P3)


def _of_one_length(rows: np.ndarray, length: int, seed: np.uint64) -> np.ndarray:
    done = 0
    if length >= 32:
        lanes = [np.full(len(rows), start) for start in (seed + _P1 + _P2, seed + _P2, seed, seed - _P1)]
        while done + 32 <= length:
            lanes = [_round(lane, _word(rows, done + 8 * i, 8)) for i, lane in enumerate(lanes)]
            done += 32
        hashed = _left(lanes[0], 1) + _left(lanes[1], 7) + _left(lanes[2], 12) + _left(lanes[3], 18)
        for lane in lanes:
            hashed = (hashed ^ _round(np.zeros_like(lane), lane)) * _P1 + _P4
    else:
        hashed = np.full(len(rows), seed + _P5)
    hashed = hashed + np.uint64(length)
    while done + 8 <= length:
        word = _word(rows, done, 8)
        hashed = _left(hashed ^ _round(np.zeros_like(word), word), 27) * _P1 + _P4
        done += 8
    if done + 4 <= length:
        hashed = _left(hashed ^ (_word(rows, done, 4) * _P1), 23) * _P2 + _P3
        done += 4
    while done < length:
        hashed = _left(hashed ^ (rows[:, done].astype(np.uint64) * _P5), 11) * _P1
        done += 1
    return _mixed(hashed)


def _mixed(hashed: np.ndarray) -> np.ndarray:
    """Runs the last steps of the algorithm on each hash ("avalanche")."""
    hashed = (hashed ^ (hashed >> np.uint64(33))) * _P2
    hashed = (hashed ^ (hashed >> np.uint64(29))) * _P3
    return hashed ^ (hashed >> np.uint64(32))


def _word(rows: np.ndarray, start: int, width: int) -> np.ndarray:
    """Reads a little-endian integer of `width` bytes at byte `start` of each row. Returns (m,) uint64."""
    part = np.ascontiguousarray(rows[:, start : start + width])
    return part.view("<u8" if width == 8 else "<u4")[:, 0].astype(np.uint64)


def _round(lane: np.ndarray, word: np.ndarray) -> np.ndarray:
    return _left(lane + word * _P2, 31) * _P1


def _left(word: Any, bits: int) -> Any:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))
