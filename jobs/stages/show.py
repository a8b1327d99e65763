"""Shows the published list of one user."""

from __future__ import annotations

from reporting.inspect.user_list import decoded_names, find, page
from storage.job_summary import JobSummary
from storage.run_context import RunContext

_REPORTED = ("model_version", "workflow_version", "scored_at")


def run(context: RunContext, user: str) -> tuple[str, JobSummary]:
    """Finds the published list of a user, and replaces the ids in the user's features by raw values.

    Returns:
        The list as text for a terminal, and the summary.

    Raises:
        DataError: the date has no lists, or the user has none.
    """
    with context.phase("find"):
        user_list = find(context.lake, context.run_date, user, context.config.negatives)
    with context.phase("decode"):
        names = decoded_names(context.lake, user_list)
    facts = {
        "user": user_list.user,
        **{name: user_list.facts[name] for name in _REPORTED},
        "refit_of": user_list.facts.get("refit_of"),
        "list": user_list.entries,
    }
    path = context.lake.recommendations.partition(context.run_date).path
    return page(user_list, names), JobSummary(path, rows_out=len(user_list.entries), facts=facts)
