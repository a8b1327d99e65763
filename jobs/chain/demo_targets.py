"""The result of the demo: its figures, their targets, and whether each target was met."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from conf.errors import DataError
from reporting.elements import numbers
from reporting.facts.run_facts import Measure, RunFacts, logistic_regression
from reporting.terminal.text_table import text_table

MODEL_SHARE, BASELINE_SHARE, LIFT = 0.9, 0.8, 1.5


@dataclass(frozen=True)
class Figure:
    """One line of the result. `met` is None if the figure has no target."""

    name: str
    value: str
    target: str = ""
    met: bool | None = None


def verdict(run: RunFacts) -> list[Figure]:
    """Returns the figures of a measured run on a generated log, whose best possible AUC is known.

    Raises:
        DataError: the run was not evaluated, or its lists were not measured.
    """
    if run.evaluation is None or run.judged is None or run.measure is None or run.measure.dt != run.run_date:
        raise DataError(
            f"the run of {run.run_date} has no evaluation or no measure of its lists",
            "run nightly --retrain for this date, then measure_recommendations",
        )
    best = run.evaluation.get("best_auc")
    logistic = logistic_regression(run.evaluation)
    return [
        Figure(f"Best AUC the log of {run.run_date} allows", numbers.decimal(best)),
        *_auc_figures(
            "DLRM", run.judged["auc"], best, f"at least {MODEL_SHARE}", lambda share: share >= MODEL_SHARE
        ),
        *_auc_figures(
            "Logistic regression",
            logistic["auc"] if logistic else None,
            best,
            f"below {BASELINE_SHARE}",
            lambda share: share < BASELINE_SHARE,
        ),
        *_hit_rates(run.measure),
    ]


def _auc_figures(
    name: str, auc: float | None, best: float | None, target: str, meets: Callable[[float], bool]
) -> list[Figure]:
    """Returns two figures of a model: the AUC, and (AUC - 0.5) / (best AUC - 0.5) with its target."""
    share = numbers.share_reached(auc, best)
    return [
        Figure(f"{name}: AUC", numbers.decimal(auc)),
        Figure(
            f"{name}: (AUC - 0.5) / (best - 0.5)",
            numbers.decimal(share, 3),
            target,
            share is not None and meets(share),
        ),
    ]


def _hit_rates(measure: Measure) -> list[Figure]:
    """Returns the hit rate of the lists, that of the most popular items, and the ratio of both (lift)."""
    values = measure.values
    k, lift = values["k"], values["lift"]
    return [
        Figure(f"Recommendations: HR@{k} on the day after", numbers.decimal(values["hit_rate"])),
        Figure(f"Most popular items: HR@{k}", numbers.decimal(values["popular"]["hit_rate"])),
        Figure("Lift", numbers.decimal(lift, 2), f"at least {LIFT}", lift is not None and lift >= LIFT),
        *_ceiling(values.get("truth"), k),
    ]


def _ceiling(truth: Mapping[str, Any] | None, k: int) -> list[Figure]:
    """Returns the hit rates of lists by true probabilities, and the share of the best that ours reach.

    The list is empty if the true probabilities are unknown.
    """
    if truth is None:
        return []
    return [
        Figure(
            f"Lists by true click probability: HR@{k}",
            numbers.decimal(truth["click_probability"]["hit_rate"]),
        ),
        Figure(f"Best possible lists: HR@{k}", numbers.decimal(truth["best"]["hit_rate"])),
        Figure("Recommendations: HR / best HR", numbers.decimal(truth["share_of_best"], 3)),
    ]


def verdict_table(figures: list[Figure]) -> str:
    """Returns the figures as a table for a terminal."""
    outcome = {True: "met", False: "MISSED", None: ""}
    rows = [[figure.name, figure.value, figure.target, outcome[figure.met]] for figure in figures]
    return text_table(["Figure", "Value", "Target", ""], rows, right=(1,))
