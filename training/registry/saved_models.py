"""Lists the complete models of a lake."""

from __future__ import annotations

from storage import file_io
from storage.paths import Lake
from training.registry.model_json import is_described, read_description


def saved_models(lake: Lake) -> list[dict[str, str]]:
    """Returns `name`, `version` and `workflow_version` of each complete model of a lake, by name."""
    root = lake.models("").rstrip("/")
    names = [info.base_name for info in file_io.list_files(root)]
    folders = {name: [info.base_name for info in file_io.list_files(lake.models(name))] for name in names}
    return [
        {"name": name, "version": version, "workflow_version": str(workflow)}
        for name, versions in folders.items()
        for version in versions
        if is_described(path := f"{lake.models(name)}/{version}")
        and (workflow := read_description(path).get("workflow_version")) is not None
    ]
