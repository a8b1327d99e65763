"""Applies an override (rollback, pin or release), if any, and shows which model serves on a date and why."""

from __future__ import annotations

from conf.messages import printable_lines
from reporting.inspect.model_tables import describe_override, history_table
from storage.job_summary import JobSummary
from storage.run_context import RunContext
from training.registry.champion_history import Action, Override, champion_state_as_of
from training.registry.overrides import OverrideRequest, pin, release, roll_back
from training.registry.refits import serving_model


def run(context: RunContext, action: Action | None, request: OverrideRequest) -> tuple[str, JobSummary]:
    """Applies the override if `action` is not None, and shows which model serves.

    Returns:
        The history as text for a terminal, and the summary.

    Raises:
        ConfigError, DataError: the override is not allowed.
    """
    lake, name = context.lake, context.config.name
    override = _apply(context, action, request)
    serving = serving_model(context.config, lake, context.run_date)
    refit = serving.refit if serving else None
    text = printable_lines(history_table(lake, name, context.run_date, refit))
    if action is not None:
        text = f"{text}\n{printable_lines(describe_override(override))}"
    champion_state = champion_state_as_of(lake, name, context.run_date)
    facts = {
        "champion": champion_state.champion,
        "pinned": champion_state.pinned is not None,
        "withdrawn": sorted(champion_state.withdrawn),
        "changed": override is not None,
        "refit": refit,
    }
    return text, JobSummary(lake.models(name), facts=facts)


def _apply(context: RunContext, action: Action | None, request: OverrideRequest) -> Override | None:
    """Records the override and returns it; None if `action` is None, or if the override has no effect."""
    if action is None:
        return None
    record = {"rollback": roll_back, "pin": pin, "release": release}[action]
    return record(context.lake, context.config.name, request)
