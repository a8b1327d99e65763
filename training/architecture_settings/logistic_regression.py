"""The settings of training/architectures/logistic_regression.py."""

from __future__ import annotations

from conf.types import Strict


class Settings(Strict):
    """Logistic regression: one weight for each id and each dense feature. It has no settings."""
