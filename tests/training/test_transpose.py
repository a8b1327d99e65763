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

from training.data import transpose
from training.data.row_order import BLOCK_ROWS
from training.data.transpose import NumpyTransposer, Transposer, transposer_of
from training.native import library, transposer
from training.native.transposer import CompiledTransposer


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
        assert isinstance(transpose.transposer_of([np.zeros(3, np.int32)]), NumpyTransposer)
        assert "run `make setup`" in caplog.text
    finally:
        monkeypatch.undo()
        library.library.cache_clear()


def test_numbers_of_other_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="int64"):
        compiled([np.zeros(3, np.int64)])


@pytest.mark.parametrize("of", [transposer.target_rows, transpose.numpy_target_rows])
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
