"""Two attempts at one training at the same time, whose steps interleave in all relevant orders.

An attempt that stops between its steps is a process. One that never stops runs in the process of the tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage import file_io
from storage.paths import LakePaths
from tests.etl.lakes import servers
from tests.training.checkpoints.attempts import (
    attempt,
    complete_a_training,
    make_old,
    restore_a_checkpoint,
    save_a_checkpoint,
    save_a_model,
    server_of_attempts,
)
from tests.training.checkpoints.test_models_on_disk import CPU, make_trainer, same_weights
from training.checkpoints import load_model, open_trained
from training.registry.model_json import is_complete
from training.registry.training_leftovers import delete_training_leftovers

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with server_of_attempts():
        yield


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def named(folder: Path) -> set[str]:
    """model.json and the files that it names."""
    description = json.loads((folder / "model.json").read_text())
    return {"model.json", *description["weights"], *description["optimizer"]}


def require_whole(folder: Path) -> None:
    assert is_complete(str(folder), checksums=True)
    assert same_weights(folder, make_trainer(seed=4))
    open_trained(str(folder))


def test_wherever_one_attempt_stands_the_other_publishes_and_both_use_its_model(tmp_path: Path) -> None:
    taken = 0
    while True:
        folder = tmp_path / str(taken)
        with attempt(save_a_model, str(folder), 1.0) as late:
            late_has_more = late.take(taken)
            assert save_a_model(str(folder), 2.0) == (2.0 if late_has_more else 1.0)
            assert late.finish() == (2.0 if late_has_more else 1.0)
        require_whole(folder)
        assert files(folder) == named(folder)
        if not late_has_more:
            break
        taken += 1
    assert taken >= 5  # four files of tensors and model.json


def test_both_at_once_step_by_step(tmp_path: Path) -> None:
    with attempt(save_a_model, str(tmp_path), 1.0) as one, attempt(save_a_model, str(tmp_path), 2.0) as two:
        while one.take(1) | two.take(1):
            pass
        assert one.value == two.value == 1.0
    require_whole(tmp_path)
    assert files(tmp_path) == named(tmp_path)


def test_an_attempt_killed_at_any_step_leaves_what_the_next_one_needs(tmp_path: Path) -> None:
    """The killed attempt comes first, and then second; what it left is deleted when it is old."""
    lake, taken, more = LakePaths(str(tmp_path)), 0, True
    while more:
        folders = [Path(lake.models("m")) / f"{when}{taken}" for when in ("first", "second")]
        for folder in folders:
            if folder.name.startswith("second"):
                save_a_model(str(folder), 2.0)
            with attempt(save_a_model, str(folder), 1.0) as killed:
                more = killed.take(taken)
                killed.kill()
            save_a_model(str(folder), 3.0)
            require_whole(folder)
        taken += 1
    before = {folder: files(folder) for folder in Path(lake.models("m")).iterdir()}
    assert any(before[folder] - named(folder) for folder in before)
    assert delete_training_leftovers(lake, "m", grace_hours=24) == 0
    make_old(tmp_path)
    assert delete_training_leftovers(lake, "m", grace_hours=24) > 0
    for folder in before:
        require_whole(folder)
        assert files(folder) == named(folder)


def test_two_attempts_replace_a_damaged_model(tmp_path: Path) -> None:
    save_a_model(str(tmp_path), 1.0)
    path = next(tmp_path.glob("optimizer-00000-*"))
    path.write_bytes(path.read_bytes()[:-9])
    assert not is_complete(str(tmp_path))
    with attempt(save_a_model, str(tmp_path), 2.0) as one, attempt(save_a_model, str(tmp_path), 3.0) as two:
        for saving in (one, two):
            saving.until("replace model.json")
        assert (one.finish(), two.finish()) == (2.0, 3.0)
    require_whole(tmp_path)


def test_checkpoints_of_one_step_do_not_mix(tmp_path: Path) -> None:
    taken, more = 0, True
    while more:
        folder = tmp_path / str(taken)
        with attempt(save_a_checkpoint, str(folder), [10]) as late:
            more = late.take(taken)
            save_a_checkpoint(str(folder), [10])
            assert late.finish() is None
        assert restored(folder) == 10
        assert len(files(folder)) == 3  # the index, the dense part and the rows of one attempt
        taken += 1
    assert taken >= 4


@pytest.mark.parametrize("other", [restore_a_checkpoint, complete_a_training])
@pytest.mark.parametrize("begun", ["write step-000000000020", "replace step-000000000020", "last"])
def test_nobody_deletes_what_another_attempt_is_writing(
    tmp_path: Path, other: Callable[[str], object], begun: str
) -> None:
    """Neither one that resumes, nor one that has published the model."""
    with attempt(save_a_checkpoint, str(tmp_path), [10, 20]) as writer:
        writer.until("write step-000000000020" if begun == "last" else begun)
        if begun == "last":
            while "step-000000000020.json" not in writer.step:
                writer.go_on()
        assert other(str(tmp_path)) == (10 if other is restore_a_checkpoint else None)
        assert writer.finish() is None
    assert restored(tmp_path) == 20


@pytest.mark.parametrize("at", ["examine", "load"])
def test_a_checkpoint_deleted_while_it_is_read_gives_way_to_a_newer_one(tmp_path: Path, at: str) -> None:
    save_a_checkpoint(str(tmp_path), [10])
    with attempt(restore_a_checkpoint, str(tmp_path)) as reader:
        reader.until(at)
        save_a_checkpoint(str(tmp_path), [20, 30])
        assert not [name for name in files(tmp_path) if name.startswith("step-000000000010.")]
        assert reader.finish() == 30
    assert restored(tmp_path) == 30


def test_the_end_of_another_attempt_while_a_checkpoint_is_read_is_worth_a_retry(tmp_path: Path) -> None:
    save_a_checkpoint(str(tmp_path), [10])
    for at, result in {
        "load": "InfrastructureError: another attempt at this training run deleted",
        "examine": None,
    }.items():
        with attempt(restore_a_checkpoint, str(tmp_path)) as reader:
            reader.until(at)
            complete_a_training(str(tmp_path))
            value = reader.finish()
            assert value is result or str(value).startswith(str(result))
        save_a_checkpoint(str(tmp_path), [10])


def test_a_damaged_checkpoint_that_another_attempt_has_written_again_is_read(tmp_path: Path) -> None:
    save_a_checkpoint(str(tmp_path), [10, 20])
    (rows,) = tmp_path.glob("step-*20.*.rows-*")
    rows.write_bytes(rows.read_bytes()[:-1])
    with attempt(restore_a_checkpoint, str(tmp_path)) as reader:
        reader.until("examine")
        assert restore_a_checkpoint(str(tmp_path)) == 10
        save_a_checkpoint(str(tmp_path), [20])
        assert reader.finish() == 20


def restored(folder: Path) -> int | None:
    return restore_a_checkpoint(str(folder))


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.bucket(tmp_path_factory.mktemp("s3"), "attempts"):
        yield "s3://attempts"


def test_on_an_object_store_the_model_stays_whole_wherever_one_attempt_stands(bucket: str) -> None:
    """Both may create model.json there: the last one counts, and nobody deletes the other's files."""
    taken, more, times = 0, True, set()
    while more:
        folder = f"{bucket}/models/m/{taken}"
        with attempt(save_a_model, folder, 1.0) as late, attempt(save_a_model, folder, 2.0) as early:
            more = late.take(taken)
            early.finish()
            late.finish()
            times.add((late.value, early.value))
        assert is_complete(folder, checksums=True)
        loaded = load_model(folder, CPU).model.state_dict()
        whole = make_trainer(seed=4).model.state_dict()
        assert all(bool((loaded[name] == value).all()) for name, value in whole.items())
        taken += 1
    assert times == {(1.0, 1.0), (1.0, 2.0), (2.0, 2.0)}


def test_on_an_object_store_checkpoints_do_not_mix(bucket: str) -> None:
    taken, more = 0, True
    while more:
        folder = f"{bucket}/checkpoints/{taken}"
        with (
            attempt(save_a_checkpoint, folder, [10]) as late,
            attempt(save_a_checkpoint, folder, [10]) as early,
        ):
            more = late.take(taken)
            assert (early.finish(), late.finish()) == (None, None)
        assert restore_a_checkpoint(folder) == 10
        assert not [info.base_name for info in file_io.list_files(folder) if ".part-" in info.base_name]
        taken += 1
