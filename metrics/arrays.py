"""Checks of the arguments that all measures of this package have in common."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conf.errors import DataError

Vector = NDArray[np.float64]


def vectors(
    labels: ArrayLike, scores: ArrayLike, weights: ArrayLike | None = None
) -> tuple[Vector, Vector, Vector]:
    """Returns labels, scores and weights as float64 vectors of length N; the default of each weight is 1.

    Raises:
        DataError: the arguments are not vectors of the same length, or a score is not finite.
    """
    label = np.asarray(labels, dtype=np.float64)
    score = np.asarray(scores, dtype=np.float64)
    weight = np.ones_like(label) if weights is None else np.asarray(weights, dtype=np.float64)
    if not label.shape == score.shape == weight.shape or label.ndim != 1:
        raise DataError(
            f"labels {label.shape}, scores {score.shape} and weights {weight.shape} "
            "are not vectors of the same length",
            "pass one value per row",
        )
    if not np.isfinite(score).all():
        raise DataError(
            f"{int((~np.isfinite(score)).sum())} of {len(score)} scores are not finite",
            "check whether features have infinite values, or whether the training diverged",
        )
    return label, score, weight
