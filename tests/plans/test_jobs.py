"""Whole jobs would run on the GPU: every frame they evaluate, keep in memory or write, except the reviewed
list.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.plans.accelerator import Accelerator
from tests.plans.allowed import read_list, refused, unneeded
from tests.plans.recorder import Recorded
from tests.plans.runs import RUNS

ON_GPU = [name for name, run in RUNS.items() if run.on_gpu]

# What each run must at least evaluate: a recording that misses them would prove nothing.
MAIN_FRAMES = {
    "operators": [
        "etl.fit.version_tables.publish_frame write",
        "etl.spark.frame_passes._publish_features write",
    ],
    "by_day": [
        "etl.spark.frame_passes._publish_prepared write",
        "etl.statistics.moments.measure_moments collect",
        "etl.fit.row_statistics._publish_vocabularies persist",
        "etl.spark.frame_passes._publish_features write",
        "etl.latest.latest_features.publish_latest write",
    ],
    "choices": [
        "etl.spark.raw_frames.read_attributes collect",
        "etl.spark.frame_passes._publish_prepared write",
        "etl.spark.frame_passes._publish_features write",
    ],
    "parquet": [
        "etl.spark.frame_passes._publish_prepared write",
        "etl.spark.frame_passes._publish_features write",
    ],
    "shop": [
        "etl.spark.frame_passes._publish write",
        "etl.spark.frame_passes._publish_prepared write",
    ],
    "scoring": [
        "scoring.candidates.build.publish_items write",
        "scoring.candidates.build.publish_candidates write",
        "jobs.score_daily.run persist",
        "jobs.score_daily.run write",
        "scoring.spark.score_frames.score_split collect",
    ],
}


@pytest.mark.parametrize("run", ON_GPU)
def test_a_run_is_recorded_whole(run: str, recorded: Callable[[str], Recorded]) -> None:
    assert set(MAIN_FRAMES[run]) <= {frame.name for frame in recorded(run).frames}


@pytest.mark.parametrize("run", ON_GPU)
def test_a_run_falls_back_only_where_the_list_says(
    run: str, accelerator: Accelerator, recorded: Callable[[str], Recorded]
) -> None:
    messages = refused(recorded(run).frames, read_list())
    assert messages == [], (
        "rewrite these, or review them and add them to tests/plans/allowed.yaml:\n" + "\n".join(messages)
    )


def test_the_list_names_nothing_that_is_not_needed(
    accelerator: Accelerator, recorded: Callable[[str], Recorded]
) -> None:
    frames = [frame for run in ON_GPU for frame in recorded(run).frames]
    assert unneeded(frames, read_list()) == []


def test_every_entry_says_why() -> None:
    for entry in read_list():
        assert len(entry.because.split()) > 8, entry
