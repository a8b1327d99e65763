"""Users and items of the log without a row in their table: lists, the gate's lists, and what the summary counts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pyspark.sql import SparkSession

import nightrank
from conf.errors import DataError
from conf.load import load_config
from conf.types import Config
from jobs.build_candidates import run as build_candidates
from jobs.build_features import run as build_features
from jobs.evaluate_model import run as evaluate_model
from jobs.score_daily import run as score_daily
from scoring.evaluation import gate_lists
from spark.rows import records
from storage.dataset import read_dataset
from storage.job_summary import JobSummary
from storage.run_context import RunContext
from training.loop.run import train_in_process
from training.loop.training_plan import make_plan
from training.registry import mlflow_mirror
from training.registry.versions import record_run

# A train, a validation and a test day, and a later day whose users and items the run must not use.
DAYS = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]
RUN_DATE = DAYS[2]
USERS = [f"u{n}" for n in range(12)]
ITEMS = [f"i{n:02d}" for n in range(16)]
ONLY = {RUN_DATE: ("u of the test day", "i of the test day"), DAYS[3]: ("u of later", "i of later")}
WITH_ROW = {"user": {*USERS[:6], "u without log"}, "item": {*ITEMS[:8], "i without log"}}
STRING = {"type": "string"}

CONFIG: dict[str, Any] = {
    "name": "gaps",
    "log": {
        "path": "{data}/dt={date}.csv",
        "format": "csv",
        "separator": ",",
        "columns": [{"name": "user", **STRING}, {"name": "item", **STRING}, {"name": "label", "type": "int"}],
        "label": {"column": "label"},
    },
    "keys": {"user": "user", "item": "item"},
    "features": [
        {"columns": ["user", "item", "brand"], "kind": "categorical", "ops": ["categorify"]},
        {"columns": ["age"], "kind": "dense", "ops": [{"fill": {"value": 0}}, "normalize"]},
    ],
    "scopes": {"user": ["user", "age"], "item": ["item", "brand"]},
    "split": {"by": "day", "train_days": 1, "validation_days": 1, "test_days": 1, "min_train_days": 1},
    "model": {"architecture": "dlrm", "embedding_dim": 4, "bottom_mlp": [4], "top_mlp": [4]},
    "train": {"num_ranks": 1, "global_batch_size": 64, "epochs": 1, "device": "cpu", "baselines": []},
    "candidates": {"exclude_clicked": []},
    "score": {"k": 20, "device": "cpu"},
    "users": {
        "path": "{data}/users.csv",
        "format": "csv",
        "separator": ",",
        "columns": [{"name": "user", **STRING}, {"name": "age", "type": "int"}],
    },
    "items": {
        "path": "{data}/items.csv",
        "format": "csv",
        "separator": ",",
        "columns": [{"name": "item", **STRING}, {"name": "brand", **STRING}],
    },
}


@dataclass
class Run:
    """What the jobs of the run date made.

    Attributes:
        config: the configuration.
        summary: the summary of build_features.
        lists: maps each user of the published lists to the items of the list.
        gate: the same for the lists of the gate.
        users: the users whose lists the gate measured.
    """

    config: Config
    summary: JobSummary
    lists: dict[str, set[str]]
    gate: dict[str, set[str]]
    users: set[str]


def _write_raw(folder: Path) -> None:
    draw = random.Random(3)
    folder.mkdir()
    for day in DAYS:
        pairs = [(user, item) for user in USERS for item in ITEMS]
        pairs += [ONLY[day]] * 5 if day in ONLY else []
        lines = [f"{user},{item},{int(draw.random() < 0.4)}" for user, item in pairs]
        lines += [f"{user},{ONLY[day][1]},1" for user in USERS] if day in ONLY else []
        (folder / f"dt={day}.csv").write_text("\n".join(["user,item,label", *lines]) + "\n")
    for side, attribute in (("user", "age"), ("item", "brand")):
        lines = [f"{key},{number % 3}" for number, key in enumerate(sorted(WITH_ROW[side]))]
        (folder / f"{side}s.csv").write_text("\n".join([f"{side},{attribute}", *lines]) + "\n")


def _by_user(lists: list[dict[str, Any]], user: str, item: str) -> dict[str, set[str]]:
    of_users: dict[str, set[str]] = {}
    for row in lists:
        of_users.setdefault(row[user], set()).add(row[item])
    return of_users


@pytest.fixture(scope="module")
def run_with(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, dict[str, Any]], Run]:
    """A function that runs all jobs with a value of `items.missing`. The model is trained once."""
    folder = tmp_path_factory.mktemp("gaps")
    _write_raw(folder / "raw")
    torch.set_num_threads(1)

    def config_with(missing: str, quality: dict[str, Any]) -> Config:
        values = {"lake": str(folder / "lake"), "data": str(folder / "raw"), "quality": quality}
        values |= {"items": {**CONFIG["items"], "missing": missing}}
        (folder / "config.yaml").write_text(yaml.safe_dump({**CONFIG, **values}))
        return load_config(str(folder / "config.yaml"))

    def run(missing: str, quality: dict[str, Any]) -> Run:
        config = config_with(missing, quality)
        job = RunContext("test", config, RUN_DATE, open_session=lambda _: spark)
        summary = build_features(job)
        if not Path(job.lake.models(config.name)).exists():
            plan = make_plan(config, job.lake, read_dataset(job.lake, RUN_DATE))
            record_run(job.lake, config.name, RUN_DATE, train_in_process(plan)["version"])
        made: dict[str, Any] = {}

        def keep(*arguments: Any) -> Any:
            made["lists"], made["users"] = original(*arguments), arguments[-1]
            return made["lists"]

        original = gate_lists.lists_of
        with pytest.MonkeyPatch.context() as patch:
            for name in ("prepare", "set_aliases"):
                patch.setattr(mlflow_mirror, name, lambda *_: None)
            patch.setattr(gate_lists, "lists_of", keep)
            evaluate_model(job)
        build_candidates(job)
        score_daily(job)
        published = nightrank.open(config.lake).recommendations(RUN_DATE).arrow()
        return Run(
            config,
            summary,
            _by_user(published.to_pylist(), "user_id", "item_id"),
            _by_user(records(made["lists"]), "user_key", "item_key"),
            {row["user_key"] for row in records(made["users"])},
        )

    return run


@pytest.mark.parametrize("missing", ["leave_out", "serve"])
def test_users_are_served_and_items_if_the_configuration_says_so(
    run_with: Callable[[str, dict[str, Any]], Run], missing: str
) -> None:
    run = run_with(missing, {})
    user_of_test, item_of_test = ONLY[RUN_DATE]
    assert run.summary.facts["users_without_row"] == len({*USERS, user_of_test} - WITH_ROW["user"]) == 7
    assert run.summary.facts["items_without_row"] == len({*ITEMS, item_of_test} - WITH_ROW["item"]) == 9
    assert [warning.split(" of the log")[0] for warning in run.summary.facts["quality_warnings"][-2:]] == [
        "9 of 17 items",
        "7 of 13 users",
    ]
    before = {*WITH_ROW["item"], *(ITEMS if missing == "serve" else [])}
    served = {*before, *([item_of_test] if missing == "serve" else [])}
    assert run.lists.keys() == {*WITH_ROW["user"], *USERS, user_of_test}
    assert all(items == served for items in run.lists.values())
    assert run.users == run.gate.keys() == set(USERS), "users with a row before the test"
    assert all(items == before for items in run.gate.values())
    lake = nightrank.open(run.config.lake)
    lists = lake.champion(RUN_DATE).recommend([USERS[-1]], k=20)
    assert set(lists["item_id"].to_pylist()) == served


def test_a_limit_stops_the_run_before_the_tables_are_published(
    run_with: Callable[[str, dict[str, Any]], Run],
) -> None:
    """A limit also holds for tables that exist already, whose numbers are read from their manifests."""
    for missing in ("leave_out", "serve"):
        with pytest.raises(DataError, match=r"items\.csv: 9 of 17 items .*items_without_row_stop=0\.5"):
            run_with(missing, {"items_without_row_stop": 0.5})
