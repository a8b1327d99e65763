"""Writes the HTML report of a night from what its other jobs published. Needs no Spark session."""

from __future__ import annotations

from reporting.html.page import build
from storage import file_io
from storage.job_summary import JobSummary
from storage.run_context import RunContext

DESCRIPTION = (
    "Writes <lake>/reports/<run date>.html: key figures, data summary, data quality, training curve, calibration, score distribution, "
    "coverage, a few lists and the stages' seconds. One file that opens offline. What has not run yet is said in its place."
)


def run(context: RunContext) -> JobSummary:
    with context.phase("read and draw"):
        _, page = build(context.config, context.run_date)
    path = context.lake.report(context.run_date)
    with context.phase("write"):
        file_io.replace_text(path, page)
    return JobSummary(output=path, facts={"bytes": len(page.encode())})
