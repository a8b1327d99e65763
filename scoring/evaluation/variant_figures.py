"""Figures of the variants of an experiment, their differences with intervals, and the guard rail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.serving_types import ServingExperiment
from metrics.bootstrap import interval
from metrics.sample_ratio import sample_ratio_p
from scoring.evaluation.list_relevance import UNITS
from scoring.evaluation.variant_sums import WEIGHT, Sums
from scoring.inputs.requests import CONTROL, TREATMENT

# Maps each measure to its numerator and its denominator, and the number of units that stand for 1.
_RATIOS = {
    "hit_rate": ("hit", "clicked", 1),
    "ndcg": ("ndcg", "clicked", UNITS),
    "mrr": ("reciprocal_rank", "clicked", UNITS),
    "hit_user_share": ("hit", WEIGHT, 1),
}
DECISIVE = "ndcg"
MISMATCH_P = 0.001


def compare_variants(sums: Mapping[str, Sums], confidence: float) -> dict[str, Any]:
    """Returns the figures of each variant, and the differences between treatment and control.

    Args:
        sums: the sums of each variant (scoring.evaluation.variant_sums).
        confidence: the confidence of the intervals.

    Returns:
        A dictionary of JSON values with these keys:
        - `variants`: maps each variant to `users`, `clicked` (users with a click), `hit_rate`, `ndcg` and
          `mrr` (means over the users with a click), and `hit_user_share` (share of all users who clicked an
          item of their list). A figure without users is None.
        - `differences`: maps each measure to `difference`, `low` and `high`, and to the same figures of the
          relative difference, (treatment - control) / control. A measure without an interval is missing.
    """
    figures = {variant: _figures(of_variant) for variant, of_variant in sums.items()}
    differences = {}
    if CONTROL in figures and TREATMENT in figures:
        for measure in _RATIOS:
            ours, theirs = figures[TREATMENT][measure], figures[CONTROL][measure]
            absolute = _interval(ours, theirs, confidence)
            if absolute is not None:
                with np.errstate(divide="ignore", invalid="ignore"):
                    ratio = ours / theirs
                relative = _interval(ratio, np.ones_like(ratio), confidence) or {}
                differences[measure] = {
                    **absolute,
                    **{f"relative_{name}": relative.get(name) for name in ("difference", "low", "high")},
                }
    return {
        "variants": {
            variant: {
                "users": int(sums[variant][WEIGHT][0]),
                "clicked": int(sums[variant]["clicked"][0]),
                **{measure: _number(values[0]) for measure, values in of_variant.items()},
            }
            for variant, of_variant in figures.items()
        },
        "differences": differences,
    }


def _figures(sums: Sums) -> dict[str, NDArray[np.float64]]:
    """Returns each measure of all users and of each resample, (1 + replicates,); NaN without users."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            measure: sums[above] / (sums[below].astype(np.float64) * units)
            for measure, (above, below, units) in _RATIOS.items()
        }


def _interval(
    ours: NDArray[np.float64], theirs: NDArray[np.float64], confidence: float
) -> dict[str, float] | None:
    """Returns difference, low and high of two measures, each (1 + replicates,); None if it is undefined."""
    difference = float(ours[0] - theirs[0])
    between = interval(difference, ours[1:], theirs[1:], confidence) if np.isfinite(difference) else None
    if between is None:
        return None
    return {"difference": difference, "low": between.low, "high": between.high}


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def sample_ratios(figures: Mapping[str, Any], share: float) -> dict[str, float | None]:
    """Returns the p-values of the test for a sample ratio mismatch: of all users, and of those with a click.

    Args:
        figures: the result of `compare_variants` for one day.
        share: the share of the treatment.
    """
    control, treatment = (figures["variants"].get(variant, {}) for variant in (CONTROL, TREATMENT))
    return {
        name: sample_ratio_p(control.get(name, 0), treatment.get(name, 0), share)
        for name in ("users", "clicked")
    }


def stop_reason(settings: ServingExperiment, total: Mapping[str, Any]) -> str | None:
    """Returns why an experiment must stop; None if it may go on.

    Args:
        settings: the section `serving.experiment`.
        total: the result of `compare_variants` for all days of the experiment.
    """
    decisive = total["differences"].get(DECISIVE)
    if settings.stop_below is None or decisive is None or decisive["relative_high"] is None:
        return None
    fewest = min(variant["clicked"] for variant in total["variants"].values())
    if fewest < settings.min_users or decisive["relative_high"] >= settings.stop_below:
        return None
    return (
        f"NDCG of the treatment differs from that of the control by {decisive['relative_difference']:+.1%}; "
        f"the {settings.confidence:.0%} interval, {decisive['relative_low']:+.1%} to "
        f"{decisive['relative_high']:+.1%}, is below stop_below={settings.stop_below:g}"
    )
