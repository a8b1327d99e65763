"""Weights of EASE against NumPy's inverse, and lists from item vectors against sorts, without Spark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from conf.errors import DataError, InfrastructureError
from scoring.candidates import item_vectors
from scoring.candidates.ease import WEIGHTS, ease_weights, gram_matrix, weight_batches
from scoring.candidates.item_vectors import ItemVectors, load_item_vectors, rounded
from scoring.requests import ItemVectorsRequest

# Item indices with gaps: the items between them have no clicks.
ITEMS = np.arange(40, dtype=np.int32) * 3 + 1


def clicks(users: int, items: int, seed: int, share: float = 0.2) -> np.ndarray:
    """A binary matrix of clicks, in which every user and every item has a click."""
    draw = np.random.default_rng(seed)
    matrix = (draw.random((users, items)) < share).astype(np.float64)
    matrix[np.arange(users), draw.integers(0, items, users)] = 1
    matrix[draw.integers(0, users, items), np.arange(items)] = 1
    return matrix


def closed_form(matrix: np.ndarray, l2: float) -> np.ndarray:
    """B of the paper, element by element: -P_ij / P_jj, and 0 on the diagonal (equation 8)."""
    inverse = np.linalg.inv(matrix.T @ matrix + l2 * np.eye(matrix.shape[1]))
    size = len(inverse)
    return np.array(
        [[0.0 if i == j else -inverse[i, j] / inverse[j, j] for j in range(size)] for i in range(size)]
    )


def pair_batches(matrix: np.ndarray, items: np.ndarray, seed: int) -> list[pa.RecordBatch]:
    """The counts of pairs on and above the diagonal, in random order, in batches of 7 rows."""
    counts = (matrix.T @ matrix).astype(np.int64)
    rows = [
        (items[i], items[j], counts[i, j])
        for i in range(len(items))
        for j in range(i, len(items))
        if counts[i, j]
    ]
    shuffled = np.array(rows)[np.random.default_rng(seed).permutation(len(rows))]
    columns = [pa.array(shuffled[:, index]) for index in range(3)]
    return pa.table(columns, names=["item_index", "other", "users"]).to_batches(7)


@pytest.mark.parametrize("l2", [0.5, 20.0, 500.0])
def test_weights_are_those_of_the_closed_form_in_units_of_a_power_of_two(l2: float) -> None:
    matrix = clicks(90, 40, 1)
    gram = gram_matrix(pair_batches(matrix, ITEMS, 2), ITEMS)
    np.testing.assert_array_equal(gram.numpy(), matrix.T @ matrix)
    weights = ease_weights(gram, l2).numpy()
    expected = closed_form(matrix, l2)
    unit = 2.0 ** (np.ceil(np.log2(np.abs(expected).sum(axis=0).max())) - 23)
    np.testing.assert_allclose(weights, expected, rtol=0, atol=0.51 * unit)
    units = weights.astype(np.float64) / unit
    np.testing.assert_array_equal(units, np.round(units))
    assert (np.diag(weights) == 0).all()
    assert np.abs(units).sum(axis=0).max() <= 2**24


def test_batches_of_weights_hold_every_row_once_whatever_the_order_of_pairs() -> None:
    matrix = clicks(60, 40, 3)
    tables = [
        pa.Table.from_batches(
            weight_batches(pair_batches(matrix, ITEMS, seed), ITEMS, 9.0, "cpu", None, 1), WEIGHTS
        )
        for seed in (1, 2)
    ]
    assert tables[0].equals(tables[1])
    assert tables[0].column("item_index").to_pylist() == ITEMS.tolist()
    weights = np.array(tables[0].column("vector").to_pylist())
    np.testing.assert_allclose(weights, closed_form(matrix, 9.0), rtol=0, atol=1e-6)


def test_an_item_without_company_has_weights_of_zero() -> None:
    gram = gram_matrix(pair_batches(np.ones((5, 1)), ITEMS[:1], 1), ITEMS[:1])
    assert ease_weights(gram, 1.0).tolist() == [[0.0]]


def test_a_penalty_that_is_too_small_is_refused() -> None:
    gram = torch.full((2, 2), 5.0, dtype=torch.float64)  # two items clicked by the same users
    with pytest.raises(DataError, match=r"l2=1e-300, the Gram matrix of 2 items cannot[\s\S]*raise `l2`"):
        ease_weights(gram, 1e-300)


def test_weights_that_do_not_fit_into_memory_say_how_much_they_need() -> None:
    items = np.arange(40_000_000, dtype=np.int32)
    with pytest.raises(InfrastructureError, match=r"of 40000000 items need \d+\.\d GiB[\s\S]*active_days"):
        list(weight_batches([], items, 1.0, "cpu", None, 1))


def user_batch(column: str, values: pa.Array, excluded: list[list[int] | None]) -> pa.RecordBatch:
    """Users u0, u1, … with a history or a vector each, and excluded items."""
    columns = {
        "user_key": pa.array([f"u{index}" for index in range(len(excluded))]),
        column: values,
        "excluded": pa.array(excluded, pa.list_(pa.int32())),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def draw_excluded(users: int, seed: int) -> list[list[int] | None]:
    """Excluded items of users: none, some with and some without a vector, or all."""
    draw = np.random.default_rng(seed)
    lists: list[list[int] | None] = [
        None if draw.random() < 0.3 else sorted(draw.permutation(125)[: draw.integers(0, 90)].tolist())
        for _ in range(users)
    ]
    lists[3] = list(range(125))
    return lists


def in_order(scores: np.ndarray, excluded: list[int] | None, n: int) -> list[int]:
    """The n items with the highest scores that are not excluded; the smaller index first in a tie."""
    order = sorted(range(len(scores)), key=lambda number: (-scores[number], number))
    return [int(ITEMS[number]) for number in order if ITEMS[number] not in (excluded or [])][:n]


@pytest.mark.parametrize("max_scores", [1, 900, 1 << 20])
@pytest.mark.parametrize("n", [1, 6, 90])
def test_lists_of_ease_equal_sorted_sums_whatever_the_batches(n: int, max_scores: int) -> None:
    matrix = clicks(80, 40, 4, share=0.1)
    matrix[20] = matrix[21]
    weights = ease_weights(torch.from_numpy(matrix.T @ matrix), 30.0)
    weights[:, 8] = weights[:, 5]  # equal scores in every list
    excluded = draw_excluded(80, 5)
    histories = pa.array([ITEMS[row > 0].tolist() for row in matrix], pa.list_(pa.int32()))
    table = ItemVectors(ITEMS, weights, n, max_scores)
    users = user_batch("history", histories, excluded)
    actual = table.ease_lists(users).column("candidates").to_pylist()
    scores = matrix @ weights.double().numpy()
    assert actual == [in_order(row, gone, n) for row, gone in zip(scores, excluded, strict=True)]
    alone = [table.ease_lists(users.slice(index, 1)).column("candidates").to_pylist() for index in range(40)]
    assert alone == [[listed] for listed in actual[:40]]


@pytest.mark.parametrize("max_scores", [1, 1 << 20])
@pytest.mark.parametrize("n", [6, 90])
def test_lists_of_als_equal_sorted_products_of_rounded_vectors(n: int, max_scores: int) -> None:
    draw = np.random.default_rng(6)
    items = draw.normal(size=(40, 7)).astype(np.float32)
    items[11] = items[4]
    people = (draw.normal(size=(300, 7)) * 10.0 ** draw.integers(-3, 4, (300, 1))).astype(np.float32)
    excluded = draw_excluded(300, 7)
    table = ItemVectors(ITEMS, torch.from_numpy(items), n, max_scores)
    users = user_batch("vector", pa.array(people.tolist(), pa.list_(pa.float32())), excluded)
    actual = table.als_lists(users).column("candidates").to_pylist()
    exact = rounded(torch.from_numpy(people), by_row=True) @ rounded(torch.from_numpy(items)).T
    scores = exact.numpy().astype(np.float32)
    assert actual == [in_order(row, gone, n) for row, gone in zip(scores, excluded, strict=True)]
    plain = people.astype(np.float64) @ items.T.astype(np.float64)
    np.testing.assert_allclose(scores, plain, rtol=0, atol=2e-5 * np.abs(people).max())
    some = table.als_lists(users.slice(40, 5)).column("candidates").to_pylist()
    assert some == actual[40:45]


def test_rounding_changes_no_element_by_more_than_a_unit_and_keeps_zeros() -> None:
    vectors = torch.from_numpy(np.random.default_rng(8).normal(size=(50, 9)).astype(np.float32))
    vectors[7] = 0.0
    actual = rounded(vectors, by_row=True)
    largest = vectors.abs().amax(dim=1, keepdim=True)
    assert ((actual - vectors.double()).abs() <= largest * 2.0**-20).all()
    assert (actual[7] == 0).all()


def test_a_vector_without_finite_elements_names_the_user() -> None:
    table = ItemVectors(ITEMS[:2], torch.ones(2, 2), 1, 10)
    vectors = pa.array([[1.0, 2.0], [float("nan"), 0.0]], pa.list_(pa.float32()))
    with pytest.raises(DataError, match=r"the vector of user u1 has NaN[\s\S]*regularization"):
        table.als_lists(user_batch("vector", vectors, [None, None]))


def write_vectors(path: Path, items: list[int], vectors: list[list[float]]) -> str:
    """A file of the table item_vectors."""
    pq.write_table(
        pa.table([pa.array(items, pa.int32()), pa.array(vectors, pa.list_(pa.float32()))], schema=WEIGHTS),
        path,
    )
    return str(path)


@pytest.mark.parametrize("gpu", [None, 0, 1])
def test_a_task_uses_the_gpu_that_spark_assigned_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: int | None
) -> None:
    chosen = []

    def choose(*wanted: object) -> torch.device:
        chosen.append(wanted)
        return torch.device("cpu")

    monkeypatch.setattr(item_vectors, "choose_device", choose)
    monkeypatch.setattr("training.device.choose_device", choose)
    file = write_vectors(tmp_path / "a.parquet", [2], [[2.0, 0.5]])
    load_item_vectors(ItemVectorsRequest((file,), 3, "cuda"), gpu, 1)
    pairs = pair_batches(clicks(9, 3, 1), ITEMS[:3], 2)
    assert sum(len(batch) for batch in weight_batches(pairs, ITEMS[:3], 9.0, "cuda", gpu, 1)) == 3
    assert chosen == [("cuda", gpu, "score.device")] * 2


def test_the_table_is_read_in_the_order_of_its_items(tmp_path: Path) -> None:
    files = (
        write_vectors(tmp_path / "a.parquet", [9, 2], [[9.0, 0.5], [2.0, 0.5]]),
        write_vectors(tmp_path / "b.parquet", [5], [[5.0, 0.25]]),
    )
    table = load_item_vectors(ItemVectorsRequest(files, 3, "cpu"), None, 1)
    assert table.items.tolist() == [2, 5, 9]
    assert table.vectors.tolist() == [[2.0, 0.5], [5.0, 0.25], [9.0, 0.5]]
    broken = write_vectors(tmp_path / "c.parquet", [8, 4], [[1.0, 1.0], [float("inf"), 0.0]])
    with pytest.raises(DataError, match=r"the vector of the item with index 4 has NaN or infinite"):
        load_item_vectors(ItemVectorsRequest((broken,), 3, "cpu"), None, 1)
