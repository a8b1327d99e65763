"""Tests of benchmarks/movielens.py: EASE against its definition, and lists and measures against loops."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.movielens import Figures, Task, main, measure, of_lists, require_published, top, tuned_penalty
from benchmarks.peers.ease import ease_weights
from storage.manifest import Manifest, replace_manifest
from storage.paths import Lake

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]


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


def test_lists_leave_out_what_is_excluded_and_order_ties_by_film() -> None:
    scores = np.array([[1.0, 3.0, 3.0, 2.0], [5.0, 0.0, 0.0, 0.0]])
    excluded = np.array([[False, True, False, False], [True, False, False, False]])
    assert top(scores, excluded, 2).tolist() == [[2, 3], [1, 2]]


def test_measures_are_those_of_a_loop() -> None:
    draw = np.random.default_rng(5)
    lists = np.array([draw.permutation(12)[:10] for _ in range(30)])
    wanted = draw.integers(-1, 12, 30)
    places = [
        lists[user].tolist().index(film) if film in lists[user] else None
        for user, film in enumerate(wanted)
        if film >= 0
    ]
    figures = measure(lists, wanted)
    hits = [place for place in places if place is not None]
    assert figures.hit_rate == pytest.approx(len(hits) / len(places))
    assert figures.ndcg == pytest.approx(sum(1 / math.log2(2 + place) for place in hits) / len(places))


def _task() -> Task:
    draw = np.random.default_rng(1)
    liked = draw.random((60, 15)) < 0.3
    test = draw.integers(0, 15, 60)
    liked[0] = False
    return Task(liked.astype(float), liked, liked, draw.integers(0, 15, 60), test, liked.any(1))


def test_users_without_a_row_in_train_are_not_measured() -> None:
    task = _task()
    lists = np.repeat(task.test[:, None], 10, axis=1)
    lists[0] = -1
    assert of_lists(lists, task).hit_rate == 1.0


def test_the_penalty_is_the_one_with_the_best_validation() -> None:
    task = _task()
    best = tuned_penalty(task, 3)
    lists = top(task.train @ ease_weights(task.train, best), task.rated, 3)
    other = top(task.train @ ease_weights(task.train, 2000.0), task.rated, 3)
    assert measure(lists, task.validation).ndcg >= measure(other, task.validation).ndcg


def test_figures_that_the_product_did_not_measure_are_refused(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    partition = lake.measures.partition("1998-04-23")
    popular = {"hit_rate": 0.1, "ndcg": 0.05}
    facts = {"users": 5, "hit_rate": 0.2, "ndcg": 0.1, "popular": popular}
    replace_manifest(partition, Manifest("measures", partition.dt, (), (), {}, facts=facts))
    ours, base = Figures(0.2, 0.1, 0.0), Figures(0.1, 0.05, 0.0)
    require_published(lake, ours, base, 5)
    with pytest.raises(SystemExit, match="published"):
        require_published(lake, Figures(0.3, 0.1, 0.0), base, 5)


def test_a_folder_without_movielens_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--data", str(tmp_path)])
    assert caught.value.code == 2
    assert "this folder has no file ml-100k.inter" in capsys.readouterr().err


def test_the_script_says_what_it_does() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/movielens.py"), "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
        check=True,
    )
    assert "--data" in done.stdout
