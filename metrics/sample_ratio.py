"""The test for a sample ratio mismatch: whether the sizes of two groups fit the share that was chosen.

A. Fabijan et al., Diagnosing Sample Ratio Mismatch in Online Controlled Experiments, KDD 2019.
"""

from __future__ import annotations

import math


def sample_ratio_p(control: int, treatment: int, share: float) -> float | None:
    """Returns the p-value of Pearson's chi-square test of two counts, with one degree of freedom.

    A small value says that the counts do not come from a random assignment with this share.

    Args:
        control, treatment: number of units in each group.
        share: the chosen share of the treatment, above 0 and below 1.

    Returns:
        The p-value; None if both groups are empty.
    """
    total = control + treatment
    if not total:
        return None
    expected = total * share
    statistic = (treatment - expected) ** 2 / (expected * (1 - share))
    return math.erfc(math.sqrt(statistic / 2))
