"""Formats numbers for the report. Each kind of number has one function. A missing number becomes a dash."""

from __future__ import annotations

import math
from typing import Any

from conf.messages import counted as words_counted

NONE = "–"


def _absent(value: Any) -> bool:
    """Returns whether a value is None or not finite."""
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def count(value: Any) -> str:
    """Formats a whole number with thousands separators."""
    return NONE if _absent(value) else f"{value:,.0f}"


def counted(value: Any, noun: str, plural: str | None = None) -> str:
    """Formats a whole number with its noun in the singular or plural."""
    return f"{NONE} {plural or noun + 's'}" if _absent(value) else words_counted(round(value), noun, plural)


def decimal(value: Any, digits: int = 4) -> str:
    """Formats a number with a fixed number of decimals."""
    return NONE if _absent(value) else f"{value:.{digits}f}"


def percent(value: Any, digits: int = 1) -> str:
    """Formats a share (0 to 1) as a percentage."""
    return NONE if _absent(value) else f"{100 * value:.{digits}f}%"


def seconds(value: Any) -> str:
    """Formats a duration in seconds."""
    return NONE if _absent(value) else f"{value:,.1f} s"


def times(value: Any) -> str:
    """Formats a ratio with two decimals, such as 1.25×."""
    return NONE if _absent(value) else f"{value:.2f}×"


def share_reached(auc: float | None, best_auc: float | None) -> float | None:
    """Returns (auc - 0.5) / (best_auc - 0.5), which is 0 for guessing and 1 for the best possible AUC.

    Returns None if one of the two AUC values is unknown, or if `best_auc` is not above 0.5.
    """
    if auc is None or best_auc is None or best_auc <= 0.5:
        return None
    return (auc - 0.5) / (best_auc - 0.5)
