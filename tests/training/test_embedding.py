"""The stacked table and its optimiser against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from training.embeddings.rows import SummedRowGradient, group, sum_by_sorting, sum_rows
from training.embeddings.table import StackedEmbedding
from training.optimizers.updates import RowWiseAdagrad


def test_columns_do_not_share_rows() -> None:
    table = StackedEmbedding([3, 5, 2], 1)
    with torch.no_grad():
        for number, rows in enumerate(table.block_rows()):
            rows.copy_(torch.arange(len(rows)).view(-1, 1) + 10.0 * number)
    ids = torch.tensor([[0, 0, 0], [2, 4, 1]])
    assert table(ids).squeeze(2).tolist() == [[0, 10, 20], [2, 14, 21]]


def test_a_table_of_no_columns_gives_no_vectors() -> None:
    assert StackedEmbedding([], 4)(torch.zeros(7, 0, dtype=torch.int64)).shape == (7, 0, 4)


@given(st.lists(st.integers(0, 5), max_size=30))
@settings(deadline=None)
def test_sum_rows_adds_equal_rows(rows: list[int]) -> None:
    values = torch.arange(len(rows) * 2, dtype=torch.float32).view(-1, 2)
    gradient = sum_rows(torch.tensor(rows, dtype=torch.int64), values)
    assert gradient.rows.tolist() == sorted(set(rows))
    for row, value in zip(gradient.rows.tolist(), gradient.values, strict=True):
        expected = sum((values[i] for i, other in enumerate(rows) if other == row), torch.zeros(2))
        assert torch.equal(value, expected)


def test_groups_add_their_elements_in_order_and_sorting_adds_the_same() -> None:
    rng = np.random.default_rng(1)
    keys, source = rng.integers(0, 12, 200), rng.integers(0, 30, 200)
    values = rng.normal(size=(30, 4)).astype(np.float32)
    weights = rng.random(200).astype(np.float32)
    groups = group(torch.from_numpy(keys), 12)
    assert groups.keys.tolist() == sorted(set(keys.tolist()))
    assert groups.keys[groups.position()].tolist() == keys.tolist()
    expected = np.zeros((len(groups.keys), 4), np.float32)
    for key, index, weight in zip(keys, source, weights, strict=True):
        expected[groups.keys.tolist().index(key)] += weight * values[index]
    arguments = torch.from_numpy(values), torch.from_numpy(source), torch.from_numpy(weights)
    np.testing.assert_allclose(groups.sum(*arguments).numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sum_by_sorting(groups, *arguments).numpy(), expected, rtol=1e-5, atol=1e-6)
    far = group(torch.from_numpy(keys) + 2**33, 2**34)
    assert torch.equal(far.order, groups.order)
    assert torch.equal(far.keys, groups.keys + 2**33)


def test_what_was_looked_up_before_an_evaluation_is_forgotten_with_its_gradient() -> None:
    table = StackedEmbedding([4], 2)
    table(torch.tensor([[1]])).sum().backward()
    with torch.no_grad():
        table(torch.tensor([[2]]))
    table.eval()(torch.tensor([[3]]))
    table.train()(torch.tensor([[0]]))  # its loss is never differentiated
    assert table.take_gradient().rows.tolist() == [1]
    assert table.take_gradient().rows.tolist() == []


def test_a_row_looked_up_twice_before_a_step_gets_both_gradients() -> None:
    table = StackedEmbedding([4, 3], 2)
    for scale, ids in ((1.0, [[1, 0]]), (10.0, [[1, 2]])):
        (table(torch.tensor(ids)) * scale).sum().backward()
    gradient = table.take_gradient()
    assert gradient.rows.tolist() == [1, 4, 6]
    assert gradient.values[:, 0].tolist() == [11, 1, 10]


def test_lists_are_pooled_without_padding() -> None:
    for pooling, expected in (("sum", [[1, 30, 12], [2, 0, 10]]), ("mean", [[1, 15, 12], [2, 0, 10]])):
        table = StackedEmbedding([3, 5, 4], 1, [3, 1], pooling)
        with torch.no_grad():
            for rows, values in zip(
                table.block_rows(), ([0, 1, 2], [99, 10, 20, 30, 40], [99, 10, 11, 12]), strict=True
            ):
                rows.copy_(torch.tensor(values).view(-1, 1))
        ids = torch.tensor([[1, 2, 0, 1, 3], [2, 0, 0, 0, 1]])
        assert table(ids).squeeze(2).tolist() == expected


def test_an_id_twice_in_a_list_counts_twice_and_padding_has_no_gradient() -> None:
    table = StackedEmbedding([3, 5], 2, [3], "sum")
    table(torch.tensor([[1, 2, 2, 0], [1, 0, 0, 0]])).sum().backward()
    gradient = table.take_gradient()
    assert gradient.rows.tolist() == [1, 5]
    assert gradient.values.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_gradient_touches_the_rows_of_the_batch_and_is_taken_once() -> None:
    table = StackedEmbedding([4, 6], 3)
    ids = torch.tensor([[1, 0], [1, 5]])
    (table(ids) * torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])).sum().backward()
    gradient = table.take_gradient()
    assert gradient.rows.tolist() == [1, 4, 9]
    assert gradient.values.tolist() == [[4.0] * 3, [2.0] * 3, [4.0] * 3]
    assert len(table.take_gradient().rows) == 0


def test_row_wise_adagrad_equals_numpy() -> None:
    rng = np.random.default_rng(0)
    table = StackedEmbedding([4, 6], 3)
    with torch.no_grad():
        table.weight.normal_(generator=torch.Generator().manual_seed(0))
    weight, accumulator = table.weight.detach().numpy().copy(), np.zeros(10)
    adagrad = RowWiseAdagrad(table)
    for rate in (0.1, 0.05, 0.2):
        rows = np.sort(rng.choice(10, size=5, replace=False))
        gradient = rng.normal(size=(5, 3)).astype(np.float32)
        adagrad.step(SummedRowGradient(torch.from_numpy(rows), torch.from_numpy(gradient)), rate, 1)
        for row, g in zip(rows, gradient, strict=True):
            accumulator[row] += np.mean(g**2)
            weight[row] -= rate * g / (np.sqrt(accumulator[row]) + 1e-8)
    np.testing.assert_allclose(table.weight.detach().numpy(), weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(adagrad.accumulator.numpy(), accumulator, rtol=1e-5)


def test_rows_without_gradient_stay() -> None:
    table = StackedEmbedding([4], 2)
    table.init_uniform()
    before = table.weight.detach().clone()
    adagrad = RowWiseAdagrad(table)
    adagrad.step(SummedRowGradient(torch.tensor([1]), torch.zeros(1, 2)), 0.1, 1)  # a padding row's gradient
    adagrad.step(SummedRowGradient(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2)), 0.1, 2)
    assert torch.equal(before, table.weight)


@given(
    keys=st.integers(0, 2**31).flatmap(
        lambda end: st.tuples(st.just(end + 1), st.lists(st.integers(0, end), max_size=300))
    ),
    repeated=st.integers(1, 3),
)
@settings(deadline=None, max_examples=300)
@example(keys=(1, [0, 0, 0]), repeated=1)
@example(keys=(2**31, [2**31 - 1, 0, 2**31 - 1]), repeated=2)
@example(keys=(2**31 + 1, [2**31, 0, 2**31]), repeated=1)  # too large for the compiled code
def test_compiled_groups_equal_sorted_ones(keys: tuple[int, list[int]], repeated: int) -> None:
    end, elements = keys
    by_element = torch.tensor(elements * repeated, dtype=torch.int64)
    groups = group(by_element, end)
    ordered, order = torch.sort(by_element, stable=True)
    distinct, counts = torch.unique_consecutive(ordered, return_counts=True)
    assert torch.equal(groups.order, order)
    assert torch.equal(groups.keys, distinct)
    assert torch.equal(groups.starts, counts.cumsum(0) - counts)


def test_without_the_library_groups_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = torch.randint(0, 50, (1_000,), generator=torch.Generator().manual_seed(1))
    compiled = group(keys, 50)
    monkeypatch.setattr("training.embeddings.rows.library", lambda: None)
    for name, value in vars(group(keys, 50)).items():
        assert torch.equal(value, getattr(compiled, name))
