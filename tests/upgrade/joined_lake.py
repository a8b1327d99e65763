"""The lake of make_joined_lake.py, the stages of a run over a copy of it, and the rows of its tables."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from conf.load import load_config
from conf.types import Config
from jobs.chain.steps import RunPlan
from storage.job_summary import JobSummary
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths, Partition
from storage.remove import dates_of_tables, list_lake
from storage.run_context import RunContext
from tests.upgrade.make_joined_lake import ARCHIVE, CONFIG
from training.registry.versions import champion_as_of


@dataclass(frozen=True)
class JoinedLake:
    """A copy of the old lake with its raw files, below `folder`."""

    folder: Path

    @property
    def lake(self) -> LakePaths:
        return LakePaths(str(self.folder / "lake"))

    @property
    def partitions(self) -> list[Partition]:
        """Every published partition."""
        listed = dates_of_tables(list_lake(self.lake))
        return [
            Partition(table, dt, f"{self.lake.root}/{table}/dt={dt}", depth=table.count("/") + 2)
            for (table, dt), files in sorted(listed.items())
            if files.manifest is not None
        ]

    def copy_to(self, folder: Path) -> JoinedLake:
        """Copies the folder, to one that does not exist yet."""
        shutil.copytree(self.folder, folder)
        return JoinedLake(folder)

    def config(self, overrides: Sequence[str] = ()) -> Config:
        """The configuration of the old runs, with the places of this copy."""
        sink = f"{{kind: json_lines, name: files, path: {self.folder}/delivered}}"
        places = [f"lake={self.lake.root}", f"data={self.folder}/data", f"deliver.sinks=[{sink}]"]
        return load_config(str(CONFIG), [*places, *overrides])

    def run(self, job: str, run_date: str, *overrides: str, spark: SparkSession | None = None) -> JobSummary:
        """Runs a stage that has no options."""
        stage = import_module(f"jobs.{job}")
        summary: JobSummary = stage.run(self.context(job, run_date, *overrides, spark=spark))
        return summary

    def context(
        self, job: str, run_date: str, *overrides: str, spark: SparkSession | None = None
    ) -> RunContext:
        """The context of a stage. Without a session, a stage that asks for one fails."""
        return RunContext(job, self.config(overrides), run_date, _spark=spark)

    def run_night(self, run_date: str, *, retrain: bool) -> dict[str, JobSummary]:
        """Runs the stages of nightly without a session. Returns the summary of each by its name.

        All items are candidates and in the lists, and there is no sink: the sources and the sink of joined.yaml
        need Spark.
        """
        changes = ("candidates.sources=[{source: all_items}]", "score.k=30", "deliver.sinks=[]")
        plan = RunPlan(self.config(changes), run_date, retrain=retrain)
        summaries: dict[str, JobSummary] = {}
        for steps in (plan.steps_before_gate, plan.steps_after_gate):
            for step in steps():
                summaries[step.name] = self.run(step.job, step.run_date, *changes, *step.overrides)
        return summaries

    def champion(self, run_date: str) -> str:
        """The version of the model that serves on a date."""
        version = champion_as_of(self.lake, self.config().name, run_date)
        assert version is not None
        return version


def unpack(folder: Path) -> JoinedLake:
    """Unpacks the archive into a folder."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return JoinedLake(folder)


def table_of(partition: Partition) -> pa.Table:
    """The rows of a partition, by the files that its manifest names."""
    files = [path for path in data_files(partition, read_manifest(partition)) if path.endswith(".parquet")]
    return pa.concat_tables(pq.ParquetFile(path).read() for path in files) if files else pa.table({})


def rows_of(partition: Partition) -> pd.DataFrame:
    """The rows of a partition."""
    return table_of(partition).to_pandas()


def texts_of(rows: pa.Table) -> set[str]:
    """The values of all columns of texts, and of all lists of texts."""
    texts: set[str] = set()
    for column in rows.columns:
        values = pc.list_flatten(column) if pa.types.is_list(column.type) else column
        if pa.types.is_string(values.type):
            texts |= {value for value in values.unique().to_pylist() if value is not None}
    return texts


def assert_same_rows(actual: pd.DataFrame, expected: pd.DataFrame, key: str) -> None:
    """Compares the rows of two tables with one row per value of `key`, in any order."""
    assert actual[key].is_unique
    left, right = (rows.sort_values(key).reset_index(drop=True) for rows in (actual, expected))
    pd.testing.assert_frame_equal(left, right, check_exact=True)
