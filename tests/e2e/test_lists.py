"""Lists of ids from a raw log to recommendations, job after job, with a Wide & Deep model trained by FTRL."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from pyspark.sql import SparkSession

from conf.load import load_config
from etl.workflow.fitted_workflow import load_local
from jobs.build_candidates import run as build_candidates
from jobs.build_features import run as build_features
from jobs.evaluate_model import run as evaluate_model
from jobs.score_daily import run as score_daily
from storage.dataset import read_dataset
from storage.manifest import data_files, read_manifest
from storage.paths import Partition
from storage.run_context import RunContext
from tests.training.numpy_models import Network
from training.checkpoints import load_model
from training.loop.run import train_in_process
from training.loop.training_plan import make_plan
from training.registry import mlflow_mirror
from training.registry.versions import record_run

RUN_DATE = "2026-01-09"
TAGS = [f"tag {n}" for n in range(8)]
BANNERS = "sale|new"
SPLIT_AND_NUMBER: list[Any] = [{"split_list": {"separator": "|"}}, {"categorify": {"min_count": 1}}]

CONFIG: dict[str, Any] = {
    "name": "lists",
    "log": {
        "path": "{data}/log.tsv",
        "format": "tsv",
        "columns": [
            {"name": name, "type": "int" if name == "label" else "string"}
            for name in ("label", "user", "item", "wishes", "tags", "banners")
        ],
        "label": {"column": "label"},
    },
    "keys": {"user": "user", "item": "item"},
    "features": [
        {"columns": ["wishes", "tags", "banners"], "kind": "multi_hot", "ops": SPLIT_AND_NUMBER},
        {"columns": ["item"], "kind": "categorical", "ops": [{"categorify": {"min_count": 1}}]},
    ],
    "scopes": {"user": ["wishes"], "item": ["tags", "item"], "context": ["banners"]},
    "split": {"by": "fraction", "train": 0.7, "validation": 0.1},
    "model": {
        "architecture": "wide_and_deep",
        "embedding_dim": 8,
        "deep": [32, 16],
        "dropout": 0.05,
        "wide_ftrl": {"beta": 0.1},
        "multi_hot": {"pooling": "sum", "max_length": 3},
    },
    "train": {
        "num_ranks": 1,
        "global_batch_size": 256,
        "epochs": 4,
        "device": "cpu",
        "baselines": ["logistic_regression"],
    },
    "candidates": {"exclude_clicked": []},
    "score": {"k": 4, "context": {"banners": BANNERS}, "device": "cpu"},
}


def write_log(path: Path) -> None:
    """Users click items with a tag among their wishes; some users have no wishes and some items no tags."""
    draw = random.Random(5)
    wishes = {f"u{n:02d}": draw.sample(TAGS, n % 4) for n in range(60)}
    tags = {f"i{n:02d}": draw.sample(TAGS, n % 3) for n in range(30)}
    lines = []
    for _ in range(12_000):
        user, item = draw.choice(list(wishes)), draw.choice(list(tags))
        wanted = set(wishes[user]) & set(tags[item])
        label = int(draw.random() < (0.9 if wanted else 0.1))
        lists = ("|".join(wishes[user]), "|".join(tags[item]), draw.choice(["", "sale", "new", BANNERS]))
        lines.append("\t".join([str(label), user, item, *lists]))
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines) + "\n")


def rows(partition: Partition) -> list[dict[str, Any]]:
    """The rows of a published partition."""
    files = data_files(partition, read_manifest(partition))
    table_rows: list[dict[str, Any]] = pa.concat_tables(
        pq.ParquetFile(path).read() for path in files
    ).to_pylist()
    return table_rows


@pytest.mark.parametrize("engine", ["arrow", "sql"])
def test_lists_travel_from_the_raw_log_to_the_scores(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    for name in ("prepare", "set_aliases"):
        monkeypatch.setattr(mlflow_mirror, name, lambda *_: None)
    torch.set_num_threads(1)
    write_log(tmp_path / "raw/log.tsv")
    values = {"lake": str(tmp_path / "lake"), "data": str(tmp_path / "raw"), "workflow": {"engine": engine}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**CONFIG, **values}))
    config = load_config(str(tmp_path / "config.yaml"))
    job = RunContext("test", config, RUN_DATE, open_session=lambda _: spark)
    build_features(job)
    plan = make_plan(config, job.lake, read_dataset(job.lake, RUN_DATE))
    description = train_in_process(plan)
    record_run(job.lake, config.name, RUN_DATE, description["version"])
    test = description["metrics"]["test"]
    assert test["auc"] > 0.75
    # The model version seeds the shuffle and depends on folder names, so the difference varies between runs.
    assert description["baselines"]["logistic_regression"]["test"]["auc"] < test["auc"] - 0.03
    judged = evaluate_model(job).facts
    assert judged["challenger_auc"] == pytest.approx(test["auc"], abs=1e-6)
    build_candidates(job)
    score_daily(job)

    spec = plan.spec
    assert [feature.name for feature in spec.embedded] == ["item", "wishes", "tags", "banners"]
    encoded = load_local(job.lake, spec.workflow_version).encode_values({"banners": BANNERS}, ["banners"])
    assert len(encoded["banners"]) == 2
    loaded = load_model(plan.model_path, torch.device("cpu"))
    state = {name: value.numpy().astype(np.float64) for name, value in loaded.model.state_dict().items()}
    network = Network(state, spec.cardinalities, "sum", plan.model.settings)
    users = rows(job.lake.users(spec.workflow_version).partition(RUN_DATE))
    items = rows(job.lake.candidate_items(spec.workflow_version).partition(RUN_DATE))
    assert any(not user["wishes"] for user in users)
    assert any(not item["tags"] for item in items)
    expected = {
        (user["user_key"], item["item_key"]): network.logit(
            "wide_and_deep",
            np.zeros(0),
            [[item["item"]], user["wishes"] or [], item["tags"] or [], encoded["banners"]],
        )
        for user in users
        for item in items
    }
    lists = pd.DataFrame(rows(job.lake.recommendations.partition(RUN_DATE)))
    assert len(lists) == 60 * 4
    logits = np.array([expected[user, item] for user, item in zip(lists.user_id, lists.item_id, strict=True)])
    np.testing.assert_allclose(lists.score, 1 / (1 + np.exp(-logits)), atol=1e-5)
    for user, user_rows in lists.groupby("user_id"):
        best = sorted((logit for (key, _), logit in expected.items() if key == user), reverse=True)[:4]
        np.testing.assert_allclose(
            user_rows.sort_values("position").score, 1 / (1 + np.exp(-np.array(best))), atol=1e-5
        )
