"""Changes of lists against pandas, and the limits that hold a publish back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from conf.errors import ConfigError, DataError
from conf.load import load_config
from conf.types import Stop
from jobs import score_daily as score_stage
from jobs.score_daily import run as score_daily
from metrics.psi import bin_numbers, drift_of
from scoring.delivery import publish_limits
from scoring.delivery.publish_limits import (
    ListChanges,
    cold_entries,
    compare_lists,
    find_excesses,
    score_bins,
)
from scoring.feature_rows import last_published
from storage.manifest import is_published, read_manifest
from storage.paths import LakePaths
from tests.delivery.conftest import PublishedRuns, score_section
from tests.scoring.scoring_lake import DAY_AFTER, DAYS, RUN_DATE, feature_rows


def draw_lists(seed: int, users: list[str], k: int = 6) -> pd.DataFrame:
    """Random lists of these users."""
    draw = np.random.default_rng(seed)
    rows = []
    for user in users:
        items = draw.choice(30, int(draw.integers(1, k + 1)), replace=False)
        rows += [(user, f"i{item:02d}", np.float32(draw.random() ** 3)) for item in items]
    return pd.DataFrame(rows, columns=["user_id", "item_id", "score"])


@pytest.fixture(params=["table", "frame"])
def form(request: pytest.FixtureRequest, spark: SparkSession) -> Callable[[pd.DataFrame], Any]:
    """Converts rows to the form of small lists, and to that of large ones."""

    def table(rows: pd.DataFrame) -> pa.Table:
        return pa.Table.from_pandas(rows, preserve_index=False)

    return table if request.param == "table" else spark.createDataFrame


def test_changes_equal_sets_of_python(form: Callable[[pd.DataFrame], Any]) -> None:
    users = [f"u{number:02d}" for number in range(60)]
    today, before = draw_lists(1, users[5:]), draw_lists(2, users[:-9])
    same = today.user_id.isin(users[20:25])
    before = pd.concat([before[~before.user_id.isin(users[20:25])], today[same]], ignore_index=True)
    sets = [rows.groupby("user_id").item_id.agg(set).to_dict() for rows in (today, before)]
    both = sorted(set(sets[0]) & set(sets[1]))
    actual = compare_lists(form(today), form(before))
    assert (actual.users_in_both, actual.users_lost, actual.users_gained) == (len(both), 5, 9) == (46, 5, 9)
    churn = np.mean([len(sets[0][user] - sets[1][user]) / len(sets[0][user]) for user in both])
    jaccard = np.mean(
        [len(sets[0][user] & sets[1][user]) / len(sets[0][user] | sets[1][user]) for user in both]
    )
    assert actual.churn == pytest.approx(churn, abs=1e-12)
    assert actual.jaccard == pytest.approx(jaccard, abs=1e-12)
    assert actual.users_lost_share == 5 / 51
    clicked = [f"i{item:02d}" for item in range(0, 30, 2)] * 2
    items = form(pd.DataFrame({"item_key": clicked}))
    items = items["item_key"].combine_chunks() if isinstance(items, pa.Table) else items
    cold = cold_entries(form(today), items)
    assert cold == sum(int(item[1:]) % 2 for item in today.item_id) > 0
    assert score_bins(form(today)) == _bins(today)
    entries = form(today)
    empty = entries.slice(0, 0) if isinstance(entries, pa.Table) else entries.limit(0)
    assert (cold_entries(empty, items), score_bins(empty)) == (0, Counter())
    assert compare_lists(empty, empty) == ListChanges(0, 0, 0, None, None)


def test_equal_lists_did_not_change_and_strangers_share_nothing(
    form: Callable[[pd.DataFrame], Any],
) -> None:
    lists = form(draw_lists(3, ["a", "b", "c"]))
    same = compare_lists(lists, lists)
    assert (same.churn, same.jaccard, same.users_lost, same.users_gained) == (0.0, 1.0, 0, 0)
    others = form(draw_lists(3, ["d", "e"]))
    apart = compare_lists(lists, others)
    assert (apart.churn, apart.jaccard, apart.users_in_both, apart.users_lost_share) == (None, None, 0, 1.0)


def test_the_first_lists_have_nothing_to_be_held_against(runs: PublishedRuns) -> None:
    facts = read_manifest(runs.lake.list_changes.partition(RUN_DATE)).facts
    assert (facts["before"], facts["held_back"]) == (None, False)
    lists = runs.lists
    train = pd.concat([feature_rows(runs.reference, day).to_pandas() for day in range(2)])
    clicked = set(train[train.label == 1].item_key)
    assert facts["cold_share"] == pytest.approx((~lists.item_id.isin(clicked)).mean())
    assert facts["coverage"] == lists.item_id.nunique() / 23


def test_lists_past_a_limit_are_held_back_and_the_report_says_why(runs: PublishedRuns) -> None:
    lake = runs.lake
    partition, changes = lake.recommendations.partition(DAY_AFTER), lake.list_changes.partition(DAY_AFTER)
    strict = score_section(stop={"max_churn": 0.0, "min_coverage": 1.0, "max_cold_share": 1.0})
    with pytest.raises(DataError) as stopped:
        score_daily(runs.job(DAY_AFTER, score=strict))
    message = str(stopped.value)
    facts = read_manifest(changes).facts
    assert f"churn={facts['churn']:.4g} is above score.stop.max_churn=0" in message
    assert f"coverage={facts['coverage']:.4g} is below score.stop.min_coverage=1" in message
    assert f"the lists of {RUN_DATE} are still the last published ones" in message
    assert "--set score.stop.max_churn=null --set score.stop.min_coverage=null" in message
    assert not is_published(partition)
    assert facts["held_back"] is True
    assert [excess["figure"] for excess in facts["excesses"]] == ["churn", "coverage"]

    # What the remedy says lets them pass; the figures are those of both published tables.
    result = score_daily(runs.job(DAY_AFTER, score=score_section(stop={"max_cold_share": 1.0})))
    facts = read_manifest(changes).facts
    today, before = runs.rows(partition), runs.lists
    sets = [rows.groupby("user_id").item_id.agg(set) for rows in (today, before)]
    churn = np.mean([len(user_rows - sets[1][user]) / len(user_rows) for user, user_rows in sets[0].items()])
    assert facts["churn"] == pytest.approx(churn, abs=1e-12) == result.facts["churn"]
    assert 0 < churn < 1
    assert facts["before"] == RUN_DATE
    assert facts["held_back"] is False
    drift = drift_of(bin_numbers(_bins(before), _bins(today), 0, 0))
    assert drift is not None
    assert facts["score_psi"] == (drift.psi if drift.psi > drift.noise else 0.0)
    assert (facts["users_in_both"], facts["users_lost"], facts["users_gained"]) == (37, 0, 0)

    # A stopped rerun leaves the lists of that date as they were.
    digest = read_manifest(partition).digest
    with pytest.raises(DataError, match="are not published"):
        score_daily(runs.job(DAY_AFTER, score=strict))
    assert read_manifest(partition).digest == digest
    assert read_manifest(changes).facts["held_back"] is True


def test_small_and_large_lists_are_published_alike(
    runs: PublishedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Arrow in the driver, with Spark for what is large, and by Spark alone."""
    lake, section = runs.lake, score_section(stop={"max_cold_share": 1.0})
    partition, changes = lake.recommendations.partition(DAY_AFTER), lake.list_changes.partition(DAY_AFTER)
    published = []
    for entries, rows in ((10**9, 10**9), (10**9, -1), (-1, -1)):
        monkeypatch.setattr(score_stage, "ENTRIES_IN_DRIVER", entries)
        monkeypatch.setattr(publish_limits, "ROWS_IN_DRIVER", rows)
        score_daily(runs.job(DAY_AFTER, score=section))
        manifest, compared = read_manifest(partition), read_manifest(changes).facts
        facts = {name: value for name, value in manifest.facts.items() if name != "scored_at"}
        exact = {name: value for name, value in compared.items() if name not in ("churn", "jaccard")}
        rounded = [round(compared[name], 12) for name in ("churn", "jaccard")]
        published.append((runs.rows(partition).values.tolist(), manifest.schema, facts, exact, rounded))
    assert published[0] == published[1] == published[2]
    assert len(published[0][0]) > 100


def test_lists_of_other_code_are_delivered_again(
    runs: PublishedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sinks compare the digest of the lists, so it must differ after an upgrade that may change lists."""
    partition, digests = runs.lake.recommendations.partition(DAY_AFTER), []
    for code in (None, None, "of another release"):
        if code is not None:
            monkeypatch.setattr(score_stage, "code_version", lambda *_: "of another release")
        score_daily(runs.job(DAY_AFTER, score=score_section(stop={"max_cold_share": 1.0})))
        digests.append(read_manifest(partition).digest)
    assert digests[0] == digests[1] != digests[2]


def _bins(lists: pd.DataFrame) -> Counter[int]:
    """Keys of bins by Python's own frexp: 16 parts of every power of two."""
    actual: Counter[int] = Counter()
    for score in lists.score:
        mantissa, exponent = np.frexp(float(score))
        actual[(int(exponent) + 1074) * 16 + int((mantissa - 0.5) * 32)] += 1
    return actual


def test_the_day_before_is_the_last_one_published(runs: PublishedRuns) -> None:
    actual = last_published(runs.lake, "2026-03-01")
    assert actual is not None
    assert actual.dt >= RUN_DATE
    assert last_published(runs.lake, RUN_DATE) is None
    assert last_published(LakePaths(f"{runs.lake.root}/nowhere"), DAYS[0]) is None


@pytest.mark.parametrize(
    "stop, changes, settings",
    [
        ({}, {"churn": 1.0, "coverage": 0.0}, []),
        ({"max_churn": 0.5}, {"churn": 0.5}, []),
        ({"max_churn": 0.5}, {"churn": 0.5001}, ["max_churn"]),
        ({"max_churn": 0.5}, {"churn": None}, []),
        ({"max_churn": 0.5}, {}, []),
        ({"min_coverage": 0.2}, {"coverage": 0.2}, []),
        ({"min_coverage": 0.2}, {"coverage": 0.1}, ["min_coverage"]),
        (
            {"max_cold_share": 0.1, "max_score_psi": 0.2, "max_users_lost_share": 0.0},
            {"cold_share": 0.2, "score_psi": 0.3, "users_lost_share": 0.01},
            ["max_cold_share", "max_score_psi", "max_users_lost_share"],
        ),
    ],
)
def test_a_limit_is_passed_only_beyond_it(
    stop: dict[str, float], changes: dict[str, Any], settings: list[str]
) -> None:
    assert [excess.setting for excess in find_excesses(Stop.model_validate(stop), changes)] == settings


def test_a_limit_can_be_lifted_on_the_command_line() -> None:
    overrides = ["score.stop.max_churn=0.5", "score.stop.max_churn=null"]
    limits = [load_config("conf/datasets/generated.yaml", overrides[:n]).score.stop.max_churn for n in (1, 2)]
    assert limits == [0.5, None]
    with pytest.raises(ConfigError, match=r"unknown key score\.stop\.max_chrun"):
        load_config("conf/datasets/generated.yaml", ["score.stop.max_chrun=0.5"])
