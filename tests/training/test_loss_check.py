"""A loss that is not finite stops all ranks at its step, with the rows saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.multiprocessing.reductions import StorageWeakRef

from conf.errors import DataError
from conf.types import MultiHot
from tests.training.feature_rows import make_spec, random_rows
from tests.training.feature_tables import write_file
from tests.training.ranks_in_threads import on_ranks
from training.collectives import Collectives, LocalCollectives
from training.data.batch import Batch
from training.data.loader import Loader
from training.data.sharding import DataFile, plan_shards, shards_of_rank
from training.loop import loss_check
from training.loop.loss_check import LossCheck

SPEC = make_spec(2, [9])


def make_loader(folder: Path, rank: int = 0, ranks: int = 1) -> Loader:
    path = folder / "a.parquet"
    if not path.exists():
        write_file(path, SPEC, random_rows(SPEC, 90, seed=0))
    return Loader(
        [DataFile(str(path), 90)], plan_shards([90], 2, 16), shards_of_rank(2, rank, ranks), SPEC, 5
    )


def make_loss_check(folder: Path, name: str, collectives: Collectives | None = None) -> LossCheck:
    alone = collectives or LocalCollectives()
    files = [DataFile(str(folder / "a.parquet"), 90)]
    return LossCheck(
        make_loader(folder, alone.rank, alone.size), files, MultiHot(), alone, str(folder / name)
    )


def make_batch(rows: int, value: float = 0.5) -> Batch:
    return Batch(
        torch.full((rows, 2), value),
        torch.ones(rows, 1, dtype=torch.int64),
        torch.ones(rows),
        torch.ones(rows),
        rows,
    )


def test_finite_losses_pass(tmp_path: Path) -> None:
    check = make_loss_check(tmp_path, "c")
    for number in range(1, 5):
        check.add(number, torch.tensor(0.5), make_batch(16))
    check.check_pending()
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_all_ranks_stop_and_say_the_same(tmp_path: Path, loss: float) -> None:
    make_loader(tmp_path)

    def body(collectives: Collectives) -> str:
        check = make_loss_check(tmp_path, "c", collectives)
        bad = make_batch(8)
        if collectives.rank == 1:
            bad.dense[2, 0], bad.dense[3, 0], bad.dense[1, 1] = torch.nan, -torch.inf, -3e7
        check.add(7, torch.tensor(0.5), make_batch(8, 0.25))
        with pytest.raises(DataError) as caught:
            check.add(8, torch.tensor(loss), bad)
        return str(caught.value)

    one, two = on_ranks(2, body)
    assert one == two
    assert f"the loss at step 8 is {loss}; I0 has 2 values that are not finite, I1 reaches 3e+07; " in one
    assert f"{tmp_path}/c/bad-batch-step-8.rank-*" in one
    saved = load_file(tmp_path / "c/bad-batch-step-8.rank-00001.safetensors")
    assert float(saved["dense"][1, 1]) == -3e7
    assert bool((saved["before.dense"] == 0.25).all())
    about = json.loads((tmp_path / "c/bad-batch-step-8.rank-00001.json").read_text())
    assert (about["step"], about["epoch"], about["step_in_epoch"]) == (8, 1, 1)  # 6 steps an epoch
    assert about["shards"] == {"1": [{"file": str(tmp_path / "a.parquet"), "start": 45, "stop": 90}]}
    assert (about["dense"], about["categorical"]) == (["I0", "I1"], {"C0": [0, 1]})


def test_padding_is_no_suspect(tmp_path: Path) -> None:
    check = make_loss_check(tmp_path, "c")
    batch = make_batch(16)
    batch.dense[3], batch.weights[3] = 1e9, 0
    with pytest.raises(DataError, match="step 1 is nan; no column has extreme values"):
        check.add(1, torch.tensor(torch.nan), batch)


def test_a_full_disk_does_not_hide_the_loss(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("no folder")
    check = make_loss_check(tmp_path, "c")
    with pytest.raises(
        DataError,
        match=r"the loss at step 1 is nan; .* the rows of this step could not be saved: cannot write",
    ):
        check.add(1, torch.tensor(torch.nan), make_batch(16))


def test_without_a_folder_nothing_is_saved(tmp_path: Path) -> None:
    files = [DataFile(str(tmp_path / "a.parquet"), 90)]
    check = LossCheck(make_loader(tmp_path), files, MultiHot(), LocalCollectives(), None)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DataError, match="the loss at step 1 is nan") as caught:
        check.add(1, torch.tensor(torch.nan), make_batch(16))
    assert caught.value.problem.endswith("no column has extreme values")
    assert sorted(tmp_path.iterdir()) == before


def test_on_a_gpu_a_loss_is_read_later_but_before_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests the lag without a GPU: when losses are read, and that the batch of the bad step is saved."""
    check = make_loss_check(tmp_path, "c")
    monkeypatch.setattr(loss_check, "_lag_steps", lambda loss: 3)
    check.add(1, torch.tensor(torch.nan), make_batch(16, 0.125))
    check.add(2, torch.tensor(0.5), make_batch(16))
    check.add(3, torch.tensor(0.5), make_batch(16))
    with pytest.raises(DataError, match="the loss at step 1 is nan"):
        check.check_pending()
    saved = load_file(tmp_path / "c/bad-batch-step-1.rank-00000.safetensors")
    assert bool((saved["dense"] == 0.125).all())
    check = make_loss_check(tmp_path, "d")
    check.add(1, torch.tensor(torch.nan), make_batch(16))
    for number in (2, 3):
        check.add(number, torch.tensor(0.5), make_batch(16))
    with pytest.raises(DataError, match="the loss at step 1 is nan"):
        check.add(4, torch.tensor(0.5), make_batch(16))


def test_a_loss_that_is_read_later_keeps_no_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_check, "_lag_steps", lambda loss: 3)
    check = make_loss_check(tmp_path, "c")
    batch = make_batch(16)
    memory = StorageWeakRef(batch.dense.untyped_storage())
    check.add(1, torch.tensor(0.5), batch)
    assert not memory.expired()
    del batch
    assert memory.expired()
