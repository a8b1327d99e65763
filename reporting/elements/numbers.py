"""Formats numbers for the report: one function per kind of number; a missing value becomes a dash."""

from __future__ import annotations

import math
from typing import Any

NONE = "–"


def _absent(value: Any) -> bool:
    """Whether a value is None or not finite."""
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def count(value: Any) -> str:
    """A whole number with thousands separators."""
    return NONE if _absent(value) else f"{value:,.0f}"


def decimal(value: Any, digits: int = 4) -> str:
    """A number with a fixed number of decimals."""
    return NONE if _absent(value) else f"{value:.{digits}f}"


def percent(value: Any, digits: int = 1) -> str:
    """A share (0 to 1) as a percentage."""
    return NONE if _absent(value) else f"{100 * value:.{digits}f}%"


def seconds(value: Any) -> str:
    """A duration in seconds."""
    return NONE if _absent(value) else f"{value:,.1f} s"


def times(value: Any) -> str:
    """A ratio with two decimals, such as 1.25×."""
    return NONE if _absent(value) else f"{value:.2f}×"


def share_reached(auc: float | None, best_auc: float | None) -> float | None:
    """(auc - 0.5) / (best_auc - 0.5), which is 0 for guessing and 1 for the best possible AUC.

    None if one of the two AUC values is unknown, or if `best_auc` is not above 0.5.
    """
    if auc is None or best_auc is None or best_auc <= 0.5:
        return None
    return (auc - 0.5) / (best_auc - 0.5)
