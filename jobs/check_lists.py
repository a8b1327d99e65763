"""Checks the published lists of a run date.

Every file must be complete. The lists must have been made by the model that serves, from the tables of users
and candidates that are published now. The job changes nothing and needs no Spark session.
"""

from __future__ import annotations

import pyarrow.parquet as pq

from conf.errors import DataError
from conf.messages import counted
from jobs.runner import run_job
from storage import file_io
from storage.dataset import read_dataset
from storage.fsck import require_intact_partition
from storage.job_summary import JobSummary
from storage.manifest import Manifest, read_manifest
from storage.paths import Partition
from storage.run_context import RunContext, require
from training.registry.refits import serving_model
from training.registry.served_experiments import served_experiment

DESCRIPTION = (
    "Checks the published lists of a run date: every file must be complete, and the lists must come from "
    "the current champion and from the tables that are published now. Changes nothing and needs no Spark "
    "session. Ends with exit code 3 if a check fails."
)

_REPORTED = (
    "users",
    "users_with_fewer",
    "users_without",
    "coverage",
    "k",
    "model_version",
    "workflow_version",
)


def run(context: RunContext) -> JobSummary:
    """Checks the table `recommendations` of the run date, and reports figures of its manifest."""
    require(context.config, "keys")
    partition = context.lake.recommendations.partition(context.run_date)
    manifest = read_manifest(partition)
    facts = manifest.facts
    with context.phase("files"):
        check_files(partition, manifest)
    serving = serving_model(context.config, context.lake, context.run_date)
    version = serving.version if serving else None
    if facts["model_version"] != version:
        of = f"refit of champion {serving.champion}" if serving and serving.refit else "champion"
        raise DataError(
            f"the lists of {context.run_date} were computed with model {facts['model_version']}, "
            f"but the {of} is {version}",
            f"start the run of {context.run_date} again",
        )
    check_experiment(context, manifest)
    check_origins(context, manifest)
    if not manifest.rows:
        raise DataError(
            f"the lists of {context.run_date} are empty: none of "
            f"{counted(facts['users'], 'user')} has a candidate",
            "look at the section on candidates in the report of this date",
        )
    return JobSummary(
        partition.path,
        rows_in=manifest.rows,
        rows_out=manifest.rows,
        facts={
            **{name: facts[name] for name in _REPORTED},
            "champion": facts.get("refit_of") or facts["model_version"],
            "digest": manifest.digest,
        },
    )


def check_files(partition: Partition, manifest: Manifest) -> None:
    """Raises DataError if a file is missing, or if its rows, bytes or digest differ from the manifest."""
    require_intact_partition(partition, manifest)
    for entry in manifest.files:
        path = partition.file(entry.path)
        files, inner = file_io.filesystem(path)
        with files.open_input_file(inner) as opened:
            rows = pq.ParquetFile(opened).metadata.num_rows
        if rows != entry.rows:
            raise DataError(
                f"{path} has {counted(rows, 'row')}, but its manifest says {entry.rows}",
                f"run score_daily for {partition.dt} again",
            )


def check_experiment(context: RunContext, lists: Manifest) -> None:
    """Raises DataError if the lists were made without the experiment of the configuration."""
    experiment = served_experiment(context.config, context.lake, context.run_date)
    if lists.inputs.get("experiment") != (experiment and experiment.digest):
        name = experiment.settings.name if experiment else None
        raise DataError(
            f"the lists of {context.run_date} were not computed with the experiment of the configuration "
            f"(serving.experiment.name={name})",
            f"run score_daily for {context.run_date} again",
        )


def check_origins(context: RunContext, lists: Manifest) -> None:
    """Raises DataError if the table of users or of candidates was replaced after the lists were made."""
    version = read_dataset(context.lake, context.run_date).workflow_version
    for name, table in (
        ("users", context.lake.users(version)),
        ("candidates", context.lake.candidates(version)),
    ):
        digest = read_manifest(table.partition(context.run_date)).digest
        if lists.inputs[name] != digest:
            raise DataError(
                f"the lists of {context.run_date} were computed from {name} with the digest "
                f"{lists.inputs[name]}, but the digest of {name} is now {digest}",
                f"run score_daily for {context.run_date} again",
            )


if __name__ == "__main__":
    run_job("check_lists", DESCRIPTION, run)
