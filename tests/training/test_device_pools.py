"""Pools that are made on the device: the batches of pools that are made on the host, and the memory they need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from conf.errors import ConfigError, DataError
from conf.types import MultiHot, Reading
from storage.feature_spec import FeatureSpec
from tests.checked_device import checked_device
from tests.training.feature_rows import make_spec, random_rows
from tests.training.feature_tables import write_file
from tests.training.interpreted import device_of_kernels
from tests.training.test_batches import _TENSORS as TENSORS
from tests.training.test_batches import CASE, Case, batches, cases, made_up, same
from tests.training.test_batches import loader_of as host_loader
from training.data import loader as loading
from training.data.batch import Batch
from training.data.columns import Columns
from training.data.device_pools import DevicePoolWriter, GroupColumns
from training.data.loader import Loader
from training.data.sharding import DataFile, plan_shards, row_groups, shards_of_rank

CPU = torch.device("cpu")
SPEC = make_spec(2, [50, 7], lists=[9, 30])
LISTS = MultiHot(max_length=3, lengths={"L1": 70})


def made_on_device(
    case: Case,
    rank: int = 0,
    ranks: int = 1,
    first_step: int = 0,
    *,
    device: torch.device = CPU,
    kernel: bool = False,
    threads: int = 1,
) -> list[Batch]:
    # There are no files.
    unread = mock.patch.object(loading, "require_all_intact")
    with unread, mock.patch.object(loading, "read_columns", made_up):
        made = host_loader(case, rank, ranks)
        reading = made._reading.model_copy(update={"pools": "device", "threads": threads})
        loader = Loader(
            [group.file for group in made._groups if group.index == 0],
            *(made.plan, made.shards, made.spec, case.seed),
            device=device,
            reading=reading,
            kernel=kernel,
        )
        assert loader._on_device
        return [batch.to(device) for batch in loader.batches(2, first_step)]


@given(cases())
@settings(max_examples=25, deadline=None)
def test_batches_are_those_of_the_host_on_every_rank(case: Case) -> None:
    for rank in range(case.ranks):
        assert same(made_on_device(case, rank, case.ranks), batches(case, rank, case.ranks))


def test_threads_read_the_same_batches_and_resume_them() -> None:
    whole = batches(CASE)
    for threads in (2, 3, 5):
        assert same(made_on_device(CASE, threads=threads), whole)
        assert same(made_on_device(CASE, first_step=70, threads=threads), whole[70:])


@pytest.mark.parametrize("seed", [None, 3])
def test_the_kernel_writes_what_torchs_operators_write(
    monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    device = device_of_kernels(monkeypatch)
    case = replace(CASE, files=((70, 40), (33,), (65,)), seed=seed, shards=2, shard_rows=5)
    written = made_on_device(case, device=device, kernel=True)
    assert same([batch.to(CPU) for batch in written], batches(case))


def test_a_rank_whose_shards_have_no_more_rows_gets_an_empty_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 65th row is the only one in the last pool."""
    device = device_of_kernels(monkeypatch)
    case = replace(CASE, files=((65,),), shards=2, shard_rows=4, pool_rows=1)
    empty = False
    for rank in range(2):
        expected = batches(case, rank, 2)
        written = made_on_device(case, rank, 2, device=device, kernel=True)
        assert same([batch.to(CPU) for batch in written], expected)
        empty |= not expected[-1].weights.any()
    assert empty


def test_what_steps_get_lies_on_the_device_and_steps_wait_for_nothing() -> None:
    """The writer waits once for each pool that needs new row groups: it reads whether their ids are right."""
    with checked_device() as (device, checks):
        written = made_on_device(CASE, device=device)
        assert {getattr(batch, name).device for batch in written for name in TENSORS} == {device}
        waits = dict(checks.waits)
        on_host = [
            replace(batch, **{name: getattr(batch, name).cpu() for name in TENSORS}) for batch in written
        ]
    assert same(on_host, batches(CASE))
    assert set(waits) == {"aten.copy_.default"}
    assert waits["aten.copy_.default"] <= len(written) // 4


def files_of(folder: Path, sizes: list[int], spec: FeatureSpec = SPEC) -> list[DataFile]:
    folder = folder / "dt=2026-01-01"
    folder.mkdir()
    files = []
    for index, size in enumerate(sizes):
        path = folder / f"part-{index}.parquet"
        write_file(path, spec, random_rows(spec, size, seed=index))
        files.append(DataFile(str(path), size))
    return files


def loader_of_files(files: list[DataFile], spec: FeatureSpec = SPEC, **reading: object) -> Loader:
    plan = plan_shards([group.rows for group in row_groups(files)], 4, 16)
    settings = Reading.model_validate({"pool_rows": 1, **reading})
    lists = LISTS if spec.multi_hot else None
    return Loader(files, plan, shards_of_rank(4, 0, 1), spec, 3, lists, reading=settings)


def test_lists_are_padded_as_on_the_host(tmp_path: Path) -> None:
    files = files_of(tmp_path, [120, 37, 60])
    on_host = list(loader_of_files(files).batches(2))
    assert same(list(loader_of_files(files, pools="device", threads=2).batches(2)), on_host)


def test_an_id_out_of_range_is_refused_with_the_hosts_words(tmp_path: Path) -> None:
    files = files_of(tmp_path, [40, 40, 40])
    narrow = make_spec(2, [50, 6], lists=[9, 30])
    with pytest.raises(DataError) as on_host:
        list(loader_of_files(files, narrow).batches())
    with pytest.raises(DataError) as on_device:
        list(loader_of_files(files, narrow, pools="device").batches())
    assert str(on_device.value) == str(on_host.value)
    assert "but ids must be at least 0 and below 6" in str(on_host.value)


def test_the_memory_of_the_device_is_bounded_by_the_setting() -> None:
    with mock.patch.object(loading, "read_columns", made_up):
        loader = host_loader(replace(CASE, read_ahead_mib=1), 0, 1)
    bound = loader._device_bytes
    largest = 0
    write = DevicePoolWriter.write

    def note(writer: DevicePoolWriter, contents: object) -> object:
        nonlocal largest
        pool, event = write(writer, contents)  # type: ignore[arg-type]
        held = sum(columns.numel() for columns in writer._held.groups.values())
        largest = max(largest, 4 * (held + loading._POOLS * pool.memory.numel()))
        return pool, event

    with mock.patch.object(DevicePoolWriter, "write", note):
        made_on_device(CASE)
    assert 0.5 * bound < largest <= bound


def test_too_small_a_limit_makes_pools_on_the_host_or_is_refused(tmp_path: Path) -> None:
    files = files_of(tmp_path, [100_000], make_spec(2, [50]))
    spec = make_spec(2, [50])
    with pytest.raises(ConfigError, match=r"need 2 MiB, but train.reading.device_mib is 1"):
        loader_of_files(files, spec, pools="device", device_mib=1)
    assert not loader_of_files(files, spec, pools="auto", device_mib=1)._on_device
    assert loader_of_files(files, spec, pools="device", device_mib=2)._on_device


def test_numbers_keep_their_bits() -> None:
    """A NaN with a payload and a negative zero come through as they are."""
    bits = np.array([0x7FC12345, 0x80000000, 0x00000001], np.uint32).view(np.float32)
    matrix = GroupColumns.of(Columns(bits, [bits], [np.arange(3, dtype=np.int32)]), pinned=False)
    assert (
        matrix.columns[0].view(torch.float32).numpy().view(np.uint32).tolist()
        == bits.view(np.uint32).tolist()
    )
