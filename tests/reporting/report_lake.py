"""A small lake made by hand: the output of one run with training, and of the measure of its lists."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from conf.load import load_config
from conf.types import Config, Split
from etl.quality.checks import ColumnReport, DayComparison, Finding, PieceRows
from storage import file_io
from storage.dataset import Dataset, Member, publish_dataset
from storage.manifest import FileEntry, Manifest, replace_manifest
from storage.paths import LakePaths, Partition

RUN_DATE = "2026-01-08"
MODEL, WORKFLOW = "0123456789abcdef", "fedcba9876543210"
SPLITS: dict[Split, list[str]] = {
    "train": ["2026-01-05", "2026-01-06"],
    "validation": ["2026-01-07"],
    "test": ["2026-01-08"],
}
HOSTILE_ITEM = "<script>alert('x')</script>"
_ITEMS = [HOSTILE_ITEM, *(f"item{index:02d}" for index in range(1, 30))]
_USERS = [f"user{index:02d}" for index in range(20)]


def config_of(lake: Path) -> Config:
    return load_config("conf/datasets/generated.yaml", [f"lake={lake}"])


def publish_table(partition: Partition, rows: pa.Table, facts: Mapping[str, Any], **others: Any) -> Manifest:
    """Writes the rows as two files and their manifest."""
    folder = Path(partition.path)
    folder.mkdir(parents=True, exist_ok=True)
    half = rows.num_rows // 2
    entries = []
    for index, part in enumerate((rows.slice(0, half), rows.slice(half))):
        path = folder / f"part-{index}.parquet"
        pq.write_table(part, path)
        entries.append(FileEntry(path.name, part.num_rows, path.stat().st_size, (part.num_rows,)))
    schema = tuple((field.name, str(field.type)) for field in rows.schema)
    manifest = Manifest(partition.table, partition.dt, tuple(entries), schema, {}, facts=facts, **others)
    replace_manifest(partition, manifest)
    return manifest


def publish_facts(partition: Partition, facts: Mapping[str, Any]) -> None:
    replace_manifest(partition, Manifest(partition.table, partition.dt, (), (), {}, facts=facts))


def make_lake(root: Path) -> Config:
    """Publishes every fact of the run of RUN_DATE; returns its configuration."""
    config = config_of(root)
    lake = LakePaths(config.lake)
    _features(lake)
    _model(lake, config.name)
    _evaluation(lake)
    _recommendations(lake)
    publish_facts(lake.measures.partition(RUN_DATE), MEASURE)
    publish_facts(lake.list_changes.partition(RUN_DATE), CHANGES)
    publish_facts(lake.deliveries.partition(RUN_DATE), DELIVERY)
    publish_facts(lake.quality(config.name).partition(RUN_DATE), quality_facts(FINDINGS))
    for job, total in (("build_features", 21.5), ("train_model", 33.25)):
        log = Path(lake.logs) / f"dt={RUN_DATE}" / f"{job}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(
            f"WARN noise\n{json.dumps({'job': job, 'seconds': {'session': 4.0, 'total': total}})}\n"
        )
    return config


MEASURE = {
    "recommendations_date": RUN_DATE,
    "against": "next_day",
    "k": 10,
    "users": 20,
    "hit_rate": 0.21,
    "ndcg": 0.11,
    "coverage": 0.6,
    "popular": {"hit_rate": 0.1, "ndcg": 0.05, "coverage": 0.03},
    "lift": 2.1,
    "truth": {
        "click_probability": {"hit_rate": 0.275, "ndcg": 0.145, "coverage": 0.65},
        "best": {"hit_rate": 0.28, "ndcg": 0.15, "coverage": 0.55},
        "share_of_best": 0.75,
    },
    "cold_users": None,
    "cold_start": {
        "known_users": {
            "users": 17,
            "lists": {"hit_rate": 0.24, "ndcg": 0.12},
            "popular": {"hit_rate": 0.11, "ndcg": 0.05},
            "best": {"hit_rate": 0.29, "ndcg": 0.16},
        },
        "new_users": {
            "users": 3,
            "lists": {"hit_rate": 0.1234, "ndcg": 0.07},
            "popular": {"hit_rate": 0.0456, "ndcg": 0.02},
            "best": {"hit_rate": 0.2345, "ndcg": 0.13},
        },
        "new_items": {
            "users": 0,
            "lists": {"hit_rate": None, "ndcg": None},
            "popular": {"hit_rate": None, "ndcg": None},
            "best": {"hit_rate": None, "ndcg": None},
            "items": 4,
            "position_share": 0.0567,
            "click_share": 0.0678,
        },
    },
    "candidates": {
        "users": 20,
        "positives": 41,
        "recall": 0.625,
        "by_source": {"covisitation": 0.375, "popular": 0.25},
        "mean_candidates": 112.4,
        "cold_users": None,
    },
}


CHANGES = {
    "before": "2026-01-07",
    "held_back": False,
    "excesses": [],
    "coverage": 25 / 30,
    "coverage_before": 0.5,
    "cold_share": 0.0123,
    "users_in_both": 18,
    "users_lost": 1,
    "users_gained": 2,
    "users_lost_share": 1 / 19,
    "churn": 0.4321,
    "jaccard": 0.5678,
    "score_psi": 0.0912,
    "score_psi_noise": 0.0312,
    "score_moved": {"range": "0.1 to 0.2", "before": 0.1, "today": 0.2},
}

DELIVERY = {
    "users": 20,
    "model_version": MODEL,
    "sinks": [
        {
            "name": "app",
            "kind": "jdbc",
            "target": "jdbc:postgresql:app lists",
            "rows": 180,
            "written": 77,
            "deleted": 13,
            "seconds": 1.5,
        },
        {
            "name": "files",
            "kind": "json_lines",
            "target": HOSTILE_ITEM,
            "rows": 180,
            "written": None,
            "deleted": None,
            "seconds": 2.25,
        },
    ],
}


FINDINGS = (
    Finding("warn", "psi", "C2", 0.3127, 0.25, f"C2 drifted, most at {HOSTILE_ITEM!r}"),
    Finding("warn", "row_shortfall", None, 0.6, 0.5, "80 rows, 200 on the median train day"),
)


def quality_facts(findings: Sequence[Finding]) -> dict[str, Any]:
    """A data report over one column of names, whose values are hostile, and one of numbers."""
    names = ColumnReport(
        name="C2",
        kind="string",
        nulls=2,
        cells=78,
        train_nulls=0,
        train_cells=400,
        distinct=25,
        train_distinct=29,
        new_cells=39,
        psi=0.3127,
        psi_noise=0.0421,
        moved=(HOSTILE_ITEM, 0.1, 0.4),
        top=((HOSTILE_ITEM, 32, 40), ("</td><b>", 20, None)),
        new_top=(("<img src=x onerror=alert(1)>" * 9, 13),),
        low=None,
        high=None,
        mean=None,
    )
    numbers = replace(
        names,
        name="I1",
        kind="int",
        psi=None,
        psi_noise=None,
        moved=None,
        new_cells=None,
        train_distinct=None,
        top=((0, 70, None),),
        new_top=(),
        low=-5,
        high=1_234_567,
        mean=40.25,
    )
    days = [(dt, split) for split, dts in SPLITS.items() for dt in dts]
    pieces = tuple(PieceRows(dt, split, 80 if split == "test" else 200, 20) for dt, split in days)
    compared = DayComparison(RUN_DATE, False, pieces, (numbers, names))
    return {**compared.to_facts(), "findings": [finding.to_facts() for finding in findings]}


def _features(lake: LakePaths) -> None:
    draw = random.Random(7)
    splits = {}
    for split, days in SPLITS.items():
        members = []
        for dt in days:
            clicks = [float(draw.random() < 0.3) for _ in range(200)]
            rows = pa.table(
                {
                    "row_id": list(range(200)),
                    "user_key": [draw.choice(_USERS) for _ in range(200)],
                    "item_key": [draw.choice(_ITEMS) for _ in range(200)],
                    "label": pa.array(clicks, pa.float32()),
                }
            )
            partition = lake.features(WORKFLOW).partition(dt)
            manifest = publish_table(partition, rows, {}, rows_in=204, dropped={"wrong number of fields": 4})
            members.append(Member(dt, manifest.digest, None))
        splits[split] = tuple(members)
    publish_dataset(lake, Dataset(RUN_DATE, WORKFLOW, splits, "fit"), "2026-01-09T00:00:00Z")


def _model(lake: LakePaths, name: str) -> None:
    history = [
        {
            "step": step,
            "epoch": step // 100,
            "loss": 0.45 + 0.25 * math.exp(-step / 60),
            "learning_rate": 0.001 * min(1.0, step / 20),
            "rows_per_s": 90_000 + 500 * (step % 7),
            "loader_wait_share": 0.02,
        }
        for step in range(10, 210, 10)
    ]
    model = {
        "version": MODEL,
        "run_date": RUN_DATE,
        "architecture": "dlrm",
        "model": {
            "architecture": "dlrm",
            "multi_hot": {"pooling": "mean", "max_length": 32, "lengths": {}},
            "embedding_dim": 16,
            "bottom_mlp": [64, 16],
            "top_mlp": [64, 32],
        },
        "workflow_version": WORKFLOW,
        "parent": None,
        "metrics": {"validation": {"auc": 0.795, "log_loss": 0.452, "normalized_entropy": 0.83}},
        "history": history,
        "train_rows": 360_000,
        "steps": 200,
        "seconds": 14.2,
        "num_ranks": 2,
    }
    file_io.replace_json(f"{lake.models(name)}/{MODEL}/model.json", model)


def _evaluation(lake: LakePaths) -> None:
    bins = [
        {
            "low": low / 10,
            "high": (low + 1) / 10,
            "rows": 4_000 // (low + 1),
            "mean_probability": low / 10 + 0.05,
            "click_rate": low / 10 + 0.04 + 0.01 * (low % 3),
        }
        for low in range(9)
    ]
    challenger = {
        "version": MODEL,
        "workflow_version": WORKFLOW,
        "auc": 0.7984,
        "log_loss": 0.451,
        "normalized_entropy": 0.832,
        "rows": 60_000,
        "positives": 15_000,
        "calibration": bins,
        "histogram": {
            "edges": [edge / 20 for edge in range(21)],
            "counts": [400 * (20 - item) for item in range(20)],
        },
    }
    facts = {
        "challenger": challenger,
        "champion": None,
        "promoted": True,
        "reason": "there was no champion & <none> to beat",
        "margin": 0.002,
        "baselines": {"logistic_regression": {"validation": {"auc": 0.71}, "test": {"auc": 0.7103}}},
        "best_auc": 0.8142,
    }
    publish_facts(lake.evaluations.partition(RUN_DATE), facts)


def _recommendations(lake: LakePaths) -> None:
    draw = random.Random(11)
    rows = []
    for user in _USERS:
        items = draw.sample(_ITEMS[:25], 9)
        for position, item in enumerate(
            [HOSTILE_ITEM, *(item for item in items if item != HOSTILE_ITEM)][:9], start=1
        ):
            row = {"user_id": user, "position": position, "item_id": item, "score": 0.9 / position}
            rows.append({**row, "reason": "explore" if position == 9 else f"boost:{HOSTILE_ITEM}"})
    facts = {
        "k": 9,
        "users": len(_USERS),
        "items": len(_ITEMS),
        "users_with_fewer": 0,
        "items_recommended": 25,
        "coverage": 25 / 30,
        "score_histogram": {
            "edges": [edge / 10 for edge in range(11)],
            "counts": [60, 40, 20, 20, 20, 0, 0, 0, 0, 20],
        },
        "model_version": MODEL,
        "workflow_version": WORKFLOW,
        "scored_at": "2026-01-09T00:10:00Z",
    }
    publish_table(lake.recommendations.partition(RUN_DATE), pa.Table.from_pylist(rows), facts)
