"""The command line of the stage learn_blend."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.learn_blend import run

DESCRIPTION = (
    "Fits a blend: a combination of the scores of the champion and of the sources of candidates "
    "(score.blend: auto). Measures the champion, each source and the blend on clicks of the validation "
    "split, and records the best of them."
)


if __name__ == "__main__":
    run_job("learn_blend", DESCRIPTION, run)
