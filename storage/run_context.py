"""The context of one run of one job: configuration, run date, lake, Spark session, and timed phases."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conf.errors import ConfigError
from conf.types import Config
from storage.lineage import NOT_RECORDED, LineageRecorder
from storage.paths import LakePaths

if TYPE_CHECKING:  # so jobs without Spark never import pyspark
    from pyspark.sql import SparkSession

log = logging.getLogger("nightrank")


def _no_session(context: RunContext) -> SparkSession:
    raise RuntimeError(f"internal error, please report: {context.name} was given no Spark session")


@dataclass
class RunContext:
    """The argument of every stage function.

    Attributes:
        name: the name of the job, such as `build_features`.
        run_date: the ISO date for which the job runs.
        phases: maps each phase that has ended to its duration in seconds.
        open_session: builds the Spark session. The function is called when the session is first needed. So a
            job that finds bad input before that starts no executors.
        recorder: records which data the run reads and publishes. The code that runs a job passes the lineage
            of the run. In notebooks and tests nothing is recorded.
        in_process: whether scoring and evaluation keep their rows as Arrow tables in this process, instead of
            Spark frames. A stage that supports both sets this attribute with
            spark.choose_workers.stay_in_process.
    """

    name: str
    config: Config
    run_date: str
    phases: dict[str, float] = field(default_factory=dict)
    open_session: Callable[[RunContext], SparkSession] = _no_session
    recorder: LineageRecorder = NOT_RECORDED
    in_process: bool = False
    _spark: SparkSession | None = None

    @property
    def lake(self) -> LakePaths:
        """Returns the lake of the configuration.

        `recorder` records what the run reads and publishes in this lake.
        """
        return LakePaths(self.config.lake, self.recorder)

    @property
    def spark(self) -> SparkSession:
        """Returns the Spark session, built at first use."""
        if self._spark is None:
            with self.phase("session"):
                self._spark = self.open_session(self)
        return self._spark

    @property
    def started_spark(self) -> SparkSession | None:
        """Returns the Spark session, or None if it was not built."""
        return self._spark

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times a phase and logs its beginning and its end."""
        log.info("%s …", name)
        start = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = round(self.phases.get(name, 0.0) + time.monotonic() - start, 2)
        log.info("%s: %.1f s", name, self.phases[name])

    def stop(self) -> None:
        """Stops the Spark session if it was built."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None


def require(config: Config, *sections: str) -> None:
    """Raises ConfigError if the configuration lacks an optional section that a job needs."""
    missing = [name for name in sections if getattr(config, name) is None]
    if missing:
        raise ConfigError(
            f"this job needs the sections {missing}, which the configuration does not contain",
            "add these sections to the configuration file",
        )
