"""Measures how often the guard rail stops a treatment that is as good as the control, by simulation.

    .venv/bin/python benchmarks/experiment_stops.py [--quick] [--experiments N]

An experiment has 14 dates and two variants of equal size. The lists of both variants are equally good. A user
with a click clicked one item, which is in the list with probability 1/4. The probability of its position p (1 to
10) is proportional to 1 / p. So each bootstrap sum is drawn from its exact distribution: in a resample
with weights from Poisson(1), the number of users with a hit at p has a Poisson distribution. Users differ
between dates. The product adds the dates, computes the interval and decides (scoring/evaluation).

The peer looks at the same sums once, at the end. The figures are shares of experiments that stop. A ratio is
our share divided by the peer's; it is null if the peer stops none. `half_width` is the median
of half the width of the interval of one date's relative difference.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import machine, summary_line, table
from conf.stage_types import ServingExperiment
from scoring.evaluation.experiment_measures import (
    DECISIVE,
    SUMS,
    Sums,
    add_days,
    compare_variants,
    stop_reason,
)
from scoring.evaluation.measured_lists import UNITS
from scoring.requests import CONTROL, TREATMENT

DAYS, K, HIT_RATE, SEED = 14, 10, 0.25, 7
USERS = (100, 800, 3_000)  # number of users with a click, per variant and date
LIMITS = (-0.05, -0.1)
SMALLEST = (1, 200)  # values of min_users

_PLACES = np.arange(1, K + 1)
_AT_PLACE = HIT_RATE / _PLACES / (1 / _PLACES).sum()
_PROBABILITIES = np.append(_AT_PLACE, 1 - HIT_RATE)  # (K + 1,): a hit at each position, then no hit
_NDCG = np.append(np.round(UNITS / np.log2(_PLACES + 1)), 0).astype(np.int64)
_RECIPROCAL = np.append(np.round(UNITS / _PLACES), 0).astype(np.int64)


def day_sums(generator: np.random.Generator, users: int, replicates: int) -> Sums:
    """Returns the sums of one variant and date, as `scoring.evaluation.experiment_measures.sum_variants` does."""
    counts = generator.multinomial(users, _PROBABILITIES)  # (K + 1,)
    resamples = generator.poisson(counts, (replicates, K + 1))
    weights: NDArray[np.int64] = np.vstack([counts, resamples]).astype(np.int64)  # (1 + replicates, K + 1)
    clicked = weights.sum(axis=1)
    columns = (clicked, clicked, weights[:, :K].sum(axis=1), weights @ _NDCG, weights @ _RECIPROCAL)
    return dict(zip(SUMS, columns, strict=True))


def totals(generator: np.random.Generator, users: int, replicates: int) -> Iterator[dict[str, Any]]:
    """Yields the figures of an experiment after each date."""
    total: dict[str, Sums] | None = None
    for _ in range(DAYS):
        day = {variant: day_sums(generator, users, replicates) for variant in (CONTROL, TREATMENT)}
        total = day if total is None else add_days([total, day])
        yield compare_variants(total, 0.95)


def settings_of(limit: float, smallest: int) -> ServingExperiment:
    """Returns the section `serving.experiment` with a guard rail."""
    return ServingExperiment(
        name="simulated", share=0.5, start="2026-01-01", stop_below=limit, min_users=smallest
    )


def simulate(users: int, experiments: int, replicates: int) -> dict[str, Any]:
    """Returns the shares of experiments that stop, by limit and min_users, and the width of the intervals.

    Args:
        users: number of users with a click, per variant and date.
        experiments: number of simulated experiments.
        replicates: number of resamples.
    """
    generator = np.random.default_rng([SEED, users])
    guards = {(limit, smallest): settings_of(limit, smallest) for limit in LIMITS for smallest in SMALLEST}
    stopped, at_end = dict.fromkeys(guards, 0), dict.fromkeys(LIMITS, 0)
    widths = []
    for _ in range(experiments):
        days = list(totals(generator, users, replicates))
        first = days[0]["differences"].get(DECISIVE)
        if first is not None:
            widths.append((first["relative_high"] - first["relative_low"]) / 2)
        for key, guard in guards.items():
            stopped[key] += any(stop_reason(guard, day) is not None for day in days)
        for limit in LIMITS:
            at_end[limit] += stop_reason(guards[limit, SMALLEST[0]], days[-1]) is not None
    return {
        "half_width": round(float(np.median(widths)), 3),
        "ours": {key: count / experiments for key, count in stopped.items()},
        "peer": {limit: count / experiments for limit, count in at_end.items()},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="300 experiments for each number of users")
    parser.add_argument(
        "--experiments", type=int, default=2_000, help="experiments for each number (default %(default)s)"
    )
    parser.add_argument("--replicates", type=int, default=1_000, help="resamples (default %(default)s)")
    options = parser.parse_args(arguments)
    experiments = 300 if options.quick else options.experiments
    results = {users: simulate(users, experiments, options.replicates) for users in USERS}
    head = ["users with clicks", "half width of a date"]
    head += [f"{limit:g}, min_users={smallest}" for limit in LIMITS for smallest in SMALLEST]
    head += [f"one look, {limit:g}" for limit in LIMITS]
    rows = [
        [f"{users:,}", f"{result['half_width']:.0%}"]
        + [f"{share:.2%}" for share in (*result["ours"].values(), *result["peer"].values())]
        for users, result in results.items()
    ]
    print(table(head, rows))
    ours: dict[str, float] = {}
    peers: dict[str, float] = {}
    ratios: dict[str, float | None] = {}
    for users, result in results.items():
        ours[f"{users}_half_width"] = result["half_width"]
        ours |= {f"{users}_{limit:g}_min_{least}": s for (limit, least), s in result["ours"].items()}
        peers |= {f"{users}_{limit:g}": share for limit, share in result["peer"].items()}
        for limit, share in result["peer"].items():
            ratios[f"{users}_{limit:g}"] = result["ours"][limit, SMALLEST[0]] / share if share else None
    of_machine = machine(1, ("numpy",))
    print(
        summary_line(
            "experiment_stops", of_machine, ours, {"one_look": peers}, ratios, experiments=experiments
        )
    )


if __name__ == "__main__":
    main()
