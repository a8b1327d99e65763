"""Whole jobs on small logs, whose frames are recorded and checked for the GPU and against golden plans."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conf.types import Config
from jobs import score_daily as score_stage
from jobs.build_candidates import run as build_candidates
from jobs.deliver_recommendations import run as deliver_recommendations
from jobs.evaluate_model import run as evaluate_model
from jobs.measure_recommendations import run as measure_recommendations
from jobs.score_daily import run as score_daily
from jobs.score_rows import run as score_rows
from scoring.model import context_features
from spark.choose_workers import SparkWorkers
from storage.run_context import RunContext
from tests.etl import cases
from tests.plans import examples
from tests.scoring.reference_scores import make_reference
from tests.scoring.scoring_lake import DAY_AFTER, RUN_DATE, EncodedContext, make_config, publish_lake
from training.registry import mlflow_mirror

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]
SPLIT = {"by": "day", "train_days": 1, "validation_days": 1, "test_days": 1}


@dataclass(frozen=True)
class Run:
    """`make` runs the jobs below a folder. `on_gpu` is false for the CPU engine, which is not explained."""

    make: Callable[[SparkSession, Path], None]
    on_gpu: bool = True


def _by_day(engine: str) -> Callable[[SparkSession, Path], None]:
    """A tab-separated log kept by day: a fit, and a night later an extension of the fitted workflow."""

    def make(spark: SparkSession, folder: Path) -> None:
        config = cases.write_config(
            folder, {"split": SPLIT, "workflow": {"engine": engine, "mode": "retrain"}}
        )
        for seed, day in enumerate(DAYS):
            cases.write_day(folder / "raw" / f"dt={day}", cases.make_lines(day, 40, seed))
        first = cases.run_build(SparkWorkers(spark), config, DAYS[-2])
        cases.run_build(SparkWorkers(spark), config, DAYS[-1], first.workflow.version)

    return make


CHOICES: dict[str, Any] = {
    "log": {
        "path": "{data}/ratings.csv",
        "format": "csv",
        "separator": ",",
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
        "separator": ",",
        "columns": [{"name": "who", "type": "int"}, {"name": "age", "type": "int"}],
    },
    "items": {
        "path": "{data}/items.csv",
        "format": "csv",
        "separator": ",",
        "columns": [{"name": "what", "type": "string"}, {"name": "kind", "type": "string"}],
    },
    "keys": {"user": "who", "item": "what"},
    "features": [
        {"columns": ["age"], "kind": "dense", "ops": [{"fill": {"value": 30}}, "normalize"]},
        {"columns": ["who", "what", "kind"], "kind": "categorical", "ops": ["categorify"]},
    ],
    "scopes": {"user": ["age", "who"], "item": ["what", "kind"]},
    "negatives": {"per_positive": 2},
    "split": {"by": "leave_last_out"},
}


def _choices(spark: SparkSession, folder: Path) -> None:
    """Ratings with a header, users and items beside them, negatives drawn, the last of each user left out."""
    config = cases.write_config(folder, {"workflow": {"engine": "sql"}}, CHOICES)
    raw = folder / "raw"
    raw.mkdir()
    tables = (
        ("users", ["who", "age"], [[n, 20 + n] for n in range(6)]),
        ("items", ["what", "kind"], [[f"film {n}", "ab"[n % 2]] for n in range(9)]),
        (
            "ratings",
            ["who", "what", "stars", "at"],
            [[n % 6, f"film {n * 7 % 9}", 2 + n % 4, 100 + n] for n in range(40)],
        ),
    )
    for name, header, rows in tables:
        with (raw / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])
    cases.run_build(SparkWorkers(spark), config, DAYS[0])


PARQUET: dict[str, Any] = {
    "log": {
        "path": "{data}/log.parquet",
        "format": "parquet",
        "columns": [
            {"name": "label", "type": "int"},
            {"name": "user", "type": "string"},
            {"name": "item", "type": "string"},
            {"name": "price", "type": "float"},
            {"name": "at", "type": "int"},
        ],
        "label": {"column": "label"},
        "event_time": {"column": "at"},
    },
    "features": [
        {"columns": ["price"], "kind": "dense", "ops": ["normalize"]},
        {"columns": ["user", "item"], "kind": "categorical", "ops": ["categorify"]},
    ],
    "scopes": {"user": ["user"], "item": ["item", "price"]},
    "split": {"by": "fraction"},
}


def _parquet(spark: SparkSession, folder: Path) -> None:
    """A Parquet log that is split inside its one partition, by time and then by position, with quarantined
    rows.
    """
    config = cases.write_config(folder, {"workflow": {"engine": "sql"}}, PARQUET)
    rows = pd.DataFrame(
        [(n % 2, f"u{n % 5}", f"i{n % 7}", n / 2, n) for n in range(60)],
        columns=["label", "user", "item", "price", "at"],
    )
    (folder / "raw").mkdir()
    pq.write_table(pa.Table.from_pandas(rows, preserve_index=False), folder / "raw/log.parquet")
    cases.run_build(SparkWorkers(spark), config, DAYS[0])
    rows.loc[rows["at"] % 9 == 1, "label"] = 2
    (folder / "untimed/raw").mkdir(parents=True)
    pq.write_table(pa.Table.from_pandas(rows, preserve_index=False), folder / "untimed/raw/log.parquet")
    untimed = {"workflow": {"engine": "sql"}, "log": {**PARQUET["log"], "event_time": None}}
    cases.run_build(SparkWorkers(spark), cases.write_config(folder / "untimed", PARQUET, untimed), DAYS[0])


def operators_config(folder: Path) -> Config:
    """A log with a column for every operator, encoded by the example of that operator."""
    engine = {"split": SPLIT, "workflow": {"engine": "sql"}}
    return cases.write_config(folder, examples.log_section(), engine)


def _operators(spark: SparkSession, folder: Path) -> None:
    """Every operator fitted and applied."""
    config = operators_config(folder)
    for day in DAYS[-3:]:
        examples.write_log(folder / "raw" / f"dt={day}" / "log.tsv")
    cases.run_build(SparkWorkers(spark), config, DAYS[-1])


SHOP: dict[str, Any] = {
    **CHOICES,
    "log": {**CHOICES["log"], "path": "{data}/{date}.csv"},
    "features": [
        *CHOICES["features"],
        {"columns": ["history"], "kind": "multi_hot", "ops": [{"categorify": {"min_count": 1}}]},
    ],
    "scopes": {**CHOICES["scopes"], "user": ["age", "who", "history"]},
    "history": {"length": 5, "days": 2},
    "split": {**SPLIT, "min_train_days": 1},
    "quality": {"misdated_share_warn": None, "max_misdated_share": 1.0},
}


def _shop(spark: SparkSession, folder: Path) -> None:
    """A log by day on a cluster: histories, negatives, users and items. Tasks compute the features."""
    config = cases.write_config(folder, {"workflow": {"engine": "arrow"}}, SHOP)
    raw = folder / "raw"
    raw.mkdir()
    tables = [
        ("users", ["who", "age"], [[n, 20 + n] for n in range(6)]),
        ("items", ["what", "kind"], [[f"film {n}", "ab"[n % 2]] for n in range(9)]),
    ]
    for number, day in enumerate(DAYS):
        rows = [[n % 6, f"film {(n + number) * 7 % 9}", 2 + n % 4, 100 * number + n] for n in range(40)]
        tables.append((day, ["who", "what", "stars", "at"], rows))
    for name, header, rows in tables:
        with (raw / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])
    cases.run_build(SparkWorkers(spark), config, DAYS[-1])


LISTED = [
    {"source": "covisitation", "n": 6, "window_days": 4},
    {"source": "item_knn", "n": 3},
    {"source": "popular", "n": 8},
    {"source": "popular", "n": 4, "segment": "who"},
]


def _scoring(spark: SparkSession, folder: Path) -> None:
    """Runs the jobs around scoring.

    They are the gate for a first model and a challenger, candidates of all items and of several sources,
    lists of two runs, their delivery to files, scores of rows, and measures of lists.
    """
    (folder / "reference").mkdir()
    published = publish_lake(folder / "lake", make_reference(folder / "reference"))
    on_gpu = published.workflow.model_copy(update={"engine": "sql"})
    config = published.model_copy(update={"workflow": on_gpu})
    popular = make_config(
        folder / "lake",
        workflow={"engine": "sql"},
        candidates={"sources": LISTED, "max": 12, "active_days": 3, "exclude_clicked": ["train"]},
    )
    sinks = [{"kind": "json_lines", "name": "files", "path": str(folder / "files"), "users_per_file": 10}]
    delivering = make_config(folder / "lake", workflow={"engine": "sql"}, deliver={"sinks": sinks})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_mirror, "prepare", lambda *_: None)
        patch.setattr(mlflow_mirror, "set_aliases", lambda *_: None)
        patch.setattr(context_features, "load_local", lambda *_: EncodedContext())
        patch.setattr(score_stage, "ENTRIES_IN_DRIVER", -1)  # the plans of lists that are large
        for body, run_config, run_date in (
            (evaluate_model, config, RUN_DATE),
            (evaluate_model, config, DAY_AFTER),
            (build_candidates, popular, RUN_DATE),
            (build_candidates, config, RUN_DATE),
            (score_daily, config, RUN_DATE),
            (build_candidates, config, DAY_AFTER),
            (score_daily, config, DAY_AFTER),
            (deliver_recommendations, delivering, DAY_AFTER),
            (score_rows, config, RUN_DATE),
            (measure_recommendations, config, RUN_DATE),
        ):
            body(RunContext("test", run_config, run_date, _spark=spark))


RUNS: Mapping[str, Run] = {
    "operators": Run(_operators),
    "by_day": Run(_by_day("sql")),
    "by_day_on_cpus": Run(_by_day("arrow"), on_gpu=False),
    "choices": Run(_choices),
    "parquet": Run(_parquet),
    "shop": Run(_shop),
    "scoring": Run(_scoring),
}
