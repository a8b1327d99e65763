"""The settings of training/architectures/logistic_regression.py."""

from __future__ import annotations

from conf.types import Strict

# No feature's scope changes the logit, so a training run can start from a model whose features had other
# scopes.
READS_SCOPES = False


class Settings(Strict):
    """Logistic regression: one weight for each id and each dense feature. It has no settings."""
