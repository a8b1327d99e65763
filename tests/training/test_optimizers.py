"""Adam and the schedule against torch's Adam and the formula's corner points."""

from __future__ import annotations

import pytest
import torch

from conf.types import Train
from training.loop.training_loop import learning_rate_factor
from training.optimizers.updates import Adam


def test_adam_equals_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    mine = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in [(3, 4), (4,), ()]]
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in mine]
    adam, reference = Adam(mine), torch.optim.Adam(theirs, lr=0.0)
    for rate in (0.01, 0.02, 0.005, 0.01):
        gradients = [torch.randn(parameter.shape, generator=generator) for parameter in mine]
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient
        reference.param_groups[0]["lr"] = rate
        reference.step()
        adam.step(torch.cat([gradient.flatten() for gradient in gradients]), rate)
        for parameter, expected in zip(mine, theirs, strict=True):
            torch.testing.assert_close(parameter, expected, rtol=1e-6, atol=1e-7)


def test_adam_of_no_parameters_does_nothing() -> None:
    Adam([]).step(torch.zeros(0), 0.1)


def test_learning_rate_rises_stays_and_decays_to_zero() -> None:
    train = Train(warmup_share=0.1, decay_start_share=0.5)
    factors = [learning_rate_factor(step, 100, train) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9] == 1.0
    assert factors[49] == factors[50] == 1.0
    assert factors[75] == pytest.approx(0.25)
    assert 0 < factors[99] < 0.001
    assert factors[50:] == sorted(factors[50:], reverse=True)


def test_schedule_without_warmup_and_decay_is_constant() -> None:
    train = Train(warmup_share=0.0, decay_start_share=1.0)
    assert {learning_rate_factor(step, 7, train) for step in range(7)} == {1.0}


def test_power_and_end_of_the_decay_are_settings() -> None:
    train = Train(warmup_share=0.0, decay_start_share=0.0, decay_power=1.0, decay_end_factor=0.2)
    assert [learning_rate_factor(step, 4, train) for step in range(4)] == pytest.approx([1.0, 0.8, 0.6, 0.4])
    steep = train.model_copy(update={"decay_power": 3.0})
    assert learning_rate_factor(2, 4, steep) == pytest.approx(0.2 + 0.8 * 0.125)
