"""The section about stages: the durations of the stages of a run, and of the phases of each stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from conf.messages import counted
from reporting.elements import numbers
from reporting.elements.charts import rows
from reporting.elements.markup import Section, figure, grid, lead, missing, section, table
from reporting.facts.recent_runs import last_successes
from reporting.monitoring.run_record import read_records
from storage import file_io
from storage.job_summary import JobSummary
from storage.paths import LakePaths


@dataclass(frozen=True)
class StageTime:
    """The seconds of one stage, as its job measured them.

    Attributes:
        stage: name of the stage.
        total_s: seconds of the complete stage.
        phases_s: maps the name of each phase to its seconds.
    """

    stage: str
    total_s: float
    phases_s: Mapping[str, float]


def read_stage_times(lake: LakePaths, run_date: str, config: str) -> list[StageTime]:
    """Returns the durations of the successful stages of a run, in the order in which the stages ended.

    The durations come from the logs that `nightly` writes. If the lake is not local, or if a scheduler stores
    the logs elsewhere, they come from the last successful run record of each job of this configuration.
    """
    return _of_logs(lake, run_date) or [
        StageTime(record.job, record.seconds, record.phases)
        for record in last_successes(read_records(lake, [run_date], config)).values()
        if record.job != "report"
    ]


def _of_logs(lake: LakePaths, run_date: str) -> list[StageTime]:
    """Returns the durations of the stages whose logs contain a job summary."""
    if not file_io.is_local(lake.logs):
        return []
    folder = Path(file_io.filesystem(lake.logs)[1]) / f"dt={run_date}"
    stage_times = []
    for log in sorted(folder.glob("*.log"), key=lambda path: (path.stat().st_mtime, path.name)):
        summary = JobSummary.in_log(log)
        seconds = dict(summary.seconds) if summary else {}
        # The job `report` is still running, so a summary in its log is that of an earlier attempt.
        if seconds and log.stem != "report":
            stage_times.append(StageTime(log.stem, float(seconds.pop("total")), seconds))
    return stage_times


def render(times: list[StageTime]) -> Section:
    """Returns the section: a bar chart and a table of the seconds that each stage took."""
    if not times:
        return section("stages", "Stages", missing("Durations of the stages", "nightly"))
    total = sum(stage.total_s for stage in times)
    sentence = lead(
        f"{counted(len(times), 'stage')} took {numbers.seconds(total)}, measured by the jobs themselves; "
        "the start of each Spark process is not included."
    )
    drawn = rows(
        "Seconds by stage", [stage.stage for stage in times], [stage.total_s for stage in times], unit="s"
    )
    listed = [
        [
            stage.stage,
            numbers.seconds(stage.total_s),
            ", ".join(f"{name} {value:.1f}" for name, value in stage.phases_s.items()),
        ]
        for stage in times
    ]
    shown = table(["Stage", "Total", "Phases, seconds"], listed, "Seconds by phase", text=(0, 2))
    return section("stages", "Stages", sentence, grid(figure(drawn, "Seconds by stage", ""), shown))
