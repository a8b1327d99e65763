"""Orders of rows: permutations that seed and epoch decide, and mix rows from everywhere."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.sharding import BLOCK_ROWS, Piece, RowOrder, RowRange, ShardStream

PIECE = Piece(0, 7, 7 + 10_000)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(0, 3), st.integers(0, 3))
@settings(deadline=None)
def test_orders_are_permutations(rows: list[int], seed: int, epoch: int) -> None:
    pieces = [Piece(group, 0, count * BLOCK_ROWS + group) for group, count in enumerate(rows)]
    order = RowOrder(seed, epoch)
    assert Counter(order.pieces(1, pieces)) == Counter(pieces)
    for piece in pieces:
        blocks = order.blocks(piece)
        assert blocks is not None
        assert sorted(blocks) == list(range(piece.rows // BLOCK_ROWS))
    window = order.window(1, 0, rows[0])
    assert window is not None
    assert sorted(window) == list(range(rows[0]))


def test_seed_epoch_shard_and_place_each_give_another_order() -> None:
    orders = [
        order.blocks(piece)
        for order in (RowOrder(0, 0), RowOrder(0, 1), RowOrder(1, 0))
        for piece in (PIECE, Piece(1, 7, 10_007), Piece(0, 8, 10_008))
    ]
    windows = [
        order.window(shard, window, 312)
        for order in (RowOrder(0, 0), RowOrder(0, 1), RowOrder(1, 0))
        for shard in range(2)
        for window in range(2)
    ]
    digests = [order.tobytes() for order in (*orders, *windows) if order is not None]
    assert len(set(digests)) == len(digests) == 9 + 12
    pieces = [Piece(group, 0, 1) for group in range(50)]
    assert RowOrder(0, 0).pieces(0, pieces) != RowOrder(0, 1).pieces(0, pieces)
    assert RowOrder(0, 0).pieces(0, pieces) != RowOrder(0, 0).pieces(1, pieces)


def test_an_order_is_the_same_each_time_it_is_asked_for() -> None:
    for of in (lambda: RowOrder(5, 2).blocks(PIECE), lambda: RowOrder(5, 2).window(3, 4, 1000)):
        assert np.array_equal(of(), of())  # type: ignore[arg-type]


def test_without_a_seed_nothing_moves() -> None:
    order = RowOrder(None, 3)
    pieces = [Piece(group, 0, 1) for group in range(50)]
    assert order.pieces(0, pieces) == pieces
    assert order.blocks(PIECE) is None
    assert order.window(0, 0, 10) is None


def test_a_window_holds_rows_from_all_over_a_piece() -> None:
    """8,192 rows of a piece of a million: each tenth of the piece gives about a tenth of them."""
    blocks = RowOrder(0, 0).blocks(Piece(0, 0, 1_000_000))
    assert blocks is not None
    tenths = np.bincount(blocks[: 8192 // BLOCK_ROWS] * 10 // len(blocks), minlength=10)
    assert tenths.min() > 10


@given(
    st.lists(st.integers(1, 20), max_size=8),
    st.integers(0, 200),
    st.integers(0, 60),
)
@settings(deadline=None)
def test_runs_are_the_rows_of_the_stream(rows: list[int], start: int, count: int) -> None:
    pieces = [Piece(group, 3, 3 + count) for group, count in enumerate(rows)]
    stream = [(piece, row) for piece in pieces for row in range(piece.rows)]
    ranges = ShardStream(pieces).ranges(start, start + count)
    assert [
        (row_range.piece, row) for row_range in ranges for row in range(row_range.start, row_range.stop)
    ] == stream[start : start + count]
    assert all(isinstance(row_range, RowRange) and row_range.start < row_range.stop for row_range in ranges)
