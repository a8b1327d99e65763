"""build_features on logs of one partition: Criteo's sample, and a log with joined tables."""

from __future__ import annotations

import csv
import gzip
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from conf.errors import DataError
from conf.load import load_config
from conf.types import SPLITS, Config
from etl.build import BuildResult
from storage.dataset import read_dataset
from storage.manifest import Manifest, read_manifest, replace_manifest
from storage.paths import LakePaths
from tests.contract.test_overrides import documented_overrides
from tests.etl import cases, oracle, raw_oracle

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT.parent / "shared/data/criteo_kaggle_sample"
RUN_DATE = "2026-01-01"


def _assert_splits_equal(
    config: Config, built: BuildResult, rows: pd.DataFrame, fitted: oracle.Fitted
) -> None:
    """The files of a split have the oracle's rows of it, and together all rows."""
    lake = LakePaths(config.lake)
    dataset = read_dataset(lake, RUN_DATE)
    for split in SPLITS:
        (member,) = dataset.splits[split]
        actual = cases.read_rows(lake.features(built.workflow.version).partition(member.dt), member.label)
        expected = oracle.encode(config, fitted, rows[rows["split"] == split])
        assert len(expected), split
        cases.assert_features_equal(actual, expected, built.workflow.spec)


@pytest.mark.skipif(not SAMPLE.exists(), reason=f"the Criteo sample is not at {SAMPLE}")
def test_the_criteo_sample_equals_the_oracle(spark: SparkSession, tmp_path: Path) -> None:
    overrides = [f"lake={tmp_path}/lake", f"data={SAMPLE}", "output.row_group_rows=500"]
    config = load_config(str(ROOT / "conf/datasets/criteo.yaml"), overrides)
    built = cases.run_build(spark, config, RUN_DATE)
    rows, bad = raw_oracle.parse_log(config, [SAMPLE / "train.tsv"])
    assert bad.empty
    rows["split"] = oracle.split_by_fraction(rows, config.split.train, config.split.validation)
    fitted = oracle.fit(config, rows[rows["split"] == "train"])
    _assert_splits_equal(config, built, rows, fitted)
    assert built.workflow.spec.cardinalities == [fitted.cardinality(f"C{i}") for i in range(1, 27)]


JOINED: dict[str, Any] = {
    "log": {
        "path": "{data}/ratings.csv",
        "format": "csv",
        "separator": ";",
        "columns": [
            {"name": "who", "type": "int"},
            {"name": "what", "type": "string"},
            {"name": "stars", "type": "float"},
            {"name": "at", "type": "int"},
        ],
        "label": {"column": "stars", "positive_at_least": 4},
        "event_time": {"column": "at"},
    },
    "users": {
        "path": "{data}/users.csv",
        "format": "csv",
        "separator": ";",
        "columns": [
            {"name": "who", "type": "int"},
            {"name": "age", "type": "int"},
            {"name": "city", "type": "string"},
        ],
    },
    "items": {
        "path": "{data}/items.csv",
        "format": "csv",
        "separator": ";",
        "columns": [{"name": "what", "type": "string"}, {"name": "kind", "type": "string"}],
    },
    "keys": {"user": "who", "item": "what"},
    "features": [
        {"columns": ["age"], "kind": "dense", "ops": [{"fill": {"value": 30}}, "normalize"]},
        {
            "columns": ["who", "what", "city", "kind"],
            "kind": "categorical",
            "ops": [{"categorify": {"min_count": 2}}],
        },
    ],
    "scopes": {"user": ["age", "who", "city"], "item": ["what", "kind"]},
    "split": {"by": "leave_last_out"},
    "output": {"row_group_rows": 100},
}


def _write_joined(folder: Path) -> None:
    """Ratings of 12 users and 19 films. A user and a film have no attributes, and some have no rating."""
    draw = random.Random(11)
    folder.mkdir()
    users = [[n, draw.choice(["", 20, 40]), draw.choice(["", "Köln", "Oslo"])] for n in range(1, 14)]
    items = [[f"film {n}", draw.choice(["", "war", "love"])] for n in range(20) if n != 3]
    rated = [
        [draw.randrange(0, 12), f"film {draw.randrange(19)}", draw.choice("12345"), draw.randrange(60)]
        for _ in range(150)
    ]
    tables = (
        ("users", "who age city", users),
        ("items", "what kind", items),
        ("ratings", "who what stars at", rated),
    )
    for name, header, rows in tables:
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter=";").writerows([header.split(), *rows])


def _expected(config: Config, folder: Path) -> pd.DataFrame:
    """Good ratings with the attributes of user and item, if they have any."""
    rows, bad = raw_oracle.parse_log(config, [folder / "ratings.csv"])
    assert bad.empty
    assert config.users is not None
    assert config.items is not None
    for table, key in ((config.users, "who"), (config.items, "what")):
        attributes = raw_oracle.parse_table(table, [folder / f"{'users' if key == 'who' else 'items'}.csv"])
        rows = rows.merge(attributes[table.names], on=key, how="left")
    return rows


@pytest.mark.parametrize("by, missing", [("leave_last_out", "leave_out"), ("fraction", "serve")])
def test_a_joined_log_equals_the_oracle(spark: SparkSession, tmp_path: Path, by: str, missing: str) -> None:
    sections = {"split": {"by": by}, "items": {**JOINED["items"], "missing": missing}}
    config = cases.write_config(tmp_path, JOINED, sections)
    _write_joined(tmp_path / "raw")
    built = cases.run_build(spark, config, RUN_DATE)
    rows = _expected(config, tmp_path / "raw")
    if by == "fraction":
        rows["split"] = oracle.split_by_fraction(rows, config.split.train, config.split.validation)
    else:
        rows["split"] = oracle.split_leave_last_out(rows)
    fitted = oracle.fit(config, rows[rows["split"] == "train"])
    _assert_splits_equal(config, built, rows, fitted)
    _assert_attributes(config, built, tmp_path / "raw", fitted)
    in_log, counted = rows[["who", "what"]].nunique(), built.missing
    assert [(one.section, one.in_log, one.without_row) for one in counted] == [
        ("users", in_log["who"], 1),
        ("items", in_log["what"], 1),
    ]
    manifests = _manifests(config, built)
    again = cases.run_build(spark, config, RUN_DATE)
    assert (again.missing, _manifests(config, again)) == (counted, manifests), "a rerun reads the numbers"


def _manifests(config: Config, built: BuildResult) -> list[Manifest]:
    lake, version = LakePaths(config.lake), built.workflow.version
    return [read_manifest(table.partition(RUN_DATE)) for table in (lake.users(version), lake.items(version))]


def _assert_attributes(config: Config, built: BuildResult, folder: Path, fitted: oracle.Fitted) -> None:
    """users and items have every row of their table, and those of the log without a row that are served."""
    lake, version = LakePaths(config.lake), built.workflow.version
    for table, raw, key, name in (
        (lake.users, config.users, "user_key", "who"),
        (lake.items, config.items, "item_key", "what"),
    ):
        assert raw is not None
        attributes = raw_oracle.parse_table(raw, [folder / f"{table(version).name.split('/')[0]}.csv"])
        if name == "who" or config.items.missing == "serve":  # type: ignore[union-attr]
            without_row = {"who": 0, "what": "film 3"}[name]
            attributes = pd.concat([attributes, pd.DataFrame({name: [without_row]})], ignore_index=True)
        attributes[key] = attributes[name].map(str)
        columns = [column for group in config.features for column in group.columns if column in attributes]
        attributes_config = config.model_copy(
            update={
                "features": [
                    group.model_copy(update={"columns": [name for name in group.columns if name in columns]})
                    for group in config.features
                ]
            }
        )
        expected = oracle.latest(
            [oracle.encode(attributes_config, fitted, attributes.assign(label=0.0))], key, columns
        )
        actual = cases.read_rows(table(version).partition(RUN_DATE))
        pd.testing.assert_frame_equal(
            actual[[key, *columns]], expected, check_dtype=False, rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize("engine", ["sql", "arrow"])
def test_quarantined_rows_do_not_change_the_splits(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    log = {**JOINED["log"], "columns": JOINED["log"]["columns"][:3], "event_time": None}
    sections = {"log": log, "users": None, "items": None, "scopes": {}, "workflow": {"engine": engine}}
    features = [{"columns": ["who", "what"], "kind": "categorical", "ops": ["categorify"]}]
    config = cases.write_config(
        tmp_path, JOINED, sections, {"features": features, "split": {"by": "fraction"}}
    )
    (tmp_path / "raw").mkdir()
    lines = ["who;what;stars"]
    for index in range(1000):  # 502 good rows, most of them late
        good = index >= 506 or (index > 0 and index % 63 == 0)
        lines.append(f"{index % 9 if good else 'x'};film {index % 5};{1 + index % 5}")
    (tmp_path / "raw/ratings.csv").write_text("\n".join(lines) + "\n")
    built = cases.run_build(spark, config, RUN_DATE)
    manifest = built.features[RUN_DATE]
    assert [sum(file.rows for file in manifest.split_files(split)) for split in SPLITS] == [401, 50, 51]


def test_negatives_stay_in_the_split_of_their_positive(spark: SparkSession, tmp_path: Path) -> None:
    config = cases.write_config(tmp_path, JOINED, {"negatives": {"per_positive": 2}})
    _write_joined(tmp_path / "raw")
    built = cases.run_build(spark, config, RUN_DATE)
    rows = _expected(config, tmp_path / "raw")
    split = oracle.split_leave_last_out(rows).set_axis(rows["row_id"])
    kinds = raw_oracle.parse_table(config.items, [tmp_path / "raw/items.csv"]).set_index("what")["kind"]  # type: ignore[arg-type]
    partition = LakePaths(config.lake).features(built.workflow.version).partition(RUN_DATE)
    rows_of_split = {name: cases.read_rows(partition, name) for name in SPLITS}
    for name, part in rows_of_split.items():
        assert {split[row_id // 3] for row_id in part["row_id"]} == {name}
    all_rows = pd.concat(rows_of_split.values())
    drawn = all_rows[all_rows["row_id"] % 3 != 0]
    assert len(all_rows) - len(drawn) == len(rows)
    assert len(drawn)
    for index, name in enumerate(SPLITS):
        visible = rows[oracle.split_leave_last_out(rows).isin(SPLITS[: index + 1])]
        mine = drawn[drawn["row_id"].isin(rows_of_split[name]["row_id"])]
        assert not set(zip(mine["user_key"], mine["item_key"], strict=True)) & set(
            zip(visible["user_key"], visible["item_key"], strict=True)
        )
        assert set(mine["item_key"]) <= set(visible["item_key"])
    # A drawn item has its own attributes, not those of the item of its positive row.
    assert all_rows.groupby(all_rows["item_key"].map(kinds).fillna("none"))["kind"].nunique().max() == 1
    assert read_manifest(partition).rows == len(all_rows)


def test_features_with_negatives_of_an_earlier_release_are_written_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    config = cases.write_config(tmp_path, JOINED, {"negatives": {"per_positive": 2}})
    _write_joined(tmp_path / "raw")
    built = cases.run_build(spark, config, RUN_DATE)
    partition = LakePaths(config.lake).features(built.workflow.version).partition(RUN_DATE)
    manifest = read_manifest(partition)
    # The inputs of that release do not contain the version of the draw.
    inputs = {name: digest for name, digest in manifest.inputs.items() if name != "negatives"}
    assert inputs != dict(manifest.inputs)
    replace_manifest(partition, replace(manifest, inputs=inputs))
    again = cases.run_build(spark, config, RUN_DATE, built.workflow.version)
    assert again.features[RUN_DATE].digest == manifest.digest == read_manifest(partition).digest


def test_normalizing_a_column_without_any_value_says_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    features = [{"columns": ["age"], "kind": "dense", "ops": ["normalize"]}]
    config = cases.write_config(tmp_path, JOINED, {"features": features, "scopes": {"user": ["age"]}})
    _write_joined(tmp_path / "raw")
    (tmp_path / "raw/users.csv").write_text("who;age;city\n" + "".join(f"{n};;\n" for n in range(14)))
    with pytest.raises(DataError, match="normalize cannot be fitted on age") as caught:
        cases.run_build(spark, config, RUN_DATE)
    assert "add `fill` before `normalize`" in caught.value.remedy


def test_the_terabyte_log_by_day_as_the_configuration_documents_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Uses the `--set` values that conf/datasets/criteo.yaml documents."""
    documented = dict(documented_overrides())["conf/datasets/criteo.yaml"]
    draw, days = random.Random(3), ["2014-05-12", "2014-05-13", "2014-05-14"]
    for day in days:
        folder = tmp_path / f"data/day={day}"
        folder.mkdir(parents=True)
        rows = [
            [
                draw.randrange(2),
                *(draw.randrange(9) for _ in range(13)),
                *(f"{draw.randrange(20):08x}" for _ in range(26)),
            ]
            for _ in range(200)
        ]
        text = "".join("\t".join(map(str, row)) + "\n" for row in rows)
        (folder / "part-0.gz").write_bytes(gzip.compress(text.encode()))
    paths = [f"lake={tmp_path}/lake", f"data={tmp_path}/data", "split.train_days=1"]
    config = load_config(str(ROOT / "conf/datasets/criteo.yaml"), [*paths, *documented])
    built = cases.run_build(spark, config, days[-1])
    assert {day: counts.rows_in for day, counts in built.counts.items()} == dict.fromkeys(days, 200)
    dataset = read_dataset(LakePaths(config.lake), days[-1])
    assert {split: [member.dt for member in members] for split, members in dataset.splits.items()} == {
        split: [day] for split, day in zip(SPLITS, days, strict=True)
    }
