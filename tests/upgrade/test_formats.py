"""Format versions: readers accept what release 0.1.0 wrote, and refuse what a newer release wrote."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from conf.errors import DataError
from conf.load import load_config
from etl.workflow.fitted_workflow import load_local
from reporting.monitoring.run_record import read_records
from storage import format_versions
from storage.paths import LakePaths
from tests.upgrade.old_lake import (
    CHALLENGER,
    CHAMPION,
    CHAMPION_WORKFLOW,
    CONFIG,
    FIRST,
    KINDS,
    NAME,
    SECOND,
    restore_checkpoint,
    rows_of,
    unpack,
)
from training.checkpoints.model import load_model, open_trained
from training.registry.champion_history import read_overrides
from training.registry.versions import challenger_of, champion_as_of, model_path


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the old lake, which no test changes."""
    folder = tmp_path_factory.mktemp("old")
    unpack(folder)
    return folder


@pytest.fixture
def lake(tmp_path: Path, unpacked: Path) -> LakePaths:
    """The old lake, in a folder of this test. Files are links: replace a file instead of writing into it."""
    shutil.copytree(unpacked / "lake", tmp_path / "lake", copy_function=os.link)
    return LakePaths(str(tmp_path / "lake"))


def _replace(file: Path, content: object) -> None:
    file.unlink()
    file.write_text(json.dumps(content))


def test_every_format_of_that_release_has_a_file_in_the_old_lake() -> None:
    newer = (
        format_versions.BLEND,
        format_versions.PRUNED_TRAINING,
        format_versions.EXPERIMENT_STOP,
        format_versions.ERASED_USERS,
        format_versions.ERASURE,
    )
    later = {one.name for one in newer}
    assert set(KINDS) == {one.name for one in format_versions.ALL} - later


def test_the_configuration_of_the_old_lake_is_still_accepted() -> None:
    assert load_config(str(CONFIG)).name == NAME


@pytest.mark.parametrize("name", KINDS)
def test_files_of_the_first_release_are_read(lake: LakePaths, name: str) -> None:
    _, part = KINDS[name].values(lake)
    assert format_versions.KEY not in part
    assert KINDS[name].read(lake)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("version", [99, 0, -1, "2", True, None, 1.5])
def test_a_version_this_release_does_not_know_is_refused(lake: LakePaths, name: str, version: object) -> None:
    kind = KINDS[name]
    whole, part = kind.values(lake)
    part[format_versions.KEY] = version
    _replace(kind.file(lake), whole)
    if version == 99:
        current = next(kind.version for kind in format_versions.ALL if kind.name == name)
        stated = rf"a {name} of format version 99; this release reads up to version {current}"
    else:
        stated = rf"not a valid {name}: format_version is {version!r}, not a positive integer"
    with pytest.raises(DataError, match=stated) as raised:
        kind.read(lake)
    assert str(kind.file(lake)) in raised.value.problem
    assert raised.value.remedy


# A damaged checkpoint or run record is passed over; the data manifest lies within a manifest.
@pytest.mark.parametrize("name", sorted({*KINDS} - {"checkpoint index", "run record", "data manifest"}))
def test_a_file_that_holds_no_object_is_refused(lake: LakePaths, name: str) -> None:
    kind = KINDS[name]
    _replace(kind.file(lake), [1])
    with pytest.raises(DataError, match=rf"not a valid {name}: it contains a JSON list"):
        kind.read(lake)


def test_a_newer_checkpoint_is_refused_and_kept(lake: LakePaths) -> None:
    """A damaged checkpoint is deleted; one that only a newer release can read must not be."""
    kind = KINDS["checkpoint index"]
    whole, _ = kind.values(lake)
    _replace(kind.file(lake), {**whole, format_versions.KEY: 99})
    before = sorted(kind.file(lake).parent.iterdir())
    with pytest.raises(DataError, match="format version 99"):
        restore_checkpoint(lake)
    assert sorted(kind.file(lake).parent.iterdir()) == before


def test_models_and_history_of_the_first_release(lake: LakePaths) -> None:
    assert champion_as_of(lake, NAME, SECOND) == CHAMPION
    assert challenger_of(lake, NAME, SECOND) == CHALLENGER
    assert [record.action for record in read_overrides(lake, NAME, SECOND)] == ["pin", "release"]
    loaded = load_model(model_path(lake, NAME, CHAMPION), torch.device("cpu"))
    assert loaded.version == CHAMPION
    state, spec = open_trained(model_path(lake, NAME, CHAMPION))
    assert state
    assert spec.workflow_version == CHAMPION_WORKFLOW
    assert all(torch.isfinite(value).all() for value in loaded.model.state_dict().values())


def test_tables_runs_and_checkpoints_of_the_first_release(lake: LakePaths) -> None:
    assert rows_of(lake.recommendations.partition(SECOND)) == 215
    assert rows_of(lake.features(CHAMPION_WORKFLOW).partition(FIRST)) == 300
    position = restore_checkpoint(lake)
    assert position is not None
    assert position.step > 0
    records = read_records(lake, [FIRST, SECOND])
    assert {record.exit_code for record in records} == {0}
    assert "train_model" in {record.job for record in records}


def test_raw_values_are_encoded_by_the_old_workflow(lake: LakePaths) -> None:
    workflow = load_local(lake, CHAMPION_WORKFLOW)
    ids = workflow.decode_ids({"C1": range(3, 6)})["C1"]
    assert len(ids) == 3
    for number, value in ids.items():
        assert workflow.encode_values({"C1": value}, ["C1"]) == {"C1": number}
