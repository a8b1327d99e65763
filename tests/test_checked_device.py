"""The device of tests/checked_device.py itself: it computes as the CPU, refuses mixtures, and counts waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from tests.checked_device import Checks, checked_device

REFUSED = "tensors on different devices"


@pytest.fixture
def on() -> Iterator[tuple[torch.device, Checks]]:
    with checked_device() as entered:
        yield entered


def test_numbers_are_those_of_the_cpu(on: tuple[torch.device, Checks]) -> None:
    device, _ = on
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    inputs = torch.randn(5, 4)
    expected = layers(inputs).square().mean()
    expected.backward()
    gradients = [parameter.grad for parameter in layers.parameters()]
    layers.zero_grad()
    there = layers.to(device)
    result = there(inputs.to(device)).square().mean()
    assert result.device == device
    result.backward()
    assert float(result.detach()) == float(expected.detach())
    for parameter, gradient in zip(there.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        assert gradient is not None
        assert parameter.grad.device == device
        assert torch.equal(parameter.grad.cpu(), gradient)


def test_views_share_their_numbers(on: tuple[torch.device, Checks]) -> None:
    device, _ = on
    values = torch.zeros(3, 4, device=device)
    values[1:, 2].add_(1)
    values.view(-1)[0] = 5
    torch.add(values, values, out=values)
    assert values.tolist() == [[10, 0, 0, 0], [0, 0, 2, 0], [0, 0, 2, 0]]


@pytest.mark.parametrize(
    "operation",
    [
        lambda there, here: there + here,
        lambda there, here: there @ here.t(),
        lambda there, here: torch.cat([there, here]),
        lambda there, here: there.index_select(0, here[0].long()),
        lambda there, here: there[here > 0],
        lambda there, here: there.add_(here),
        lambda there, here: torch.cat([there[0], here[0, :1].sum().view(1)]),
    ],
)
def test_mixtures_are_refused(on: tuple[torch.device, Checks], operation: object) -> None:
    assert callable(operation)
    there, here = torch.zeros(2, 2, device=on[0]), torch.zeros(2, 2)
    with pytest.raises(RuntimeError, match=REFUSED):
        operation(there, here)


def test_two_devices_of_the_type_are_different(on: tuple[torch.device, Checks]) -> None:
    first = torch.zeros(2, device=on[0])
    second = torch.zeros(2, device=torch.device("checked", 1))
    with pytest.raises(RuntimeError, match=REFUSED):
        first + second
    assert (first + second.to(on[0])).tolist() == [0, 0]


def test_scalars_of_the_cpu_are_allowed_by_element(on: tuple[torch.device, Checks]) -> None:
    values = torch.zeros(2, device=on[0])
    values += torch.tensor(2.0)
    values[0] = torch.tensor(3.0)
    assert values.tolist() == [3, 2]


def test_waits_are_counted(on: tuple[torch.device, Checks]) -> None:
    device, checks = on
    values = torch.arange(4.0, device=device)
    assert (values * 2 + 1).device == device
    assert len(torch.repeat_interleave(values, values.long(), output_size=6)) == 6
    assert not checks.waits
    assert float(values[1]) == 1
    assert len(values[values > 1]) == 2
    assert len(values.nonzero()) == 3
    assert values.tolist() == [0, 1, 2, 3]
    assert len(torch.repeat_interleave(values, values.long())) == 6
    assert sum(checks.waits.values()) == 5
