"""Tests of benchmarks/list_models.py: its figures against loops, and a run of nightly."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.list_logs import shop_choices
from benchmarks.list_models import K, compare, main
from benchmarks.list_parts import Peer
from benchmarks.list_task import make_task


def choices(users: int, items: int, rows: int, seed: int) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "user": draw.integers(0, users, rows).astype(str),
            "item": draw.integers(0, items, rows).astype(str),
            "time": np.arange(rows),
            "positive": True,
        }
    )
    return frame.drop_duplicates(["user", "item"]).reset_index(drop=True)


def test_figures_are_means_over_users_and_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """Published lists have the validation figure of their contender, and others that of the champion."""
    task = make_task(choices(20, 30, 200, 1))
    draw = np.random.default_rng(2)

    def run(validation_ndcg: float | None) -> Peer:
        lists = [np.array([draw.permutation(30)[:K] for _ in task.users]) for _ in range(3)]
        return Peer(lists, facts={"ranked_by": "blend", "validation_ndcg": validation_ndcg, "seconds": 2.0})

    runs = {"first": [run(None), run(None)], "other": [run(0.5), run(0.25)]}
    figures = compare(runs, task)

    def ndcg(peer: Peer, place: int, held_out: np.ndarray) -> float:
        positions = [
            list(row).index(item) if item in row else None
            for row, item in zip(peer.lists[place], held_out, strict=True)
            if item >= 0
        ]
        return sum(0 if position is None else 1 / math.log2(position + 2) for position in positions) / len(
            positions
        )

    assert list(figures) == ["first", "first, published", "other", "other, published"]
    for name, peers in runs.items():
        for kind, place in (("", 0), (", published", 1)):
            of = figures[f"{name}{kind}"]
            by_seed = [ndcg(peer, place, task.warm_test) for peer in peers]
            assert of["ndcg_by_seed"] == pytest.approx(by_seed)
            assert of["ndcg"] == pytest.approx(np.mean(by_seed))
        assert figures[name]["validation_ndcg_by_seed"] == pytest.approx(
            [ndcg(peer, 2, np.where(task.warm, task.validation, -1)) for peer in peers]
        )
    assert figures["other, published"]["validation_ndcg_by_seed"] == [0.5, 0.25]
    assert (
        figures["first, published"]["validation_ndcg_by_seed"] == figures["first"]["validation_ndcg_by_seed"]
    )
    low, high = figures["other"]["minus_first"]
    assert low < figures["other"]["ndcg"] - figures["first"]["ndcg"] < high
    assert "blend blend" in capsys.readouterr().out


def test_a_folder_without_a_log_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--data", str(tmp_path), "--model", "sasrec="])
    assert caught.value.code == 2
    assert "has no log of ['movielens', 'beauty']" in capsys.readouterr().err


@pytest.mark.large
@pytest.mark.processes
def test_the_champions_lists_are_those_that_the_run_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a blend; and a run is read from the folder of finished ones."""
    rows = choices(40, 30, 900, 3)
    rows[["user", "item"]].to_csv(tmp_path / "beauty.txt", sep=" ", index=False, header=False)
    sizes = ["train.num_ranks=1", "train.epochs=1", "train.global_batch_size=256", "model.embedding_dim=8"]
    command = ["--data", str(tmp_path), "--keep", str(tmp_path / "kept"), "--seeds", "1"]
    command += ["--model", "sasrec=", "--model", "hstu=model.architecture=hstu;model.blocks=2"]
    for size in sizes:
        command += ["--set", size]
    results = []
    for _ in range(2):
        main(command)
        results.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    figures = results[0]["peers"]["beauty"] | {"sasrec": results[0]["ours"]["beauty"]}
    for name in ("sasrec", "hstu"):
        published = figures[f"{name}, published"]
        assert published["ranked_by"] == ["model"]
        assert published["ndcg"] == figures[name]["ndcg"]
        assert published["hit_rate"] == figures[name]["hit_rate"] > 0
        assert figures[name]["validation_ndcg_by_seed"][0] > 0
    assert results[1]["peers"] == results[0]["peers"]


def test_the_choices_of_the_shop_are_its_first_events(tmp_path: Path) -> None:
    log = shop_choices(tmp_path)
    assert not log.rows.duplicated(["user", "item"]).any()
    assert log.rows["time"].is_monotonic_increasing
    assert log.rows[["user", "item"]].apply(lambda keys: keys.value_counts().min()).min() == 5
    assert 1_000 < log.rows["item"].nunique() <= 2_000
