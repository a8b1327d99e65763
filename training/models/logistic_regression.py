"""Logistic regression on the model's own input: a weight an id and a weight a dense feature. The baseline."""

from __future__ import annotations

from training.models.inputs import Inputs
from training.models.layers import LinearPart
from training.settings.logistic_regression import Settings


def build(settings: Settings, inputs: Inputs) -> LinearPart:
    """Starts at zero, where the problem is convex anyway."""
    return LinearPart(inputs)
