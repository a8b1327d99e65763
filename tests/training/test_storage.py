"""Numbers by counters, stochastic rounding, and trainings with tables of 16 bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from training.embeddings import counter_rng
from training.embeddings.held_rows import round_stochastically
from training.embeddings.table import StackedEmbedding


def expected_bits(seed: int, rows: NDArray[np.uint64], columns: range) -> NDArray[np.uint32]:
    """In NumPy's unsigned integers, which wrap."""
    with np.errstate(over="ignore"):
        key = (rows + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
        key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        key ^= key >> np.uint64(31)
        low, high = key.astype(np.uint32), (key >> np.uint64(32)).astype(np.uint32)
        bits = low[:, None] + np.array(columns, np.uint32) * np.uint32(0x9E3779B9)
        bits = (bits ^ (bits >> np.uint32(16))) * np.uint32(0x7FEB352D) ^ high[:, None]
        bits = (bits ^ (bits >> np.uint32(15))) * np.uint32(0x846CA68B)
    return bits ^ (bits >> np.uint32(16))


def test_bits_equal_numpy_and_each_row_draws_its_own() -> None:
    rows = torch.tensor([0, 1, 5, 2**40, 123_456_789])
    result = counter_rng.random_bits(2**61 + 7, rows, range(3, 20))
    expected = expected_bits(2**61 + 7, rows.numpy().astype(np.uint64), range(3, 20))
    np.testing.assert_array_equal(result.numpy().view(np.uint32), expected)
    assert torch.equal(counter_rng.random_bits(2**61 + 7, rows[2:3], range(4, 6)), result[2:3, 1:3])


def test_uniform_and_normal_numbers_are_what_they_are_called() -> None:
    rows = torch.arange(20_000)
    drawn = counter_rng.uniform(1, rows, range(8)).double().numpy()
    assert 0 <= drawn.min() < drawn.max() < 1
    shares = np.histogram(drawn, 16, (0, 1))[0] / drawn.size
    np.testing.assert_allclose(shares, 1 / 16, atol=0.002)
    normal = counter_rng.normal(1, rows, 8).double().numpy()
    moments = [np.mean(normal**power) for power in (1, 2, 3, 4)]
    np.testing.assert_allclose(moments, [0, 1, 0, 3], atol=0.05)
    for numbers in (drawn, normal):
        off = np.corrcoef(numbers.T) - np.eye(8)
        assert np.abs(off).max() < 0.03
        assert abs(np.corrcoef(numbers[:-1, 0], numbers[1:, 0])[0, 1]) < 0.03


VALUES = [0.1, -0.1, 1 / 3, 1.0, -3.0e-5, 1.0e-6, 3.3e-8, 0.0, 1234.567, -2.0e-7]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_takes_one_of_two_neighbours_and_keeps_the_mean(dtype: torch.dtype) -> None:
    rows = torch.arange(40_000)
    values = torch.tensor(VALUES).repeat(len(rows), 1)
    result = round_stochastically(values, dtype, 11, rows)
    assert result.dtype == dtype
    for value, column in zip(torch.tensor(VALUES), result.T, strict=True):
        taken = column.unique()
        nearest = value.to(dtype)
        if float(nearest) == float(value):
            assert taken.tolist() == [float(nearest)]
            continue
        # The neighbour on the other side of the value, by the next bit pattern.
        away = int(abs(float(nearest)) < abs(float(value))) * 2 - 1
        other = (nearest.view(torch.int16) + away).view(dtype)
        assert set(taken.tolist()) == {float(nearest), float(other)}
        distance = abs(float(other) - float(nearest))
        # A share's deviation is at most 1 / (2 √N): five of them.
        assert abs(float(column.double().mean()) - float(value)) < 5 * distance / (2 * len(rows) ** 0.5)
    assert torch.equal(result[7:9], round_stochastically(values[7:9], dtype, 11, rows[7:9]))
    assert not torch.equal(result, round_stochastically(values, dtype, 12, rows))


def test_what_is_too_large_or_no_number_is_kept_in_sight() -> None:
    values = torch.tensor([[float("nan"), float("inf"), -float("inf"), 1e6, -1e6]]).repeat(100, 1)
    wide = round_stochastically(values, torch.bfloat16, 1, torch.arange(100)).float()
    assert bool(wide[:, 0].isnan().all())
    assert bool((wide[:, 1] == float("inf")).all())
    assert bool((wide[:, 2] == -float("inf")).all())
    narrow = round_stochastically(values, torch.float16, 1, torch.arange(100)).float()
    assert bool(narrow[:, 0].isnan().all())
    assert bool((narrow[:, 1:].abs() == 65504).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_updates_too_small_to_see_add_up(dtype: torch.dtype) -> None:
    """1 + 1000 * 2^-14 is 1.061; rounded to the nearest it would still be 1."""
    table = StackedEmbedding([500], 8, storage=dtype)
    with torch.no_grad():
        table.weight.fill_(1.0)
    rows, change = torch.arange(500), torch.full((500, 8), 2.0**-14)
    for step in range(1000):
        table.add_to_rows(rows, change, step)
    assert float(table.weight.double().mean()) == pytest.approx(1 + 1000 * 2**-14, abs=2e-3)
    assert (1 + change).to(dtype).eq(1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_vectors_and_gradients_are_float32(dtype: torch.dtype) -> None:
    table = StackedEmbedding([5, 6], 4, [3], "sum", storage=dtype)
    table.init_normal(1.0)
    vectors = table(torch.tensor([[1, 2, 3, 0], [4, 5, 5, 5]]))
    held = table.weight.float()
    expected = torch.stack([held[[1, 4]], torch.stack([held[7] + held[8], 3 * held[10]])], dim=1)
    torch.testing.assert_close(vectors, expected)
    vectors.sum().backward()
    gradient = table.take_gradient()
    assert gradient.values.dtype == torch.float32
    assert gradient.rows.tolist() == [1, 4, 7, 8, 10]
    assert gradient.values[:, 0].tolist() == [1, 1, 1, 1, 3]
