"""Tests of benchmarks/lists.py: its measures and peers against loops, and the formats of logs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.list_measures import gains, measure, paired_interval, top
from benchmarks.lists import main, read_choices
from benchmarks.peers.ease import ease_weights
from benchmarks.peers.item_knn import item_knn_weights


@pytest.mark.parametrize("penalty", [0.5, 20.0])
def test_ease_solves_its_problem(penalty: float) -> None:
    """The gradient of ||X - X B||² + λ ||B||² is zero at the solution, except on the diagonal, which is fixed
    at zero.
    """
    rows = (np.random.default_rng(2).random((40, 9)) < 0.3).astype(float)
    weights = ease_weights(rows, penalty)
    gradient = rows.T @ (rows @ weights - rows) + penalty * weights
    np.testing.assert_allclose(gradient[~np.eye(9, dtype=bool)], 0, atol=1e-9)
    assert not weights[np.diag_indices(9)].any()


@pytest.mark.parametrize("neighbours, shrink", [(3, 0.0), (3, 10.0), (100, 2.0)])
def test_neighbours_are_those_of_a_loop(neighbours: int, shrink: float) -> None:
    rows = (np.random.default_rng(3).random((50, 8)) < 0.4).astype(float)
    weights = item_knn_weights(rows, neighbours, shrink)
    for item in range(8):
        similar = {
            other: (rows[:, item] @ rows[:, other])
            / (math.sqrt(rows[:, item].sum() * rows[:, other].sum()) + shrink)
            for other in range(8)
            if other != item
        }
        nearest = sorted(similar, key=lambda other: (-similar[other], other))[:neighbours]
        for other in range(8):
            expected = similar[other] if other in nearest else 0.0
            # The scores are choices @ weights: a chosen item adds to its own nearest items.
            assert weights[other, item] == pytest.approx(expected)


def test_lists_leave_out_what_is_excluded_and_order_ties_by_item() -> None:
    scores = np.array([[1.0, 3.0, 3.0, 2.0], [5.0, 0.0, 0.0, 0.0]])
    excluded = np.array([[False, True, False, False], [True, True, True, False]])
    assert top(scores.__getitem__, excluded, 2).tolist() == [[2, 3], [3, -1]]


def test_measures_are_those_of_a_loop() -> None:
    draw = np.random.default_rng(5)
    lists = np.array([draw.permutation(12)[:10] for _ in range(30)])
    held_out = draw.integers(-1, 12, 30)
    chosen = draw.integers(0, 9, 12)
    hits = ndcg = reciprocal = measured = 0.0
    shown: list[int] = []
    for user, item in enumerate(held_out):
        if item < 0:
            continue
        measured += 1
        shown += lists[user].tolist()
        if item in lists[user]:
            position = 1 + lists[user].tolist().index(item)
            hits += 1
            ndcg += 1 / math.log2(1 + position)
            reciprocal += 1 / position
    figures = measure(lists, held_out, chosen, 20)
    assert figures.hit_rate == pytest.approx(hits / measured)
    assert figures.ndcg == pytest.approx(ndcg / measured)
    assert figures.reciprocal_rank == pytest.approx(reciprocal / measured)
    assert figures.coverage == pytest.approx(len(set(shown)) / 12)
    bits = [-math.log2(chosen[item] / 20) for item in shown if chosen[item]]
    assert figures.novelty == pytest.approx(sum(bits) / len(bits))
    assert gains(lists, held_out).shape == (int(measured), 3)


def test_the_interval_covers_the_mean_and_is_zero_for_equal_figures() -> None:
    draw = np.random.default_rng(1)
    ours, theirs = draw.random(400) + 0.1, draw.random(400)
    low, high = paired_interval(ours, theirs)
    mean, error = (ours - theirs).mean(), (ours - theirs).std() / 20
    assert low == pytest.approx(mean - 1.96 * error, abs=0.01)
    assert high == pytest.approx(mean + 1.96 * error, abs=0.01)
    assert paired_interval(ours, ours) == (0.0, 0.0)


@pytest.mark.parametrize(
    "name, text, times",
    [
        ("a.txt", "1 7\n1 8\n2 7\n1 7\n", [0, 1, 2]),
        ("b.txt", "1 7 30\n1 8 20\n2 7 25\n1 7 40\n", [20, 25, 30]),
        (
            "c.inter",
            "item_id:token\tuser_id:token\trating:float\ttimestamp:float\n"
            "7\t1\t5\t30.0\n8\t1\t3\t20.0\n7\t2\t4\t25.0\n",
            [20, 25, 30],
        ),
    ],
)
def test_choices_are_read_in_the_order_of_time_and_count_once(
    tmp_path: Path, name: str, text: str, times: list[int]
) -> None:
    (tmp_path / name).write_text(text)
    rows = read_choices(tmp_path / name)
    assert rows["time"].tolist() == times
    assert sorted(zip(rows["user"], rows["item"], strict=True)) == [("1", "7"), ("1", "8"), ("2", "7")]


def test_a_log_that_is_missing_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments, message in (
        ([], "there is no log"),
        (["--movielens", str(tmp_path)], "this folder has no file ml-100k.inter"),
        (["--log", str(tmp_path / "gone")], "there is no such file"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        assert message in capsys.readouterr().err
