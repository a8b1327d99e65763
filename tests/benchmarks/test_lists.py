"""Tests of benchmarks/lists.py: its splits, measures and peers against loops, and the formats of logs."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from benchmarks.list_logs import Log, core_of, find_movielens, read_choices, split_rows, write_choices
from benchmarks.list_measures import gains, mean_figures, measure, paired_interval, top
from benchmarks.list_parts import Peer
from benchmarks.list_peers import PENALTIES, _tuned, with_popular
from benchmarks.list_task import Task, make_task, popular_lists, published_lists, require_published
from benchmarks.lists import QUICK, ChosenParts, Measured, main, pool, seeds_of
from benchmarks.peers.ease import ease_weights
from benchmarks.peers.item_knn import item_knn_weights
from conf.load import load_config
from storage.manifest import FileEntry, Manifest, replace_manifest
from storage.paths import LakePaths
from tests.etl import oracle


def random_rows(seed: int) -> pd.DataFrame:
    """Returns rows of 12 users with many equal times, with users of no, one and several positive rows."""
    draw = np.random.default_rng(seed)
    rows = pd.DataFrame(
        {
            "user": draw.integers(0, 12, 150).astype(str),
            "item": draw.integers(0, 30, 150).astype(str),
            "time": draw.integers(0, 6, 150),
            "positive": draw.random(150) < 0.5,
        }
    )
    rows = rows.drop_duplicates(["user", "item"])
    rows.loc[rows["user"] == "3", "positive"] = False
    first = rows.index[rows["user"] == "5"][0]
    rows.loc[rows["user"] == "5", "positive"] = rows.index[rows["user"] == "5"] == first
    return rows.reset_index(drop=True)


def product_columns(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "user_key": rows.user,
            "event_time": rows.time,
            "row_id": rows.index,
            "label": rows.positive.astype(int),
        }
    )


@pytest.mark.parametrize("seed", range(8))
def test_splits_are_those_of_a_loop_over_each_user(seed: int) -> None:
    rows = random_rows(seed)
    expected = oracle.split_leave_last_out(product_columns(rows))
    assert split_rows(rows).tolist() == expected.tolist()
    assert set(expected) == {"train", "validation", "test"}


@pytest.mark.parametrize("seed", range(4))
def test_the_task_has_every_row_before_the_test_and_nothing_after_it(seed: int) -> None:
    rows = random_rows(seed)
    task = make_task(rows)
    split = oracle.split_leave_last_out(product_columns(rows))
    for number, user in enumerate(task.users):
        own = rows[rows.user == user].assign(split=split)

        def items(kept: pd.Series, own: pd.DataFrame = own) -> set[str]:
            return set(own[kept]["item"])

        def stored(matrix: csr_matrix, number: int = number) -> set[str]:
            return set(task.items[matrix[number].toarray()[0] == 1])

        assert stored(task.train) == items((own.split == "train") & own.positive)
        assert stored(task.rated) == items(own.split == "train")
        assert stored(task.history) == items((own.split != "test") & own.positive)
        assert stored(task.excluded) == items(own.split != "test")
        for name, held_out in (("validation", task.validation), ("test", task.test)):
            found = {task.items[held_out[number]]} if held_out[number] >= 0 else set()
            assert found == items((own.split == name) & own.positive)
        assert task.warm[number] == (own.split == "train").any()
        chosen = own[(own.split == "train") & own.positive].sort_values("time", kind="stable")["item"]
        sequence = task.sequence[task.starts[number] : task.starts[number + 1]]
        assert task.items[sequence].tolist() == chosen.tolist()
    assert task.chosen.tolist() == [
        ((rows.item == item) & (split == "train") & rows.positive).sum() for item in task.items
    ]


def test_warm_and_cold_users_share_the_test_items() -> None:
    rows = pd.DataFrame(
        {"user": [*"aaabb"], "item": [*"xyzxy"], "time": [1, 2, 3, 4, 5], "positive": [True] * 5}
    )
    task = make_task(rows)
    assert task.test.tolist() == [2, 1]
    assert task.warm_test.tolist() == [2, -1]  # b has one row before the test, in the validation split
    assert task.cold_test.tolist() == [-1, 1]


@pytest.mark.parametrize("penalty", [0.5, 20.0])
def test_ease_solves_its_problem(penalty: float) -> None:
    """The gradient of ||X - X B||² + λ ||B||² is zero at the solution, except on the diagonal, which is fixed
    at zero.
    """
    rows = (np.random.default_rng(2).random((40, 9)) < 0.3).astype(float)
    weights = ease_weights(csr_matrix(rows), penalty)
    gradient = rows.T @ (rows @ weights - rows) + penalty * weights
    np.testing.assert_allclose(gradient[~np.eye(9, dtype=bool)], 0, atol=1e-9)
    assert not weights[np.diag_indices(9)].any()


@pytest.mark.parametrize("neighbours, shrink", [(3, 0.0), (3, 10.0), (100, 2.0)])
def test_neighbours_are_those_of_a_loop(neighbours: int, shrink: float) -> None:
    rows = (np.random.default_rng(3).random((50, 8)) < 0.4).astype(float)
    rows[:, 5] = 0  # nobody chose this item
    weights = item_knn_weights(csr_matrix(rows), neighbours, shrink).toarray()
    for item in range(8):
        similar = {}
        for other in range(8):
            together = rows[:, item] @ rows[:, other]
            if other != item and together:
                norm = math.sqrt(rows[:, item].sum() * rows[:, other].sum())
                similar[other] = together / (norm + shrink)
        nearest = sorted(similar, key=lambda other: (-similar[other], other))[:neighbours]
        # The scores are choices @ weights: only its nearest neighbours add to the score of an item.
        expected = [similar[other] if other in nearest else 0.0 for other in range(8)]
        assert weights[:, item].tolist() == pytest.approx(expected)


def test_lists_leave_out_what_is_excluded_and_order_ties_by_item() -> None:
    scores = np.array([[1.0, 3.0, 3.0, 2.0], [5.0, 0.0, 0.0, 0.0]])
    excluded = csr_matrix([[0, 1, 0, 0], [1, 1, 1, 0]])
    assert top(scores.__getitem__, excluded, 2).tolist() == [[2, 3], [3, -1]]


@pytest.mark.parametrize("k", [1, 5, 40])
def test_lists_are_the_sorted_scores(k: int) -> None:
    draw = np.random.default_rng(k)
    scores = draw.integers(0, 6, (1500, 30)).astype(float)  # more users than one block has, and many ties
    excluded = draw.random((1500, 30)) < 0.5
    lists = top(scores.__getitem__, csr_matrix(excluded), k)
    for user in range(1500):
        ranked = sorted(np.flatnonzero(~excluded[user]), key=lambda item: (-scores[user, item], item))[:k]
        assert lists[user].tolist() == ranked + [-1] * (k - len(ranked))


def test_measures_are_those_of_a_loop() -> None:
    draw = np.random.default_rng(5)
    lists = np.array([draw.permutation(12)[:10] for _ in range(30)])
    held_out = draw.integers(-1, 12, 30)
    chosen = draw.integers(0, 9, 12)
    hits = ndcg = precision = measured = 0.0
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
            precision += 1 / position
    figures = measure(lists, held_out, chosen, 20)
    assert figures.hit_rate == pytest.approx(hits / measured)
    assert figures.ndcg == pytest.approx(ndcg / measured)
    assert figures.average_precision == pytest.approx(precision / measured)
    share = hits / measured
    assert figures.hit_rate_error == pytest.approx(math.sqrt(share * (1 - share) / measured))
    assert figures.coverage == pytest.approx(len(set(shown)) / 12)
    bits = [-math.log2(chosen[item] / 20) for item in shown if chosen[item]]
    assert figures.novelty == pytest.approx(sum(bits) / len(bits))
    assert gains(lists, held_out).shape == (int(measured), 3)
    other = lists[:, ::-1]
    means = mean_figures([lists, other], held_out, chosen, 20)
    assert means["ndcg"] == pytest.approx((figures.ndcg + measure(other, held_out, chosen, 20).ndcg) / 2)


def test_the_interval_is_that_of_resampled_users() -> None:
    draw = np.random.default_rng(1)
    ours, theirs = draw.random(400) + 0.1, draw.random(400)
    low, high = paired_interval(ours, theirs)
    mean, error = (ours - theirs).mean(), (ours - theirs).std() / 20
    assert low == pytest.approx(mean - 1.96 * error, abs=0.003)
    assert high == pytest.approx(mean + 1.96 * error, abs=0.003)
    assert paired_interval(ours, ours) == (0.0, 0.0)
    # The same users in both: a constant difference has no variance, although the figures of users vary.
    assert paired_interval(ours + 0.5, ours) == pytest.approx((0.5, 0.5))


def test_a_peer_takes_the_setting_with_the_best_validation() -> None:
    task = make_task(random_rows(1))
    peer = _tuned(PENALTIES, lambda penalty: ease_weights(task.train, penalty), task, 3)
    ndcg = {}
    for penalty in PENALTIES:
        scores = task.train @ ease_weights(task.train, penalty)
        ndcg[penalty] = gains(top(scores.__getitem__, task.rated, 3), task.validation)[:, 1].mean()
    assert peer.facts["setting"] == max(ndcg, key=lambda penalty: (ndcg[penalty], -penalty))
    assert peer.facts["validation_ndcg"] == max(ndcg.values())
    assert peer.facts["settings_tried"] == len(PENALTIES)
    # The lists of the test come from the history, which holds the validation item.
    for history, lists in ((task.history, peer.lists), (task.train, peer.train_lists)):
        scores = history @ ease_weights(task.train, peer.facts["setting"])
        expected = with_popular(top(scores.__getitem__, task.excluded, 3), history, task)
        assert lists[0].tolist() == expected.tolist()
    assert peer.lists[0].tolist() != peer.train_lists[0].tolist()


def test_users_without_a_known_choice_get_the_most_popular_items() -> None:
    task = make_task(random_rows(2))
    lists = with_popular(np.full((len(task.users), 3), -1), task.history, task)
    popular = popular_lists(task, 3)
    known = task.history.toarray().any(1)
    assert not known.all()
    assert known.any()
    assert (lists[known] == -1).all()
    assert lists[~known].tolist() == popular[~known].tolist()
    for user in range(len(task.users)):
        allowed = np.flatnonzero(task.excluded[user].toarray()[0] == 0)
        assert popular[user].tolist() == sorted(allowed, key=lambda item: (-task.chosen[item], item))[:3]


def publish(tmp_path: Path, task: Task, lists: NDArray[np.int64]) -> LakePaths:
    """Publishes lists and their measures, as the product does."""
    lake = LakePaths(str(tmp_path))
    users, positions = np.nonzero(lists >= 0)
    rows = pa.table(
        {
            "user_id": task.users[users].to_numpy(str),
            "item_id": task.items[lists[users, positions]].to_numpy(str),
            "position": positions + 1,
        }
    )
    partition = lake.recommendations.partition("2000-01-01")
    file = Path(partition.path) / "lists.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(rows, file)
    entry = FileEntry(file.name, len(rows), file.stat().st_size, (len(rows),))
    replace_manifest(partition, Manifest("recommendations", partition.dt, (entry,), (), {}))
    facts: dict[str, Any] = {"users": int((task.warm_test >= 0).sum())}
    for key, of in (("ours", lists), ("popular", popular_lists(task, lists.shape[1]))):
        hit_rate, ndcg, _ = gains(of, task.warm_test).mean(0).tolist()
        figures = {"hit_rate": hit_rate, "ndcg": ndcg}
        facts |= figures if key == "ours" else {key: figures}
    measures = lake.measures.partition("2000-01-01")
    replace_manifest(measures, Manifest("measures", measures.dt, (), (), {}, facts=facts))
    return lake


def test_figures_that_the_product_did_not_measure_are_refused(tmp_path: Path) -> None:
    task = make_task(random_rows(3))
    scores = np.random.default_rng(0).random(task.train.shape)
    lists = top(scores.__getitem__, task.excluded, 4)
    lake = publish(tmp_path, task, lists)
    assert published_lists(lake, task, "2000-01-01", 4).tolist() == lists.tolist()
    require_published(lake, task, "2000-01-01", lists)
    with pytest.raises(SystemExit, match="published"):
        require_published(lake, task, "2000-01-01", np.full_like(lists, -1))


def test_pooled_figures_are_those_of_all_users() -> None:
    draw = np.random.default_rng(4)
    logs = [
        Measured({"ours": {}}, {name: draw.random((users, 3)) for name in ("ours", "ease", *more)}, {})
        for users, more in ((30, ("als",)), (50, ()))
    ]
    pooled = pool(logs)
    assert list(pooled) == ["ours", "ease"]  # als did not run on the second log
    ours, ease = (np.concatenate([log.gains[name] for log in logs]) for name in ("ours", "ease"))
    assert pooled["ease"]["ndcg"] == pytest.approx(ease[:, 1].mean())
    assert pooled["ease"]["ours_minus_this_ndcg"] == list(paired_interval(ours[:, 1], ease[:, 1]))


def test_a_peer_that_did_not_run_has_no_ratio() -> None:
    figures = {"ours": {"ndcg": 0.3}, "ease": {"ndcg": 0.2}, "bad": {"ndcg": 0.0}}
    assert Measured(figures, {}, {"als": {"reason": "not installed"}}).ratios == {
        "ease": pytest.approx(1.5),
        "bad": None,
        "als": None,
    }


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
    log = read_choices(tmp_path / name, core=1)
    assert log.name == name.split(".")[0]
    assert log.rows["time"].tolist() == times
    assert sorted(zip(log.rows["user"], log.rows["item"], strict=True)) == [
        ("1", "7"),
        ("1", "8"),
        ("2", "7"),
    ]
    written = write_choices(log, tmp_path / "raw")
    assert written.overrides == (f"data={tmp_path / 'raw'}",)
    config = load_config(str(log.config), [*written.overrides, *QUICK])  # the product accepts lists.yaml
    assert config.log.path == "{data}/choices.tsv"
    lines = (tmp_path / "raw/choices.tsv").read_text().splitlines()
    assert [line.split("\t")[2:] for line in lines] == [[str(time), "1"] for time in times]


def test_movielens_is_found_in_a_subfolder(tmp_path: Path) -> None:
    assert find_movielens(tmp_path) is None
    (tmp_path / "ml").mkdir()
    head = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    (tmp_path / "ml/ml-100k.inter").write_text(head + "1\t7\t4\t30\n1\t8\t3\t20\n")
    log = find_movielens(tmp_path)
    assert log is not None
    assert log.rows.to_dict("list") == {
        "user": ["1", "1"],
        "item": ["7", "8"],
        "time": [30, 20],
        "positive": [True, False],
    }
    assert log.overrides == (f"data={tmp_path / 'ml'}",)


def test_a_core_has_enough_rows_of_each_user_and_item() -> None:
    rows = random_rows(6)
    rows = pd.concat([rows, pd.DataFrame({"user": ["x"], "item": ["y"], "time": [1], "positive": [True]})])
    expected = set(zip(rows.user, rows.item, strict=True))
    while True:  # drop one user or item at a time
        for place in (0, 1):
            keys = [pair[place] for pair in expected]
            rare = next((key for key in sorted(set(keys)) if keys.count(key) < 5), None)
            if rare is not None:
                expected = {pair for pair in expected if pair[place] != rare}
                break
        else:
            break
    core = core_of(rows, 5)
    assert set(zip(core.user, core.item, strict=True)) == expected
    assert 0 < len(core) < len(rows)


def test_a_list_with_an_item_that_was_rated_before_is_refused(tmp_path: Path) -> None:
    task = make_task(random_rows(3))
    user = int(np.flatnonzero(task.excluded.toarray().any(1))[0])
    lists = np.full((len(task.users), 2), -1)
    lists[user, 0] = np.flatnonzero(task.excluded[user].toarray()[0])[0]
    lake = publish(tmp_path, task, lists)
    with pytest.raises(SystemExit, match="rated before the test"):
        published_lists(lake, task, "2000-01-01", 2)


def test_a_log_that_is_missing_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for log in ("a.txt", "b.txt"):
        (tmp_path / log).write_text("1 7\n")
    one = ["--log", str(tmp_path / "a.txt")]
    two = [part for log in ("a.txt", "b.txt") for part in ("--log", str(tmp_path / log))]
    for arguments, message in (
        ([], "there is no log"),
        (["--data", str(tmp_path)], "ml-100k.inter) is not in"),
        (["--data", str(tmp_path / "gone")], "there is no such folder"),
        (["--log", str(tmp_path / "gone")], "there is no such file"),
        (one, "a has no rows; a smaller --core than 5"),
        ([*two, "--config", "mine.yaml"], "are for one log, but there are a, b"),
        ([*two, "--lake", "lake"], "are for one log, but there are a, b"),
        (
            [*two, "--core", "1", "--seeds-of", "a"],
            "--seeds-of=a is not the name of a log, `=`, and a number",
        ),
        ([*two, "--core", "1", "--seeds-of", "a=0"], "--seeds-of=a=0 is not the name"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        assert message in capsys.readouterr().err


def test_a_peer_can_be_left_out_on_one_log_and_logs_can_have_other_seeds(tmp_path: Path) -> None:
    peer = Peer([np.zeros((1, 10), np.int64)])
    parts = ChosenParts(tmp_path, without=("a-als",))
    left_out = parts.part("a-als", {}, lambda: pytest.fail("it runs although it is left out"))
    assert left_out == Peer(facts={"reason": "left out by --without=a-als"})
    assert parts.part("b-als", {}, lambda: peer) is peer
    options = argparse.Namespace(seeds=3, seeds_of=["b=1"], quick=False)
    logs = [Log(name, pd.DataFrame(), tmp_path, "2000-01-01") for name in "ab"]
    assert seeds_of(options, argparse.ArgumentParser(), logs) == {"a": 3, "b": 1}


def test_the_script_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "--data" in capsys.readouterr().out
