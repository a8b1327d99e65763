"""The learning rate schedule of a training, as a factor that multiplies the configured learning rates.

The factor does not depend on the number of ranks, because the rows of a global batch do not depend on it.
"""

from __future__ import annotations

from conf.train_types import Train


def learning_rate_factor(step: int, steps: int, train: Train) -> float:
    """Returns the factor of the learning rates in a step.

    Over the steps of a training, the factor grows linearly (warm-up), is then constant, and then decays as a
    power. With `decay_power` 2 and `decay_end_factor` 0, this is the schedule of DLRM's authors.

    Args:
        step: number of steps done before this step, 0 in the first step.
        steps: number of steps of the complete training.
        train: the settings. `warmup_share` and `decay_start_share` are shares of `steps`.
    """
    warmup = train.warmup_share * steps
    decay_start = train.decay_start_share * steps
    if step < warmup:
        return min((step + 1) / warmup, 1.0)
    if step < decay_start:
        return 1.0
    remaining = (steps - step) / max(steps - decay_start, 1.0)
    return train.decay_end_factor + (1 - train.decay_end_factor) * remaining**train.decay_power
