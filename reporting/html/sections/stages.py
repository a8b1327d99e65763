"""How long the night took, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from reporting.elements import numbers
from reporting.elements.markup import Html, figure, grid, lead, missing, section, table
from reporting.facts.recent_runs import last_successes
from reporting.html.charts.bars import rows
from reporting.monitoring.run_record import read_records
from storage import file_io
from storage.job_summary import JobSummary
from storage.paths import Lake


@dataclass(frozen=True)
class StageTime:
    """Seconds of one stage by its job's own clock, and of its phases."""

    stage: str
    total_s: float
    phases_s: Mapping[str, float]


def read_stage_times(lake: Lake, run_date: str, config: str) -> list[StageTime]:
    """The stages of a night that ended well, in the order they ended: from the logs of `nightly`, or, where a scheduler keeps the
    logs, from the rows of `runs` of this configuration, the last of each job.
    """
    return _of_logs(lake, run_date) or [
        StageTime(each.job, each.seconds, each.phases)
        for each in last_successes(read_records(lake, [run_date], config)).values()
        if each.job != "report"
    ]


def _of_logs(lake: Lake, run_date: str) -> list[StageTime]:
    if not file_io.is_local(lake.logs):
        return []
    folder = Path(file_io.filesystem(lake.logs)[1]) / f"dt={run_date}"
    found = []
    for log in sorted(folder.glob("*.log"), key=lambda path: (path.stat().st_mtime, path.name)):
        summary = JobSummary.in_log(log)
        seconds = dict(summary.seconds) if summary else {}
        if seconds and log.stem != "report":  # the report's own line is from an earlier run, if there is one
            found.append(StageTime(log.stem, float(seconds.pop("total")), seconds))
    return found


def render(times: list[StageTime]) -> Html:
    """Bars and a table of the stages before the report."""
    if not times:
        return section("stages", "Stages", missing("The seconds of the stages", "nightly"))
    total = sum(each.total_s for each in times)
    sentence = lead(
        f"{len(times)} stages took {numbers.seconds(total)} by their own clocks; starting a Spark process comes on top."
    )
    drawn = rows(
        "Seconds by stage", [each.stage for each in times], [each.total_s for each in times], unit="s"
    )
    listed = [
        [
            each.stage,
            numbers.seconds(each.total_s),
            ", ".join(f"{name} {value:.1f}" for name, value in each.phases_s.items()),
        ]
        for each in times
    ]
    shown = table(["Stage", "Total", "Phases, seconds"], listed, "Seconds by phase", text=(0, 2))
    return section("stages", "Stages", sentence, grid(figure(drawn, "Seconds by stage", ""), shown))
