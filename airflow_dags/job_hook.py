"""A spark-submit hook that reads a job's exit code and job summary, and ends all processes of the job.

With a local master, the hook starts jobs with Python instead of spark-submit, because small jobs then need no
JVM. A job that needs Spark starts the JVM itself, with the same options.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_dags.runners import summary_in


class JobHook(SparkSubmitHook):
    """A hook that runs spark-submit in the folder `folder`, in a separate process group.

    Attributes:
        closing: the job summary, which is the JSON object at the end of the job's standard output. It is
            empty if the driver ran on another machine.
    """

    def __init__(self, *, folder: str, **options: Any) -> None:
        super().__init__(**options)
        self._folder = folder
        self.closing: dict[str, Any] = {}

    @property
    def exit_code(self) -> int | None:
        """The job's exit code: 128 + n if signal n ended spark-submit, None while the job runs."""
        if self._submit_sp is None or self._submit_sp.returncode is None:
            return None
        code = int(self._submit_sp.returncode)
        if self._is_kubernetes and self._spark_exit_code:
            return int(self._spark_exit_code)  # that of the driver's pod
        return 128 - code if code < 0 else code

    def submit(self, application: str = "", **options: Any) -> str | None:
        """Runs the job, as the provider's hook does.

        If the job fails, all of its processes that still run are ended. For example, the Python driver of a
        job keeps running if the JVM of the job is killed.
        """
        try:
            return super().submit(application, cwd=self._folder, start_new_session=True, **options)
        finally:
            if self.exit_code != 0:
                self._end_group()

    def _build_spark_submit_command(self, application: str) -> list[str]:
        """Returns the command of the job. PySpark reads the options of spark-submit from the environment."""
        command: list[str] = super()._build_spark_submit_command(application)
        python = self._python_of_local_jobs()
        if python is None:
            return command
        start = command.index(application)
        options = shlex.join([*command[1:start], "pyspark-shell"])
        self._env = {**(self._env or {}), "PYSPARK_SUBMIT_ARGS": options}
        self.log.info(
            "The master is local, so the job starts without a JVM, with the program %s and "
            "PYSPARK_SUBMIT_ARGS=%s",
            python,
            options,
        )
        return [python, *command[start:]]

    def _python_of_local_jobs(self) -> str | None:
        """Returns the Python beside spark-submit; None if there is none, or if the job needs spark-submit."""
        connection = self._connection
        if not str(connection["master"]).startswith("local") or connection["deploy_mode"] == "cluster":
            return None
        submit = which(connection["spark_binary"])
        return None if submit is None else which(str(Path(submit).with_name("python")))

    def on_kill(self) -> None:
        """Ends spark-submit and all of its processes."""
        super().on_kill()
        self._end_group()

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        super()._process_spark_submit_log(self._watched(itr))

    def _watched(self, lines: Iterator[Any]) -> Iterator[Any]:
        for line in lines:
            self.closing = summary_in(line) or self.closing
            yield line

    def _end_group(self) -> None:
        if self._submit_sp is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._submit_sp.pid, signal.SIGKILL)
