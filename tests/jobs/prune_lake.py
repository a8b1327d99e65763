"""A lake of twelve days and ten run dates with several workflow and model versions, written without Spark.

Each letter or digit stands for a version of 16 equal characters:

    run dates   workflow   model of the run date
    03 … 05     a          1 of 03 (promoted), 2 of 05 (workflow b, not promoted)
    06 … 07     c          3 of 06 (promoted, trained from fresh weights)
    08 … 12     d          4 of 08 (promoted, trained from 3), 5 of 11 (not promoted)

Refits 6 (of 1) and 7 (of 4); retrievers 8 of 03 (workflow a), 9 of 07 and 0 of 08 (workflow d); f is a model
of a comparison, with the workflow e.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from conf.types import Config
from storage import file_io, format_versions
from storage.dataset import Dataset, Member, publish_dataset
from storage.paths import LakePaths, Partition
from storage.publish import publish_facts, publish_rows
from tests.scoring.scoring_lake import make_config
from training.registry.champion_history import PROMOTIONS, Override, dated_path, write_overrides
from training.registry.refits import Refit, record_refit
from training.registry.versions import record_run

NAME = "toy"
DAYS = [f"2026-01-{day:02d}" for day in range(1, 13)]
RUN_DATES, RUN_DATE, WINDOW = DAYS[2:], DAYS[-1], 3
MODELS = ("toy", "toy-refit", "toy-retriever", "toy-experiments")


def version(character: str) -> str:
    return character * 16


def day(number: int) -> str:
    return DAYS[number - 1]


def config_of(root: Path, **sections: Any) -> Config:
    split = {"by": "day", "train_days": 1, "validation_days": 1, "test_days": 1}
    return make_config(root, **{"split": split, **sections})


def workflow_of(run_date: str) -> str:
    return version("a" if run_date <= day(5) else "c" if run_date <= day(7) else "d")


def build(root: Path) -> None:
    """Writes the lake. All files are two days old."""
    lake = LakePaths(str(root))
    for name in "abcde":
        file_io.replace_json(f"{lake.workflow(version(name))}/workflow.json", {})
        publish(Partition(f"workflow/{version(name)}", "rare", f"{lake.workflow(version(name))}/rare", 3))
    for one in DAYS:
        of_name = (lake.last_values(NAME), lake.profiles(NAME))
        for table in (lake.quarantine, lake.value_counts, lake.typed, lake.last_clicks, *of_name):
            publish(table.partition(one))
        write(f"{lake.raw.partition(one).path}/clicks.tsv")
    for run_date in RUN_DATES:
        _publish_run(lake, run_date)
    publish(lake.features(version("b")).partition(day(5)))
    _add_models(lake)
    write(f"{lake.models(NAME)}/blends/dt=2026-01-03.json")
    write(f"{lake.models(NAME)}/experiment_stops/dt=2026-01-03.json", '{"stops": []}')
    for path in (
        "erasures/users.json",
        "mlflow.db",
        "spark-events/local-1",
        "delivered/dt=2026-01-03/part-0",
    ):
        write(f"{root}/{path}")
    for folder in ("checkpoints/" + version("4"), "checkpoints/" + version("b")):  # complete, in progress
        write(f"{root}/{folder}/step-000000000001.json")
    age(root, hours=48)


def _publish_run(lake: LakePaths, run_date: str) -> None:
    """Publishes the features of the window of a run date, and the tables of the run date."""
    workflow, place = workflow_of(run_date), DAYS.index(run_date)
    members = [
        Member(one, publish(lake.features(workflow).partition(one)), None)
        for one in DAYS[place - WINDOW + 1 : place + 1]
    ]
    splits: Any = {
        name: (member,) for name, member in zip(("train", "validation", "test"), members, strict=True)
    }
    parent = version("c") if workflow == version("d") else None
    publish_dataset(lake, Dataset(run_date, workflow, splits, "fit", parent), "")
    of_version = (lake.users, lake.items, lake.candidates, lake.candidate_items, lake.gate_items)
    for table in (*(one(workflow) for one in of_version), lake.item_vectors(workflow, "ease")):
        publish(table.partition(run_date))
    for table in (lake.recommendations, lake.scores, lake.quality(NAME), lake.experiments("test")):
        publish(table.partition(run_date))
    for table in (lake.list_changes, lake.measures, lake.deliveries, lake.evaluations):
        publish_facts(table.partition(run_date), inputs={}, facts={})
    write(f"{lake.runs.partition(run_date).path}/nightly-1.json")
    write(f"{lake.logs}/dt={run_date}/nightly.log")
    write(lake.report(run_date))


def _add_models(lake: LakePaths) -> None:
    for name, run_date, workflow, parent in (
        ("1", day(3), "a", None),
        ("2", day(5), "b", None),
        ("3", day(6), "c", None),
        ("4", day(8), "d", "3"),
        ("5", day(11), "d", "4"),
    ):
        add_model(lake, NAME, name, run_date, workflow, parent=version(parent) if parent else None)
        record_run(lake, NAME, run_date, version(name))
    for run_date, challenger, champion in (
        (day(3), "1", "1"),
        (day(5), "2", "1"),
        (day(6), "3", "3"),
        (day(8), "4", "4"),
        (day(11), "5", "4"),
    ):
        decision = {"challenger": version(challenger), "promoted": challenger == champion}
        values = {"run_date": run_date, "champion_after": version(champion), **decision}
        path = dated_path(lake, NAME, PROMOTIONS, run_date)
        file_io.replace_json(path, format_versions.PROMOTION.stamp(values))
    for name, run_date, champion in (("6", day(3), "1"), ("7", day(8), "4")):
        add_model(lake, "toy-refit", name, run_date, workflow_of(run_date)[0], refit_of=version(champion))
        record_refit(lake, NAME, Refit(run_date, version(champion), version(name)))
    for name, run_date, workflow in (("8", day(3), "a"), ("9", day(7), "d"), ("0", day(8), "d")):
        add_model(lake, "toy-retriever", name, run_date, workflow)
        record_run(lake, "toy-retriever", run_date, version(name))
    add_model(lake, "toy-experiments", "f", day(3), "e")


def add_model(lake: LakePaths, name: str, letter: str, run_date: str, workflow: str, **values: Any) -> None:
    """Writes a model without tensors that mean anything."""
    folder = f"{lake.models(name)}/{version(letter)}"
    write(f"{folder}/dense-00000000.safetensors")
    description = {"run_date": run_date, "workflow_version": version(workflow), "parent": None, **values}
    weights = {"weights": ["dense-00000000.safetensors"]}
    file_io.replace_json(f"{folder}/model.json", format_versions.MODEL.stamp({**description, **weights}))


def pin(lake: LakePaths, run_date: str, champion: str, action: Any = "pin") -> None:
    """Records an override of a run date."""
    override = Override(run_date, action, version(champion), "somebody", "a reason", "")
    write_overrides(lake, NAME, run_date, [override])


def publish(partition: Partition) -> str:
    """Publishes two rows in two files. Returns the digest."""
    rows = pa.table({"row_id": [0, 1]})
    return publish_rows(rows, partition, inputs={"raw": "r"}, row_group_rows=1).digest


def write(path: str, text: str = "x") -> None:
    file_io.replace_text(path, text)


def age(root: Path, hours: float) -> None:
    """Makes all files older."""
    past = time.time() - hours * 3600
    for path in root.rglob("*"):
        os.utime(path, (past, past))


def entries_of(root: Path) -> set[str]:
    """The paths of all files and folders below the lake."""
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def files_of(root: Path) -> set[str]:
    """The paths of all files below the lake. A killed prune may leave empty folders."""
    return {path for path in entries_of(root) if (root / path).is_file()}


def copy(source: Path, target: Path) -> Path:
    """A copy of a lake with the same times."""
    shutil.copytree(source, target)
    return target
