"""FTRL-Proximal against algorithm 1 of McMahan et al. 2013, coordinate by coordinate in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from training.embeddings.rows import SummedRowGradient
from training.embeddings.table import StackedEmbedding
from training.optimizers.updates import FtrlDense, FtrlRows, FtrlSettings

SETTINGS = [
    FtrlSettings(),
    FtrlSettings(learning_rate=0.5, beta=0.1, l1=0.3, l2=0.2),
    FtrlSettings(learning_rate=0.05, beta=2.0, l1=1.5, l2=0.0),
]


class Coordinate:
    """One coordinate of algorithm 1: the weight follows from z and n whenever it is asked for."""

    def __init__(self, settings: FtrlSettings) -> None:
        self.settings = settings
        self.z = self.n = 0.0

    @property
    def weight(self) -> float:
        alpha, beta = self.settings.learning_rate, self.settings.beta
        if abs(self.z) <= self.settings.l1:
            return 0.0
        sign = math.copysign(1, self.z)
        return -(self.z - sign * self.settings.l1) / ((beta + math.sqrt(self.n)) / alpha + self.settings.l2)

    def learn(self, g: float) -> None:
        sigma = (math.sqrt(self.n + g * g) - math.sqrt(self.n)) / self.settings.learning_rate
        self.z += g - sigma * self.weight
        self.n += g * g


def numbers(coordinates: list[Coordinate], name: str) -> list[float]:
    return [getattr(coordinate, name) for coordinate in coordinates]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_touched_rows_follow_the_algorithm_and_others_stay(settings: FtrlSettings) -> None:
    rng = np.random.default_rng(0)
    table = StackedEmbedding([4, 6], 2)
    ftrl = FtrlRows(table, settings)
    expected = [Coordinate(settings) for _ in range(20)]
    for _ in range(25):
        rows = np.sort(rng.choice(9, size=4, replace=False))  # row 9 is never touched
        gradient = rng.normal(size=(4, 2)).astype(np.float32)
        ftrl.step(SummedRowGradient(torch.from_numpy(rows), torch.from_numpy(gradient)))
        for row, values in zip(rows, gradient, strict=True):
            for column, g in enumerate(values):
                expected[2 * row + column].learn(float(g))
        weights = table.weight.detach().flatten().numpy()
        np.testing.assert_allclose(weights, numbers(expected, "weight"), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ftrl.z.flatten().numpy(), numbers(expected, "z"), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ftrl.n.flatten().numpy(), numbers(expected, "n"), rtol=1e-4)
    zeros = sum(coordinate.weight == 0 for coordinate in expected)
    assert zeros == sum(table.weight.detach().flatten() == 0)
    assert (
        zeros > 2 or settings.l1 < 1
    )  # λ₁ = 1.5 keeps more weights at zero than the two that are never touched


def test_dense_parameters_follow_the_algorithm() -> None:
    rng = np.random.default_rng(1)
    settings = SETTINGS[1]
    parameters = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(()))]
    ftrl = FtrlDense(parameters, settings)
    expected = [Coordinate(settings) for _ in range(4)]
    for _ in range(20):
        gradient = rng.normal(size=4).astype(np.float32)
        ftrl.step(torch.from_numpy(gradient))
        for coordinate, g in zip(expected, gradient, strict=True):
            coordinate.learn(float(g))
    weights = np.concatenate([parameter.detach().numpy().ravel() for parameter in parameters])
    np.testing.assert_allclose(weights, numbers(expected, "weight"), rtol=1e-4, atol=1e-6)
    assert np.any(weights != 0)


def test_without_a_gradient_nothing_moves() -> None:
    table = StackedEmbedding([4], 1)
    ftrl = FtrlRows(table, SETTINGS[0])
    ftrl.step(SummedRowGradient(torch.tensor([1, 2]), torch.tensor([[1.0], [-1.0]])))
    before = table.weight.detach().clone()
    ftrl.step(SummedRowGradient(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 1)))
    ftrl.step(
        SummedRowGradient(torch.tensor([0, 2]), torch.zeros(2, 1))
    )  # the padding row's, and one that cancelled out
    assert torch.equal(before, table.weight)
    assert bool(before[1:3].all())
    assert not before[[0, 3]].any()


@pytest.mark.parametrize("wrong", [{"learning_rate": 0}, {"beta": 0}, {"l1": -1}, {"l2": -0.1}, {"alpha": 1}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        FtrlSettings.model_validate(wrong)
