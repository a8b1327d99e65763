"""Shows decisions about the versions of a model, and a comparison of models and settings, on a terminal.

The log of decisions shows which version serves, since when, and why.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from reporting.elements.comparison_rows import (
    HEADERS,
    MEASURE_WORDS,
    TEXT_COLUMNS,
    comparison_rows,
    measured,
)
from reporting.terminal import text_table
from storage.paths import LakePaths
from training.registry.champion_history import Override, champion_state_as_of, read_decisions, read_overrides
from training.registry.comparison import Comparison
from training.registry.refits import Refit, read_refits

_HEADERS = ["Date", "What", "Version", "Parent", "AUC", "Gain", "Interval", "Serving after it"]
_SHOWN = 30
_WIDTH = 100


def history_table(lake: LakePaths, name: str, run_date: str, refit: str | None = None) -> str:
    """Returns a text that names the model that serves on a run date, and the reason why it serves.

    The text ends with a table of the last thirty decisions and refits up to this date.

    Args:
        lake: the lake.
        name: the name of the configuration.
        run_date: the date.
        refit: the refit that makes the lists in place of the champion; None if the champion makes them.
    """
    events: list[tuple[str, int, list[str]]] = []
    for date, decision in read_decisions(lake, name, run_date):
        events.append((date, 0, _decision_row(date, decision)))
    for override in read_overrides(lake, name, run_date):
        events.append((override.run_date, 1, _override_row(override)))
    for record in read_refits(lake, name, run_date):
        events.append((record.run_date, 2, _refit_row(record)))
    if not events:
        return (
            f"{name}: nothing has been decided up to {run_date}; "
            "train_model and evaluate_model make the first champion."
        )
    events.sort(key=lambda event: event[:2])
    shown = [row for _, _, row in events[-_SHOWN:]]
    return "\n".join([_headline(lake, name, run_date, refit), "", text_table(_HEADERS, shown, right=(4, 5))])


def describe_override(override: Override | None) -> str:
    """Returns a text with the effect of an override (a manual decision) and the next command to run.

    `override` is None if the command changed nothing.
    """
    if override is None:
        return (
            "\n  Nothing was changed: this is already the current state. To roll back further, pass a "
            "version: --rollback --to VERSION"
        )
    withdrawn = f" Withdrawn: {', '.join(override.withdrawn)}." if override.withdrawn else ""
    text = (
        f"Recorded: {override}. From {override.run_date} on, {override.champion} serves.{withdrawn} Lists "
        f"that are already published do not change: `nightly --run-date {override.run_date}` makes the "
        "lists of that date again."
    )
    return "\n" + textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  ")


def _headline(lake: LakePaths, name: str, run_date: str, refit: str | None) -> str:
    """Returns text lines about the champion and the reason why it serves.

    The lines also name the refit and the pin, if there are any, and the withdrawn versions.
    """
    champion_state = champion_state_as_of(lake, name, run_date)
    lines = [f"{name} on {run_date}: {champion_state.champion or 'no champion'} serves."]
    if refit is not None:
        lines.append(f"Its refit {refit} makes the lists.")
    if champion_state.pinned is not None:
        lines.append(f"It is pinned: {champion_state.pinned}.")
    elif champion_state.champions:
        since, champion = champion_state.champions[-1]
        reason = next(
            (
                str(decision["reason"])
                for date, decision in reversed(read_decisions(lake, name, run_date))
                if decision["promoted"] and decision["champion_after"] == champion
            ),
            "",
        )
        lines.append(f"Champion since {since}. {reason}".strip())
    lines += [
        f"{version} is out: {override}." for version, override in sorted(champion_state.withdrawn.items())
    ]
    wrapped = (
        textwrap.fill(line, _WIDTH, initial_indent="  ", subsequent_indent="    ") for line in lines[1:]
    )
    return "\n".join([lines[0], *wrapped])


def _decision_row(date: str, decision: Mapping[str, Any]) -> list[str]:
    """Returns the table row for a decision of the gate."""
    auc = ((decision.get("metrics") or {}).get("challenger") or {}).get("auc")
    between = (decision.get("intervals") or {}).get("auc")
    return [
        date,
        "promoted" if decision["promoted"] else "kept out",
        decision["challenger"],
        (decision.get("lineage") or {}).get("parent") or "-",
        "-" if auc is None else f"{auc:.4f}",
        "-" if between is None else f"{between['difference']:+.4f}",
        "-" if between is None else f"{between['low']:+.4f} to {between['high']:+.4f}",
        decision["champion_after"] or "-",
    ]


def _override_row(override: Override) -> list[str]:
    """Returns the table row for an override (a manual decision)."""
    versions = ", ".join(override.withdrawn) or override.champion
    reason = f"{override.by}: {override.why}"
    return [override.run_date, override.action, versions, "-", "-", "-", reason, override.champion]


def _refit_row(refit: Refit) -> list[str]:
    """Returns the table row for a refit. The column Parent has the champion that was trained again."""
    return [refit.run_date, "refit", refit.version, refit.champion, "-", "-", "-", refit.champion]


# A function that shows a comparison of models and settings as text for a terminal.


def comparison_text(comparison: Comparison, run_date: str, command: str) -> str:
    """Returns the table of a comparison, the failures, the best experiment and the command that uses it.

    Args:
        comparison: the result.
        run_date: the run date of the dataset.
        command: the command that starts the nightly run with the settings of the best experiment.
    """
    right = [index for index in range(len(HEADERS)) if index not in TEXT_COLUMNS]
    best, measure = comparison.best, comparison.choose_by
    failures = [
        f"  {experiment.name} failed: {experiment.failure.splitlines()[0]}"
        for experiment in comparison.experiments
        if experiment.failure
    ]
    return "\n".join(
        [
            f"\n  {comparison.name}: experiments on the dataset of {run_date}, "
            f"ordered by {MEASURE_WORDS[measure]} on the validation split. "
            "The test split is only reported.\n",
            text_table(HEADERS, comparison_rows(comparison), right=right),
            *(["", *failures] if failures else []),
            f"\n  Best: {best.name}, with validation {MEASURE_WORDS[measure]} "
            f"{measured(best, 'validation', measure)}. To train it in the nightly run:\n\n    {command}\n",
        ]
    )
