"""Generates a click log: days of raw files, from the run date on."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.generate_clicks import run

if __name__ == "__main__":
    run_job("generate_clicks", __doc__ or "", run)
