"""The lake that release 0.1.0 (commit 398f234) wrote, and the reader of each kind of JSON file in it.

`lake-0.1.0.tar.xz` holds what `generate_clicks`, `nightly --retrain` for 2026-01-04 and 2026-01-05, `champion
--pin` and `champion --release` left for `upgrade.yaml`, and the checkpoints of a training that was killed;
without event logs, reports and MLflow's database. The model of 2026-01-04 serves; the gate kept the one of
2026-01-05 out.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from conf.types import ModelConfig, Train
from etl.workflow.fitted_workflow import load_local
from reporting.monitoring.run_record import read_records
from scoring.model.model_info import read_model_info
from storage.dataset import read_dataset, read_spec
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths, Partition
from training.checkpoints.checkpoints import Checkpoints, Position
from training.collectives import LocalCollectives
from training.loop.train_step import Trainer
from training.models import build_model
from training.registry.champion_history import read_decisions, read_overrides
from training.registry.model_json import read_description
from training.registry.versions import challenger_of, model_path

HERE = Path(__file__).parent
CONFIG = HERE / "upgrade.yaml"
NAME = "upgrade"
FIRST, SECOND, NEXT = "2026-01-04", "2026-01-05", "2026-01-06"
CHAMPION, CHALLENGER = "f25c01b155c9b1b9", "46ff39bb307232d6"
CHAMPION_WORKFLOW = "354c2d28e3aad572"
KILLED = "8abb611fb4b325ed"


def unpack(folder: Path) -> LakePaths:
    """The lake, in a folder of its own."""
    with tarfile.open(HERE / "lake-0.1.0.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return LakePaths(str(folder / "lake"))


def rows_of(partition: Partition) -> int:
    """Rows in the files that a partition's manifest names, by their footers."""
    files = data_files(partition, read_manifest(partition))
    return sum(pq.ParquetFile(path).metadata.num_rows for path in files)


def restore_checkpoint(lake: LakePaths) -> Position | None:
    """Fills a fresh trainer of the killed training's architecture from its newest checkpoint."""
    spec = read_spec(lake, CHAMPION_WORKFLOW)
    settings = read_description(model_path(lake, NAME, CHAMPION))["model"]
    trainer = Trainer(build_model(ModelConfig(**settings), spec, 0), Train(), LocalCollectives())
    with Checkpoints(lake.checkpoints(KILLED), LocalCollectives()) as checkpoints:
        return checkpoints.restore(trainer)


@dataclass(frozen=True)
class Kind:
    """A kind of file: where one lies below the lake, what reads it, and where its version stands in it."""

    path: str
    read: Callable[[LakePaths], Any]
    version_within: tuple[str, ...] = ()

    def file(self, lake: LakePaths) -> Path:
        """The one file, or the newest, that the pattern names."""
        return sorted(Path(lake.root).glob(self.path))[-1]

    def values(self, lake: LakePaths) -> tuple[dict[str, Any], dict[str, Any]]:
        """The file's JSON, and the object within it that holds the version."""
        whole = json.loads(self.file(lake).read_text())
        part = whole
        for key in self.version_within:
            part = part[key]
        return whole, part


KINDS = {
    "manifest": Kind(
        f"recommendations/dt={SECOND}/_MANIFEST.json",
        lambda lake: read_manifest(lake.recommendations.partition(SECOND)),
    ),
    "data manifest": Kind(
        f"datasets/dt={SECOND}/_MANIFEST.json", lambda lake: read_dataset(lake, SECOND), ("facts",)
    ),
    "workflow": Kind(
        f"workflow/{CHAMPION_WORKFLOW}/workflow.json", lambda lake: load_local(lake, CHAMPION_WORKFLOW)
    ),
    "feature spec": Kind(
        f"workflow/{CHAMPION_WORKFLOW}/feature_spec.json", lambda lake: read_spec(lake, CHAMPION_WORKFLOW)
    ),
    "model description": Kind(
        f"models/{NAME}/{CHAMPION}/model.json",
        lambda lake: (
            read_description(model_path(lake, NAME, CHAMPION)),
            read_model_info(model_path(lake, NAME, CHAMPION)),
        ),
    ),
    "checkpoint index": Kind(f"checkpoints/{KILLED}/step-*.json", restore_checkpoint),
    "record of a trained version": Kind(
        f"models/{NAME}/runs/dt={SECOND}.json", lambda lake: challenger_of(lake, NAME, SECOND)
    ),
    "promotion": Kind(
        f"models/{NAME}/promotions/dt={FIRST}.json", lambda lake: read_decisions(lake, NAME, SECOND)
    ),
    "record of interventions": Kind(
        f"models/{NAME}/interventions/dt={SECOND}.json", lambda lake: read_overrides(lake, NAME, SECOND)
    ),
    "run record": Kind(f"runs/dt={SECOND}/train_model-*.json", lambda lake: read_records(lake, [SECOND])),
}
