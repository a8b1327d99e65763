"""check_lists: what a reader would stumble over is found, by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from conf.errors import DataError
from jobs.check_lists import run as check_lists
from storage import file_io
from storage.manifest import MANIFEST_NAME, read_manifest
from storage.run_context import RunContext
from tests.delivery.conftest import PublishedRuns
from tests.scoring.scoring_lake import RUN_DATE, make_config


@pytest.fixture
def job(runs: PublishedRuns, tmp_path: Path) -> RunContext:
    """The context of a job on a copy of the lake."""
    shutil.copytree(runs.lake.root, tmp_path / "lake")
    return RunContext("check_lists", make_config(tmp_path / "lake"), RUN_DATE)


def first_file(job: RunContext) -> Path:
    """The first file of the published lists."""
    partition = job.lake.recommendations.partition(RUN_DATE)
    return Path(partition.file(read_manifest(partition).files[0].path))


def cut(job: RunContext) -> None:
    """Damages a file."""
    path = first_file(job)
    path.write_bytes(path.read_bytes()[:-7])


def remove(job: RunContext) -> None:
    """Deletes a file."""
    first_file(job).unlink()


def drop_a_row(job: RunContext) -> None:
    """The manifest's bytes are those of the file, its rows are not."""
    path = first_file(job)
    table = pq.ParquetFile(path).read()
    pq.write_table(table.slice(1), path)
    rewrite(job, lambda values: values["files"][0].update(bytes=path.stat().st_size))


def promote_another(job: RunContext) -> None:
    """Makes another model the champion."""
    path = Path(job.lake.models("toy")) / f"promotions/dt={RUN_DATE}.json"
    file_io.replace_json(str(path), {**file_io.read_json(str(path)), "champion_after": "m2"})


def other_candidates(job: RunContext) -> None:
    """Changes the digest of the candidates in the manifest of the lists."""
    rewrite(job, lambda values: values["inputs"].update(candidates="0" * 16))


def rewrite(job: RunContext, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the manifest of the lists."""
    path = job.lake.recommendations.partition(RUN_DATE).file(MANIFEST_NAME)
    values = file_io.read_json(path)
    change(values)
    file_io.replace_json(path, values)


def test_whole_lists_pass_and_their_figures_are_repeated(job: RunContext, runs: PublishedRuns) -> None:
    result = check_lists(job)
    assert result.rows_out == len(runs.lists)
    assert result.facts["model_version"] == result.facts["champion"] == "m1"
    assert result.facts["users"] == runs.lists.user_id.nunique()


@pytest.mark.parametrize(
    "harm, message",
    [
        (cut, "bytes, but its manifest says"),
        (remove, "is damaged: it is missing"),
        (drop_a_row, "its manifest says"),
        (promote_another, "with model m1, but the champion is m2"),
        (other_candidates, "were computed from candidates with the digest 0000000000000000"),
    ],
)
def test_what_is_wrong_with_published_lists_is_named(
    job: RunContext, harm: Callable[[RunContext], None], message: str
) -> None:
    harm(job)
    with pytest.raises(DataError, match=message):
        check_lists(job)


def test_a_date_without_lists_is_bad_data(job: RunContext) -> None:
    job.run_date = "2031-01-01"
    with pytest.raises(DataError, match="no published partition dt=2031-01-01"):
        check_lists(job)
