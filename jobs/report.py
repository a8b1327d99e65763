"""Writes the HTML report of a run from the results of its other stages, without a Spark session."""

from __future__ import annotations

from jobs.runner import run_job
from reporting.html.page import build
from storage import file_io
from storage.job_summary import JobSummary
from storage.run_context import RunContext

DESCRIPTION = (
    "Writes <lake>/reports/<run date>.html: key figures, data summary, data quality, training curve, "
    "calibration, score distribution, coverage, some lists and how long each stage took. The report is "
    "one file that can be read offline. If a stage has not run yet, the report says so."
)


def run(context: RunContext) -> JobSummary:
    """Reads the results of the run's stages, and writes the page to `reports/<run date>.html`."""
    with context.phase("read and draw"):
        _, page = build(context.config, context.run_date, context.recorder)
    path = context.lake.report(context.run_date)
    with context.phase("write"):
        file_io.replace_text(path, page)
    return JobSummary(output=path, facts={"bytes": len(page.encode())})


if __name__ == "__main__":
    run_job("report", DESCRIPTION, run)
