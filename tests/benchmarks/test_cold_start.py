"""The benchmark of new users and items: its figures, popular lists, inputs, and the division of MovieLens."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.cold_logs import ColdLog, movielens_log
from benchmarks.cold_start import K, figures, open_log, popular_scores, train_and_measure, unknown_shares
from storage.feature_spec import Feature, FeatureSpec

KEYS = ["user_key", "item_key"]
SPEC = FeatureSpec(
    (Feature("u", "categorical", "int32", "user", 5), Feature("i", "categorical", "int32", "item", 20)),
    ("row_id", *KEYS),
    "w",
)


@pytest.fixture
def log() -> ColdLog:
    """The model does not know the users c and d, and the last two of the items i00 to i13."""
    items = [f"i{number:02}" for number in range(14)]
    users = pd.DataFrame({"user_key": list("abcd"), "u": [3, 4, 2, 2], "segment": list("xyyz")})
    films = pd.DataFrame({"item_key": items, "i": [*range(3, 15), 2, 2]})
    rows = [("a", "i01")] * 3 + [("b", "i02")] * 2 + [("gone", "i03")] * 5
    train = pd.DataFrame(rows, columns=KEYS).assign(label=1.0)
    clicks = pd.DataFrame(
        [("a", "i00"), ("a", "i01"), ("a", "i12"), ("b", "i13"), ("c", "i02"), ("d", "i11")], columns=KEYS
    )
    excluded = pd.DataFrame([("a", "i01")], columns=KEYS)
    return ColdLog(SPEC, "u", "i", {"2026-01-01": train}, users, films, {}, clicks, excluded, "segment")


def test_figures_of_known_users_new_users_and_new_items(log: ColdLog) -> None:
    """Items score by their number, descending: lists have i00 to i09, and without i01 also i10."""
    scores = -np.arange(14.0)
    values = figures(log, lambda users: np.tile(scores, (len(users), 1)))
    assert (values["known_users_count"], values["new_users_count"], values["new_items_count"]) == (1, 2, 2)
    ideal = 1 + 1 / math.log2(3)
    assert values["known_users_hr"] == 1  # a: i00 is first, i01 is excluded
    assert values["known_users_ndcg"] == pytest.approx(1 / ideal)
    assert values["new_users_hr"] == 1 / 2  # c: i02 is third; d: i11 is not in the list
    assert values["new_users_ndcg"] == pytest.approx(1 / math.log2(4) / 2)
    assert values["new_items_hr"] == values["new_positions"] == 0
    values = figures(log, lambda users: np.tile(-scores, (len(users), 1)))
    assert values["new_items_hr"] == 1
    assert values["new_positions"] == 2 / K


def test_popular_items_over_all_users_and_by_segment(log: ColdLog) -> None:
    scores = popular_scores(log)(["a", "c"])
    assert np.argsort(-scores[0])[:3].tolist() == [3, 1, 2]
    assert np.array_equal(scores[0], scores[1])
    by_segment = popular_scores(log, "segment")(list("abcd"))
    first = np.argsort(-by_segment, axis=1)[:, :3].tolist()
    assert first == [[1, 3, 2], [2, 3, 1], [2, 3, 1], [3, 1, 2]]  # then by the clicks of all users


@pytest.fixture
def movielens(tmp_path: Path) -> Path:
    draw = np.random.default_rng(3)
    users = pd.DataFrame({"user_id:token": range(1, 41), "age:token": draw.integers(10, 60, 40)})
    users = users.assign(**{"gender:token": draw.choice(["M", "F"], 40), "occupation:token": "none"})
    films = pd.DataFrame({"item_id:token": range(1, 31), "release_year:token": draw.integers(1990, 1999, 30)})
    films["class:token_seq"] = draw.choice(["Drama", "Action Comedy", "War"], 30)
    pairs = draw.permutation([(user, film) for user in range(1, 41) for film in range(1, 31)])[:700]
    ratings = pd.DataFrame(pairs, columns=["user_id:token", "item_id:token"])
    ratings["rating:float"] = draw.integers(3, 6, 700)
    ratings["timestamp:float"] = draw.permutation(700)
    for name, frame in (("inter", ratings), ("user", users), ("item", films)):
        frame.to_csv(tmp_path / f"ml-100k.{name}", sep="\t", index=False)
    return tmp_path


def test_movielens_is_divided_without_train_rows_of_new_users_and_films(movielens: Path) -> None:
    log = movielens_log(movielens)
    (train,) = log.train.values()
    assert len(log.new_users) >= 6
    assert len(log.new_items) >= 4
    assert not set(train.user_key) & log.new_users
    assert not set(train.item_key) & log.new_items
    raw = pd.read_csv(
        movielens / "ml-100k.inter", sep="\t", dtype={"user_id:token": str, "item_id:token": str}
    )
    positives = {tuple(pair) for pair in raw[raw["rating:float"] >= 4].to_numpy()[:, :2]}
    parts = [{tuple(pair) for pair in rows[KEYS].to_numpy()} for rows in (train, log.clicks)]
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] == positives


def test_a_model_is_trained_and_measured(movielens: Path) -> None:
    log, model, train = open_log("movielens", movielens)
    values = train_and_measure(log, model, {**train, "global_batch_size": 64, "epochs": 1}, {log.item: 0.2})
    assert values["known_users_count"] > 10
    assert 0 < values["new_users_hr"] <= 1


def test_shares_of_items_users_and_both(log: ColdLog) -> None:
    assert unknown_shares(log, [0.0, 0.1], ["both", "item"]) == [{}, {"u": 0.1, "i": 0.1}, {"i": 0.1}]
    assert unknown_shares(log, [0.2], ["user"]) == [{"u": 0.2}]
