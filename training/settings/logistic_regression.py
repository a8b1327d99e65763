"""The settings of training/models/logistic_regression.py."""

from __future__ import annotations

from conf.types import Strict


class Settings(Strict):
    """It has none."""
