"""Writes the HTML report of a night from what its other jobs published. Needs no Spark session."""

from __future__ import annotations

from conf import storage
from jobs.report_page.page import build
from jobs.runner import Job, Result, run

DESCRIPTION = (
    "Writes <lake>/reports/<run date>.html: key figures, data summary, data quality, training curve, calibration, score distribution, "
    "coverage, a few lists and the stages' seconds. One file that opens offline. What has not run yet is said in its place."
)


def report(job: Job) -> Result:
    with job.phase("read and draw"):
        _, page = build(job.config, job.run_date)
    path = job.lake.report(job.run_date)
    with job.phase("write"):
        storage.replace_text(path, page)
    return Result(output=path, facts={"bytes": len(page.encode())})


if __name__ == "__main__":
    run("report", DESCRIPTION, report)
