"""All stages of the shipped configurations run on one machine without a JVM, from the log to the report.

A program that takes the place of `java` records that it was started. The logs are small. The configurations
below have every source of candidates and every stage: the others (tests/contract/test_roads.py) differ from
them in the layout of their log, or in the model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from storage.manifest import read_manifest
from storage.paths import LakePaths
from tests.etl.prepare import test_shop_exports
from tests.processes import ROOT, environment

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

FIRST, RUN_DATE, NEXT_DATE = "2026-01-01", "2026-01-05", "2026-01-06"
# Stages whose names are not those of jobs of each night.
NIGHT = ["build_features", "train_model", "evaluate_model"]
LISTS = ["build_candidates", "score_daily"]
FAST = ["train.epochs=1", "gate.replicates=100"]
GENERATED = [
    "generate.days=6",
    "generate.rows_per_day=1500",
    "generate.users=150",
    "generate.items=60",
    "split.train_days=3",
    "train.global_batch_size=256",
    *FAST,
]
SOURCES = [
    {"source": "covisitation", "n": 10, "window_days": 3},
    {"source": "item_knn", "n": 10, "shrink": 1.0},
    {"source": "ease", "n": 10},
    {"source": "als", "n": 10, "rank": 4, "iterations": 2},
    {"source": "retrieval", "n": 10, "model": "../models/two_tower_small.yaml", "search": "approximate"},
    {"source": "popular", "n": 10, "segment": "C3"},
    {"source": "popular", "n": 20},
]


@dataclass(frozen=True)
class FalseJava:
    """An environment whose `java` only writes a file.

    Attributes:
        variables: the variables of the environment.
        marker: the file that exists if a JVM was started.
    """

    variables: dict[str, str]
    marker: Path


@pytest.fixture
def false_java(tmp_path: Path) -> FalseJava:
    program, marker = tmp_path / "java/bin/java", tmp_path / "a JVM was started"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\ntouch "{marker}"\nexit 1\n')
    program.chmod(0o755)
    (tmp_path / "temporary").mkdir()
    variables = {
        **environment(),
        "JAVA_HOME": str(program.parents[1]),
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "TMPDIR": str(tmp_path / "temporary"),
    }
    variables.pop("PYSPARK_SUBMIT_ARGS", None)
    return FalseJava(variables, marker)


def run(job: str, false_java: FalseJava, config: str, run_date: str, *options: str) -> str:
    """Runs a job, and returns what it wrote to standard output."""
    command = [sys.executable, f"jobs/{job}.py", "--config", f"conf/datasets/{config}.yaml"]
    done = subprocess.run(
        [*command, "--run-date", run_date, *options],
        cwd=ROOT,
        env=false_java.variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert not false_java.marker.exists(), f"{job} started a JVM"
    return done.stdout


def night(
    false_java: FalseJava, config: str, run_date: str, overrides: Sequence[str], *options: str
) -> list[str]:
    """Runs `nightly`, and returns the names of its stages."""
    sets = [word for override in overrides for word in ("--set", override)]
    output = run("nightly", false_java, config, run_date, "--future", *sets, *options)
    stages: list[str] = json.loads(output.splitlines()[-1])["stages"]
    return stages


def test_java_of_this_environment_is_recorded(false_java: FalseJava, tmp_path: Path) -> None:
    """So the tests below notice a JVM."""
    code = "from spark.session import build_session; build_session('test', {})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=false_java.variables, capture_output=True, check=False
    )
    assert done.returncode != 0
    assert false_java.marker.exists()


def test_a_night_with_every_source_of_candidates(false_java: FalseJava, tmp_path: Path) -> None:
    """Two nights, so that the lists of the first are measured, and the jobs that no night has."""
    overrides = [
        f"lake={tmp_path / 'lake'}",
        f"candidates.sources={json.dumps(SOURCES)}",
        "candidates.exclude_clicked=[train]",
        "score.blend=auto",
        "train.refit=true",
        *GENERATED,
    ]
    sets = [word for override in overrides for word in ("--set", override)]
    config = "generated_retrieval"
    run("generate_clicks", false_java, config, FIRST, "--future", *sets)
    first = night(false_java, config, RUN_DATE, overrides, "--retrain")
    assert {*NIGHT, *LISTS, "train_retriever", "refit_model", "learn_blend", "report"} <= {*first}
    second = night(false_java, config, NEXT_DATE, overrides)
    assert {"build_features", *LISTS, "measure_recommendations", "report"} <= {*second}
    lake = LakePaths(str(tmp_path / "lake"))
    version = read_manifest(lake.recommendations.partition(NEXT_DATE)).facts["workflow_version"]
    facts = read_manifest(lake.candidates(version).partition(NEXT_DATE)).facts
    assert (len(facts["sources"]), facts["retrieval_search"]) == (len(SOURCES), "approximate")
    for job in ("score_rows", "check_lists", "check_quality"):
        run(job, false_java, config, NEXT_DATE, "--future", *sets)


def test_a_night_without_lists(false_java: FalseJava, tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    numbers = pd.DataFrame(draw.integers(0, 50, (1_200, 13)))
    ids = pd.DataFrame(draw.integers(0, 30, (1_200, 26))).map(lambda number: f"{number:08x}")
    rows = pd.concat([pd.Series(draw.integers(0, 2, 1_200)), numbers, ids], axis=1)
    rows.to_csv(tmp_path / "train.tsv", sep="\t", header=False, index=False)
    overrides = [f"lake={tmp_path / 'lake'}", f"data={tmp_path}", *FAST]
    stages = night(false_java, "criteo", RUN_DATE, overrides, "--retrain")
    assert stages == [*NIGHT, "score_rows", "report"]


def test_a_night_with_histories_negatives_and_a_split_by_time(false_java: FalseJava, tmp_path: Path) -> None:
    write_films(tmp_path)
    overrides = [f"lake={tmp_path / 'lake'}", f"data={tmp_path}", *FAST]
    more = ["score.blend=auto", 'candidates.sources=[{"source": "covisitation"}, {"source": "popular"}]']
    stages = night(false_java, "movielens_time", RUN_DATE, [*overrides, *more], "--retrain")
    assert [stage for stage in stages if stage != "learn_blend"] == [
        *NIGHT,
        *LISTS,
        "measure_recommendations",
        "report",
    ]
    assert "learn_blend" in stages


def write_films(folder: Path) -> None:
    """Writes a log, users and films in the format of MovieLens 100k."""
    draw = np.random.default_rng(2)
    users, films, rows = 40, 60, 1_500
    pairs = draw.choice(users * films, rows, replace=False)
    log = pd.DataFrame(
        {
            "user_id:token": pairs // films,
            "item_id:token": pairs % films,
            "rating:float": draw.integers(1, 6, rows),
            "timestamp:float": 880_000_000 + np.sort(draw.integers(0, 10_000_000, rows)),
        }
    )
    people = pd.DataFrame(
        {
            "user_id:token": range(users),
            "age:token": draw.integers(15, 80, users),
            "gender:token": draw.choice(["F", "M"], users),
            "occupation:token": draw.choice(["writer", "nurse"], users),
        }
    )
    titles = pd.DataFrame(
        {
            "item_id:token": range(films),
            "movie_title:token_seq": [f"Film {number}" for number in range(films)],
            "release_year:token": draw.integers(1950, 1999, films),
            "class:token_seq": draw.choice(["Drama", "Comedy War"], films),
        }
    )
    for name, table in (("inter", log), ("user", people), ("item", titles)):
        table.to_csv(folder / f"ml-100k.{name}", sep="\t", index=False)


@pytest.mark.parametrize("config, writer", [("shop", "csv"), ("shop_parquet", "pandas parquet")])
def test_a_night_of_a_shop(false_java: FalseJava, tmp_path: Path, config: str, writer: str) -> None:
    test_shop_exports.shop(tmp_path / "exports", writer)
    overrides = [f"lake={tmp_path / 'lake'}", f"data={tmp_path / 'exports'}"]
    overrides += [*test_shop_exports.SMALL, *FAST]
    stages = night(false_java, config, test_shop_exports.FIRST, overrides, "--retrain")
    assert {*NIGHT, *LISTS, "report"} <= {*stages}
