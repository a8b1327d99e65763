"""Raw click log → quarantine and data report alone: whether a day's log may be built on, as build_features asks first of all.

What it publishes is what build_features would, which then leaves it as it is. Past a limit of the section `quality` it ends
with exit code 3.
"""

from __future__ import annotations

from collections import Counter

from etl.build import inspect, window
from storage.job_summary import JobSummary
from storage.run_context import RunContext


def run(context: RunContext) -> JobSummary:
    """Inspects the window of raw days that ends on the run date."""
    window(
        context.config, context.run_date
    )  # what can be refused without a session is refused before one starts
    found = inspect(context.spark, context.config, context.lake, context.run_date, context.phase)
    found.rows_of.release()
    dropped: Counter[str] = Counter()
    for counts in found.counts.values():
        dropped.update(counts.dropped)
    return JobSummary(
        output=context.lake.quality(context.config.name).partition(context.run_date).path,
        rows_in=sum(counts.rows_in for counts in found.counts.values()),
        rows_out=sum(counts.good for counts in found.counts.values()),
        dropped=dropped,
        facts={"days": [raw.dt for raw in found.in_order], "quality_warnings": found.quality.warnings},
    )
