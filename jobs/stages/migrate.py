"""Creates the output of the job migrate: a table of kinds and versions of files, and the job summary."""

from __future__ import annotations

from collections import Counter

from storage.job_summary import JobSummary
from storage.migration import Survey
from storage.paths import LakePaths


def version_table(survey: Survey) -> str:
    """Returns a table with one line for each kind of file and format version."""
    files = Counter((file.kind.name, file.version, file.kind.version) for file in survey.files)
    to_migrate = Counter((file.kind.name, file.version, file.kind.version) for file in survey.to_migrate)
    lines = [f"  {'Kind of file':<30}  {'Version':>7}  {'Current':>7}  {'Files':>7}  {'To migrate':>10}"]
    for key, count in sorted(files.items()):
        name, version, current = key
        lines.append(f"  {name:<30}  {version:>7}  {current:>7}  {count:>7,}  {to_migrate[key]:>10,}")
    return "\n".join(lines)


def summarize(lake: LakePaths, survey: Survey, *, applied: bool, migrated: int, seconds: float) -> JobSummary:
    """Returns the job summary. It has no run date, no rows and no output."""
    facts = {
        "lake": lake.root,
        "applied": applied,
        "files": len(survey.files),
        "to_migrate": len(survey.to_migrate),
        "migrated": migrated,
        "problems": len(survey.problems),
    }
    summary = JobSummary(None, rows_in=None, rows_out=None, dropped=None, facts=facts)
    return summary.completed("migrate", None, {}, seconds)
