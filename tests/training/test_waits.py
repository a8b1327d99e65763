"""How often a training step makes the CPU wait for a GPU, counted on the device of tests/checked_device.py.

The kernels cannot run there, so functions of torch that compute the same stand for them. They read and write
the numbers of the device directly, as a kernel does, and count as no wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from storage.feature_spec import PAD_ID
from tests.checked_device import CheckedTensor, checked_device
from tests.training.ranks_in_threads import on_ranks
from tests.training.steps_of_ranks import run_steps
from tests.training.test_spread_tables import PLACEMENTS
from training import kernels
from training.collectives import ALONE

CPU = torch.device("cpu")


def host(tensor: Tensor | None) -> Any:
    return tensor.host if isinstance(tensor, CheckedTensor) else tensor


def look_up(
    weight: Tensor,
    ids: Tensor,
    first_rows: Tensor,
    list_lengths: Sequence[int],
    mean: bool,
    dtype: torch.dtype,
    **more: Any,
) -> Tensor:
    """What the lookup kernel computes, for float32."""
    assert dtype == torch.float32
    assert set(more.values()) == {None}
    table, numbers, starts = host(weight).float(), host(ids).long(), host(first_rows)
    widths = [1] * (len(starts) - len(list_lengths)) + list(list_lengths)
    vectors = []
    for feature, columns in enumerate(numbers.split(widths, dim=1)):
        has = torch.ones_like(columns, dtype=torch.bool)
        if feature >= len(widths) - len(list_lengths):
            has = columns != PAD_ID
        rows = torch.where(has, columns + starts[feature], 0)
        summed = (table[rows] * has.unsqueeze(2)).sum(dim=1)
        vectors.append(summed / has.sum(dim=1, keepdim=True).clamp(min=1) if mean else summed)
    result = torch.stack(vectors, dim=1)
    return CheckedTensor(result, weight.device) if isinstance(weight, CheckedTensor) else result


def update(
    weight: Tensor, accumulator: Tensor | None, rows: Tensor, values: Tensor, rate: float, **more: Any
) -> None:
    """What the update kernel computes, for float32."""
    table, state, places, gradient = (host(tensor) for tensor in (weight, accumulator, rows, values))
    sources, scales = host(more["sources"]), host(more["scales"])
    entries = gradient if sources is None else gradient[sources]
    entries = entries if scales is None else entries * scales.unsqueeze(1)
    used = places >= 0
    distinct, of_entry = places[used].unique(return_inverse=True)
    total = torch.zeros(len(distinct), gradient.shape[1]).index_add_(0, of_entry, entries[used])
    scale: Any = rate
    if state is not None:
        state[distinct] += total.square().mean(dim=1)
        scale = (rate / (state[distinct].sqrt() + more["epsilon"])).unsqueeze(1)
    table[distinct] -= total * scale


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """The device, with the functions above as kernels."""
    torch.set_num_threads(1)
    monkeypatch.setattr(kernels, "available", lambda device: device.type != "cpu")
    monkeypatch.setattr(kernels, "interacts", lambda *_: False)
    monkeypatch.setattr(kernels, "look_up", look_up)
    monkeypatch.setattr(kernels, "update", update)
    with checked_device() as (device, _):
        yield device


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("optimizer", ["row_wise_adagrad", "sgd"])
@pytest.mark.parametrize("architecture", ["dlrm", "deepfm", "dcn_v2_low_rank", "two_tower_dropout", "neumf"])
def test_a_step_of_one_rank_waits_for_nothing(
    device: torch.device, architecture: str, optimizer: str, pooling: str
) -> None:
    """Also with lists. The weights are those of a CPU without kernels."""
    multi_hot = {"max_length": 4, "pooling": pooling}
    waits, state = run_steps(ALONE, device, {"optimizer": optimizer}, architecture, multi_hot=multi_hot)
    assert waits == {}
    _, expected = run_steps(ALONE, CPU, {"optimizer": optimizer}, architecture, multi_hot=multi_hot)
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_a_step_with_lazy_adam_waits_only_for_the_distinct_rows(device: torch.device) -> None:
    """Rows without a gradient are left out by a mask, so they cause no second wait."""
    waits, state = run_steps(ALONE, device, {"optimizer": "lazy_adam"}, "dlrm")
    assert waits == {"aten.nonzero.default": 1}
    _, expected = run_steps(ALONE, CPU, {"optimizer": "lazy_adam"}, "dlrm")
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_step_of_ranks_waits_only_for_the_sizes_of_its_messages(
    device: torch.device, placement: str, ranks: int
) -> None:
    """A rank must know how many distinct rows it looked up, and on which ranks they are: one wait a table."""
    settings = {**PLACEMENTS[placement], "optimizer": "row_wise_adagrad"}
    results = on_ranks(ranks, lambda collectives: run_steps(collectives, device, settings, "dlrm"))
    # `auto` has both kinds of rows; only rows that all ranks hold are grouped in the backward pass.
    once = {"aten.nonzero.default": 1} if placement == "replicated" else {"aten._to_copy.default": 1}
    expected = on_ranks(ranks, lambda collectives: run_steps(collectives, CPU, settings, "dlrm"))
    for (waits, state), (_, other) in zip(results, expected, strict=True):
        assert waits == once
        for name, value in other.items():
            torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-5, msg=name)
