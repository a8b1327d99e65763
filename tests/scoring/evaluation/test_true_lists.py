"""Lists by the true probabilities against a plain sort, and the logs whose true probabilities are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from conf.raw_types import Keys
from conf.types import Generate
from etl.synthetic.generate import generate_days
from etl.synthetic.truth import DayTruth, GeneratedDays, generated_days
from scoring.candidates.exclusions import Exclusions
from scoring.evaluation import list_facts as true_lists_module
from scoring.evaluation.list_facts import BEST, CLICK_PROBABILITY, true_lists
from spark.choose_workers import SparkWorkers
from spark.workers import LocalWorkers
from storage.manifest import read_manifest, replace_manifest
from storage.paths import LakePaths
from tests.rows import as_table

DAYS = ("2026-01-10", "2026-01-11")
SETTINGS = Generate(users=40, items=25, rows_per_day=100, cold_share=0.1, layout="named")
K = 6


def _candidates() -> tuple[list[str], list[tuple[str, list[int] | None]]]:
    """Item keys by index, and the excluded items of each user.

    Some items and users are not in the log of one day or of both days.
    """
    truths = [DayTruth(SETTINGS, day) for day in DAYS]
    items = sorted({*truths[0].items, *truths[1].items, "gone", "long gone"})
    users = sorted({*truths[0].users, *truths[1].users, "stranger"})
    draw = np.random.default_rng(3)
    excluded = {
        user: sorted(draw.choice(len(items), size=index % 9, replace=False).tolist()) or None
        for index, user in enumerate(users)
    }
    excluded[users[5]] = list(range(len(items) - 3))  # fewer than K items remain
    return items, list(excluded.items())


def _expected(days: tuple[str, ...]) -> dict[tuple[str, str], list[str]]:
    """(user, ranking) → item keys, by a sort of all candidates."""
    items, users = _candidates()
    truths = [DayTruth(SETTINGS, day) for day in days]
    lists = {}
    for user, excluded in users:
        known = [truth for truth in truths if user in truth.users]
        for ranking in (CLICK_PROBABILITY, BEST) if known else ():
            scores = dict.fromkeys(range(len(items)), 0.0)
            for truth in known:
                true = truth.of_user(truth.users[user])
                for index, item in enumerate(items):
                    if item in truth.items:
                        place = truth.items[item]
                        shown = true.shown[place] if ranking == BEST else 1.0
                        scores[index] += true.user_share * true.clicked[place] * shown
            allowed = [index for index in scores if index not in (excluded or [])]
            ranked = sorted(allowed, key=lambda index: (-scores[index], index))
            lists[user, ranking] = [items[index] for index in ranked[:K]]
    return lists


@pytest.mark.parametrize("days", [DAYS[1:], DAYS], ids=["one day", "two days"])
def test_lists_equal_a_sort_of_all_candidates(spark: SparkSession, days: tuple[str, ...]) -> None:
    items, users = _candidates()
    frame = spark.createDataFrame(users[::-1], "user_key string, excluded array<int>")
    numbered = spark.createDataFrame(
        list(enumerate(items))[::-1], "item_index int, item_key string"
    ).repartition(3)
    generated = GeneratedDays(SETTINGS, days)
    for partitions in (1, 5):
        exclusions = Exclusions(frame.repartition(partitions), most=len(items))
        rows = true_lists(SparkWorkers(spark), exclusions, numbered, generated, K).toPandas()
        actual = {
            key: entries.sort_values("position").item_key.tolist()
            for key, entries in rows.groupby(["user_key", "kind"])
        }
        assert actual == _expected(days)
        for _, entries in rows.groupby(["user_key", "kind"]):
            assert sorted(entries.position) == list(range(1, len(entries) + 1))
    lengths = {len(entries) for entries in actual.values()}
    assert lengths == {3, K}
    assert any(actual[user, CLICK_PROBABILITY] != actual[user, BEST] for user, _ in actual)
    assert not any(user == "stranger" for user, _ in actual)


def test_settings_of_a_generated_log_are_found_again(spark: SparkSession, tmp_path: Path) -> None:
    lake, keys = LakePaths(str(tmp_path)), Keys(user="user_id", item="item_id")
    generate_days(SparkWorkers(spark), lake, SETTINGS, [DAYS[0]])
    generate_days(
        SparkWorkers(spark), lake, SETTINGS.model_copy(update={"days": 3, "compression": "gzip"}), [DAYS[1]]
    )
    found = generated_days(lake, keys, DAYS)
    assert found == GeneratedDays(SETTINGS, DAYS)
    assert generated_days(lake, Keys(user="user_id", item="item_category"), DAYS) is None
    assert generated_days(lake, None, DAYS) is None
    assert generated_days(lake, keys, []) is None
    assert generated_days(lake, keys, ["2026-01-12"]) is None
    generate_days(SparkWorkers(spark), lake, SETTINGS.model_copy(update={"seed": 7}), [DAYS[1]])
    assert generated_days(lake, keys, DAYS) is None, "two logs in one window"
    partition = lake.raw.partition(DAYS[0])
    manifest = read_manifest(partition)
    old = {name: value for name, value in manifest.facts.items() if name != "settings"}
    replace_manifest(partition, replace(manifest, facts=old))
    assert generated_days(lake, keys, DAYS[:1]) is None, "written by a release that recorded no settings"


def test_a_log_of_displays_has_no_true_lists(spark: SparkSession, tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path))
    settings = Generate(layout="outbrain", users=50, items=120, rows_per_day=200, files_per_day=1)
    generate_days(SparkWorkers(spark), lake, settings, [DAYS[0]])
    columns = read_manifest(lake.raw.partition(DAYS[0])).schema
    keys = [Keys(user=name, item=columns[1][0]) for name, _ in columns if name != columns[1][0]]
    assert keys
    assert all(generated_days(lake, key, DAYS[:1]) is None for key in keys)


@pytest.mark.parametrize("k", [1, 6, 200])
def test_lists_equal_a_sort_with_ties_and_many_excluded_items(
    monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    users, items = 30, 120
    draw = np.random.default_rng(5)
    # Few different scores, so that most lists end among equal ones.
    scores = draw.integers(0, 7, size=(users, 2, items)) / 8
    scores[0] = 0.5
    sizes = [0, items, items - 1, items - k if k < items else 3, *draw.integers(0, items + 1, size=users - 4)]
    excluded = [sorted(draw.choice(items, size=size, replace=False).tolist()) or None for size in sizes]

    def drawn_scores(keys: list[str], days: object, candidates: int) -> tuple[np.ndarray, np.ndarray]:
        assert candidates == items
        known = np.array([key != "7" for key in keys])
        return scores[[int(key) for key in keys]], known

    monkeypatch.setattr(true_lists_module, "_scores", drawn_scores)
    monkeypatch.setattr(true_lists_module, "_SCORES_AT_ONCE", 7 * items)  # several parts of a batch
    keys = tuple(f"i{index}" for index in range(items))
    maker = true_lists_module._ListMaker(keys, GeneratedDays(SETTINGS, DAYS[:1]), k)
    arrays = [pa.array([str(user) for user in range(users)]), pa.array(excluded, pa.list_(pa.int32()))]
    batch = pa.RecordBatch.from_arrays(arrays, names=["user_key", "excluded"])
    rows = pa.Table.from_batches(maker([batch.slice(0, 11), batch.slice(11)])).to_pylist()
    expected = []
    for user in range(users):
        for ranking, of_items in zip((CLICK_PROBABILITY, BEST), scores[user].tolist(), strict=True):
            allowed = sorted(set(range(items)) - set(excluded[user] or []))
            best = sorted(allowed, key=lambda index, of_items=of_items: (-of_items[index], index))[:k]
            entries = enumerate(best if user != 7 else [], 1)
            expected += [(str(user), ranking, position, f"i{index}") for position, index in entries]
    assert [tuple(row.values()) for row in rows] == expected


@pytest.mark.processes
def test_processes_of_this_machine_make_the_same_lists(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items, users = _candidates()
    table = as_table(spark.createDataFrame(users, "user_key string, excluded array<int>"))
    numbered = pa.table({"item_index": pa.array(range(len(items)), pa.int32()), "item_key": items})
    monkeypatch.setattr(true_lists_module, "_USERS_PER_TASK", 3)  # several tasks
    workers = LocalWorkers(2, lambda: spark, str(tmp_path))
    rows = true_lists(workers, Exclusions(table, most=len(items)), numbered, GeneratedDays(SETTINGS, DAYS), K)
    actual = {
        key: entries.sort_values("position").item_key.tolist()
        for key, entries in rows.to_pandas().groupby(["user_key", "kind"])
    }
    assert actual == _expected(DAYS)
