"""The command line of a job: its script, its arguments, and the options of spark-submit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from airflow_dags.settings import Settings


@dataclass(frozen=True)
class Call:
    """A job, the day that it processes, and the `--set` values of this run of the job.

    Attributes:
        job: the name of the job.
        run_date: the logical day, YYYY-MM-DD.
        overrides: `--set` values of this run, in addition to those of the settings.
        options: further arguments of the script.
        is_plan: whether the job is plan_night. No check of the node precedes this job. It runs in client
            mode, whatever the Spark profile sets, because the task needs its summary.
    """

    job: str
    run_date: str
    overrides: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    is_plan: bool = False

    @property
    def name(self) -> str:
        """The name of the Spark application."""
        return f"nightrank {self.job} {self.run_date}"


def application(call: Call, settings: Settings) -> str:
    """Returns the path of the script of a job."""
    return f"{settings.home}/jobs/{call.job}.py"


def arguments(call: Call, settings: Settings) -> list[str]:
    """Returns the arguments of the script of a job."""
    words = ["--config", settings.config, "--run-date", call.run_date, *call.options]
    for override in all_overrides(call, settings):
        words += ["--set", override]
    return words


def all_overrides(call: Call, settings: Settings) -> tuple[str, ...]:
    """Returns the `--set` values of the settings, then those of the run. Later values have priority."""
    return (*settings.overrides, *call.overrides)


def doctor_arguments(call: Call, settings: Settings, master: str) -> list[str]:
    """Returns the arguments for Python to check the node, the job's Spark profile and the lake."""
    words = ["--profile", settings.profile(call.job), "--master", master, "--config", settings.config]
    for override in all_overrides(call, settings):
        words += ["--set", override]
    return ["-m", "setup.doctor", *words]


def beside(program: str, name: str) -> str:
    """Returns the path of the program `name` in the folder of `program`; `name` if that has no folder."""
    path = PurePosixPath(program)
    return name if path.name == program else str(path.with_name(name))
