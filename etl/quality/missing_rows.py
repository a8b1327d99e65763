"""Numbers of users and items of the log without a row in their table of attributes, and their limits."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from conf.errors import DataError
from conf.types import Quality
from etl.quality.checks import Figure, Finding, above_limits, options_to_accept
from etl.quality.report_rates import share

log = logging.getLogger("nightrank.etl")

Section = Literal["users", "items"]

# The key of these facts in the manifests of the tables `users` and `items`.
FACT = "of_log"


@dataclass(frozen=True)
class MissingRows:
    """The users, or the items, of the log of a run, and those of them without a row in their table.

    Attributes:
        section: the section of the table: `users` or `items`.
        in_log: number of distinct users or items of the log, on all days of the run.
        without_row: number of those without a row in the table.
    """

    section: Section
    in_log: int
    without_row: int

    @property
    def check(self) -> str:
        """Returns the name of the figure, such as `users_without_row`."""
        return f"{self.section}_without_row"

    @property
    def share(self) -> float | None:
        """Returns the share without a row; None if the log has no row."""
        return share(self.without_row, self.in_log)

    def to_facts(self) -> dict[str, Any]:
        """Returns the numbers as facts of a manifest."""
        return {FACT: asdict(self)}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> MissingRows | None:
        """Reads the numbers from the facts of a manifest; None if it has none."""
        return cls(**facts[FACT]) if FACT in facts else None


def check_missing_rows(quality: Quality, missing: Sequence[MissingRows]) -> list[Finding]:
    """Returns a finding for each share above a limit of the section `quality`."""
    figures = [
        Figure(
            rows.check,
            None,
            rows.share,
            f"{rows.without_row} of {rows.in_log} {rows.section} of the log have no row in the table "
            f"`{rows.section}`",
        )
        for rows in missing
        if rows.share is not None
    ]
    return above_limits(quality, figures)


def require_rows(quality: Quality, missing: Sequence[MissingRows], paths: Mapping[str, str]) -> None:
    """Stops the job if a share is above its limit `…_stop`.

    Args:
        quality: the limits.
        missing: the numbers of users and of items.
        paths: maps each section to the path of its table, for the error message.

    Raises:
        DataError: a share is above its limit `quality.<section>_without_row_stop`.
    """
    stops = [finding for finding in check_missing_rows(quality, missing) if finding.level == "stop"]
    if not stops:
        return
    sections = [finding.check.removesuffix("_without_row") for finding in stops]
    files = " and ".join(paths[section] for section in sections)
    messages = "; ".join(
        f"{stop.message}: {stop.check}={stop.value:.4g} is above quality.{stop.check}_stop={stop.limit:g}"
        for stop in stops
    )
    raise DataError(
        f"{files}: {messages}",
        f"deliver the missing rows in {files} and run the job again; if the rows are missing on purpose, run "
        f"the job with {options_to_accept(stops)}",
    )


def log_missing_rows(quality: Quality, missing: Sequence[MissingRows]) -> list[Finding]:
    """Logs the shares above a limit, and returns their findings."""
    findings = check_missing_rows(quality, missing)
    for finding in findings:
        log.warning(
            "data quality, %s (%s=%.4g): %s", finding.level, finding.check, finding.value, finding.message
        )
    return findings
