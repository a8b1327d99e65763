"""The target for the loader's transposition of columns to rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fuzz.inputs import OPTION_BYTES
from tests.fuzz.sanitized import load
from training.data import pool_writer
from training.data.pool_writer import (
    CompiledTransposer,
    NumpyTransposer,
    PoolMemory,
    RangeRows,
    ShardRows,
    Transposer,
)
from training.data.sharding import BLOCK_ROWS
from training.native import library


class Transposition:
    """Pools and pieces of random shapes, compared with NumPy."""

    def __init__(self, prefixes: Sequence[Path]) -> None:
        load(prefixes[0], library.library)

    def corpus(self) -> list[bytes]:
        return [b""]  # the shapes are drawn from the bytes of the options

    def run(self, data: bytes) -> None:
        seed = int.from_bytes(data[:OPTION_BYTES], "little")
        self._window(np.random.default_rng(seed))
        self._piece(np.random.default_rng(seed))
        compiled = self._pool(seed, lambda columns: CompiledTransposer(columns, BLOCK_ROWS))
        for one, other in zip(compiled, self._pool(seed, NumpyTransposer), strict=True):
            np.testing.assert_array_equal(one, other)

    @staticmethod
    def _window(random: np.random.Generator) -> None:
        rows, shard_rows = int(random.integers(0, 200)), int(random.integers(1, 70))
        order = random.permutation(rows) if random.random() < 0.5 else None
        places = (rows, order, shard_rows, shard_rows * 3, shard_rows)
        np.testing.assert_array_equal(
            pool_writer.compiled_target_rows(*places), pool_writer.numpy_target_rows(*places)
        )

    @staticmethod
    def _piece(random: np.random.Generator) -> None:
        rows = int(random.integers(0, 5 * BLOCK_ROWS + 3))
        columns = _columns(random, rows, np.int32)
        first = int(random.integers(0, rows + 1))
        left = rows - first
        blocks = random.permutation(left // BLOCK_ROWS) if random.random() < 0.6 else None
        start = int(random.integers(0, left + 1))
        stop = int(random.integers(start, left + 1))
        width = _width(columns)
        targets = random.permutation(left)[: stop - start]
        written = []
        for of_columns in (CompiledTransposer(columns, BLOCK_ROWS), NumpyTransposer(columns)):
            into = np.full((left, width), 7, np.int32)
            of_columns.transpose(first, blocks, range(start, stop), targets, into)
            written.append(into)
        np.testing.assert_array_equal(*written)

    @staticmethod
    def _pool(seed: int, kind: Callable[[list[NDArray[Any]]], Transposer]) -> list[NDArray[Any]]:
        random = np.random.default_rng(seed)
        num_shards, steps, shard_rows = (int(random.integers(1, most)) for most in (5, 4, 90))
        rows = steps * num_shards * shard_rows
        row_group = 4 * BLOCK_ROWS
        first_group: list[list[NDArray[Any]]] = [
            [random.random(row_group, np.float32)],
            _columns(random, row_group, np.float32),
            _columns(random, row_group, np.int32),
        ]
        widths = [_width(of_kind) for of_kind in first_group]
        second_group = [[np.roll(column, 1, axis=0) for column in of_kind] for of_kind in first_group]
        groups = [tuple(kind(of_kind) for of_kind in group) for group in (first_group, second_group)]
        shards = []
        for index in range(num_shards):
            left, ranges = steps * shard_rows, []
            for _ in range(int(random.integers(0, 4))):
                first = int(random.integers(0, row_group))
                most = row_group - first
                start = int(random.integers(0, most + 1))
                stop = int(random.integers(start, min(most, start + left) + 1))
                blocks = random.permutation(most // BLOCK_ROWS) if random.random() < 0.5 else None
                ranges.append(
                    RangeRows(groups[int(random.integers(0, 2))], first, blocks, range(start, stop))
                )
                left -= stop - start
            order = random.permutation(steps * shard_rows - left) if random.random() < 0.5 else None
            shards.append(ShardRows(ranges, order, index * shard_rows))
        targets: list[NDArray[Any]] = [
            np.full((rows, width), 7, dtype)
            for width, dtype in zip(widths, (np.float32, np.float32, np.int32), strict=True)
        ]
        weights = np.full(rows, 7, np.float32)
        memory = PoolMemory(targets, weights, steps, shard_rows, num_shards * shard_rows)
        pool_writer.write_pool(shards, memory, int(random.integers(1, 4)))
        return [*targets, weights]


def _width(columns: Sequence[NDArray[Any]]) -> int:
    """Returns how many numbers a row has."""
    return sum(1 if column.ndim == 1 else column.shape[1] for column in columns)


def _columns(random: np.random.Generator, rows: int, dtype: Any) -> list[NDArray[Any]]:
    """Returns some columns of numbers, some of them not contiguous, and some columns of lists."""
    singles, lists = (
        int(random.integers(0, 10)),
        [int(random.integers(1, 5)) for _ in range(random.integers(0, 3))],
    )
    columns: list[NDArray[Any]] = []
    for _ in range(singles):
        stride = int(random.integers(1, 4))
        columns.append(random.integers(0, 2**20, rows * stride).astype(dtype)[::stride])
    return [*columns, *(random.integers(0, 2**20, (rows, length)).astype(dtype) for length in lists)]
