"""Checkpoints of ranks that are threads: resharding, damage, leftovers, errors of the writing thread."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conf.errors import DataError, InfrastructureError
from tests.training.checkpoints.layouts import LAYOUTS, FakeTrainer, equal
from tests.training.ranks_in_threads import on_ranks
from training.checkpoints import Checkpoints, Position, checkpoints
from training.checkpoints.blocks import OwnedState
from training.collectives import Collectives, LocalCollectives

CARDINALITIES = [9, 5, 17, 1]


def save(folder: Path, layout: str, ranks: int, steps: list[int], keep: int = 2) -> None:
    def body(collectives: Collectives) -> None:
        with Checkpoints(str(folder), collectives, keep) as opened:
            for step in steps:
                trainer = FakeTrainer(LAYOUTS[layout], CARDINALITIES, collectives.rank, ranks).fill(step)
                opened.save(trainer, Position(step, 0.5 * step, [{"step": step, "loss": 0.25}]))
                trainer.fill(1000)  # the training goes on while the thread writes
            opened.wait()

    on_ranks(ranks, body)


def restore(folder: Path, layout: str, ranks: int) -> list[tuple[Position | None, FakeTrainer]]:
    def body(collectives: Collectives) -> tuple[Position | None, FakeTrainer]:
        trainer = FakeTrainer(LAYOUTS[layout], CARDINALITIES, collectives.rank, ranks)
        with Checkpoints(str(folder), collectives) as opened:
            return opened.restore(trainer), trainer

    return on_ranks(ranks, body)


def step_restored(folder: Path) -> int | None:
    ((position, trainer),) = restore(folder, "replicated", 1)
    if position is None:
        assert equal(trainer, FakeTrainer(LAYOUTS["replicated"], CARDINALITIES))  # untouched
        return None
    assert equal(trainer, FakeTrainer(LAYOUTS["replicated"], CARDINALITIES).fill(position.step))
    return position.step


@pytest.mark.parametrize("layout", ["table-wise", "row-wise", "mixed"])
def test_other_numbers_of_ranks_hold_the_same_rows(tmp_path: Path, layout: str) -> None:
    """1 → 2 → 4 → 1, each reading what the one before wrote."""
    save(tmp_path, layout, 1, [5])
    step = 5
    for ranks in (2, 4, 1):
        for rank, (position, trainer) in enumerate(restore(tmp_path, layout, ranks)):
            assert position == Position(step, 0.5 * step, [{"step": step, "loss": 0.25}])
            assert equal(trainer, FakeTrainer(LAYOUTS[layout], CARDINALITIES, rank, ranks).fill(step))
        step += 1
        save(tmp_path, layout, ranks, [step])
    assert step_restored(tmp_path) == 8


@pytest.mark.parametrize("before", LAYOUTS)
@pytest.mark.parametrize("after", LAYOUTS)
def test_any_placement_reads_any_other(tmp_path: Path, before: str, after: str) -> None:
    save(tmp_path, before, 3, [7])
    for rank, (position, trainer) in enumerate(restore(tmp_path, after, 2)):
        assert position is not None
        assert equal(trainer, FakeTrainer(LAYOUTS[after], CARDINALITIES, rank, 2).fill(7))


def test_the_newest_are_kept_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    assert step_restored(folder) is None
    save(folder, "row-wise", 2, [5, 10, 15], keep=2)
    names = sorted(path.name for path in folder.iterdir())
    assert [name for name in names if name.endswith(".json")] == [
        "step-000000000010.json",
        "step-000000000015.json",
    ]
    assert len(names) == 2 * (1 + 1 + 2)  # of each the index, the dense part, and the rows of two ranks
    assert step_restored(folder) == 15
    with Checkpoints(str(folder), LocalCollectives()) as opened:
        opened.delete()
    assert not folder.exists()


def make_old(folder: Path) -> None:
    """Two hours pass: longer than any checkpoint is being written."""
    for path in folder.iterdir():
        os.utime(path, (time.time() - 7200, time.time() - 7200))


def damage_rows(folder: Path) -> str:
    path = max(folder.glob("step-*.rows-00001.safetensors"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 4
    path.write_bytes(content)
    return path.name


def cut_dense(folder: Path) -> str:
    path = max(folder.glob("step-*.dense.safetensors"))
    path.write_bytes(path.read_bytes()[:-5])
    return path.name


def lose_rows(folder: Path) -> str:
    path = max(folder.glob("step-*.rows-00000.safetensors"))
    path.unlink()
    return path.name


def cut_index(folder: Path) -> str:
    path = max(folder.glob("step-*.json"))
    path.write_text(path.read_text()[:40])
    return path.name


def empty_index(folder: Path) -> str:
    path = max(folder.glob("step-*.json"))
    path.write_text("{}")
    return path.name


@pytest.mark.parametrize("damage", [damage_rows, cut_dense, lose_rows, cut_index, empty_index])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], str]
) -> None:
    caplog.set_level(logging.INFO)
    save(tmp_path, "row-wise", 2, [10, 20])
    name = damage(tmp_path)
    make_old(tmp_path)
    for rank, (position, trainer) in enumerate(restore(tmp_path, "table-wise", 2)):
        assert position is not None
        assert position.step == 10
        assert equal(trainer, FakeTrainer(LAYOUTS["table-wise"], CARDINALITIES, rank, 2).fill(10))
    (warning,) = [message for message in caplog.messages if "damaged" in message]
    assert name in warning
    assert not list(tmp_path.glob("*000020*"))
    save(tmp_path, "row-wise", 2, [20])
    assert step_restored(tmp_path) == 20


def test_without_a_whole_checkpoint_training_starts_afresh(tmp_path: Path) -> None:
    save(tmp_path, "row-wise", 2, [10])
    cut_dense(tmp_path)
    assert step_restored(tmp_path) is None  # the index says which files belong to the damaged one
    assert list(tmp_path.iterdir()) == []


def test_what_killed_attempts_left_is_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, "row-wise", 2, [10, 20])
    (tmp_path / "step-000000000020.json").unlink()  # killed between the ranks' files and the index
    (tmp_path / "step-000000000020.abc.part-00001.json").write_text("{}")
    (tmp_path / ".step-000000000030.json.abc.tmp").write_text("{")
    (tmp_path / "bad-batch-step-3.rank-00000.json").write_text("{}")
    assert step_restored(tmp_path) == 10
    assert (
        len([path for path in tmp_path.iterdir() if "000010" not in path.name]) == 3 + 3
    )  # they may be in use
    make_old(tmp_path)
    assert step_restored(tmp_path) == 10
    left = {path.name for path in tmp_path.iterdir()}
    assert {name for name in left if "000010" not in name} == {"bad-batch-step-3.rank-00000.json"}


def failing(monkeypatch: pytest.MonkeyPatch, only: str) -> None:
    original = checkpoints.write_tensors

    def refuse(folder: str, name: str, tensors: Any) -> Any:
        if only in name:
            raise InfrastructureError(f"cannot write {name}: no space left", "make room")
        return original(folder, name, tensors)

    monkeypatch.setattr(checkpoints, "write_tensors", refuse)


@pytest.mark.parametrize("at", ["the next save", "the end"])
@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_one_ranks_thread_ends_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, at: str
) -> None:
    failing(monkeypatch, f"rows-{rank:05d}")

    def body(collectives: Collectives) -> str:
        trainer = FakeTrainer(LAYOUTS["row-wise"], CARDINALITIES, collectives.rank, 2).fill(1)
        with Checkpoints(str(tmp_path), collectives) as opened:
            opened.save(trainer, Position(1))
            with pytest.raises(InfrastructureError) as caught:
                opened.save(trainer, Position(2)) if at == "the next save" else opened.wait()
        return str(caught.value)

    messages = on_ranks(2, body)
    assert messages[0] == messages[1]
    assert messages[0].startswith(f"rank {rank}: cannot write step-000000000001.")
    assert not (tmp_path / "step-000000000001.json").exists()


def test_numbers_that_are_none_are_not_saved(tmp_path: Path) -> None:
    save(tmp_path, "row-wise", 2, [1])

    def body(collectives: Collectives) -> None:
        trainer = FakeTrainer(LAYOUTS["row-wise"], CARDINALITIES, collectives.rank, 2).fill(2)
        if collectives.rank == 1:
            trainer.tensors["adagrad.embedding.weight"][3] = torch.inf
        with Checkpoints(str(tmp_path), collectives) as opened:
            opened.save(trainer, Position(2))
            with pytest.raises(DataError, match=r"rank 1: after step 2, adagrad\.embedding\.weight contains"):
                opened.wait()

    on_ranks(2, body)
    assert step_restored(tmp_path) == 1


def test_ranks_that_do_not_share_the_folder_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_PUBLISH_TIMEOUT_S", 0.2)

    def body(collectives: Collectives) -> str:
        trainer = FakeTrainer(LAYOUTS["row-wise"], CARDINALITIES, collectives.rank, 2)
        with Checkpoints(str(tmp_path / str(collectives.rank)), collectives) as opened:
            opened.save(trainer, Position(1))
            with pytest.raises(InfrastructureError) as caught:
                opened.wait()
        return str(caught.value)

    assert all("cannot find the files that ranks [1] wrote to" in message for message in on_ranks(2, body))


def test_leaving_after_an_error_completes_what_was_begun(tmp_path: Path) -> None:
    trainer = FakeTrainer(LAYOUTS["replicated"], CARDINALITIES).fill(4)

    def body() -> None:
        with Checkpoints(str(tmp_path), LocalCollectives()) as opened:
            opened.save(trainer, Position(4))
            raise KeyError

    with pytest.raises(KeyError):
        body()
    assert step_restored(tmp_path) == 4


def test_a_checkpoint_of_other_tensors_is_an_error(tmp_path: Path) -> None:
    save(tmp_path, "row-wise", 2, [10])
    other = FakeTrainer(LAYOUTS["row-wise"], [9, 5, 17, 3])
    with (
        Checkpoints(str(tmp_path), LocalCollectives()) as opened,
        pytest.raises(DataError, match="the checkpoint of step 10 belongs to another training"),
    ):
        opened.restore(other)
    other = FakeTrainer(LAYOUTS["row-wise"], CARDINALITIES)
    other.tensors["more"] = torch.zeros(1)
    with (
        Checkpoints(str(tmp_path), LocalCollectives()) as opened,
        pytest.raises(DataError, match=r"missing tensors: \['more'\]"),
    ):
        opened.restore(other)


def test_the_index_names_ranks_files_and_rows(tmp_path: Path) -> None:
    save(tmp_path, "row-wise", 2, [3])
    index = json.loads((tmp_path / "step-000000000003.json").read_text())
    assert index["num_ranks"] == 2
    for entry in index["files"]:
        assert (tmp_path / entry["name"]).stat().st_size == entry["bytes"]
    rows = index["rows"]["model.embedding.weight"]
    assert sum(block["rows"] for block in rows) == sum(CARDINALITIES)
    assert {(block["feature"], block["first"], block["step"]) for block in rows} == {
        *((feature, rank, 2) for feature in range(3) for rank in range(2)),
        (3, 0, 2),
    }


class OnGpu:
    """The attributes of a tensor on a GPU that say what its copy takes."""

    is_cuda = True

    def __init__(self, rows: int) -> None:
        self.shape, self.dtype, self.nbytes = torch.Size([rows]), torch.float32, 4 * rows


def test_a_copy_of_tensors_on_a_gpu_takes_powers_of_two() -> None:
    tensors: Any = [OnGpu(rows) for rows in (0, 1, 1024, 1025)]
    owned = OwnedState({"bias": tensors[0], "loss_scale": tensors[1]}, {"rows": tensors[2:]}, {})
    assert owned.bytes == 4 * (1 + 1024 + 1025)
    assert checkpoints.HostCopy().missing_bytes(owned) == 4 * (1 + 1024 + 2048)


def test_a_second_copy_takes_memory_only_for_other_shapes() -> None:
    owned = OwnedState({"bias": torch.zeros(3)}, {"rows": [torch.zeros(5, 2), torch.zeros(2, 2)]}, {})
    copy = checkpoints.HostCopy()
    assert copy.missing_bytes(owned) == owned.bytes == 4 * (3 + 10 + 4)
    copy.take(owned)
    assert copy.missing_bytes(owned) == 0
    owned.rows["rows"][1] = torch.zeros(4, 2)
    assert copy.missing_bytes(owned) == 4 * 8
