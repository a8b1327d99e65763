"""Candidates of several sources with filters on a small lake, job by job: tables, lists and recall."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conf.errors import ConfigError, DataError
from conf.types import Config, Label, Negatives
from jobs.build_candidates import run as build_candidates
from jobs.build_features import run as build_features
from jobs.evaluate_model import run as evaluate_model
from jobs.measure_recommendations import run as measure_recommendations
from jobs.score_daily import run as score_daily
from scoring.candidates.candidate_tables import last_counted_days, require_clicks_in_windows
from scoring.model import context_features
from spark.choose_workers import stay_in_process
from storage.dataset import Dataset, Member, read_dataset
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths, Partition
from storage.run_context import RunContext
from tests.etl.prepare.small_shop import no_session
from tests.scoring.reference_scores import ReferenceScores, write_model
from tests.scoring.scoring_lake import (
    DAYS,
    RUN_DATE,
    WORKFLOW,
    EncodedContext,
    feature_rows,
    make_config,
    next_day,
    publish_lake,
)
from training.registry import mlflow_mirror
from training.registry.versions import record_run

SOURCES = [
    {"source": "covisitation", "n": 4, "window_days": 3},
    {"source": "item_knn", "n": 2, "shrink": 3},
    {"source": "ease", "n": 3, "l2": 5.0},
    {"source": "als", "n": 3, "window_days": 3, "rank": 4, "iterations": 2},
    {"source": "retrieval", "n": 4, "model": {"architecture": "two_tower"}},
    {"source": "popular", "n": 3, "segment": "country"},
    {"source": "popular", "n": 6},
]
NAMES = ["covisitation", "item_knn", "ease", "als", "retrieval", "popular by country", "popular"]
MOST = 19
COUNTRIES = ["at", "be", "ch"]


def table(name: str, columns: dict[str, str], **more: Any) -> dict[str, Any]:
    """A table of the section `candidates`."""
    typed = [{"name": column, "type": kind} for column, kind in columns.items()]
    return {
        "path": f"{{lake}}/tables/{name}.csv",
        "format": "csv",
        "separator": ",",
        "columns": typed,
        **more,
    }


ATTRIBUTES = table("users", {"user": "string", "country": "string", "age": "int"}, key="user")
DENIED = table(
    "denied",
    {"item": "string", "country": "string"},
    filter="not_allowed",
    item="item",
    value="country",
    attribute="country",
    rule="deny",
)
ADULT = table(
    "adult",
    {"item": "string", "age": "int"},
    filter="not_allowed",
    item="item",
    value="age",
    attribute="age",
    rule="at_least",
)
STOCK = table("stock", {"item": "string"}, filter="out_of_stock", item="item")
SECTION: dict[str, Any] = {
    "sources": SOURCES,
    "max": MOST,
    "splits": ["train", "validation"],
    "active_days": 4,
    "exclude_clicked": ["train", "validation"],
    "user_attributes": ATTRIBUTES,
    "filters": [DENIED, STOCK, ADULT],
}


@pytest.fixture(scope="module")
def attributes(reference: ReferenceScores) -> pd.DataFrame:
    """Country and age of all users but the last."""
    users = reference.users.user_key[:-1]
    rows = {
        "user": users,
        "country": [COUNTRIES[n % 3] for n in range(36)],
        "age": [8 + n for n in range(36)],
    }
    return pd.DataFrame(rows)


DENIED_ROWS = pd.DataFrame({"item": ["i001", "i001", "i002", "nowhere"], "country": ["at", "be", "ch", "at"]})
ADULT_ROWS = pd.DataFrame({"item": ["i007", "i008"], "age": [18, 30]})
STOCK_ROWS = pd.DataFrame({"item": ["i003", "i020", "elsewhere"]})


def write_tables(lake: str, attributes: pd.DataFrame, **replaced: pd.DataFrame) -> None:
    """Writes the tables that the configuration names."""
    folder = Path(lake) / "tables"
    folder.mkdir(exist_ok=True)
    tables = {"users": attributes, "denied": DENIED_ROWS, "adult": ADULT_ROWS, "stock": STOCK_ROWS}
    for name, rows in {**tables, **replaced}.items():
        rows.to_csv(folder / f"{name}.csv", index=False)


def read_rows(partition: Partition) -> pd.DataFrame:
    """The rows of a published partition."""
    files = data_files(partition, read_manifest(partition))
    return pa.concat_tables(pq.read_table(path, partitioning=None) for path in files).to_pandas()


@pytest.fixture(scope="module")
def without_workflow() -> Iterator[None]:
    """Replaces the workflow and MLflow, which the lake does not have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_mirror, "prepare", lambda *_: None)
        patch.setattr(mlflow_mirror, "set_aliases", lambda *_: None)
        patch.setattr(context_features, "load_local", lambda *_: EncodedContext())
        yield


@dataclass
class CandidateRun:
    """A lake after the jobs of RUN_DATE that use candidates, and their facts by name."""

    spark: SparkSession
    lake: LakePaths
    facts: dict[str, Any]

    def job(self, **candidates: Any) -> RunContext:
        """The context of a job with some settings of `candidates` replaced."""
        config = make_config(Path(self.lake.root), candidates={**SECTION, **candidates})
        return RunContext("test", config, RUN_DATE, open_session=lambda _: self.spark)

    def candidates(self) -> dict[str, tuple[list[str], list[int]]]:
        """User → item keys, and the source of each item."""
        keys = read_rows(self.lake.candidate_items(WORKFLOW).partition(RUN_DATE)).item_key
        actual = read_rows(self.lake.candidates(WORKFLOW).partition(RUN_DATE))
        assert actual.excluded.isna().all()
        return {
            user: ([keys[index] for index in indices], list(sources))
            for user, indices, sources in zip(actual.user_key, actual.candidates, actual.sources, strict=True)
        }


@pytest.fixture(scope="module")
def candidate_run(
    spark: SparkSession,
    reference: ReferenceScores,
    attributes: pd.DataFrame,
    tmp_path_factory: pytest.TempPathFactory,
    without_workflow: None,
) -> CandidateRun:
    """All jobs of RUN_DATE that candidates go through."""
    config: Config = publish_lake(tmp_path_factory.mktemp("lake"), reference)
    lake = LakePaths(config.lake)
    write_tables(config.lake, attributes)
    write_model(Path(lake.models("toy-retriever")) / "t1", "two_tower", version="t1")
    record_run(lake, "toy-retriever", RUN_DATE, "t1")
    run = CandidateRun(spark, lake, {})
    job = run.job()
    stages = (evaluate_model, build_candidates, score_daily, measure_recommendations)
    run.facts.update({stage.__module__.rpartition(".")[2]: stage(job) for stage in stages})
    return run


@pytest.fixture(scope="module")
def log(reference: ReferenceScores) -> pd.DataFrame:
    """The feature rows of all days."""
    days = [feature_rows(reference, day).to_pandas().assign(dt=dt) for day, dt in enumerate(DAYS)]
    return pd.concat(days, ignore_index=True)


def barred(log: pd.DataFrame, attributes: pd.DataFrame, user: str) -> dict[str, set[str]]:
    """What each filter bars a user from, by the words of the configuration."""
    clicks = log[(log.user_key == user) & (log.label == 1) & (log.dt < RUN_DATE)]
    user_rows = attributes[attributes.user == user]
    country, age = (user_rows.country.iloc[0], user_rows.age.iloc[0]) if len(user_rows) else (None, -1)
    return {
        "clicked": set(clicks.item_key),
        "not_allowed by country": set(DENIED_ROWS[DENIED_ROWS.country == country]["item"]),
        "not_allowed by age": set(ADULT_ROWS[ADULT_ROWS.age > age]["item"]),
    }


def test_only_items_in_stock_and_seen_lately_are_numbered(
    candidate_run: CandidateRun, reference: ReferenceScores, log: pd.DataFrame
) -> None:
    partition = candidate_run.lake.candidate_items(WORKFLOW).partition(RUN_DATE)
    seen = set(log[log.dt < RUN_DATE].item_key)
    items = read_rows(partition)
    assert items.item_key.tolist() == sorted((seen & set(reference.items.item_key)) - set(STOCK_ROWS["item"]))
    assert items.item_index.tolist() == list(range(len(items)))
    manifest = read_manifest(partition)
    assert manifest.dropped == {"out_of_stock": 2, "inactive": 23 - len(seen | {"i003", "i020"})}
    assert manifest.rows + sum(manifest.dropped.values()) == manifest.rows_in == 23
    assert candidate_run.facts["build_candidates"].dropped == manifest.dropped


def test_nobody_is_offered_what_a_filter_bars_and_all_of_it_is_counted(
    candidate_run: CandidateRun, reference: ReferenceScores, log: pd.DataFrame, attributes: pd.DataFrame
) -> None:
    items = set(read_rows(candidate_run.lake.candidate_items(WORKFLOW).partition(RUN_DATE)).item_key)
    candidates, counts = (
        candidate_run.candidates(),
        {"clicked": 0, "not_allowed by country": 0, "not_allowed by age": 0},
    )
    assert sorted(candidates) == reference.users.user_key.tolist()
    for user, (keys, _) in candidates.items():
        gone = {name: actual & items for name, actual in barred(log, attributes, user).items()}
        counts = {name: counts[name] + len(actual) for name, actual in gone.items()}
        assert set(keys) <= items - set().union(*gone.values())
        assert len(set(keys)) == len(keys) <= MOST
    facts = read_manifest(candidate_run.lake.candidates(WORKFLOW).partition(RUN_DATE)).facts
    assert facts == {"sources": NAMES, "excluded": counts, "retrieval_search": "exact"}
    assert min(counts.values()) > 0


def test_every_source_gives_its_share_and_no_more(candidate_run: CandidateRun) -> None:
    lists_of_sources = [sources for _, sources in candidate_run.candidates().values()]
    assert all(sources == sorted(sources) for sources in lists_of_sources)
    for number, source in enumerate(SOURCES):
        assert 0 < max(sources.count(number) for sources in lists_of_sources) <= source["n"]  # type: ignore[operator]
    counts = {name: sum(of.count(index) for of in lists_of_sources) for index, name in enumerate(NAMES)}
    assert candidate_run.facts["build_candidates"].facts["places_by_source"] == counts


def test_lists_hold_candidates_alone(candidate_run: CandidateRun) -> None:
    lists = (
        read_rows(candidate_run.lake.recommendations.partition(RUN_DATE)).groupby("user_id").item_id.agg(set)
    )
    candidates = candidate_run.candidates()
    for user, (keys, _) in candidates.items():
        assert len(lists.get(user, set())) == min(5, len(keys))
        assert lists.get(user, set()) <= set(keys)


def test_recall_of_the_candidates_equals_pandas(
    candidate_run: CandidateRun, reference: ReferenceScores, log: pd.DataFrame
) -> None:
    raw = next_day(reference)
    wanted = raw[raw.clicked == 1].groupby("user")["item"].agg(set).to_dict()
    warm = set(log[log.dt < DAYS[2]].user_key)
    candidates = candidate_run.candidates()
    measured = read_manifest(candidate_run.lake.measures.partition(RUN_DATE)).facts["candidates"]
    assert measured == candidate_run.facts["measure_recommendations"].facts["candidates"]
    for actual, users in ((measured, warm), (measured["cold_users"], set(candidates) - warm)):
        asked = sorted(user for user in wanted if user in candidates and user in users)
        parts = dict.fromkeys(NAMES, 0.0)
        for user in asked:
            for key, source in zip(*candidates[user], strict=True):
                parts[NAMES[source]] += (key in wanted[user]) / len(wanted[user]) / len(asked)
        assert actual["users"] == len(asked) > 0
        assert actual["by_source"] == pytest.approx(parts, abs=1e-9)
        assert actual["recall"] == pytest.approx(sum(parts.values()), abs=1e-9)
    assert measured["recall"] > 0.1


def test_a_rerun_gives_the_same_candidates_and_another_table_others(
    candidate_run: CandidateRun, attributes: pd.DataFrame
) -> None:
    partition = candidate_run.lake.candidates(WORKFLOW).partition(RUN_DATE)
    before, lists = read_manifest(partition), candidate_run.candidates()
    build_candidates(candidate_run.job())
    assert read_manifest(partition).digest == before.digest
    assert candidate_run.candidates() == lists
    write_tables(candidate_run.lake.root, attributes, denied=DENIED_ROWS[:2])
    build_candidates(candidate_run.job())
    assert read_manifest(partition).digest != before.digest


def test_approximate_search_publishes_its_clusters_and_gives_the_lists_of_the_exact_search(
    candidate_run: CandidateRun,
) -> None:
    """All of the few clusters are read, so that no item is missed."""
    lists, facts = {}, {}
    for search in ("exact", "approximate"):
        source = {"source": "retrieval", "n": 4, "model": {"architecture": "two_tower"}, "search": search}
        facts[search] = build_candidates(candidate_run.job(sources=[source], max=None)).facts
        lists[search] = candidate_run.candidates()
    assert lists["approximate"] == lists["exact"]
    assert {search: of["retrieval_search"] for search, of in facts.items()} == {
        "exact": "exact",
        "approximate": "approximate",
    }
    partition = candidate_run.lake.item_vectors(WORKFLOW, "retrieval").partition(RUN_DATE)
    numbered = read_manifest(candidate_run.lake.candidate_items(WORKFLOW).partition(RUN_DATE))
    published, rows = read_manifest(partition), read_rows(partition)
    assert published.inputs["retriever"] == "t1"
    assert published.inputs["candidate_items"] == numbered.digest
    assert sorted(rows.item_index) == list(range(numbered.rows))
    assert rows.cluster.nunique() > 1
    assert set(rows.vector.map(len)) == {32}


@pytest.mark.parametrize(
    "candidates, sections, rule",
    [
        ({"repeats": "none"}, {}, lambda rows: rows.row_id >= 0),
        ({}, {"label": {"column": "clicked", "positive_at_least": 1}}, lambda rows: rows.row_id >= 0),
        # Every second row was drawn and is no row of the log.
        ({}, {"negatives": {"per_positive": 1}}, lambda rows: rows.row_id % 2 == 0),
        ({"repeats": "unclicked"}, {"negatives": {"per_positive": 1}}, lambda rows: rows.label == 1),
        ({"repeats": "all"}, {"negatives": {"per_positive": 1}}, lambda rows: rows.row_id < 0),
    ],
    ids=["none", "ratings", "choices", "unclicked", "all"],
)
def test_repeats_say_which_rows_keep_an_item_from_a_user(
    candidate_run: CandidateRun,
    log: pd.DataFrame,
    candidates: dict[str, Any],
    sections: dict[str, Any],
    rule: Any,
) -> None:
    """Of train and validation; an item of a test row stays a candidate, however it is labelled."""
    section = {"sources": [{"source": "all_items"}], "exclude_clicked": ["train", "validation"], **candidates}
    config = make_config(Path(candidate_run.lake.root), candidates=section)
    changed = {"negatives": sections.get("negatives") and Negatives(**sections["negatives"])}
    if "label" in sections:
        changed["log"] = config.log.model_copy(update={"label": Label(**sections["label"])})
    build_candidates(
        RunContext(
            "test", config.model_copy(update=changed), RUN_DATE, open_session=lambda _: candidate_run.spark
        )
    )
    keys = read_rows(candidate_run.lake.candidate_items(WORKFLOW).partition(RUN_DATE)).item_key
    actual = (
        read_rows(candidate_run.lake.candidates(WORKFLOW).partition(RUN_DATE)).set_index("user_key").excluded
    )
    past = log[log.dt < RUN_DATE]
    gone = past[rule(past)].groupby("user_key").item_key.agg(set)
    for user, excluded in actual.items():
        assert {keys[index] for index in (() if excluded is None else excluded)} == gone.get(
            user, set()
        ) & set(keys)


@pytest.mark.parametrize(
    "replaced, message",
    [
        ({"denied": DENIED_ROWS.rename(columns={"country": "land"})}, r"denied\.csv[\s\S]*country"),
        ({"denied": DENIED_ROWS.iloc[[0, 0]]}, r"denied\.csv: 2 rows have 1 .*item, country.*'i001'"),
        ({"adult": pd.DataFrame({"item": ["i007", "i007"], "age": [1, 2]})}, r"adult\.csv.*'i007'"),
        ({"adult": pd.DataFrame({"item": ["i007"], "age": ["x"]})}, r"adult\.csv: 1 row does not parse.*age"),
        (
            {"adult": pd.DataFrame({"item": ["i007"], "age": [None]})},
            r"adult\.csv: age is null for item='i007'",
        ),
        ({"stock": pd.DataFrame({"item": ["i001", "i001"]})}, r"stock\.csv: 2 rows have 1 .*'i001'"),
        (
            {"users": pd.DataFrame({"user": ["u1", ""], "country": "at", "age": 1})},
            r"users\.csv.*user=None",
        ),
    ],
)
def test_a_bad_table_is_named_with_its_column_and_value(
    candidate_run: CandidateRun, attributes: pd.DataFrame, replaced: dict[str, pd.DataFrame], message: str
) -> None:
    write_tables(candidate_run.lake.root, attributes, **replaced)
    try:
        with pytest.raises(DataError, match=message):
            build_candidates(candidate_run.job())
    finally:
        write_tables(candidate_run.lake.root, attributes)


def test_a_missing_table_is_named_with_its_key(candidate_run: CandidateRun) -> None:
    path = Path(candidate_run.lake.root) / "tables/stock.csv"
    path.rename(path.with_suffix(".aside"))
    try:
        with pytest.raises(
            DataError, match=r"no raw file at .*stock\.csv \(from candidates\.filters\.1\.path\)"
        ):
            build_candidates(candidate_run.job())
    finally:
        path.with_suffix(".aside").rename(path)


def test_a_segment_must_be_a_column_of_users(candidate_run: CandidateRun) -> None:
    sources = [{"source": "popular", "segment": "shoe_size"}]
    with pytest.raises(ConfigError, match=r"segment='shoe_size' is neither a feature .*'who'.*'country'"):
        build_candidates(candidate_run.job(sources=sources))


def test_retrieving_before_a_retriever_was_trained_names_the_job(candidate_run: CandidateRun) -> None:
    runs = Path(candidate_run.lake.models("toy-retriever")) / "runs"
    (runs / f"dt={RUN_DATE}.json").rename(runs / "aside")
    try:
        with pytest.raises(
            DataError, match=r"toy-retriever has no model for features of workflow w1[\s\S]*train_retriever"
        ):
            build_candidates(candidate_run.job())
    finally:
        (runs / "aside").rename(runs / f"dt={RUN_DATE}.json")


def test_a_source_that_adds_nothing_is_named(
    candidate_run: CandidateRun, caplog: pytest.LogCaptureFixture
) -> None:
    """The second source proposes only items that the first has proposed."""
    sources = [{"source": "popular", "n": 9}, {"source": "popular", "n": 3, "segment": "country"}]
    narrow = [{"source": "popular", "n": 3}, {"source": "covisitation", "n": 4, "window_days": 3}]
    summary = build_candidates(candidate_run.job(sources=narrow, max=3))
    assert summary.facts["places_by_source"]["covisitation"] == 0
    assert summary.facts["places_by_source"]["popular"] > 0
    assert caplog.messages.count("the source covisitation adds no candidate") == 1
    caplog.clear()
    summary = build_candidates(candidate_run.job(sources=sources, max=None))
    assert min(summary.facts["places_by_source"].values()) > 0
    assert "adds no candidate" not in caplog.text


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Asia/Tokyo"])
def test_the_days_of_windows_are_those_of_the_files(tmp_path: Path, zone: str) -> None:
    """The evening in Los Angeles and the morning in Tokyo are on another day in UTC."""
    dates = ["2026-01-06", "2026-01-07", "2026-01-08"]
    for dt in dates:
        rows = [
            f"{dt} {hour}:30:00,u{user},{part}_{dt[-2:]},{int(user < 5)}"
            for hour, part in (("08", "morning"), ("20", "evening"))
            for user in range(6 if part == "evening" else 3)
        ]
        (tmp_path / f"{dt}.csv").write_text("\n".join(["time,user,item,label", *rows, ""]))
    columns = {"time": "timestamp", "user": "string", "item": "string", "label": "int"}
    config = Config.model_validate(
        {
            "name": "zones",
            "lake": str(tmp_path / "lake"),
            "log": {
                "path": f"{tmp_path}/{{date}}.csv",
                "format": "csv",
                "separator": ",",
                "columns": [{"name": name, "type": kind} for name, kind in columns.items()],
                "label": {"column": "label"},
                "event_time": {"column": "time"},
                "time_zone": zone,
            },
            "keys": {"user": "user", "item": "item"},
            "features": [
                {
                    "columns": ["user", "item"],
                    "kind": "categorical",
                    "ops": [{"categorify": {"min_count": 1}}],
                }
            ],
            "scopes": {"user": ["user"], "item": ["item"]},
            "split": {"by": "day", "train_days": 1, "validation_days": 1, "test_days": 1},
            "model": {"architecture": "logistic_regression"},
            "candidates": {
                "sources": [{"source": "popular", "n": 2, "window_days": 1}],
                "splits": ["train", "validation", "test"],
                "active_days": 2,
                "exclude_clicked": [],
            },
        }
    )
    contexts = [
        RunContext(name, config, dates[-1], open_session=no_session) for name in ("features", "lists")
    ]
    build_features(contexts[0])
    summary = build_candidates(contexts[1])
    lake = LakePaths(config.lake)
    version = summary.facts["workflow_version"]
    keys = read_rows(lake.candidate_items(version).partition(dates[-1])).item_key.tolist()
    assert keys == ["evening_07", "evening_08", "morning_07", "morning_08"]
    lists = read_rows(lake.candidates(version).partition(dates[-1])).candidates
    assert [[keys[index] for index in indices] for indices in lists] == [["evening_08", "morning_08"]] * 6


def divided(folder: Path, splits: list[str], days: int) -> Config:
    """One file of 20 rows: 8 train rows on three days, and all others later. On the third, only one of 4 is a click.

    Of the train rows, i1 has the most clicks on the first day, i2 on the second, i3 on the third.
    """
    chosen = [["i1", "i1", "i1"], ["i2", "i2"], ["i3", "i1", "i2"], ["i4"] * 7, ["i5"] * 5]
    lines = [
        f"2026-01-0{day + 1}T0{place}:00:00Z,u{place % 3},{item},{int(day != 2 or item == 'i3')}"
        for day, items in enumerate(chosen)
        for place, item in enumerate(items)
    ]
    (folder / "log.csv").write_text("\n".join(["time,user,item,label", *lines, ""]))
    columns = {"time": "timestamp", "user": "string", "item": "string", "label": "int"}
    return Config.model_validate(
        {
            "name": "divided",
            "lake": str(folder / "lake"),
            "log": {
                "path": f"{folder}/log.csv",
                "format": "csv",
                "columns": [{"name": name, "type": kind} for name, kind in columns.items()],
                "label": {"column": "label"},
                "event_time": {"column": "time"},
            },
            "keys": {"user": "user", "item": "item"},
            "features": [
                {
                    "columns": ["user", "item"],
                    "kind": "categorical",
                    "ops": [{"categorify": {"min_count": 1}}],
                }
            ],
            "scopes": {"user": ["user"], "item": ["item"]},
            "split": {"by": "fraction", "train": 0.4, "validation": 0.35},
            "model": {"architecture": "logistic_regression"},
            "candidates": {
                "sources": [{"source": "popular", "n": 1, "window_days": days}],
                "splits": splits,
                "active_days": days,
                "exclude_clicked": [],
            },
        }
    )


@pytest.mark.parametrize(
    "splits, days, item, active",
    [
        (["train"], 1, "i3", ["i1", "i2", "i3"]),
        (["train"], 3, "i1", ["i1", "i2", "i3"]),
        (["train", "validation"], 1, "i4", ["i4"]),
        (["train", "validation", "test"], 1, "i5", ["i5"]),
    ],
)
def test_windows_over_a_divided_log_end_with_the_rows_that_sources_count(
    tmp_path: Path, splits: list[str], days: int, item: str, active: list[str]
) -> None:
    """The run date is some days after the last row of the log, and later than the train rows."""
    config = divided(tmp_path, splits, days)
    build_features(RunContext("features", config, "2026-01-08", open_session=no_session))
    summary = build_candidates(RunContext("lists", config, "2026-01-08", open_session=no_session))
    lake, version = LakePaths(config.lake), summary.facts["workflow_version"]
    keys = read_rows(lake.candidate_items(version).partition("2026-01-08")).item_key.tolist()
    assert keys == active
    lists = read_rows(lake.candidates(version).partition("2026-01-08")).candidates
    assert {tuple(keys[index] for index in indices) for indices in lists} == {(item,)}


def test_a_window_without_a_click_is_an_error(tmp_path: Path) -> None:
    config = divided(tmp_path, ["train"], 1)
    lines = (tmp_path / "log.csv").read_text().replace(",i3,1", ",i3,0")
    (tmp_path / "log.csv").write_text(lines)
    build_features(RunContext("features", config, "2026-01-08", open_session=no_session))
    message = (
        r"sources\.popular\.window_days=1 counts the clicks from 2026-01-03 to 2026-01-03, but the splits "
        r"\['train'\] have no click on these days: the last click is from 2026-01-02"
    )
    with pytest.raises(DataError, match=message):
        build_candidates(RunContext("lists", config, "2026-01-08", open_session=no_session))
    early = RunContext("lists", config, "2025-12-31", open_session=no_session)
    stay_in_process(early, 20)
    dataset = read_dataset(LakePaths(config.lake), "2026-01-08")
    with pytest.raises(DataError, match=r"no row of the splits .* is from 2025-12-31 or an earlier day"):
        last_counted_days(early, dataset, ["train"])


def test_days_without_clicks_are_known_from_the_dataset_of_a_log_by_day() -> None:
    config = make_config(Path("lake"), candidates={"sources": [{"source": "popular", "window_days": 3}]})
    members = [Member(day, "", None, clicks) for day, clicks in zip(DAYS, (5, 0, 3, 0), strict=True)]
    dataset = Dataset(DAYS[-1], "w1", {"train": (*members[:2],), "test": (*members[2:],)}, "fit")
    context = RunContext("lists", config, DAYS[-1])
    assert last_counted_days(context, dataset, ["train"]) == (DAYS[-1], DAYS[0])
    assert last_counted_days(context, dataset, ["train", "test"]) == (DAYS[-1], DAYS[2])
    require_clicks_in_windows(config.candidates, DAYS[-1], DAYS[1])
    with pytest.raises(DataError, match=f"the last click is from {DAYS[0]}"):
        require_clicks_in_windows(config.candidates, DAYS[-1], DAYS[0])
    with pytest.raises(DataError, match="they have no clicks at all"):
        require_clicks_in_windows(config.candidates, DAYS[-1], None)
    of_earlier_release = Dataset(DAYS[-1], "w1", {"train": (Member(DAYS[0], "", None),)}, "fit")
    assert last_counted_days(context, of_earlier_release, ["train"]) == (DAYS[-1], DAYS[-1])
