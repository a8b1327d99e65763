"""Finds workflows in a folder that `Workflow.save` or `Model.save` wrote."""

from __future__ import annotations

from conf.errors import ConfigError, DataError
from etl.workflow.local_workflow import saved_versions
from storage.paths import Lake


def find_workflow(lake: Lake, version: str | None) -> str:
    """Returns the version of a workflow in a folder; if `version` is None, that of the only one.

    Raises:
        ConfigError: the version is None, and there are several workflows.
        DataError: there is no such workflow.
    """
    versions = saved_versions(lake)
    if not versions:
        raise DataError(f"{lake.root} has no workflow", "pass the folder that was passed to `save`")
    if version is None and len(versions) > 1:
        raise ConfigError(f"{lake.root} has several workflows: {versions}", "pass the `version` of one")
    if version is not None and version not in versions:
        raise DataError(f"{lake.root} has no workflow {version}", f"choose from {versions}")
    return version or versions[0]
