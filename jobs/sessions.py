"""The Spark session of a job. The session is built for the job, or the jobs of an application share it."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from conf.lazy_imports import allow_pandas
from spark.error_log import SparkLog
from spark.session import build_session
from storage.run_context import RunContext


@dataclass
class OwnSession:
    """Builds a job's Spark session, and saves the Java stack traces that Spark logs."""

    error_log: SparkLog = field(default_factory=SparkLog)

    def open(self, context: RunContext) -> SparkSession:
        """Builds the session.

        Attaches the error log before building the session, because building can fail, and again afterwards.
        """
        allow_pandas()
        self.error_log.attach()
        session = self._build(context)
        self.error_log.attach()
        return session

    def keep_stacks(self, context: RunContext, error: BaseException | None = None) -> str | None:
        """Saves the stack traces of Spark's log and of `error`.

        Returns the path; None without stack traces.
        """
        return self.error_log.end(context.lake.logs, context.run_date, context.name, error)

    def close(self, context: RunContext) -> None:
        """Ends the job's use of the session."""
        context.stop()

    def _build(self, context: RunContext) -> SparkSession:
        return build_session(
            f"nightrank {context.name} {context.run_date}", event_logs=context.lake.event_logs
        )


@dataclass
class SharedSession:
    """The Spark session of several jobs that run in one process, one after the other.

    The session is built for the first job that needs it. When a job ends, its cached tables are removed from
    Spark.
    """

    _session: SparkSession | None = None

    def of_job(self) -> OwnSession:
        """Returns the sessions object of the next job."""
        return _Borrowed(self)

    def get(self, context: RunContext) -> SparkSession:
        """Returns the session. Builds it if it does not exist, with event logs in the lake of the job."""
        if self._session is None:
            self._session = build_session(
                f"nightrank {context.config.name} {context.run_date}", event_logs=context.lake.event_logs
            )
        return self._session

    def clean(self) -> None:
        """Removes the cached tables of the job that has ended."""
        if self._session is not None:
            self._session.catalog.clearCache()

    def stop(self) -> None:
        """Stops the session if it was built."""
        if self._session is not None:
            self._session.stop()
            self._session = None


@dataclass
class _Borrowed(OwnSession):
    """The use of a shared session by one job."""

    shared: SharedSession = field(default_factory=SharedSession)

    def __init__(self, shared: SharedSession) -> None:
        super().__init__()
        self.shared = shared

    def close(self, context: RunContext) -> None:
        """Ends the use of the session; the next job can use it."""
        if context.started_spark is not None:
            self.shared.clean()

    def _build(self, context: RunContext) -> SparkSession:
        return self.shared.get(context)
