"""Evaluation, candidates, lists and measures in the process of a job publish what Spark publishes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conf.errors import DataError
from conf.types import Config
from etl.workflow import fitted_workflow
from jobs import score_daily as score_stage
from jobs.build_candidates import run as build_candidates
from jobs.deliver_recommendations import run as deliver_recommendations
from jobs.evaluate_model import run as evaluate_model
from jobs.measure_recommendations import run as measure_recommendations
from jobs.score_daily import run as score_daily
from reporting.html.page import build
from reporting.inspect.model_tables import history_table
from scoring.delivery import publish_limits
from scoring.model import context_features
from storage import file_io
from storage.dataset import Dataset, Member, publish_dataset, read_dataset
from storage.manifest import Manifest, data_files, is_published, read_manifest
from storage.paths import LakePaths, Partition
from storage.run_context import RunContext
from tests.scoring.reference_scores import CONTEXT, ReferenceScores
from tests.scoring.scoring_lake import (
    DAY_AFTER,
    DAYS,
    RUN_DATE,
    WORKFLOW,
    EncodedContext,
    feature_rows,
    make_config,
    next_day,
    publish_lake,
    write_table,
)
from training.registry import mlflow_mirror
from training.registry.versions import ChampionDecision, champion_as_of, record_decision


def _table(name: str, **types: str) -> dict[str, Any]:
    columns = [{"name": column, "type": kind} for column, kind in types.items()]
    return {"path": f"{{lake}}/{name}.csv", "format": "csv", "separator": ",", "columns": columns}


FILTERS: dict[str, Any] = {
    "exclude_clicked": ["train"],
    "active_days": 4,
    "user_attributes": {
        **_table("attributes", user="string", country="string", plan="int", age="int"),
        "key": "user",
    },
    "filters": [
        {"filter": "not_allowed", **_table(name, item="string", value=kind), "item": "item", "value": "value"}
        | {"attribute": attribute, "rule": rule}
        for name, kind, attribute, rule in (
            ("denied", "string", "country", "deny"),
            ("allowed", "string", "plan", "allow"),
            ("ages", "float", "age", "at_least"),
        )
    ]
    + [{"filter": "out_of_stock", **_table("stock", item="string", n="float"), "item": "item", "stock": "n"}],
}


def write_filters(folder: Path, reference: ReferenceScores) -> None:
    """Writes the tables of FILTERS. Some users and items are not in them, and some values are null."""
    users, items = list(reference.users.user_key), list(reference.items.item_key)
    texts = {
        "attributes": ["user,country,plan,age"]
        + [
            f"{user},{['DE', 'FR', ''][n % 3]},{['1', '2', ''][n % 4 % 3]},{['', '17', '30'][n % 5 % 3]}"
            for n, user in enumerate([*users[3:], "nobody"])
        ],
        "denied": [
            "item,value",
            *(f"{item},DE" for item in items[:6]),
            f"{items[2]},FR",
            "x,DE",
        ],
        "allowed": [
            "item,value",
            *(f"{item},{1 + n % 2}" for n, item in enumerate(items[4:9])),
            f"{items[4]},2",
        ],
        "ages": ["item,value", *(f"{item},{n * 3.5}" for n, item in enumerate(items[8:14]))],
        "stock": ["item,n", f"{items[1]},0", f"{items[15]},-0.5", f"{items[2]},3", f"{items[3]},", "y,0"],
    }
    for name, lines in texts.items():
        (folder / f"{name}.csv").write_text("".join(f"{line}\n" for line in lines))


SETTINGS: dict[str, dict[str, Any]] = {
    "clicks excluded": {},
    "all items": {"candidates": {"exclude_clicked": []}},
    "seen items excluded": {"candidates": {"repeats": "none"}},
    "no lists in the gate": {
        "gate": {"lists_users": None, "min_rows": 100, "min_users": 20, "replicates": 100}
    },
    "few users in the gate": {
        "gate": {"lists_users": 9, "min_rows": 100, "min_users": 20, "replicates": 100}
    },
    "test split": {
        "measure": {"against": "test_split"},
        "candidates": {"exclude_clicked": ["train", "validation"]},
    },
    "embeddings of one byte": {"score": {"k": 5, "context": CONTEXT, "device": "cpu", "embeddings": "int8"}},
    "filters by tables": {"candidates": FILTERS},
    "one filter by a table": {
        "candidates": {**FILTERS, "exclude_clicked": [], "filters": FILTERS["filters"][1:2]}
    },
    "source popular": {
        "candidates": {"sources": [{"source": "popular", "n": 9}], "exclude_clicked": ["train"]}
    },
}


@pytest.fixture
def without_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of the context are encoded already, and the lake has neither a workflow nor MLflow's store."""
    monkeypatch.setattr(mlflow_mirror, "prepare", lambda *_: None)
    monkeypatch.setattr(mlflow_mirror, "set_aliases", lambda *_: None)
    monkeypatch.setattr(context_features, "load_local", lambda *_: EncodedContext())
    monkeypatch.setattr(fitted_workflow, "load_local", lambda *_: EncodedContext())


def rows(partition: Partition, manifest: Manifest, order: list[str]) -> list[dict[str, Any]]:
    files = data_files(partition, manifest)
    table = pa.concat_tables(pq.read_table(path, partitioning=None) for path in files)
    return table.sort_by([(name, "ascending") for name in order]).to_pylist()


def published(config: Any) -> dict[str, Any]:
    """The manifests and the rows of what the four jobs published, without times and names of files."""
    lake = LakePaths(config.lake)
    partitions: dict[str, Any] = {}
    for day in (RUN_DATE, DAY_AFTER):
        for name, table, order in (
            ("candidate_items", lake.candidate_items(WORKFLOW), ["item_index"]),
            ("candidates", lake.candidates(WORKFLOW), ["user_key"]),
            ("recommendations", lake.recommendations, ["user_id", "position"]),
            ("evaluations", lake.evaluations, []),
            ("list_changes", lake.list_changes, []),
            ("measures", lake.measures, []),
        ):
            if name == "measures" and day == DAY_AFTER:
                continue
            partition = table.partition(day)
            manifest = read_manifest(partition)
            facts = {key: value for key, value in manifest.facts.items() if key != "scored_at"}
            partitions[f"{name} {day}"] = {
                "schema": manifest.schema,
                "rows": manifest.rows,
                "rows_in": manifest.rows_in,
                "dropped": manifest.dropped,
                "facts": facts,
                "content": rows(partition, manifest, order) if order else None,
            }
    return partitions


def run_all(context: Any) -> None:
    for day in (RUN_DATE, DAY_AFTER):
        for job in (evaluate_model, build_candidates, score_daily):
            job(context(day))
    measure_recommendations(context(RUN_DATE))


def assert_alike(actual: Any, expected: Any, at: str = "") -> None:
    """Numbers may differ by rounding; everything else is equal."""
    if isinstance(expected, dict):
        assert {*actual} == {*expected}, at
        for name in expected:
            assert_alike(actual[name], expected[name], f"{at}/{name}")
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), at
        for index, value in enumerate(expected):
            assert_alike(actual[index], value, f"{at}/{index}")
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, abs=2e-6, nan_ok=True), at
    else:
        assert actual == expected, at


@pytest.mark.parametrize("sections", SETTINGS.values(), ids=SETTINGS)
def test_both_publish_the_same(
    spark: SparkSession,
    tmp_path: Path,
    reference: ReferenceScores,
    without_workflow: None,
    sections: dict[str, Any],
) -> None:
    results, started = [], []
    for name in ("spark", "process"):
        publish_lake(tmp_path / name, reference)
        write_filters(tmp_path / name, reference)
        config = make_config(tmp_path / name, **sections)

        def context(day: str, config: Any = config, by_spark: bool = name == "spark") -> RunContext:
            def open_session(_: RunContext) -> SparkSession:
                started.append(day)
                return spark

            return RunContext(
                "test", config, day, open_session=open_session, _spark=spark if by_spark else None
            )

        run_all(context)
        results.append(published(config))
    by_spark, in_process = results
    assert_alike(in_process, by_spark)
    assert len(by_spark[f"recommendations {RUN_DATE}"]["content"]) > 100
    if "filters" in sections.get("candidates", {}):
        assert all(by_spark[f"candidates {RUN_DATE}"]["facts"]["excluded"].values())
        dropped = by_spark[f"candidate_items {RUN_DATE}"]["dropped"]
        # All items of this log are seen on the same days, so none is inactive.
        assert all(count for reason, count in dropped.items() if reason != "inactive")
    assert started == [], "a process of one machine starts no JVM"


def test_this_process_compares_lists_of_any_size(
    tmp_path: Path,
    reference: ReferenceScores,
    without_workflow: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More train rows, and earlier lists, than a driver of Spark would read itself: no session is opened."""
    results = []
    for name, most in (("few", 10**9), ("many", -1)):
        monkeypatch.setattr(publish_limits, "ROWS_IN_DRIVER", most)
        config = publish_lake(tmp_path / name, reference)
        run_all(lambda day, config=config: RunContext("test", config, day))
        changes = LakePaths(config.lake).list_changes
        results.append([read_manifest(changes.partition(day)).facts for day in (RUN_DATE, DAY_AFTER)])
    few, many = results
    assert few[1]["before"] == RUN_DATE
    assert many == few


def test_sinks_receive_the_lists_that_other_code_makes_from_equal_inputs(
    tmp_path: Path, reference: ReferenceScores, without_workflow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = {"kind": "csv", "name": "mail", "path": str(tmp_path / "mail")}
    publish_lake(tmp_path / "lake", reference)
    context = RunContext("test", make_config(tmp_path / "lake", deliver={"sinks": [sink]}), RUN_DATE)
    partition = context.lake.recommendations.partition(RUN_DATE)
    record_decision(context.lake, "toy", RUN_DATE, ChampionDecision("m1", None, True, "m1", "the first"))
    build_candidates(context)

    def deliver() -> str:
        """Makes and delivers lists, and compares the delivered file with them. Returns its path."""
        score_daily(context)
        manifest = read_manifest(partition)
        deliver_recommendations(context)
        mail = Partition("mail", RUN_DATE, f"{sink['path']}/dt={RUN_DATE}")
        (file,) = data_files(mail, read_manifest(mail))
        columns = ["user_id", "position", "item_id"]
        actual = pd.read_csv(file, dtype=str)[columns].itertuples(index=False, name=None)
        expected = rows(partition, manifest, columns[:2])
        assert sorted(actual) == sorted(tuple(str(row[name]) for name in columns) for row in expected)
        assert len(expected) > 100
        return file

    first = deliver()
    assert deliver() == first

    score = score_stage._score

    def score_backwards(*words: Any) -> Any:
        lists: Any = score(*words)
        item = lists.column_names.index("item_id")
        return lists.set_column(item, "item_id", lists["item_id"].take(list(range(len(lists)))[::-1]))

    monkeypatch.setattr(score_stage, "_score", score_backwards)
    monkeypatch.setattr(score_stage, "code_version", lambda *_: "the code of another release")
    assert deliver() != first


def test_a_damaged_file_is_named(tmp_path: Path, reference: ReferenceScores, without_workflow: None) -> None:
    config = publish_lake(tmp_path / "lake", reference)
    lake = LakePaths(config.lake)
    partition = lake.features(WORKFLOW).partition(RUN_DATE)
    path = Path(data_files(partition, read_manifest(partition))[0])
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(Exception, match=path.name):
        evaluate_model(RunContext("test", config, RUN_DATE))


def test_measures_are_those_of_pandas(
    tmp_path: Path, reference: ReferenceScores, without_workflow: None
) -> None:
    config = publish_lake(tmp_path / "lake", reference)
    run_all(lambda day: RunContext("test", config, day))
    lake = LakePaths(config.lake)
    lists = lake.recommendations.partition(RUN_DATE)
    entries = pd.DataFrame(rows(lists, read_manifest(lists), ["user_id", "position"]))
    raw = Path(lake.raw.partition(DAY_AFTER).path) / "clicks.tsv"
    log = pd.read_csv(raw, sep="\t", header=None, usecols=[0, 1, 2], names=["clicked", "user", "item"])
    clicks = log[log.clicked == 1].drop_duplicates(["user", "item"])
    hits = entries.merge(clicks, left_on=["user_id", "item_id"], right_on=["user", "item"])
    asked = {*clicks.user} & {*entries.user_id}
    facts = read_manifest(lake.measures.partition(RUN_DATE)).facts
    cold = facts["cold_users"] or {"users": 0, "hit_rate": 0.0}
    assert facts["users"] + cold["users"] == len(asked)
    users_with_hit = facts["users"] * facts["hit_rate"] + cold["users"] * cold["hit_rate"]
    assert users_with_hit == pytest.approx(hits.user.nunique())


def test_all_kinds_of_lists_are_measured_for_users_with_a_published_list(
    tmp_path: Path, reference: ReferenceScores, without_workflow: None
) -> None:
    users, items = list(reference.users.user_key), list(reference.items.item_key)
    # The source proposes no item to users without a plan.
    sources = [{"source": "popular", "n": 9, "segment": "plan"}]
    attributes = FILTERS["user_attributes"]
    publish_lake(tmp_path / "lake", reference)
    candidates = {"exclude_clicked": [], "user_attributes": attributes, "sources": sources}
    config = make_config(tmp_path / "lake", candidates=candidates)
    lake = LakePaths(config.lake)
    plans = [f"{user},DE,{'1' if n % 2 else ''},30" for n, user in enumerate(users)]
    (tmp_path / "lake/attributes.csv").write_text("\n".join(["user,country,plan,age", *plans]))
    run_all(lambda day: RunContext("test", config, day))
    lists = lake.recommendations.partition(RUN_DATE)
    asked = {row["user_id"] for row in rows(lists, read_manifest(lists), ["user_id", "position"])}
    assert asked == {*users[1::2]}
    train = pd.concat([feature_rows(reference, day).to_pandas() for day in range(2)])
    clicks = train[train.label == 1].item_key.value_counts()
    popular = sorted(items, key=lambda item: (-clicks.get(item, 0), item))[: config.score.k]
    log = next_day(reference)
    clicked = log[(log.clicked == 1) & log.user.isin(asked & {*train.user_key})]
    hits = clicked.groupby("user").item.agg(lambda chosen: bool({*chosen} & {*popular}))
    facts = read_manifest(lake.measures.partition(RUN_DATE)).facts
    assert facts["users"] == len(hits)
    assert facts["popular"]["hit_rate"] == pytest.approx(hits.mean())


def replace_test_day(config: Config, reference: ReferenceScores, kind: str) -> None:
    """Replaces the test split of DAY_AFTER and the raw log of that day: they cannot measure an AUC."""
    lake = LakePaths(config.lake)
    table = feature_rows(reference, len(DAYS))
    label = {"no click": 0, "only clicks": 1}.get(kind)
    if label is None:
        table = table.slice(0, {"one row": 1, "no row": 0}[kind])
    else:
        values = pa.array([label] * len(table), pa.float32())
        table = table.set_column(table.schema.get_field_index("label"), "label", values)
    test = write_table(lake.features(WORKFLOW).partition(DAY_AFTER), table)
    splits = {**read_dataset(lake, RUN_DATE).splits, "test": (Member(DAY_AFTER, test.digest, None),)}
    publish_dataset(lake, Dataset(DAY_AFTER, WORKFLOW, splits, "fit"), "")
    raw = Path(lake.raw.partition(DAY_AFTER).path) / "clicks.tsv"
    raw.write_text("".join(f"0{line[1:]}\n" for line in raw.read_text().splitlines()))


@pytest.mark.parametrize(
    "form, kind",
    [
        ("process", "no click"),
        ("process", "only clicks"),
        ("process", "one row"),
        ("process", "no row"),
        pytest.param("spark", "no row", marks=pytest.mark.spark),
    ],
)
def test_a_test_day_that_measures_nothing_leaves_the_champion_and_its_lists(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    reference: ReferenceScores,
    without_workflow: None,
    caplog: pytest.LogCaptureFixture,
    form: str,
    kind: str,
) -> None:
    session = request.getfixturevalue("spark") if form == "spark" else None
    config = publish_lake(tmp_path / "lake", reference)
    lake = LakePaths(config.lake)

    def context(day: str) -> RunContext:
        return RunContext("test", config, day, _spark=session)

    for job in (evaluate_model, build_candidates, score_daily):
        job(context(RUN_DATE))
    replace_test_day(config, reference, kind)
    caplog.clear()
    evaluated = evaluate_model(context(DAY_AFTER))
    evaluated.completed("evaluate_model", DAY_AFTER, {}, 0).line()  # all values are JSON
    reason = str(evaluated.facts["unmeasured"])
    assert reason.startswith("the test split has ")
    assert (evaluated.facts["promoted"], evaluated.facts["champion"]) == (False, "m1")
    assert evaluated.facts["challenger_auc"] is evaluated.facts["champion_auc"] is None
    assert reason in evaluated.facts["reason"]
    assert f"gate, hold: {reason}" in caplog.text
    assert champion_as_of(lake, "toy", DAY_AFTER) == "m1"
    for job in (build_candidates, score_daily):
        job(context(DAY_AFTER))
    assert read_manifest(lake.recommendations.partition(DAY_AFTER)).rows > 100

    measured = measure_recommendations(context(RUN_DATE)).facts
    assert measured["unmeasured"] == f"there is no click on {DAY_AFTER} (next_day)"
    assert f"the lists of {RUN_DATE} cannot be measured" in caplog.text
    assert measured["hit_rate"] is measured["ndcg"] is measured["lift"] is None
    assert measured["candidates"]["recall"] is None
    _, page = build(config, DAY_AFTER)
    assert reason in page
    assert measured["unmeasured"] in page
    assert "m1" in history_table(lake, "toy", DAY_AFTER)


def test_the_gate_measures_only_test_days_on_which_no_model_was_trained(
    tmp_path: Path, reference: ReferenceScores, without_workflow: None
) -> None:
    """`split.test_days` was enlarged from 1 to 2 after the training of the champion."""
    config = publish_lake(tmp_path / "lake", reference)
    lake = LakePaths(config.lake)
    evaluate_model(RunContext("test", config, RUN_DATE))
    path = f"{lake.models('toy')}/m1/model.json"
    file_io.replace_json(path, {**file_io.read_json(path), "trained_days": DAYS[:3]})
    old = read_dataset(lake, RUN_DATE).splits
    splits = {
        "train": old["train"][:1],
        "validation": old["train"][1:],
        "test": (*old["validation"], *old["test"]),
    }
    publish_dataset(lake, Dataset(DAY_AFTER, WORKFLOW, splits, "fit"), "")
    summary = evaluate_model(RunContext("test", config, DAY_AFTER))
    facts = read_manifest(lake.evaluations.partition(DAY_AFTER)).facts
    first, second, last = (feature_rows(reference, day).to_pandas() for day in (0, 1, 3))
    for model in ("challenger", "champion"):
        assert (facts[model]["rows"], facts[model]["positives"]) == (len(last), last.label.sum())
    known = {*first.user_key, *second.user_key}
    assert facts["lists"]["users"] == len(known & {*last[last.label == 1].user_key})
    message = (
        f"the champion m1 was trained on the test days ['{DAYS[2]}'], so the gate measures only the test days "
        f"['{RUN_DATE}']"
    )
    assert message in summary.facts["warnings"]


@pytest.mark.parametrize(
    "kind, split, remedy",
    [
        ("no click", {}, "split.test_days"),
        ("only clicks", {}, "split.test_days"),
        ("one row", {}, "split.test_days"),
        ("no row", {}, "split.test_days"),
        ("no row", {"by": "fraction"}, "lower split.train"),
        ("only clicks", {"by": "leave_last_out"}, "add the section `negatives`"),
    ],
)
def test_a_first_model_is_not_promoted_by_a_test_day_that_measures_nothing(
    tmp_path: Path,
    reference: ReferenceScores,
    without_workflow: None,
    kind: str,
    split: dict[str, str],
    remedy: str,
) -> None:
    config = publish_lake(tmp_path / "lake", reference)
    config = config.model_copy(update={"split": config.split.model_copy(update=split)})
    replace_test_day(config, reference, kind)
    with pytest.raises(DataError, match=rf"so m2 cannot become the first champion\n.*{remedy}"):
        evaluate_model(RunContext("test", config, DAY_AFTER))
    assert champion_as_of(LakePaths(config.lake), "toy", DAY_AFTER) is None


def test_lists_without_any_entry_are_not_published(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reference: ReferenceScores, without_workflow: None
) -> None:
    config = publish_lake(tmp_path / "lake", reference)
    for job in (evaluate_model, build_candidates):
        job(RunContext("test", config, RUN_DATE))
    score_lists = score_stage.score_lists
    monkeypatch.setattr(score_stage, "score_lists", lambda *inputs: score_lists(*inputs).slice(0, 0))
    with pytest.raises(DataError, match=r"none of the \d+ users has an item in a list"):
        score_daily(RunContext("test", config, RUN_DATE))
    assert not is_published(LakePaths(config.lake).recommendations.partition(RUN_DATE))
