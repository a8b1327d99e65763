"""The settings of training/architectures/logistic_regression.py."""

from __future__ import annotations

from conf.types import Strict

# The logit does not depend on the scopes of features (user, item, context or pair), so a training run can
# start from a model whose features had other scopes.
READS_SCOPES = False


class Settings(Strict):
    """Logistic regression: one weight for each id and each dense feature. It has no settings."""
