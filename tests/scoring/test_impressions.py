"""The log of what was shown: matching with lists, reasons, click rates by position, and its formats."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import fastavro
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyarrow import orc
from pydantic import ValidationError
from pyspark.sql import SparkSession

from conf.errors import ConfigError, DataError
from conf.list_types import ListRules
from conf.load import config_digest
from conf.names import SPARK_TABLE
from conf.plugins import READER
from conf.raw_types import Column
from conf.stage_types import Impressions
from conf.types import Config, EventTime
from etl.raw.files import find_raw
from etl.readers import text
from etl.readers.impressions import read_impressions, unreadable
from jobs.build_candidates import run as build_candidates
from jobs.chain.run_chain import remark
from jobs.checks import check_config
from jobs.measure_recommendations import run as measure_recommendations
from jobs.score_daily import run as score_daily
from scoring.evaluation.impression_measures import (
    estimate_explored,
    find_impressions,
    measure_impressions,
    why_unknown,
)
from scoring.evaluation.prediction_quality import UNIT
from scoring.model import context_features
from spark.rows import frame_of, query, with_hash
from spark.workers import LocalWorkers
from storage.job_summary import JobSummary
from storage.manifest import read_manifest
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.scoring.reference_scores import ReferenceScores
from tests.scoring.scoring_lake import DAY_AFTER, RUN_DATE, EncodedContext, next_day, publish_lake
from tests.scoring.test_experiments import with_experiment
from tests.scoring.test_jobs import read_rows
from training.registry import mlflow_mirror
from training.registry.versions import ChampionDecision, record_decision

COLUMNS = {"user": "who", "item": "what", "position": "place"}
OPTIONAL = {"variant": "group", "model_version": "model"}


def with_log(config: Config, **settings: Any) -> Config:
    values = {"path": "{lake}/shown/{date}.*", "format": "csv", **COLUMNS, "replicates": 200, **settings}
    impressions = Impressions.model_validate(values)
    serving = config.serving.model_copy(update={"impressions": impressions})
    return config.model_copy(update={"serving": serving})


def context(config: Config, spark: SparkSession | None = None) -> RunContext:
    return RunContext("test", config, RUN_DATE, open_session=lambda _: spark)


@pytest.fixture(autouse=True)
def without_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_mirror, "set_aliases", lambda *_: None)
    monkeypatch.setattr(context_features, "load_local", lambda *_: EncodedContext())


@pytest.fixture(scope="module")
def config(reference: ReferenceScores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Config]:
    """A lake with lists of the champion m1 and of the rejected challenger m2 for RUN_DATE."""
    config = publish_lake(tmp_path_factory.mktemp("lake"), reference)
    lake = LakePaths(config.lake)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_mirror, "set_aliases", lambda *_: None)
        patch.setattr(context_features, "load_local", lambda *_: EncodedContext())
        record_decision(lake, "toy", "2026-01-02", ChampionDecision("m1", None, True, "m1", "the first"))
        record_decision(lake, "toy", "2026-01-03", ChampionDecision("m2", "m1", False, "m1", "worse"))
        build_candidates(context(config))
        score_daily(context(with_experiment(config)))
        yield config


def lists_of(config: Config) -> pd.DataFrame:
    return read_rows(LakePaths(config.lake).recommendations.partition(RUN_DATE)).reset_index(drop=True)


def logged_rows(config: Config) -> tuple[pd.DataFrame, dict[str, int], pd.DataFrame]:
    """Rows of a log, the number of impressions that fit no list by reason, and the entries that were shown."""
    lists = lists_of(config)
    draw = np.random.default_rng(3)
    shown = lists[draw.random(len(lists)) < 0.7 / lists.position]
    fits = pd.DataFrame(
        {
            "who": shown.user_id,
            "what": shown.item_id,
            "place": shown.position.astype(str),
            "group": shown.variant,
            "model": shown.model_version,
        }
    )
    first = fits.iloc[0].to_dict()
    other = {"control": "treatment", "treatment": "control"}[first["group"]]
    listed = set(lists[lists.user_id == first["who"]].item_id)
    unlisted = sorted(set(lists.item_id) - listed)[0]
    wrong = [
        {**first, "place": "first"},
        {**first, "who": "stranger", "place": "0"},
        {**first, "who": ""},
        {**first, "who": "stranger"},
        {**first, "model": "m0"},
        {**first, "model": ""},
        {**first, "group": other},
        {**first, "what": unlisted},
        {**first, "place": "9"},
    ]
    reasons = {"invalid": 3, "user": 1, "model_version": 2, "variant": 1, "item": 1, "position": 1}
    repeated = fits.iloc[:4]
    return pd.concat([fits, pd.DataFrame(wrong), repeated], ignore_index=True), reasons, shown


def write_log(config: Config, rows: pd.DataFrame, name: str) -> None:
    folder = Path(config.lake) / "shown"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = folder / f"{DAY_AFTER}.{name}"
    if name == "csv.gz":
        path.write_bytes(gzip.compress(rows.to_csv(index=False).encode()))
    elif name == "tsv":
        rows.to_csv(path, index=False, sep="\t")
    elif name == "parquet":
        rows.replace("", None).to_parquet(path, index=False)
    else:
        lines = rows.replace("", None).to_dict("records")
        numbers = [{**row, "place": int(row["place"]) if row["place"] != "first" else 1.5} for row in lines]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in numbers))


def facts_of(config: Config) -> dict[str, Any]:
    facts = measure_recommendations(context(config)).facts
    stored = read_manifest(LakePaths(config.lake).measures.partition(RUN_DATE)).facts
    assert stored["impressions"] == facts["impressions"]
    return dict(facts["impressions"])


def test_impressions_are_compared_with_lists_and_clicks(
    spark: SparkSession, config: Config, reference: ReferenceScores, caplog: pytest.LogCaptureFixture
) -> None:
    rows, reasons, shown = logged_rows(config)
    write_log(config, rows, "csv.gz")
    logged = with_log(config, **OPTIONAL)
    facts = facts_of(logged)
    lists = lists_of(config)
    clicks = next_day(reference).query("clicked == 1")[["user", "item"]].drop_duplicates()
    clicks.columns = ["user_id", "item_id"]
    hits, of_lists = shown.merge(clicks), lists.merge(clicks)
    assert facts["day"] == DAY_AFTER
    assert (facts["rows"], facts["repeated"]) == (len(rows), 4)
    assert facts["impressions"] == len(shown) + sum(reasons.values())
    assert facts["unmatched"] == reasons
    assert facts["unmatched_share"] == sum(reasons.values()) / facts["impressions"]
    assert (facts["users"], facts["users_shown"]) == (lists.user_id.nunique(), shown.user_id.nunique())
    assert (facts["entries"], facts["entries_shown"]) == (len(lists), len(shown))
    assert facts["clicked_not_shown"] == len(of_lists) - len(hits) > 0
    for variant, figures in facts["variants"].items():
        of_shown, of_hits = (
            frame if variant == "all" else frame[frame.variant == variant] for frame in (shown, hits)
        )
        assert (figures["shown"], figures["clicked"]) == (len(of_shown), len(of_hits))
        assert [place["position"] for place in figures["positions"]] == [1, 2, 3, 4, 5]
        for place in figures["positions"]:
            numbers = (
                (of_shown.position == place["position"]).sum(),
                (of_hits.position == place["position"]).sum(),
            )
            assert (place["shown"], place["clicked"]) == numbers
            assert place["click_rate"] == pytest.approx(numbers[1] / numbers[0])
    assert set(facts["variants"]) == {"all", "control", "treatment"}
    counted = f"9 of {facts['impressions']} impressions of 2026-01-06 fit no list (invalid: 3, user: 1"
    assert counted in caplog.text
    job = context(logged, spark)
    clicked = frame_of(spark, pa.Table.from_pandas(clicks, preserve_index=False)).toDF("user_key", "item_key")
    published = read_manifest(job.lake.recommendations.partition(RUN_DATE))
    assert measure_impressions(job, published, clicked, find_impressions(job)) == facts


def test_the_terminal_shows_how_much_was_shown_and_the_first_click_rate() -> None:
    first = {"position": 1, "click_rate": 0.125}
    shown = {"entries": 80, "entries_shown": 60, "variants": {"all": {"positions": [first]}}}
    summary = JobSummary(None, job="measure_recommendations", facts={"impressions": shown})
    assert remark(summary).endswith("75% of entries shown, 12.5% of the first clicked")
    nothing = replace(summary, facts={"impressions": {**shown, "entries_shown": 0, "variants": {}}})
    assert remark(nothing).endswith("0% of entries shown")


def test_intervals_are_those_of_a_bootstrap_over_users(config: Config) -> None:
    rows, _, shown = logged_rows(config)
    write_log(config, rows, "csv.gz")
    total = facts_of(with_log(config, replicates=2000))["variants"]["all"]
    clicks = pd.read_csv(
        Path(config.lake) / f"raw/dt={DAY_AFTER}/clicks.tsv", sep="\t", header=None, usecols=[0, 1, 2]
    )
    pairs = set(clicks[clicks[0] == 1][[1, 2]].itertuples(index=False, name=None))
    clicked = [pair in pairs for pair in zip(shown.user_id, shown.item_id, strict=True)]
    users = shown.assign(clicked=clicked).groupby("user_id").clicked.agg(["sum", "count"])
    weights = np.random.default_rng(1).poisson(1, (20_000, len(users)))
    rates = (weights @ users["sum"].to_numpy()) / (weights @ users["count"].to_numpy())
    low, high = np.quantile(rates, [0.025, 0.975])
    assert total["low"] == pytest.approx(low, abs=0.1 * (high - low))
    assert total["high"] == pytest.approx(high, abs=0.1 * (high - low))


@pytest.mark.parametrize("name, form", [("tsv", "csv"), ("parquet", "parquet"), ("jsonl", "jsonl")])
def test_all_formats_have_the_same_figures(config: Config, name: str, form: str) -> None:
    rows, _, _ = logged_rows(config)
    write_log(config, rows, "csv.gz")
    expected = facts_of(with_log(config, **OPTIONAL))
    write_log(config, rows, name)
    separator = {"separator": "\t"} if name == "tsv" else {}
    assert facts_of(with_log(config, **OPTIONAL, format=form, **separator)) == expected


def test_without_optional_columns_neither_variant_nor_version_is_compared(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    rows, reasons, shown = logged_rows(config)
    write_log(config, rows, "csv.gz")
    facts = facts_of(with_log(config, max_unmatched_share=0.5))
    assert facts["unmatched"] == {name: reasons[name] for name in ("invalid", "user", "item", "position")}
    assert facts["entries_shown"] == len(shown)
    assert facts["repeated"] == 4 + 3  # the rows with another variant or version repeat the first
    assert "fit no list" not in caplog.text


@pytest.mark.parametrize(
    "name, content, form, error",
    [
        (
            "csv",
            "who,what\nu,i\n",
            "csv",
            r"has no columns \['place'\]",
        ),
        (
            "csv",
            "who,what,place\nu,i,1\nu,i,1,2\n",
            "csv",
            "line 3 has 4 fields separated by \",\", but must have 3: 'u,i,1,2'",
        ),
        ("csv", "", "csv", r"is empty \(0 bytes\)"),
        (
            "jsonl",
            '{"who": 1, "what": 2, "place": 1}\n[1]\n',
            "jsonl",
            r"line 2 is not a JSON object: '",
        ),
        (
            "jsonl",
            '{"who": 1, "what": 2, "place": 1}\n\n',
            "jsonl",
            "line 2 is not a JSON object: ''",
        ),
        ("jsonl", '{"who": 1}\n', "jsonl", r"no line has the fields \['place', 'what'\]"),
        ("parquet", "text", "parquet", "not a Parquet file"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_with_its_path(
    config: Config, name: str, content: str, form: str, error: str
) -> None:
    write_log(config, pd.DataFrame({"who": ["u"]}), "csv.gz")
    path = Path(config.lake) / "shown" / f"{DAY_AFTER}.{name}"
    path.write_text(content)
    Path(config.lake, "shown", f"{DAY_AFTER}.csv.gz").unlink()
    with pytest.raises(DataError, match=f"{DAY_AFTER}.{name}.*({error})"):
        measure_recommendations(context(with_log(config, format=form)))


def no_session() -> SparkSession:
    raise AssertionError("reading impressions on one machine needs no session")


def read_log(
    config: Config, folder: Path, name: str, event_time: EventTime | None = None, **settings: Any
) -> list[dict[str, Any]]:
    """The rows of the files `name` in a folder."""
    columns = {"user": "u", "item": "i", "position": "p"}
    changed = with_log(config, path=f"{folder}/{{date}}{name}", **{**columns, **settings})
    if event_time:
        columns_of_log = [*changed.log.columns, Column(name=event_time.column, type="int")]
        log = changed.log.model_copy(update={"event_time": event_time, "columns": columns_of_log})
        changed = changed.model_copy(update={"log": log})
    impressions = changed.serving.impressions
    assert impressions is not None
    raw = find_raw(changed, impressions, "")
    assert raw is not None
    rows: list[dict[str, Any]] = read_impressions(LocalWorkers(1, no_session), changed, raw).to_pylist()
    for row in rows:
        if row["error"] is not None:
            raise unreadable(row["error"])
    return rows


def test_values_without_the_type_of_their_column_are_null(config: Config, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        '{"u": 7.0, "i": "x", "p": 2.0}\n{"u": 7.5, "i": true, "p": 2.5}\n{"u": {"a": 1}, "i": 1, "p": "3"}\n'
    )
    declared = [{"name": "u", "type": "int"}]
    rows = read_log(config, tmp_path, "log", format="jsonl", columns=declared)
    assert [(row["user_key"], row["item_key"], row["position"]) for row in rows] == [
        ("7", "x", 2),
        (None, "true", None),
        (None, "1", 3),
    ]


@pytest.mark.parametrize(
    "users, error",
    [
        ([["a"]], r"the column 'u' (has|is) .*list.*"),
        ([1.5], r"row 1: the value 1\.5 of the column 'u' has no text"),
        ([2.0**53], r"the value 9007199254740992\.0 of the column 'u' has no text"),
    ],
)
def test_parquet_impressions_without_ids_are_errors(
    config: Config, tmp_path: Path, users: list[Any], error: str
) -> None:
    pq.write_table(pa.table({"u": users, "i": ["x"], "p": [1]}), tmp_path / "log")
    with pytest.raises((ConfigError, DataError), match=error):
        read_log(config, tmp_path, "log", format="parquet")


def test_parquet_impressions_have_ids_of_floats_and_exact_timestamps(config: Config, tmp_path: Path) -> None:
    times = pa.array([1_500, -1, None], pa.timestamp("ns", "UTC"))
    columns = {"u": [1_000_001.0, None, float("nan")], "i": ["x"] * 3, "p": [1.0, 2.5, 3.0], "t": times}
    pq.write_table(pa.table(columns), tmp_path / "log")
    timed = {"event_time": EventTime(column="at", unit="s"), "time": "t", "row_column": "shown"}
    rows = read_log(config, tmp_path, "log", format="parquet", **timed)
    assert [(row["user_key"], row["position"], row["event_time"]) for row in rows] == [
        ("1000001", 1, 1),
        (None, None, -1),
        (None, 3, None),
    ]


ROWS = 40
# Rows of a log: user, item, position and time, some of them null. The time has whole seconds.
LOGGED = [
    (f"u{row % 7}" if row % 11 else None, f"i{row % 5}", row % 6 + 1, datetime(2026, 7, 1, row % 24, 30, row))
    for row in range(ROWS)
]


def _texts(rows: Sequence[Sequence[Any]], null: str) -> list[list[str]]:
    return [[null if value is None else str(value) for value in row] for row in rows]


def write_in(form: str, folder: Path, zone: str) -> dict[str, Any]:
    """Writes LOGGED in a format, with local times of a zone; returns the settings that read it."""
    local = [(*row[:3], row[3].replace(tzinfo=UTC).astimezone(ZoneInfo(zone))) for row in LOGGED]
    columns = [{"name": "t", "type": "timestamp"}]
    texts = [(*row[:3], f"{row[3]:%d/%m/%Y %H:%M:%S}") for row in local]
    if form in ("csv", "tsv"):
        declared = [{"name": "t", "type": "timestamp", "format": "%d/%m/%Y %H:%M:%S"}]
        separator = ";" if form == "csv" else "\t"
        lines = ["u;i;p;t"] if form == "csv" else []
        lines += [separator.join(row) for row in _texts(texts, "n/a")]
        (folder / "log.csv").write_text("\n".join(lines) + "\n")
        if form == "tsv":
            strings = [{"name": name, "type": "string"} for name in ("u", "i")]
            declared = [*strings, {"name": "p", "type": "int"}, *declared]
        return {
            "format": form,
            "columns": declared,
            "null_values": ["n/a"],
            "time_zone": zone,
            **({"separator": ";"} if form == "csv" else {}),
        }
    if form == "jsonl":
        objects = [dict(zip("uipt", (*row[:3], row[3].isoformat()), strict=True)) for row in local]
        (folder / "log.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in objects))
        return {"format": form, "columns": columns}
    naive = [(*row[:3], row[3].replace(tzinfo=None)) for row in local]
    table = pa.table(dict(zip("uipt", map(list, zip(*naive, strict=True)), strict=True)))
    table = table.set_column(3, "t", table["t"].cast(pa.timestamp("us")))
    if form == "delta":
        write_deltalake(folder / "log.delta", table)
    elif form == "avro":
        at = {"type": "long", "logicalType": "local-timestamp-micros"}
        kinds = {"u": ["null", "string"], "i": "string", "p": "int", "t": at}
        fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
        with (folder / "log.avro").open("wb") as file:
            schema = {"type": "record", "name": "shown", "fields": fields}
            fastavro.writer(file, schema, table.to_pylist(), sync_interval=100)
    else:
        (orc.write_table if form == "orc" else pq.write_table)(table, folder / f"log.{form}")
    return {"format": form, "columns": columns, "time_zone": zone}


# A line of `displays` has several rows: tests/etl/readers/test_displays.py.
@pytest.mark.parametrize("form", sorted({*READER.built_in()} - {SPARK_TABLE, "displays"}))
def test_all_formats_have_the_same_rows(config: Config, tmp_path: Path, form: str) -> None:
    settings = write_in(form, tmp_path, "Europe/Berlin")
    timed = {"event_time": EventTime(column="at", unit="s"), "time": "t", "row_column": "shown"}
    name = "log.delta" if form == "delta" else "log.*"
    rows = read_log(config, tmp_path, name, **settings, **timed)
    assert [tuple(row.values())[:3] for row in rows] == [row[:3] for row in LOGGED]
    of_rows = [int(row[3].replace(tzinfo=UTC).timestamp()) * 10**6 for row in LOGGED]
    assert [row["event_time"] for row in rows] == of_rows


def test_a_broken_line_has_its_number_in_the_file(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "FILE_SPLIT_BYTES", 100)
    lines = ["u,i,p", *(f"user{row},item{row},{row}" for row in range(100))]
    lines[83] = "one,field,too,many"
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"log: line 84 has 4 fields .*'one,field,too,many'") as refused:
        read_log(config, tmp_path, "log")
    assert "serving.impressions" in refused.value.remedy


def test_a_day_without_a_log_is_a_warning(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    shutil.rmtree(Path(config.lake) / "shown", ignore_errors=True)
    assert "impressions" not in measure_recommendations(context(with_log(config))).facts
    assert f"there is no file at {config.lake}/shown/{DAY_AFTER}.*" in caplog.text


def test_settings_that_do_not_fit_are_refused(config: Config) -> None:
    with pytest.raises(ValidationError, match=r"must contain \{date\}"):
        with_log(config, path="{lake}/shown.csv")
    with pytest.raises(ValidationError, match="must differ"):
        with_log(config, item="who")
    with pytest.raises(ValidationError, match="a separator must be one of"):
        with_log(config, separator="x")
    measured = config.measure.model_copy(update={"against": "test_split"})
    with pytest.raises(ConfigError, match=r"serving\.impressions needs measure\.against=next_day"):
        check_config(with_log(config).model_copy(update={"measure": measured}))
    one_table = config.log.model_copy(update={"path": "{lake}/raw/clicks.tsv"})
    undated = with_log(config).model_copy(update={"log": one_table})
    with pytest.raises(ConfigError, match=r"has no \{date\}, and rows have no log\.event_time"):
        check_config(undated)
    with pytest.raises(ConfigError, match=r"serving\.impressions compares the lists of users"):
        check_config(with_log(config).model_copy(update={"keys": None}))


def explored_lists(users: int) -> tuple[pa.Table, pa.Table, float]:
    """Lists with a ranked item and 3 drawn ones, shown entries, and the click rate in the order of scores.

    The positions 2 to 4 are looked at with the probabilities 0.9, 0.5 and 0.2. Position 4 is shown to half of
    the users only. The item with the j-th highest score attracts with 0.6, 0.4 and 0.1.
    """
    draw = np.random.default_rng(12)
    examined, attraction = np.array([0.9, 0.5, 0.2]), np.array([0.6, 0.4, 0.1])
    lists, shown = [], []
    for number in range(users):
        user = f"u{number}"
        lists.append((user, "first", 1, 0.9, "ranked"))
        shown.append((user, "first", 1))
        for place, rank in enumerate(draw.permutation(3)):
            lists.append((user, f"i{rank}", place + 2, 0.5 - 0.1 * rank, "explore"))
            if place < 2 or number % 2:
                shown.append((user, f"i{rank}", int(draw.random() < examined[place] * attraction[rank])))
    lists_names = ["user_key", "item_key", "position", "score", "reason"]
    entries = pa.Table.from_pandas(pd.DataFrame(shown, columns=["user_key", "item_key", "clicked"]))
    rates, shares = examined * attraction, np.array([1, 1, 0.5])
    table = pa.Table.from_pandas(pd.DataFrame(lists, columns=lists_names))
    return table, with_hash(entries, "user_key", UNIT), float(rates @ shares / shares.sum())


def test_the_order_of_scores_is_estimated_from_random_orders(spark: SparkSession, config: Config) -> None:
    lists, shown, truth = explored_lists(4_000)
    settings = with_log(config).serving.impressions
    assert settings is not None
    facts = estimate_explored(lists, shown, settings)
    explored = shown.to_pandas().query("item_key != 'first'")
    assert (facts["shown"], facts["clicked"]) == (10_000, explored.clicked.sum())
    frame = lists.to_pandas().query("reason == 'explore'").merge(explored)
    in_order = frame[frame.item_key == "i" + (frame.position - 2).astype(str)]
    assert facts["by_score"]["value"] == pytest.approx(in_order.clicked.mean())
    assert facts["effective_entries"] == pytest.approx(len(in_order))
    low, high = facts["by_score"]["low"], facts["by_score"]["high"]
    assert low < truth < high < low + 0.06
    assert facts["click_rate"]["value"] == pytest.approx(explored.clicked.mean())
    assert facts["difference"]["low"] > 0
    assert facts["reason"] is None
    assert estimate_explored(frame_of(spark, lists), frame_of(spark, shown), settings) == facts


def test_the_estimate_needs_enough_entries_and_two_positions(config: Config) -> None:
    lists, shown, _ = explored_lists(40)
    settings = with_log(config).serving.impressions
    assert settings is not None
    facts = estimate_explored(lists, shown, settings)
    assert (facts["by_score"], facts["difference"]) == (None, None)
    assert facts["reason"] == "there are fewer effective entries than min_effective_entries=200"
    assert facts["click_rate"]["value"] > 0
    enough = settings.model_copy(update={"min_effective_entries": 10})
    assert estimate_explored(lists, shown, enough)["by_score"] is not None
    one = query("SELECT * FROM {lists} WHERE position <= 2", lists=lists)
    assert estimate_explored(one, shown, enough)["reason"] == "no shown list has two explored positions"


def test_users_whose_drawn_items_have_equal_scores_are_left_out(spark: SparkSession, config: Config) -> None:
    """A probability above 0.99999997 is published as 1, so equal scores say nothing about the model's order."""
    lists, shown, _ = explored_lists(4_000)
    settings = with_log(config).serving.impressions
    assert settings is not None
    saturated = query("SELECT * REPLACE (CAST(1 AS DOUBLE) AS score) FROM {lists}", lists=lists)
    facts = estimate_explored(saturated, shown, settings)
    assert (facts["by_score"], facts["difference"], facts["equal_scores"]) == (None, None, 10_000)
    assert facts["reason"].endswith(
        "200; 10,000 shown entries are left out, because drawn items of a user have equal scores"
    )
    users = "(SELECT user_key FROM {lists} WHERE user_key < 'u3')"
    half = query(
        f"SELECT * REPLACE (CASE WHEN user_key IN {users} AND score < 0.45 THEN 0.3 ELSE score END AS score) "
        "FROM {lists}",
        lists=lists,
    )
    facts = estimate_explored(half, shown, settings)
    others = query("SELECT * FROM {lists} WHERE user_key >= 'u3'", lists=lists)
    expected = estimate_explored(others, shown, settings)
    assert facts == {**expected, "equal_scores": 10_000 - expected["shown"]}
    assert 0 < expected["shown"] < 10_000
    assert estimate_explored(frame_of(spark, half), frame_of(spark, shown), settings) == facts


def test_explored_positions_of_published_lists_are_estimated_if_the_draws_are_known(
    config: Config, tmp_path: Path
) -> None:
    copied = config.model_copy(update={"lake": shutil.copytree(config.lake, tmp_path / "lake").as_posix()})
    rules = ListRules.model_validate({"exploration": {"share": 0.4}})
    explored = copied.model_copy(update={"score": copied.score.model_copy(update={"rules": rules})})
    score_daily(context(explored))
    lists = lists_of(explored)
    rows = lists.rename(columns={"user_id": "who", "item_id": "what", "position": "place"})
    write_log(explored, rows[["who", "what", "place"]], "tsv")
    settings: dict[str, Any] = {"separator": "\t", "min_effective_entries": 1}
    facts = facts_of(with_log(explored, **settings))["explored"]
    drawn = lists[lists.reason == "explore"].sort_values(["user_id", "score"], ascending=[True, False])
    assert len(drawn) == 2 * lists.user_id.nunique()
    drawn = drawn[drawn.groupby("user_id").score.transform("nunique") == 2]  # the rest has equal scores
    assert facts["shown"] == len(drawn) > 50
    in_order = drawn.groupby("user_id").position.apply(lambda places: list(places) == [4, 5])
    assert facts["effective_entries"] == pytest.approx(2 * in_order.sum())
    assert facts["by_score"]["low"] <= facts["by_score"]["value"] <= facts["by_score"]["high"]
    changed = explored.model_copy(update={"score": explored.score.model_copy(update={"k": 4})})
    assert facts_of(with_log(changed, **settings))["explored"] == {
        "reason": "the section score has changed since the lists were made"
    }
    capped = ListRules.model_validate(
        {
            "attributes": {"kind": {"path": "kinds", "format": "csv", "key": "item", "column": "kind"}},
            "max_per_category": {"attribute": "kind", "max": 1},
            "exploration": {"share": 0.4},
        }
    )
    config_of_cap = explored.model_copy(update={"score": explored.score.model_copy(update={"rules": capped})})
    published = read_manifest(LakePaths(explored.lake).recommendations.partition(RUN_DATE))
    of_cap = replace(published, inputs={**published.inputs, "config": config_digest(config_of_cap, "score")})
    reason = why_unknown(config_of_cap, of_cap)
    assert reason == "score.rules.max_per_category changes the probabilities of the draws"
