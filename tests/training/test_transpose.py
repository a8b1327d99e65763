"""Rows from columns: compiled code and NumPy against a row at a time in plain Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from training.data import pool_writer
from training.data.pool_writer import (
    CompiledTransposer,
    NumpyTransposer,
    PoolMemory,
    RangeRows,
    ShardRows,
    Transposer,
    transposer_of,
)
from training.data.sharding import BLOCK_ROWS
from training.native import library


def compiled(columns: list[NDArray[Any]]) -> CompiledTransposer:
    return CompiledTransposer(columns, BLOCK_ROWS)


@pytest.mark.parametrize("kind", [compiled, NumpyTransposer])
@given(
    singles=st.integers(0, 9),
    lengths=st.lists(st.integers(1, 5), max_size=2),
    rows=st.integers(1, 5 * BLOCK_ROWS),
    first=st.integers(0, 40),
    dtype=st.sampled_from([np.int32, np.float32]),
    in_blocks=st.booleans(),
    draw=st.data(),
)
@settings(deadline=None, max_examples=150)
def test_each_row_comes_to_its_place_whole(
    kind: Callable[[list[NDArray[Any]]], Transposer],
    singles: int,
    lengths: list[int],
    rows: int,
    first: int,
    dtype: type,
    in_blocks: bool,
    draw: st.DataObject,
) -> None:
    random = np.random.default_rng(rows)
    shapes = [(first + rows,)] * singles + [(first + rows, length) for length in lengths]
    columns: list[NDArray[Any]] = [random.integers(-(2**30), 2**30, shape).astype(dtype) for shape in shapes]
    start = draw.draw(st.integers(0, rows))
    stop = draw.draw(st.integers(start, rows))
    blocks = random.permutation(rows // BLOCK_ROWS) if in_blocks else None
    places = random.permutation(rows + 3)[: stop - start]
    into: NDArray[Any] = np.full((rows + 3, singles + sum(lengths)), 7, dtype=dtype)
    kind(columns).transpose(first, blocks, range(start, stop), places, into)

    expected = np.full_like(into, 7)
    for at, place in enumerate(places):
        row = start + at
        if blocks is not None and row // BLOCK_ROWS < len(blocks):
            row = int(blocks[row // BLOCK_ROWS]) * BLOCK_ROWS + row % BLOCK_ROWS
        expected[place] = np.concatenate([np.atleast_1d(column[first + row]) for column in columns] or [[]])
    np.testing.assert_array_equal(into, expected)


def test_the_compiled_way_is_taken_where_it_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(transposer_of([np.zeros(3, np.int32)]), CompiledTransposer)
    library.library.cache_clear()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    try:
        assert isinstance(pool_writer.transposer_of([np.zeros(3, np.int32)]), NumpyTransposer)
        assert "run `make setup`" in caplog.text
    finally:
        monkeypatch.undo()
        library.library.cache_clear()


def test_numbers_of_other_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="int64"):
        compiled([np.zeros(3, np.int64)])


@pytest.mark.parametrize("of", [pool_writer.compiled_target_rows, pool_writer.numpy_target_rows])
@given(shard_rows=st.integers(1, 9), shards=st.integers(1, 4), rows=st.integers(0, 60), ordered=st.booleans())
@settings(deadline=None)
def test_a_window_fills_a_shards_places_batch_by_batch(
    of: Callable[..., np.ndarray], shard_rows: int, shards: int, rows: int, ordered: bool
) -> None:
    order = np.random.default_rng(rows).permutation(rows) if ordered else None
    batch = shard_rows * shards
    for shard in range(shards):
        targets = of(rows, order, shard_rows, batch, shard * shard_rows)
        pool = {int(place): row for row, place in enumerate(targets)}
        expected = [
            step * batch + shard * shard_rows + at for step in range(rows) for at in range(shard_rows)
        ][:rows]
        assert sorted(pool) == expected
        assert [pool[place] for place in expected] == (list(range(rows)) if order is None else order.tolist())


@given(draw=st.data(), threads=st.integers(1, 4), num_shards=st.integers(1, 5), steps=st.integers(1, 4))
@settings(deadline=None, max_examples=60)
def test_compiled_code_and_numpy_write_equal_pools(
    draw: st.DataObject, threads: int, num_shards: int, steps: int
) -> None:
    """Shards with several ranges of several row groups, in any order, and shards that lack rows."""
    random = np.random.default_rng(draw.draw(st.integers(0, 2**31)))
    shard_rows = draw.draw(st.integers(1, 40))
    dense, length = draw.draw(st.integers(0, 6)), draw.draw(st.integers(0, 3))

    def columns_of(rows: int) -> list[list[NDArray[Any]]]:
        ids: list[NDArray[Any]] = [random.integers(0, 2**30, rows, dtype=np.int32) for _ in range(5)]
        lists = [random.integers(0, 9, (rows, length), dtype=np.int32)] if length else []
        features = [random.random(rows, dtype=np.float32) for _ in range(dense)]
        return [[random.random(rows, dtype=np.float32)], features, [*ids, *lists]]

    groups = [columns_of(200) for _ in range(2)]
    places: list[tuple[list[tuple[int, int, NDArray[np.int64] | None, range]], NDArray[np.int64] | None]] = []
    for _ in range(num_shards):
        left, ranges = steps * shard_rows, []
        for group in draw.draw(st.lists(st.integers(0, 1), max_size=3)):
            first = draw.draw(st.integers(0, 150))
            start = draw.draw(st.integers(0, 49))
            stop = draw.draw(st.integers(start, min(50, start + left)))
            blocks = random.permutation(50 // BLOCK_ROWS) if draw.draw(st.booleans()) else None
            ranges.append((group, first, blocks, range(start, stop)))
            left -= stop - start
        rows = steps * shard_rows - left
        places.append((ranges, random.permutation(rows) if draw.draw(st.booleans()) else None))

    def written(kind: Callable[[list[NDArray[Any]]], Transposer]) -> list[NDArray[Any]]:
        of_groups = [tuple(kind(columns) for columns in group) for group in groups]
        shards = [
            ShardRows(
                [RangeRows(of_groups[group], first, blocks, rows) for group, first, blocks, rows in ranges],
                order,
                index * shard_rows,
            )
            for index, (ranges, order) in enumerate(places)
        ]
        rows = steps * num_shards * shard_rows
        widths = ((1, np.float32), (dense, np.float32), (5 + length, np.int32))
        targets = [np.full((rows, width), 7, dtype=dtype) for width, dtype in widths]
        weights = np.full(rows, 7, dtype=np.float32)
        memory = PoolMemory(targets, weights, steps, shard_rows, num_shards * shard_rows)
        pool_writer.write_pool(shards, memory, threads)
        return [*targets, weights]

    for mine, other in zip(written(compiled), written(NumpyTransposer), strict=True):
        np.testing.assert_array_equal(mine, other)
