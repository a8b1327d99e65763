"""Generates the raw files of a click log, for several days that begin with the run date."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.generate_clicks import run

if __name__ == "__main__":
    run_job("generate_clicks", __doc__ or "", run)
