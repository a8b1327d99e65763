"""Checks the models and workflows of a lake for the job fsck, and creates its job summary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from conf.errors import DataError
from etl.workflow.fitted_workflow import load_local
from storage import file_io, format_versions
from storage.format_versions import Format
from storage.fsck import Damage, Findings
from storage.job_summary import JobSummary
from storage.paths import LakePaths
from training.registry.champion_history import (
    OVERRIDES,
    PROMOTIONS,
    dated_path,
    dates_of,
    parse_decision,
    parse_overrides,
)
from training.registry.model_json import MODEL_JSON, damage_of_model, is_described
from training.registry.refits import REFITS, parse_refit

# The folders of dated files of a model, with their formats.
_DATED: dict[str, tuple[Format, Callable[[dict[str, Any]], object]]] = {
    PROMOTIONS: (format_versions.PROMOTION, parse_decision),
    OVERRIDES: (format_versions.INTERVENTION, parse_overrides),
    REFITS: (format_versions.TRAINED_VERSION, parse_refit),
}
_REMEDY_OF_MODEL = (
    "run train_model again for the date on which this model was trained; until then, the previous champion "
    "can serve in its place (`nightrank champion --rollback`)"
)


def check_descriptions(lake: LakePaths, findings: Findings) -> Findings:
    """Adds damaged models, and damaged JSON files of models and workflows, to the findings about a lake."""
    known = {damage.path for damage in findings.damages}
    found = [damage for damage in _damages(lake) if damage.path not in known]
    findings.damages = (*findings.damages, *found)
    return findings


def _damages(lake: LakePaths) -> Iterator[Damage]:
    for version in _folders(lake.workflow("").rstrip("/")):
        path = f"{lake.workflow(version)}/workflow.json"
        if file_io.exists(path):
            yield from _parsed(path, partial(load_local, lake, version))
    for name in _folders(lake.models("").rstrip("/")):
        for folder, (kind, parse) in _DATED.items():
            for date in dates_of(lake, name, folder):
                path = dated_path(lake, name, folder, date)
                yield from _parsed(path, partial(kind.load, path, parse))
        for version in _folders(lake.models(name)):
            folder = f"{lake.models(name)}/{version}"
            if is_described(folder) and (problem := damage_of_model(folder)) is not None:
                yield Damage("models", version, f"{folder}/{MODEL_JSON}", problem, _REMEDY_OF_MODEL)


def _parsed(path: str, parse: Callable[[], object]) -> Iterator[Damage]:
    """Yields a finding if a file cannot be parsed."""
    try:
        parse()
    except DataError as error:
        yield Damage("", "", path, error.problem.removeprefix(f"{path} "), error.remedy)


def _folders(path: str) -> list[str]:
    return [info.base_name for info in file_io.list_files(path) if not info.is_file]


def summarize(lake: LakePaths, findings: Findings, *, changes: int, seconds: float) -> JobSummary:
    """Returns the job summary. It has no run date, no rows and no output."""
    facts = {
        "lake": lake.root,
        "partitions": findings.partitions,
        "files": findings.files,
        "bytes": findings.bytes,
        "unverified": findings.unverified,
        "damaged": len(findings.damages),
        "changes": changes,
    }
    summary = JobSummary(None, rows_in=None, rows_out=None, dropped=None, facts=facts)
    return summary.completed("fsck", None, {}, seconds)
