"""Ranks on devices that are not the CPU: the same collectives in the same order, and the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from tests.checked_device import checked_device
from tests.training.ranks_in_threads import on_ranks
from tests.training.steps_of_ranks import run_steps
from tests.training.test_spread_tables import PLACEMENTS
from training.collectives import Collectives, ReceivedRows

CPU = torch.device("cpu")
# method, and for each tensor its dtype and shape
Call = tuple[str, tuple[tuple[torch.dtype, tuple[int, ...]], ...]]


class Recorded:
    """Collectives that record every call, and check that its tensors are on the rank's device."""

    def __init__(self, collectives: Collectives, device: torch.device) -> None:
        self.rank, self.size = collectives.rank, collectives.size
        self.calls: list[Call] = []
        self._collectives, self._device = collectives, device

    def _record(self, name: str, *tensors: Tensor) -> None:
        assert {tensor.device for tensor in tensors} == {self._device}
        self.calls.append((name, tuple((tensor.dtype, tuple(tensor.shape)) for tensor in tensors)))

    def allreduce_sum(self, values: Tensor) -> Tensor:
        self._record("allreduce_sum", values)
        return self._collectives.allreduce_sum(values)

    def start_allreduce_sum(self, values: Tensor, name: str) -> Callable[[], Tensor]:
        self._record(f"start_allreduce_sum {name}", values)
        return self._collectives.start_allreduce_sum(values, name)

    def allgather(self, *tensors: Tensor) -> list[Tensor]:
        self._record("allgather", *tensors)
        return self._collectives.allgather(*tensors)

    def all_to_all(self, values: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        return self.start_all_to_all(values, splits, "exchange")()

    def start_all_to_all(self, values: Tensor, splits: Sequence[int], name: str) -> ReceivedRows:
        assert len(splits) == self.size
        self._record(f"start_all_to_all {name}", values)
        return self._collectives.start_all_to_all(values, splits, name)


@pytest.fixture
def device() -> Iterator[torch.device]:
    torch.set_num_threads(1)
    with checked_device() as (device, _):
        yield device


def trained(
    ranks: int, device: torch.device, placement: str, architecture: str, optimizer: str
) -> list[tuple[list[Call], dict[str, Tensor], dict[str, int]]]:
    """For each rank: its collectives, its final state on the CPU, and the waits of the last step."""
    settings = {**PLACEMENTS[placement], "optimizer": optimizer}

    def body(collectives: Collectives) -> tuple[list[Call], dict[str, Tensor], dict[str, int]]:
        recorded = Recorded(collectives, device)
        waits, state = run_steps(recorded, device, settings, architecture)
        return recorded.calls, state, waits

    return on_ranks(ranks, body)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    "placement, architecture, optimizer",
    [
        ("auto", "wide_and_deep", "row_wise_adagrad"),
        ("row_wise", "dlrm", "lazy_adam"),
        ("table_wise", "deepfm", "sgd"),
        ("replicated", "dlrm", "row_wise_adagrad"),
    ],
)
def test_collectives_and_weights_are_those_of_the_cpu(
    device: torch.device, ranks: int, placement: str, architecture: str, optimizer: str
) -> None:
    """What NCCL would be asked for is what Gloo is asked for, so tests of ranks on CPUs count for GPUs too."""
    on_device = trained(ranks, device, placement, architecture, optimizer)
    on_cpu = trained(ranks, CPU, placement, architecture, optimizer)
    for mine, other in zip(on_device, on_cpu, strict=True):
        assert mine[0] == other[0]
        for name, value in other[1].items():
            torch.testing.assert_close(mine[1][name], value, rtol=1e-4, atol=1e-5, msg=name)
    names = [[name for name, _ in calls] for calls, _, _ in on_device]
    assert all(of_rank == names[0] for of_rank in names)
    assert "start_allreduce_sum dense.0" in names[0]
    requests = [name for name in names[0] if name.endswith(".request")]
    assert bool(requests) == (placement != "replicated")
