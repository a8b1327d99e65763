"""Experiments in production: assignment, lists of both variants and stops."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xxhash
from pydantic import ValidationError
from pyspark.sql import SparkSession

from conf.errors import ConfigError, DataError
from conf.stage_types import ServingExperiment
from conf.types import Config
from jobs import build_features, features_of_run
from jobs.build_candidates import run as build_candidates
from jobs.check_lists import run as check_lists
from jobs.checks import check_config
from jobs.measure_recommendations import run as measure_recommendations
from jobs.score_daily import run as score_daily
from scoring.evaluation.experiment_measures import measure_experiment
from scoring.model import context_features
from scoring.model.experiment import hash_limit, read_treatment, with_variants
from scoring.model.model_info import read_model_info
from spark.choose_workers import stay_in_process
from spark.rows import frame_of, table_of
from storage import file_io
from storage.feature_spec import dumps
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.scoring.reference_scores import CONTEXT, SPEC, ReferenceScores, logistic_probabilities, write_model
from tests.scoring.scoring_lake import (
    DAY_AFTER,
    LOG,
    RUN_DATE,
    WORKFLOW,
    EncodedContext,
    make_config,
    next_day,
    publish_lake,
    write_table,
)
from tests.scoring.test_jobs import read_rows
from training.registry import mlflow_mirror
from training.registry.overrides import OverrideRequest, roll_back
from training.registry.refits import refit_name
from training.registry.served_experiments import (
    ExperimentStop,
    read_stops,
    record_stop,
    served_experiment,
)
from training.registry.versions import ChampionDecision, record_decision

OTHER = "w2"
PROMOTED, REJECTED = "2026-01-02", "2026-01-03"


def experiment_of(**settings: Any) -> ServingExperiment:
    return ServingExperiment.model_validate({"name": "second", "share": 0.5, "start": RUN_DATE, **settings})


def with_experiment(config: Config, **settings: Any) -> Config:
    serving = config.serving.model_copy(update={"experiment": experiment_of(**settings)})
    return config.model_copy(update={"serving": serving})


def context(config: Config, run_date: str = RUN_DATE, spark: SparkSession | None = None) -> RunContext:
    return RunContext("test", config, run_date, open_session=lambda _: spark)


@pytest.fixture(autouse=True)
def without_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_mirror, "set_aliases", lambda *_: None)
    monkeypatch.setattr(context_features, "load_local", lambda *_: EncodedContext())


@pytest.fixture(scope="module")
def config(reference: ReferenceScores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Config]:
    """A lake with the champion m1, the challenger m2 that was not promoted, and candidates of RUN_DATE.

    The model m3 has the weights of m1 and another workflow, whose users are half as old.
    """
    config = publish_lake(tmp_path_factory.mktemp("lake"), reference)
    lake = LakePaths(config.lake)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_mirror, "set_aliases", lambda *_: None)
        record_decision(lake, "toy", PROMOTED, ChampionDecision("m1", None, True, "m1", "the first"))
        record_decision(lake, "toy", REJECTED, ChampionDecision("m2", "m1", False, "m1", "worse"))
        spec = replace(SPEC, workflow_version=OTHER)
        file_io.replace_text(lake.feature_spec(OTHER), dumps(spec))
        write_model(Path(lake.models("toy")) / "m3", version="m3", spec=spec)
        write_table(lake.users(OTHER).partition(RUN_DATE), pa.Table.from_pandas(younger(reference.users)))
        items = reference.items.drop(columns="item_index")
        write_table(lake.items(OTHER).partition(RUN_DATE), pa.Table.from_pandas(items))
        for date in (RUN_DATE, DAY_AFTER):
            build_candidates(context(config, date))
        yield config


def younger(users: pd.DataFrame) -> pd.DataFrame:
    return users.assign(age=(users.age / 2).astype(np.float32))


def variant_by_oracle(user: str, experiment: ServingExperiment) -> str:
    salted = f"{experiment.salt or experiment.name}:{user}".encode()
    signed = int(np.array(xxhash.xxh64_intdigest(salted, 42), np.uint64).view(np.int64))
    return "treatment" if (signed + 2**63) / 2**64 < experiment.share else "control"


def lists_of(config: Config, date: str = RUN_DATE) -> Any:
    return read_rows(LakePaths(config.lake).recommendations.partition(date))


def published_bytes(config: Config) -> tuple[Any, ...]:
    partition = LakePaths(config.lake).recommendations.partition(RUN_DATE)
    manifest = read_manifest(partition)
    content = b"".join(Path(path).read_bytes() for path in data_files(partition, manifest))
    facts = {name: value for name, value in manifest.facts.items() if name != "scored_at"}
    return content, manifest.schema, manifest.inputs, facts


@pytest.mark.parametrize("share", [0.02, 0.5, 0.875])
def test_assignment_equals_an_oracle_in_spark_and_in_arrow(spark: SparkSession, share: float) -> None:
    users = [*(f"user {number}" for number in range(5_000)), "ü", "", "a:b", "\u2028", "日本"]
    table = pa.table({"user_key": users, "n": list(range(len(users)))})
    experiment = experiment_of(share=share)
    assigned: Any = with_variants(table, "user_key", experiment, ["n", "user_key"])
    expected = [variant_by_oracle(user, experiment) for user in users]
    by_number = assigned.sort_by("n")
    assert by_number["user_key"].to_pylist() == users
    assert by_number["variant"].to_pylist() == expected
    if share == 0.5:
        frame = frame_of(spark, table).repartition(3)
        by_spark = table_of(with_variants(frame, "user_key", experiment, ["n", "user_key"]))
        assert by_spark.sort_by("n")["variant"].to_pylist() == expected
    deviation = np.sqrt(len(users) * share * (1 - share))
    assert abs(expected.count("treatment") - len(users) * share) < 4 * deviation


def test_experiments_with_different_salts_choose_independently() -> None:
    users = [f"u{number}" for number in range(20_000)]
    table = pa.table({"user_key": users})
    first = treated(table, experiment_of(name="one", share=0.3))
    second = treated(table, experiment_of(name="two", share=0.4))
    assert abs((first & second).mean() - 0.12) < 4 * np.sqrt(0.12 * 0.88 / len(users))
    same = treated(table, experiment_of(name="three", salt="one", share=0.3))
    assert same.tolist() == first.tolist()


def treated(table: pa.Table, experiment: ServingExperiment) -> Any:
    """(N,) bool: which users of a table are in the treatment."""
    assigned: Any = with_variants(table, "user_key", experiment)
    return np.array(assigned["variant"].to_pylist()) == "treatment"


def test_limits_of_extreme_shares_are_int64() -> None:
    for share in (5e-324, 0.5, 1 - 2**-53):
        assert -(2**63) < hash_limit(share) < 2**63
    assert hash_limit(0.5) == 0


@pytest.mark.parametrize("by_spark", [False, True])
def test_variants_have_the_lists_of_their_models(
    spark: SparkSession, config: Config, reference: ReferenceScores, by_spark: bool
) -> None:
    """m2 contradicts m1. All users have exactly one variant, and the lists of the control are unchanged."""
    score_daily(context(config))
    plain = lists_of(config)
    plain_bytes = published_bytes(config)
    assert "variant" not in plain
    tested = with_experiment(config)
    summary = score_daily(context(tested, spark=spark if by_spark else None))
    lists = lists_of(config)
    assert list(lists) == [*plain, "variant"]
    by_user = lists.groupby("user_id").agg({"variant": ["nunique", "first"], "model_version": "nunique"})
    assert set(by_user["variant"]["nunique"]) == set(by_user["model_version"]["nunique"]) == {1}
    assert set(by_user.index) == set(plain.user_id)
    expected = {user: variant_by_oracle(user, experiment_of()) for user in plain.user_id}
    assert dict(by_user["variant"]["first"]) == expected
    assert set(zip(lists.variant, lists.model_version, strict=True)) == {
        ("control", "m1"),
        ("treatment", "m2"),
    }
    of_control = lists[lists.variant == "control"].drop(columns="variant").reset_index(drop=True)
    kept = plain[plain.user_id.map(expected) == "control"].reset_index(drop=True)
    pd.testing.assert_frame_equal(of_control, kept, atol=1e-6)
    of_treatment = lists[lists.variant == "treatment"]
    probability = np.array(
        [
            reference.probabilities[int(row.user_id[1:]), list(reference.items.item_key).index(row.item_id)]
            for row in of_treatment.itertuples()
        ]
    )
    np.testing.assert_allclose(of_treatment.score, 1 - probability, atol=1e-5)
    facts = summary.facts["experiment"]
    users = {name: variant["users"] for name, variant in facts["variants"].items()}
    assert users == pd.Series(expected).value_counts().to_dict()
    score_daily(context(config))
    assert published_bytes(config) == plain_bytes


def test_the_treatment_is_scored_by_features_of_its_own_workflow(
    config: Config, reference: ReferenceScores
) -> None:
    score_daily(context(with_experiment(config, model="m3")))
    lists = lists_of(config)
    of_treatment = lists[lists.variant == "treatment"]
    assert set(of_treatment.workflow_version) == {OTHER}
    assert set(lists[lists.variant == "control"].workflow_version) == {WORKFLOW}
    folder = f"{LakePaths(config.lake).models('toy')}/m3"
    probabilities = logistic_probabilities(folder, younger(reference.users), reference.items)
    items = list(reference.items.item_key)
    expected = [
        probabilities[int(row.user_id[1:]), items.index(row.item_id)] for row in of_treatment.itertuples()
    ]
    np.testing.assert_allclose(of_treatment.score, expected, atol=1e-6)


def test_a_rerun_makes_equal_lists_and_a_changed_share_makes_others(config: Config) -> None:
    published = []
    for settings in ({}, {}, {"share": 0.2}, {"salt": "other"}):
        score_daily(context(with_experiment(config, **settings)))
        published.append(published_bytes(config))
    first, again, *others = published
    assert again == first
    assert len({str(inputs["experiment"]) for _, _, inputs, _ in (first, *others)}) == 3
    assert all(content != first[0] for content, *_ in others)


def test_the_experiment_ends_with_its_dates(config: Config) -> None:
    lake = LakePaths(config.lake)
    for settings, runs in (
        ({"start": RUN_DATE, "end": RUN_DATE}, True),
        ({"start": DAY_AFTER}, False),
        ({"start": PROMOTED, "end": REJECTED, "model": "m2"}, False),
    ):
        assert (served_experiment(with_experiment(config, **settings), lake, RUN_DATE) is not None) == runs


def stopped(config: Config, date: str, name: str = "second") -> None:
    record_stop(LakePaths(config.lake), "toy", ExperimentStop(date, name, "worse", {"ndcg": -0.5}, "now"))


def test_a_stop_gives_all_users_the_control_from_its_date_on(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Lists of dates before the stop are unchanged, and `resume` or a new name starts again."""
    copied = config.model_copy(update={"lake": shutil.copytree(config.lake, tmp_path / "lake").as_posix()})
    tested, lake = with_experiment(copied), LakePaths(copied.lake)
    score_daily(context(tested))
    before = published_bytes(copied)
    stopped(copied, DAY_AFTER)
    stopped(copied, DAY_AFTER)
    stopped(copied, DAY_AFTER, "another")
    score_daily(context(tested))
    assert published_bytes(copied) == before
    summary = score_daily(context(tested, DAY_AFTER))
    lists = lists_of(copied, DAY_AFTER)
    assert set(lists.variant) == {"control"}
    assert set(lists.model_version) == {"m1"}
    assert "the control serves all users, because it was stopped on 2026-01-06: worse" in caplog.text
    assert list(summary.facts["experiment"]["variants"]) == ["control"]
    check_lists(context(tested, DAY_AFTER))
    for settings in ({"name": "third"}, {"resume": DAY_AFTER}):
        score_daily(context(with_experiment(copied, **settings), DAY_AFTER))
        assert set(lists_of(copied, DAY_AFTER).variant) == {"control", "treatment"}
    late = served_experiment(with_experiment(copied, resume="2026-01-07"), lake, DAY_AFTER)
    assert late is not None
    assert late.folder is None
    assert [stop.experiment for stop in read_stops(lake, "toy", "2027-01-01")] == ["second", "another"]


def test_a_promoted_or_withdrawn_model_ends_the_treatment(config: Config, tmp_path: Path) -> None:
    copied = config.model_copy(update={"lake": shutil.copytree(config.lake, tmp_path / "lake").as_posix()})
    lake = LakePaths(copied.lake)
    tested = with_experiment(copied)
    record_decision(lake, "toy", DAY_AFTER, ChampionDecision("m2", "m1", True, "m2", "better now"))
    for date, reason in ((RUN_DATE, None), (DAY_AFTER, "its model m2 is the champion")):
        served = served_experiment(tested, lake, date)
        assert served is not None
        assert served.idle_because == reason
    refit = Path(lake.models(refit_name("toy"))) / "r2"
    write_model(refit, version="r2")
    description = file_io.read_json(f"{refit}/model.json")
    file_io.replace_json(f"{refit}/model.json", {**description, "refit_of": "m2"})
    roll_back(lake, "toy", OverrideRequest("2026-01-07", "me", "worse"))
    for model in ("challenger", "r2"):
        served = served_experiment(with_experiment(copied, model=model), lake, "2026-01-07")
        assert served is not None
        assert served.idle_because is not None
        assert "m2 was withdrawn" in served.idle_because
    before = served_experiment(with_experiment(copied, model="r2"), lake, RUN_DATE)
    assert before is not None
    assert before.folder == str(refit)


def test_later_trainings_do_not_change_the_challenger(config: Config, tmp_path: Path) -> None:
    copied = config.model_copy(update={"lake": shutil.copytree(config.lake, tmp_path / "lake").as_posix()})
    lake = LakePaths(copied.lake)
    for date in (RUN_DATE, DAY_AFTER):
        record_decision(lake, "toy", date, ChampionDecision("m3", "m1", False, "m1", "worse"))
    for start, version in ((RUN_DATE, "m2"), (DAY_AFTER, "m3")):
        served = served_experiment(with_experiment(copied, start=start), lake, "2026-01-20")
        assert served is not None
        assert served.version == version


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"model": "m9"}, "there is no complete model m9"),
        ({"start": REJECTED}, "the gate promoted every challenger"),
        ({"model": "m4"}, "needs features of workflow w4"),
    ],
)
def test_a_model_that_cannot_serve_is_refused_before_any_work(
    config: Config, settings: dict[str, Any], message: str
) -> None:
    spec = replace(SPEC, workflow_version="w4")
    write_model(Path(LakePaths(config.lake).models("toy")) / "m4", version="m4", spec=spec)
    score_daily(context(config))
    before = published_bytes(config)
    with pytest.raises(ConfigError, match=message):
        score_daily(context(with_experiment(config, **settings)))
    assert published_bytes(config) == before


@pytest.mark.parametrize(
    "sections, message",
    [
        ({"score": {"k": 5, "blend": "auto", "context": CONTEXT}}, "score.blend=none"),
        ({"measure": {"against": "test_split"}}, "measure.against=next_day"),
        ({"keys": None, "candidates": {}, "scopes": {}}, "section `keys`"),
    ],
)
def test_configurations_that_cannot_compare_variants_are_refused(
    tmp_path: Path, sections: dict[str, Any], message: str
) -> None:
    sources = {"candidates": {"sources": [{"source": "popular", "n": 9}]}}
    config = with_experiment(make_config(tmp_path, **{**sources, **sections}))
    with pytest.raises(ConfigError, match=message):
        check_config(config)


def test_the_log_of_an_experiment_needs_days_or_times(tmp_path: Path) -> None:
    config = with_experiment(make_config(tmp_path))
    check_config(config)
    one_table = config.log.model_copy(update={"path": "{lake}/raw/clicks.tsv"})
    with pytest.raises(ConfigError, match=r"has no \{date\}, and rows have no log\.event_time") as refused:
        check_config(config.model_copy(update={"log": one_table}))
    assert refused.value.remedy == "store the log by day, set log.event_time, or remove serving.experiment"


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"end": "2026-01-01"}, "is before start"),
        ({"resume": RUN_DATE}, "must be after start"),
        ({"end": DAY_AFTER, "resume": "2026-01-07"}, "not after end"),
        ({"share": 1.0}, "less than 1"),
        ({"stop_below": 0.0}, "less than 0"),
        ({"salt": "a:b"}, "name of a folder"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        experiment_of(**settings)


def test_lists_are_checked_against_the_experiment(config: Config) -> None:
    score_daily(context(with_experiment(config)))
    assert check_lists(context(with_experiment(config))).facts["model_version"] == "m1"
    for other in (config, with_experiment(config, share=0.1)):
        with pytest.raises(DataError, match="experiment"):
            check_lists(context(other))


def measured(config: Config, **settings: Any) -> dict[str, Any]:
    """The facts of the experiment of RUN_DATE."""
    tested = with_experiment(config, **settings)
    facts = measure_recommendations(context(tested)).facts
    stored = read_manifest(LakePaths(config.lake).measures.partition(RUN_DATE)).facts
    assert stored["experiment"] == facts["experiment"]
    return dict(facts["experiment"])


def test_variants_are_measured_alike_by_spark_and_in_process(
    spark: SparkSession, config: Config, reference: ReferenceScores
) -> None:
    score_daily(context(with_experiment(config)))
    in_process = measured(config)
    tested = context(with_experiment(config), spark=spark)
    published = read_manifest(tested.lake.recommendations.partition(RUN_DATE))
    rows = next_day(reference).query("clicked == 1")[["user", "item"]].drop_duplicates()
    rows.columns = ["user_key", "item_key"]
    clicked = frame_of(spark, pa.Table.from_pandas(rows, preserve_index=False))
    assert measure_experiment(tested, published, clicked) == in_process
    clicks = next_day(reference)
    clicks = clicks[clicks.clicked == 1].drop_duplicates(["user", "item"])
    lists = lists_of(config)
    hits = lists.merge(clicks, left_on=["user_id", "item_id"], right_on=["user", "item"])
    for variant, figures in in_process["variants"].items():
        users = set(lists[lists.variant == variant].user_id)
        assert figures["users"] == len(users)
        assert figures["clicked"] == len(users & set(clicks.user))
        hit = users & set(hits.user)
        assert figures["hit_rate"] == pytest.approx(len(hit) / figures["clicked"])
        first = hits[hits.user.isin(users)].groupby("user").position.min()
        assert figures["mrr"] == pytest.approx((1 / first).sum() / figures["clicked"], abs=1e-8)
        assert figures["coverage"] == lists[lists.variant == variant].item_id.nunique() / 23
    assert in_process["total"]["days"] == [RUN_DATE]
    assert in_process["total"]["differences"] == in_process["differences"]
    assert in_process["stops_on"] is None


def test_lists_without_a_treatment_have_no_figures_of_variants(config: Config) -> None:
    score_daily(context(config))
    assert "experiment" not in measure_recommendations(context(with_experiment(config))).facts


def test_lists_of_an_experiment_that_was_removed_are_a_warning(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    """Clicks on the lists of the last date arrive a day later, when the section may be missing already."""
    score_daily(context(with_experiment(config, end=RUN_DATE)))
    missing = f"experiment second: its lists of {RUN_DATE} are not measured"
    for removed in (config, with_experiment(config, name="third")):
        caplog.clear()
        assert "experiment" not in measure_recommendations(context(removed)).facts
        assert missing in caplog.text
    caplog.clear()
    ended = measure_recommendations(context(with_experiment(config, end=RUN_DATE)))
    assert "experiment" in ended.facts
    assert missing not in caplog.text


def test_a_day_without_clicks_compares_no_variants(config: Config, tmp_path: Path) -> None:
    copied = config.model_copy(update={"lake": shutil.copytree(config.lake, tmp_path / "lake").as_posix()})
    raw = Path(LakePaths(copied.lake).raw.partition(DAY_AFTER).path) / "clicks.tsv"
    raw.write_text("".join(f"0{line[1:]}\n" for line in raw.read_text().splitlines()))
    tested = with_experiment(copied, stop_below=-0.1, min_users=1)
    score_daily(context(tested))
    summary = measure_recommendations(context(tested))
    summary.completed("measure_recommendations", RUN_DATE, {}, 0).line()  # all values are JSON
    facts = summary.facts["experiment"]
    for figures in facts["variants"].values():
        assert figures["users"] > 0
        assert figures["clicked"] == 0
        assert figures["hit_rate"] is figures["ndcg"] is figures["mrr"] is None
    assert "ndcg" not in facts["differences"]
    assert facts["sample_ratio_p"]["clicked"] is None
    assert facts["stops_on"] is None


def test_dates_with_other_models_lengths_or_variants_are_left_out(config: Config, tmp_path: Path) -> None:
    copied = config.model_copy(update={"lake": shutil.copytree(config.lake, tmp_path / "lake").as_posix()})
    lake = LakePaths(copied.lake)
    changes: dict[str, dict[str, Any]] = {
        "2026-01-01": {"k": 3},
        "2026-01-02": {"salt": "other:"},
        "2026-01-03": {"models": {"control": "m0", "treatment": "m2"}},
        "2026-01-04": {},  # of a release whose sums do not name k and the salt
    }
    for other, change in changes.items():
        table = lake.experiments("second")
        score_daily(context(with_experiment(copied)))
        measured(copied)
        own = read_manifest(table.partition(RUN_DATE))
        folder = Path(table.partition(other).path)
        shutil.copytree(table.partition(RUN_DATE).path, folder)
        path = f"{folder}/_MANIFEST.json"
        manifest = json.loads(json.dumps(file_io.read_json(path)).replace(RUN_DATE, other))
        manifest["facts"] |= change
        if not change:
            del manifest["facts"]["k"], manifest["facts"]["salt"]
        file_io.replace_json(path, manifest)
        for entry in own.files:
            source, target = (Path(table.partition(dt).file(entry.path)) for dt in (RUN_DATE, other))
            target = Path(str(target).replace(RUN_DATE, other))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    facts = measured(copied, start="2026-01-01", model="m2")["total"]
    assert (facts["left_out"], facts["days"]) == ([*changes][:3], ["2026-01-04", RUN_DATE])
    assert facts["variants"]["control"]["users"] == 2 * measured(copied)["variants"]["control"]["users"]
    later = measured(copied, start="2026-01-01", model="m2", resume=RUN_DATE)["total"]
    assert (later["left_out"], later["days"]) == ([], [RUN_DATE])


def test_the_guard_rail_stops_the_dates_after_all_published_lists(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copied = config.model_copy(update={"lake": shutil.copytree(config.lake, tmp_path / "lake").as_posix()})
    lake = LakePaths(copied.lake)
    guarded: dict[str, Any] = {"stop_below": -0.05, "min_users": 10}
    score_daily(context(copied))
    click_first_places(copied)
    tested = with_experiment(copied, **guarded)
    score_daily(context(tested))
    assert measured(copied, **{**guarded, "min_users": 1000})["stops_on"] is None
    assert measured(copied, min_users=10)["stops_on"] is None
    facts = measured(copied, **guarded)
    assert facts["total"]["differences"]["ndcg"]["relative_high"] < -0.05
    assert facts["stops_on"] == "2026-01-07"
    assert "experiment second stops on 2026-01-07" in caplog.text
    (stop,) = read_stops(lake, "toy", "2026-01-07")
    assert stop.figures["variants"] == facts["total"]["variants"]
    assert measured(copied, **guarded)["stops_on"] == "2026-01-07"
    assert read_stops(lake, "toy", "2027-01-01") == [stop]
    for date, idle in ((RUN_DATE, False), (DAY_AFTER, False), ("2026-01-07", True), ("2026-01-09", True)):
        served = served_experiment(tested, lake, date)
        assert served is not None
        assert (served.folder is None) == idle
    score_daily(context(tested, DAY_AFTER))
    assert set(lists_of(copied, DAY_AFTER).variant) == {"control", "treatment"}
    # A resumed experiment ignores the stop from the date of the stop on. Before this date, it stays stopped.
    for resume, stops_on in (
        ("2026-01-06", "2026-01-07"),
        ("2026-01-07", None),
        ("2026-01-08", None),
    ):
        assert measured(copied, **guarded, resume=resume)["stops_on"] == stops_on, resume
    assert read_stops(lake, "toy", "2027-01-01") == [stop]  # figures from before `resume` stop nothing


def test_figures_from_the_date_of_the_resumption_on_stop_an_experiment_again(
    config: Config, tmp_path: Path
) -> None:
    copied = config.model_copy(update={"lake": shutil.copytree(config.lake, tmp_path / "lake").as_posix()})
    stopped(copied, RUN_DATE)
    resumed: dict[str, Any] = {"start": "2026-01-04", "resume": RUN_DATE, "stop_below": -0.05}
    score_daily(context(copied))
    click_first_places(copied)
    score_daily(context(with_experiment(copied, **resumed)))
    assert measured(copied, **resumed, min_users=1000)["stops_on"] is None
    assert measured(copied, **resumed, min_users=10)["stops_on"] == "2026-01-07"
    stops = read_stops(LakePaths(copied.lake), "toy", "2027-01-01")
    assert [stop.run_date for stop in stops] == [RUN_DATE, "2026-01-07"]


def click_first_places(config: Config) -> None:
    """The users click the first item of their lists of RUN_DATE, so the model of these lists is the best."""
    best = lists_of(config).query("position == 1").assign(clicked=1.0)
    raw = Path(LakePaths(config.lake).raw.partition(DAY_AFTER).path) / "clicks.tsv"
    clicks = best.rename(columns={"user_id": "user", "item_id": "item"}).reindex(columns=LOG, fill_value=1.0)
    clicks.to_csv(raw, sep="\t", header=False, index=False)


def test_users_that_do_not_fit_the_share_are_a_warning(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    score_daily(context(with_experiment(config)))
    job = context(with_experiment(config))
    stay_in_process(job, 0)
    published = read_manifest(job.lake.recommendations.partition(RUN_DATE))
    clicked = pa.table({"user_key": ["u001"], "item_key": ["i001"]})
    facts = measure_experiment(job, published, clicked)
    assert facts is not None
    assert facts["sample_ratio_p"]["users"] > 0.001
    assert "sample ratio mismatch" not in caplog.text
    of_other_share = {**published.facts["experiment"], "share": 0.02}
    wrong = replace(published, facts={**published.facts, "experiment": of_other_share})
    facts = measure_experiment(job, wrong, clicked)
    assert facts is not None
    assert facts["sample_ratio_p"]["users"] < 0.001
    assert "sample ratio mismatch: the numbers of users (users) are {'control': " in caplog.text


def test_a_control_with_newer_days_is_a_warning(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    job = context(with_experiment(config))
    control = read_model_info(f"{job.lake.models('toy')}/m1")
    read_treatment(job, control)
    assert "refit" not in caplog.text
    refit = replace(control, description={**control.description, "refit_of": "m1"})
    read_treatment(job, refit)
    assert "the control is a refit, which was also trained on validation and test days" in caplog.text


@pytest.mark.parametrize("run_date, other", [(RUN_DATE, OTHER), (REJECTED, None)])
def test_build_features_also_computes_features_of_the_treatment(
    config: Config, monkeypatch: pytest.MonkeyPatch, run_date: str, other: str | None
) -> None:
    """tests/etl/test_build.py compares these features with an oracle."""
    called: list[Any] = []

    def build(*arguments: Any) -> None:
        called.extend(arguments)
        raise InterruptedError

    monkeypatch.setattr(features_of_run, "build", build)
    monkeypatch.setattr(features_of_run, "raw_days", lambda *_: {})
    with pytest.raises(InterruptedError):
        build_features.run(context(with_experiment(config, model="m3"), run_date))
    assert (called[4], called[6]) == (WORKFLOW, other)
