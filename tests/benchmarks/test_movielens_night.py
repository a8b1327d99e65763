"""The benchmark of MovieLens' night: the plain script, held against pandas, and the targets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.agreement import Disagreement
from benchmarks.harness import Measured
from benchmarks.list_logs import split_rows
from benchmarks.movielens_night import CONFIG, EPOCHS, Run, parse, ratios_of, require_same_work, verdict
from benchmarks.peers import plain_movielens as plain
from benchmarks.peers.plain_movielens import SASRec, histories_before, make_lists, read_features, read_ratings
from benchmarks.run_contenders import ROOT
from conf.load import load_config

USERS, ITEMS, RATINGS = 30, 40, 900


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files like those of MovieLens. Users choose films near their own number."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    pairs = rng.permutation(USERS * ITEMS)[:RATINGS]
    user, item = pairs // ITEMS, pairs % ITEMS
    near = np.abs(user % 10 - item % 10) < 4
    log = pd.DataFrame(
        {
            "user_id:token": user + 1,
            "item_id:token": item + 1,
            "rating:float": np.where(near, 5.0, 2.0),
            "timestamp:float": rng.integers(0, 300, RATINGS),
        }
    )
    users = pd.DataFrame(
        {
            "user_id:token": np.arange(1, USERS + 1),
            "age:token": rng.integers(10, 70, USERS),
            "gender:token": rng.choice(["F", "M"], USERS),
            "occupation:token": rng.choice(["writer", "artist", "other"], USERS),
            "zip_code:token": "0",
        }
    )
    items = pd.DataFrame(
        {
            "item_id:token": np.arange(1, ITEMS + 1),
            "release_year:token": rng.integers(1990, 1998, ITEMS),
            "class:token_seq": rng.choice(["Drama", "Comedy Drama", "Action"], ITEMS),
        }
    )
    for name, table in (("inter", log), ("user", users), ("item", items)):
        table.to_csv(folder / f"ml-100k.{name}", sep="\t", index=False)
    return folder


def test_splits_and_histories_are_those_of_a_plain_computation(data: Path) -> None:
    rows = read_ratings(data)
    raw = pd.read_csv(data / "ml-100k.inter", sep="\t")
    raw.columns = pd.Index(["user", "item", "rating", "time"])
    raw["positive"] = raw["rating"] >= 4
    raw["split"] = split_rows(raw)
    raw["user"] = raw["user"].astype(str)
    raw = raw.sort_values(["user", "time"], kind="stable")
    assert rows.users[rows.user].tolist() == raw["user"].tolist()
    assert rows.items[rows.item].tolist() == raw["item"].astype(str).tolist()
    names = np.array(["train", "validation", "test"])
    assert names[rows.split].tolist() == raw["split"].tolist()
    liked: dict[str, list[str]] = {}
    histories = histories_before(rows, np.arange(len(rows.user)))
    for row, (user, item, positive) in enumerate(zip(raw["user"], raw["item"], raw["positive"], strict=True)):
        expected = list(reversed(liked.setdefault(user, [])[-50:]))
        found = [rows.items[place] for place in histories[row] if place >= 0]
        assert found == expected
        liked[user] += [str(item)] if positive else []


def test_lists_use_the_history_before_the_test_rows(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lists have what `user_vectors` scores best with a history computed row by row."""
    torch.manual_seed(0)
    monkeypatch.setattr(plain, "HISTORY", 5)
    rows = read_ratings(data)
    model = SASRec(read_features(data, rows), len(rows.items)).eval()
    lists, scores = make_lists(model, rows)
    for user in range(len(rows.users)):
        earlier = (rows.user == user) & (rows.split != plain.TEST)
        history = rows.item[earlier & rows.positive][::-1][:5]
        padded = np.append(history + 1, np.zeros(5 - len(history), np.int64))
        with torch.no_grad():
            vector = model.user_vectors(torch.tensor([user]), torch.from_numpy(padded)[None])
            of_items = (vector @ model.item_vectors().T)[0].numpy()
        of_items[rows.item[earlier]] = -np.inf
        offered = np.isfinite(scores[user])
        assert not set(lists[user][offered]) & set(rows.item[earlier])
        best = np.sort(of_items)[::-1][: plain.K]
        assert scores[user] == pytest.approx(best, abs=1e-5)


def test_the_script_learns(data: Path) -> None:
    torch.manual_seed(0)
    rows = read_ratings(data)
    model = SASRec(read_features(data, rows), len(rows.items))
    plain.train(model, rows, 30, threads=2)
    lists, _ = make_lists(model, rows)
    near = np.abs(np.arange(USERS)[:, None] % 10 - np.arange(ITEMS) % 10) < 4
    numbers = np.array([int(key) - 1 for key in rows.items])[lists[:, :5]]
    users = np.array([int(key) - 1 for key in rows.users])
    offered = near[users[:, None], numbers].mean()
    assert offered > near.mean() + 0.15


def test_the_script_has_the_sizes_of_the_configuration() -> None:
    config = load_config(str(ROOT / CONFIG), [])
    settings = config.model.settings
    sizes = {"embedding_dim": plain.DIM, "blocks": plain.BLOCKS, "heads": 1, "dropout": plain.DROPOUT}
    assert {name: settings[name] for name in sizes} == sizes
    assert config.history is not None
    assert config.history.length == plain.HISTORY
    assert config.train.epochs == EPOCHS == plain.EPOCHS
    assert config.train.global_batch_size == plain.BATCH_ROWS
    assert config.train.learning_rate == config.train.embedding_learning_rate == plain.LEARNING_RATE
    assert config.train.negatives is not None
    assert config.train.negatives.per_positive == plain.NEGATIVES
    assert config.score.k == plain.K


def a_run(wall_s: float, hit_rate: float = 0.2) -> Run:
    measured = Measured(0, False, wall_s, 3.0, 2**30, 2**30, ((0.0, 0.0), (wall_s, 3.0)))
    return Run(measured, {"read": 0.5}, 900, hit_rate, 0.1)


def test_ratios_and_the_verdict() -> None:
    ratios = ratios_of([a_run(8.0)], [a_run(2.0)])
    assert ratios == {"night": 0.25, "night_cpu": 1.0, "night_memory": 1.0}
    assert verdict(0.25) == (
        "night: 0.250 (target 0.333: MISSED); ours takes 4.00 times the seconds of the script"
    )
    assert "met" in verdict(0.34)


def test_other_results_are_a_disagreement() -> None:
    require_same_work(a_run(1.0), a_run(1.0, 0.22), full=True)
    require_same_work(a_run(1.0), a_run(1.0, 0.01), full=False)
    with pytest.raises(Disagreement, match="HR@10"):
        require_same_work(a_run(1.0), a_run(1.0, 0.01), full=True)
    with pytest.raises(Disagreement, match="users"):
        require_same_work(a_run(1.0), replace(a_run(1.0), users=899), full=False)


def test_a_folder_without_the_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([str(tmp_path)])
    assert "lacks ml-100k.inter, ml-100k.user, ml-100k.item" in capsys.readouterr().err
