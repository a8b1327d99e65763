"""Which versions, checkpoints and files of attempts prune deletes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from etl.workflow.local_workflow import FILE_NAME
from jobs.stages.prune_items import Item, Limits
from storage.lake_files import DateFiles, LakeFile
from storage.manifest import MANIFEST_NAME
from storage.paths import Lake
from training.registry.model_json import MODEL_JSON, is_complete

FEATURES = "features"
# Tables with one table for each workflow version.
OF_VERSIONS = frozenset(
    {FEATURES, "users", "items", "candidates", "candidate_items", "item_vectors"}
    | {"gate_items", "blend_items", "experiment_items"}
)
VERSION = re.compile(r"[0-9a-f]{16}")
_WORKFLOW, _CHECKPOINTS = "workflow", "checkpoints"
_OF_ATTEMPTS = ("runs", "logs", "spark-events", "reports")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def unused_models(unused: Sequence[tuple[str, str]], files: Sequence[LakeFile], limits: Limits) -> list[Item]:
    """Returns the items of the model versions that nobody needs, without those of running trainings.

    Checkpoints come first. They belong to the model only as long as it has a model.json; before that, a
    training continues from them.
    """
    folders = [f"models/{name}/{version}" for name, version in unused]
    of_folder = _by_folder(files, [*folders, *(f"{_CHECKPOINTS}/{version}" for _, version in unused)])
    items = []
    for folder, (name, version) in zip(folders, unused, strict=True):
        checkpoints = f"{_CHECKPOINTS}/{version}"
        marker = f"{folder}/{MODEL_JSON}"
        model = sorted(of_folder[folder], key=lambda file: (file.path != marker, file.path))
        is_described = any(file.path == marker for file in model)
        all_files = (*(of_folder[checkpoints] if is_described else ()), *model)
        if model and limits.are_old(all_files):  # a training may have created an empty folder
            items.append(Item(f"models/{name}", version, all_files, (checkpoints, folder)))
    return items


def _by_folder(files: Iterable[LakeFile], folders: Iterable[str]) -> dict[str, list[LakeFile]]:
    """Returns the files below some folders."""
    below: dict[str, list[LakeFile]] = {folder: [] for folder in folders}
    for file in files:
        parts = file.path.split("/")
        for depth in range(1, len(parts)):
            if (folder := "/".join(parts[:depth])) in below:
                below[folder].append(file)
    return below


def unused_workflows(
    used: set[str],
    files: Sequence[LakeFile],
    dates: Mapping[tuple[str, str], DateFiles],
    limits: Limits,
) -> list[Item]:
    """Returns the items of workflow versions that no dataset or model uses, with all of their tables.

    A version with a date that is kept, or with a file that a job may be writing, is not among them.
    workflow.json comes first, so no job uses an incomplete version, and then the manifests.
    """
    dated = {table.split("/")[1] for table, dt in dates if dt >= limits.first_date and "/" in table}
    of_version: dict[str, list[LakeFile]] = defaultdict(list)
    for file in files:
        kind, version, *rest = [*file.parts, ""]
        if rest[1:] and kind in OF_VERSIONS | {_WORKFLOW} and VERSION.fullmatch(version):
            of_version[version].append(file)
    last = {FILE_NAME: 0, MANIFEST_NAME: 1}
    items = []
    for version, of_one in sorted(of_version.items()):
        if version in used or version in dated or not limits.are_old(of_one):
            continue
        ordered = sorted(of_one, key=lambda file: (last.get(file.parts[-1], 2), file.path))
        folders = sorted({file.path[: file.path.index(version) + len(version)] for file in of_one})
        items.append(Item(_WORKFLOW, version, tuple(ordered), tuple(folders)))
    return items


def old_checkpoints(
    lake: Lake, saved: Sequence[Mapping[str, str]], files: Iterable[LakeFile], limits: Limits
) -> list[Item]:
    """Returns the items of old checkpoints of complete models.

    Args:
        lake: the lake.
        saved: the models that stay, as `saved_models` returns them.
        files: the files of the lake.
        limits: the limits.
    """
    folders = {one["version"]: f"{lake.models(one['name'])}/{one['version']}" for one in saved}
    of_version: dict[str, list[LakeFile]] = defaultdict(list)
    for file in files:
        kind, version, *_ = [*file.parts, ""]
        if kind == _CHECKPOINTS and version in folders and limits.are_old([file]):
            of_version[version].append(file)
    return [
        Item(_CHECKPOINTS, version, tuple(old), (f"{_CHECKPOINTS}/{version}",))
        for version, old in sorted(of_version.items())
        if is_complete(folders[version])
    ]


def old_attempts(files: Iterable[LakeFile], limits: Limits) -> list[Item]:
    """Returns the items of the records, logs, event logs and reports of attempts.

    They are of a date if their name, or that of their folder, contains one. Otherwise the time of the last
    change counts.
    """
    entries: dict[tuple[str, str], list[LakeFile]] = defaultdict(list)
    for file in files:
        kind, _, rest = file.path.partition("/")
        if kind in _OF_ATTEMPTS and rest:
            entries[kind, rest.split("/")[0]].append(file)
    items = []
    for (kind, name), of_entry in sorted(entries.items()):
        days = _DATE.findall(name)
        if days:
            expired = days[-1] < limits.first_date and limits.are_old(of_entry)
        else:
            expired = all(file.modified < limits.expired for file in of_entry)
        if expired:
            items.append(Item(kind, name, tuple(of_entry), (f"{kind}/{name}",)))
    return items
