"""Raw click log → quarantine and data report alone: whether a day's log may be built on, as build_features asks first of all.

What it publishes is what build_features would, which then leaves it as it is. Past a limit of the section `quality` it ends
with exit code 3.
"""

from __future__ import annotations

from collections import Counter

from etl.build import inspect, window
from jobs.runner import Job, Result, run


def check_quality(job: Job) -> Result:
    """Inspects the window of raw days that ends on the run date."""
    window(job.config, job.run_date)  # what can be refused without a session is refused before one starts
    found = inspect(job.spark, job.config, job.lake, job.run_date, job.phase)
    found.rows_of.release()
    dropped: Counter[str] = Counter()
    for counts in found.counts.values():
        dropped.update(counts.dropped)
    return Result(
        output=job.lake.quality(job.config.name).partition(job.run_date).path,
        rows_in=sum(counts.rows_in for counts in found.counts.values()),
        rows_out=sum(counts.good for counts in found.counts.values()),
        dropped=dropped,
        facts={"days": [raw.dt for raw in found.in_order], "quality_warnings": found.quality.warnings},
    )


if __name__ == "__main__":
    run("check_quality", __doc__ or "", check_quality)
