"""Whether a challenger takes the champion's place."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """`promoted`, and why, in words for people."""

    promoted: bool
    reason: str


def judge(challenger_auc: float, champion_auc: float | None, margin: float) -> Verdict:
    """Promotes unless the challenger's AUC is lower than the champion's by more than `margin`, or no number.

    Args:
        champion_auc: None where there is no champion yet: a first model is promoted.
        margin: what a challenger may lose and still replace the champion: it has seen newer data.
    """
    if not math.isfinite(challenger_auc):
        return Verdict(False, f"the challenger's AUC is {challenger_auc:.4f}")
    if champion_auc is None:
        return Verdict(True, f"first model: AUC {challenger_auc:.4f}, no champion to compare with")
    difference = challenger_auc - champion_auc
    compared = f"AUC {challenger_auc:.4f} against the champion's {champion_auc:.4f} ({difference:+.4f})"
    if difference < -margin:
        return Verdict(False, f"{compared}: worse by more than gate.margin={margin:g}")
    return Verdict(True, f"{compared}: not worse by more than gate.margin={margin:g}")
