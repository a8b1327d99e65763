"""spark-submit as a hook that knows our jobs' contract: the exit code, the closing line, and an end of all of it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook


class JobHook(SparkSubmitHook):
    """Runs spark-submit in a folder and a process group of its own.

    Attributes:
        closing: the JSON object that ended the job's standard output; empty where its driver ran elsewhere.
    """

    def __init__(self, *, folder: str, **options: Any) -> None:
        super().__init__(**options)
        self._folder = folder
        self.closing: dict[str, Any] = {}

    @property
    def exit_code(self) -> int | None:
        """The job's; 128 + n where signal n ended spark-submit; None before it has ended."""
        if self._submit_sp is None or self._submit_sp.returncode is None:
            return None
        code = int(self._submit_sp.returncode)
        if self._is_kubernetes and self._spark_exit_code:
            return int(self._spark_exit_code)  # of the driver's pod
        return 128 - code if code < 0 else code

    def submit(self, application: str = "", **options: Any) -> str | None:
        """As the provider's; afterwards nothing of a failed job is left running here: a killed JVM leaves its Python driver."""
        try:
            return super().submit(application, cwd=self._folder, start_new_session=True, **options)
        finally:
            if self.exit_code != 0:
                self._end_group()

    def on_kill(self) -> None:
        super().on_kill()
        self._end_group()

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        super()._process_spark_submit_log(self._watched(itr))

    def _watched(self, lines: Iterator[Any]) -> Iterator[Any]:
        for line in lines:
            if line.startswith("{"):
                with suppress(json.JSONDecodeError):
                    found = json.loads(line)
                    if isinstance(found, dict) and {"job", "seconds"} <= found.keys():
                        self.closing = found
            yield line

    def _end_group(self) -> None:
        if self._submit_sp is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._submit_sp.pid, signal.SIGKILL)
