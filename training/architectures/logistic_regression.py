"""Logistic regression, the baseline: a weight for each id and a weight for each dense feature."""

from __future__ import annotations

from training.architecture_settings.logistic_regression import Settings
from training.models.inputs import Inputs
from training.models.layers import LinearPart


def build(settings: Settings, inputs: Inputs) -> LinearPart:
    """Builds the model. Its weights start at zero, which is safe because the problem is convex."""
    return LinearPart(inputs)
