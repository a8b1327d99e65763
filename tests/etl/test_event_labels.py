"""Labels and weights from the events of a log: the rules, both ways to read a log, negatives, and digests."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from conf.errors import ConfigError, DataError
from conf.load import load_config
from conf.raw_types import Label
from conf.types import Config
from etl.build import BuildResult
from etl.fit.fit_workflow import require_weights, workflow_version
from etl.operators.groupby import Groupby
from etl.raw.layout_digest import layout_digest
from etl.raw.row_rules import RowRule, row_rules
from etl.text import scan_pass
from etl.workflow.feature_plan import plan_of
from storage import feature_spec
from storage.feature_spec import Feature, FeatureSpec
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths
from tests.etl import cases
from tests.etl.tasks_here import TasksHere

ROOT = Path(__file__).parents[2]
DAYS = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]
EVENTS = ["view", "view", "view", "cart", "purchase", "scroll", "View", ""]
WEIGHTS = {"view": 0.1, "cart": 0.5, "purchase": 3}
SHOP: dict[str, Any] = {
    "log": {
        "path": "{data}/{date}.csv",
        "format": "csv",
        "separator": ",",
        "columns": [
            {"name": "event", "type": "string"},
            {"name": "user", "type": "string"},
            {"name": "item", "type": "string"},
            {"name": "price", "type": "float"},
        ],
        "label": {"column": "event", "positive": ["cart", "purchase"], "weights": WEIGHTS},
    },
    "features": [
        {"columns": ["price"], "kind": "dense", "ops": ["fill_median", "normalize"]},
        {"columns": ["user", "item"], "kind": "categorical", "ops": [{"categorify": {"min_count": 1}}]},
    ],
    "scopes": {"user": ["user"], "item": ["item"]},
}


def shop(folder: Path, label: Mapping[str, Any] | None = None, **sections: Any) -> Config:
    log = {**SHOP["log"], **({"label": {"column": "event", **label}} if label is not None else {})}
    return cases.write_config(folder, SHOP, {"log": log}, sections)


def write_days(folder: Path, codes: Mapping[str, str] | None = None) -> dict[str, list[list[str]]]:
    """Writes four days. Some rows lack the user, some have a broken price; events become `codes`, if any."""
    (folder / "raw").mkdir(parents=True)
    written = {}
    for seed, day in enumerate(DAYS):
        draw = random.Random(seed)
        rows = [
            [
                draw.choice(EVENTS),
                draw.choice(["", *(f"u{n}" for n in range(15))]),
                f"i{int(draw.paretovariate(1)) % 12}",
                draw.choice(["", "1.5", "2", "300.25", "much"]),
            ]
            for _ in range(200)
        ]
        rows = [[codes[row[0]] if codes else row[0], *row[1:]] for row in rows]
        lines = ["event,user,item,price", *(",".join(row) for row in rows)]
        (folder / f"raw/{day}.csv").write_text("\n".join(lines) + "\n")
        written[day] = rows
    return written


def features_of(config: Config, built: BuildResult, day: str) -> pa.Table:
    partition = LakePaths(config.lake).features(built.workflow.version).partition(day)
    files = data_files(partition, read_manifest(partition))
    table = pa.concat_tables([pq.read_table(path, partitioning=None) for path in files])
    return table.sort_by([("row_id", "ascending")])


def quarantine_of(config: Config, day: str) -> list[tuple[int, str]]:
    partition = LakePaths(config.lake).quarantine.partition(day)
    files = data_files(partition, read_manifest(partition))
    rows = pa.concat_tables([pq.read_table(path, partitioning=None) for path in files]).to_pylist()
    return sorted((row["row_id"], row["reason"]) for row in rows)


def rules_of(kind: str, **label: Any) -> tuple[RowRule, ...]:
    return row_rules({"x": kind}, Label(column="x", **label), None, None)


@pytest.mark.parametrize("kind", ["string", "int"])
@pytest.mark.parametrize(
    "other, weights", [("drop", None), ("drop", {"2": 0.1, "3": 0.5}), ("refuse", {"2": 0.1, "3": 0.5})]
)
def test_the_rules_agree_with_the_settings(kind: str, other: str, weights: dict[str, float] | None) -> None:
    """A positive event without a weight has the weight 1; 0.1 is rounded to float32."""
    settings = {"weights": weights, "other_events": other} if weights else {}
    rules = rules_of(kind, positive=[3, 4], **settings)
    texts = [None, "2", "3", "4", "5", "-3"]
    values = [value if value is None or kind == "string" else int(value) for value in texts]
    array = pa.array(values, pa.string() if kind == "string" else pa.int64())
    named = {"label": {"2": 0.0, "3": 1.0, "4": 1.0}, "weight": {"2": np.float32(0.1), "3": 0.5, "4": 1.0}}
    reasons = ["label:x", *([{"drop": "other_event", "refuse": "event:x"}[other]] if weights else [])]
    assert [check.reason for rule in rules for check in rule.checks] == reasons
    assert [rule.output for rule in rules] == ["label", *(["weight"] if weights else [])]
    checks = [check for rule in rules for check in rule.checks]
    for place, text in enumerate(texts):
        expected = [text is None, *([text in ("5", "-3")] if weights else [])]
        for check, is_rejected in zip(checks, expected, strict=True):
            assert bool(check.rejects(array)[place].as_py()) is is_rejected, (check.reason, text)
        if any(expected):
            continue
        for rule in rules:
            value = named[rule.output].get(str(text), 0.0)
            assert rule.compute(array)[place].as_py() == value
            assert rule.compute(array).type == pa.float32()


@pytest.mark.parametrize("other", ["drop", "refuse"])
@pytest.mark.parametrize("integers", [False, True])
def test_workers_read_the_same_rows_of_a_log_as_pandas(tmp_path: Path, other: str, integers: bool) -> None:
    _require_rows_of_pandas(None, tmp_path, other, integers)


@pytest.mark.parametrize("other", ["drop", "refuse"])
@pytest.mark.parametrize("integers", [False, True])
def test_both_ways_to_read_a_log_give_the_same_rows_as_pandas(
    spark: SparkSession, tmp_path: Path, other: str, integers: bool
) -> None:
    _require_rows_of_pandas(spark, tmp_path, other, integers)


def _kept_and_rejected(
    rows: Sequence[Sequence[str]], names: Mapping[str, str], other: str
) -> tuple[list[tuple[Any, ...]], list[tuple[int, str]]]:
    """The rows of a day with user, item, label and weight, and the row_id and the reason of the others."""
    expected: list[tuple[Any, ...]] = []
    rejected: list[tuple[int, str]] = []
    for place, (event, user, item, price) in enumerate(rows):
        row_id, event = place + 1, names.get(event, event)  # row 0 is the header
        if price == "much":
            rejected.append((row_id, "number:price"))
        elif not event:
            rejected.append((row_id, "label:event"))
        elif event not in WEIGHTS:
            rejected.append((row_id, "other_event" if other == "drop" else "event:event"))
        elif not user:
            rejected.append((row_id, "missing_key:user"))
        else:
            expected.append((user, item, float(event != "view"), np.float32(WEIGHTS[event])))
    return expected, rejected


def _require_rows_of_pandas(spark: SparkSession | None, tmp_path: Path, other: str, integers: bool) -> None:
    """Workers read the text, without a session; then Spark reads it as frames, if there is a session."""
    codes = {"view": "1", "cart": "20", "purchase": "-3", "scroll": "4", "View": "5", "": ""}
    label: dict[str, Any] = {"positive": ["cart", "purchase"], "weights": WEIGHTS, "other_events": other}
    if integers:
        label["positive"] = [int(codes[event]) for event in label["positive"]]
        label["weights"] = {int(codes[event]): weight for event, weight in WEIGHTS.items()}
    built, configs = {}, {}
    written: dict[str, list[list[str]]] = {}
    for engine in ("arrow", "sql") if spark else ("arrow",):
        folder = tmp_path / engine
        written = write_days(folder, codes if integers else None)
        config = shop(folder, label, workflow={"engine": engine}, quality={"max_bad_share": 0.9})
        if integers:
            columns = [column.model_dump() for column in config.log.columns]
            columns[0]["type"] = "int"
            log = {**config.log.model_dump(), "columns": columns}
            config = config.model_copy(update={"log": type(config.log).model_validate(log)})
        configs[engine] = config
        workers = TasksHere(2, lambda: pytest.fail("a session")) if engine == "arrow" else spark
        assert workers
        built[engine] = cases.run_build(workers, config, DAYS[3])
    assert built["arrow"].workflow.spec.weight == "weight"
    assert not spark or built["arrow"].workflow.spec == replace(
        built["sql"].workflow.spec, workflow_version=built["arrow"].workflow.version
    )
    names = {text: name for name, text in codes.items()} if integers else {}
    totals: Counter[str] = Counter()
    for day in DAYS:
        arrow = features_of(configs["arrow"], built["arrow"], day)
        assert arrow.column_names[:5] == ["row_id", "user_key", "item_key", "label", "weight"]
        assert arrow.schema.field("weight").type == pa.float32()
        assert not arrow.schema.field("weight").nullable
        counts = built["arrow"].counts[day]
        if spark:
            sql = features_of(configs["sql"], built["sql"], day)
            assert arrow.cast(sql.schema).equals(sql)
            assert quarantine_of(configs["arrow"], day) == quarantine_of(configs["sql"], day)
            assert counts.dropped == built["sql"].counts[day].dropped
        expected, rejected = _kept_and_rejected(written[day], names, other)
        kept = arrow.select(["user_key", "item_key", "label", "weight"]).to_pylist()
        assert [tuple(row.values()) for row in kept] == expected
        totals.update(reason for _, reason in rejected)
        assert counts.dropped == dict(Counter(reason for _, reason in rejected))
        quarantined = [(row_id, reason) for row_id, reason in rejected if reason != "other_event"]
        assert quarantine_of(configs["arrow"], day) == quarantined
        assert counts.bad == len(quarantined)
    assert set(totals) >= {
        "label:event",
        "missing_key:user",
        "other_event" if other == "drop" else "event:event",
    }


@pytest.mark.parametrize("rows_without_user", ["quarantine", "leave_out"])
def test_left_out_rows_need_no_place_in_the_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_without_user: str
) -> None:
    """Rows of other events, and of anonymous users if they are left out, are only counted, however many."""
    monkeypatch.setattr(scan_pass, "_KEPT_LINES", 1)
    monkeypatch.setattr(scan_pass, "_KEPT_OF_REASON", 2)
    written = write_days(tmp_path)
    keys = {"user": "user", "item": "item", "rows_without_user": rows_without_user}
    label = {"positive": ["cart", "purchase"], "weights": WEIGHTS}
    config = shop(tmp_path, label, keys=keys, quality={"max_bad_share": 0.9})
    built = cases.run_build(TasksHere(1, lambda: pytest.fail("a session")), config, DAYS[3])
    for day in DAYS:
        counts = built.counts[day]
        events = Counter(row[0] for row in written[day] if row[3] != "much" and row[0])
        assert (
            counts.dropped["other_event"] == sum(events[name] for name in events if name not in WEIGHTS) > 2
        )
        of_nobody = sum(not row[1] for row in written[day] if row[0] in WEIGHTS and row[3] != "much")
        assert counts.dropped["missing_key:user"] == of_nobody > 0
        left_out = counts.dropped["other_event"] + (of_nobody if rows_without_user == "leave_out" else 0)
        assert counts.bad == sum(counts.dropped.values()) - left_out
        stored = {reason for _, reason in quarantine_of(config, day)}
        assert "other_event" not in stored
        assert ("missing_key:user" in stored) == (rows_without_user == "quarantine")


def test_events_without_weights_drop_no_row(spark: SparkSession, tmp_path: Path) -> None:
    written = write_days(tmp_path)
    config = shop(tmp_path, {"positive": ["purchase"]}, quality={"max_bad_share": 0.9})
    built = cases.run_build(TasksHere(2, lambda: spark), config, DAYS[3])
    assert built.workflow.spec.weight is None
    assert "weight" not in feature_spec.dumps(built.workflow.spec)
    assert list(plan_of(config).reasons_left_out) == ["erased_user"]
    for day in DAYS:
        good = [row[0] for row in written[day] if row[0] and row[1] and row[3] != "much"]
        table = features_of(config, built, day)
        assert table["label"].to_pylist() == [float(event == "purchase") for event in good]
        assert "weight" not in table.column_names
        assert set(built.counts[day].dropped) == {"label:event", "missing_key:user", "number:price"}


@pytest.mark.parametrize("by", ["day", "fraction"])
def test_drawn_negatives_have_the_weight_1(spark: SparkSession, tmp_path: Path, by: str) -> None:
    write_days(tmp_path)
    items = {"path": "{data}/items.csv", "format": "csv", "columns": [{"name": "item", "type": "string"}]}
    (tmp_path / "raw/items.csv").write_text("item\n" + "".join(f"i{n}\n" for n in range(12)))
    split = {"by": "fraction"} if by == "fraction" else cases.LOG["split"]
    config = shop(
        tmp_path,
        split=split,
        items=items,
        negatives={"per_positive": 2},
        quality={"max_bad_share": 0.9},
        features=[{"columns": ["user", "item"], "kind": "categorical", "ops": [{"categorify": {}}]}],
    )
    built = cases.run_build(spark, config, DAYS[3])
    rows = features_of(config, built, DAYS[3]).to_pandas()
    drawn = rows[rows.row_id % 3 != 0]
    assert len(drawn)
    assert set(drawn.weight) == {1.0}
    assert set(drawn.label) == {0.0}
    logged = rows[rows.row_id % 3 == 0]
    assert set(zip(logged.label, logged.weight, strict=True)) == {
        (0.0, float(np.float32(0.1))),
        (1.0, 0.5),
        (1.0, 3.0),
    }


def test_groupby_keeps_the_largest_weight_and_no_raw_column_of_this_name(spark: SparkSession) -> None:
    operator = Groupby(by=("u",), aggregates={"x": ("sum",)})
    columns = "row_id long, u string, x double, label float, weight float"
    rows = spark.createDataFrame(
        [(1, "a", 1.0, 0.0, 0.25), (2, "a", 2.0, 1.0, 0.5), (3, "b", 1.0, 0.0, 0.125)], columns
    )
    combined = {row["u"]: row.asDict() for row in operator.apply(rows).collect()}
    assert {user: (row["label"], row["weight"]) for user, row in combined.items()} == {
        "a": (1.0, 0.5),
        "b": (0.0, 0.125),
    }
    raw = rows.withColumn("weight", F.col("weight").cast("double"))
    assert "weight" not in operator.apply(raw).columns


@pytest.mark.parametrize(
    "label, problem",
    [
        ({"positive": []}, "at least 1 item"),
        ({"positive": ["a", "a"]}, "twice"),
        ({"positive": ["a"], "positive_at_least": 1}, "remove one of the two"),
        ({"positive": [True]}, "neither a string nor an integer"),
        ({"positive": [1.5]}, "neither a string nor an integer"),
        ({"weights": {"a": 1}}, "weights belong to events"),
        ({"positive": ["a"], "weights": {}}, "at least 1 item"),
        ({"positive": ["a"], "weights": {"a": 0}}, "from 1e-06 to 1e\\+06"),
        ({"positive": ["a"], "weights": {"a": -1}}, "from 1e-06 to 1e\\+06"),
        ({"positive": ["a"], "weights": {"a": float("inf")}}, "finite"),
        ({"positive": ["a"], "other_events": "refuse"}, "needs `weights`"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(label: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Label(column="event", **label)


def test_events_must_fit_the_column(tmp_path: Path) -> None:
    log = {**SHOP["log"], "label": {"column": "price", "positive": ["1"]}}
    with pytest.raises(ConfigError, match="type float: give it the type string or int"):
        cases.write_config(tmp_path, SHOP, {"log": log})
    with pytest.raises(ConfigError, match="says that these strings mean null"):
        cases.write_config(tmp_path, SHOP, {"log": {**SHOP["log"], "null_values": ["", "view"]}})
    columns = [{**SHOP["log"]["columns"][0], "type": "int"}, *SHOP["log"]["columns"][1:]]
    for event in ("view", "01", "+1", "9223372036854775808"):
        label = {"column": "event", "positive": [1], "weights": {event: 1}}
        with pytest.raises(ConfigError, match="write integers of 64 bits"):
            cases.write_config(tmp_path, SHOP, {"log": {**SHOP["log"], "columns": columns, "label": label}})


def test_only_with_weights_no_other_column_may_be_named_weight(tmp_path: Path) -> None:
    columns = [*SHOP["log"]["columns"], {"name": "weight", "type": "float"}]
    with pytest.raises(ConfigError, match=r"log.columns names \['weight'\]"):
        cases.write_config(tmp_path, SHOP, {"log": {**SHOP["log"], "columns": columns}})
    feature = {
        "columns": ["price"],
        "kind": "dense",
        "ops": ["fill_median", {"rename": {"names": {"price": "weight"}}}],
    }
    renamed = shop(tmp_path, features=[feature], scopes={})
    with pytest.raises(ConfigError, match="an operator would add a column 'weight'"):
        plan_of(renamed)
    log = {**SHOP["log"], "columns": columns, "label": {"column": "event", "positive": ["cart"]}}
    assert plan_of(
        cases.write_config(tmp_path, SHOP, {"log": log, "features": [feature], "scopes": {}})
    ).features


def test_rows_of_refused_events_are_explained(spark: SparkSession, tmp_path: Path) -> None:
    write_days(tmp_path)
    label = {"positive": ["cart"], "weights": {"cart": 1}, "other_events": "refuse"}
    config = shop(tmp_path, label, quality={"max_bad_share": 0.1})
    with pytest.raises(
        DataError, match=r"the value 'view', which is not an event that log\.label names"
    ) as raised:
        cases.run_build(TasksHere(2, lambda: spark), config, DAYS[3])
    assert "add 'view' to log.label.positive if it is a click, or give it a weight" in raised.value.remedy
    assert "other_events=drop" in raised.value.remedy


def test_weights_may_be_applied_and_extended_only_as_they_were_fitted(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_days(tmp_path)
    weighted = shop(tmp_path, quality={"max_bad_share": 0.9})
    plain = shop(tmp_path, {"positive": ["cart", "purchase"]}, quality={"max_bad_share": 0.9})
    workers = TasksHere(2, lambda: spark)
    versions = {
        name: cases.run_build(workers, config, DAYS[2]).workflow
        for name, config in (("weighted", weighted), ("plain", plain))
    }
    with pytest.raises(
        ConfigError,
        match=r"was fitted to rows with weights, but the configuration has no log\.label\.weights",
    ):
        cases.run_build(workers, plain, DAYS[3], versions["weighted"].version)
    extend = weighted.workflow.model_copy(update={"mode": "extend"})
    with pytest.raises(
        ConfigError, match=r"was fitted to rows without weights, but log\.label\.weights is set"
    ):
        cases.run_build(
            workers, weighted.model_copy(update={"workflow": extend}), DAYS[3], versions["plain"].version
        )
    applied = cases.run_build(workers, weighted, DAYS[3], versions["plain"].version)
    assert "weight" not in features_of(weighted, applied, DAYS[3]).column_names
    again = cases.run_build(
        workers, weighted.model_copy(update={"workflow": extend}), DAYS[3], versions["weighted"].version
    )
    assert again.workflow.spec.weight == "weight"
    assert again.workflow.parent == versions["weighted"].version
    require_weights(plan_of(plain), "v", versions["plain"].spec)


@pytest.mark.parametrize(
    "name, layout, version",
    [
        ("criteo", "677be3ce7bfc50fd", "f1fe4611b0b91ca8"),
        ("movielens", "f726b24f9a778ba2", "f810e61758c6d7cb"),
    ],
)
def test_digests_of_logs_without_events_are_those_of_the_last_release(
    name: str, layout: str, version: str
) -> None:
    """So their stored days and workflows remain valid."""
    config = load_config(str(ROOT / f"conf/datasets/{name}.yaml"), ["lake=/l", "data=/d"])
    assert layout_digest(config) == layout
    assert workflow_version(plan_of(config), None, []) == version


def test_the_layout_depends_on_events_but_not_on_the_order_of_weights(tmp_path: Path) -> None:
    labels: list[dict[str, Any]] = [
        {"positive": ["cart"]},
        {"positive": ["cart"], "weights": {"cart": 1, "view": 0.5}},
        {"positive": ["cart"], "weights": {"cart": 1, "view": 0.25}},
        {"positive": ["cart"], "weights": {"cart": 1, "view": 0.5}, "other_events": "refuse"},
    ]
    assert len({layout_digest(shop(tmp_path, label)) for label in labels}) == 4
    turned = {"positive": ["cart"], "weights": {"view": 0.5, "cart": 1}}
    assert layout_digest(shop(tmp_path, turned)) == layout_digest(shop(tmp_path, labels[1]))


def test_specs_of_earlier_releases_are_read_and_written_unchanged() -> None:
    spec = FeatureSpec((Feature("C1", "categorical", "int32", "user", 5),), ("row_id",), "w1")
    text = feature_spec.dumps(spec)
    assert '"weight"' not in text
    assert feature_spec.loads(text, "spec") == spec
    weighted = replace(spec, weight="weight")
    assert feature_spec.loads(feature_spec.dumps(weighted), "spec") == weighted
    assert weighted.table_columns == ["row_id", "label", "weight", "C1"]
    assert spec.table_columns == ["row_id", "label", "C1"]


def test_repeats_are_those_of_a_log_that_shows_items(tmp_path: Path) -> None:
    assert shop(tmp_path).repeats == "unclicked"


@pytest.mark.parametrize(
    "kind, settings, values, labels",
    [
        ("int", {}, [1, None, 0], [1.0, 0.0, 0.0]),
        ("int", {"positive_at_least": 2}, [2, None, 1], [1.0, 0.0, 0.0]),
        ("string", {"positive": ["x"]}, ["x", None, "y"], [1.0, 0.0, 0.0]),
    ],
)
def test_rows_without_a_value_may_have_label_0(
    kind: str, settings: dict[str, Any], values: list[Any], labels: list[float]
) -> None:
    """The default of the setting is in no digest."""
    (rule,) = rules_of(kind, rows_without_value="not_clicked", **settings)
    array = pa.array(values)
    assert [check.reason for check in rule.checks] == ["label:x"]
    assert not any(check.rejects(array)[1].as_py() for check in rule.checks)
    computed = rule.compute(array).to_pylist()
    assert [rule.of_null if raw is None else one for raw, one in zip(values, computed, strict=True)] == labels
    assert "rows_without_value" not in Label(column="event", **settings).model_dump()


def test_rows_without_a_value_have_no_weight() -> None:
    with pytest.raises(ValueError, match="rows without an event have no weight"):
        Label(column="x", positive=["a"], weights={"a": 1.0}, rows_without_value="not_clicked")
